"""Rules on objects beside the pods: selectors, ports that are allowed or scraped, alerts and panels."""
import json

import promql_parser

from pod_rules import HTTP_TOKEN, mount_of
from rendered import at, title
from tls_rules import files_of_tls

# Of kube-state-metrics: why a container that runs again, or waits for that, ended.
ENDED = "kube_pod_container_status_last_terminated_reason"


def selects(selector, labels):
    """Whether a label selector matches labels."""
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    operators = {"In": lambda e: labels.get(e["key"]) in e["values"], "Exists": lambda e: e["key"] in labels}
    return all(operators[e["operator"]](e) for e in selector.get("matchExpressions", []))


def selected(selector, pods):
    return [found for found in pods if selects(selector, found.labels)]


def selectors(thing):
    """The selectors of pods in this object's namespace."""
    spec = thing.get("spec", {})
    if thing["kind"] == "Service":
        yield {"matchLabels": spec.get("selector", {})}
    if thing["kind"] in ("PodDisruptionBudget", "PodMonitor", "StatefulSet"):
        yield spec["selector"]
    if thing["kind"] == "NetworkPolicy":
        yield spec["podSelector"]
        for rule in spec.get("ingress", []) + spec.get("egress", []):
            yield from (peer["podSelector"] for peer in rule.get("from", []) + rule.get("to", []) if "podSelector" in peer)


def faults_of_selectors(thing, pods):
    for selector in selectors(thing):
        if not selected(selector, pods):
            yield f"{title(thing)}: no pod matches {json.dumps(selector)}"


def faults_of_spread(found):
    for constraint in found.spec.get("topologySpreadConstraints", []):
        if not selects(constraint["labelSelector"], found.labels):
            yield f"{found.title}: topologySpreadConstraints do not match its own pods"


def faults_of_service(service, pods):
    for port in service["spec"].get("ports", []):
        for found in selected({"matchLabels": service["spec"]["selector"]}, pods):
            target = port.get("targetPort", port["port"])
            if found.ports().get(target, target) != port["port"]:
                yield f"{title(service)}: its port {port['port']} leads to {target}, but {found.title} has {found.ports()}"


def faults_of_network(policy, pods):
    """An allowed port of pods is one that they have; servers may be reached at their first port."""
    spec = policy["spec"]
    allowed = [(spec["podSelector"], rule) for rule in spec.get("ingress", [])]
    allowed += [(peer["podSelector"], rule) for rule in spec.get("egress", []) for peer in rule["to"] if "podSelector" in peer]
    for selector, rule in allowed:
        for found in selected(selector, pods):
            for port in rule["ports"]:
                if port["port"] not in found.ports().values():
                    yield f"{title(policy)}: allows port {port['port']}, but {found.title} has {found.ports()}"


def faults_of_storage_network(pods, objects):
    """Some policy lets the pods out of the cluster, at ports of object storage."""
    for policy in objects:
        if policy["kind"] != "NetworkPolicy" or pods not in selected(policy["spec"]["podSelector"], [pods]):
            continue
        for rule in policy["spec"].get("egress", []):
            if any("ipBlock" in peer for peer in rule["to"]) and 443 in [port["port"] for port in rule["ports"]]:
                return
    yield f"{pods.title}: no NetworkPolicy lets it reach object storage at port 443"


def faults_of_monitor(monitor, pods):
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        for found in selected(monitor["spec"]["selector"], pods):
            port, http = endpoint["port"], found.flag("http_port")
            if str(found.ports().get(port)) != http:
                yield f"{title(monitor)}: scrapes port {port} of {found.title}, whose --http_port is {http}"
            sent = (at(endpoint, "authorization", "credentials", "name"), at(endpoint, "authorization", "credentials", "key"))
            volume, key = mount_of(found, found.environment.get(HTTP_TOKEN) or "")
            wanted = (at(volume, "secret", "secretName"), key)
            if sent != wanted:
                yield f"{title(monitor)}: sends the token {sent}, but {HTTP_TOKEN} of {found.title} is {wanted}"
            elif sent == (None, None) and files_of_tls(found):
                yield f"{title(monitor)}: with TLS {found.title} shows no metrics without {HTTP_TOKEN}"


class Names:
    """Collects the names of metrics in an expression, and with which an offset is asked for; and functions."""

    def __init__(self):
        self.found, self.earlier, self.functions = set(), set(), set()

    def visit(self, node):
        if isinstance(node, promql_parser.VectorSelector):
            self.found.add(node.name)
            if node.offset is not None:
                self.earlier.add(node.name)
        if isinstance(node, promql_parser.Call):
            self.functions.add(node.func.name)
        for child in ("lhs", "rhs", "expr", "args", "vector_selector"):
            below = getattr(node, child, None)
            for part in below if isinstance(below, list) else [below]:
                if part is not None and not isinstance(part, (str, int, float)):
                    self.visit(part)
        return self


def faults_of_expression(where, text, facts):
    try:
        names = Names().visit(promql_parser.parse(text)).found
    except ValueError as error:
        yield f"{where}: '{text}' is no PromQL: {error}"
        return
    if not names:
        yield f"{where}: '{text}' has no metric"
    for name in sorted(names - facts.metrics):
        yield f"{where}: docs/metrics_list.md has no metric {name}"


def faults_of_firing(where, text):
    """What would fire although nothing is wrong."""
    try:
        names = Names().visit(promql_parser.parse(text))
    except ValueError:
        return  # faults_of_expression() says so
    if "up" in names.found and ENDED not in names.found:
        yield f"{where}: servers whose job is done are started again and again; leave them out, by {ENDED}"
    if "changes" in names.functions and not names.earlier:
        yield f"{where}: a series that has just begun has no changes; ask that it was there, by an offset"


def faults_of_alerts(rules, facts):
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            where = f"{title(rules)}, {rule['alert']}"
            yield from faults_of_expression(where, rule["expr"], facts)
            yield from faults_of_firing(where, rule["expr"])
            if at(rule, "labels", "severity") not in ("critical", "warning", "info") or not at(rule, "annotations", "summary"):
                yield f"{where}: needs the label severity and the annotation summary"


def faults_of_dashboard(config_map, facts):
    for file, text in config_map.get("data", {}).items():
        if "grafana_dashboard" not in at(config_map, "metadata", "labels", default={}):
            continue
        panels = json.loads(text)["panels"]
        if len({panel["id"] for panel in panels}) < len(panels):
            yield f"{title(config_map)}, {file}: two panels have one id"
        for panel in panels:
            for target in panel["targets"]:
                # Grafana puts its variables in before Prometheus sees the text.
                expression = target["expr"].replace("$__rate_interval", "1m").replace("$namespace", "weir")
                yield from faults_of_expression(f"{title(config_map)}, panel '{panel['title']}'", expression, facts)
