#!/usr/bin/python3
"""weir.torch.Optimizer(evaluate=..., test=...): what a job asks for, and what it makes of it. Training has the same bits as without."""
import json
import unittest

import support
import torch
import train
import weir
import weir.torch
from torch_jobs import EPOCHS, STEPS, Run, job, serial_run
from weir.evaluations import Result, result_of

PROGRAM = support.ROOT / "tests/python/train_evaluated.py"


class Evaluated(unittest.TestCase):
    def up(self, run, workers, *ways, ends=0, flags=()):
        summary = run.folder / "summary.json"
        done = support.run(support.up(run.job, [PROGRAM, run.job, run.folder, *ways], f"--workers={workers}", "--ps=2",
                                      f"--summary={summary}", *flags))
        self.assertEqual(done.returncode, ends, done.stdout + done.stderr)
        return done, json.loads(summary.read_text()) if summary.exists() else None

    def measured(self, run):
        model = train.make_model(**run.kind)
        model.load_state_dict(serial_run(**run.kind))
        return train.measure(model, train.Examples())

    def test_every_epoch_in_sync(self):
        """The same results for any number of workers, and of an evaluator, and the bits of a run without evaluations."""
        seen = []
        for workers, ways, flags in ((1, ["norm"], []), (2, ["norm"], []), (3, ["norm", "overlap"], []),
                                     (2, ["norm", "evaluator"], ["--evaluator"])):
            with self.subTest(workers=workers, ways=ways):
                run = Run(self, {"norm": True})
                done, summary = self.up(run, workers, *ways, flags=flags)
                run.check(done, models=workers)
                entries, final = summary["evaluations"], self.measured(run)
                self.assertEqual([(e["epoch"], e["step"]) for e in entries], [(n + 1, STEPS // EPOCHS * (n + 1)) for n in range(EPOCHS)])
                self.assertEqual((entries[-1]["test_loss"], entries[-1]["test_accuracy"]), (final["loss"], final["accuracy"]))
                self.assertEqual(summary["test_loss"], final["loss"])
                self.assertEqual(len({e["test_loss"] for e in entries}), EPOCHS)
                self.assertFalse(any(e["validation"] for e in entries))
                seen.append(entries)
                self.assertEqual(seen[0], entries)
                if flags:
                    made = json.loads((run.folder / "made.json").read_text())
                    self.assertEqual(made[:-1], [[e["epoch"], e["step"], e["test_loss"]] for e in entries[:-1]])
                    self.assertEqual(made[-1], [None, STEPS, final["loss"]])

    def test_an_early_stop_with_a_validation_and_a_test_set(self):
        """No result is better by so much, so the job stops after epoch 2. The test set is touched once."""
        for workers in (1, 2):
            for mode in ({"mode": "sync", "parts": 3}, {"mode": "async"}):
                with self.subTest(workers=workers, mode=mode):
                    run = Run(self, consistency=mode, evaluation={"patience": 1, "min_delta": 1000, "keep_best": True},
                              checkpoint={"directory": "runs"})
                    _, summary = self.up(run, workers, "test")
                    self.assertEqual([e["epoch"] for e in summary["evaluations"]], [1, 2])
                    self.assertTrue(all(e["validation"] for e in summary["evaluations"]))
                    self.assertIn("whose validation loss was", summary["stopped_early"])
                    self.assertEqual((summary["test_loss"], summary["test_accuracy"], summary["test_auc"]), (7.5, 0.25, 0.75))
                    self.assertIn(summary["best"]["epoch"], (1, 2))

    def test_the_last_epoch_has_the_validation_sets_result(self):
        run = Run(self)
        _, summary = self.up(run, 2, "test")
        self.assertEqual([(e["epoch"], e["validation"]) for e in summary["evaluations"]], [(n + 1, True) for n in range(EPOCHS)])
        self.assertEqual(summary["evaluations"][-1]["test_loss"], self.measured(run)["loss"])
        self.assertEqual(summary["test_loss"], 7.5)

    def test_the_worker_that_evaluates_is_killed(self):
        run = Run(self, evaluation={"patience": 1, "min_delta": 1000})
        _, summary = self.up(run, 2, "die", flags=["--restart"])
        self.assertEqual([e["epoch"] for e in summary["evaluations"]], [1, 2])
        self.assertTrue(all(e["test_loss"] is not None for e in summary["evaluations"]))

    def test_an_evaluation_that_fails_ends_its_worker(self):
        run = Run(self)
        done, _ = self.up(run, 1, "wrong", ends=78)
        self.assertIn('evaluate() must return {"loss": ...}', done.stdout + done.stderr)

    def test_without_a_function_what_decides_is_refused_by_name(self):
        for field in ("patience", "keep_best"):
            with self.subTest(field=field):
                run = Run(self, evaluation={field: 1 if field == "patience" else True}, checkpoint={"directory": "runs"})
                done, _ = self.up(run, 2, "blind", ends=78)
                self.assertIn(f"evaluation.{field} needs evaluations", done.stdout + done.stderr)
                self.assertIn("evaluate=f", done.stdout + done.stderr)

    def test_one_process(self):
        """The model's modes and its own weights are back, and the modes of single modules, too."""
        model, data, calls = train.make_model(), train.Examples(), []
        model[0].eval()
        fields = job(evaluation={"patience": 1, "min_delta": 1000})
        opt = weir.torch.Optimizer(model, fields, data, evaluate=lambda m: calls.append(m) or train.measure(m, data))
        for x, y, *_ in opt.loader():
            self.assertEqual([m.training for m in model], [False, True, True, True])
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        self.assertEqual(len(calls), 3)  # two epochs, and the job's end


class Refused(unittest.TestCase):
    def test_results(self):
        self.assertEqual(result_of({"loss": torch.tensor(0.5), "auc": 1}, "f"), Result(0.5, None, 1.0, 1))
        for returned, what in ((0.5, "got float"), ({"accuracy": 1}, "got a mapping with accuracy"), ({"loss": 1, "f1": 2}, "loss, f1"),
                               ({"loss": "low"}, "numbers"), ({"loss": 1, "accuracy": 50}, r"the result of f\(\): accuracy must be in \[0, 1\].*got 50.0"),
                               ({"loss": 1, "examples": 0}, "examples must be at least 1, got 0")):
            with self.subTest(returned=returned), self.assertRaisesRegex(weir.ConfigError, what):
                result_of(returned, "f")

    def test_functions_that_would_never_be_called(self):
        model, data = train.make_model(), train.Examples()
        opt = weir.torch.Optimizer(model, job(evaluation={"every_epochs": 0}), data, evaluate=len, test=len)
        with self.assertRaisesRegex(weir.ConfigError, "evaluate would never be called.*evaluation.every_epochs"):
            next(opt.loader())
        with self.assertRaisesRegex(weir.ConfigError, "test must be a function"):
            weir.Client(job(), {"w": (3,)}, 8, test=0.5)


if __name__ == "__main__":
    unittest.main()
