#!/usr/bin/python3
"""A PyTorch program in the pods of each format of `weir manifest`, and of deploy/compose: it trains, also where a worker and a
server are killed, to the bits of one host. Pods are processes here, and the image is this host's Python (python_image.py)."""
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import yaml

# The tree itself, not the runfiles: WORKSPACE is a link into it.
ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
sys.path.insert(0, str(ROOT / "tests/deploy"))
sys.dont_write_bytecode = True
import environment  # pylint: disable=wrong-import-position

environment.enter()
import emulator  # pylint: disable=wrong-import-position
from pods_case import LIMIT_SECONDS, WEIR, PodsCase, status_of, step_of, wait_until  # pylint: disable=wrong-import-position
from python_image import PYTHON, make_image  # pylint: disable=wrong-import-position
from rendered import at  # pylint: disable=wrong-import-position

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
EXAMPLES, EPOCHS = 2000, 10
STEPS = EXAMPLES * EPOCHS // 100
DIRECTORY = "checkpoint.directory=/var/lib/weir/checkpoints"
SETS = [f"train.epochs={EPOCHS}", "checkpoint.every_seconds=0.3", "server.min_shard_kib=0"]
MANIFEST = ["--ps=2", "--workers=2", "--image=registry.example.com/cnn:1", "--parameters=21000", "--worker_memory_mib=2000"]
PROGRAM = ["python", "cnn.py", "--data=/data", f"--most={EXAMPLES}"]
EXIT_CONFIG, EXIT_DRAINED = 78, 143
COMPOSE = ROOT / "deploy/compose/compose.yaml"


def pod_of_service(name, service):
    """What a service of compose would be as a pod."""
    mounts, volumes = [], []
    for number, text in enumerate(service["volumes"]):
        source, inside, *_ = text.replace("${WEIR_DATA:-/usr/share/datasets/fashion-mnist}", "data").split(":")
        mounts.append({"name": f"v{number}", "mountPath": inside})
        volumes.append({"name": f"v{number}", "persistentVolumeClaim": {"claimName": source}})
    variables = [{"name": key, "value": value} for key, value in service["environment"].items()]
    return {"kind": "Pod", "metadata": {"name": name, "labels": {"app.kubernetes.io/component": name.split("-")[0]}},
            "spec": {"hostname": name, "volumes": volumes,
                     "containers": [{"name": name, "args": service["command"], "env": variables, "volumeMounts": mounts}]}}


