"""One job of `./dev bench tta`: runs it with `weir up`, and reads accuracies and their times from the logs."""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import processes  # noqa: E402
from environments import BIN, Skipped  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
LINE = re.compile(r"(\S+Z) \S+ \S+ (.*)")
EVALUATION = re.compile(r"(?:final )?evaluation at version \d+: .*accuracy ([0-9.]+)")


def lines_of(file):
    """[(seconds since 1970, message)] of a log."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := LINE.match(line):
            found.append((datetime.datetime.fromisoformat(match[1].replace("Z", "+00:00")).timestamp(), match[2]))
    return found


def read_logs(server, evaluator):
    """(when training began, when it ended, [(seconds since it began, accuracy)]), from the lines of ps:0's log and the evaluator's. An
    evaluation counts when it is done."""
    begin = next(at for at, what in server if what.startswith("training starts"))
    end = next(at for at, what in server if what.endswith("examples are done"))
    evaluations = [(at - begin, float(match[1])) for at, what in evaluator if (match := EVALUATION.match(what))]
    # The final evaluation is of the weights that were there at the end.
    return begin, end, [(min(seconds, end - begin), accuracy) for seconds, accuracy in evaluations]


def cpu_of_session(leader):
    """CPU seconds of the living processes of a session."""
    ticks = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            # After the name, which may hold spaces: state, parent, group, session, ..., and from the twelfth on utime, stime.
            fields = pathlib.Path(f"/proc/{entry}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def cpu_share(samples, begin, end, cores):
    """Of the samples [(time, CPU seconds)] that lie between `begin` and `end`: the share of the cores' time. 1 if there are not two of
    them, so that such a run does not count."""
    within = [sample for sample in samples if begin <= sample[0] <= end]
    if len(within) < 2:
        return 1.0
    (first, before), (last, after) = within[0], within[-1]
    return (after - before) / ((last - first) * cores)


def check(job, folder):
    """Raises Skipped if the programs refuse the job."""
    file = folder / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    result = subprocess.run([str(BIN / "cli/weir"), "config", "check", str(file)], capture_output=True, text=True, check=False)
    if result.returncode:
        raise Skipped(result.stderr.strip() or result.stdout.strip())


def run_job(job, workers, folder, limit):
    """{evaluations: [(seconds, accuracy)], accuracy, steps_per_second, examples_per_second, bytes_pushed, seconds, cpu}. Raises Failed."""
    file, logs, summary = folder / "job.json", folder / "logs", folder / "summary.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    command = [str(BIN / "cli/weir"), "up", "--ps=1", f"--workers={workers}", "--device=cpu", "--evaluator", str(file),
               f"--log_dir={logs}", f"--summary={summary}"]
    with open(folder / "output", "w+b") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                                   env={**os.environ, **processes.THREADS})
        samples, over = [], threading.Event()

        def sample():
            while not over.wait(0.2):
                samples.append((time.time(), cpu_of_session(process.pid)))

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise processes.Failed(f"the job is not done after {limit:.0f} s:\n    {processes.tail_of(output)}") from error
        finally:
            processes.end(process)
            over.set()
            sampler.join()
        if process.returncode:
            raise processes.Failed(f"weir up exited with {process.returncode}:\n    {processes.tail_of(output)}")
    begin, end, evaluations = read_logs(lines_of(logs / "ps-0.log"), lines_of(logs / "evaluator-0.log"))
    told = json.loads(summary.read_text(encoding="utf-8"))
    seconds = end - begin
    return {"evaluations": evaluations, "accuracy": told["test_accuracy"], "steps_per_second": told["steps"] / seconds,
            "examples_per_second": told["examples"] / seconds, "bytes_pushed": told["bytes_pushed"], "seconds": seconds,
            "cpu": cpu_share(samples, begin, end, os.cpu_count())}
