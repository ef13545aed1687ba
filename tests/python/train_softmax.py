"""Trains what `worker` trains of a model with one dense layer, in NumPy, or is its evaluator, for evaluation_test.py. Arguments: the job, the
folder with the data, and what the evaluator does."""
import json
import os
import pathlib
import signal
import sys
import time

import numpy as np

import weir


def read(path):
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return table[:, :-1], table[:, -1].astype(int)


def forward(weights, x, y):
    """The mean loss, the share of right answers, and the gradient of the logits."""
    logits = x @ weights["dense_0/weight"] + weights["dense_0/bias"]
    logits = logits - logits.max(1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    one = np.eye(p.shape[1], dtype=np.float32)[y]
    return float(-np.log((p * one).sum(1)).mean()), float((p.argmax(1) == y).mean()), (p - one) / np.float32(len(y))


def main():
    folder, ways = pathlib.Path(sys.argv[2]), sys.argv[3:]
    task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    x, y = read(folder / "train.csv")
    held_out = read(folder / "held_out.csv")

    def evaluate(weights):
        with open(folder / "evaluated", "a", encoding="utf-8") as made:
            made.write(f"{task}\n")
        if "die" in ways and task == "evaluator" and (folder / "evaluated").read_text().count(task) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        loss, accuracy, _ = forward(weights, *held_out)
        return {"loss": loss, "accuracy": accuracy, "examples": len(held_out[1])}

    tensors = {"dense_0/weight": (x.shape[1], 2), "dense_0/bias": (2,)}
    if task == "evaluator":
        with weir.Client(sys.argv[1], tensors, 0, reader=True, evaluate=evaluate) as client:
            (folder / "reads").touch()
            for made in client.evaluations():
                print(made, flush=True)
        return
    with weir.Client(sys.argv[1], tensors, len(x), train_set=(x, y), evaluate=evaluate) as client:
        for step in client.steps():
            while "evaluator" in ways and not (folder / "reads").exists():
                time.sleep(0.005)
            loss, _, logits = forward(step.weights, x[step.examples], y[step.examples])
            step.gradient["dense_0/weight"][:] = x[step.examples].T @ logits
            step.gradient["dense_0/bias"][:] = logits.sum(0)
            step.push(loss=loss)


if __name__ == "__main__":
    main()
