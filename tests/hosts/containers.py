"""Tasks in containers of runc: with a root file system that cannot be written, no capabilities, and a limit of memory."""
import json
import pathlib
import shutil
import subprocess

from job import Pod, Skipped

# What a Debian system has its programs in. /bin and the others may be links to /usr.
SYSTEM = [path for path in map(pathlib.Path, ("/usr", "/bin", "/lib", "/lib64", "/etc")) if path.exists()]
NO_CAPABILITIES = {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}


class Container(Pod):
    """A pod in a container, which is named like its log."""

    def __init__(self, runc, spec, name, host, log):
        self._runc, self.id = runc, log.stem
        bundle = log.with_suffix(".bundle")
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(spec), encoding="utf-8")
        super().__init__(name, host, [*runc, "run", "--bundle", bundle, self.id], {}, log)

    def kill(self):
        """What a node does to the container, not to the `runc` that waits for it."""
        subprocess.run([*self._runc, "kill", self.id, "KILL"], check=False, capture_output=True)
        self.wait()

    def execute(self, *command):
        """Starts a program in the container, with the container's limits."""
        return subprocess.Popen([*self._runc, "exec", self.id, *command], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def read(self, path):
        """The contents of a file that the container sees."""
        return subprocess.run([*self._runc, "exec", self.id, "cat", path], check=True, capture_output=True, text=True).stdout

    def events(self):
        """runc's reports of the container, a JSON object a line, until it ends."""
        return subprocess.Popen([*self._runc, "events", "--interval", "1h", self.id], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)


class Containers:
    """Makes containers from `root`, a folder with a root file system; without it from the system's programs and libraries, and
    those of `seen`, folders that containers can read. Files go to `folder`, which they can read in this case, too.

    Only containers have mounts, and these only in namespaces of their own. Never mount a folder of this machine anywhere
    beneath `folder` itself: what removes `folder` would remove what is mounted there."""

    def __init__(self, folder, root=None, seen=()):
        if shutil.which("runc") is None:
            raise Skipped("runc is not installed; `./dev hosts-test` installs it")
        self._runc = ["runc", "--root", str(folder / "runc")]
        self._mounts = []
        if root is None:
            root = folder / "empty"
            root.mkdir(exist_ok=True)
            self._mounts = [(path, path, False) for path in (*SYSTEM, *seen)] + [(folder, folder, True)]
        self._root = root
        template = folder / "template"
        if not template.exists():
            template.mkdir()
            subprocess.run([*self._runc, "spec", "--bundle", template], check=True)
        self._template = (template / "config.json").read_text(encoding="utf-8")
        probe = self.spec(["true"], {"PATH": "/usr/bin:/bin"}, memory_bytes=64 << 20)
        tried = Container(self._runc, probe, "probe", None, folder / f"probe-{len(list(folder.glob('probe-*.log')))}.log")
        if tried.wait() != 0:
            raise Skipped(f"runc cannot run containers here: {tried.log().strip()}")

    def spec(self, command, environment, namespace=None, user=0, group=0, mounts=(), memory_bytes=None):
        """runc's config: Debian's template with what a pod has instead. `mounts`: (folder or file, path inside, writable)."""
        spec = json.loads(self._template)
        spec["root"] = {"path": str(self._root), "readonly": True}
        spec["process"] |= {
            "args": [str(word) for word in command], "env": [f"{name}={value}" for name, value in environment.items()],
            "terminal": False, "cwd": "/", "user": {"uid": user, "gid": group, "umask": 0o022},
            "capabilities": NO_CAPABILITIES, "noNewPrivileges": True, "rlimits": []}
        for mount in spec["mounts"]:
            # As much memory as the container may have.
            mount["options"] = [option for option in mount.get("options", []) if not option.startswith("size=")]
        spec["mounts"] += [{"destination": str(inside), "type": "bind", "source": str(pathlib.Path(outside).resolve()),
                            "options": ["rbind", "rw" if writable else "ro"]} for outside, inside, writable in [*self._mounts, *mounts]]
        for kind in spec["linux"]["namespaces"]:
            if kind["type"] == "network" and namespace is not None:
                kind["path"] = str(namespace)
        if memory_bytes is not None:
            spec["linux"]["resources"]["memory"] = {"limit": memory_bytes, "swap": memory_bytes}
        return spec

    def start(self, spec, name, host, log):
        return Container(self._runc, spec, name, host, pathlib.Path(log))
