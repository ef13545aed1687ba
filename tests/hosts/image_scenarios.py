"""What the image is, and what its containers do."""
import functools
import hashlib
import pathlib
import re
import secrets
import subprocess

from certificates import Certificates
from job import BAD_CONFIG, DRAINED, ENVIRONMENT, HEALTH_PORT, cluster_of, expect, get, injected, seen, wait_until
from object_storage import BUCKET, start_storage
from rendered_job import Image, RenderedJob
from scenarios import (SERVERS, TRAINING, WORKERS, expect_undisturbed_weights, kill, replace_certificates, restart_elsewhere,
                       scenario)
from volume import Reads, files_of

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples/cnn.json"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
DOCKERFILE = HERE.parents[1] / "deploy/docker/Dockerfile"
USER = 65532
# Of the job of examples/cnn.py.
EXAMPLES, EPOCHS = 2000, 8
STEPS = EXAMPLES * EPOCHS // 100


def rendered_job(world, overlay="overlay", made=None, **how):
    """`made`: the Secrets that its user makes besides those of the job's token and of object storage."""
    storage = start_storage(world.folder)
    world.at_end(storage.close)
    made = {"weir-object-storage": storage.variables} | (made or {})
    return world.add(RenderedJob(world, HERE / overlay, made, **how))


