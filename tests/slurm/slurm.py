"""A cluster of SLURM for tests: slurmctld, munged and two nodes, each a slurmd on a host of its own (tests/hosts/network.py), with
configuration, key, state and logs in the test's folder. All of it ends with the test's namespaces."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hosts"))
import network  # pylint: disable=wrong-import-position

# Where Debian has daemons; Bazel leaves it out.
os.environ["PATH"] += ":/usr/sbin"
PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo"
PARTITION = "debug"
LIMIT_SECONDS = 180
CONFIG = """
ClusterName=weirtest
SlurmctldHost=localhost({gateway})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=20
MinJobAge=600
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_program():
    """One that SLURM needs and this machine lacks; None: all are there."""
    return next((name for name in PROGRAMS if shutil.which(name) is None), None)


def processes(*words):
    """The processes in this namespace whose command line has all of these words: their ids."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(path.parent.name))
    return found


class Slurm:
    """Nodes node1 and node2, eight CPUs each as far as SLURM knows."""

    def __init__(self, folder):
        self._folder = folder
        self._services = []
        net = network.Network(folder)
        hosts = {name: net.host(name) for name in ("node1", "node2")}
        for host in hosts.values():
            net.names.set(host.name, host.address)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} NodeHostname=localhost CPUs=8" for host in hosts.values())
        self._config = folder / "slurm.conf"
        self._config.write_text(CONFIG.format(gateway=network.GATEWAY, folder=folder, nodes=nodes, partition=PARTITION),
                                encoding="utf-8")
        os.environ["SLURM_CONF"] = str(self._config)
        folder.chmod(0o755)  # munged asks for it
        self._serve("munged", "munged", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.sock",
                    f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed")
        self._wait(lambda: (folder / "munge.sock").exists(), "munged has no socket")
        self._serve("slurmctld", "slurmctld", "-D")
        for host in hosts.values():
            (folder / f"spool-{host.name}").mkdir()
            self._serve(host.name, "nsenter", f"--net={host.namespace}", "slurmd", "-D", "-N", host.name)
        self._wait(lambda: self.ask("sinfo", "--noheader", "--format=%D %t").strip() == "2 idle", "the nodes are not idle")

    def _serve(self, name, *command):
        log = (self._folder / f"{name}.out").open("w", encoding="utf-8")
        self._services.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))

    def _wait(self, holds, what):
        end = time.monotonic() + 30
        while not holds():
            if time.monotonic() > end or any(service.poll() is not None for service in self._services):
                logs = "".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in
                               (*self._folder.glob("*.log"), *self._folder.glob("*.out")))
                raise RuntimeError(f"{what}:\n{logs}")
            time.sleep(0.1)

    @staticmethod
    def ask(*command):
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    def job(self, number):
        """What `scontrol show job` says: field -> value."""
        return dict(re.findall(r"(\w+)=(\S+)", self.ask("scontrol", "show", "job", str(number))))

    def wait(self, number, states=("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")):
        """Waits until the job is in one of the states, and no step of it is left. Returns its fields."""
        end = time.monotonic() + LIMIT_SECONDS
        while (job := self.job(number))["JobState"] not in states:
            if time.monotonic() > end:
                raise AssertionError(f"job {number} is {job['JobState']} ({job['Reason']}) after {LIMIT_SECONDS} s")
            time.sleep(0.1)
        return job
