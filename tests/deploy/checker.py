"""All rules over all of deploy/. Each fault is a line that names the rendering, the object and what to change."""
import collections
import itertools
import pathlib
import re

import cluster_rules
import object_rules
import pod_rules
import tls_rules
from facts import Facts, job_config
from rendered import Broken, at, load, pods_of, render, title
from schemas import faults_of_schema

BASE = "deploy/kustomize/base"
OVERLAYS = "deploy/kustomize/overlays"
COMPONENTS = "deploy/kustomize/components"
# Folders and files beside Kustomize's base, overlays and components.
OTHERS = ["deploy/kubeflow", "deploy/jobset",
          "deploy/kustomize/checkpoints/claim.yaml", "deploy/kustomize/checkpoints/export.yaml"]
# Components of one overlay, in more than one order.
TOGETHER = ["monitoring+mtls", "elastic+gpu+object-storage+monitoring+mtls", "mtls+monitoring+object-storage+gpu+elastic"]
# An overlay for components: they have no size of their own in deploy/.
PROBE = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../base, size.yaml]
components: [../../components/size{}]
"""
# For the component object-storage, after PROBE.
PROBE_OF_STORAGE = """configMapGenerator:
  - {name: weir-job, behavior: replace, files: [job.json], options: {immutable: true}}
"""
PROBE_SIZE = """apiVersion: v1
kind: ConfigMap
metadata: {name: weir-size, annotations: {config.kubernetes.io/local-config: "true"}}
data: {servers: "3", workers: "5", max_workers: "9"}
"""
# It has the Certificates of a job of the base's size, for the pods that mtls makes.
CERT_MANAGER = "cert-manager"
PROBE_OF_CERT_MANAGER = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../base]
components: [../../components/mtls, ../../components/cert-manager]
"""


def config_of(objects, pods):
    """The job's config that --config names in the pods, or None."""
    volume, key = pod_rules.mount_of(pods, pods.flag("config") or "")
    for found in objects:
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] == at(volume, "configMap", "name"):
            return job_config(found["data"][key]) if key in found["data"] else None
    return None


def faults_of_object(thing, pods, facts):
    yield from object_rules.faults_of_selectors(thing, pods)
    rules = {
        "Service": lambda: object_rules.faults_of_service(thing, pods),
        "NetworkPolicy": lambda: object_rules.faults_of_network(thing, pods),
        "PodMonitor": lambda: object_rules.faults_of_monitor(thing, pods),
        "PrometheusRule": lambda: object_rules.faults_of_alerts(thing, facts),
        "ConfigMap": lambda: object_rules.faults_of_dashboard(thing, facts),
        "StatefulSet": lambda: cluster_rules.faults_of_stateful_set(thing),
        "TFJob": lambda: cluster_rules.faults_of_tfjob(thing),
        "JobSet": lambda: cluster_rules.faults_of_jobset(thing),
        "Certificate": lambda: tls_rules.faults_of_certificate(thing, facts),
    }
    if thing["kind"] in rules:
        yield from rules[thing["kind"]]()


def faults_of_objects(objects, facts):
    for thing in objects:
        yield from faults_of_schema(thing)
    twice = [name for name, count in collections.Counter(map(title, objects)).items() if count > 1]
    yield from (f"{name}: there are two" for name in twice)
    pods = pods_of(objects)
    for thing in objects:
        yield from faults_of_object(thing, pods, facts)
    for found in pods:
        config = config_of(objects, found)
        yield from pod_rules.faults_of_image(found)
        yield from pod_rules.faults_of_rights(found)
        yield from pod_rules.faults_of_meshes(found)
        yield from pod_rules.faults_of_exits(found, facts)
        yield from pod_rules.faults_of_references(found, objects, facts)
        yield from pod_rules.faults_of_files(found, config, facts)
        yield from tls_rules.faults_of_tls(found, objects)
        if found.role == "ps" and pod_rules.in_object_storage(config):
            yield from object_rules.faults_of_storage_network(found, objects)
        yield from object_rules.faults_of_spread(found)
        yield from cluster_rules.faults_of_grace(found, config)
        if found.role in pod_rules.TASKS:
            yield from pod_rules.faults_of_ports(found)
            yield from pod_rules.faults_of_probes(found)
            yield from pod_rules.faults_of_flags(found, facts)
            yield from pod_rules.faults_of_gpu(found)
    yield from cluster_rules.faults_of_cluster(objects)
    yield from tls_rules.faults_of_job(objects)


