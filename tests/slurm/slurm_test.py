#!/usr/bin/python3
"""Jobs of `weir slurm` on a cluster of SLURM that the test starts (slurm.py): two nodes with hosts of their own."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
import slurm  # pylint: disable=wrong-import-position
from slurm import network  # pylint: disable=wrong-import-position

ROOT = pathlib.Path.cwd()  # of the runfiles
WEIR = pathlib.Path("cli/weir").resolve()
DIGITS, CNN = (pathlib.Path(name).resolve() for name in ("configs/digits_recovery.json", "examples/cnn.json"))
PYTHON = "/usr/bin/python3"
LEFT_BY_PROGRAM, BAD_CONFIG, PEER_LOST = 1, 78, 138
# Variables of OpenBLAS, for example, may choose other kernels, and so other bits.
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
# In sync the weights do not depend on where tasks run, nor on which of them died.
SYNC = '--set=consistency={"mode":"sync","parts":2}'


def python_environment():
    """Of programs with the package that this tree has built."""
    return {"PYTHONPATH": str(ROOT / "python"), "WEIR_LIBRARY": str(ROOT / "python/capi/libweir.so"), "PYTHONDONTWRITEBYTECODE": "1"}


class SlurmTest(unittest.TestCase):
    cluster = None
    undisturbed = {}

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=FOLDER, prefix=f"{self._testMethodName}-"))
        self.environment = ENVIRONMENT | python_environment() | {"SLURM_CONF": os.environ["SLURM_CONF"]}

    def run_weir(self, *words, **more):
        return subprocess.run([WEIR, *words], check=False, capture_output=True, text=True, cwd=self.folder,
                              env=self.environment | more, timeout=slurm.LIMIT_SECONDS)

    def submit(self, *words):
        done = self.run_weir("slurm", "--submit", "--nodes=2", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        number = int(re.search(r"submitted job (\d+)", done.stdout)[1])
        self.addCleanup(slurm.Slurm.ask, "scancel", str(number))
        return number

    def output(self, number):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"weir-{number}.out").read_text(encoding="utf-8")
        return ""

    def wait_for(self, holds, number, what):
        end = time.monotonic() + slurm.LIMIT_SECONDS
        while not (found := holds()):
            self.assertLess(time.monotonic(), end, f"{what}\n{self.output(number)}")
            time.sleep(0.05)
        return found

    def summary(self, number):
        return json.loads((self.folder / f"weir-{number}" / "summary.json").read_text(encoding="utf-8"))

    def finished(self, number):
        """The summary of a job that ends well, with nothing of it left."""
        job = self.cluster.wait(number)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), self.output(number))
        self.nothing_left(number)
        return self.summary(number)

    def nothing_left(self, number):
        self.wait_for(lambda: not slurm.processes(f"weir-{number}"), number, "processes are left")
        self.assertFalse((self.folder / f"weir-{number}" / "token").exists())
        self.assertFalse((self.folder / f"weir-{number}" / "certs").exists())

    def on_one_host(self, *words):
        """weights_sha256 of the job by `weir up`, to which nothing happens."""
        if words not in self.undisturbed:
            summary, checkpoints = self.folder / "alone.json", self.folder / "alone"
            saves = [f"--set=checkpoint.directory={checkpoints}"] if str(DIGITS) in words else []
            at = words.index("--") if "--" in words else len(words)
            done = self.run_weir("up", *words[:at], *saves, f"--summary={summary}", *words[at:])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.undisturbed[words] = json.loads(summary.read_text(encoding="utf-8"))["weights_sha256"]
        return self.undisturbed[words]

    def digits(self, epochs):
        return str(DIGITS), "--ps=2", "--workers=2", SYNC, f"--set=train.epochs={epochs}"

    def saved(self, number):
        """Waits for a checkpoint that is whole."""
        self.wait_for(lambda: list((self.folder / "saved").glob("step-*/manifest.json")), number, "no checkpoint")

    def kill(self, number, *words):
        """Kills the program of one task, not the `weir task` that keeps it."""
        keepers = set(slurm.processes("weir task")) | set(slurm.processes("srun")) | set(slurm.processes("--here"))
        os.kill(min(self.wait_for(lambda: set(slurm.processes(*words)) - keepers, number, f"no process {words}")), signal.SIGKILL)

    def test_bits_of_one_host(self):
        words = self.digits(5)
        number = self.submit(*words, f"--set=checkpoint.directory={self.folder}/saved")
        summary = self.finished(number)
        self.assertEqual(summary["weights_sha256"], self.on_one_host(*words))
        self.assertTrue(summary["tls"])
        self.assertEqual(summary["exit_codes"], {"ps:0": 0, "ps:1": 0, "worker:0": 0, "worker:1": 0})
        folder = self.folder / f"weir-{number}"
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        servers = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))["ps"]
        self.assertEqual(sorted(address.split(":")[0] for address in servers), ["node1", "node2"])
        self.assertIn(summary["weights_sha256"], self.output(number))

    def test_evaluator_without_tls(self):
        summary = self.finished(self.submit(*self.digits(5), "--insecure_plaintext", "--evaluator",
                                            f"--set=checkpoint.directory={self.folder}/saved"))
        self.assertFalse(summary["tls"])
        self.assertEqual(summary["exit_codes"].get("evaluator:0"), 0)
        self.assertEqual(summary["weights_sha256"], self.on_one_host(*self.digits(5)))

    def test_status(self):
        number = self.submit(*self.digits(100000), f"--set=checkpoint.directory={self.folder}/saved")
        self.saved(number)
        folder = self.folder / f"weir-{number}"
        tls = {f"WEIR_TLS_{name}": str(folder / "certs" / file) for name, file in
               (("CA", "ca.pem"), ("CERTIFICATE", "reader.pem"), ("KEY", "reader.key"))}
        done = self.run_weir("status", f"--cluster={folder}/cluster.json", f"--token_file={folder}/token", "--json", **tls)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(int(json.loads(done.stdout)["step"]), 0)

    def test_pytorch(self):
        words = str(CNN), "--ps=2", "--workers=2", "--set=train.epochs=1", "--", PYTHON, "-B", str(CNN.with_suffix(".py")), "--most=600"
        summary = self.finished(self.submit(*words))
        self.assertEqual(summary["weights_sha256"], self.on_one_host(*words))

    def test_killed_tasks_come_back(self):
        words = self.digits(150)
        number = self.submit(*words, "--restart", f"--set=checkpoint.directory={self.folder}/saved",
                             "--set=cluster.server_wait_seconds=60")
        self.saved(number)
        self.kill(number, "ps_server", f"weir-{number}/ps-1.port")
        self.wait_for(lambda: "ps:1 was killed" in self.output(number), number, "nobody says so")
        self.kill(number, "worker/worker")
        summary = self.finished(number)
        self.assertEqual(summary["weights_sha256"], self.on_one_host(*words))
        self.assertEqual(summary["restarts"].get("ps:1"), 1)
        self.assertEqual(sum(summary["restarts"].values()), 2)
        self.assertIn("started again", self.output(number))

    def test_requeue_continues(self):
        words = self.digits(150)
        number = self.submit(*words, f"--set=checkpoint.directory={self.folder}/saved")
        self.saved(number)
        # What SLURM does for --signal=B:USR1@120.
        subprocess.run(["scancel", "--batch", "--signal=USR1", str(number)], check=True)
        self.wait_for(lambda: self.cluster.job(number)["JobState"] == "PENDING", number, "not queued again")
        self.assertIn("is queued again", self.output(number))
        # SLURM would wait two minutes.
        subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], check=True)
        self.wait_for(lambda: self.cluster.job(number)["JobState"] != "PENDING", number, "not started again")
        summary = self.finished(number)
        self.assertIn("going on from", self.output(number))
        self.assertEqual(summary["weights_sha256"], self.on_one_host(*words))

    def array(self, number):
        """SLURM's number of the array of workers, once it is submitted."""
        return self.wait_for(lambda: (found := re.search(r"workers: the elements of job (\d+);", self.output(number))) and int(found[1]),
                             number, "no array")

    def elements(self, array):
        """The states of the array's elements that SLURM still has in its queue: number -> state."""
        lines = slurm.Slurm.ask("squeue", "--noheader", "--array", "--format=%K %T", f"--job={array}").splitlines()
        return {int(element): state for element, state in map(str.split, lines)}

    def array_ends(self, array, number):
        self.addCleanup(slurm.Slurm.ask, "scancel", str(array))
        self.wait_for(lambda: not self.elements(array), number, "elements are left")

    def test_array_of_workers_that_come_and_go(self):
        words = self.digits(150)
        number = self.submit(*words, "--array", "--set=cluster.min_workers=1", "--worker_sbatch=--comment=elastic",
                             f"--set=checkpoint.directory={self.folder}/saved")
        array = self.array(number)
        self.saved(number)
        self.wait_for(lambda: self.elements(array) == {0: "RUNNING", 1: "RUNNING"}, number, "no two workers")
        self.assertEqual(self.cluster.job(array)["Comment"], "elastic")
        subprocess.run(["scancel", f"{array}_0"], check=True)
        self.wait_for(lambda: self.elements(array) == {1: "RUNNING"}, number, "the element has not ended")
        summary = self.finished(number)
        self.assertEqual(summary["weights_sha256"], self.on_one_host(*words))
        self.assertEqual(summary["exit_codes"], {"ps:0": 0, "ps:1": 0})
        self.array_ends(array, number)
        self.assertEqual(self.cluster.job(f"{array}_1")["JobState"], "COMPLETED")

    def test_array_whose_workers_all_went_gets_others(self):
        words = self.digits(150)
        number = self.submit(*words, "--array", "--set=cluster.min_workers=1", f"--set=checkpoint.directory={self.folder}/saved")
        array = self.array(number)
        self.saved(number)
        for element in 0, 1:
            subprocess.run(["scontrol", "requeuehold", f"{array}_{element}"], check=True)
        self.wait_for(lambda: set(self.elements(array).values()) == {"PENDING"}, number, "they still run")
        self.assertEqual(self.cluster.job(number)["JobState"], "RUNNING", self.output(number))
        subprocess.run(["scontrol", "release", f"{array}_1"], check=True)
        subprocess.run(["scontrol", "update", f"JobId={array}_1", "StartTime=now"], check=True)
        self.assertEqual(self.finished(number)["weights_sha256"], self.on_one_host(*words))
        self.array_ends(array, number)

    def test_array_ends_with_its_job(self):
        number = self.submit(*self.digits(100000), "--array", f"--set=checkpoint.directory={self.folder}/saved")
        array = self.array(number)
        self.saved(number)
        subprocess.run(["scancel", str(number)], check=True)
        self.assertEqual(self.cluster.wait(number)["JobState"], "CANCELLED")
        self.array_ends(array, number)
        self.nothing_left(number)

    def test_scancel(self):
        number = self.submit(*self.digits(100000), f"--set=checkpoint.directory={self.folder}/saved")
        self.saved(number)
        before = len(list((self.folder / "saved").glob("step-*")))
        begin = time.monotonic()
        subprocess.run(["scancel", str(number)], check=True)
        self.assertEqual(self.cluster.wait(number)["JobState"], "CANCELLED")
        self.nothing_left(number)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertGreaterEqual(len(list((self.folder / "saved").glob("step-*/manifest.json"))), min(before, 1))

    def test_failed_program(self):
        program = self.folder / "fails.py"
        program.write_text("import os\nif os.environ['SLURM_PROCID'] == '1':\n    raise ValueError('the data are gone')\n"
                           "import time\ntime.sleep(1000)\n", encoding="utf-8")
        number = self.submit(str(CNN), "--ps=1", "--workers=2", "--", PYTHON, str(program))
        job = self.cluster.wait(number)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("FAILED", f"{LEFT_BY_PROGRAM}:0"), self.output(number))
        self.nothing_left(number)
        self.assertIn("error: worker:1 exited with 1", self.output(number))
        self.assertIn("    ValueError: the data are gone", self.output(number))

    def test_wrong_partition(self):
        done = self.run_weir("slurm", str(CNN), "--submit", "--partition=gpus", "--", PYTHON, "train.py")
        self.assertEqual(done.returncode, BAD_CONFIG, done.stderr)
        for words in "partition gpus", "Invalid partition name", f"has the partitions {slurm.PARTITION}", "--partition=NAME":
            self.assertIn(words, done.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_no_slurmctld(self):
        elsewhere = self.folder / "slurm.conf"
        config = pathlib.Path(os.environ["SLURM_CONF"]).read_text(encoding="utf-8")
        elsewhere.write_text(config + "SlurmctldPort=1\nMessageTimeout=5\n", encoding="utf-8")
        done = self.run_weir("slurm", str(CNN), "--submit", "--", PYTHON, "train.py", SLURM_CONF=str(elsewhere))
        self.assertEqual(done.returncode, PEER_LOST, done.stderr)
        self.assertIn("SLURM does not answer", done.stderr)

    def test_no_allocation(self):
        done = self.run_weir("slurm", str(CNN), "--here", "--", PYTHON, "train.py")
        self.assertEqual(done.returncode, BAD_CONFIG)
        self.assertIn("SLURM_JOB_ID is not set", done.stderr)
        done = self.run_weir("task", "--type=worker", "--folder=x", "--", PYTHON, "train.py")
        self.assertEqual(done.returncode, BAD_CONFIG)
        self.assertIn("SLURM_PROCID is not set", done.stderr)

    def test_no_sbatch(self):
        done = self.run_weir("slurm", str(DIGITS), "--submit", f"--set=checkpoint.directory={self.folder}/saved", PATH="/nonexistent")
        self.assertEqual(done.returncode, BAD_CONFIG)
        self.assertIn("cannot run sbatch", done.stderr)

    def test_script(self):
        done = self.run_weir("slurm", str(CNN), "--ps=2", "--workers=7", "--nodes=2", "--partition=gpu", "--sbatch=--time=02:00:00",
                             "--set", 'checkpoint={"directory":"saved"}', "--restart=2", "--", PYTHON, "train.py", "it's", "")
        self.assertEqual(done.returncode, 0, done.stderr)
        *head, command = done.stdout.splitlines()
        self.assertEqual(head, [
            "#!/bin/bash", "#SBATCH --job-name=cnn", "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=5", "#SBATCH --partition=gpu",
            "#SBATCH --output=weir-%j.out", "#SBATCH --open-mode=append", "#SBATCH --requeue", "#SBATCH --signal=B:USR1@120",
            "#SBATCH --time=02:00:00"])
        shell = subprocess.run(["bash", "-c", command.replace("exec ", "printf '%s\\n' ", 1)], check=True, capture_output=True, text=True)
        self.assertEqual(shell.stdout.splitlines()[1:], [
            "slurm", str(CNN), "--here", "--ps=2", "--workers=7", "--set", 'checkpoint={"directory":"saved"}', "--restart=2", "--",
            PYTHON, "train.py", "it's", ""])


if __name__ == "__main__":
    if (lacks := slurm.missing_program()) is not None:
        print(f"SKIPPED: there is no {lacks}: the Debian package slurm-wlm has it")
        sys.exit(0)
    FOLDER, reason = network.enter()
    if FOLDER is None:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    SlurmTest.cluster = slurm.Slurm(FOLDER)
    unittest.main(verbosity=2)
