"""The data of `./dev bench tta`: works, stragglers, contestants and targets. A contestant more is one line."""
import os
import pathlib
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

from environments import FASHION_MNIST  # noqa: E402

WORKERS = 4


@dataclass
class Work:
    """`job`: without what the contestant, the straggler and the seed say. `batch`: examples of a worker's batch. `interval`: seconds
    between evaluations, by a task of its own. `target`: the accuracy of time to accuracy."""
    job: dict
    batch: int
    seconds: float
    epochs: float
    rates: list
    interval: float
    target: float


def dense(*units):
    layers = [{"type": "flatten"}]
    for n in units:
        layers += [{"type": "dense", "units": n}, {"type": "relu"}]
    return {"layers": layers[:-1], "loss": "softmax_cross_entropy"}


def fashion(part, kind):
    return os.path.join(FASHION_MNIST, f"{part}-{kind}-ubyte.gz")


WORKS = {
    "digits": Work({"model": dense(128, 10), "data": {"format": "digits"}}, batch=16, seconds=0.03, epochs=5, rates=[0.2, 0.8],
                   interval=0.1, target=0.94),
    "fashion": Work({"model": dense(128, 10),
                     "data": {"format": "idx", **{name: {"images": fashion(part, "images-idx3"), "labels": fashion(part, "labels-idx1")}
                                                  for name, part in [("train", "train"), ("test", "t10k")]}}},
                    batch=64, seconds=0.04, epochs=1, rates=[0.1, 0.4], interval=1, target=0.80),
}

STRAGGLERS = {
    "none": {},
    "P": {"slow_factor": 4, "delayed_worker": 0},
    "T": {"slow_factor": 4, "slow_share": 0.1},
    "jitter": {"jitter": 0.1},
}


@dataclass
class Contestant:
    """`job`: its part of the job's config. `rate`: the field of the learning rate, with what else the optimizer there has. `divide`:
    how many smaller batches stand for one of the work's, each in as much less time."""
    job: dict
    rate: str = "optimizer"
    divide: int = 1


SYNC = {"mode": "sync", "parts": WORKERS}
CONTESTANTS = {
    "sync": Contestant({"consistency": SYNC}),
    "sync, 1 backup": Contestant({"consistency": {**SYNC, "backup_workers": 1}}),
    "sync, 16 parts": Contestant({"consistency": {**SYNC, "parts": 4 * WORKERS}}, divide=4),
    "bounded(3)": Contestant({"consistency": {"mode": "bounded", "staleness": 3}}),
    "async": Contestant({"consistency": {"mode": "async"}}),
    "async, scaled": Contestant({"consistency": {"mode": "async", "staleness_policy": {"type": "scale"}}}),
    "async, compensated": Contestant({"consistency": {"mode": "async", "staleness_policy": {"type": "compensate"}}}),
    "sync, int8 pushes": Contestant({"consistency": SYNC, "wire": {"push_dtype": "int8"}}),
    "sync, 20 local steps": Contestant({"consistency": SYNC, "local": {"steps": 20}, "optimizer": {"type": "sgd", "learning_rate": 1}},
                                       rate="local.inner"),
}


@dataclass
class Target:
    """`of` is at least `bound` times better than `to` by `measure`, or `bound` +- `within` times; and its final accuracy is at most
    `most_points` points lower."""
    what: str
    straggler: str
    of: str
    to: str
    measure: str
    bound: float
    within: float = 0
    most_points: float = None


TARGETS = [
    Target("async / sync, time to accuracy", "P", "async", "sync", "time_to", 3.0, most_points=0.5),
    Target("sync with 1 backup / sync, steps a second", "P", "sync, 1 backup", "sync", "steps_per_second", 3.4),
    Target("sync with 1 backup / sync, time to accuracy", "P", "sync, 1 backup", "sync", "time_to", 2.7, most_points=0.3),
    Target("sync, parts 16 / parts 4, examples a second", "P", "sync, 16 parts", "sync", "examples_per_second", 2.5),
    Target("bounded(3) / sync, examples a second", "T", "bounded(3)", "sync", "examples_per_second", 1.30),
    Target("bounded(3) / sync, examples a second", "P", "bounded(3)", "sync", "examples_per_second", 1.00, within=0.05),
]


def of_targets(straggler):
    """The contestants that a target names beside this straggler; if none does, those that any target names."""
    named = [target for target in TARGETS if target.straggler == straggler] or TARGETS
    return [name for name in CONTESTANTS if any(name in (target.of, target.to) for target in named)]


@dataclass
class Run:
    """One job."""
    work: str
    straggler: str
    contestant: str
    rate: float
    seed: int


def job_of(run, seconds=None, epochs=None):
    """The config of the run's job. `seconds`, `epochs`: instead of the work's."""
    work, contestant = WORKS[run.work], CONTESTANTS[run.contestant]
    job = {"name": f"tta_{run.work}", "seed": run.seed, "server": {"min_shard_kib": 0}, "train": {"epochs": epochs or work.epochs},
           "optimizer": {}, **work.job, **contestant.job}
    job["data"] = {**work.job["data"], "batch_size": work.batch // contestant.divide}
    job["evaluation"] = {"every_epochs": 0, "interval_seconds": work.interval}
    job["debug"] = {"batch_seconds": (seconds or work.seconds) / contestant.divide, **STRAGGLERS[run.straggler]}
    optimizer = {"type": "sgd", "learning_rate": run.rate, "schedule": {"type": "cosine", "final_factor": 0.05}}
    if contestant.rate == "local.inner":
        job["local"] = {**job["local"], "inner": optimizer}
    else:
        job["optimizer"] = optimizer
    return job