class PythonPods(PodsCase):
    @classmethod
    def setUpClass(cls):
        cls.one_host = None

    def manifest_of(self, *flags, program=tuple(PROGRAM)):
        sets = [word for text in [DIRECTORY, *SETS] for word in ("--set", text)]
        return self.manifest(ROOT / "examples/cnn.json", *MANIFEST, "--data=/data", *flags, *sets, "--", *program)

    def pods(self, objects, **options):
        folder = self.folder()
        image = make_image(folder, ROOT, "examples/cnn.py", "examples/cnn.json")
        return self.cluster(objects, folder, claims={"weir-data": FASHION}, image=image, **options)

    def weights_of_one_host(self):
        """The hash of what the job trains without pods; once for all tests."""
        if self.one_host is None:
            folder = self.folder()
            image = make_image(folder, ROOT, "examples/cnn.py", "examples/cnn.json")
            sets = [word for text in [f"checkpoint.directory={folder}/checkpoints", *SETS] for word in ("--set", text)]
            done = subprocess.run([WEIR, "up", "--ps=2", "--workers=2", folder / "cnn.json", *sets, "--", "python", "cnn.py", f"--most={EXAMPLES}"],
                                  capture_output=True, text=True, check=False, cwd=folder, env={**image, "OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            type(self).one_host = self.hash_of(folder / "checkpoints")
        return self.one_host

    def hash_of(self, checkpoints):
        out = self.folder() / "model.safetensors"
        self.weir("export", checkpoints, out)
        return hashlib.sha256(out.read_bytes()).hexdigest()

    def run_again(self, cluster, limit=LIMIT_SECONDS):
        """Does what makes the pods does, until the workers have ended with 0: starts what has ended again, where the code allows."""
        end = time.monotonic() + limit
        workers = [pod for pod in cluster.pods if pod.pods.role == "worker"]
        while any(pod.process.poll() != 0 for pod in workers):
            for pod in cluster.pods:
                code = pod.process.poll()
                code = 128 - code if code is not None and code < 0 else code
                if code:
                    rules = at(pod.pods.job, "podFailurePolicy", "rules", default=[{"onExitCodes": {"values": range(1, 128)}}])
                    self.assertNotIn(code, rules[0]["onExitCodes"]["values"], f"{pod.name}:\n{cluster.log(pod)[-3000:]}")
                    cluster.start(pod)
            self.assertLess(time.monotonic(), end, "\n".join(cluster.log(pod)[-1000:] for pod in cluster.pods))
            time.sleep(0.05)

    def train_with_losses(self, cluster):
        """Kills a worker and a server in the middle. Returns the hash of the trained weights."""
        first = next(pod for pod in cluster.pods if pod.pods.role == "ps")
        server = [pod for pod in cluster.pods if pod.pods.role == "ps"][1]
        worker = [pod for pod in cluster.pods if pod.pods.role == "worker"][1]
        for pod in cluster.pods:
            cluster.start(pod)
        for lost, step in (worker, STEPS // 5), (server, STEPS // 2):
            wait_until(lambda step=step: step_of(first) >= step, f"step {step}")
            wait_until(lambda: status_of(first).get("checkpoint"), "a checkpoint")
            lost.process.send_signal(signal.SIGKILL)
            self.assert_exits(cluster, lost, -signal.SIGKILL)
            cluster.start(lost)
        self.run_again(cluster)
        for pod in cluster.pods:
            self.assert_exits(cluster, pod, 0)
        # A TFJob's first worker is the chief.
        task = "worker:0" if "worker-0" in worker.name else "worker:1"
        self.assertGreaterEqual(cluster.log(first).count(f"{task} joined"), 2)
        self.assertRegex(cluster.log(first), r"ps:1 .*is back after")
        for pod in cluster.pods:
            if pod.pods.role == "worker":
                self.assertRegex(cluster.log(pod), r"test accuracy: 0\.[78]")
        return self.hash_of(pathlib.Path(cluster.path(first, "/var/lib/weir/checkpoints")))

    def test_each_format_trains_to_the_bits_of_one_host_though_a_worker_and_a_server_are_lost(self):
        for form in ("kustomize", "jobset", "tfjob"):
            with self.subTest(form):
                self.assertEqual(self.train_with_losses(self.pods(self.manifest_of(f"--format={form}"))), self.weights_of_one_host())

    def test_compose_trains_to_the_same_bits(self):
        services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
        folder = self.folder()
        image = make_image(folder, ROOT, "examples/cnn.py", "examples/cnn.json")
        (folder / "token").mkdir()
        # The service that makes the token.
        token = services.pop("token")
        inside = token["volumes"][0].split(":")[1]
        command = [word.replace(inside, str(folder / "token")) for word in [*token["entrypoint"], *token["command"]]]
        for _ in range(2):  # it keeps a token
            subprocess.run(command, check=True, env=image)
            made = (folder / "token/token").read_text(encoding="ascii")
            self.assertRegex(made, "^[0-9a-f]{64}\n$")
            self.assertEqual(made, getattr(self, "made", made))
            self.made = made
        objects = []
        for name, service in services.items():
            at_dashes = service["command"].index("--") if "--" in service["command"] else len(service["command"])
            service["command"][at_dashes:at_dashes] = [f"--set={text}" for text in SETS]
            if name.startswith("worker"):
                service["command"].append(f"--most={EXAMPLES}")
            objects.append(pod_of_service(name, service))
        # weir-job is a ConfigMap of pods alone.
        objects.append({"kind": "ConfigMap", "metadata": {"name": "weir-job"}, "data": {}})
        cluster = self.cluster(objects, folder, claims={"data": FASHION, "token": folder / "token"}, image=image)
        self.assertEqual(self.train_with_losses(cluster), self.weights_of_one_host())

    def test_tls(self):
        secret_values, config_maps = self.certificates(2, 2)
        cluster = self.pods(self.manifest_of("--tls"), secret_values=secret_values, config_maps=config_maps)
        for pod in cluster.pods:
            cluster.start(pod)
        for pod in cluster.pods:
            self.assert_exits(cluster, pod, 0)
        first = next(pod for pod in cluster.pods if pod.pods.role == "ps")
        self.assertEqual(self.hash_of(pathlib.Path(cluster.path(first, "/var/lib/weir/checkpoints"))), self.weights_of_one_host())

    def test_a_program_that_cannot_go_on_is_not_tried_again(self):
        for program, code, says in [(["python", "-c", "raise ValueError('no such column')"], 1, "no such column"),
                                    (["python", "nosuch.py"], 2, "can't open file"),
                                    (["nosuch-python", "cnn.py"], EXIT_CONFIG, "cannot run nosuch-python: no folder of PATH has such a program")]:
            with self.subTest(program[1]):
                cluster = self.pods(self.manifest_of(program=program))
                worker = cluster.named("weir-worker-0")
                cluster.start(worker)
                self.assert_exits(cluster, worker, code)
                self.assertIn(says, cluster.log(worker))
                permanent, _, retried = worker.pods.job["podFailurePolicy"]["rules"]
                self.assertEqual(permanent["action"], "FailJob")
                self.assertIn(code, permanent["onExitCodes"]["values"])
                self.assertEqual((retried["action"], retried["onExitCodes"]["values"]), ("Ignore", [138, EXIT_DRAINED]))

    def test_sigterm_reaches_the_program(self):
        cluster = self.pods(self.manifest_of(program=["python", "-c", "print('runs'); import time; time.sleep(600)"]))
        worker = cluster.named("weir-worker-0")
        cluster.start(worker)
        wait_until(lambda: "runs" in cluster.log(worker), "the program")
        worker.process.send_signal(signal.SIGTERM)
        self.assert_exits(cluster, worker, EXIT_DRAINED)


if __name__ == "__main__":
    reason = emulator.enter_namespaces([sys.executable, "-B", *sys.argv])
    if reason is None and subprocess.run([PYTHON, "-c", "import torch"], check=False, capture_output=True).returncode != 0:
        reason = f"{PYTHON} has no PyTorch"
    if reason is not None:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    unittest.main()
