"""Runs the pods of a rendering as processes of this host, each at a loopback address of its own, in namespaces (network, mount)
where their names lead there. Adds what a cluster would: claims, Secrets, and the TF_CONFIG of Kubeflow's operator."""
import fcntl
import json
import os
import pathlib
import secrets
import socket
import struct
import subprocess

from rendered import at, pods_of

NAMESPACE = "weir"
ENTERED = "WEIR_TEST_NAMESPACES"
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


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


def tf_config(replicas, job, role, index):
    """What the operator writes for a task of this job, without dynamic workers; None for a job of one task."""
    cluster = {name.lower(): [f"{job}-{name.lower()}-{i}.{NAMESPACE}.svc:2222" for i in range(of["replicas"])]
               for name, of in replicas.items() if name != "Evaluator"}
    if sum(of["replicas"] for of in replicas.values()) == 1:
        return None
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"})


class Pod:
    """One pod: its name, its address, and what its container gets."""

    def __init__(self, pods, index, address, environment):
        self.name = pods.hosts[index] if pods.hosts else f"{pods.title.split()[-1].lower()}-{index}"
        self.host = f"{self.name}.{pods.domain}" if pods.hosts else None
        self.pods, self.address, self.process = pods, address, None
        named = {"POD_NAME": f"{self.name}-x7k2p" if pods.job else self.name}
        self.environment = {name: value or named[name] for name, value in pods.environment.items()} | environment
        if pods.job:
            self.environment["JOB_COMPLETION_INDEX"] = str(index)


def pods_of_tfjob(job, address):
    replicas, name = job["spec"]["tfReplicaSpecs"], job["metadata"]["name"]
    for pods in pods_of([job]):
        role = pods.title.rsplit(" ", 1)[1]
        for index in range(pods.count):
            config = tf_config(replicas, name, role.lower(), index)
            pod = Pod(pods, index, address(), {} if config is None else {"TF_CONFIG": config})
            pod.host = f"{name}-{role.lower()}-{index}.{NAMESPACE}.svc"
            yield pod


class Cluster:
    """The pods of a rendering. `weir` is the program of the image; all files lie in `folder`. `config` edits the job's config."""

    def __init__(self, objects, weir, folder, config):
        self.objects, self.weir, self.folder = objects, weir, pathlib.Path(folder)
        used = iter(range(1, 255))

        def address():
            return f"127.0.1.{next(used)}"

        tfjobs = [found for found in objects if found["kind"] == "TFJob"]
        self.pods = [pod for job in tfjobs for pod in pods_of_tfjob(job, address)]
        self.pods += [Pod(pods, index, address(), {}) for pods in pods_of(objects) if not pods.title.startswith("TFJob")
                      for index in range(pods.count)]
        self._mount(config)
        self._name()

    def _mount(self, edit):
        """Makes the volumes: the folder of the path in the container below `folder`."""
        for pod in self.pods:
            for mount in pod.pods.container["volumeMounts"]:
                self.path(mount["mountPath"]).mkdir(parents=True, exist_ok=True)
        self.path("/etc/weir-token/token").write_text(secrets.token_hex(32), encoding="utf-8")
        self.path("/etc/weir-token/token").chmod(0o440)
        for config in (found for found in self.objects if at(found, "metadata", "name") == "weir-job"):
            for file, text in config["data"].items():
                text = text.replace("/var/lib/weir", str(self.path("/var/lib/weir")))
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

    def log(self, pod):
        return (self.folder / f"{pod.name}.log").read_text(encoding="utf-8")

    def close(self):
        subprocess.run(["umount", "/etc/hosts"], check=True)
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
