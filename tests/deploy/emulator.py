"""Runs the pods of a rendering as processes of this host, each at a loopback address of its own, in namespaces (network, mount)
where their names lead there. Adds what a cluster would: volumes and sidecars."""
import fcntl
import os
import pathlib
import re
import secrets
import socket
import struct
import subprocess
import time

from named_pods import Pod, named_pods
from rendered import at

ENTERED = "WEIR_TEST_NAMESPACES"
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
SIDECAR_SECONDS = 60
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.M)


def enter_namespaces(arguments):
    """Starts this program again in namespaces of its own, if it is not in them. Returns why it cannot, or None."""
    if os.environ.get(ENTERED):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
        return None
    command = ["unshare", "--mount", "--net"]
    if subprocess.run([*command, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        return "no namespaces may be made here; it needs root"
    os.environ[ENTERED] = "1"
    os.execvp(command[0], [*command, *arguments])


class LocalPod(Pod):
    """A pod with an address of this host."""

    def __init__(self, pod, address, secret_values):
        super().__init__(**vars(pod))
        self.address, self.process, self.sidecars = address, None, []
        self.environment = self.environment_of(pod.pods.container, secret_values)


class Cluster:
    """The pods of a rendering. `weir` is the program of the image; all files lie in `folder`. `config` edits the job's config;
    `claims` has the folders of this host that are claims: name -> folder; other claims are empty. `secret_values` and `config_maps`
    (name -> key -> value) are what the user makes besides the Secret weir-token. `image`: the environment that the image gives."""

    def __init__(self, objects, weir, folder, config=lambda text: text, secret_values=None, config_maps=None, claims=None, image=None):
        self.weir, self.folder, self.claims = weir, pathlib.Path(folder), claims or {}
        self.image = {"PATH": os.environ["PATH"], **(image or {})}
        self.secret_values = {"weir-token": {"token": secrets.token_hex(32)}, **(secret_values or {})}
        self.config_maps = {found["metadata"]["name"]: dict(found["data"]) for found in objects if found["kind"] == "ConfigMap"}
        self.config_maps |= config_maps or {}
        self.pods = [LocalPod(pod, f"127.0.1.{number}", self.secret_values) for number, pod in enumerate(named_pods(objects), 1)]
        self._edit_job(config)
        for pod in self.pods:
            for volume in pod.pods.spec["volumes"]:
                self._make_volume(self.volume(pod, volume["name"]), volume)
        self._name()

    def _edit_job(self, edit):
        """The job's config names the folders of this host for those of claims in pods."""
        folders = {}
        for pod in self.pods:
            claimed = {volume["name"] for volume in pod.pods.spec["volumes"] if "persistentVolumeClaim" in volume}
            folders |= {mount["mountPath"]: self.volume(pod, mount["name"]) for mount in pod.pods.container["volumeMounts"]
                        if mount["name"] in claimed}
        for name, text in self.config_maps["weir-job"].items():
            for inside, outside in folders.items():
                text = text.replace(f'"{inside}/', f'"{outside}/')
            self.config_maps["weir-job"][name] = edit(text)

    def volume(self, pod, name):
        """The folder of a volume of the pod: its own one, or what all pods share."""
        volume = next(found for found in pod.pods.spec["volumes"] if found["name"] == name)
        if "emptyDir" in volume:
            return self.folder / pod.name / name
        claim = at(volume, "persistentVolumeClaim", "claimName")
        shared = claim or at(volume, "secret", "secretName") or volume["configMap"]["name"]
        return pathlib.Path(self.claims.get(claim) or self.folder / "volumes" / shared)

    def _make_volume(self, folder, volume):
        if folder.exists():
            return
        folder.mkdir(parents=True)
        files, mode = at(self.config_maps, at(volume, "configMap", "name"), default={}), 0o644
        if "secret" in volume:
            files, mode = self.secret_values[volume["secret"]["secretName"]], volume["secret"]["defaultMode"]
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(mode)

    def _name(self):
        hosts = self.folder / "hosts"
        lines = [f"{pod.address} {pod.host}" for pod in self.pods if pod.host]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n", encoding="utf-8")
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def path(self, pod, inside, container=None):
        """Where a path of a container of the pod (None: of the task) is on this host."""
        for mount in (container or pod.pods.container)["volumeMounts"]:
            if inside == mount["mountPath"] or inside.startswith(f"{mount['mountPath']}/"):
                return str(self.volume(pod, mount["name"])) + inside.removeprefix(mount["mountPath"])
        return inside

    def _environment(self, pod, environment, container=None):
        return {**self.image, **{name: self.path(pod, value, container) for name, value in environment.items()}}

    def _start_sidecar(self, pod, container):
        """Returns when its probe says that it has started."""
        command = [self.path(pod, word, container) for word in container["command"]]
        environment = self._environment(pod, pod.environment_of(container, self.secret_values), container)
        probe = [self.path(pod, word, container) for word in container["startupProbe"]["exec"]["command"]]
        with open(self.folder / f"{pod.name}.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        pod.sidecars.append(process)
        end = time.monotonic() + SIDECAR_SECONDS
        while subprocess.run(probe, check=False).returncode != 0:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{container['name']} of {pod.name} has not started: {process.returncode}\n{self.log(pod)}")
            time.sleep(0.02)

    def start(self, pod):
        self._end_sidecars(pod)
        for container in pod.pods.sidecars:
            self._start_sidecar(pod, container)
        arguments = []
        for argument in pod.pods.arguments():
            flag, equals, value = argument.rpartition("=")
            arguments.append(flag + equals + self.path(pod, value))
        # Pods listen on all interfaces of their own network; here they share one.
        arguments = [f"--bind={pod.address}" if argument.startswith("--bind=") else argument for argument in arguments]
        with open(self.folder / f"{pod.name}.log", "ab") as log:
            pod.process = subprocess.Popen([self.weir, "run", *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                           env=self._environment(pod, pod.environment), cwd=self.folder)

    def execute(self, pod, *arguments):
        """What `weir ARGUMENTS` prints in the task's container."""
        return subprocess.run([self.weir, *arguments], capture_output=True, text=True, check=False,
                              env=self._environment(pod, pod.environment)).stdout

    def named(self, name):
        return next(pod for pod in self.pods if pod.name == name)

    def watch_memory(self, limit):
        """Waits until all pods that were started have ended. Returns the most memory of each, by name, in KiB."""
        peaks = {pod.name: 0 for pod in self.pods if pod.process is not None}
        end = time.monotonic() + limit
        while any(pod.process.poll() is None for pod in self.pods if pod.process is not None):
            for pod in (pod for pod in self.pods if pod.process is not None):
                try:
                    status = pathlib.Path(f"/proc/{pod.process.pid}/status").read_text(encoding="utf-8")
                except FileNotFoundError:
                    continue
                peak = PEAK.search(status)  # not of a process that has ended
                peaks[pod.name] = max(peaks[pod.name], int(peak[1]) if peak else 0)
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        return peaks

    def log(self, pod):
        return (self.folder / f"{pod.name}.log").read_text(encoding="utf-8")

    def close(self):
        subprocess.run(["umount", "/etc/hosts"], check=True)
        for pod in self.pods:
            self._end_sidecars(pod)
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()

    def _end_sidecars(self, pod):
        for process in pod.sidecars:
            process.kill()
            process.wait()
        pod.sidecars.clear()
