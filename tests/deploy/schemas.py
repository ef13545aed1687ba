"""Objects against their schemas: Kubernetes' own, strictly, in the oldest and the newest version that deploy/ supports; and those
of other projects' kinds in schemas/, with the pods and jobs in them again against Kubernetes' own."""
import functools
import json
import pathlib

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils

from rendered import at, title

VERSIONS = ["1.31", "1.37"]
OTHERS = {
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitor",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "prometheusrule",
    ("kubeflow.org/v1", "TFJob"): "tfjob",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "jobset",
    ("cert-manager.io/v1", "Certificate"): "certificate",
}
# It would read a megabyte of definitions again for each object.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)
FOLDER = pathlib.Path(__file__).resolve().parent / "schemas"


def faults_of_kubernetes(thing, where):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{where}: Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{where}: {error.message}"


def inner(thing):
    """The pods and jobs in an object of another project's kind, as objects of their own."""
    for name, replicas in at(thing, "spec", "tfReplicaSpecs", default={}).items():
        template = at(replicas, "template")
        yield name, {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "inner"}, "template": template}
    for member in at(thing, "spec", "replicatedJobs", default=[]):
        spec = at(member, "template", "spec")
        yield member.get("name"), {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "inner"}, "spec": spec}


def faults_of_schema(thing):
    where = title(thing)
    schema = OTHERS.get((thing.get("apiVersion"), thing.get("kind")))
    if schema is None:
        yield from faults_of_kubernetes(thing, where)
        return
    rules = json.loads((FOLDER / f"{schema}.json").read_text(encoding="utf-8"))
    for error in jsonschema.Draft202012Validator(rules).iter_errors(thing.get("spec")):
        yield f"{where}: spec.{'.'.join(map(str, error.path))}: {error.message}"
    for name, part in inner(thing):
        yield from faults_of_kubernetes(part, f"{where}, {name}")
