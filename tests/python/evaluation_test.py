#!/usr/bin/python3
"""A Python job and a job of `worker` on the same data give the same evaluations, stop at the same epoch, and keep the same best."""
import json
import pathlib
import shutil
import unittest

import support

PROGRAM = support.ROOT / "tests/python/train_softmax.py"
MODEL = {"layers": [{"type": "dense", "units": 2, "init": "zeros"}]}


def lines(n, wrong):
    """Two numbers and a label; `wrong` of 10 labels are the other ones."""
    for i in range(n):
        label = (i % 7 + i % 3) % 2
        yield f"{0.1 * (i % 7):.1f},{0.3 * (i % 3) + 0.2 * label:.1f},{1 - label if i % 10 < wrong else label}\n"


class AsWorker(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "train.csv").write_text("".join(lines(64, wrong=1)))
        # Training makes it better first, and then worse.
        (self.folder / "held_out.csv").write_text("".join(lines(50, wrong=4)))

    def summary(self, name, model, data, command, workers=2, flags=(), **fields):
        job = support.write_job(self.folder / f"{name}.json", seed=4, data={"batch_size": 8, **data}, train={"epochs": 20},
                                optimizer={"learning_rate": 2}, checkpoint={"directory": str(self.folder / name)}, **model, **fields)
        said = self.folder / f"{name}-summary.json"
        done = support.run([str(support.ROOT / "cli/weir"), "up", "--ps=2", f"--workers={workers}", f"--summary={said}", *flags, job,
                            *command(job)])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(said.read_text())

    def check(self, ways=(), **fields):
        files = {name: {"path": str(self.folder / f"{of}.csv")} for name, of in (("train", "train"), ("test", "held_out"))}
        for name in ("worker", "python"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        of_worker = self.summary("worker", {"model": MODEL}, {"format": "csv", **files}, lambda job: [], **fields)
        of_python = self.summary("python", {}, {}, lambda job: ["--", support.PYTHON, str(PROGRAM), job, str(self.folder), *ways],
                                 **fields)
        self.assertGreater(len(of_worker["evaluations"]), 1)
        self.assertEqual(len(of_python["evaluations"]), len(of_worker["evaluations"]))
        for one, other in zip(of_python["evaluations"], of_worker["evaluations"]):
            self.assertEqual((one["epoch"], one["step"], one["validation"]), (other["epoch"], other["step"], other["validation"]))
            self.assertAlmostEqual(one["test_loss"], other["test_loss"], places=5)
            self.assertAlmostEqual(one["test_accuracy"], other["test_accuracy"], places=5)
        for name in ("steps", "examples", "stopped_early"):
            of = [json.dumps(s[name]).split(", whose")[0] for s in (of_python, of_worker)]
            self.assertEqual(*of)
        self.assertAlmostEqual(of_python["test_loss"], of_worker["test_loss"], places=5)
        return of_python, of_worker

    def test_every_epoch_is_evaluated(self):
        of_python, _ = self.check(consistency={"mode": "sync", "parts": 2})
        self.assertEqual(len(of_python["evaluations"]), 20)

    def test_it_stops_after_the_same_epoch_and_keeps_the_same_best(self):
        # With one worker the order of pushes is the same in every mode.
        for workers, mode in ((2, {"mode": "sync", "parts": 2}), (1, {"mode": "bounded", "staleness": 0})):
            for metric in ("loss", "accuracy"):
                with self.subTest(mode=mode, metric=metric):
                    of_python, of_worker = self.check(workers=workers, consistency=mode,
                                                      evaluation={"patience": 3, "keep_best": True, "metric": metric})
                    self.assertLess(len(of_python["evaluations"]), 20)
                    self.assertEqual(of_python["best"]["epoch"], of_worker["best"]["epoch"])
                    self.assertEqual(pathlib.Path(of_python["best"]["checkpoint"]).name,
                                     pathlib.Path(of_worker["best"]["checkpoint"]).name)

    def test_an_evaluator_task(self):
        """It makes all evaluations, also in the middle of a job that waits for each. Where it is killed in the middle of one, a worker
        makes that and the others. The job's end is evaluated by whoever is there."""
        for die, workers, mode in ((False, 2, {"mode": "sync", "parts": 2}), (True, 2, {"mode": "sync", "parts": 2}),
                                   (False, 1, {"mode": "bounded", "staleness": 0})):
            with self.subTest(die=die, mode=mode):
                for name in ("evaluated", "reads"):
                    (self.folder / name).unlink(missing_ok=True)
                of_python, of_worker = self.check(workers=workers, flags=["--evaluator"], ways=["evaluator", *(["die"] if die else [])],
                                                  consistency=mode, evaluation={"patience": 3, "keep_best": True})
                made = (self.folder / "evaluated").read_text().split()
                epochs = len(of_python["evaluations"])
                self.assertLess(epochs, 20)
                self.assertEqual(of_python["best"]["epoch"], of_worker["best"]["epoch"])
                if die:
                    self.assertEqual(made, ["evaluator"] * 2 + ["worker"] * epochs)
                else:
                    self.assertEqual(made[:epochs], ["evaluator"] * epochs)
                    self.assertIn(sorted(made[epochs:]), (["evaluator"], ["evaluator", "worker"]))

    def test_an_evaluator_task_without_an_early_stop(self):
        of_python, _ = self.check(consistency={"mode": "sync", "parts": 2}, flags=["--evaluator"], ways=["evaluator"])
        self.assertEqual(len(of_python["evaluations"]), 20)
        self.assertEqual((self.folder / "evaluated").read_text().split()[:19], ["evaluator"] * 19)


if __name__ == "__main__":
    unittest.main()
