#!/usr/bin/python3
"""tools/progress.py: the line on a terminal, the lines in a log, and the parts of the command's output that pass through."""
import os
import pathlib
import pty
import subprocess
import sys
import unittest

TOOLS = pathlib.Path("tools").resolve()
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True
import progress  # pylint: disable=wrong-import-position

COMMAND = """echo 'Loading: 3 packages loaded' >&2
echo '[1,234 / 1,500] Compiling common/clock.cc; 3s local ... (2 actions running)' >&2
echo '[5 / 6] a line of standard output'
echo 'ERROR: clock.cc:3: no [n / m] here' >&2
printf 'and no newline' >&2
exit 7
"""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class DisplayTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.written = []

    def display(self, columns=None):
        return progress.Display("building", self.written.append, columns, self.clock)

    def test_log_gets_a_line_each_30_seconds(self):
        display = self.display()
        for second in range(95):
            self.clock.now = 1000.0 + second
            display.take(f"[{second} / 2,000] Compiling a.cc")
            display.show()
        self.assertEqual(self.written, ["dev: building: step 30 of 2,000, 30 s\n", "dev: building: step 60 of 2,000, 1 min 00 s\n",
                                        "dev: building: step 90 of 2,000, 1 min 30 s\n"])
        display.clear()
        self.assertEqual(len(self.written), 3)

    def test_terminal_has_one_line_that_fits(self):
        display = self.display(lambda: 60)
        display.show()
        self.assertEqual(self.written.pop(), "\rdev: building: 0 s\x1b[K")
        display.take("\x1b[32mAnalyzing:\x1b[0m 3 targets (12 packages loaded)")
        self.clock.now += 61.5
        display.show()
        self.assertEqual(self.written.pop(), "\rdev: building: 1 min 01 s: Analyzing: 3 targets (12 package\x1b[K")
        display.take("\x1b[32m[12 / 345]\x1b[0m Compiling common/clock.cc; 3s local ... (2 actions)")
        display.show()
        self.assertEqual(self.written.pop(), "\rdev: building: step 12 of 345, 1 min 01 s: Compiling common\x1b[K")
        display.show()
        self.assertEqual(self.written, [])
        display.clear()
        self.assertEqual(self.written, ["\r\x1b[K"])

    def test_a_total_that_grows_is_not_shown(self):
        display = self.display()
        for second, line in enumerate(["[9 / 10] a", "[30 / 307] b", "[60 / 401] c", "[401 / 401] d"]):
            self.clock.now = 1000.0 + 30 * second
            display.take(line)
            display.show()
        self.assertEqual(self.written, ["dev: building: step 30, 30 s\n", "dev: building: step 60, 1 min 00 s\n",
                                        "dev: building: step 401, 1 min 30 s\n"])

    def test_knows_what_is_about_progress(self):
        display = self.display()
        for line in ["[12 / 34] Compiling a.cc", "\x1b[32m[1 / 2]\x1b[0m Testing //a:b",
                     "[0 / 4] [Prepa] x", "Loading: 1 packages loaded",
                     "\x1b[32mINFO:\x1b[0m Build completed successfully, 5 total actions"]:
            self.assertTrue(display.take(line + "\n"), line)
        for line in ["INFO: Elapsed time: 4.4s", "ERROR: [1 / 2] failed", "a.cc:12: error: no", "", "[ 12%] x"]:
            self.assertFalse(display.take(line + "\n"), line)


class RunTest(unittest.TestCase):
    def run_it(self, *options, **streams):
        return subprocess.run([sys.executable, TOOLS / "progress.py", *options, "building", "bash", "-c", COMMAND], check=False,
                              **streams)

    def test_passes_the_rest_and_the_exit_code(self):
        result = self.run_it(capture_output=True)
        self.assertEqual(result.returncode, 7)
        self.assertEqual(result.stdout, b"[5 / 6] a line of standard output\n")
        self.assertEqual(result.stderr, b"ERROR: clock.cc:3: no [n / m] here\nand no newline")

    def test_quiet_drops_the_rest(self):
        result = self.run_it("--quiet", capture_output=True)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (7, b"", b""))

    def test_killed_command_has_a_shells_exit_code(self):
        result = subprocess.run([sys.executable, TOOLS / "progress.py", "building", "bash", "-c", "kill -9 $$"], check=False)
        self.assertEqual(result.returncode, 128 + 9)

    def test_terminal_is_cleared_before_what_passes_and_at_the_end(self):
        ours, theirs = pty.openpty()
        # Continues when the test has seen the line.
        command = "echo '[1 / 2] Compiling a.cc' >&2; read -r; echo 'ERROR: no' >&2; echo '[2 / 2] Linking b' >&2; read -r"
        with subprocess.Popen([sys.executable, TOOLS / "progress.py", "building", "bash", "-c", command], stdin=subprocess.PIPE,
                              stderr=theirs) as process:
            os.close(theirs)
            seen = b""

            def read_until(text):
                nonlocal seen
                while text not in seen:
                    seen += os.read(ours, 4096)

            read_until(b"Compiling a.cc\x1b[K")
            process.stdin.write(b"\n")
            process.stdin.flush()
            read_until(b"Linking b\x1b[K")
            self.assertIn(b"\r\x1b[KERROR: no\r\n\rdev: building: step ", seen)
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.wait()
            while not seen.endswith(b"\r\x1b[K"):
                seen += os.read(ours, 4096)  # fails if nothing more comes
        os.close(ours)


if __name__ == "__main__":
    unittest.main()
