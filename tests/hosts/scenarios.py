"""What happens to the hosts of a job, and what must come of it."""
import json

from certificates import Certificates
from containers import Containers
from job import BAD_CONFIG, DRAINED, HEALTH_PORT, KILLED, PEER_LOST, cluster_of, expect, get, injected, seen, wait_until
from object_storage import BUCKET, start_storage

SCENARIOS = {}  # name -> function(world), in the order of this file


def scenario(function):
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


# A sync job of 230 steps, ten seconds or more: long enough for what happens in its middle. Its weights follow from the first
# line alone, whichever hosts die.
TRAINING = {"train.epochs": 10}
PACE = {"debug.worker_delay": 0.05, "checkpoint.every_steps": 10}
SERVERS, WORKERS = 2, 3


def sync_job(world, settings=None, workers=WORKERS, **how):
    return world.job(SERVERS, workers, TRAINING | PACE | (settings or {}), **how)


def expect_undisturbed_weights(world, summary):
    expected, found = world.undisturbed(TRAINING), summary["weights_sha256"]
    expect(found == expected, f"weights_sha256 {found} after {summary['steps']} steps, undisturbed {expected}")
    seen(f"all {summary['steps']} steps; weights_sha256 {found[:16]}... as without the fault")


def restart_elsewhere(job, name):
    old = job.pods[name].host.address
    job.remove(name)
    job.start(name)
    new = job.pods[name].host
    injected(f"{name} is started on another host: its name leads to {new.address}, no longer to {old}")
    return new


def expect_asked_again(world, job, name, askers):
    """All of them have looked for the name's new address."""
    address = job.pods[name].host.address
    for asker in askers:
        pod = job.pods[asker]

        def told(pod=pod):
            return world.network.names.questions(job.service_name(name), pod.host.address, address) > 0
        # A server announces itself once in a lease.
        wait_until(lambda pod=pod, told=told: told() or pod.ended(), f"{asker} asks for {name}")
        expect(told(), f"{asker} was never told that {name} is at {address}")
    seen(f"{', '.join(askers)} asked the DNS again for {name}")


@scenario
def late_name(world):
    """The servers' names exist only after everybody has asked for them in vain."""
    job = sync_job(world)
    names = world.network.names
    job.start(*job.server_names, named=False)
    job.start(*job.worker_names)
    injected("the names of the servers do not exist")

    def in_vain(asker, name):
        return names.questions(job.service_name(name), job.pods[asker].host.address) >= 3
    askers = [(asker, "weir-ps-0") for asker in job.worker_names + ["weir-ps-1"]] + [("weir-ps-0", "weir-ps-1")]
    for asker, name in askers:
        wait_until(lambda asker=asker, name=name: in_vain(asker, name), f"{asker} asks three times for {name}")
    seen("each task asked three times for the server that it needs")
    for name in job.server_names:
        job.publish(name, job.pods[name].host)
    injected("the names exist")
    expect_undisturbed_weights(world, job.wait_for_end())


def lose_servers(world, job, lose):
    """Loses ps:1, which comes back elsewhere, and then ps:0. The job ends as if nothing had happened."""
    job.start(*job.names)
    for name in "weir-ps-1", "weir-ps-0":
        at = job.step() + 20
        job.wait_for_step(at)
        lose(job.pods[name])
        restart_elsewhere(job, name)
        job.wait_for_step(at + 10)
        seen(f"the job went back to a checkpoint, and has done step {at + 10}")
        # Of servers, only ps:0 connects to others; they connect to ps:0.
        expect_asked_again(world, job, name, [other for other in job.names if other != name])
    summary = job.wait_for_end()
    expect(summary["recoveries"] == 0, f"{summary['recoveries']} recoveries since ps:0 came back")
    expect_undisturbed_weights(world, summary)


def kill(pod):
    pod.kill()
    injected(f"{pod.name} is killed")


@scenario
def server_moves(world):
    """A server is killed and comes back at a new address: ps:1, then ps:0."""
    lose_servers(world, sync_job(world), kill)


@scenario
def server_moves_s3(world):
    """The same with checkpoints in object storage, and no folder that servers share."""
    storage = start_storage(world.folder)
    world.at_end(storage.close)
    settings = {"checkpoint.directory": f"s3://{BUCKET}/digits"}
    lose_servers(world, sync_job(world, settings, environment=storage.variables), kill)


