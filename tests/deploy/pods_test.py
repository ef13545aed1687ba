#!/usr/bin/python3
"""The pods of each way to run a job, as processes of the real programs: with the names, arguments, environment and files that
the manifests give them they find their tasks and each other, train, and end."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

# The tree itself, not the runfiles: WORKSPACE is a link into it.
ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
sys.path[:0] = [str(ROOT / "tests/deploy"), str(ROOT / "tests/common/object_store")]
sys.dont_write_bytecode = True
import environment  # pylint: disable=wrong-import-position

environment.enter()
import emulator  # pylint: disable=wrong-import-position
from facts import Facts  # pylint: disable=wrong-import-position
import s3  # pylint: disable=wrong-import-position
from pods_case import LIMIT_SECONDS, WEIR, PodsCase, get, passes, step_of, wait_until  # pylint: disable=wrong-import-position

SERVER_WAIT_SECONDS = 120  # of deploy/kustomize/common/job.json
EXIT_CONFIG, EXIT_DRAINED = 78, 143
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def longer(config):
    """A job of some seconds: long enough for what happens to it in the middle."""
    return config.replace('"epochs": 30', '"epochs": 500')


class Pods(PodsCase):
    def test_jobs_train_and_end(self):
        for rendering in ["deploy/kustomize/overlays/dev", "deploy/jobset", "deploy/kubeflow"]:
            with self.subTest(rendering):
                cluster = self.cluster(self.objects(rendering))
                for pod in cluster.pods:
                    cluster.start(pod)
                for pod in cluster.pods:
                    self.assert_exits(cluster, pod, 0)
                first = next(pod for pod in cluster.pods if pod.pods.role == "ps")
                self.assertIn("all 45000 examples are done", cluster.log(first))

    def test_a_server_is_ready_before_the_others_are_there(self):
        cluster = self.cluster(self.objects("deploy/kustomize/base"))
        alone = next(pod for pod in cluster.pods if pod.name == "weir-ps-1")
        cluster.start(alone)
        for probe in PROBES:
            wait_until(lambda probe=probe: passes(alone, probe), f"the {probe} of {alone.name}")

    def test_a_drained_job_goes_on_when_its_pods_come_back(self):
        cluster = self.cluster(self.objects("deploy/kustomize/base"), config=longer)
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
        cluster = self.cluster(self.objects("deploy/kustomize/components/elastic"),
                               config=lambda text: longer(text).replace('"start_seconds"', '"lease_seconds": 2, "start_seconds"'))
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
        cluster = self.cluster(self.objects("deploy/kustomize/base"))
        for name in ("weir-ps-0", "weir-worker-0"):
            pod = next(pod for pod in cluster.pods if pod.name == name)
            pod.environment["POD_NAME"] = pod.environment["POD_NAME"].replace("-0", "-7")
            if "JOB_COMPLETION_INDEX" in pod.environment:
                pod.environment["JOB_COMPLETION_INDEX"] = "7"
            cluster.start(pod)
            self.assert_exits(cluster, pod, EXIT_CONFIG)
            self.assertRegex(cluster.log(pod), r"raise the count of (ps|worker) there")


    def test_jobs_of_weir_manifest_train_within_their_memory(self):
        for form in ("kustomize", "jobset", "tfjob"):
            with self.subTest(form):
                # Pods share no memory, as tasks of one host do.
                cluster = self.cluster(self.manifest(
                    ROOT / "configs/digits.json", f"--format={form}", "--ps=2", "--workers=3", "--evaluator",
                    "--set", "checkpoint.directory=/var/lib/weir/checkpoints", "--set", "wire.transport=tcp"))
                for pod in cluster.pods:
                    cluster.start(pod)
                peaks = cluster.watch_memory(LIMIT_SECONDS)
                for pod in cluster.pods:
                    self.assert_exits(cluster, pod, 0)
                    limit = int(pod.pods.container["resources"]["limits"]["memory"].removesuffix("Mi"))
                    self.assertGreater(peaks[pod.name], 0)
                    self.assertLess(peaks[pod.name], limit * 1024, f"KiB of {pod.name}")

    def test_jobs_of_weir_manifest_train_with_tls(self):
        secret_values, config_maps = self.certificates(2, 3)
        for form in ("kustomize", "jobset", "tfjob"):
            with self.subTest(form):
                cluster = self.cluster(self.manifest(
                    ROOT / "configs/digits.json", f"--format={form}", "--ps=2", "--workers=3", "--evaluator", "--tls",
                    "--set", "checkpoint.directory=/var/lib/weir/checkpoints", "--set", "train.epochs=200"),
                    secret_values=secret_values, config_maps=config_maps)
                for pod in cluster.pods:
                    cluster.start(pod)
                first = next(pod for pod in cluster.pods if pod.pods.role == "ps")

                def status(cluster=cluster, first=first):
                    self.assertIsNone(first.process.poll(), cluster.log(first)[-3000:])
                    return json.loads(cluster.execute(first, "status", f"--address={first.address}:2222", "--json") or "{}")
                wait_until(lambda: int(status().get("step", 0)) > 0, "the first step")
                self.assertTrue(status()["tls"])
                keys = {pod.name: pathlib.Path(cluster.path(pod, pod.pods.environment["WEIR_TLS_KEY"])).read_text(encoding="ascii")
                        for pod in cluster.pods}
                self.assertEqual(len(set(keys.values())), 6, "tasks share a key")
                for pod in cluster.pods:
                    self.assert_exits(cluster, pod, 0)

    def test_probes_and_metrics_with_tls(self):
        objects = self.objects("deploy/kustomize/components/monitoring+mtls")
        secret_values, config_maps = self.certificates(3, 5)
        token = "7" * 32
        cluster = self.cluster(objects, secret_values={**secret_values, "weir-http-token": {"token": token}}, config_maps=config_maps)
        server = next(pod for pod in cluster.pods if pod.name == "weir-ps-0")
        cluster.start(server)
        for probe in PROBES:
            wait_until(lambda probe=probe: passes(server, probe), f"the {probe} of {server.name}")
        # As the PodMonitor says.
        endpoint, = next(found for found in objects if found["kind"] == "PodMonitor")["spec"]["podMetricsEndpoints"]
        key, port = endpoint["authorization"]["credentials"], server.pods.ports()[endpoint["port"]]
        status, metrics = get(server, endpoint["path"], port, f"Bearer {cluster.secret_values[key['name']][key['key']]}")
        self.assertEqual(status, 200)
        self.assertIn("\nweir_job_step ", metrics)
        self.assertIn("\nweir_certificate_expiry_timestamp_seconds", metrics)
        for authorization in (None, f"Bearer {'8' * 32}"):
            self.assertEqual(get(server, endpoint["path"], port, authorization)[0], 401)

    def test_checkpoints_in_object_storage(self):
        store = s3.Server(self.folder())
        self.addCleanup(store.close)
        cluster = self.cluster(
            self.manifest(ROOT / "configs/digits.json", "--ps=2", "--workers=2", "--set", f"checkpoint.directory=s3://{s3.BUCKET}/digits"),
            secret_values={"weir-object-storage": store.variables})
        for pod in cluster.pods:
            cluster.start(pod)
        for pod in cluster.pods:
            self.assert_exits(cluster, pod, 0)
        listed = subprocess.run([WEIR, "checkpoint", "list", f"s3://{s3.BUCKET}/digits"], capture_output=True, text=True, check=False,
                                env={**os.environ, **store.variables})
        self.assertIn("complete", listed.stdout, listed.stderr)


if __name__ == "__main__":
    reason = emulator.enter_namespaces([sys.executable, "-B", *sys.argv])
    if reason is not None:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    unittest.main()
