"""Rules on TLS: all tasks of a job have it or none; each has its own certificate, and sees no other task's key."""
import re

from pod_rules import TASKS, mount_of
from rendered import at, pods_of, title

VARIABLES = {"WEIR_TLS_CA", "WEIR_TLS_CERTIFICATE", "WEIR_TLS_KEY"}
# docs/security.md#identities. Of the job "weir", as `weir certs init` has it without --job.
IDENTITY = re.compile(r"spiffe://weir/(ps/\d+|worker/\d+|reader|admin)")


def files_of_tls(pods):
    """Variable -> path."""
    return {name: path for name, path in pods.environment.items() if name.startswith("WEIR_TLS_")}


def identities(pods):
    """(name of the files, URI) of each pod."""
    if pods.role == "evaluator":
        return [("reader", "spiffe://weir/reader")]
    return [(f"{pods.role}-{index}", f"spiffe://weir/{pods.role}/{index}") for index in range(pods.count)]


def sources(volume):
    """The Secrets whose files are in a volume."""
    found = [source["secret"] for source in at(volume, "projected", "sources", default=[]) if "secret" in source]
    if at(volume, "secret") is not None:
        found.append(volume["secret"] | {"name": volume["secret"]["secretName"]})
    return found


def faults_of_issued(pods, volume, objects):
    """Where Certificates make the Secrets of the volume, each pod finds its own files in it."""
    made = {found["spec"]["secretName"]: found["spec"].get("uris") for found in objects if found["kind"] == "Certificate"}
    if not any(source["name"] in made for source in sources(volume)):
        return
    issued = {(item["path"], item["key"], *(made.get(source["name"]) or [None]))
              for source in sources(volume) for item in source.get("items", [])}
    for name, uri in identities(pods):
        for path, key in (f"{name}.pem", "tls.crt"), (f"{name}.key", "tls.key"):
            if (path, key, uri) not in issued:
                yield f"{pods.title}: {path} must be the key {key} of a Secret with a Certificate of {uri}"


def faults_of_secret(pods, volume, objects):
    for kind in "secret", "projected":
        if at(volume, kind) is not None and volume[kind].get("defaultMode", 0o644) & 0o7:
            yield f"{pods.title}: defaultMode of the volume {volume['name']} must be 0440: tasks refuse a key that others may read"
    yield from faults_of_issued(pods, volume, objects)


def faults_of_sidecar(pods, volume, objects):
    """The container that puts a task's files into the volume: own_certificate.sh."""
    mounts = [(container, mount) for container in pods.sidecars for mount in container["volumeMounts"]
              if mount["name"] == volume["name"] and not mount.get("readOnly")]
    if not mounts:
        yield f"{pods.title}: no container of its own puts a certificate into the volume {volume['name']}"
        return
    container, mount = mounts[0]
    where = f"{pods.title}, {container['name']}"
    if at(volume, "emptyDir", "medium") != "Memory":
        yield f"{where}: keys must not be on a disk: the volume {volume['name']} needs the medium Memory"
    if container.get("restartPolicy") != "Always":
        yield f"{where}: needs restartPolicy Always: certificates are replaced while the task runs"
    script, taken_from, to = (container.get("command", []) + [""] * 4)[1:4]
    config_map, file = mount_of(pods, script, container)
    if not any(found["kind"] == "ConfigMap" and found["metadata"]["name"] == at(config_map, "configMap", "name")
               and file in found["data"] for found in objects):
        yield f"{where}: {script} is in no ConfigMap"
    current = f"{to}/current"
    if to != mount["mountPath"] or at(container, "startupProbe", "exec", "command") != ["test", "-f", f"{current}/tls.key"]:
        yield f"{where}: must be ready when {mount['mountPath']}/current/tls.key is there, so that the task starts after that"
    task_mount = next(m["mountPath"] for m in pods.container["volumeMounts"] if m["name"] == volume["name"])
    for variable, file in ("WEIR_TLS_CERTIFICATE", "tls.crt"), ("WEIR_TLS_KEY", "tls.key"):
        if pods.environment[variable] != f"{task_mount}/current/{file}":
            yield f"{pods.title}: {variable} must be {task_mount}/current/{file}, where {container['name']} puts it"
    variables = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    if variables.get("WEIR_ROLE") != pods.role or "POD_NAME" not in variables:
        yield f"{where}: needs POD_NAME, and WEIR_ROLE={pods.role}"
    secret, _ = mount_of(pods, taken_from, container)
    if not sources(secret):
        yield f"{where}: {taken_from} is no Secret's"
        return
    if secret["name"] in [m["name"] for m in pods.container["volumeMounts"]]:
        yield f"{pods.title}: the task mounts {secret['name']}, and so sees the keys of all tasks of its role"
    yield from faults_of_secret(pods, secret, objects)


def faults_of_tls(pods, objects):
    """Of the pods of one object."""
    files = files_of_tls(pods)
    if pods.role == "ps" and (pods.flag("insecure_plaintext") is None) != bool(files):
        yield f"{pods.title}: needs the files of TLS or --insecure_plaintext, and not both"
    if pods.role not in TASKS or not files:
        return
    if set(files) != VARIABLES:
        yield f"{pods.title}: TLS needs all of {', '.join(sorted(VARIABLES))}"
        return
    ca, _ = mount_of(pods, files["WEIR_TLS_CA"])
    if at(ca, "configMap") is None:
        yield f"{pods.title}: WEIR_TLS_CA is in no ConfigMap"
    volume, _ = mount_of(pods, files["WEIR_TLS_KEY"])
    if volume is None or volume != mount_of(pods, files["WEIR_TLS_CERTIFICATE"])[0]:
        yield f"{pods.title}: WEIR_TLS_CERTIFICATE and WEIR_TLS_KEY are in no volume, or in two"
    elif at(volume, "emptyDir") is not None:
        yield from faults_of_sidecar(pods, volume, objects)
    elif pods.count > 1:
        yield f"{pods.title}: its {pods.count} pods would have one certificate, or see each other's keys"
    else:
        yield from faults_of_secret(pods, volume, objects)


def faults_of_job(objects):
    tasks = [pods for pods in pods_of(objects) if pods.role in TASKS]
    without = [pods.title for pods in tasks if not files_of_tls(pods)]
    if without and len(without) < len(tasks):
        yield f"some tasks have TLS, but {', '.join(without)} has none"


def faults_of_certificate(certificate, facts):
    spec = certificate["spec"]
    if not spec.get("uris") or len(spec["uris"]) != 1 or not IDENTITY.fullmatch(spec["uris"][0]):
        yield f"{title(certificate)}: needs one identity of docs/security.md; it has {spec.get('uris')}"
    if not {"server auth", "client auth"} <= set(spec.get("usages", [])):
        yield f"{title(certificate)}: must be for both ends of a connection: server auth and client auth"
    issuer = spec["issuerRef"]
    if (issuer.get("kind"), issuer["name"]) not in facts.made_by_user:
        yield f"{title(certificate)}: needs the {issuer.get('kind')} {issuer['name']}, which is not in the table of docs/deploy.md"
