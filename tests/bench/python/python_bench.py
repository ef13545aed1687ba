#!/usr/bin/python3
"""Weir's Python package beside its C++ client, and beside plain PyTorch. In each row the contestants take turns; its targets are for
ratios. See docs/benchmarks/README.md."""
import argparse
import itertools
import json
import pathlib
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import contestants as field  # noqa: E402
import environments  # noqa: E402
from processes import Failed  # noqa: E402
from race import Contestant, race  # noqa: E402

LIMIT_SECONDS = 120  # for anything that a contestant does
ENDLESS = 10**12  # examples of a job that is ended from outside

IN_PLACE, COPIED = "C++ client, in place", "C++ client, copied"
NUMPY, TENSORS, OPTIMIZER = "NumPy, in place", "tensors, Client.push_pull()", "weir.torch.Optimizer"
TORCH, WEIR = "plain PyTorch", "weir.torch.Optimizer, 1 server"
WEIR_SYNC, WEIR_ASYNC = "weir.torch.Optimizer, sync", "weir.torch.Optimizer, async"
WATCHED, HOOKED, UNWATCHED = "all of it", "utilization and looks for evaluations", "nothing of it"
ALONE, DDP, RPC, TENSORFLOW = "PyTorch without any exchange", "PyTorch DDP, gloo", "PyTorch RPC", "TensorFlow"


@dataclass
class Target:
    work: str
    # The ratio of the seconds of a step: of the first one's to the second one's, at most `bound`; or of the steps a second, at least.
    of: str
    to: str
    bound: float
    at_least: bool = False


TARGETS = {
    "exchange": [Target("push and pull from tensors / the C++ client's, copied", TENSORS, COPIED, 1.15),
                 Target("push and pull from NumPy, in place / the C++ client's, in place", NUMPY, IN_PLACE, 1.05)],
    "transformer": [Target("step of examples/transformer.py, 1 worker / plain PyTorch", WEIR, TORCH, 1.10)],
    "resnet": [Target("step of examples/resnet.py, 1 worker / plain PyTorch", WEIR, TORCH, 1.10)],
    "mlp": [Target("steps a second, 2 servers, 2 workers, sync / PyTorch DDP", WEIR_SYNC, DDP, 1.5, at_least=True),
            Target("steps a second, 2 servers, 2 workers, async / a parameter server on PyTorch's RPC, the better of sync and async",
                   WEIR_ASYNC, RPC, 3, at_least=True),
            Target("steps a second, 2 servers, 2 workers, async / TensorFlow's parameter servers, async", WEIR_ASYNC, TENSORFLOW, 8,
                   at_least=True)],
    "watched": [Target("step of the small MLP with utilization, looks for evaluations and opt.log() / without", WATCHED, UNWATCHED, 1.01)],
}


