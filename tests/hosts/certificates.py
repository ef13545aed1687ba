"""Certificates of a job, which `weir certs init` makes, and what it takes to replace them and their CA."""
import subprocess

from job import Failed
from volume import Reads, files_of, write_volume


class Certificates:
    """Each identity (ps-0, worker-1, reader) has a volume with the files that its processes read."""

    def __init__(self, world, cluster):
        """For the tasks of `cluster`, as --cluster has them."""
        self._weir, self._cluster = world.weir, cluster
        self.folder = world.folder / f"certificates{len(list(world.folder.glob('certificates*')))}"
        self.folder.mkdir()
        self._reads = {}
        self.made = self.make()  # at first
        self.names = sorted(path.stem for path in self.made.glob("*.key") if path.stem != "ca")
        self.give(self.made, [self.made])

    def make(self):
        """A folder with a new CA, and a certificate of it for each identity."""
        made = self.folder / f"made{len(list(self.folder.glob('made*')))}"
        done = subprocess.run([self._weir, "certs", "init", made, f"--spec={self._cluster}"], check=False, capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise Failed(f"weir certs init has ended with {done.returncode}: {done.stderr}")
        return made

    def give(self, made, trusted):
        """Everybody's files are those of `made` from now on, and the CAs that they trust those of the folders `trusted`."""
        cas = "".join((folder / "ca.pem").read_text(encoding="ascii") for folder in trusted)
        for name in self.names:
            certificate, key = ((made / f"{name}.{end}").read_text(encoding="ascii") for end in ("pem", "key"))
            write_volume(self.folder / name, {"ca.pem": cas, "tls.crt": certificate, "tls.key": key}, mode=0o440)
            self._reads[name] = Reads(files_of(self.folder / name))

    def taken_up(self, names):
        """Whether the processes of these identities have read what they were given last."""
        return all([self._reads[name].all() for name in names])

    def environment(self, name):
        folder = self.folder / name
        return {"WEIR_TLS_CA": f"{folder}/ca.pem", "WEIR_TLS_CERTIFICATE": f"{folder}/tls.crt", "WEIR_TLS_KEY": f"{folder}/tls.key"}

    def of_reader(self, made):
        """The environment of a reader with a certificate of `made`, who trusts the CA of today."""
        return {"WEIR_TLS_CA": f"{self.folder}/reader/ca.pem", "WEIR_TLS_CERTIFICATE": f"{made}/reader.pem",
                "WEIR_TLS_KEY": f"{made}/reader.key"}
