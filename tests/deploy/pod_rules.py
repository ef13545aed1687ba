"""Rules on the pods of one object: images, rights, probes, flags, what they mount, and what their exit codes lead to."""
import re

from rendered import at

IMAGE = re.compile(r"^[\w./-]+(:\d+/[\w./-]+)?:(?P<tag>[\w.-]+)$")
TASKS = ("ps", "worker", "evaluator")
USER = 65532
HTTP_TOKEN = "WEIR_HTTP_TOKEN_FILE"
MESH_LABELS = {"sidecar.istio.io/inject": "false", "kuma.io/sidecar-injection": "disabled"}
MESH_ANNOTATIONS = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled",
                    "consul.hashicorp.com/connect-inject": "false"}
STORAGE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def in_object_storage(config):
    return at(config, "checkpoint", "directory", default="").startswith("s3://")


def faults_of_image(pods):
    for container in [pods.container, *pods.sidecars]:
        image = container.get("image", "")
        match = IMAGE.match(image)
        if match is None or match["tag"] == "latest":
            yield f"{pods.title}: the image '{image}' needs a version as its tag"


def faults_of_rights(pods):
    """Kubernetes' Pod Security Standard `restricted`, and a root file system that is read-only."""
    pod = at(pods.spec, "securityContext", default={})
    wanted = [
        (pod.get("runAsNonRoot") is True and pod.get("runAsUser") == USER, f"runAsNonRoot, and runAsUser {USER}"),
        (pod.get("fsGroup") == USER, f"fsGroup {USER}, which lets it read the token"),
        (at(pod, "seccompProfile", "type") == "RuntimeDefault", "seccompProfile RuntimeDefault"),
        (pods.spec.get("automountServiceAccountToken") is False, "automountServiceAccountToken false"),
    ]
    for found in [pods.container, *pods.sidecars]:
        wanted += rights_of(found)
    yield from (f"{pods.title}: needs {what}" for holds, what in wanted if not holds)


def faults_of_meshes(pods):
    """No service mesh puts its proxy into a pod."""
    annotations = at(pods.template, "metadata", "annotations", default={})
    for kind, there, wanted in [("label", pods.labels, MESH_LABELS), ("annotation", annotations, MESH_ANNOTATIONS)]:
        for name, value in wanted.items():
            if there.get(name) != value:
                yield f"{pods.title}: needs the {kind} {name}: \"{value}\", or its pods may never complete"


def rights_of(container):
    """(whether the container has it, what)"""
    rights = at(container, "securityContext", default={})
    return [
        (rights.get("allowPrivilegeEscalation") is False, "allowPrivilegeEscalation false"),
        (rights.get("readOnlyRootFilesystem") is True, "readOnlyRootFilesystem true"),
        (rights.get("capabilities") == {"drop": ["ALL"]}, "capabilities, all dropped"),
        (at(container, "resources", "requests", "cpu") is not None, "a request for cpu"),
        (at(container, "resources", "requests", "memory") is not None, "a request for memory"),
        (at(container, "resources", "limits", "memory") is not None, "a limit of memory"),
    ]


def faults_of_ports(pods):
    """The ports of these names are those of the flags."""
    for name in "http", "health":
        port, flag = pods.ports().get(name), pods.flag(f"{name}_port")
        if (None if port is None else str(port)) != flag:
            yield f"{pods.title}: the container's port {name} is {port}, but --{name}_port={flag}"


def faults_of_probes(pods):
    """At the port for health alone, which asks for neither certificate nor token."""
    for probe, path in [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]:
        http = at(pods.container, probe, "httpGet")
        if http is None:
            if pods.role == "ps":
                yield f"{pods.title}: needs a {probe}"
            continue
        port = pods.ports().get(http["port"], http["port"])
        if port not in pods.ports().values():
            yield f"{pods.title}: {probe} asks port {http['port']}, which the container does not have"
        elif str(port) != pods.flag("health_port"):
            yield f"{pods.title}: {probe} asks port {port}, but --health_port={pods.flag('health_port')}"
        if http.get("path") != path:
            yield f"{pods.title}: {probe} must ask {path}"


def faults_of_gpu(pods):
    """Who is to compute on a GPU gets one."""
    gpus = at(pods.container, "resources", "limits", "nvidia.com/gpu")
    if not pods.program and ("cuda" in (pods.flag("device") or "")) != (gpus is not None):
        yield f"{pods.title}: --device={pods.flag('device')}, but its limit of nvidia.com/gpu is {gpus}"


def faults_of_flags(pods, facts):
    known = facts.flags_of_run if pods.program else facts.flags(pods.role)
    for argument in pods.flags:
        flag = re.match(r"--(\w+)", argument)
        if flag is None or flag[1] not in known:
            name = "weir run" if pods.program else "ps_server" if pods.role == "ps" else "worker"
            yield f"{pods.title}: {argument} is no flag of {name}"
    for unset in re.findall(r"\$\(\w+\)", " ".join(pods.flags)):
        yield f"{pods.title}: no variable of the container is {unset}"