@scenario
def host_dies(world):
    """A server's host is gone without a word, and the server comes back on another: ps:1, then ps:0."""
    def pull_the_plug(pod):
        pod.host.cut()
        pod.kill()
        injected(f"the host of {pod.name} is dead: no connection is closed")
    lose_servers(world, sync_job(world, {"cluster.lease_seconds": 2}), pull_the_plug)


@scenario
def worker_drained(world):
    """A worker gets SIGTERM, and is started again."""
    job = sync_job(world)
    job.start(*job.names)
    job.wait_for_step(20)
    worker = job.pods["weir-worker-1"]
    worker.drain()
    injected("SIGTERM to weir-worker-1")
    code = worker.wait()
    expect(code == DRAINED, f"weir-worker-1 has ended with {code}, not {DRAINED}")
    job.remove("weir-worker-1")
    wait_until(lambda: job.live_workers() == 2, "the job has two workers")
    seen(f"it ended with {code}; the others go on")
    job.start("weir-worker-1")
    injected("weir-worker-1 is started again")
    wait_until(lambda: job.live_workers() == 3, "the job has three workers")
    seen("the job has three workers again")
    expect_undisturbed_weights(world, job.wait_for_end())


@scenario
def worker_out_of_memory(world):
    """The kernel kills a worker for memory, and it is started again."""
    containers = Containers(world.folder, seen=world.programs)
    job = sync_job(world)
    job.start(*(name for name in job.names if name != "weir-worker-1"))
    limit = 192 << 20
    job.start("weir-worker-1", containers=containers, memory_bytes=limit)
    job.wait_for_step(20)
    worker = job.pods["weir-worker-1"]
    events = worker.events()
    # The file counts for the container; of its processes the worker has the most memory.
    filler = worker.execute("dd", "if=/dev/zero", "of=/dev/shm/fill", "bs=1M")
    injected(f"a file in memory fills the {limit >> 20} MiB that weir-worker-1 may have")
    code = worker.wait()
    kinds = [json.loads(line)["type"] for line in events.communicate()[0].splitlines()]
    filler.wait()
    expect(code == KILLED, f"weir-worker-1 has ended with {code}, not {KILLED}")
    expect("oom" in kinds, f"runc has not seen the kernel run out of the pod's memory, only {kinds}")
    job.remove("weir-worker-1")
    wait_until(lambda: job.live_workers() == 2, "the job has two workers")
    seen(f"the kernel killed it for memory: {code}; the others go on")
    job.start("weir-worker-1", containers=containers, memory_bytes=limit)
    injected("weir-worker-1 is started again")
    wait_until(lambda: job.live_workers() == 3, "the job has three workers")
    seen("the job has three workers again")
    expect_undisturbed_weights(world, job.wait_for_end())


@scenario
def short_partition(world):
    """A worker is cut off for less than its lease."""
    job = sync_job(world, {"cluster.lease_seconds": 60})
    job.start(*job.names)
    job.wait_for_step(20)
    worker = job.pods["weir-worker-1"]
    worker.host.cut()
    injected("weir-worker-1 is cut off from everybody")
    at = job.wait_for_standstill()
    seen(f"step {at} waits for it")
    worker.host.heal()
    injected("it is connected again, long before its lease of 60 s ends")
    summary = job.wait_for_end()
    expect("is taken out" not in job.pods["weir-ps-0"].log(), "ps:0 has taken a worker out")
    expect_undisturbed_weights(world, summary)


@scenario
def long_partition(world):
    """A worker is cut off for longer than its lease."""
    job = sync_job(world, {"cluster.lease_seconds": 2, "cluster.server_wait_seconds": 4})
    job.start(*job.names)
    job.wait_for_step(20)
    worker = job.pods["weir-worker-1"]
    worker.host.cut()
    injected("weir-worker-1 is cut off from everybody")
    job.pods["weir-ps-0"].wait_for_log("is taken out: ")
    at = job.step()
    wait_until(lambda: job.step() > at, f"the job goes on from step {at}")
    seen("ps:0 has taken it out of the job; the others go on")
    code = worker.wait()
    expect(code == PEER_LOST, f"weir-worker-1 has ended with {code}, not {PEER_LOST}")
    seen(f"it ended with {code}, which asks for another try")
    worker.host.heal()
    injected("it is connected again, and started again")
    job.start("weir-worker-1", host=worker.host)
    wait_until(lambda: job.live_workers() == 3, "the job has three workers")
    seen("the job has three workers again")
    expect_undisturbed_weights(world, job.wait_for_end())


