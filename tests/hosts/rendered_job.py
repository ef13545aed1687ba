"""A job as `kubectl kustomize` renders it: pods in containers of the image, with what their manifests give them."""
import json
import os
import pathlib
import shutil
import sys

from containers import Containers
from job import Job, expect, wait_until
from volume import write_volume

DEPLOY_TESTS = pathlib.Path(__file__).resolve().parents[1] / "deploy"
sys.path.append(str(DEPLOY_TESTS))
from named_pods import NAMESPACE, named_pods  # pylint: disable=wrong-import-position
from rendered import at, render  # pylint: disable=wrong-import-position

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
    """Takes the part of the cluster: names, volumes, sidecars, and the Secrets and ConfigMaps (name -> {key: value}) that its user
    makes besides weir-token. `certificates` are for those who ask it for its status; `claims`: name -> folder."""

    def __init__(self, world, folder, secrets, config_maps=None, certificates=None, image=None, claims=None):
        objects = render(folder)
        self._of = {pod.name: pod for pod in named_pods(objects)}
        super().__init__(world, *([name for name, pod in self._of.items() if pod.pods.role == role] for role in ("ps", "worker")),
                         certificates)
        self.evaluator_names = [name for name, pod in self._of.items() if pod.pods.role == "evaluator"]
        self._image, self._claims = Image(image or world.image), claims or {}
        self._containers = Containers(world.folder, self._image.root)
        self._secrets = secrets | {"weir-token": {"token": self.token.read_text(encoding="ascii")}}
        self._config_maps = {found["metadata"]["name"]: found["data"] for found in objects if found["kind"] == "ConfigMap"}
        self._config_maps |= config_maps or {}
        self._sidecars = {}  # of pods, by name

    @property
    def names(self):
        return super().names + self.evaluator_names

    @property
    def summary_path(self):
        return self.volume(self.server_names[0], "tmp") / "summary.json"

    def service_name(self, name):
        return (self._of[name].host or name).removesuffix(f".{NAMESPACE}.svc")

    def make(self, name, host, log):
        pods = self._of[name].pods
        volumes = {volume["name"]: self._new_volume(name, volume) for volume in pods.spec["volumes"]}
        self._sidecars[name] = [self._start_sidecar(name, host, log, sidecar, volumes) for sidecar in pods.sidecars]
        # To see what came of the job; no manifest has it.
        summary = ["--summary=/tmp/summary.json"] if name == self.server_names[0] else []
        command = [*pods.container.get("command", self._image.config["Entrypoint"]), *pods.arguments(), *summary]
        return self._container(name, host, log, pods.container, command, volumes)

    def _start_sidecar(self, name, host, log, sidecar, volumes):
        """Returns when its probe says that it has started."""
        expect(sidecar["restartPolicy"] == "Always", f"{sidecar['name']} of {name} is no sidecar")
        log = log.with_name(f"{log.stem}.{sidecar['name']}.log")
        started = self._container(name, host, log, sidecar, sidecar["command"], volumes)
        probe = sidecar["startupProbe"]["exec"]["command"]
        wait_until(lambda: started.execute(*probe).wait() == 0 or started.ended(), f"{sidecar['name']} of {name} has started")
        expect(not started.ended(), f"{sidecar['name']} of {name} has ended:\n{started.log()}")
        return started

    def _container(self, name, host, log, container, command, volumes):
        """Starts a container of the pod."""
        pods = self._of[name].pods
        rights, container_rights = pods.spec["securityContext"], container["securityContext"]
        expect(container_rights["readOnlyRootFilesystem"] and container_rights["capabilities"] == {"drop": ["ALL"]},
               f"{pods.title} may write to its root, or has capabilities")
        mounts = [("/etc/resolv.conf", "/etc/resolv.conf", False), ("/etc/hosts", "/etc/hosts", False)]
        mounts += [(volumes[mount["name"]], mount["mountPath"], not mount.get("readOnly")) for mount in container["volumeMounts"]]
        environment = self._image.environment | self._of[name].environment_of(container, self._secrets)
        spec = self._containers.spec(command, environment, host.namespace, rights["runAsUser"], rights["runAsGroup"], mounts,
                                     memory_bytes(container["resources"]["limits"]["memory"]))
        spec["hostname"] = name
        spec["process"]["cwd"] = self._image.config.get("WorkingDir") or "/"
        return self._containers.start(spec, name, host, log)

    def replace(self, secrets, config_maps):
        """The user has replaced these objects: all volumes change that have them."""
        self._secrets |= secrets
        self._config_maps |= config_maps
        for name in self.pods:
            for volume in self._of[name].pods.spec["volumes"]:
                if at(volume, "secret", "secretName") in secrets or at(volume, "configMap", "name") in config_maps:
                    self._write_volume(name, volume)

    def volume(self, name, volume):
        """The folder of a volume of the pod."""
        return self.folder / f"{name}.{volume}"

    def remove(self, name):
        self._end_sidecars(name)
        super().remove(name)

    def close(self):
        for name in list(self._sidecars):
            self._end_sidecars(name)
        super().close()

    def _end_sidecars(self, name):
        for sidecar in self._sidecars.pop(name, []):
            sidecar.kill()

    def _new_volume(self, name, volume):
        """A folder with the volume's contents, each time anew, or that of the claim."""
        if claim := at(volume, "persistentVolumeClaim", "claimName"):
            return self._claims[claim]
        folder = self.volume(name, volume["name"])
        shutil.rmtree(folder, ignore_errors=True)
        if "emptyDir" in volume:
            folder.mkdir(mode=0o755)
            rights = self._of[name].pods.spec["securityContext"]
            os.chown(folder, rights["runAsUser"], rights["fsGroup"])
        else:
            self._write_volume(name, volume)
        return folder

    def _write_volume(self, name, volume):
        folder = self.volume(name, volume["name"])
        if "configMap" in volume:
            source = volume["configMap"]
            write_volume(folder, self._config_maps.get(source["name"], {}) if source.get("optional") else self._config_maps[source["name"]])
        else:
            secret = volume["secret"]
            group = self._of[name].pods.spec["securityContext"]["fsGroup"]
            write_volume(folder, self._secrets[secret["secretName"]], secret["defaultMode"], group)
