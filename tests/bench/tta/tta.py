#!/usr/bin/python3
"""Time to accuracy: jobs of `weir up` in each mode beside uneven workers, whose computation is emulated by sleep, so that two cores stand
for four machines. See docs/benchmarks/README.md."""
import argparse
import datetime
import json
import math
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import arithmetic  # noqa: E402
import contests  # noqa: E402
import environments  # noqa: E402
import plot  # noqa: E402
from processes import Failed  # noqa: E402
from run_job import check, run_job  # noqa: E402

LIMIT_SECONDS = 600  # of a job
SAVED = environments.ROOT / "docs/benchmarks"


def parse(arguments):
    parser = argparse.ArgumentParser(prog="./dev bench tta", description=__doc__)

    def some_of(names, between=","):
        def read(text):
            chosen = list(names) if text == "all" else [name.strip() for name in text.split(between)]
            if unknown := set(chosen) - set(names):
                raise argparse.ArgumentTypeError(f"{between.join(sorted(unknown))}: there are {between.join(names)}, or all")
            return chosen
        return read

    parser.add_argument("--works", type=some_of(contests.WORKS), default=["digits"], help="some of " + ",".join(contests.WORKS) +
                        ", or all (digits)")
    parser.add_argument("--stragglers", type=some_of(contests.STRAGGLERS), default=["P", "T"],
                        help="some of " + ",".join(contests.STRAGGLERS) + ", or all (P,T)")
    parser.add_argument("--contestants", type=some_of(contests.CONTESTANTS, ";"), help="some of " + ";".join(contests.CONTESTANTS) +
                        ", or all (those of the targets)")
    parser.add_argument("--seeds", type=int, default=5, help="of each contestant (%(default)s)")
    parser.add_argument("--rates", metavar="A,B", type=lambda text: [float(rate) for rate in text.split(",")],
                        help="learning rates, the same for all contestants; the best of each counts (the work's)")
    parser.add_argument("--seconds", type=float, help="that a batch takes (the work's)")
    parser.add_argument("--epochs", type=float, help="of each job (the work's)")
    parser.add_argument("--quick", action="store_true", help="sync and async beside P with one learning rate and one seed, batches of "
                        "10 ms, 3 epochs: to see whether the benchmark works")
    parser.add_argument("--json", metavar="FILE", help="write all runs there")
    parser.add_argument("--save", action="store_true", help="write tta-DATE.json and .svg into docs/benchmarks/")
    options = parser.parse_args(arguments)
    if options.quick:
        options.works, options.stragglers, options.contestants = ["digits"], ["P"], ["sync", "async"]
        options.seeds, options.rates, options.seconds, options.epochs = 1, [0.4], 0.01, 3
    if options.seeds < 1 or min(options.seconds or 1, options.epochs or 1, *(options.rates or [1])) <= 0:
        parser.error("--seeds is at least 1, --rates, --seconds and --epochs are above 0")
    return options


def beside(straggler, options):
    return options.contestants or contests.of_targets(straggler)


def refused(options):
    """{contestant: why it is left out}."""
    found = {}
    for contestant in {name: None for straggler in options.stragglers for name in beside(straggler, options)}:
        run = contests.Run(options.works[0], "none", contestant, 0.1, 1)
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(contests.job_of(run), pathlib.Path(folder))
            except environments.Skipped as why:
                found[contestant] = str(why)
                print(f"SKIPPED: {contestant}: {why}", flush=True)
    return found


def plan(options, skipped):
    """Seed by seed, so that the load of a minute meets all contestants."""
    for seed in range(1, options.seeds + 1):
        for work in options.works:
            for rate in options.rates or contests.WORKS[work].rates:
                for straggler in options.stragglers:
                    for contestant in beside(straggler, options):
                        if contestant not in skipped:
                            yield contests.Run(work, straggler, contestant, rate, seed)


def measure(run, options):
    job = contests.job_of(run, options.seconds, options.epochs)
    with tempfile.TemporaryDirectory() as folder:
        found = run_job(job, contests.WORKERS, pathlib.Path(folder), LIMIT_SECONDS)
    found["time_to"] = arithmetic.time_to(found["evaluations"], contests.WORKS[run.work].target)
    return {"work": run.work, "straggler": run.straggler, "contestant": run.contestant, "rate": run.rate, "seed": run.seed, **found,
            "valid": arithmetic.valid(found)}


def of(runs, work, straggler, contestant):
    return arithmetic.at_best_rate([run for run in runs if run["valid"] and
                                    (run["work"], run["straggler"], run["contestant"]) == (work, straggler, contestant)])


