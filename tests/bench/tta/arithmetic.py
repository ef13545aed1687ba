"""What the runs of `./dev bench tta` say: time to accuracy, medians, ratios, and which runs count."""
import math
import statistics

# A run whose own processes kept the cores busier than this does not count: its sleeps would no longer stand for computation.
MOST_CPU = 0.70


def time_to(evaluations, target):
    """Seconds until the first evaluation [(seconds, accuracy)] with at least this accuracy; infinity: there is none."""
    return min((seconds for seconds, accuracy in evaluations if accuracy >= target), default=math.inf)


def valid(run):
    return run["cpu"] <= MOST_CPU


def spread(values):
    """{median, low, high, runs} of one value for each run; None: there are no runs."""
    if not values:
        return None
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "runs": len(values)}


def best_rate(runs):
    """Of a contestant's valid runs: the learning rate with the shortest median time to accuracy. If several never reach it, the one with
    the highest median final accuracy. None: there are no runs."""
    def of(rate):
        mine = [run for run in runs if run["rate"] == rate]
        return (statistics.median(run["time_to"] for run in mine), -statistics.median(run["accuracy"] for run in mine))

    return min(sorted({run["rate"] for run in runs}), key=of, default=None)


def at_best_rate(runs):
    rate = best_rate(runs)
    return [run for run in runs if run["rate"] == rate]


def ratios(measure, of, to):
    """By seed, for seeds that both have: how many times better `of` is. A time is better if it is shorter: an unknown (infinite) one
    of both says nothing, and gives no ratio."""
    by_seed = {run["seed"]: run[measure] for run in to}
    found = []
    for run in of:
        mine, other = run[measure], by_seed.get(run["seed"])
        if other is None or math.isinf(mine) and math.isinf(other):
            continue
        if measure == "time_to":
            found.append(0.0 if math.isinf(mine) else other / mine)
        else:
            found.append(mine / other)
    return found


def points_lost(of, to):
    """By how many points the median final accuracy of `of` is below that of `to`; negative: above."""
    return 100 * (statistics.median(run["accuracy"] for run in to) - statistics.median(run["accuracy"] for run in of))


def judge(target, of, to):
    """An object of the JSON; None: one of the two contestants has no valid runs in common with the other."""
    values = ratios(target.measure, of, to) if of and to else []
    if not values:
        return None
    found = {"what": target.what, "ratio": spread(values), "bound": target.bound, "within": target.within}
    middle = found["ratio"]["median"]
    met = abs(middle - target.bound) <= target.within if target.within else middle >= target.bound
    if target.most_points is not None:
        found["points_lost"], found["most_points"] = points_lost(of, to), target.most_points
        # Half of the last digit that is printed.
        met = met and found["points_lost"] <= target.most_points + 0.005
    return {**found, "met": met}
