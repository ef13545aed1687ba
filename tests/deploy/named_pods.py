"""The pods of a rendering one by one, as a cluster makes them: their names, what others call them, and what their containers have as
environment, the TF_CONFIG of Kubeflow's operator included."""
import dataclasses
import json

from rendered import Pods, at, pods_of

NAMESPACE = "weir"


@dataclasses.dataclass
class Pod:
    """One of `pods`. host: its name in DNS, as others write it; None: nobody asks for it."""
    name: str
    host: str
    pods: Pods
    index: int
    tf_config: str = None

    def environment_of(self, container, secret_values):
        """`secret_values`: Secret -> key -> value."""
        found = {}
        for variable in at(container, "env", default=[]):
            source = at(variable, "valueFrom", default={})
            if not source:
                found[variable["name"]] = variable["value"]
            elif at(source, "fieldRef", "fieldPath") == "metadata.name":
                # A Job's pods have names with a random end.
                found[variable["name"]] = f"{self.name}-x7k2p" if self.pods.job else self.name
            else:
                key = source["secretKeyRef"]
                if not key.get("optional") or key["key"] in secret_values[key["name"]]:
                    found[variable["name"]] = secret_values[key["name"]][key["key"]]
        if at(self.pods.job, "completionMode") == "Indexed":
            found["JOB_COMPLETION_INDEX"] = str(self.index)
        if self.tf_config is not None:
            found["TF_CONFIG"] = self.tf_config
        return found


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


def pods_of_tfjob(job):
    for pods in pods_of([job]):
        replica = pods.title.split()[-1]
        for index in range(pods.count):
            name = f"{replica.lower()}-{index}"
            host = f"{job['metadata']['name']}-{name}.{NAMESPACE}.svc"
            yield Pod(name, host, pods, index, tf_config(job, replica, index))


def named_pods(objects):
    """All pods that the objects make; those of TFJobs first."""
    named = [pod for found in objects if found["kind"] == "TFJob" for pod in pods_of_tfjob(found)]
    for pods in pods_of([found for found in objects if found["kind"] != "TFJob"]):
        for index, name in enumerate(pods.hosts or [f"{pods.title.split()[-1]}-{i}" for i in range(pods.count)]):
            host = f"{name}.{pods.domain}".removesuffix(".") if pods.hosts else None
            named.append(Pod(name, host, pods, index))
    return named
