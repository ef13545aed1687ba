"""What the image is, and what its containers do."""
import pathlib
import re
import subprocess

from job import DRAINED, expect, get, injected, seen, wait_until
from object_storage import ObjectStorage
from rendered_job import Image, RenderedJob
from scenarios import TRAINING, expect_undisturbed_weights, kill, restart_elsewhere, scenario

HERE = pathlib.Path(__file__).resolve().parent
DOCKERFILE = HERE.parents[1] / "deploy/docker/Dockerfile"
USER = 65532


def rendered_job(world):
    storage = ObjectStorage(world.folder)
    world.at_end(storage.close)
    return world.add(RenderedJob(world, HERE / "overlay", {"weir-object-storage": storage.environment}))


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
    bases = re.findall(r"^ARG (?:CUDA_)?BASE=(.*)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    expect(len(bases) == 2 and all(re.fullmatch(r"\S+:(?!latest$)\S+", base) for base in bases), f"the bases are {bases}")
    seen(f"user {config['User']}, entry point {config['Entrypoint']}, labels {labels}, bases {bases}")


@scenario
def image_server(world):
    """A server's container has no rights, answers its probes, and drains."""
    job = rendered_job(world)
    job.start("weir-ps-0")
    server = job.pods["weir-ps-0"]
    for path in "/healthz", "/readyz":
        wait_until(lambda path=path: server.ended() or get(server.host.address, path) is not None, f"{path} answers with 200")
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
    kill(job.pods["weir-ps-1"])
    restart_elsewhere(job, "weir-ps-1")
    summary = job.wait_for_end()
    expect(summary["recoveries"] == 1, f"{summary['recoveries']} recoveries")
    expect(summary["ps"] == 2 and summary["workers"] == 3, f"{summary['ps']} servers, {summary['workers']} workers")
    expect(summary["config"]["train"]["epochs"] == TRAINING["train.epochs"], "the overlay trains something else")
    expect(summary["checkpoint"].startswith("s3://"), f"the last checkpoint is {summary['checkpoint']}")
    expect_undisturbed_weights(world, summary)
