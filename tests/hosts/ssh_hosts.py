"""Hosts with an sshd of their own, and `weir up --hosts` from this program's host."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from job import ENVIRONMENT, Failed, Skipped, expect, wait_until
from network import GATEWAY, NAMESPACES, run

SSHD = os.environ.get("WEIR_SSHD") or "/usr/sbin/sshd"
PASSWD = pathlib.Path("/etc/passwd")


def make_keys(folder):
    for key in "host_key", "user_key":
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))


def prepare(folder):
    """What sshd wants of a machine: its user, and an empty folder of root's. The shell of root finds an empty home, since what this
    machine's .bashrc does may take long."""
    root, *others = PASSWD.read_text(encoding="utf-8").splitlines(keepends=True)
    expect(root.startswith("root:"), f"{PASSWD} begins with {root}")
    fields = root.split(":")
    fields[5] = str(folder / "home")
    (folder / "home").mkdir()
    users = ":".join(fields) + "".join(others)
    if "\nsshd:" not in users:
        users += "sshd:x:65533:65533::/run/sshd:/usr/sbin/nologin\n"
    (folder / "passwd").write_text(users, encoding="utf-8")
    run("mount", "--bind", str(folder / "passwd"), str(PASSWD))
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run/sshd")


class SshHost:
    """A host of the network, with sshd on it."""

    def __init__(self, world, name, folder):
        self.name, self.host = name, world.network.host(name)
        self.temporary = folder / f"{name}.tmp"  # where its processes make temporary files
        self.temporary.mkdir()
        config = folder / f"{name}.sshd"
        config.write_text(f"""
ListenAddress {self.host.address}:22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
UsePAM no
PidFile none
SetEnv TMPDIR={self.temporary}
""", encoding="utf-8")
        with open(folder / f"{name}.sshd.log", "wb") as log:
            self._sshd = subprocess.Popen(["nsenter", f"--net={self.host.namespace}", SSHD, "-D", "-e", "-f", config],
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        wait_until(lambda: b"Server listening" in (folder / f"{name}.sshd.log").read_bytes() or self._sshd.poll() is not None,
                   f"the sshd of {name}")

    def _pids(self):
        return [int(pid) for pid in run("ip", "netns", "pids", self.host.namespace.name).split()]

    def processes(self, program=None):
        """The ids of all processes of the host but sshd, which has one more for each connection; of those that run `program`."""
        return [pid for pid in self._pids() if comm_of(pid) != "sshd" and (program is None or program in words_of(pid))]

    def close(self):
        def killed():
            for pid in self._pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._sshd.poll()
            return not self._pids()
        wait_until(killed, f"the processes of {self.name} end")
        self.host.remove()


def comm_of(pid):
    """The kernel's name of a process; "sshd" for one that has gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "sshd"


def words_of(pid):
    """The names of the programs in a process's command line."""
    try:
        return [pathlib.Path(word).name for word in pathlib.Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")]
    except OSError:
        return []


class SshWorld:
    """Two hosts, a and b, which `weir up` reaches by ssh. A third name, "nowhere", has an address that nobody has."""

    def __init__(self, world):
        if not os.access(SSHD, os.X_OK):
            raise Skipped(f"there is no sshd ({SSHD}); ./dev test unpacks it")
        self._world = world
        self.folder = world.folder / f"ssh{len(list(world.folder.glob('ssh*')))}"
        self.folder.mkdir()
        make_keys(self.folder)
        if not NAMESPACES.joinpath("sshd-prepared").exists():  # once for all scenarios of this program
            prepare(self.folder)
            NAMESPACES.joinpath("sshd-prepared").touch()
        self.hosts = {name: SshHost(world, name, self.folder) for name in ("a", "b")}
        for host in self.hosts.values():
            world.at_end(host.close)
        addresses = {name: host.host.address for name, host in self.hosts.items()} | {"nowhere": GATEWAY.replace(".1", ".250")}
        (self.folder / "config").write_text("".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items()) + f"""
Host *
  User root
  IdentityFile {self.folder}/user_key
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
""", encoding="utf-8")

    def up(self, *arguments, hosts="a,b", config=None, directory=None):
        """Starts `weir up` with checkpoints in a folder of this job."""
        return Up(self, [self._world.weir, "up", f"--hosts={hosts}", f"--ssh=ssh -F {self.folder}/config",
                         config or self._world.config, *arguments], directory)

    def expect_nothing_left(self):
        """No process, and no file with a secret, within the time in which a host notices a lost connection."""
        for host in self.hosts.values():
            wait_until(lambda host=host: not host.processes(), f"the processes of {host.name} end")
            left = [str(path) for path in host.temporary.rglob("*")]
            expect(not left, f"{host.name} still has {left}")


class Up:
    """A `weir up`, with a folder of its own for what it writes, in which it runs unless `directory` is given."""

    def __init__(self, world, command, directory=None):
        self._world = world
        self.folder = world.folder / f"up{len(list(world.folder.glob('up*')))}"
        self.folder.mkdir()
        self.checkpoints = self.folder / "checkpoints"
        self._log, self._summary = self.folder / "up.log", self.folder / "summary.json"
        dashes = command.index("--") if "--" in command else len(command)
        command[dashes:dashes] = [f"--set=checkpoint.directory={self.checkpoints}", f"--summary={self._summary}",
                                  f"--log_dir={self.folder}/logs"]
        self._begin = time.monotonic()
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory or self.folder,
                                            env=ENVIRONMENT)

    def log(self):
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, holds, what):
        """Until then the job must not end."""
        wait_until(lambda: holds() or self.process.poll() is not None, what)
        expect(holds(), f"`weir up` has ended with {self.process.poll()} before this: {what}\n{self.log()}")

    def wait_for_checkpoints(self, count):
        self.wait_for(lambda: len(list(self.checkpoints.glob("step-*"))) >= count, f"{count} checkpoints")

    def ssh_to(self, host):
        """The id of the ssh client for the host."""
        children = [int(child) for path in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
                    for child in path.read_text(encoding="ascii").split()]
        found = [pid for pid in children if host in words_of(pid)]
        expect(len(found) == 1, f"`weir up` has {len(found)} ssh clients for {host}")
        return found[0]

    def wait(self):
        """The exit code, and the seconds since the start."""
        wait_until(lambda: self.process.poll() is not None, "`weir up` ends")
        return self.process.returncode, time.monotonic() - self._begin

    def expect_end(self, code, *texts):
        """It ends so, having said these texts, and nothing is left on the hosts."""
        found, seconds = self.wait()
        log = self.log()
        expect(found == code, f"`weir up` has ended with {found}, not {code}:\n{log}")
        for text in texts:
            expect(text in log, f"`weir up` has not said '{text}':\n{log}")
        self._world.expect_nothing_left()
        return seconds

    def summary(self):
        self.expect_end(0)
        if not self._summary.exists():
            raise Failed(f"`weir up` left no summary:\n{self.log()}")
        return json.loads(self._summary.read_text(encoding="utf-8"))