def faults_of_exits(pods, facts):
    """Exactly the codes that ask for no other try end the job; other codes of ours, and disruptions, do not count."""
    if pods.job is None:
        return
    rules = at(pods.job, "podFailurePolicy", "rules", default=[])

    def codes(action):
        return [sorted(rule["onExitCodes"]["values"]) for rule in rules if rule["action"] == action and "onExitCodes" in rule]

    source = "common/program/exit_codes.h"
    # A program may give any code; 128 is containerd's for one that cannot be started.
    permanent = list(range(1, 129)) if pods.program else facts.permanent_codes
    for action, effect, wanted in [("FailJob", "fail the job", permanent),
                                   ("Ignore", "do not count", facts.retry_codes)]:
        if codes(action) != [wanted]:
            yield f"{pods.title}: exit codes that {effect} are {codes(action)}; {source} has {wanted}"
    disruption = {"type": "DisruptionTarget", "status": "True"}
    if not any(rule["action"] == "Ignore" and disruption in rule.get("onPodConditions", []) for rule in rules):
        yield f"{pods.title}: disruptions must not count"
    for rule in rules:
        name = at(rule, "onExitCodes", "containerName")
        if name is not None and name != pods.container.get("name"):
            yield f"{pods.title}: podFailurePolicy names the container {name}, which does not exist"
        if "onExitCodes" in rule and rule["onExitCodes"]["operator"] != "In":
            yield f"{pods.title}: podFailurePolicy must list codes with In"
    if pods.job.get("backoffLimit", 6) < 100:
        yield f"{pods.title}: a backoffLimit of {pods.job.get('backoffLimit', 6)} may end a healthy job"


def mount_of(pods, path, container=None):
    """The volume that holds this path in the container (None: of the task), and the rest of the path; (None, None) if there is
    none."""
    volumes = {volume["name"]: volume for volume in at(pods.spec, "volumes", default=[])}
    for mount in at(container or pods.container, "volumeMounts", default=[]):
        if path.startswith(mount["mountPath"] + "/") or path == mount["mountPath"]:
            return volumes.get(mount["name"]), path.removeprefix(mount["mountPath"]).lstrip("/")
    return None, None


def references(pods):
    """(kind, name) of all that the pods need."""
    if pods.spec.get("serviceAccountName"):
        yield "ServiceAccount", pods.spec["serviceAccountName"]
    for volume in at(pods.spec, "volumes", default=[]):
        for kind, name in [("ConfigMap", at(volume, "configMap", "name")), ("Secret", at(volume, "secret", "secretName")),
                           ("PersistentVolumeClaim", at(volume, "persistentVolumeClaim", "claimName"))]:
            if name is not None:
                yield kind, name
        for source in at(volume, "projected", "sources", default=[]):
            yield "Secret", source["secret"]["name"]
    for variable in at(pods.container, "env", default=[]):
        for kind, key in [("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")]:
            if at(variable, "valueFrom", key) is not None:
                yield kind, variable["valueFrom"][key]["name"]


def faults_of_references(pods, objects, facts):
    there = {(found["kind"], found["metadata"]["name"]) for found in objects}
    there |= {("Secret", found["spec"]["secretName"]) for found in objects if found["kind"] == "Certificate"}
    for kind, name in references(pods):
        if (kind, name) not in there | facts.made_by_user:
            yield f"{pods.title}: needs the {kind} {name}, which is neither here nor in the table of docs/deploy.md"
    volumes = {volume["name"] for volume in at(pods.spec, "volumes", default=[])}
    mounted = {mount["name"] for container in [pods.container, *pods.sidecars]
               for mount in at(container, "volumeMounts", default=[])}
    for name in sorted(mounted ^ volumes):
        yield f"{pods.title}: '{name}' is a volume that is not mounted, or a mount without a volume"


def claims(pods):
    return [volume["persistentVolumeClaim"]["claimName"] for volume in at(pods.spec, "volumes", default=[])
            if "persistentVolumeClaim" in volume]


def faults_of_storage(pods, facts):
    """A server whose checkpoints are in object storage has keys from a Secret, and no claim."""
    sources = {variable["name"]: at(variable, "valueFrom", "secretKeyRef") for variable in at(pods.container, "env", default=[])}
    for name in STORAGE_KEYS:
        if sources.get(name) is None or sources[name].get("optional"):
            yield f"{pods.title}: checkpoints are in object storage, so {name} must come from a Secret"
    for name, source in sources.items():
        if name.startswith("AWS_") and name not in facts.storage_variables:
            yield f"{pods.title}: docs/recovery.md has no variable {name}"
        elif name.startswith("AWS_") and at(source, "key") != name:
            yield f"{pods.title}: {name} must come from the key of its name"
    for claim in claims(pods):
        yield f"{pods.title}: mounts the claim {claim}, but checkpoints are in object storage"


def faults_of_files(pods, config, facts):
    """The files that the task's flags and the job's config name are mounted."""
    if pods.role not in TASKS:
        return
    for variable in "WEIR_TOKEN_FILE", HTTP_TOKEN:
        if variable == HTTP_TOKEN and variable not in pods.environment:
            continue
        token, _ = mount_of(pods, pods.environment.get(variable) or "")
        if at(token, "secret") is None:
            yield f"{pods.title}: {variable} is in no Secret"
        elif token["secret"].get("defaultMode", 0o644) & 0o7:
            yield f"{pods.title}: the defaultMode of {variable} must be 0440: tasks refuse a token that others may read"
    if config is None:
        if not pods.program:  # it brings its own
            yield f"{pods.title}: --config={pods.flag('config')} is in no ConfigMap"
        return
    paths = []
    if pods.role == "ps" and in_object_storage(config):
        yield from faults_of_storage(pods, facts)
    elif pods.role == "ps":
        paths.append(at(config, "checkpoint", "directory", default="/none"))
    else:
        paths += [path for part in ("train", "test") for path in at(config, "data", part, default={}).values()]
    for path in paths:
        volume, _ = mount_of(pods, path)
        if at(volume, "persistentVolumeClaim") is None:
            yield f"{pods.title}: the job's config names {path}, which is on no claim that is mounted"
