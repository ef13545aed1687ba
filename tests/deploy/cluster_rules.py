"""Rules on a job as a whole: what the cluster spec says about names, numbers and ports is what the objects make."""
import re

from rendered import at, pods_of, title

ENTRY = re.compile(r"(?P<job>\w+)=(?P<name>[^:,]+):(?P<count>\d+)(?::(?P<port>\d+))?$")
DEFAULT_PORT = 2222
# Beyond cluster.server_wait_seconds, in which ps:0 saves the job: telling all tasks, last answers, and the end of the process.
END_SECONDS = 10
DEFAULT_SERVER_WAIT_SECONDS = 5


def spec_of(text):
    """{job: (NAME, count, port)} of dns:ps=NAME:COUNT[:PORT],...; None if it is no such text."""
    entries = [ENTRY.match(entry) for entry in text.removeprefix("dns:").split(",")]
    if not text.startswith("dns:") or not all(entries):
        return None
    return {e["job"]: (e["name"], int(e["count"]), int(e["port"] or DEFAULT_PORT)) for e in entries}


def host_and_domain(name, index):
    """Where the task is, as common/config/dns_cluster.h says."""
    host, _, domain = (name if "*" in name else f"{name.split('.')[0]}-*.{name}").replace("*", str(index)).partition(".")
    return host, domain


def faults_of_members(pods, cluster):
    """The pods of one job of the cluster."""
    if pods.role not in cluster:
        yield f"{pods.title}: --cluster has no {pods.role}"
        return
    name, count, port = cluster[pods.role]
    elastic = pods.role == "worker" and "cluster.min_workers=1" in pods.settings
    if pods.count > count if elastic else pods.count != count:
        yield f"{pods.title}: there are {pods.count} pods, but --cluster has {pods.role}={name}:{count}"
    for index, host in enumerate(pods.hosts or []):
        if (host, pods.domain) != host_and_domain(name, index):
            pod, spec = f"{host}.{pods.domain or '(no subdomain)'}", ".".join(host_and_domain(name, index))
            yield f"{pods.title}: the pod is {pod}, but {pods.role}:{index} in --cluster is {spec}"
            break
    if pods.job is not None and pods.job.get("completions") != pods.job.get("parallelism"):
        yield f"{pods.title}: parallelism must equal completions, since all workers work at once"
    if pods.role == "ps" and port not in pods.ports().values():
        yield f"{pods.title}: no container port is {port}, where --cluster has the servers"


def faults_of_names(pods, objects):
    """The headless Service that makes the pods' names."""
    services = [s for s in objects if s["kind"] == "Service" and s["metadata"]["name"] == pods.domain]
    networks = [at(s, "spec", "network", default={}) for s in objects if s["kind"] == "JobSet"]
    if any(network.get("subdomain") == pods.domain and network.get("publishNotReadyAddresses") for network in networks):
        return
    if not services:
        yield f"{pods.title}: there is no Service {pods.domain}, so its pods have no names"
    for service in services:
        if service["spec"].get("clusterIP") != "None" or not service["spec"].get("publishNotReadyAddresses"):
            yield f"{title(service)}: must be headless, with publishNotReadyAddresses, for names before pods are ready"
        if not service["spec"].get("selector", {}).items() <= pods.labels.items():
            yield f"{title(service)}: its selector does not match the pods of {pods.title}"


def faults_of_cluster(objects):
    members = [pods for pods in pods_of(objects) if pods.indexed]
    specs = {pods.title: pods.flag("cluster") for pods in pods_of(objects) if pods.flag("cluster") is not None}
    if len(set(specs.values())) > 1:
        yield "tasks have different cluster specs: " + "; ".join(f"{where}: {text}" for where, text in specs.items())
    settings = {pods.title: " ".join(pods.settings) for pods in pods_of(objects) if pods.flag("config") is not None}
    if len(set(settings.values())) > 1:
        yield "tasks have different configs, by --set: " + "; ".join(f"{where}: {text}" for where, text in settings.items())
    for pods in members:
        cluster = spec_of(pods.flag("cluster") or "")
        if cluster is None:
            yield f"{pods.title}: --cluster={pods.flag('cluster')} is not dns:JOB=NAME:COUNT[:PORT],..."
            continue
        yield from faults_of_members(pods, cluster)
        yield from faults_of_names(pods, objects)
        if pods.flag("task") != "pod" or "POD_NAME" not in pods.environment:
            yield f"{pods.title}: needs --task=pod and POD_NAME"


def faults_of_stateful_set(servers):
    spec = servers["spec"]
    if spec.get("podManagementPolicy") != "Parallel":
        yield f"{title(servers)}: podManagementPolicy must be Parallel, since servers wait for each other"
    if at(spec, "updateStrategy", "type") != "OnDelete":
        yield f"{title(servers)}: updateStrategy must be OnDelete: servers that change one by one would leave their job"


def faults_of_tfjob(job):
    """What Kubeflow's operator asks for: it looks for this container and this port by their names."""
    policy = at(job, "spec", "runPolicy", default={})
    if policy.get("cleanPodPolicy") != "Running":
        yield f"{title(job)}: cleanPodPolicy must be Running, so that servers end with the job"
    if "backoffLimit" in policy:
        yield f"{title(job)}: a backoffLimit would end a job that loses tasks now and then"
    for pods in pods_of([job]):
        if pods.container.get("name") != "tensorflow" or pods.ports().get("tfjob-port") != DEFAULT_PORT:
            yield f"{pods.title}: needs a container tensorflow with a port tfjob-port of {DEFAULT_PORT}"
        if pods.flag("cluster") is not None or pods.flag("task") is not None:
            yield f"{pods.title}: --cluster and --task would override the TF_CONFIG of the operator"
    for replica, replicas in job["spec"]["tfReplicaSpecs"].items():
        if replicas["restartPolicy"] != "ExitCode":
            yield f"{title(job)}, {replica}: restartPolicy must be ExitCode"


def faults_of_jobset(jobs):
    spec = jobs["spec"]
    if at(spec, "successPolicy", "targetReplicatedJobs") != ["worker"]:
        yield f"{title(jobs)}: the workers' success must be the job's"
    for member in spec["replicatedJobs"]:
        if member["name"] != "ps" and member.get("dependsOn") != [{"name": "ps", "status": "Ready"}]:
            yield f"{title(jobs)}, {member['name']}: must depend on ps being Ready"
    rules = at(spec, "failurePolicy", "rules", default=[])
    if not any(r["action"] == "FailJobSet" and "PodFailurePolicy" in r.get("onJobFailureReasons", []) for r in rules):
        yield f"{title(jobs)}: a job that failed for its podFailurePolicy must fail the JobSet"


def faults_of_grace(pods, config):
    wait = at(config, "cluster", "server_wait_seconds", default=DEFAULT_SERVER_WAIT_SECONDS)
    grace = pods.spec.get("terminationGracePeriodSeconds", 30)
    if pods.role == "ps" and grace < wait + END_SECONDS:
        yield (f"{pods.title}: terminationGracePeriodSeconds is {grace}; it must be at least {wait + END_SECONDS}: "
               f"cluster.server_wait_seconds = {wait} of the job's config, and {END_SECONDS} to end")
