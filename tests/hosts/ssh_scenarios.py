"""What `weir up --hosts` does with two hosts, each with an sshd."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

from job import BAD_CONFIG, ENVIRONMENT, PEER_LOST, expect, injected, seen
from scenarios import PACE, TRAINING, expect_undisturbed_weights, scenario
from ssh_hosts import SshWorld

LIMIT_OF_REFUSAL = 30  # seconds
SIZE = "--ps=2", "--workers=3"
ROOT = pathlib.Path(__file__).absolute().parents[2]
PYTHON = "/usr/bin/python3"  # the one with PyTorch


def settings(fields):
    return [f"--set={field}={value}" for field, value in fields.items()]


def long_job(ssh, *arguments):
    """The job of the other scenarios, whose weights are known, when it is well on its way."""
    up = ssh.up(*SIZE, *settings(TRAINING | PACE), *arguments)
    up.wait_for_checkpoints(2)
    return up


@scenario
def ssh_two_hosts(world):
    """Servers and workers on two hosts reach the bits of one host, with TLS and in plain text; slots say where workers are."""
    ssh = SshWorld(world)
    (ssh.folder / "hosts").write_text("# of this test\na slots=1  # the slow one\nb slots=2 gpus=0\n", encoding="utf-8")
    up = ssh.up(*SIZE, *settings(TRAINING | {"debug.worker_delay": 0.02}), "--tls", hosts=ssh.folder / "hosts")

    def counts():
        return [[len(host.processes(program)) for program in ("ps_server", "worker")] for host in ssh.hosts.values()]
    up.wait_for(lambda: counts() == [[1, 1], [1, 2]], "a server on each host, a worker on a, and two on b")
    for host in ssh.hosts.values():
        secrets = [path for path in host.temporary.rglob("*") if path.suffix in (".key", ".pem") or path.name == "token"]
        expect(len(secrets) >= 6 and all(path.stat().st_mode & 0o777 == 0o600 for path in secrets),
               f"{host.name} has not all files, or others may read one: {secrets}")
        keys = {path.name for path in secrets if path.suffix == ".key"}
        expect("ca.key" not in keys and len(keys) == 1 + len(host.processes("worker")), f"{host.name} has the keys {keys}")
    seen("each host has the token, and the certificates of its own tasks alone, for its user alone")
    summary = up.summary()
    expect(summary["tls"], "the job had no TLS")
    expect_undisturbed_weights(world, summary)
    up = ssh.up(*SIZE, *settings(TRAINING))
    expect_undisturbed_weights(world, up.summary())
    expect("in plain text" in up.log(), "`weir up` does not say that nothing is encrypted")


@scenario
def ssh_this_machine(world):
    """localhost is a host without ssh: its address is the one that the other host sees."""
    ssh = SshWorld(world)
    up = ssh.up(*SIZE, *settings(TRAINING), "--ps_port=7070", "--http_port=0", hosts="localhost,b")
    expect_undisturbed_weights(world, up.summary())
    expect("dashboard: http://10.77.0.1:" in up.log(), f"ps:0 is elsewhere:\n{up.log()}")
    left = [path.name for path in (up.folder / "logs").iterdir() if path.name in ("token", "certs")]
    expect(not left, f"{left} are left here")


def killed_and_back(ssh, up, worker):
    """Kills the server on b, and on a a process that runs `worker`: both are started again. The job's summary."""
    os.kill(ssh.hosts["b"].processes("ps_server")[0], signal.SIGKILL)
    injected("the server on b is killed")
    up.wait_for(lambda: "ps:1 on b was killed by signal 9 (Killed)" in up.log(), "the end of ps:1 is told")
    os.kill(ssh.hosts["a"].processes(worker)[0], signal.SIGKILL)
    injected("a worker on a is killed")
    summary = up.summary()
    expect(summary["restarts"].get("ps:1") == 1 and "worker:0" in summary["restarts"], f"restarts: {summary['restarts']}")
    return summary


@scenario
def ssh_restart(world):
    """A server and a worker are killed: with --restart they are started again on their hosts, and the bits are the same."""
    ssh = SshWorld(world)
    up = long_job(ssh, "--restart")
    summary = killed_and_back(ssh, up, "worker")
    expect_undisturbed_weights(world, summary)


@scenario
def ssh_python(world):
    """A PyTorch program on two hosts reaches the bits of one host, though a server and a worker are killed."""
    job = ROOT / "examples/cnn.json"
    # A worker on a host of its own would have more threads, and other bits of PyTorch's.
    program = ["--", "env", f"PYTHONPATH={ROOT}/python", f"WEIR_LIBRARY={world.weir.parents[1]}/python/capi/libweir.so",
               "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1", PYTHON, job.with_suffix(".py"), "--most=1000"]
    size = ["--ps=2", "--workers=2", "--set=train.epochs=6"]
    alone = world.folder / "alone.json"
    done = subprocess.run([world.weir, "up", *size, job, f"--summary={alone}", *program], check=False, capture_output=True, text=True,
                          env=ENVIRONMENT)
    expect(done.returncode == 0, f"on one host `weir up` has ended with {done.returncode}:\n{done.stderr}")
    expected = json.loads(alone.read_text(encoding="utf-8"))["weights_sha256"]
    ssh = SshWorld(world)
    up = ssh.up(*size, "--set=checkpoint.every_steps=10", "--restart", *program, config=job)
    up.wait_for_checkpoints(1)
    summary = killed_and_back(ssh, up, "cnn.py")
    expect(summary["weights_sha256"] == expected, f"weights_sha256 {summary['weights_sha256']}, on one host {expected}")
    seen(f"all {summary['steps']} steps; weights_sha256 {expected[:16]}... as on one host")


