"""A job as `kubectl kustomize` renders it: pods in containers of the image, with what their manifests give them."""
import json
import os
import pathlib
import shutil
import sys

from containers import Containers
from job import Job, expect

DEPLOY_TESTS = pathlib.Path(__file__).resolve().parents[1] / "deploy"
sys.path.append(str(DEPLOY_TESTS))
from rendered import at, pods_of, render  # pylint: disable=wrong-import-position

UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def memory_bytes(text):
    return int(text[:-2]) * UNITS[text[-2:]]


class Image:
    """What tools/build_image.sh makes."""

    def __init__(self, folder):
        self.root = (folder / "root").resolve()
        self.config = json.loads((folder / "image.json").read_text(encoding="utf-8"))["OCIv1"]["config"]
        self.environment = dict(entry.split("=", 1) for entry in self.config["Env"])


class RenderedJob(Job):
    """Takes the part of the cluster: names, volumes, and `secrets` (name -> {key: value}) besides weir-token."""

    def __init__(self, world, folder, keys):
        objects = render(folder)
        self._of = {name: pods for pods in pods_of(objects) for name in pods.hosts or [pods.title.split()[-1]]}
        super().__init__(world, *([name for name, pods in self._of.items() if pods.role == role] for role in ("ps", "worker")))
        self.evaluator_names = [name for name, pods in self._of.items() if pods.role == "evaluator"]
        self._image = Image(world.image)
        self._containers = Containers(world.folder, self._image.root)
        self._secrets = keys | {"weir-token": {"token": self.token.read_text(encoding="ascii")}}
        self._config_maps = {found["metadata"]["name"]: found["data"] for found in objects if found["kind"] == "ConfigMap"}

    @property
    def names(self):
        return super().names + self.evaluator_names

    @property
    def summary_path(self):
        return self.folder / "weir-ps-0.tmp" / "summary.json"

    def service_name(self, name):
        return f"{name}.{self._of[name].domain}"

    def make(self, name, host, log):
        pods = self._of[name]
        rights, container_rights = pods.spec["securityContext"], pods.container["securityContext"]
        expect(container_rights["readOnlyRootFilesystem"] and container_rights["capabilities"] == {"drop": ["ALL"]},
               f"{pods.title} may write to its root, or has capabilities")
        user, group = rights["runAsUser"], rights["runAsGroup"]
        mounts = [("/etc/resolv.conf", "/etc/resolv.conf", False), ("/etc/hosts", "/etc/hosts", False)]
        mounts += [(self._volume(name, volume, rights["fsGroup"], user), mount["mountPath"], not mount.get("readOnly"))
                   for mount in pods.container["volumeMounts"]
                   for volume in pods.spec["volumes"] if volume["name"] == mount["name"]]
        # To see what came of the job; no manifest has it.
        summary = ["--summary=/tmp/summary.json"] if name == "weir-ps-0" else []
        command = [*self._image.config["Entrypoint"], *pods.arguments(), *summary]
        spec = self._containers.spec(command, self._image.environment | self._environment(name), host.namespace, user, group,
                                     mounts, memory_bytes(pods.container["resources"]["limits"]["memory"]))
        spec["hostname"] = name
        return self._containers.start(spec, name, host, log)

    def _environment(self, name):
        pods, found = self._of[name], {}
        for variable in pods.container["env"]:
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                expect(source["fieldRef"]["fieldPath"] == "metadata.name", f"no field {source} here")
                # A Job's pods have names with a random end.
                found[variable["name"]] = f"{name}-x7k2p" if pods.job else name
            elif "secretKeyRef" in source:
                key = source["secretKeyRef"]
                if key["key"] in self._secrets[key["name"]] or not key.get("optional"):
                    found[variable["name"]] = self._secrets[key["name"]][key["key"]]
            else:
                found[variable["name"]] = variable["value"]
        if at(pods.job, "completionMode") == "Indexed":
            found["JOB_COMPLETION_INDEX"] = name.rsplit("-", 1)[1]
        return found

    def _volume(self, name, volume, group, user):
        """A folder with the volume's contents, each time anew."""
        folder = self.folder / f"{name}.{volume['name']}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o755)
        if "emptyDir" in volume:
            os.chown(folder, user, group)
        elif "configMap" in volume:
            for file, text in self._config_maps[volume["configMap"]["name"]].items():
                (folder / file).write_text(text, encoding="utf-8")
        else:
            for file, text in self._secrets[volume["secret"]["secretName"]].items():
                (folder / file).write_text(text, encoding="utf-8")
                (folder / file).chmod(volume["secret"]["defaultMode"])
                os.chown(folder / file, 0, group)
        return folder
