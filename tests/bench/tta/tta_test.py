#!/usr/bin/python3
"""The arithmetic of `./dev bench tta`, the configs of its jobs, and what it reads from logs. Runs no job."""
import math
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import arithmetic  # noqa: E402
import contests  # noqa: E402
import plot  # noqa: E402
import run_job  # noqa: E402
import tta  # noqa: E402


def run(seed, time_to=1.0, rate=0.1, accuracy=0.95, steps=10.0, **more):
    return {"seed": seed, "rate": rate, "time_to": time_to, "accuracy": accuracy, "steps_per_second": steps, **more}


class Arithmetic(unittest.TestCase):
    def test_time_to_is_that_of_the_first_evaluation_that_is_good_enough(self):
        evaluations = [(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (4.0, 0.95)]
        self.assertEqual(arithmetic.time_to(evaluations, 0.9), 2.0)
        self.assertEqual(arithmetic.time_to(evaluations, 0.91), 4.0)
        self.assertEqual(arithmetic.time_to(evaluations, 0.96), math.inf)
        self.assertEqual(arithmetic.time_to([], 0), math.inf)

    def test_spread(self):
        self.assertEqual(arithmetic.spread([3, 1, 2]), {"median": 2, "low": 1, "high": 3, "runs": 3})
        self.assertEqual(arithmetic.spread([1, math.inf, 2])["median"], 2)
        self.assertIsNone(arithmetic.spread([]))

    def test_a_busy_run_does_not_count(self):
        self.assertTrue(arithmetic.valid({"cpu": 0.70}))
        self.assertFalse(arithmetic.valid({"cpu": 0.71}))

    def test_the_best_rate_has_the_shortest_median_time(self):
        runs = [run(1, 5, 0.1), run(2, 5, 0.1), run(3, 1, 0.1), run(1, 4, 0.2), run(2, 4, 0.2), run(3, 9, 0.2)]
        self.assertEqual(arithmetic.best_rate(runs), 0.2)
        self.assertEqual({one["rate"] for one in arithmetic.at_best_rate(runs)}, {0.2})
        never = [run(1, math.inf, 0.1, accuracy=0.8), run(1, math.inf, 0.2, accuracy=0.85)]
        self.assertEqual(arithmetic.best_rate(never), 0.2)
        self.assertIsNone(arithmetic.best_rate([]))

    def test_ratios_are_by_seed_and_above_1_is_better(self):
        of, to = [run(1, 2.0, steps=30), run(2, 4.0, steps=40), run(3, 1.0)], [run(2, 8.0, steps=10), run(1, 6.0, steps=10)]
        self.assertEqual(arithmetic.ratios("time_to", of, to), [3.0, 2.0])
        self.assertEqual(arithmetic.ratios("steps_per_second", of, to), [3.0, 4.0])
        self.assertEqual(arithmetic.ratios("time_to", [run(1, math.inf)], [run(1, 1.0)]), [0.0])
        self.assertEqual(arithmetic.ratios("time_to", [run(1, 1.0)], [run(1, math.inf)]), [math.inf])
        self.assertEqual(arithmetic.ratios("time_to", [run(1, math.inf)], [run(1, math.inf)]), [])

    def test_a_target_is_met_by_ratio_and_by_accuracy(self):
        target = contests.Target("a / b", "P", "a", "b", "time_to", 3.0, most_points=0.5)
        of, to = [run(1, 1.0, accuracy=0.945)], [run(1, 3.0, accuracy=0.95)]
        self.assertTrue(arithmetic.judge(target, of, to)["met"])
        self.assertFalse(arithmetic.judge(target, of, [run(1, 2.9, accuracy=0.95)])["met"])
        self.assertFalse(arithmetic.judge(target, of, [run(1, 3.0, accuracy=0.952)])["met"])
        self.assertIsNone(arithmetic.judge(target, of, []))
        equal = contests.Target("a / b", "P", "a", "b", "steps_per_second", 1.0, within=0.05)
        self.assertTrue(arithmetic.judge(equal, [run(1, steps=9.6)], [run(1)])["met"])
        self.assertFalse(arithmetic.judge(equal, [run(1, steps=10.6)], [run(1)])["met"])


class Jobs(unittest.TestCase):
    def test_a_job_has_the_parts_of_work_straggler_and_contestant(self):
        job = contests.job_of(contests.Run("digits", "P", "sync, 16 parts", 0.2, 7))
        self.assertEqual((job["seed"], job["consistency"]["parts"], job["data"]["batch_size"]), (7, 16, 4))
        self.assertEqual(job["debug"], {"batch_seconds": 0.0075, "slow_factor": 4, "delayed_worker": 0})
        self.assertEqual(job["optimizer"]["learning_rate"], 0.2)

    def test_with_local_steps_the_rate_is_the_workers_own(self):
        job = contests.job_of(contests.Run("digits", "none", "sync, 20 local steps", 0.2, 1), seconds=0.01, epochs=2)
        self.assertEqual((job["local"]["steps"], job["local"]["inner"]["learning_rate"], job["optimizer"]["learning_rate"]), (20, 0.2, 1))
        self.assertEqual((job["debug"], job["train"]), ({"batch_seconds": 0.01}, {"epochs": 2}))

    def test_targets_name_contestants_and_stragglers(self):
        for target in contests.TARGETS:
            self.assertLessEqual({target.of, target.to}, set(contests.CONTESTANTS))
            self.assertIn(target.straggler, contests.STRAGGLERS)
        self.assertEqual(contests.of_targets("T"), ["sync", "bounded(3)"])
        self.assertEqual(contests.of_targets("none"), contests.of_targets("P"))

    def test_names_of_contestants_hold_commas(self):
        options = tta.parse(["--stragglers=P,T", "--contestants=sync, 1 backup; async"])
        self.assertEqual((options.stragglers, options.contestants), (["P", "T"], ["sync, 1 backup", "async"]))

    def test_a_plan_goes_seed_by_seed(self):
        options = tta.parse(["--quick", "--seeds=2"])
        self.assertEqual([(one.contestant, one.seed) for one in tta.plan(options, {})], [("sync", 1), ("async", 1)])
        options = tta.parse(["--seeds=2", "--stragglers=T"])
        planned = list(tta.plan(options, {"bounded(3)": "why"}))
        self.assertEqual([(one.contestant, one.rate, one.seed) for one in planned],
                         [("sync", rate, seed) for seed in (1, 2) for rate in contests.WORKS["digits"].rates])


class Logs(unittest.TestCase):
    def test_accuracies_and_their_times_come_from_the_logs(self):
        server = [(9.0, "shard 0 listens"), (10.0, "training starts with 4 workers"), (14.0, "all 9000 examples are done")]
        evaluator = [(9.5, "computing on cpu"), (11.0, "evaluation at version 36: test loss 1.00387, accuracy 0.855219"),
                     (14.5, "final evaluation at version 141: test loss 0.225085, accuracy 0.969697")]
        self.assertEqual(run_job.read_logs(server, evaluator), (10.0, 14.0, [(1.0, 0.855219), (4.0, 0.969697)]))

    def test_the_cpu_share_is_of_the_time_of_training(self):
        samples = [(0, 0.0), (1, 5.0), (2, 6.0), (3, 7.0), (4, 20.0)]
        self.assertEqual(run_job.cpu_share(samples, 0.5, 3.5, cores=2), 0.5)
        self.assertEqual(run_job.cpu_share(samples, 0.5, 1.5, cores=2), 1.0)


class Report(unittest.TestCase):
    def test_tables_leave_out_invalid_runs(self):
        options = tta.parse(["--quick"])
        common = {"work": "digits", "straggler": "P", "examples_per_second": 100.0, "bytes_pushed": 1e6, "seconds": 5.0,
                  "evaluations": [(1.0, 0.5), (4.0, 0.9)]}
        runs = [run(1, 9.0, contestant="sync", valid=True, **common), run(1, 2.0, contestant="async", valid=True, **common),
                run(2, 1.0, contestant="async", valid=False, **common)]
        judged = tta.judge(runs, ["digits"])
        text = tta.tables(runs, judged, options)
        self.assertIn("| P | async | 0.1 | 2.00 |", text)
        self.assertIn("| async / sync, time to accuracy | 4.50 (4.50 to 4.50); 0.00 points lost | at least 3.00; at most 0.5 points | met |", text)
        self.assertIn("<polyline", tta.picture(runs, options))

    def test_a_curve_is_the_median_of_the_newest_accuracies(self):
        runs = [{"seconds": 2.0, "evaluations": [(1.0, accuracy)]} for accuracy in (0.1, 0.3, 0.2)]
        self.assertEqual(plot.median_curve(runs, points=2), [(1.0, 0.2), (2.0, 0.2)])
        self.assertEqual(plot.median_curve([*runs, {"seconds": 2.0, "evaluations": []}], points=2), [])

    def test_json_has_no_infinity_and_few_digits(self):
        self.assertEqual(tta.plain({"a": [math.inf, (1.23456, 2)]}), {"a": [None, [1.2346, 2]]})


if __name__ == "__main__":
    unittest.main()
