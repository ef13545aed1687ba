"""Counts the tests of one `bazel test` run and prints the last line, "N passed, N failed[, N skipped]".

usage: count_tests.py EVENTS BAZEL_EXIT_CODE PASSED FAILED MAY_SKIP [LEFT_OUT]

EVENTS is what --build_event_json_file wrote; PASSED and FAILED are checks made elsewhere, added to the sum. MAY_SKIP is the file
with the targets (or PACKAGE:*) that may skip a case: a skip elsewhere counts as a failure. LEFT_OUT targets were not even tried,
and count as skipped. A test case counts as one; a target without a usable report counts as one; a case
that prints a line starting with "SKIPPED:" is skipped, and the line is shown with the case. Exits non-zero if anything failed
or nothing ran.
"""
import fnmatch
import json
import pathlib
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def read_events(path):
    """label -> overall status, and label -> {(run, shard): path of test.xml of the last attempt}."""
    targets, reports = {}, {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            event = json.loads(line)
            kind = event.get("id", {})
            if "testResult" in kind:
                key = kind["testResult"]
                for output in event.get("testResult", {}).get("testActionOutput", []):
                    if output["name"] == "test.xml" and "uri" in output:
                        part = (key.get("run", 1), key.get("shard", 1))
                        uri = urllib.parse.urlparse(output["uri"])
                        reports.setdefault(key["label"], {})[part] = urllib.parse.unquote(uri.path)
            elif "testSummary" in kind:
                # Without a summary, the run was interrupted.
                targets[kind["testSummary"]["label"]] = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
            elif "targetCompleted" in kind and not event.get("completed", {}).get("success", False):
                targets.setdefault(kind["targetCompleted"]["label"], "FAILED_TO_BUILD")
    return targets, reports


def reasons(case):
    """Why a case, or a part of it, did not run: the lines of either stream that say so."""
    output = "\n".join(e.text or "" for kind in ("system-out", "system-err") for e in case.iter(kind))
    lines = [line.strip() for line in output.splitlines()]
    found = [line[len("SKIPPED:"):].strip() for line in lines if line.startswith("SKIPPED:")]
    # How unittest ends, whose tests are one case for Bazel.
    found += [f"{line}, of {lines[at - 2]}" for at, line in enumerate(lines) if re.match(r"OK \(.*skipped=", line)]
    if case.find("skipped") is not None and not found:
        found.append(case.find("skipped").get("message") or "no reason is given")
    return list(dict.fromkeys(found))


def may_skip(path):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def count_report(label, path, may):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        why = reasons(case)
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif why:
            skipped += may
            failed += not may
            print(f"SKIPPED: {label}: {case.get('name')}: {'; '.join(why)}" + ("" if may else "; it is not in the list of tests that may"))
        else:
            passed += 1
    return passed, failed, skipped


def count_target(label, status, reports, may):
    if status not in ("PASSED", "FLAKY", "FAILED"):  # did not build, timed out, was not run
        return 0, 1, 0
    try:
        passed, failed, skipped = map(sum, zip(*[count_report(label, r, may) for r in reports]))
    except (OSError, ElementTree.ParseError, ValueError):
        passed = failed = skipped = 0
    # A crash or a sanitizer's finding can fail a test whose report contains no failure.
    if status == "FAILED" and failed == 0:
        failed = 1
    if passed + failed + skipped == 0:
        passed = 1
    return passed, failed, skipped


def main():
    events, bazel_exit, passed, failed, list_of_skips, *left_out = sys.argv[1:]
    passed, failed, bazel_exit, skipped, ran = int(passed), int(failed), int(bazel_exit), sum(map(int, left_out)), 0
    may = may_skip(list_of_skips)
    targets, reports = read_events(events)
    for label, status in sorted(targets.items()):
        p, f, s = count_target(label, status, reports.get(label, {}).values(), any(fnmatch.fnmatch(label, m) for m in may))
        if f:
            print(f"FAILED: {label} ({status.lower()})")
        passed, failed, skipped, ran = passed + p, failed + f, skipped + s, ran + p + f
    if (bazel_exit != 0 or ran == 0) and failed == 0:
        failed = 1
        print(f"FAILED: bazel ended with exit code {bazel_exit}, {ran} tests ran")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed else 0)


main()