def parse(arguments):
    parser = argparse.ArgumentParser(prog="./dev bench python", description=__doc__)
    parser.add_argument("--rows", default=",".join(TARGETS), help="some of %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contestant (%(default)s); a third of them in mlp")
    parser.add_argument("--seconds", type=float, default=0.5, help="rough length of a turn (%(default)s); ten times that in mlp")
    parser.add_argument("--elements", type=int, default=25_000_000, help="of the model in exchange (%(default)s)")
    parser.add_argument("--images", type=int, default=60_000, help="of Fashion-MNIST in resnet (%(default)s)")
    parser.add_argument("--device", default="cpu", help="of PyTorch, for the models in transformer and resnet (%(default)s)")
    parser.add_argument("--data", type=pathlib.Path, default=environments.FASHION_MNIST, help="the folder of Fashion-MNIST (%(default)s)")
    parser.add_argument("--pytorch", metavar="PYTHON", default="/usr/bin/python3", help="a Python that has PyTorch (%(default)s)")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python that has TensorFlow, instead of the one that "
                        "./dev bench peers --install=tensorflow has made")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    options.rows = options.rows.split(",")
    if unknown := set(options.rows) - set(TARGETS):
        parser.error(f"--rows={','.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
    if min(options.rounds, options.elements, options.images) < 1 or options.seconds <= 0:
        parser.error("--rounds, --elements and --images are at least 1, --seconds above 0")
    return options


def progress(row, rounds):
    return lambda done: print(f"{row}: {done} of {rounds} rounds", file=sys.stderr, flush=True)


def worker(name, options, folder, job, program, *arguments):
    """A program of this folder as the only worker of `weir up`, with one server."""
    own = pathlib.Path(tempfile.mkdtemp(dir=folder))
    file = own / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    return Contestant(name, [str(environments.BIN / "cli/weir"), "up", "--ps=1", "--workers=1", f"--log_dir={own}", str(file), "--",
                             options.pytorch, str(HERE / program), *arguments, f"--job={file}"],
                      environment=environments.weir_package())


def exchange(options):
    # The job of bench/contestant.cc.
    job = {"name": "bench", "data": {"batch_size": 1}, "train": {"examples": ENDLESS}, "consistency": {"mode": "async"},
           "optimizer": {"type": "momentum", "learning_rate": 1e-6}, "wire": {"transport": "shared_memory"},
           "cluster": {"lease_seconds": 600, "grace_seconds": 600}, "server": {"min_shard_kib": 0}}
    client = [str(environments.BIN / "tests/bench/client_turns"), f"--elements={options.elements}",
              f"--ps_server={environments.BIN / 'ps_server/ps_server'}"]
    with tempfile.TemporaryDirectory() as folder:
        racers = [Contestant(COPIED, client, connects=False), Contestant(IN_PLACE, [*client, "--in_place"], connects=False)]
        for name, way in [(TENSORS, "tensors"), (OPTIMIZER, "optimizer"), (NUMPY, "numpy")]:
            racers.append(worker(name, options, folder, job, "exchange.py", way, f"--elements={options.elements}",
                                 "--examples=1000"))
        return race(racers, options.rounds, options.seconds, LIMIT_SECONDS, progress("exchange", options.rounds))


def training(example):
    def run(options):
        text = (environments.ROOT / f"examples/{example}.json").read_text(encoding="utf-8")
        job = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        job["train"] = {**job["train"], "examples": ENDLESS}
        del job["train"]["epochs"]
        job["consistency"]["parts"] = 1
        with tempfile.TemporaryDirectory() as folder:
            arguments = [f"--data={options.data}", f"--most={options.images}", f"--device={options.device}"]
            ours = worker(WEIR, options, folder, job, "training.py", example, "weir", *arguments)
            plain = Contestant(TORCH, [options.pytorch, str(HERE / "training.py"), example, "torch", *arguments, ours.command[-1]],
                               environment=environments.weir_package())
            return race([ours, plain], options.rounds, options.seconds, LIMIT_SECONDS, progress(example, options.rounds))
    return run


def mlp(options):
    """Runs the contestants in turns, each time as fresh processes. The seconds of a step are counted for all workers' steps, so with two
    workers they are half of a worker's."""
    racers = {WEIR_SYNC: (field.weir_torch("sync"), options.pytorch), WEIR_ASYNC: (field.weir_torch("async"), options.pytorch),
              ALONE: (field.pytorch_alone, options.pytorch), DDP: (field.pytorch_ddp, options.pytorch)}
    for mode, transport in itertools.product(field.COLUMNS, ["shm", "tcp"]):
        racers[f"{RPC}, {mode}, {transport}"] = (field.pytorch_rpc(mode, transport), options.pytorch)
    try:
        python = environments.python_for("tensorflow", options.tensorflow, install=False)
        for call, steps in [("a step a call", 1), ("20 steps a call", 20)]:
            racers[f"{TENSORFLOW}, {call}"] = (field.tensorflow_ps(steps), python)
    except environments.Skipped as reason:
        print(f"SKIPPED: {TENSORFLOW}: {reason}", flush=True)
    rounds, rates = max(1, options.rounds // 3), {}
    found = {name: [] for name in racers}
    for number in range(-1, rounds):
        # The first run of each only finds out how long a step takes.
        for name, (run, python) in racers.items():
            steps = max(50, int(rates[name] * 10 * options.seconds / field.WORKERS)) if number >= 0 else 200
            rates[name] = run(python, steps, LIMIT_SECONDS + 20 * options.seconds).rate
            if number >= 0:
                found[name].append(1 / rates[name])
        progress("mlp", rounds)(number + 1)
    return found


def watched(options):
    job = {"name": "watched", "data": {"batch_size": field.BATCH}, "train": {"examples": ENDLESS},
           "consistency": {"mode": "sync", "parts": 1}, "optimizer": {"type": "sgd", "learning_rate": field.LEARNING_RATE},
           "evaluation": {"every_epochs": ENDLESS // 60_000}}
    with tempfile.TemporaryDirectory() as folder:
        racer = worker("watched.py", options, folder, job, "watched.py", f"--data={environments.data()}")
        racer.ways = {WATCHED: "all", HOOKED: "hooks", UNWATCHED: ""}
        return race([racer], options.rounds, options.seconds, LIMIT_SECONDS, progress("watched", options.rounds))


RACES = {"exchange": exchange, "transformer": training("transformer"), "resnet": training("resnet"), "mlp": mlp, "watched": watched}


def judge(target, seconds):
    """Returns an object of the JSON; None: one of the two was left out. If the target names several, such as those of two transports,
    the fastest counts."""
    def of(name):
        found = [values for key, values in seconds.items() if key.startswith(name)]
        return min(found, key=statistics.median, default=None)

    ours, others = of(target.of), of(target.to)
    if not ours or not others:
        return None
    ratios = [other / own if target.at_least else own / other for own, other in zip(ours, others)]
    value = statistics.median(ratios)
    return {"work": target.work, "value": value, "samples": ratios, "bound": target.bound, "at_least": target.at_least,
            "met": value >= target.bound if target.at_least else value <= target.bound}


def main(arguments=None):
    options = parse(arguments)
    begin = time.monotonic()
    about, measured, judged, failed = environments.machine(), {}, [], {}
    for row in options.rows:
        try:
            measured[row] = RACES[row](options)
        except (Failed, environments.Skipped) as reason:
            failed[row] = str(reason)
            print(f"FAILED: {row}: {reason}", flush=True)
            continue
        judged += [{"row": row, **found} for target in TARGETS[row] if (found := judge(target, measured[row]))]
    print("\n| row | | a step, median |\n|---|---|---|")
    for row, seconds in measured.items():
        for name, values in seconds.items():
            middle = statistics.median(values)
            print(f"| {row} | {name} | {f'{1 / middle:,.0f} a second' if row == 'mlp' else f'{middle * 1e3:.2f} ms'} |")
    print("\n| row | work | measured | target | |\n|---|---|---|---|---|")
    for one in judged:
        print(f"| {one['row']} | {one['work']} | {one['value']:.2f} | {one['bound']:g} at {'least' if one['at_least'] else 'most'} | "
              f"{'met' if one['met'] else 'missed'} |")
    print(f"\n{about['cores']} cores ({about['cpu']}), load before {about['load_before']:.1f}; PyTorch "
          f"{field.pytorch_version(options.pytorch)}; {time.monotonic() - begin:.0f} s in all")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": about, "rounds": options.rounds, "seconds": options.seconds, "targets": judged,
                       "step_seconds": measured, "failed": failed}, file, indent=1)
            file.write("\n")
    missed = [one["work"] for one in judged if not one["met"]]
    print(f"failed: {', '.join(failed)}" if failed else f"short: {'; '.join(missed)}" if missed else
          f"all {len(judged)} targets are met")
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
