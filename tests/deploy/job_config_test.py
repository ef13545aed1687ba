#!/usr/bin/python3
"""The jobs' configs in deploy/ are configs to the real `weir`, and each saves checkpoints. First shows that a fault is found."""
import json
import pathlib
import subprocess
import tempfile
import unittest

WEIR = pathlib.Path("cli/weir").resolve()
CONFIGS = sorted(pathlib.Path("deploy").rglob("job.json"))
EXIT_CONFIG = 78


def show(path):
    return subprocess.run([WEIR, "config", "show", path], capture_output=True, text=True, check=False)


class JobConfigs(unittest.TestCase):
    def test_configs(self):
        self.assertEqual([str(path.parent) for path in CONFIGS], ["deploy/kustomize/common", "deploy/kustomize/overlays/prod"])
        for path in CONFIGS:
            shown = show(path)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertTrue(json.loads(shown.stdout)["checkpoint"]["directory"], path)

    def test_a_fault_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in CONFIGS:
                copy = pathlib.Path(folder) / "job.json"
                copy.write_text(path.read_text(encoding="utf-8").replace('"epochs"', '"epoch"'), encoding="utf-8")
                self.assertEqual(show(copy).returncode, EXIT_CONFIG)


unittest.main()
