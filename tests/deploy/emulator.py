"""Runs the pods of a rendering as processes of this host, each at a loopback address of its own, in namespaces (network, mount)
where their names lead there. Adds what a cluster would: claims, Secrets, and the TF_CONFIG of Kubeflow's operator."""
import fcntl
import json
import os
import pathlib
import re
import secrets
import socket
import struct
import subprocess
import time

from rendered import at, pods_of

NAMESPACE = "weir"
ENTERED = "WEIR_TEST_NAMESPACES"
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
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


def addresses(job, replica, of):
    return [f"{job}-{replica.lower()}-{i}.{NAMESPACE}.svc:2222" for i in range(of["replicas"])]


def tf_config(job, replica, index):
    """What the training operator 1.9 writes for a task of a TFJob (pkg/controller.v1/tensorflow/tensorflow.go there), to the byte;
    None for a job of one task. Go writes the keys of a map in their order, and those of a struct as they are declared."""
    spec, name = job["spec"], job["metadata"]["name"]
    replicas = spec["tfReplicaSpecs"]
    if sum(of["replicas"] for of in replicas.values()) == 1:
        return None
    cluster = {kind.lower(): addresses(name, kind, replicas[kind]) for kind in sorted(replicas, key=str.lower)}
    task = {"type": replica.lower(), "index": index}
    if not spec.get("enableDynamicWorker"):
        return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"}, separators=(",", ":"))
    part = {"worker": {}, "ps": []}
    if replica == "PS":
        part["ps"] = [cluster["ps"][index]]
    elif replica == "Worker":
        part = {"worker": {str(index): cluster["worker"][index]}, "ps": cluster.get("ps")}
    return json.dumps({"cluster": part, "task": task}, separators=(",", ":"))


class Pod:
    """One pod: its name, its address, and what its container gets. `secret_values`: Secret -> key -> value."""

    def __init__(self, pods, index, address, secret_values, more=()):
        self.name = pods.hosts[index] if pods.hosts else f"{pods.title.split()[-1].lower()}-{index}"
        self.host = f"{self.name}.{pods.domain}" if pods.hosts else None
        self.pods, self.address, self.process = pods, address, None
        named = {"POD_NAME": f"{self.name}-x7k2p" if pods.job else self.name}
        self.environment = dict(more)
        for variable in at(pods.container, "env", default=[]):
            source = at(variable, "valueFrom", "secretKeyRef")
            if source is None:
                self.environment[variable["name"]] = variable.get("value") or named[variable["name"]]
            elif not source.get("optional") or source["key"] in secret_values[source["name"]]:
                self.environment[variable["name"]] = secret_values[source["name"]][source["key"]]
        if pods.job:
            self.environment["JOB_COMPLETION_INDEX"] = str(index)


def pods_of_tfjob(job, address, secret_values):
    name = job["metadata"]["name"]
    for pods in pods_of([job]):
        replica = pods.title.rsplit(" ", 1)[1]
        for index in range(pods.count):
            config = tf_config(job, replica, index)
            pod = Pod(pods, index, address(), secret_values, {} if config is None else {"TF_CONFIG": config})
            pod.host = f"{name}-{replica.lower()}-{index}.{NAMESPACE}.svc"
            yield pod


class Cluster:
    """The pods of a rendering. `weir` is the program of the image; all files lie in `folder`. `config` edits the job's config;
    `claims` has the folders of this host that are claims: name -> folder; other claims are empty."""

    def __init__(self, objects, weir, folder, config=lambda text: text, secret_values=None, claims=None):
        self.objects, self.weir, self.folder, self.claims = objects, weir, pathlib.Path(folder), claims or {}
        used = iter(range(1, 255))

        def address():
            return f"127.0.1.{next(used)}"

        tfjobs = [found for found in objects if found["kind"] == "TFJob"]
        self.pods = [pod for job in tfjobs for pod in pods_of_tfjob(job, address, secret_values)]
        self.pods += [Pod(pods, index, address(), secret_values) for pods in pods_of(objects)
                      if not pods.title.startswith("TFJob") for index in range(pods.count)]
        self._mount(config)
        self._name()

    def _mount(self, edit):
        """Makes the volumes: the folder of the path in the container below `folder`."""
        claimed = set()
        for pod in self.pods:
            volumes = {volume["name"]: volume for volume in pod.pods.spec["volumes"]}
            for mount in pod.pods.container["volumeMounts"]:
                claim = at(volumes[mount["name"]], "persistentVolumeClaim", "claimName")
                claimed |= {mount["mountPath"]} if claim else set()
                outside = self.path(mount["mountPath"])
                if claim in self.claims and not outside.exists():
                    outside.parent.mkdir(parents=True, exist_ok=True)
                    outside.symlink_to(self.claims[claim])
                outside.mkdir(parents=True, exist_ok=True)
        self.path("/etc/weir-token/token").write_text(secrets.token_hex(32), encoding="utf-8")
        self.path("/etc/weir-token/token").chmod(0o440)
        for config in (found for found in self.objects if at(found, "metadata", "name") == "weir-job"):
            for file, text in config["data"].items():
                for mount_path in claimed:
                    text = text.replace(f'"{mount_path}/', f'"{self.path(mount_path)}/')
                self.path(f"/etc/weir/{file}").write_text(edit(text), encoding="utf-8")

    def _name(self):
        hosts = self.folder / "hosts"
        lines = [f"{pod.address} {pod.host}" for pod in self.pods if pod.host]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n", encoding="utf-8")
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def path(self, inside):
        """Where a path of a container is on this host."""
        return self.folder / inside.lstrip("/")

    def start(self, pod):
        def outside(value):
            mounts = [mount["mountPath"] for mount in pod.pods.container["volumeMounts"]]
            return str(self.path(value)) if any(value.startswith(f"{mount}/") for mount in mounts) else value

        arguments = []
        for argument in pod.pods.arguments():
            flag, equals, value = argument.partition("=")
            arguments.append(flag + equals + outside(value))
        # Pods listen on all interfaces of their own network; here they share one.
        arguments = [f"--bind={pod.address}" if argument.startswith("--bind=") else argument for argument in arguments]
        environment = {name: outside(value) for name, value in pod.environment.items()}
        with open(self.folder / f"{pod.name}.log", "ab") as log:
            pod.process = subprocess.Popen([self.weir, "run", *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                           env={"PATH": os.environ["PATH"], **environment}, cwd=self.folder)

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
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
