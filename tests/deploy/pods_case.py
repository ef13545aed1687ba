"""What tests that run pods share: waiting, asking a server for its pages, and a cluster that ends with its test."""
import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import emulator
from checker import Tree
from rendered import KUBECTL, load, render

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIR = pathlib.Path("cli/weir").resolve()
LIMIT_SECONDS = 120


def get(pod, path, port=None, authorization=None):
    """The status and the body of a page of a server, at --http_port or another port; None while nothing listens."""
    request = urllib.request.Request(f"http://{pod.address}:{port or pod.pods.flag('http_port')}{path}")
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


def passes(pod, probe):
    """Whether kubelet's probe of the server, such as "livenessProbe", succeeds."""
    http = pod.pods.container[probe]["httpGet"]
    return (get(pod, http["path"], pod.pods.ports()[http["port"]]) or [0])[0] == 200


def status_of(pod):
    """What ps:0 says of the job; {} while it says nothing."""
    status = get(pod, "/status")
    return json.loads(status[1]) if status is not None and status[0] == 200 and status[1] else {}


def step_of(pod):
    return int(status_of(pod).get("step", 0))


def wait_until(holds, what, limit=LIMIT_SECONDS):
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited for {limit} s: {what}")
        time.sleep(0.02)


class PodsCase(unittest.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def objects(self, rendering):
        """What a folder of deploy/ renders to."""
        folder = self.folder()
        shutil.copytree(ROOT / "deploy", folder / "tree/deploy")
        return Tree(folder / "tree").objects(rendering)

    def cluster(self, objects, folder=None, **options):
        cluster = emulator.Cluster(objects, WEIR, folder or self.folder(), **options)
        self.addCleanup(cluster.close)
        return cluster

    def weir(self, *arguments):
        """What the command prints, which must succeed."""
        result = subprocess.run([WEIR, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def manifest(self, config, *flags):
        """What the folder that `weir manifest` writes renders to."""
        out = self.folder() / "job"
        self.weir("manifest", config, f"--out={out}", *flags)
        return render(out)

    def certificates(self, servers, workers):
        """(Secrets, ConfigMaps): what the commands that `weir manifest --tls` prints make: name -> key -> value."""
        folder = self.folder()
        printed = self.weir("manifest", ROOT / "configs/digits.json", f"--out={folder}/job", f"--ps={servers}", f"--workers={workers}",
                            "--evaluator", "--tls", "--set", "checkpoint.directory=/var/lib/weir/checkpoints")
        commands = re.search(r"^  weir certs init.*?^  done$", printed, re.M | re.S)[0]
        functions = f'weir() {{ {WEIR} "$@" >&2; }}\nkubectl() {{ echo ---; {KUBECTL} "$@" --dry-run=client -o yaml; }}\n'
        done = subprocess.run(["bash", "-euc", functions + commands], cwd=folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        made = {(found["kind"], found["metadata"]["name"]): found["data"] for found in load(done.stdout)}
        secret_values = {name: {key: base64.b64decode(value).decode() for key, value in data.items()}
                         for (kind, name), data in made.items() if kind == "Secret"}
        return secret_values, {name: data for (kind, name), data in made.items() if kind == "ConfigMap"}

    def assert_exits(self, cluster, pod, code, limit=LIMIT_SECONDS):
        self.assertEqual(pod.process.wait(limit), code, f"{pod.name}:\n{cluster.log(pod)[-3000:]}")
