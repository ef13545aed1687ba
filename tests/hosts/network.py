"""Hosts on one wire: a bridge, and for each host a network namespace with an address and a link of its own. All of it lies in
namespaces of this program (enter), so that nothing is left when the program has ended, in whichever way."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from dns_server import DnsServer

FOLDER = "WEIR_HOSTS_FOLDER"  # set in the namespaces
BRIDGE, GATEWAY, SUBNET_BITS = "hosts0", "10.77.0.1", 24
DOMAIN = "weir.svc.cluster.local"
NAMESPACES = pathlib.Path("/run/netns")  # where `ip netns` keeps them
RESOLV_CONF = f"nameserver {GATEWAY}\nsearch {DOMAIN} svc.cluster.local cluster.local\noptions ndots:5\n"


def end(unshare):
    """Kills the first process in the namespaces, and so all others. `unshare`, which ignores a SIGTERM, ends after them."""
    for child in pathlib.Path(f"/proc/{unshare}/task/{unshare}/children").read_text(encoding="ascii").split():
        os.kill(int(child), signal.SIGKILL)


def enter():
    """Runs this program again in namespaces of its own (network, mounts, processes), and ends with its exit code. There it returns
    a folder for its files, which is removed when all of that is gone: from outside, where nothing is mounted in it. Returns
    None and a reason if no namespaces can be made."""
    if os.environ.get(FOLDER):
        return pathlib.Path(os.environ[FOLDER]), None
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*command, "ip", "link", "add", BRIDGE, "type", "bridge"], check=False, capture_output=True,
                           text=True)
    if tried.returncode != 0:
        return None, f"no network namespaces with bridges can be made here: {tried.stderr.strip()}"
    with tempfile.TemporaryDirectory(prefix="weir-hosts-") as folder:
        inner = subprocess.Popen([*command, sys.executable, "-B", *sys.argv], env=os.environ | {FOLDER: folder})
        signal.signal(signal.SIGTERM, lambda *_: end(inner.pid))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the inner one, too
        code = inner.wait()
    sys.exit(code if code >= 0 else 128 - code)


def run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A host with an address that no other has had. Its name leads to it until something else is said to `names`."""

    def __init__(self, network, name, number):
        self.name, self.address, self._network = name, f"10.77.0.{number}", network
        self._namespace, self._link = f"host{number}", f"link{number}"
        run("ip", "netns", "add", self._namespace)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        inside = "ip", "-n", self._namespace
        run(*inside, "addr", "add", f"{self.address}/{SUBNET_BITS}", "dev", "eth0")
        for device in "eth0", "lo":
            run(*inside, "link", "set", device, "up")
        run("ip", "link", "set", self._link, "master", BRIDGE, "up")

    @property
    def namespace(self):
        return NAMESPACES / self._namespace

    def cut(self):
        """Nothing comes from the host or gets to it, and nobody is told: its cable is out of the switch."""
        run("ip", "link", "set", self._link, "nomaster")

    def heal(self):
        run("ip", "link", "set", self._link, "master", BRIDGE)

    def limit(self, rate):
        """Of each direction; `rate` as tc writes it: 2mbit."""
        bucket = "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"
        run("tc", "qdisc", "replace", "dev", self._link, "root", *bucket)
        run("ip", "netns", "exec", self._namespace, "tc", "qdisc", "replace", "dev", "eth0", "root", *bucket)

    def limited_packets(self):
        """How many packets to the host have waited for the limit."""
        words = run("tc", "-s", "qdisc", "show", "dev", self._link).split()
        return int(words[words.index("overlimits") + 1])

    def remove(self):
        """The host, with its address, is gone. Processes in it must have ended."""
        if self.namespace.exists():
            run("ip", "netns", "delete", self._namespace)


class Network:
    """The wire, in the network namespace of this process, which has the address GATEWAY; and a DNS server there."""

    def __init__(self, folder):
        self._hosts = 1
        NAMESPACES.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "none", str(NAMESPACES))
        run("ip", "link", "set", "lo", "up")
        # An address of its own: otherwise it is one of the links' and changes with them, and hosts that know the old one
        # get no answer from the DNS server for up to a minute.
        run("ip", "link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge")
        run("ip", "addr", "add", f"{GATEWAY}/{SUBNET_BITS}", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        self.names = DnsServer(GATEWAY, DOMAIN)
        for file, text in ("resolv.conf", RESOLV_CONF), ("hosts", "127.0.0.1 localhost\n"):
            (folder / file).write_text(text, encoding="utf-8")
            run("mount", "--bind", str(folder / file), f"/etc/{file}")

    def host(self, name):
        self._hosts += 1
        if self._hosts > 254:
            raise RuntimeError(f"more than 253 hosts on {GATEWAY}/{SUBNET_BITS}")
        return Host(self, name, self._hosts)