def judge(runs, works):
    judged = []
    for work in works:
        for target in contests.TARGETS:
            found = arithmetic.judge(target, of(runs, work, target.straggler, target.of), of(runs, work, target.straggler, target.to))
            if found:
                judged.append({"work": work, "straggler": target.straggler, **found})
    return judged


def show(values, digits=2):
    found = arithmetic.spread(values)
    if found is None:
        return ""
    median, low, high = ("never" if math.isinf(found[name]) else f"{found[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})" if found["runs"] > 1 else median


def tables(runs, judged, options):
    """Markdown."""
    lines = []
    for work in options.works:
        target = contests.WORKS[work].target
        lines += [f"| {work} | | rate | s to {target:.0%} | final accuracy, % | steps/s | examples/s | MB pushed |", "|---|---|---|---|---|---|---|---|"]
        for straggler in options.stragglers:
            for contestant in beside(straggler, options):
                if found := of(runs, work, straggler, contestant):
                    column = {name: [run[name] for run in found] for name in found[0]}
                    lines.append(f"| {straggler} | {contestant} | {found[0]['rate']:g} | {show(column['time_to'])} | "
                                 f"{show([100 * value for value in column['accuracy']])} | {show(column['steps_per_second'], 1)} | "
                                 f"{show(column['examples_per_second'], 0)} | {show([n / 1e6 for n in column['bytes_pushed']], 1)} |")
        lines.append("")
    if judged:
        lines += ["| work | | measured | target | |", "|---|---|---|---|---|"]
    for one in judged:
        ratio, bound = one["ratio"], f"{one['bound']:.2f}"
        lost = f"; {one['points_lost']:.2f} points lost" if "points_lost" in one else ""
        most = f"; at most {one['most_points']} points" if "points_lost" in one else ""
        limit = f"{bound} +- {one['within']}" if one["within"] else f"at least {bound}"
        lines.append(f"| {one['work']}, {one['straggler']} | {one['what']} | {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
                     f"{lost} | {limit}{most} | "
                     f"{'met' if one['met'] else 'missed'} |")
    return "\n".join(lines)


def picture(runs, options):
    panels = {}
    for work in options.works:
        for straggler in options.stragglers:
            chosen = {contestant: of(runs, work, straggler, contestant) for contestant in beside(straggler, options)}
            panels[f"{work}, {straggler}"] = {name: plot.median_curve(found) for name, found in chosen.items() if found}
    return plot.svg(panels)


def plain(value):
    """For the JSON: four digits after the point, and null for infinity."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return None if math.isinf(value) else round(value, 4)
    return value


def main(arguments=None):
    options = parse(arguments)
    begin = time.monotonic()
    about, runs, failed = environments.machine(), [], []
    skipped = refused(options)
    everything = list(plan(options, skipped))
    for number, run in enumerate(everything, 1):
        name = f"{run.work}, {run.straggler}, {run.contestant}, rate {run.rate:g}, seed {run.seed}"
        try:
            runs.append(measure(run, options))
        except KeyboardInterrupt:
            print("interrupted: what follows is of the runs before", file=sys.stderr, flush=True)
            break
        except Failed as why:
            failed.append(name)
            print(f"FAILED: {name}: {why}", flush=True)
            continue
        last = runs[-1]
        print(f"{number} of {len(everything)}: {name}: {show([last['time_to']])} s, accuracy {last['accuracy']:.4f}, CPU {last['cpu']:.0%}"
              f"{'' if last['valid'] else ': INVALID, above ' + format(arithmetic.MOST_CPU, '.0%')}", file=sys.stderr, flush=True)
    judged = judge(runs, options.works)
    text = tables(runs, judged, options)
    result = {"machine": about, "seconds": options.seconds, "epochs": options.epochs, "skipped": skipped, "failed": failed,
              "targets": judged, "runs": runs}
    written = json.dumps(plain(result)) + "\n"
    if options.json:
        pathlib.Path(options.json).write_text(written, encoding="utf-8")
    if options.save:
        stem = SAVED / f"tta-{datetime.date.today().isoformat()}"
        for suffix, content in [(".json", written), (".svg", picture(runs, options))]:
            stem.with_suffix(suffix).write_text(content, encoding="utf-8")
    print("\n" + text)
    invalid = sum(not run["valid"] for run in runs)
    print(f"\n{len(runs)} runs, {invalid} of them invalid; {about['cores']} cores ({about['cpu']}), load before "
          f"{about['load_before']:.1f}; {time.monotonic() - begin:.0f} s in all")
    missed = [f"{one['what']} ({one['straggler']})" for one in judged if not one["met"]]
    print(f"failed: {'; '.join(failed)}" if failed else f"short: {'; '.join(missed)}" if missed else f"all {len(judged)} targets are met")
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
