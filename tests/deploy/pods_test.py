#!/usr/bin/python3
"""The pods of each way to run a job, as processes of the real programs: with the names, arguments, environment and files that
the manifests give them they find their tasks and each other, train, and end."""
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

# The tree itself, not the runfiles: WORKSPACE is a link into it.
ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
sys.path.insert(0, str(ROOT / "tests/deploy"))
sys.dont_write_bytecode = True
import environment  # pylint: disable=wrong-import-position

environment.enter()
import emulator  # pylint: disable=wrong-import-position
from checker import Tree  # pylint: disable=wrong-import-position
from facts import Facts  # pylint: disable=wrong-import-position

WEIR = pathlib.Path("cli/weir").resolve()
LIMIT_SECONDS = 120
SERVER_WAIT_SECONDS = 120  # of deploy/kustomize/common/job.json
EXIT_CONFIG, EXIT_DRAINED = 78, 143


def get(pod, path):
    """The status and the body of a page of a server; None while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://{pod.address}:{pod.pods.flag('http_port')}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


def longer(config):
    """A job of some seconds: long enough for what happens to it in the middle."""
    return config.replace('"epochs": 30', '"epochs": 500')


def step_of(pod):
    status = get(pod, "/status")
    return int(json.loads(status[1]).get("step", 0)) if status is not None and status[0] == 200 and status[1] else 0


def wait_until(holds, what):
    end = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited for {LIMIT_SECONDS} s: {what}")
        time.sleep(0.02)


class Pods(unittest.TestCase):
    def cluster(self, rendering, config=lambda text: text):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        shutil.copytree(ROOT / "deploy", f"{folder.name}/tree/deploy")
        cluster = emulator.Cluster(Tree(f"{folder.name}/tree").objects(rendering), WEIR, folder.name, config)
        self.addCleanup(cluster.close)
        return cluster

    def assert_exits(self, cluster, pod, code):
        self.assertEqual(pod.process.wait(LIMIT_SECONDS), code, f"{pod.name}:\n{cluster.log(pod)[-3000:]}")

    def test_jobs_train_and_end(self):
        for rendering in ["deploy/kustomize/overlays/dev", "deploy/jobset", "deploy/kubeflow"]:
            with self.subTest(rendering):
                cluster = self.cluster(rendering)
                for pod in cluster.pods:
                    cluster.start(pod)
                for pod in cluster.pods:
                    self.assert_exits(cluster, pod, 0)
                first = next(pod for pod in cluster.pods if pod.pods.role == "ps")
                self.assertIn("all 45000 examples are done", cluster.log(first))

    def test_a_server_is_ready_before_the_others_are_there(self):
        cluster = self.cluster("deploy/kustomize/base")
        alone = next(pod for pod in cluster.pods if pod.name == "weir-ps-1")
        cluster.start(alone)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = alone.pods.container[probe]["httpGet"]["path"]
            wait_until(lambda path=path: (get(alone, path) or [0])[0] == 200, f"{path} of {alone.name}")

    def test_a_drained_job_goes_on_when_its_pods_come_back(self):
        cluster = self.cluster("deploy/kustomize/base", longer)
        first = next(pod for pod in cluster.pods if pod.name == "weir-ps-0")
        for pod in cluster.pods:
            cluster.start(pod)
        wait_until(lambda: step_of(first) > 0, "the first step")
        begin = time.monotonic()
        first.process.send_signal(signal.SIGTERM)
        self.assert_exits(cluster, first, EXIT_DRAINED)
        self.assertLess(time.monotonic() - begin, first.pods.spec["terminationGracePeriodSeconds"])
        # A pod that did not hear of the end waits for ps:0 for cluster.server_wait_seconds.
        limit = LIMIT_SECONDS + SERVER_WAIT_SECONDS
        for pod in cluster.pods:  # a StatefulSet starts each again, a Job those whose codes are not permanent
            self.assertIn(pod.process.wait(limit), Facts(ROOT).retry_codes, f"{pod.name}:\n{cluster.log(pod)[-3000:]}")
        for pod in cluster.pods:
            cluster.start(pod)
        for pod in cluster.pods:
            self.assert_exits(cluster, pod, 0)
        self.assertIn("started again, the job goes on from", cluster.log(first))

    def test_elastic_workers_may_stay_away_and_come_late(self):
        # ps:0 waits a lease for workers that did not come.
        cluster = self.cluster("deploy/kustomize/components/elastic",
                               lambda text: longer(text).replace('"start_seconds"', '"lease_seconds": 2, "start_seconds"'))
        first = next(pod for pod in cluster.pods if pod.name == "weir-ps-0")
        workers = [pod for pod in cluster.pods if pod.pods.role == "worker"]
        started = [pod for pod in cluster.pods if pod not in workers[1:]]
        for pod in started:
            cluster.start(pod)
        wait_until(lambda: step_of(first) > 0, "the first step, by one worker")
        cluster.start(workers[4])
        for pod in [*started, workers[4]]:
            self.assert_exits(cluster, pod, 0)

    def test_a_pod_too_many_says_what_to_edit(self):
        cluster = self.cluster("deploy/kustomize/base")
        for name in ("weir-ps-0", "weir-worker-0"):
            pod = next(pod for pod in cluster.pods if pod.name == name)
            pod.environment["POD_NAME"] = pod.environment["POD_NAME"].replace("-0", "-7")
            if "JOB_COMPLETION_INDEX" in pod.environment:
                pod.environment["JOB_COMPLETION_INDEX"] = "7"
            cluster.start(pod)
            self.assert_exits(cluster, pod, EXIT_CONFIG)
            self.assertRegex(cluster.log(pod), r"raise the count of (ps|worker) there")


if __name__ == "__main__":
    reason = emulator.enter_namespaces([sys.executable, "-B", *sys.argv])
    if reason is not None:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    unittest.main()
