"""A worker, or the evaluator, that evaluates when its job asks for it, for torch_evaluation_test.py. Arguments: the job, a folder, and what it does."""
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.nn.functional as F
import train

import weir.torch


def main():
    torch.set_num_threads(1)
    job, folder, ways = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    model, data = train.make_model(norm="norm" in ways), train.Examples()

    def evaluate(given):
        assert given is model and not any(m.training for m in model.modules()) and not torch.is_grad_enabled()
        if "die" in ways and train.once(folder / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        torch.rand(3)  # must not change the next batch
        if "wrong" in ways:
            return {"accuracy": 0.5}
        return train.measure(model, data)

    def test(given):
        assert train.once(folder / "tested"), "the test set was touched before"
        return {"loss": 7.5, "accuracy": 0.25, "auc": 0.75, "examples": 3}

    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "evaluator":
        with weir.torch.Reader(model, job, evaluate=evaluate) as reader:
            (folder / "reads").touch()
            made = [(one.epoch, one.version, one.result.loss) for one in reader.evaluations()]
        (folder / "made.json").write_text(json.dumps(made))
        assert model.training and model[2].training
        return

    opt = weir.torch.Optimizer(model, job, data, evaluate=None if "blind" in ways else evaluate, test=test if "test" in ways else None,
                               overlap="overlap" in ways)
    for x, y, *_ in opt.loader():
        assert model.training and model[2].training
        while "evaluator" in ways and not (folder / "reads").exists():
            time.sleep(0.005)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    torch.save(model.state_dict(), folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    main()
