#!/usr/bin/env python3
"""A small network in JAX that tells two spirals apart: weir.jax.

    python examples/jax_mlp.py                                                    # servers in this process
    weir up --ps=2 --workers=2 examples/jax_mlp.json -- python examples/jax_mlp.py
"""
import pathlib

import jax
import numpy as np
import weir.jax

JOB = pathlib.Path(__file__).with_suffix(".json")


def spirals(n, seed):
    """n points on two spirals, and which of the two each is on; the same for every worker."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % 2
    angle = 1 + 5 * random.random(n)
    points = np.stack([np.cos(angle + np.pi * y), np.sin(angle + np.pi * y)], 1) * angle[:, None] / 6
    return (points + 0.02 * random.normal(size=(n, 2))).astype(np.float32), y


def network(params, x):
    for layer in params[:-1]:
        x = jax.numpy.tanh(x @ layer["weight"] + layer["bias"])
    return x @ params[-1]["weight"] + params[-1]["bias"]


@jax.jit
@jax.value_and_grad
def loss_and_gradient(params, x, y):
    return -jax.numpy.mean(jax.nn.log_softmax(network(params, x))[jax.numpy.arange(len(y)), y])


def main():
    random, sizes = np.random.default_rng(0), [2, 32, 32, 2]
    params = [{"weight": random.normal(size=(m, n), scale=m**-0.5).astype(np.float32), "bias": np.zeros(n, np.float32)}
              for m, n in zip(sizes, sizes[1:])]
    x, y = spirals(640, seed=1)
    with weir.jax.Trainer(JOB, params, len(x)) as trainer:
        for step in trainer.steps():
            loss, gradient = loss_and_gradient(step.params, x[step.examples], y[step.examples])
            step.push(gradient, loss=loss)
    x, y = spirals(200, seed=2)
    print(f"test accuracy: {(network(trainer.params, x).argmax(1) == y).mean():.3f}")


if __name__ == "__main__":
    main()
