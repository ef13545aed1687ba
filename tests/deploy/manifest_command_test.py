#!/usr/bin/python3
"""What `weir manifest` writes renders without any other file, holds to all rules on deploy/, and has the size, the memory and the
paths that were asked for. What cannot run in pods is refused, and nothing is written."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

# The tree itself, not the runfiles: WORKSPACE is a link into it.
ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
sys.path.insert(0, str(ROOT / "tests/deploy"))
sys.dont_write_bytecode = True
import environment  # pylint: disable=wrong-import-position

environment.enter()
from checker import config_of, faults_of_objects  # pylint: disable=wrong-import-position
from facts import Facts  # pylint: disable=wrong-import-position
from rendered import at, load, pods_of, render  # pylint: disable=wrong-import-position
from tls_rules import files_of_tls  # pylint: disable=wrong-import-position

WEIR = pathlib.Path("cli/weir").resolve()
EXIT_USAGE, EXIT_CONFIG = 64, 78
FORMATS = ("kustomize", "jobset", "tfjob")
MIB = 1 << 20
DIRECTORY = "/var/lib/weir/checkpoints"
PROGRAM_MIB, CUDA_MIB = 64, 2048

DIGITS = {
    "name": "small", "data": {"format": "digits", "batch_size": 16},
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "checkpoint": {"directory": DIRECTORY},
}
# Of a program that brings model and data.
PROGRAM = {"name": "mine", "data": {"batch_size": 50}, "checkpoint": {"directory": DIRECTORY}}
PROGRAM_FLAGS = ["--image=example.com/mine:1", "--parameters=1000", "--worker_memory_mib=700"]
# 64 x 10 and 10.
DIGITS_PARAMETERS = 650
# Held by all servers, in blocks of 16.
LARGE = {
    "name": "large", "data": {"format": "idx", "train": {"images": "/data/train/images", "labels": "/data/train/labels"},
                              "test": {"images": "/data/test/images", "labels": "/data/test/labels"}},
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 4096}, {"type": "dense", "units": 10}]},
    "consistency": {"mode": "async"}, "optimizer": {"type": "momentum"}, "compute": {"threads": 3},
    "cluster": {"server_wait_seconds": 200.5}, "checkpoint": {"directory": DIRECTORY},
}


def ceil_mib(size):
    return -(-size // MIB)


class ManifestCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = self.folder / "job.json"
        self.out = self.folder / "out"

    def weir(self, config, *flags):
        self.job.write_text(json.dumps(config) if isinstance(config, dict) else config, encoding="utf-8")
        command = [WEIR, "manifest", self.job, f"--out={self.out}", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def written(self, config, *flags):
        """The objects of the folder, which is moved away first: it needs nothing beside it."""
        shutil.rmtree(self.out, ignore_errors=True)
        result = self.weir(config, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        moved = self.folder / "moved"
        shutil.rmtree(moved, ignore_errors=True)
        self.out.rename(moved)
        return render(moved)

    def assert_refused(self, config, flags, *says, code=EXIT_CONFIG):
        result = self.weir(config, *flags)
        self.assertEqual(result.returncode, code, result.stdout)
        for text in says:
            self.assertIn(text, result.stderr)
        self.assertFalse(self.out.exists())

    def memory(self, pods):
        """In MiB; request and limit are one."""
        resources = pods.container["resources"]
        self.assertEqual(resources["requests"]["memory"], resources["limits"]["memory"])
        self.assertTrue(resources["limits"]["memory"].endswith("Mi"))
        return int(resources["limits"]["memory"][:-2])

    def test_all_rules_hold(self):
        storage = {**DIGITS, "checkpoint": {"directory": "s3://bucket/small"}}
        large = ["--parameters=1000000", "--worker_memory_mib=300"]
        for form in FORMATS:
            for config, flags in [(DIGITS, []), (DIGITS, ["--evaluator", "--gpu"]),
                                  (storage, ["--evaluator"]), (storage, ["--gpu"]),
                                  (DIGITS, ["--tls"]), (storage, ["--evaluator", "--gpu", "--tls"]),
                                  (LARGE, [*large, "--evaluator", "--gpu"]), (LARGE, large)]:
                for ps, workers in [(1, 1), (4, 16)]:
                    with self.subTest(form=form, name=config["name"], flags=flags, ps=ps, workers=workers):
                        objects = self.written(config, f"--format={form}", f"--ps={ps}", f"--workers={workers}", *flags)
                        self.assertEqual(list(faults_of_objects(objects, Facts(ROOT))), [])
                        counts = {}
                        for pods in pods_of(objects):
                            counts[pods.role] = counts.get(pods.role, 0) + pods.count
                        evaluator = {"evaluator": 1} if "--evaluator" in flags else {}
                        self.assertEqual(counts, {"ps": ps, "worker": workers} | evaluator)
                        self.assertEqual({bool(files_of_tls(pods)) for pods in pods_of(objects)}, {"--tls" in flags})

    def test_all_rules_hold_for_a_program(self):
        storage = {**PROGRAM, "checkpoint": {"directory": "s3://bucket/small"}}
        for form in FORMATS:
            for config, flags in [(PROGRAM, []), (PROGRAM, ["--evaluator", "--gpu", "--data=/data", "--tls"]), (storage, ["--gpu"])]:
                for ps, workers in [(1, 1), (4, 16)]:
                    with self.subTest(form=form, flags=flags, ps=ps, workers=workers):
                        objects = self.written(config, f"--format={form}", f"--ps={ps}", f"--workers={workers}", *PROGRAM_FLAGS, *flags,
                                               "--", "python", "train.py")
                        self.assertEqual(list(faults_of_objects(objects, Facts(ROOT))), [])

    def test_what_pods_of_a_program_get(self):
        words = ["python", "-u", "train.py", "--note=$(HOME) \"x\"", "--"]
        for form in FORMATS:
            objects = self.written(PROGRAM, f"--format={form}", *PROGRAM_FLAGS, "--evaluator", "--gpu", "--data=/mnt/clicks", "--worker_cpus=3",
                                   "--set=optimizer.learning_rate=0.5", "--", *words)
            for pods in pods_of(objects):
                with self.subTest(pods.title):
                    self.assertEqual(pods.container["command"], ["weir", "run"])
                    self.assertEqual(pods.container["image"], "example.com/mine:1")
                    works = pods.role != "ps"
                    self.assertEqual(pods.program, words if works else [])
                    mounts = {mount["name"]: mount["mountPath"] for mount in pods.container["volumeMounts"]}
                    self.assertEqual((mounts.get("data"), mounts.get("shm")), ("/mnt/clicks", "/dev/shm") if works else (None, None))
                    self.assertEqual(at(pods.container, "resources", "limits", "nvidia.com/gpu"), "1" if pods.role == "worker" else None)
                    if works:
                        # What servers have in job.json, and the program perhaps not.
                        self.assertEqual(pods.settings, ["optimizer.learning_rate=0.5", "cluster.start_seconds=900",
                                                         "cluster.server_wait_seconds=120"])
                        self.assertEqual(self.memory(pods), 700)
                        self.assertEqual(str(pods.container["resources"]["requests"]["cpu"]), "3")
                        self.assertEqual((pods.environment["OMP_NUM_THREADS"], pods.environment["PYTHONUNBUFFERED"]), ("3", "1"))
                    else:
                        self.assertEqual(config_of(objects, pods)["optimizer"]["learning_rate"], 0.5)

    def test_programs_that_are_refused(self):
        program = ["--", "python", "train.py"]
        self.assert_refused(PROGRAM, program, "--image=NAME:TAG", "--parameters=N", "--worker_memory_mib=N", "`/usr/bin/time -v python train.py`")
        self.assert_refused(PROGRAM, [*PROGRAM_FLAGS[:2], *program], "give --worker_memory_mib=N")
        self.assert_refused(PROGRAM, PROGRAM_FLAGS, "model and data are missing", "-- PROGRAM ARGS")
        self.assert_refused(DIGITS, [*PROGRAM_FLAGS, *program], "model: is given, but a program brings its own")
        self.assert_refused(DIGITS, ["--worker_cpus=2"], "are for a program after --")
        self.assert_refused(PROGRAM, [*PROGRAM_FLAGS, "--data=/tmp/x", *program], "--data: the program's folder is /tmp/x", "has /tmp;")
        self.assert_refused(PROGRAM, [*PROGRAM_FLAGS, "--data=data", *program], "must be an absolute path", code=EXIT_USAGE)
        self.assert_refused(PROGRAM, [*PROGRAM_FLAGS, "--"], "after -- comes a program", code=EXIT_USAGE)
        self.assert_refused(PROGRAM, [*PROGRAM_FLAGS, "python", "train.py"], "if `python` is the program", code=EXIT_USAGE)

    def test_plain_text_is_said_in_the_first_line_and_on_the_terminal(self):
        says = "no TLS: the job's token, weights and gradients travel between pods in the clear"
        for form in FORMATS:
            for config, program in [(DIGITS, []), (PROGRAM, [*PROGRAM_FLAGS, "--", "python", "train.py"])]:
                for tls in [[], ["--tls"]]:
                    result = self.weir(config, "--force", f"--format={form}", *tls, *program)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    first = (self.out / "kustomization.yaml").read_text(encoding="utf-8").splitlines()[0]
                    self.assertEqual((says in first, says in result.stderr), (not tls, not tls))

    def test_memory_of_servers(self):
        # docs/memory.md. sync, sgd: weights 1, parts 16, old versions 4, a version that is saved 1.
        digits = (1 + 16 + 4 + 1) * 4 * DIGITS_PARAMETERS
        # async, momentum, streamed: twice weights and slot, arriving 7, old versions 4, overtaken 2, saved 2.
        parameters = 8_000_000
        block = 65536
        blocks_of_first = -(-(-(-parameters // block)) // 4)
        large = (2 * 2 + 7 + 4 + 2 + 2) * 4 * blocks_of_first * block
        for form in FORMATS:
            objects = self.written(DIGITS, f"--format={form}", "--ps=2", "--workers=16")
            servers = next(pods for pods in pods_of(objects) if pods.role == "ps")
            self.assertEqual(self.memory(servers), ceil_mib(digits + 16 * MIB) + PROGRAM_MIB)
            objects = self.written(LARGE, f"--format={form}", "--ps=4", "--workers=8", f"--parameters={parameters}",
                                   "--worker_memory_mib=99")
            servers = next(pods for pods in pods_of(objects) if pods.role == "ps")
            self.assertEqual(self.memory(servers), ceil_mib(large + 8 * MIB) + PROGRAM_MIB)

    def test_object_storage_takes_more_memory(self):
        storage = {**DIGITS, "checkpoint": {"directory": "s3://bucket/small"}}
        sizes = []
        for config in (DIGITS, storage):
            servers = next(pods for pods in pods_of(self.written(config)) if pods.role == "ps")
            sizes.append(self.memory(servers))
        self.assertEqual(sizes[1] - sizes[0], 16)

    def test_memory_of_workers(self):
        # Both sets in bytes, twice while they are read, and a label of 4 bytes; six times the weights; for each example of a batch
        # of 16: twice the layers' outputs (64, 10), two gradients between layers (64), two inputs (64).
        data = 1797 * (2 * 64 + 4)
        size = data + 4 * (6 * DIGITS_PARAMETERS + 16 * (2 * (64 + 10) + 2 * 64 + 2 * 64)) + 3 * MIB
        for form in FORMATS:
            for flags, more in [([], 0), (["--gpu"], CUDA_MIB)]:
                objects = self.written(DIGITS, f"--format={form}", "--ps=3", "--workers=4", "--evaluator", *flags)
                for pods in pods_of(objects):
                    if pods.role != "ps":
                        cuda = more if pods.role == "worker" else 0
                        self.assertEqual(self.memory(pods), ceil_mib(size) + PROGRAM_MIB + cuda)

    def test_what_pods_get(self):
        for form in FORMATS:
            with self.subTest(form):
                objects = self.written(LARGE, f"--format={form}", "--ps=2", "--workers=4", "--parameters=9", "--gpu", "--evaluator",
                                       "--worker_memory_mib=321", "--namespace=training", "--image=example.com:5000/weir:1.2",
                                       f"--gpu_image=example.com/gpu@sha256:{'0' * 64}")
                namespaces = {at(found, "metadata", "namespace") for found in objects if found["kind"] != "ConfigMap" or
                              found["metadata"]["name"] != "weir-size"}
                self.assertEqual(namespaces, {"training"})
                for pods in pods_of(objects):
                    config = config_of(objects, pods)
                    self.assertEqual(config["cluster"], {"start_seconds": 900, "server_wait_seconds": 200.5})
                    works = pods.role == "worker"
                    image = f"example.com/gpu@sha256:{'0' * 64}" if works else "example.com:5000/weir:1.2"
                    self.assertEqual(pods.container["image"], image)
                    self.assertEqual(pods.flag("device"), "cuda:0" if works else None)
                    self.assertEqual(at(pods.container, "resources", "limits", "nvidia.com/gpu"), "1" if works else None)
                    mounts = {mount["name"]: mount["mountPath"] for mount in pods.container["volumeMounts"]}
                    if pods.role == "ps":
                        self.assertEqual(pods.spec["terminationGracePeriodSeconds"], 231)
                        self.assertNotIn("data", mounts)
                    else:
                        self.assertEqual(mounts["data"], "/data")
                        self.assertEqual(self.memory(pods), 321)
                        self.assertEqual(str(pods.container["resources"]["requests"]["cpu"]), "3")

    def test_sidecars_of_tls(self):
        for form in FORMATS:
            objects = self.written(DIGITS, f"--format={form}", "--ps=2", "--workers=3", "--tls", "--image=example.com/weir:1.2")
            for pods in pods_of(objects):
                with self.subTest(pods.title):
                    sidecar, = pods.sidecars
                    self.assertEqual(sidecar["image"], "example.com/weir:1.2")
                    # A TFJob's chief is worker:0.
                    ranks = [variable["value"] for variable in sidecar["env"] if variable["name"] == "WEIR_FIRST_RANK"]
                    self.assertEqual(ranks, ["1"] if pods.title == "TFJob weir, Worker" else [])

    def test_the_export_has_the_job_s_image(self):
        self.assertEqual(self.weir(DIGITS, "--image=example.com/weir:1.2").returncode, 0)
        export = load((self.out / "deploy/kustomize/checkpoints/export.yaml").read_text(encoding="utf-8"))
        self.assertEqual(export[0]["spec"]["containers"][0]["image"], "example.com/weir:1.2")

    def test_the_export_has_the_job_s_folder(self):
        for directory, argument in [("/var/lib/weir/second job", "/var/lib/weir/second job"),
                                    ("/var/lib/weir/x\"", "/var/lib/weir/x\""), (DIRECTORY, DIRECTORY)]:
            self.assertEqual(self.weir({**DIGITS, "checkpoint": {"directory": directory}}, "--force").returncode, 0)
            export = load((self.out / "deploy/kustomize/checkpoints/export.yaml").read_text(encoding="utf-8"))
            command = export[0]["spec"]["containers"][0]["command"]
            self.assertEqual(command[:2] + command[3:], ["sh", "-c", "weir-export", argument])
            self.assertIn('weir export "$1" ', command[2])
        # Kubernetes would put a variable's value there.
        refused = self.weir({**DIGITS, "checkpoint": {"directory": "/var/lib/weir/$(x)"}}, "--force")
        self.assertEqual(refused.returncode, 78)
        self.assertIn("has $(x) in it", refused.stderr)

    def test_the_sizes_are_said(self):
        flags = ["--parameters=9", "--worker_memory_mib=99"]
        result = self.weir(LARGE, *flags)
        self.assertRegex(result.stdout, r': job "large", 1 server with \d+ MiB and 1 worker with 99 MiB\n')
        result = self.weir(LARGE, *flags, "--force", "--ps=2", "--workers=3", "--evaluator")
        self.assertRegex(result.stdout, r"2 servers with \d+ MiB each, 3 workers with 99 MiB each and an evaluator with 99 MiB\n")
        result = self.weir(DIGITS, "--force", "--gpu", "--evaluator")
        worker, evaluator = map(int, re.search(r"1 worker with (\d+) MiB and an evaluator with (\d+) MiB", result.stdout).groups())
        self.assertEqual(worker - evaluator, CUDA_MIB)

    def test_what_a_device_cannot_do(self):
        rounded = {**DIGITS, "compute": {"precision": "bf16"}}
        self.assert_refused(rounded, [], "compute.precision: is bf16, which needs a GPU", "add --gpu")
        self.assert_refused(rounded, ["--gpu", "--evaluator"], "compute.precision: is bf16", "leave --evaluator out")
        clicks = (ROOT / "configs/ctr_dcn.json").read_text(encoding="utf-8")
        self.assert_refused(clicks, ["--gpu"], "model.layers[0]: is of type embedding, which only a CPU computes; leave --gpu out")
        # With a GPU where it is needed, or without one.
        self.assertEqual(self.weir(rounded, "--gpu").returncode, 0)
        self.assertEqual(self.weir({**DIGITS, "compute": {"precision": "float32"}}, "--force", "--evaluator").returncode, 0)

    def test_what_the_worker_says_has_no_prefix_of_a_log(self):
        self.assert_refused({"name": "x", "checkpoint": {"directory": DIRECTORY}}, [], f"error: {self.job}: model and data are missing")

    def test_the_next_steps_are_said(self):
        result = self.weir(LARGE, "--parameters=9", "--worker_memory_mib=99", "--namespace=training")
        for text in ["kubectl create namespace training", "kubectl -n training create secret generic weir-token",
                     f"kubectl -n training apply -f {self.out}/deploy/kustomize/checkpoints/claim.yaml",
                     "a claim weir-data whose files are those of /data\n", f"kubectl apply -k {self.out}\n"]:
            self.assertIn(text, result.stdout)
        self.assertNotIn("weir certs", result.stdout)
        # tests/deploy/pods_case.py runs these.
        result = self.weir(DIGITS, "--force", "--ps=2", "--workers=3", "--tls", "--namespace=training")
        for text in ["weir certs init certs --spec=dns:ps=weir-ps:2,worker=weir-worker:3 ", "for role in ps worker; do",
                     "kubectl -n training create configmap weir-ca --from-file=certs/ca.pem\n"]:
            self.assertIn(text, result.stdout)

    def test_configs_that_cannot_run_in_pods(self):
        relative = {**LARGE, "data": {**LARGE["data"], "train": {"images": "train/images", "labels": "/data/labels"}}}
        self.assert_refused(relative, [], f"{self.job}: data.train.images: 'train/images' is relative", "/data/train/images")
        beside = {**LARGE, "data": {**LARGE["data"], "train": {"images": "../train/images", "labels": "/data/labels"}}}
        self.assert_refused(beside, [], "'../train/images' is relative", "such as /data/train/images\n")
        for folder, taken in [("/", "/bin"), ("/etc/weir", "/etc"), ("/usr", "/usr/bin"), ("/tmp/x/..", "/tmp"),
                              ("/var/lib/weir/data", "/var/lib/weir")]:
            files = {"images": f"{folder}/images", "labels": f"{folder}/labels"}
            hidden = {**LARGE, "data": {"format": "idx", "train": files, "test": files}}
            self.assert_refused(hidden, [], "data: the folder of all its files is", f"has {taken};")
        for directory in ["runs", "/runs", "/var/lib/weir", "/var/lib/weir/../x", "/var/lib/weirs/x"]:
            elsewhere = {**DIGITS, "checkpoint": {"directory": directory}}
            self.assert_refused(elsewhere, [], f"checkpoint.directory: '{directory}' is on no")
        self.assert_refused({**DIGITS, "checkpoint": {}}, [], "checkpoint.directory: is not set", "s3://BUCKET/PREFIX")
        for other, says in [("/other", "is on no volume"), ("s3://bucket/x", "of two kinds")]:
            config = {**DIGITS, "checkpoint": {"directory": DIRECTORY, "init_from": other}}
            self.assert_refused(config, [], f"init_from: '{other}'", says)
        self.assert_refused({**DIGITS, "cluster": {"workers": 3}}, ["--workers=4"], "cluster.workers: is 3, but --workers=4")
        self.assert_refused({**DIGITS, "cluster": {"min_workers": 5}}, ["--workers=4"], "cluster.min_workers: is 5, more than")
        self.assert_refused('{"name": "x",\n "modle": {}}', [], f"{self.job}:2:2: modle")
        wrong = {**DIGITS, "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 7}]}}
        self.assert_refused(wrong, ["--parameters=9"], "the data needs [10]")

    def test_sizes_that_are_not_known(self):
        self.assert_refused(LARGE, [], "cannot read /data/train/images", "--parameters=N", "--worker_memory_mib=N")
        self.assert_refused(LARGE, ["--worker_memory_mib=9"], "give --parameters=N")
        self.assert_refused(LARGE, ["--parameters=9"], "give --worker_memory_mib=N")
        self.assert_refused(DIGITS, ["--parameters=9"], "--parameters=9, but with the data on this machine the model has 650")

    def test_bad_command_lines(self):
        for flag, says in [("--image=weir", "NAME:TAG"), ("--image=weir:latest", "give a version"),
                           ("--image=host:5000/weir", "NAME:TAG"),
                           ("--gpu_image=a@sha256:12", "NAME:TAG"), ("--namespace=A", "lower-case"), ("--format=helm", "tfjob"),
                           ("--ps=0", "--ps"), ("--parameters=0", "--parameters")]:
            self.assert_refused(DIGITS, [flag], says, code=EXIT_USAGE)

    def test_a_folder_that_is_not_empty_stays(self):
        self.out.mkdir()
        self.assertEqual(self.weir(DIGITS).returncode, 0)
        before = (self.out / "kustomization.yaml").read_text(encoding="utf-8")
        result = self.weir(DIGITS, "--format=tfjob")
        self.assertEqual(result.returncode, EXIT_CONFIG)
        self.assertIn("is not empty", result.stderr)
        self.assertEqual((self.out / "kustomization.yaml").read_text(encoding="utf-8"), before)
        self.assertEqual(self.weir(DIGITS, "--format=tfjob", "--force").returncode, 0)
        self.assertIn("deploy/kubeflow", (self.out / "kustomization.yaml").read_text(encoding="utf-8"))


unittest.main()
