"""What manifests must agree with: the C++ sources and the pages in docs/, read from the tree."""
import functools
import pathlib
import re

import yaml

CODE = re.compile(r"\bkExit\w+ = (\d+)")
FLAG = re.compile(r'add_(?:option|flag)\(\s*"--(\w+)"')
FLAG_OF_RUN = re.compile(r'AddNamed\(\s*command, "--(\w+)"')
METRIC = re.compile(r"`((?:weir|process)_\w+)`")
STORAGE_VARIABLE = re.compile(r"`(AWS_\w+)`")
MADE_BY_USER = re.compile(r"^\| (Secret|ConfigMap|Issuer|PersistentVolumeClaim) `([\w-]+)` \|", re.M)
PATH = re.compile(r"\b(deploy/[\w./-]+[\w/])")
# Prometheus makes the first itself, for each target; the second is of kube-state-metrics.
NOT_OF_SERVERS = {"up", "kube_pod_container_status_last_terminated_reason"}


class Facts:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def _text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    @functools.cached_property
    def _codes(self):
        return sorted(map(int, CODE.findall(self._text("common/program/exit_codes.h"))))

    @property
    def permanent_codes(self):
        return [code for code in self._codes if 0 < code <= 127]

    @property
    def retry_codes(self):
        return [code for code in self._codes if code > 127]

    def flags(self, role):
        return set(FLAG.findall(self._text("ps_server/program.cc" if role == "ps" else "worker/main.cc")))

    @functools.cached_property
    def flags_of_run(self):
        """Of `weir run` itself, which a task with a program of its own has."""
        return set(FLAG_OF_RUN.findall(self._text("cli/commands/run.cc"))) | {"set"}

    @functools.cached_property
    def metrics(self):
        return set(METRIC.findall(self._text("docs/metrics_list.md"))) | NOT_OF_SERVERS

    @functools.cached_property
    def made_by_user(self):
        """{(kind, name)} of the table in docs/deploy.md."""
        return set(MADE_BY_USER.findall(self._text("docs/deploy.md")))

    @functools.cached_property
    def storage_variables(self):
        """The environment of object storage that docs/recovery.md names."""
        return set(STORAGE_VARIABLE.findall(self._text("docs/recovery.md")))

    @property
    def paths_in_page(self):
        return sorted(set(PATH.findall(self._text("docs/deploy.md"))))


def job_config(text):
    """A job's config as an object. JSON with comments, without the comments, is YAML."""
    return yaml.safe_load(re.sub(r"(?m)(^|\s)//.*$", "", text))
