#!/usr/bin/python3
"""tools/count_tests.py: what passed, failed and was skipped in a run of Bazel, and why."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COUNT = pathlib.Path("tools/count_tests.py").resolve()


class CountTest(unittest.TestCase):
    def count(self, reports, statuses=None, left_out=()):
        """reports: by label, the testcases of its test.xml. Returns the lines that are printed, and the exit code."""
        with tempfile.TemporaryDirectory() as folder:
            events = []
            for number, (label, cases) in enumerate(reports.items()):
                path = pathlib.Path(folder, f"{number}.xml")
                path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>", encoding="utf-8")
                events.append({"id": {"testResult": {"label": label}},
                               "testResult": {"testActionOutput": [{"name": "test.xml", "uri": path.as_uri()}]}})
                events.append({"id": {"testSummary": {"label": label}},
                               "testSummary": {"overallStatus": (statuses or {}).get(label, "PASSED")}})
            log = pathlib.Path(folder, "events")
            log.write_text("\n".join(map(json.dumps, events)), encoding="utf-8")
            may = pathlib.Path(folder, "may_skip")
            may.write_text("# What may skip.\n//a:t  a disk\n//hosts:*  namespaces\n", encoding="utf-8")
            done = subprocess.run([sys.executable, COUNT, log, "0", "2", "0", may, *left_out], capture_output=True, text=True,
                                  check=False)
        return done.stdout.splitlines(), done.returncode

    def test_what_passed(self):
        self.assertEqual(self.count({"//a:t": '<testcase name="one"/><testcase name="two"/>'}), (["4 passed, 0 failed"], 0))

    def test_what_was_skipped_is_shown_with_its_reason(self):
        for kind in ("system-out", "system-err"):
            lines, code = self.count({"//a:t": f'<testcase name="one"/><testcase name="two"><{kind}>\n  SKIPPED: no disk\n'
                                               f"</{kind}></testcase>"})
            self.assertEqual((lines, code), (["SKIPPED: //a:t: two: no disk", "3 passed, 0 failed, 1 skipped"], 0))

    def test_unittest(self):
        lines, _ = self.count({"//a:t": '<testcase name="one"/>',
                               "//hosts:u": "<testcase name='u'><system-out>Ran 3 tests in 0.1s\n\nOK (skipped=1)</system-out>"
                                        "</testcase>"})
        self.assertEqual(lines, ["SKIPPED: //hosts:u: u: OK (skipped=1), of Ran 3 tests in 0.1s", "3 passed, 0 failed, 1 skipped"])

    def test_a_skip_that_is_not_on_the_list(self):
        lines, code = self.count({"//a:u": '<testcase name="one"><system-out>SKIPPED: no disk</system-out></testcase>'})
        self.assertEqual((lines, code), (["SKIPPED: //a:u: one: no disk; it is not in the list of tests that may",
                                          "FAILED: //a:u (passed)", "2 passed, 1 failed"], 1))

    def test_a_case_that_failed_is_not_skipped(self):
        lines, code = self.count({"//a:t": '<testcase name="one"><failure/><system-out>SKIPPED: no disk</system-out></testcase>'},
                                 {"//a:t": "FAILED"})
        self.assertEqual((lines, code), (["FAILED: //a:t (failed)", "2 passed, 1 failed"], 1))

    def test_targets_that_were_left_out(self):
        self.assertEqual(self.count({"//a:t": '<testcase name="one"/>'}, left_out=("3",))[0], ["3 passed, 0 failed, 3 skipped"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