def faults_of_dockerfile(text):
    lines = re.sub(r"\\\n", " ", text).splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    arguments = dict(value.split("=", 1) for key, value in steps if key == "ARG" and "=" in value)
    stages = [value.partition(" AS ") for key, value in steps if key == "FROM"]
    names = {name for _, _, name in stages}
    for base, _, _ in stages:
        image = re.sub(r"\$\{(\w+)\}", lambda match: arguments.get(match[1], ""), base)
        if image not in names and not re.search(r":(?!latest$)[\w.-]+$", image):
            yield f"Dockerfile: FROM {base}: '{image}' needs a version as its tag"
    for image in ("cpu", "gpu", "python"):
        yield from faults_of_image(image, steps)


def faults_of_image(target, steps):
    """What the stage of this name, the target of a build, says."""
    begin = next((index for index, (key, value) in enumerate(steps) if key == "FROM" and value.endswith(f" AS {target}")), None)
    if begin is None:
        yield f"Dockerfile: there is no stage {target}"
        return
    steps = list(itertools.takewhile(lambda step: step[0] != "FROM", steps[begin + 1:]))
    user = f"{pod_rules.USER}:{pod_rules.USER}"
    if [value for key, value in steps if key == "USER"] != [user]:
        yield f"Dockerfile: {target} needs USER {user}"
    if [value for key, value in steps if key in ("ENTRYPOINT", "CMD")] != ['["weir", "run"]']:
        yield f'Dockerfile: {target} needs ENTRYPOINT ["weir", "run"], which starts no shell'
    labels = " ".join(value for key, value in steps if key == "LABEL")
    for label in ("title", "description", "licenses", "version"):
        if f"org.opencontainers.image.{label}=" not in labels:
            yield f"Dockerfile: {target} needs the label org.opencontainers.image.{label}"


class Tree:
    """A copy of the tree, in which overlays may be added to render components."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.facts = Facts(root)

    def renderings(self):
        """What faults() takes: every folder and file that a user applies, each component, and components together."""
        overlays = sorted(f"{OVERLAYS}/{folder.name}" for folder in (self.root / OVERLAYS).iterdir())
        components = sorted(f"{COMPONENTS}/{folder.name}" for folder in (self.root / COMPONENTS).iterdir())
        return [BASE, *overlays, *components, *(f"{COMPONENTS}/{names}" for names in TOGETHER), *OTHERS]

    def objects(self, rendering):
        path = self.root / rendering
        if path.is_file():
            return load(path.read_text(encoding="utf-8"))
        if not rendering.startswith(COMPONENTS):
            return render(path)
        probe = self.root / "deploy/kustomize/probes" / path.name
        probe.mkdir(parents=True, exist_ok=True)
        names = path.name.split("+")
        text = PROBE.format("".join(f", ../../components/{name}" for name in names if name != "size"))
        if path.name == CERT_MANAGER:
            text = PROBE_OF_CERT_MANAGER
        if "object-storage" in names:
            text += PROBE_OF_STORAGE
            job = (self.root / "deploy/kustomize/common/job.json").read_text(encoding="utf-8")
            (probe / "job.json").write_text(job.replace("/var/lib/weir/checkpoints", "s3://weir/digits"), encoding="utf-8")
        (probe / "kustomization.yaml").write_text(text, encoding="utf-8")
        (probe / "size.yaml").write_text(PROBE_SIZE, encoding="utf-8")
        return render(probe)

    def faults(self, rendering):
        try:
            objects = self.objects(rendering)
        except Broken as broken:
            return [f"{rendering}: {broken}"]
        return [f"{rendering}: {fault}" for fault in faults_of_objects(objects, self.facts)]

    def faults_beside(self):
        """Of what does not render: the image's file, and paths in the page."""
        yield from faults_of_dockerfile((self.root / "deploy/docker/Dockerfile").read_text(encoding="utf-8"))
        yield from (f"docs/deploy.md: there is no {path}" for path in self.facts.paths_in_page if not (self.root / path).exists())
