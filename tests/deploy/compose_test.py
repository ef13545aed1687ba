#!/usr/bin/python3
"""deploy/compose says what the manifests of the same job say. Nothing here runs it (python_pods_test.py does, without compose)."""
import copy
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import yaml

# The tree itself, not the runfiles: WORKSPACE is a link into it.
ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
sys.path.insert(0, str(ROOT / "tests/deploy"))
sys.dont_write_bytecode = True
import environment  # pylint: disable=wrong-import-position

environment.enter()
from cluster_rules import END_SECONDS, host_and_domain, spec_of  # pylint: disable=wrong-import-position
from rendered import pods_of, render  # pylint: disable=wrong-import-position

FOLDER = ROOT / "deploy/compose"
WEIR = pathlib.Path("cli/weir").resolve()
# A pod finds its place by its name, and its config is in a ConfigMap with all overrides.
OF_PODS = {"POD_NAME", "WEIR_SERVERS", "WEIR_WORKERS"}
SETS = ["checkpoint.directory=/var/lib/weir/checkpoints", "cluster.server_wait_seconds=120"]


def split(command):
    """(flags by name without --set, overrides, program)"""
    at_dashes = command.index("--") if "--" in command else len(command)
    flags = [word.removeprefix("--").partition("=")[::2] for word in command[:at_dashes]]
    return {name: value for name, value in flags if name != "set"}, [v for name, v in flags if name == "set"], command[at_dashes + 1:]


def faults_of(compose, pods):
    """`pods`: by role, those of the same job's manifest."""
    services = {name: service for name, service in compose["services"].items() if name != "token"}
    for name, service in services.items():
        role, _, index = name.partition("-")
        flags, sets, program = split(service["command"])
        wanted, _, wanted_program = split(pods[role].arguments())
        if program != wanted_program:
            yield f"{name}: runs {program}, a pod {wanted_program}"
        if sets != SETS:
            yield f"{name}: has the overrides {sets}"
        cluster = spec_of(flags.pop("cluster", "")) or {}
        if {host_and_domain(cluster[job][0], i)[0] for job in cluster for i in range(cluster[job][1])} != set(services):
            yield f"{name}: --cluster has other names than the services"
        if flags.pop("task", None) != f"{role}:{index}":
            yield f"{name}: must be the task {role}:{index}"
        for flag, value in wanted.items():
            if flag in ("cluster", "task"):
                continue
            found = flags.pop(flag, None)
            if found != (value if flag != "config" else "cnn.json"):
                yield f"{name}: --{flag}={found}, but pods have {value}"
        if flags:
            yield f"{name}: has flags that pods do not have: {flags}"
        variables = {key: value for key, value in pods[role].environment.items() if key not in OF_PODS}
        if service["environment"] != variables:
            yield f"{name}: its environment is {service['environment']}, that of pods {variables}"
        if not service.get("read_only") or service.get("cap_drop") != ["ALL"] or service.get("security_opt") != ["no-new-privileges:true"]:
            yield f"{name}: must not have rights that a pod does not have"
        if service["depends_on"].get("token") != {"condition": "service_completed_successfully"}:
            yield f"{name}: must start when the token is there"
        if not any(volume.startswith("token:/etc/weir-token:ro") for volume in service["volumes"]):
            yield f"{name}: must read the token, and not write it"
        if service["image"] != compose["services"]["token"]["image"] or service["image"].endswith(":latest"):
            yield f"{name}: must have the image that is built, of a version"
        if role == "ps" and int(service["stop_grace_period"].removesuffix("s")) < 120 + END_SECONDS:
            yield f"{name}: stop_grace_period is shorter than ps:0 may take to save the job"
        if any(not port.startswith("127.0.0.1:") for port in service.get("ports", [])):
            yield f"{name}: listens on other interfaces than loopback"
    volumes = {volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    for name in sorted({volume for volume in volumes if volume.isalpha()} ^ set(compose["volumes"])):
        yield f"the volume {name} is not used, or not there"


class Compose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            command = [WEIR, "manifest", ROOT / "examples/cnn.json", "--ps=2", "--workers=2", "--image=weir-cnn:1", "--parameters=21000",
                       "--worker_memory_mib=1000", "--data=/data", f"--out={folder}/job", *(f"--set={text}" for text in SETS)]
            subprocess.run([*command, "--", "python", "cnn.py", "--data=/data"], check=True, capture_output=True)
            cls.pods = {pods.role: pods for pods in pods_of(render(f"{folder}/job"))}

    def test_it_says_what_manifests_say(self):
        self.assertEqual(list(faults_of(self.compose, self.pods)), [])

    def test_planted_faults_are_found(self):
        def command(name, old, new):
            def plant(services):
                services[name]["command"][services[name]["command"].index(old)] = new
            return plant

        for plant, says in [
                (command("ps-1", "--task=ps:1", "--task=ps:0"), "ps-1: must be the task ps:1"),
                (command("worker-0", "cnn.py", "other.py"), "worker-0: runs"),
                (command("ps-0", "--insecure_plaintext", "--log_level=debug"), "--insecure_plaintext=None"),
                (command("worker-1", "--cluster=dns:ps=ps-*:2,worker=worker-*:2", "--cluster=dns:ps=ps-*:2,worker=worker-*:3"), "other names"),
                (command("ps-0", f"--set={SETS[0]}", "--set=seed=3"), "has the overrides"),
                (lambda services: services["ps-0"].pop("read_only"), "must not have rights"),
                (lambda services: services["ps-0"].update(environment={}), "its environment is {}"),
                (lambda services: services["ps-0"].update(stop_grace_period="10s"), "stop_grace_period is shorter"),
                (lambda services: services["ps-0"].update(ports=["8080:8080"]), "other interfaces than loopback"),
                (lambda services: services["worker-0"].update(image="other:1"), "must have the image that is built"),
                (lambda services: services["worker-0"].update(volumes=["toke:/etc/weir-token:ro"]), "must read the token")]:
            compose = copy.deepcopy(self.compose)
            plant(compose["services"])
            faults = list(faults_of(compose, self.pods))
            self.assertTrue(any(says in fault for fault in faults), f"not found: {says}\n{faults}")

    def test_the_image_is_three_lines_on_the_base_for_programs(self):
        lines = [line for line in (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        self.assertEqual(lines, ["FROM weir-python:0.1.0", "RUN pip install torch", "COPY cnn.py cnn.json ./"])
        build = self.compose["services"]["token"]["build"]
        context = (FOLDER / build["context"]).resolve()
        self.assertEqual((context / build["dockerfile"]).resolve(), (FOLDER / "Dockerfile").resolve())
        self.assertTrue((context / "cnn.py").exists() and (context / "cnn.json").exists())


unittest.main()
