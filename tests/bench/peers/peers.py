#!/usr/bin/python3
"""Small training steps of Weir beside its peers: the MLP 784-128-10 on Fashion-MNIST with batches of 64 and plain SGD, on 2 servers
and 2 workers. With --tables a step reads and updates the rows of a batch in an embedding table instead. Prints steps a second, summed over
the workers: medians over runs in which the contestants take turns. See docs/benchmarks/README.md.
"""
import argparse
import json
import statistics
import sys
import time

import contestants
import table_contestants
from environments import PINNED, Skipped, machine
from processes import Failed

# A run that trains nothing is no contestant.
HIGHEST_LOSS = 1.5


def parse():
    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each, taking turns (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="rough length of a run (%(default)s)")
    parser.add_argument("--tables", action="store_true", help="steps on rows of an embedding table")
    parser.add_argument("--only", help="some of " + ",".join(contestants.PEERS))
    parser.add_argument("--install", default="", metavar="PEER,...", help="install what is missing of these peers with pip; "
                        "a line SKIPPED says how much that downloads")
    for peer in PINNED:
        parser.add_argument(f"--{peer}", metavar="PYTHON", help=f"a Python that has {peer}, instead of one that --install made")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args()
    options.field = table_contestants if options.tables else contestants
    peers = options.field.PEERS
    options.only = options.only.split(",") if options.only else peers
    options.install = [peer for peer in options.install.split(",") if peer]
    if unknown := set(options.only) - set(peers):
        parser.error(f"--only={','.join(sorted(unknown))}: there are {', '.join(peers)}")
    if unknown := set(options.install) - set(PINNED):
        parser.error(f"--install={','.join(sorted(unknown))}: there are {', '.join(PINNED)}")
    if options.runs < 1 or options.seconds <= 0:
        parser.error("--runs is at least 1, --seconds above 0")
    return options


def prepared(options):
    """(contestant, context) of those that can run here, and {peer: version}; says why the others cannot."""
    ready, versions, skipped = [], {}, {}
    for contestant in options.field.contestants(options):
        peer = contestant.peer
        if peer not in options.only or peer in skipped:
            continue
        try:
            context = contestant.prepare()
            if peer not in versions:
                versions[peer] = contestant.version(context)
        except Skipped as reason:
            skipped[peer] = str(reason)
            print(f"SKIPPED: {peer}: {reason}", flush=True)
        else:
            ready.append((contestant, context))
    return ready, versions, skipped


def measure(ready, options):
    """{(row, column): [steps a second of each run]}; one that fails is left out from then on."""
    field, rates, samples, failed = options.field, {}, {}, {}
    limit = 180 + 10 * options.seconds
    for number in range(options.runs + 1):
        for contestant, context in ready:
            key = (contestant.row, contestant.column)
            if key in failed:
                continue
            steps = field.FIRST_STEPS if number == 0 else max(field.MIN_STEPS, int(rates[key] * options.seconds / field.WORKERS))
            try:
                measured = contestant.run(context, steps, limit)
                if number > 0 and measured.loss is not None and not measured.loss < HIGHEST_LOSS:
                    raise Failed(f"it does not train: its loss is {measured.loss} after {steps} steps")
            except Failed as reason:
                failed[key] = str(reason)
                print(f"FAILED: {contestant.row}, {contestant.column}: {reason}", flush=True)
                continue
            rates[key] = measured.rate
            if number > 0:
                samples.setdefault(key, []).append(measured.rate)
                print(f"[run {number} of {options.runs}] {contestant.row}, {contestant.column}: {measured.rate:,.0f}",
                      file=sys.stderr, flush=True)
    return samples, failed


def print_table(medians, columns):
    rows = list(dict.fromkeys(row for row, _ in medians))
    print(f"\n| steps a second, all workers | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for row in rows:
        cells = [f"{medians[row, column]:,.0f}" if (row, column) in medians else "-" for column in columns]
        print(f"| {row} | {' | '.join(cells)} |")


def ratios(medians, wanted):
    found = []
    for what, ours, others, bound in wanted:
        ours = [medians[key] for key in ours if key in medians]
        others = [medians[key] for key in others if key in medians]
        if ours and others:
            value = max(ours) / max(others)
            found.append({"work": what, "value": round(value, 3), "bound": bound, "met": value >= bound})
    return found


def main():
    options = parse()
    about = machine()
    begin = time.monotonic()
    ready, versions, skipped = prepared(options)
    if not ready:
        sys.exit("peers: nothing to measure")
    samples, failed = measure(ready, options)
    medians = {key: statistics.median(values) for key, values in samples.items()}
    print_table(medians, options.field.COLUMNS)
    print(f"\n{about['cores']} cores ({about['cpu']}), load before {about['load_before']:.1f}; medians of {options.runs} runs of "
          f"about {options.seconds:g} s, taking turns; {time.monotonic() - begin:.0f} s in all")
    print("versions: " + ", ".join(f"{peer} {version}" for peer, version in versions.items()))
    compared = ratios(medians, options.field.RATIOS)
    if compared:
        print("\n| | measured | target | |\n|---|---|---|---|")
        for ratio in compared:
            print(f"| {ratio['work']} | {ratio['value']:.2f} | {ratio['bound']:g} | {'met' if ratio['met'] else 'missed'} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": about, "versions": versions, "runs": options.runs, "seconds": options.seconds,
                       "steps_per_second": [{"row": row, "column": column, "median": round(medians[row, column], 1),
                                             "samples": [round(value, 1) for value in values]}
                                            for (row, column), values in samples.items()],
                       "ratios": compared, "skipped": skipped,
                       "failed": [{"row": row, "column": column, "why": why} for (row, column), why in failed.items()]},
                      file, indent=1)
            file.write("\n")
    sys.exit(1 if failed else 0)


main()
