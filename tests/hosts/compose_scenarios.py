"""deploy/compose under a Docker of its own."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import yaml

from image_scenarios import EPOCHS, EXAMPLES, STEPS, undisturbed_python
from job import ENVIRONMENT, Skipped, expect, injected, seen, wait_until
from scenarios import scenario

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy/compose"
SERVICES = ["ps-0", "ps-1", "worker-0", "worker-1"]


class Docker:
    """dockerd on a host of its own, with all of its files in a folder."""

    def __init__(self, world):
        for program, package in ("dockerd", "docker.io"), ("docker", "docker.io"), ("docker-compose", "docker-compose"):
            if shutil.which(program) is None:
                raise Skipped(f"there is no {program}; Debian's {package} has it. `./dev hosts-test` does not install what brings a daemon")
        self.folder, self._host = world.folder / "docker", world.network.host("docker")
        self.folder.mkdir()
        socket = f"unix://{self.folder}/docker.sock"
        self._environment = ENVIRONMENT | {"DOCKER_HOST": socket}
        files = {"data-root": "data", "exec-root": "run", "pidfile": "pid"}
        command = ["nsenter", f"--net={self._host.namespace}", "dockerd", f"--host={socket}", "--exec-opt=native.cgroupdriver=cgroupfs",
                   "--log-level=warn", *(f"--{flag}={self.folder / name}" for flag, name in files.items())]
        with open(self.folder / "log", "wb") as log:
            self._daemon = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        world.at_end(self._close)
        wait_until(lambda: self._daemon.poll() is not None or self.run("docker", "info").returncode == 0, "Docker answers")
        expect(self._daemon.poll() is None, f"dockerd has ended:\n{(self.folder / 'log').read_text(encoding='utf-8')}")

    def run(self, *command):
        return subprocess.run(command, check=False, capture_output=True, text=True, env=self._environment)

    def do(self, *command):
        """Returns what the command prints. It must succeed."""
        done = self.run(*command)
        expect(done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}")
        return done.stdout.strip()

    def _close(self):
        self._daemon.terminate()  # it ends its containers
        self._daemon.wait()
        self._host.remove()


class ComposeJob:
    """deploy/compose with the examples and epochs of this test, on the image that deploy/compose/Dockerfile has made."""

    def __init__(self, world, docker):
        self._docker = docker
        compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
        services = compose["services"]
        for name in SERVICES:
            command = services[name]["command"]
            at = command.index("--") if "--" in command else len(command)
            command[at:at] = [f"--set=train.epochs={EPOCHS}", "--set=checkpoint.every_steps=10"]
            if name.startswith("worker"):
                command.append(f"--most={EXAMPLES}")
        archive, file = docker.folder / "image.tar", docker.folder / "compose.json"
        made = world.python_image.resolve()
        docker.do("buildah", "--storage-driver=vfs", f"--root={made}/storage", f"--runroot={made}/storage-run", "push", "--quiet",
                  "localhost/weir:built", f"docker-archive:{archive}:{services['token']['image']}")
        docker.do("docker", "load", "--quiet", f"--input={archive}")
        archive.unlink()
        # Compose 1 of Debian 12 refuses the field `name`.
        self._compose = ["docker-compose", f"--project-name={compose.pop('name')}", f"--file={file}", f"--project-directory={FOLDER}"]
        file.write_text(json.dumps(compose), encoding="utf-8")

    def up(self):
        self._docker.do(*self._compose, "up", "--detach", "--no-build")

    def _container(self, service):
        return self._docker.do(*self._compose, "ps", "--all", "--quiet", service)

    def state(self, service, what):
        return self._docker.do("docker", "inspect", "--format={{." + what + "}}", self._container(service))

    def logs(self):
        return self._docker.do(*self._compose, "logs", "--no-color", "--tail=20")

    def step(self):
        """Of the job; 0 while ps:0 does not say."""
        asked = self._docker.run("docker", "exec", self._container("ps-0"), "weir", "status", "--address=127.0.0.1:2222", "--json")
        return int(json.loads(asked.stdout).get("step", 0)) if asked.returncode == 0 else 0

    def kill(self, service):
        """The process, as the kernel does: Docker does not start again what `docker kill` has ended."""
        os.kill(int(self.state(service, "State.Pid")), signal.SIGKILL)
        injected(f"{service} is killed")
        wait_until(lambda: int(self.state(service, "RestartCount")) > 0, f"Docker starts {service} again")
        seen(f"Docker has started {service} again")

    def wait_for_end(self):
        for service in SERVICES:
            wait_until(lambda service=service: self.state(service, "State.Status") == "exited", f"{service} ends")
            code = self.state(service, "State.ExitCode")
            expect(code == "0", f"{service} has ended with {code}\n{self.logs()}")

    def checkpoints(self):
        return self._docker.do("docker", "volume", "inspect", "--format={{.Mountpoint}}", "weir_checkpoints") + "/checkpoints"


@scenario
def image_compose(world):
    """Docker runs deploy/compose: it trains to the bits of the pods though a worker and ps:1 are killed, which Docker starts again."""
    wanted = undisturbed_python(world)
    job = ComposeJob(world, Docker(world))
    job.up()
    for share, service in (0.2, "worker-1"), (0.4, "ps-1"):
        wait_until(lambda share=share: job.step() >= share * STEPS, f"{share} of the job")
        job.kill(service)
    job.wait_for_end()
    exported = world.folder / "model.safetensors"
    subprocess.run([world.weir, "export", job.checkpoints(), exported], check=True, capture_output=True, env=ENVIRONMENT)
    found = hashlib.sha256(exported.read_bytes()).hexdigest()
    expect(found == wanted, "the weights are others than those of the pods")
    seen(f"all services ended with 0; the weights' SHA-256 is {found[:16]}...")
