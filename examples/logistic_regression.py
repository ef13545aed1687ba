#!/usr/bin/env python3
"""Logistic regression on NumPy alone: weir.Client's loop.

    python examples/logistic_regression.py                                    # servers in this process
    weir up --ps=2 --workers=2 examples/logistic_regression.json -- python examples/logistic_regression.py
"""
import pathlib

import numpy as np
import weir

JOB = pathlib.Path(__file__).with_suffix(".json")
EXAMPLES, INPUTS = 2000, 20


def data():
    """Two clouds of points that overlap a little; the same for every worker."""
    random = np.random.default_rng(1)
    y = random.integers(0, 2, EXAMPLES).astype(np.float32)
    direction = random.normal(size=INPUTS)
    x = random.normal(size=(EXAMPLES, INPUTS)) + np.outer(y - 0.5, direction)
    return x.astype(np.float32), y


def main():
    x, y = data()
    tensors = {"weight": weir.Tensor((INPUTS,), "uniform", 0.1), "bias": ()}
    trained = {"weight": np.empty(INPUTS, np.float32), "bias": np.empty((), np.float32)}
    with weir.Client(JOB, tensors, EXAMPLES) as client:
        for step in client.steps(trained):
            inputs, labels = x[step.examples], y[step.examples]
            p = 1 / (1 + np.exp(-(inputs @ step.weights["weight"] + step.weights["bias"])))
            # The gradient of the mean loss over the step's examples.
            error = (p - labels) / len(labels)
            step.gradient["weight"][:] = inputs.T @ error
            step.gradient["bias"][...] = error.sum()
            step.push(loss=-np.log(np.where(labels > 0, p, 1 - p) + 1e-9).mean())
    right = (x @ trained["weight"] + trained["bias"] > 0) == (y > 0)
    print(f"accuracy on the training set: {right.mean():.3f}")


if __name__ == "__main__":
    main()
