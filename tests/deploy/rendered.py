"""What deploy/ renders to with `kubectl kustomize`, and the pods of it in one form, whichever object makes them."""
import dataclasses
import pathlib
import re
import subprocess
import sys

import yaml

KUBECTL = pathlib.Path(sys.executable).with_name("kubectl")


class Broken(Exception):
    """Something does not render: what kubectl says."""


def render(folder):
    """The objects of a folder with a kustomization.yaml."""
    result = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Broken(f"kubectl kustomize {folder}: {result.stderr.strip()}")
    return load(result.stdout)


def load(text):
    return [found for found in yaml.safe_load_all(text) if found]


def title(found):
    return f"{found.get('kind')} {found.get('metadata', {}).get('name')}"


def at(found, *path, default=None):
    """The value at a path of keys and indexes, or `default`."""
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            return default
    return default if found is None else found


@dataclasses.dataclass
class Pods:
    """The pods that one object makes. With hosts of None their names do not follow from the object."""
    title: str
    template: dict
    count: int = 1
    hosts: list = None
    domain: str = ""  # of the hosts
    job: dict = None  # the spec of the Job that makes them
    indexed: bool = False  # whether the pods are tasks of a cluster in --cluster

    @property
    def spec(self):
        return at(self.template, "spec", default={})

    @property
    def labels(self):
        return at(self.template, "metadata", "labels", default={})

    @property
    def role(self):
        return self.labels.get("app.kubernetes.io/component", "")

    @property
    def container(self):
        return at(self.spec, "containers", 0, default={})

    @property
    def sidecars(self):
        """Containers beside the task's."""
        return at(self.spec, "initContainers", default=[])

    @property
    def environment(self):
        return {variable["name"]: variable.get("value") for variable in at(self.container, "env", default=[])}

    def arguments(self):
        """With the values of the container's environment in them."""
        return [re.sub(r"\$\((\w+)\)", lambda match: self.environment.get(match[1]) or match[0], argument)
                .replace("$$", "$") for argument in at(self.container, "args", default=[])]

    @property
    def program(self):
        """The words of the program that the task runs instead of `worker`; []: none."""
        words = self.arguments()
        return words[words.index("--") + 1:] if "--" in words else []

    @property
    def flags(self):
        """The arguments that are Weir's."""
        words = self.arguments()
        return words[:words.index("--")] if "--" in words else words

    def flag(self, name):
        """The value of --name=...; "" for --name alone; None without the flag."""
        for argument in self.flags:
            flag, _, value = argument.partition("=")
            if flag == f"--{name}":
                return value
        return None

    @property
    def settings(self):
        """The fields of the job's config that --set=FIELD=VALUE overrides."""
        return [a.removeprefix("--set=") for a in self.flags if a.startswith("--set=")]

    def ports(self):
        """Name -> number."""
        return {port.get("name", ""): port["containerPort"] for port in at(self.container, "ports", default=[])}


def of_job(name, spec, domain=None):
    count = spec.get("completions", 1)
    pods = Pods(f"Job {name}", spec["template"], count, job=spec)
    pods.domain = domain or at(spec, "template", "spec", "subdomain", default="")
    if spec.get("completionMode") == "Indexed":
        pods.hosts = [f"{name}-{i}" for i in range(count)]
    pods.indexed = pods.role != "evaluator"
    return pods


def pods_of(objects):
    """All pods that the objects make."""
    found = []
    for thing in objects:
        name, spec = at(thing, "metadata", "name"), thing.get("spec", {})
        if thing["kind"] == "StatefulSet":
            count = spec.get("replicas", 1)
            found.append(Pods(title(thing), spec["template"], count, [f"{name}-{i}" for i in range(count)],
                              spec.get("serviceName", ""), indexed=True))
        elif thing["kind"] == "Job":
            found.append(of_job(name, spec))
        elif thing["kind"] == "JobSet":
            for member in spec["replicatedJobs"]:
                domain = at(spec, "network", "subdomain") if at(spec, "network", "enableDNSHostnames") else ""
                found.append(of_job(f"{name}-{member['name']}-0", member["template"]["spec"], domain))
                found[-1].title = f"JobSet {name}, {member['name']}"
        elif thing["kind"] == "TFJob":
            found += [Pods(f"TFJob {name}, {replica}", replicas["template"], replicas["replicas"])
                      for replica, replicas in spec["tfReplicaSpecs"].items()]
        elif thing["kind"] == "Pod":
            hosts = [spec["hostname"]] if "hostname" in spec else None
            found.append(Pods(title(thing), {"metadata": thing["metadata"], "spec": spec}, hosts=hosts, domain=spec.get("subdomain", "")))
    return found