@scenario
def ssh_interrupt(world):
    """Ctrl-C saves a checkpoint and ends everything; a `weir up` that is killed leaves nothing either."""
    ssh = SshWorld(world)
    up = long_job(ssh)
    injected("Ctrl-C")
    up.process.send_signal(signal.SIGINT)
    up.expect_end(130, "saving a checkpoint", "SIGINT")
    up = long_job(ssh)
    injected("`weir up` is killed")
    up.process.kill()
    up.expect_end(-signal.SIGKILL)
    seen("0 processes on both hosts, each time")


@scenario
def ssh_lost(world):
    """A lost connection ends what was started there; with --restart the tasks come back by a new one, and the bits are the same."""
    ssh = SshWorld(world)
    up = long_job(ssh)
    os.kill(up.ssh_to("b"), signal.SIGKILL)
    injected("the ssh to b is killed")
    up.expect_end(PEER_LOST, "error: ps:1 on b was lost with its host", "ssh ended with signal 9 (Killed)")
    up = long_job(ssh)
    injected("b is cut off, and nobody is told")
    ssh.hosts["b"].host.cut()
    up.expect_end(PEER_LOST, "error: ps:", "not responding")
    ssh.hosts["b"].host.heal()
    seen("0 processes on both hosts, each time")
    up = long_job(ssh, "--restart")
    os.kill(up.ssh_to("b"), signal.SIGKILL)
    injected("the ssh to b is killed, with --restart")
    expect_undisturbed_weights(world, up.summary())
    # So long that ssh notices the cut before the others are done.
    up = ssh.up("--ps=1", "--workers=3", *settings(TRAINING | PACE | {"train.epochs": 30}), "--restart")
    up.wait_for_checkpoints(2)
    ssh.hosts["b"].host.cut()
    injected("b, which has a worker alone, is cut off for good, with --restart")
    summary = up.summary()
    expect("warning: host b: " in up.log() and summary["exit_codes"]["worker:2"] == 137, f"b came back:\n{up.log()}")
    seen("the others did all the work")


@scenario
def ssh_refusals(world):
    """A host that is no use ends the job within 30 s, with the host, what was seen, and what to do. Nothing is left."""
    ssh = SshWorld(world)

    def refused(texts, *arguments, **how):
        seconds = ssh.up(*SIZE, *arguments, **how).expect_end(BAD_CONFIG, *texts)
        expect(seconds < LIMIT_OF_REFUSAL, f"that took {seconds:.0f} s")
        seen(f"'{texts[-1]}' after {seconds:.1f} s")
    refused(["host nowhere: ssh ended with exit code 255", "must work without a password"], hosts="a,nowhere")
    other = ssh.folder / "weir"
    other.write_text(r"""#!/bin/sh
printf 'weir-host\thello\t9.9.9\t/tmp\t\n'
cat >/dev/null
""", encoding="utf-8")
    other.chmod(0o755)
    refused(["host a: weir there has version 9.9.9", "host b: weir there", "install the same version there"], f"--weir={other}")
    other.write_text("#!/bin/sh\necho 'The following argument was not expected: host-agent'\nexit 64\n", encoding="utf-8")
    refused(["not expected: host-agent", "is weir there older?"], f"--weir={other}")
    refused(["host b: ssh ended with exit code 127", "is Weir installed there?"], f"--weir={ssh.folder}/none")
    refused(["host b: the folder /none: No such file", "copy yours (--copy)"], "--dir=/none")
    refused(["host a: cannot run nothing-like-it", "is it misspelt?"], "--", "nothing-like-it")
    refused(["3 workers, but the hosts have 2 slots"], hosts=hosts_file(ssh, "a slots=1\nb slots=1\n"))
    refused(["hosts:2: 'slots=none'"], hosts=hosts_file(ssh, "a\nb slots=none\n"))
    ssh.hosts["b"].host.cut()
    injected("b is cut off")
    refused(["host b: ssh ended", "must work without a password"])
    ssh.hosts["b"].host.heal()


def hosts_file(ssh, text):
    path = ssh.folder / "hosts"
    path.write_text(text, encoding="utf-8")
    return path


@scenario
def ssh_copy(world):
    """--copy takes the program and its folder, without hidden files, to the hosts; a program's failure is the first cause."""
    ssh = SshWorld(world)
    here, there = ssh.folder / "here", ssh.folder / "there" / "of it"
    (here / "package").mkdir(parents=True)
    (here / ".hidden").touch()
    (here / "package" / "data.txt").write_text("42", encoding="utf-8")
    shutil.copy(world.config, here / "job.json")
    program = "import os; print(open('package/data.txt').read(), os.getcwd(), os.environ['CUDA_VISIBLE_DEVICES']); raise SystemExit(3)"
    up = ssh.up("--workers=1", "--copy", f"--dir={there}", "--", "python3", "-c", program, config="job.json", directory=here,
                hosts=hosts_file(ssh, "a gpus=1\nb\n"))
    up.expect_end(3, f"    42 {there} 0", "error: worker:0 on a exited with 3")
    expect(sorted(path.name for path in there.iterdir()) == ["job.json", "package"], f"{list(there.iterdir())}")