@scenario
def scaling(world):
    """Workers are scaled from 2 to 6 to 3 while the job runs, and nobody is restarted."""
    job = sync_job(world, {"cluster.min_workers": 1}, workers=6)
    job.start(*job.server_names, *job.worker_names[:2])
    job.wait_for_step(10)
    job.start(*job.worker_names[2:])
    injected("four more workers")
    wait_until(lambda: job.live_workers() == 6, "the job has six workers")
    job.wait_for_step(job.step() + 10)
    seen("the job goes on with six")
    for name in job.worker_names[3:]:
        job.pods[name].drain()
    injected("SIGTERM to three of them")
    for name in job.worker_names[3:]:
        code = job.pods[name].wait()
        expect(code == DRAINED, f"{name} has ended with {code}, not {DRAINED}")
        job.remove(name)
    wait_until(lambda: job.live_workers() == 3, "the job has three workers")
    seen(f"they ended with {DRAINED}; the job goes on with three")
    summary = job.wait_for_end()
    for pod in job.pods.values():
        expect("joined again" not in pod.log(), f"{pod.name} has joined again")
    expect_undisturbed_weights(world, summary)


@scenario
def slow_link(world):
    """One of three workers of a bounded job has a slow link."""
    bound, rate = 2, "2mbit"
    job = sync_job(world, {"consistency": f'{{"mode":"bounded","staleness":{bound}}}', "train.epochs": 3})
    slow = world.network.host("weir-worker-1")
    slow.limit(rate)
    injected(f"the link of weir-worker-1 has {rate} in each direction")
    job.start("weir-worker-1", host=slow)
    job.start(*(name for name in job.names if name != "weir-worker-1"))
    summary = job.wait_for_end()
    expect(slow.limited_packets() > 0, "no packet had to wait for the slow link")
    expect(summary["examples"] == 3 * 1500, f"{summary['examples']} examples, not all 4500")
    expect(summary["lead"]["max"] <= bound + 1, f"a lead of {summary['lead']['max']} clocks with a bound of {bound}")
    seen(f"{slow.limited_packets()} packets waited for the link; all examples are done; a lead of at most "
         f"{summary['lead']['max']} clocks with a bound of {bound}")


def replace_certificates(job, give, made, taken_up):
    """As docs/security.md says: all trust both CAs, all get new certificates, nobody trusts the old CA. `made`: the old folder and
    the new one; give(folder, trusted folders); taken_up(): whether all tasks have read what was given."""
    old, new = made
    for of, trusted, what in [(old, [old, new], "all tasks trust a second CA"), (new, [old, new], "all have certificates of it"),
                              (new, [new], "nobody trusts the first CA any more")]:
        give(of, trusted)
        injected(what)
        wait_until(taken_up, "all tasks read the files that were replaced")
        job.wait_for_step(job.step() + 5)
    expect(len(job.starts) == len(job.pods), "a task was started again")
    seen("each task has read its new files; the job goes on, and nobody was started again")


@scenario
def tls(world):
    """With TLS: all certificates and their CA are replaced under way, and then a server comes back at a new address."""
    certificates = Certificates(world, cluster_of(SERVERS, WORKERS))
    old, new = certificates.made, certificates.make()
    # Each replacement takes a second or two.
    job = sync_job(world, {"debug.worker_delay": 0.1}, certificates=certificates)
    job.start(*job.names)
    job.wait_for_step(10)
    server = job.pods["weir-ps-0"].host.address
    expect(get(server, "/healthz") is not None and get(server, "/status") is None, "the HTTP port tells strangers more than health")
    for probe in "/readyz", "/healthz":
        expect(get(server, probe, HEALTH_PORT) is not None, f"a probe of {probe} without a certificate fails")
    seen("probes without certificate or token succeed; the HTTP port tells health alone")
    tasks = [name.removeprefix("weir-") for name in job.names]
    replace_certificates(job, certificates.give, (old, new), lambda: certificates.taken_up(tasks))
    for made, code in (old, BAD_CONFIG), (new, 0):
        asked = job.ask(certificates.of_reader(made))
        expect(asked.returncode == code, f"`weir status` has ended with {asked.returncode}, not {code}: {asked.stderr}")
    seen("ps:0 refuses a reader whose certificate is of the first CA, and answers one of the second")
    kill(job.pods["weir-ps-1"])
    restart_elsewhere(job, "weir-ps-1")
    summary = job.wait_for_end()
    expect(summary["tls"] is True, "the summary does not say that the job had TLS")
    expect(summary["recoveries"] == 1, f"{summary['recoveries']} recoveries")
    expect_undisturbed_weights(world, summary)
