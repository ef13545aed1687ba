#!/usr/bin/python3
"""tools/gpu_check.sh with stand-ins for the programs: which rows count as passed, failed and skipped; and with the real programs
on a host without a GPU."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path("tools/gpu_check.sh").resolve()
PROGRAMS = {"weir": "cli", "worker": "worker", "step_bench": "tests/worker/bench", "exchange_bench": "tests/worker/bench",
            "compute_backend_test": "tests/worker/compute"}

WEIR = """[[ $* == "doctor --json" ]] && echo '{"devices": []}' || echo "gpu  one"
"""
CONFORMANCE = "echo 'All tests passed (3 assertions in 1 test case)'\n"
STEP_BENCH = """for way in eager graph; do
  echo '{"program": "weir", "way": "'$way'", "precision": "tf32", "device": "cuda:0", "ms": 1.25}'
done
"""
EXCHANGE_BENCH = """for arg in "$@"; do [[ $arg == --precision=* ]] && precision=${arg#*=}; done
echo '{"program": "weir", "way": "sync", "precision": "'$precision'", "ms": 2.2, "hidden_ms": 2, "ratio": 1.1}'
"""
# Runs its arguments, as the real sanitizer does.
SANITIZER = """echo "$2" >>sanitized
while [[ $1 != */worker ]]; do shift; done
"$@" --summary=summary && echo '========= ERROR SUMMARY: 0 errors'
"""
# The format arguments: accuracy and hash on the GPU.
WORKER = """for arg in "$@"; do
  case $arg in
    --device=*) device=${arg#*=} ;;
    --summary=*) summary=${arg#*=} ;;
  esac
done
accuracy=0.98 hash=c0ffee
[[ $device == cpu ]] || accuracy=%s hash=%s
printf '{\\n  "test_accuracy": %%s,\\n  "weights_sha256": "%%s"\\n}\\n' $accuracy $hash >"$summary"
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        (self.root / "bin").mkdir()
        (self.root / "tools").mkdir()
        shutil.copy(SCRIPT, self.root / "tools")

    def tearDown(self):
        shutil.rmtree(self.root)

    def bundle(self, weir=WEIR, worker=WORKER % ("0.975", "beef"), step_bench=STEP_BENCH, conformance=CONFORMANCE,
               exchange_bench=EXCHANGE_BENCH):
        programs = {"weir": weir, "worker": worker, "step_bench": step_bench, "exchange_bench": exchange_bench,
                    "compute_backend_test": conformance, "compute-sanitizer": SANITIZER}
        fashion = self.root / "datasets" / "fashion-mnist"
        fashion.mkdir(parents=True, exist_ok=True)
        (fashion / "train-images-idx3-ubyte.gz").touch()
        for name, text in programs.items():
            path = self.root / "bin" / name
            path.write_text("#!/bin/bash\n" + text)
            path.chmod(0o755)
        # A Python without torch.
        python = self.root / "bin" / "python3"
        python.write_text("#!/bin/bash\nexit 1\n")
        python.chmod(0o755)

    def check(self, *args):
        env = dict(os.environ, PATH=f"{self.root}/bin:{os.environ['PATH']}")
        done = subprocess.run([self.root / "tools" / "gpu_check.sh", *args], cwd=self.root, env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def report(self):
        return json.loads((self.root / "gpu_check.json").read_text())

    def failed(self):
        return [c["name"] for c in self.report()["checks"] if not c["passed"]]

    def test_all_passes(self):
        self.bundle()
        code, out = self.check()
        self.assertEqual(code, 0, out)
        self.assertEqual(self.failed(), [])
        self.assertEqual(len(self.report()["checks"]), 19)
        self.assertEqual([s["way"] for s in self.report()["steps"]], ["eager", "graph"])
        self.assertEqual(self.report()["host"], {"devices": []})
        self.assertRegex(out, r"(?m)^digits on cuda:0,cuda:0 in float32 +passed +accuracy 0\.975$")
        self.assertRegex(out, r"(?m)^weir +graph +tf32 +1\.25$")
        self.assertIn("SKIPPED: no comparison with PyTorch", out)
        self.assertEqual(len(self.report()["skipped"]), 1)
        self.assertEqual([s["precision"] for s in self.report()["exchange"]], ["float32", "tf32", "bf16"])
        self.assertRegex(out, r"(?m)^sync +bf16 +2\.2 +2 +1\.1$")
        self.assertRegex(out, r"(?m)^Fashion-MNIST on cuda:0 in float32 +passed +accuracy 0\.975$")
        self.assertRegex(out, r"(?m)^compute-sanitizer, racecheck +passed +=+ ERROR SUMMARY: 0 errors$")
        self.assertEqual((self.root / "sanitized").read_text(), "memcheck\nracecheck\n")

    def test_other_bits_the_second_time_fail(self):
        self.bundle(worker=WORKER % ("0.98", "$RANDOM$RANDOM"))
        code, out = self.check("--json=gpu_check.json", "--device=cuda:1")
        self.assertEqual(code, 1, out)
        self.assertEqual(self.failed(), ["digits on cuda:1 in float32, again", "digits on cuda:1 in tf32, again",
                                         "digits on cuda:1 in bf16, again", "digits on cuda:1,cuda:1 in float32, again",
                                         "Fashion-MNIST on cuda:1 in float32, again"])

    def test_a_worse_model_fails(self):
        self.bundle(worker=WORKER % ("0.9699", "beef"))
        code, out = self.check()
        self.assertEqual(code, 1, out)
        self.assertIn("digits on cuda:0 in tf32", self.failed())

    def test_a_worker_that_fails_is_shown(self):
        self.bundle(worker="echo no memory left; exit 70\n")
        code, out = self.check()
        self.assertEqual(code, 1, out)
        self.assertIn("no memory left", out)
        self.assertIn("digits on the CPU", self.failed())

    def test_conformance_fails_where_it_skips(self):
        for conformance in ["echo 'SKIPPED: no device'\n", "echo '1 failed'; exit 1\n"]:
            self.bundle(conformance=conformance)
            code, out = self.check()
            self.assertEqual(code, 1, out)
            self.assertEqual(self.failed(), ["conformance"])

    def test_no_gpu_is_skipped(self):
        self.bundle(step_bench="echo 'error: cuda:0 cannot be used: no driver' >&2; exit 78\n")
        code, out = self.check()
        self.assertEqual(code, 77, out)
        self.assertIn("SKIPPED: gpu-check needs a GPU: cuda:0 cannot be used: no driver\n", out)
        self.assertFalse((self.root / "gpu_check.json").exists())

    def test_a_fault_is_not_taken_for_a_missing_gpu(self):
        self.bundle(step_bench="echo 'error: misaligned address' >&2; exit 70\n")
        code, out = self.check()
        self.assertEqual(code, 1, out)
        self.assertIn("misaligned address", out)

    def test_bad_command_line(self):
        self.bundle()
        self.assertEqual(self.check("--devices=2")[0], 64)

    def test_a_program_that_is_missing_is_named(self):
        self.bundle()
        (self.root / "bin" / "worker").unlink()
        code, out = self.check()
        self.assertEqual(code, 1, out)
        self.assertIn("there is no program worker", out)

    def test_real_programs_without_a_gpu(self):
        for name, folder in PROGRAMS.items():
            (self.root / "bin" / name).symlink_to(pathlib.Path(folder, name).resolve())
        if json.loads(subprocess.run([self.root / "bin" / "weir", "doctor", "--json"], check=True, text=True,
                                     stdout=subprocess.PIPE).stdout)["devices"]:
            self.skipTest("this host has a GPU")
        code, out = self.check()
        self.assertEqual(code, 77, out)
        self.assertIn("SKIPPED: gpu-check needs a GPU: compute device 'cuda:0' cannot be used: ", out)
        done = subprocess.run([self.root / "bin" / "step_bench", "--device=cpu", "--precisions=float32", "--inputs=9", "--width=33",
                               "--batch=7", "--seconds=0"], check=True, text=True, stdout=subprocess.PIPE)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["way"] for line in lines], ["eager", "graph", "copies"])
        self.assertTrue(all(line["ms"] > 0 for line in lines))
        done = subprocess.run([self.root / "bin" / "exchange_bench", "--device=cpu", "--inputs=9", "--width=33", "--batch=7",
                               "--seconds=0"], check=True, text=True, stdout=subprocess.PIPE)
        lines = {line["way"]: line for line in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(list(lines), ["forward", "backward", "compute", "push", "pull", "exchange", "sync", "bounded"])
        self.assertAlmostEqual(lines["bounded"]["hidden_ms"], max(lines["compute"]["ms"], lines["exchange"]["ms"]), delta=0.001)
        self.assertTrue(all(lines[way]["ms"] > 0 for way in ("compute", "push", "pull", "exchange")))


unittest.main()