@scenario
def image_config(world):
    """The image says who runs what, and what it is."""
    config = Image(world.image).config
    expect(config["User"] == f"{USER}:{USER}", f"the user is {config['User']!r}")
    expect(config["Entrypoint"] == ["weir", "run"] and not config.get("Cmd"),
           f"the entry point is {config['Entrypoint']}, {config.get('Cmd')}")
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    said = subprocess.run([world.weir, "--version"], check=True, capture_output=True, text=True).stdout
    expect(labels["version"] in said.split(), f"the label says version {labels['version']}, `weir --version` {said}")
    expect(labels["title"] == "weir" and labels["licenses"] == "Apache-2.0" and labels["description"], f"the labels are {labels}")
    bases = re.findall(r"^ARG (?:CUDA_|PYTHON_)?BASE=(.*)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    expect(len(bases) == 3 and all(re.fullmatch(r"\S+:(?!latest$)\S+", base) for base in bases), f"the bases are {bases}")
    seen(f"user {config['User']}, entry point {config['Entrypoint']}, labels {labels}, bases {bases}")


@scenario
def image_server(world):
    """A server's container has no rights, answers its probes, and drains."""
    job = rendered_job(world)
    job.start("weir-ps-0")
    server = job.pods["weir-ps-0"]
    for path in "/healthz", "/readyz":
        wait_until(lambda path=path: server.ended() or get(server.host.address, path, HEALTH_PORT) is not None,
                   f"{path} answers with 200 where probes ask")
        expect(not server.ended(), f"the server has ended:\n{server.log()}")
    seen("/healthz and /readyz answer with 200")
    status = dict(line.split(":\t", 1) for line in server.read("/proc/1/status").splitlines())
    expect(status["Uid"].split() == status["Gid"].split() == [str(USER)] * 4, f"it runs as {status['Uid']}, {status['Gid']}")
    for capabilities in "CapEff", "CapPrm", "CapBnd":
        expect(int(status[capabilities], 16) == 0, f"{capabilities} is {status[capabilities]}")
    expect(status["NoNewPrivs"] == "1", "it may get new privileges")
    name = server.read("/proc/1/cmdline").split("\0")[0]
    expect(name.endswith("ps_server"), f"process 1 is {name}")
    written = server.execute("touch", "/opt/weir/file")
    expect(written.wait() != 0, "it can write to its root")
    seen(f"process 1 is {name}, as user {USER}, without capabilities; its root cannot be written")
    server.drain()
    injected("SIGTERM")
    code = server.wait()
    expect(code == DRAINED, f"it has ended with {code}, not {DRAINED}")
    seen(f"it ended with {code}")


@scenario
def image_trains(world):
    """The rendered job trains in containers, with checkpoints in object storage; ps:1 moves to a new address."""
    job = rendered_job(world)
    job.start(*job.names)
    job.wait_for_step(20)
    expect_trained_though_a_server_moves(world, job)


def expect_trained_though_a_server_moves(world, job):
    kill(job.pods["weir-ps-1"])
    restart_elsewhere(job, "weir-ps-1")
    summary = job.wait_for_end()
    expect(summary["recoveries"] == 1, f"{summary['recoveries']} recoveries")
    expect(summary["ps"] == 2 and summary["workers"] == 3, f"{summary['ps']} servers, {summary['workers']} workers")
    expect(summary["config"]["train"]["epochs"] == TRAINING["train.epochs"], "the overlay trains something else")
    expect(summary["checkpoint"].startswith("s3://"), f"the last checkpoint is {summary['checkpoint']}")
    expect_undisturbed_weights(world, summary)
    return summary


def python_job(world, image, *flags):
    """(job, environment of its storage): examples/cnn.py in the pods of `weir manifest`, on an image."""
    storage = start_storage(world.folder)
    world.at_end(storage.close)
    sets = [f"--set={setting}" for setting in (f"checkpoint.directory=s3://{BUCKET}/cnn", "checkpoint.every_steps=10", f"train.epochs={EPOCHS}")]
    out = world.folder / f"manifest{len(list(world.folder.glob('manifest*')))}"
    subprocess.run([world.weir, "manifest", EXAMPLE, "--ps=2", "--workers=2", "--image=registry.example.com/cnn:1", "--parameters=21000",
                    "--worker_memory_mib=1000", "--data=/data", f"--out={out}", *sets, *flags, "--", "python", "cnn.py", "--data=/data",
                    f"--most={EXAMPLES}"], check=True, capture_output=True)
    job = RenderedJob(world, out, {"weir-object-storage": storage.variables}, image=image, claims={"weir-data": FASHION})
    return world.add(job), ENVIRONMENT | storage.variables


def weights_of_python_job(world, form, disturb):
    """What the pods of a format of `weir manifest` train: its hash. To `disturb` a job kills a worker and a server."""
    job, environment = python_job(world, world.python_image, f"--format={form}")
    seen(f"{form}: the pods are {', '.join(job.names)}")
    job.start(*job.names)
    if disturb:
        for share, lost in (0.2, job.worker_names[1]), (0.4, job.server_names[1]):
            job.wait_for_step(int(share * STEPS))
            kill(job.pods[lost])
            restart_elsewhere(job, lost)
    job.wait_for_end()
    log = job.pods[job.worker_names[0]].log()
    expect("test accuracy: 0.7" in log or "test accuracy: 0.8" in log, f"the worker's log is\n{log}")
    exported = world.folder / "model.safetensors"
    subprocess.run([world.weir, "export", f"s3://{BUCKET}/cnn", exported], check=True, capture_output=True, env=environment)
    found = hashlib.sha256(exported.read_bytes()).hexdigest()
    seen(f"{form}: all pods ended with 0; the weights' SHA-256 is {found[:16]}...")
    world.close()
    return found


@functools.cache
def undisturbed_python(world):
    return weights_of_python_job(world, "kustomize", disturb=False)


@scenario
def image_python(world):
    """A PyTorch program trains in an image of three lines, in the pods of each format, to the same bits though a worker and ps:1 die."""
    for form in "kustomize", "jobset", "tfjob":
        expect(weights_of_python_job(world, form, disturb=True) == undisturbed_python(world), f"{form}: the weights are others than without the faults")


@scenario
def image_without_python(world):
    """A worker whose image has no Python ends at once, and says so."""
    job, _ = python_job(world, world.image)
    job.start("weir-worker-0")
    worker = job.pods["weir-worker-0"]
    code = worker.wait()
    expect(code == BAD_CONFIG and "cannot run python: no folder of PATH has such a program" in worker.log(),
           f"it has ended with {code}:\n{worker.log()}")
    seen(f"it ended with {code}: {worker.log().strip()}")


def objects_of_tls(made, trusted):
    """The Secrets and the ConfigMap that the component mtls asks for, with the files of the folder `made`, and the CAs of the
    folders `trusted`."""
    def files(names):
        return {path.name: path.read_text(encoding="ascii") for path in made.glob(names)}
    pairs = {f"weir-tls-{role}": files(f"{role}*") for role in ("ps", "worker", "reader")}
    return pairs, {"weir-ca": {"ca.pem": "".join((folder / "ca.pem").read_text(encoding="ascii") for folder in trusted)}}


@scenario
def image_tls(world):
    """The same with TLS and monitoring; before ps:1 moves, all certificates and their CA are replaced."""
    certificates = Certificates(world, cluster_of(SERVERS, WORKERS))
    old, new = certificates.made, certificates.make()
    objects, config_maps = objects_of_tls(old, [old])
    http_token = secrets.token_hex(32)
    objects |= {"weir-http-token": {"token": http_token}}
    job = rendered_job(world, "overlay_tls", objects, config_maps=config_maps, certificates=certificates)
    job.start(*job.names)
    job.wait_for_step(10)
    worker = job.pods["weir-worker-1"]
    expect(worker.execute("test", "-e", "/etc/weir-certificates/worker-0.key").wait() != 0, "a worker sees the keys of all workers")
    expect(worker.read("/run/weir-tls/current/tls.key") == (old / "worker-1.key").read_text(encoding="ascii"), "it has another's key")
    seen("weir-worker-1 sees its own key, and no other's")
    server = job.pods["weir-ps-0"].host.address
    for path in "/healthz", "/readyz":
        expect(get(server, path, HEALTH_PORT) is not None, f"a probe of {path} without certificate and token fails")
    expect(get(server, "/metrics") is None and get(server, "/metrics", token=job.token.read_text(encoding="ascii")) is None,
           "the metrics are not for who has the token of weir-http-token alone")
    expect("weir_job_step" in get(server, "/metrics", token=http_token), "who has the token sees no metrics")
    seen("probes need neither certificate nor token; the metrics need the token of weir-http-token")
    asked = job.pods["weir-ps-0"].execute("weir", "status", "--address=127.0.0.1:2222")
    expect(asked.wait() == 0, f"`weir status` in the server's container has ended with {asked.returncode}")
    given, reads = [old], []

    def give(made, trusted):
        certificates.give(made, trusted)
        job.replace(*objects_of_tls(made, trusted))
        given[:], reads[:] = [made], []

    def handed_over(name):
        own = job.volume(name, "certificate") / "current/tls.key"
        return own.read_text(encoding="ascii") == (given[0] / f"{name.removeprefix('weir-')}.key").read_text(encoding="ascii")

    def taken_up():
        """The sidecars have handed the new files over, and since then each task has read its CAs. It reads all its files together."""
        if not reads and all(map(handed_over, job.server_names + job.worker_names)):
            reads.extend(Reads(files_of(job.volume(name, "ca"))) for name in job.names)
        return bool(reads) and all([read.all() for read in reads])
    replace_certificates(job, give, (old, new), taken_up)
    summary = expect_trained_though_a_server_moves(world, job)
    expect(summary["tls"] is True, "the summary does not say that the job had TLS")
