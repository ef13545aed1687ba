"""A job whose tasks run as pods do: each on a host of its own, with `weir run --cluster=dns:... --task=pod`, finding the others
by name."""
import json
import os
import pathlib
import secrets
import signal
import subprocess
import time
import urllib.request

LIMIT_SECONDS = 180
GRPC_PORT, HTTP_PORT, HEALTH_PORT = 2222, 8080, 8081
BAD_CONFIG, DRAINED, PEER_LOST = 78, 143, 138  # docs/exit_codes.md
KILLED = 128 + signal.SIGKILL

# Of all tasks: variables of OpenBLAS, for example, may choose other kernels, and so other bits.
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def say(what, text):
    print(f"  {what}: {text}", flush=True)


def injected(text):
    say("injected", text)


def seen(text):
    say("seen", text)


class Failed(Exception):
    """Something is not as it should be."""


class Skipped(Exception):
    """This machine cannot show it: why."""


def expect(holds, text):
    if not holds:
        raise Failed(text)


def wait_until(holds, what):
    end = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise Failed(f"waited for {LIMIT_SECONDS} s: {what}")
        time.sleep(0.05)


def get(address, path, port=HTTP_PORT, token=None):
    """The body of a page of a server; None while it does not answer with 200."""
    request = urllib.request.Request(f"http://{address}:{port}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


class Pod:
    """One start of a task: a process on a host, with its own log. The host is the pod's: it goes with it."""

    def __init__(self, name, host, command, environment, log):
        self.name, self.host, self.log_path = name, host, log
        with open(log, "wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=log.parent,
                                             env=ENVIRONMENT | environment)

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def wait_for_log(self, text):
        wait_until(lambda: text in self.log() or self.ended(), f"'{text}' in the log of {self.name}")
        expect(text in self.log(), f"{self.name} has ended without '{text}' in its log")

    def ended(self):
        return self._process.poll() is not None

    def wait(self):
        """The exit code, as a shell reports it."""
        wait_until(self.ended, f"{self.name} ends")
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def drain(self):
        self._process.send_signal(signal.SIGTERM)

    def kill(self):
        self._process.kill()
        self._process.wait()


class Job:
    """The pods of a job, by name. A subclass says how they are made. With `certificates` the job has TLS."""

    def __init__(self, world, server_names, worker_names, certificates=None):
        self._world, self._certificates = world, certificates
        self.folder = world.folder / f"job{len(list(world.folder.glob('job*')))}"
        self.folder.mkdir()
        self.server_names, self.worker_names = server_names, worker_names
        self.pods = {}  # by name, the last start of each
        self.starts = []  # all of them
        self.token = self.folder / "token"
        self.token.write_text(secrets.token_hex(32), encoding="ascii")
        self.token.chmod(0o400)

    def make(self, name, host, log):
        """Starts the task on the host."""
        raise NotImplementedError

    @property
    def summary_path(self):
        """Where ps:0 writes it."""
        return self.folder / "summary.json"

    @property
    def names(self):
        return self.server_names + self.worker_names

    def start(self, *names, host=None, named=True, **how):
        """Each on a new host, or on `host`, to which its name leads from now on, if it is `named`."""
        for name in names:
            at = host or self._world.network.host(name)
            if named:
                self.publish(name, at)
            log = self.folder / f"{name}.{sum(pod.name == name for pod in self.starts)}.log"
            self.pods[name] = self.make(name, at, log, **how)
            self.starts.append(self.pods[name])

    def publish(self, name, host):
        self._world.network.names.set(self.service_name(name), host and host.address)

    def service_name(self, name):
        return f"{name}.{'weir-ps' if name in self.server_names else 'weir-worker'}"

    def remove(self, name):
        """The pod has ended: its name and its host go."""
        self.publish(name, None)
        self.pods.pop(name).host.remove()

    def status(self):
        """What ps:0 says of the job; {} while it does not answer."""
        if self._certificates is None:
            return json.loads(get(self.pods[self.server_names[0]].host.address, "/status") or "{}")
        return json.loads(self.ask(self._certificates.environment("reader")).stdout or "{}")

    def ask(self, environment):
        """`weir status` with these files for TLS."""
        address = f"{self.pods[self.server_names[0]].host.address}:{GRPC_PORT}"
        return subprocess.run([self._world.weir, "status", f"--address={address}", "--json"], check=False, capture_output=True,
                              text=True, env=ENVIRONMENT | {"WEIR_TOKEN_FILE": str(self.token)} | environment)

    def step(self):
        return int(self.status().get("step", 0))

    def live_workers(self):
        return len(self.status().get("membership", {}).get("members", []))

    def wait_for_step(self, step):
        """A job that has ended early fails here at once."""
        def reached():
            for pod in self.pods.values():
                expect(not pod.ended(), f"{pod.name} has ended with {pod.wait() if pod.ended() else ''}, "
                                        f"while the job should get to step {step}")
            return self.step() >= step
        wait_until(reached, f"step {step}")

    def wait_for_standstill(self):
        """Waits until no step was done for a second, which is many times what a step takes. Returns the open step."""
        last, since = self.step(), time.monotonic()

        def stands():
            nonlocal last, since
            now = self.step()
            if now != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > 1
        wait_until(stands, "the job stands still")
        return last

    def wait_for_end(self):
        """All pods of the job end with 0. Returns the summary."""
        for pod in self.pods.values():
            code = pod.wait()
            expect(code == 0, f"{pod.name} has ended with {code}, not 0")
        return json.loads(self.summary_path.read_text(encoding="utf-8"))

    def close(self):
        for pod in self.starts:
            if not pod.ended():
                pod.kill()
            pod.host.remove()


def cluster_of(servers, workers):
    """As --cluster has it."""
    return f"dns:ps=weir-ps:{servers},worker=weir-worker:{workers}"


class LocalJob(Job):
    """Pods weir-ps-N and weir-worker-N that run this build's programs, with the world's config and `settings` (field -> value)
    over it."""

    def __init__(self, world, servers, workers, settings, environment=None, certificates=None):
        super().__init__(world, [f"weir-ps-{i}" for i in range(servers)], [f"weir-worker-{i}" for i in range(workers)],
                         certificates)
        settings = {"checkpoint.directory": self.folder / "checkpoints"} | settings
        self._arguments = [f"--config={world.config}", *(f"--set={field}={value}" for field, value in settings.items()),
                           f"--cluster={cluster_of(servers, workers)}", "--task=pod"]
        self._environment = ENVIRONMENT | (environment or {}) | {"WEIR_TOKEN_FILE": str(self.token)}

    def arguments(self, name):
        ports = [f"--http_port={HTTP_PORT}", f"--health_port={HEALTH_PORT}"]
        server = ["--bind=0.0.0.0", *ports] if name in self.server_names else []
        if server and self._certificates is None:
            server.append("--insecure_plaintext")
        return self._arguments + server + ([f"--summary={self.summary_path}"] if name == "weir-ps-0" else [])

    def make(self, name, host, log, containers=None, memory_bytes=None):
        """With `containers` in one of these, which may have so much memory."""
        command = [self._world.weir, "run", *self.arguments(name)]
        environment = self._environment | {"POD_NAME": name}
        if self._certificates is not None:
            environment |= self._certificates.environment(name.removeprefix("weir-"))
        if containers is None:
            return Pod(name, host, ["nsenter", f"--net={host.namespace}", *command], environment, log)
        spec = containers.spec(command, environment, host.namespace, memory_bytes=memory_bytes)
        return containers.start(spec, name, host, log)
