"""The contestants: how each is started, and what it measures."""
import json
import pathlib
import socket
import tempfile
from dataclasses import dataclass
from typing import Callable

import environments
import processes
from environments import ROOT, data, output_of
from processes import Failed, Process

HERE = pathlib.Path(__file__).resolve().parent
SERVERS, WORKERS = 2, 2
BATCH = 64
LEARNING_RATE = 0.1
WARMUP = 100  # steps a worker
MODEL = '{"layers":[{"type":"flatten"},{"type":"dense","units":128},{"type":"relu"},{"type":"dense","units":10}]}'
PEERS = ["weir", "pytorch", "tensorflow", "mxnet"]
COLUMNS = ["async", "sync"]
# The first run of each only finds out how long a step takes.
FIRST_STEPS = 200
MIN_STEPS = 50

WEIR_ASYNC = [("Weir, shared memory", "async"), ("Weir, TCP", "async")]
WEIR_SYNC = [("Weir, shared memory", "sync"), ("Weir, TCP", "sync")]
# The best rate of some (row, column) over the best rate of others, and the least ratio that is asked for.
RATIOS = [
    ("async over shared memory / the worker without any exchange", [("Weir, shared memory", "async")],
     [("Weir's worker without any exchange", "async")], 0.6),
    ("async, the better / PyTorch RPC's best", WEIR_ASYNC,
     [(f"PyTorch RPC, {transport}", mode) for transport in ["shm", "TCP"] for mode in COLUMNS], 6),
    ("async, the better / TensorFlow's best", WEIR_ASYNC,
     [(f"TensorFlow ParameterServerStrategy, {call}", "async") for call in ["a step a call", "20 steps a call"]], 20),
    ("sync, the better / PyTorch DDP", WEIR_SYNC, [("PyTorch DDP, gloo", "sync")], 3),
    ("async, the better / MXNet's dist_async", WEIR_ASYNC, [("MXNet, dist_async and dist_sync", "async")], 10),
]


@dataclass
class Measured:
    rate: float  # steps a second, summed over workers
    loss: float = None


@dataclass
class Contestant:
    peer: str  # what --only names
    row: str
    column: str  # "async", "sync"
    prepare: Callable  # () -> context; raises Skipped
    run: Callable  # (context, steps a worker, limit in seconds) -> Measured
    version: Callable  # context -> str


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def summed(lines, expected):
    """Each worker's own rate, summed: a worker that is done early does not count as one that waits."""
    if len(lines) != expected:
        raise Failed(f"{len(lines)} results came instead of {expected}")
    losses = [line["loss"] for line in lines if "loss" in line]
    return Measured(sum(line["steps"] / line["seconds"] for line in lines), max(losses, default=None))


# ---- Weir ------------------------------------------------------------------------------------------------------------


def weir_job():
    return [str(ROOT / "configs/fashion_mlp.json"), "--set", f"model={MODEL}", "--set", f"data.batch_size={BATCH}",
            "--set", f'optimizer={{"type": "sgd", "learning_rate": {LEARNING_RATE}}}', "--set", "evaluation.every_epochs=0"]


def weir_version(_):
    return output_of([str(environments.BIN / "cli/weir"), "--version"]).removeprefix("weir ")


def weir_cluster(mode, transport):
    def run(_, steps, limit):
        consistency = '{"mode": "sync", "parts": 2}' if mode == "sync" else '{"mode": "async"}'
        with tempfile.NamedTemporaryFile(suffix=".json") as summary:
            job = [str(environments.BIN / "cli/weir"), "up", f"--ps={SERVERS}", f"--workers={WORKERS}", "--device=cpu", *weir_job(),
                   "--set", f"consistency={consistency}", "--set", f'wire.transport="{transport}"',
                   "--set", f"train.examples={steps * WORKERS * BATCH}", "--set", "train.epochs=null",
                   f"--summary={summary.name}"]
            processes.run([Process("weir up", job)], limit)
            with open(summary.name, encoding="utf-8") as file:
                found = json.load(file)
        return Measured(found["pushes"] / found["wall_seconds"], found["train_loss"])
    return run


def weir_compute(_, steps, limit):
    command = [str(environments.BIN / "tests/worker/bench/compute_bench"), f"--steps={steps}", f"--warmup={WARMUP}", "--config",
               *weir_job()]
    return summed(processes.run([Process(f"worker {i}", command) for i in range(WORKERS)], limit), WORKERS)


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def pytorch_processes(python, program, mode, names, steps, *own):
    port = str(free_port())
    return [Process(name, [python, str(HERE / program), f"--mode={mode}", f"--data={data()}", f"--rank={rank}", f"--port={port}",
                           f"--servers={SERVERS}", f"--workers={WORKERS}", f"--steps={steps}", f"--warmup={WARMUP}",
                           f"--batch={BATCH}", f"--rate={LEARNING_RATE}", *own], serves=name == "server")
            for rank, name in enumerate(names)]


def pytorch_rpc(mode, transport):
    def run(python, steps, limit):
        group = pytorch_processes(python, "pytorch_rpc.py", mode, SERVERS * ["server"] + WORKERS * ["worker"], steps,
                                  f"--transport={transport}")
        return summed(processes.run(group, limit), WORKERS)
    return run


def pytorch_ddp(python, steps, limit):
    group = pytorch_processes(python, "pytorch_ddp.py", "sync", WORKERS * ["worker"], steps)
    return summed(processes.run(group, limit), WORKERS)


def pytorch_alone(python, steps, limit):
    """Not among contestants(): only `./dev bench python` measures it."""
    return summed(processes.run(pytorch_processes(python, "pytorch_alone.py", "none", WORKERS * ["worker"], steps), limit), WORKERS)


def weir_torch(mode):
    """Not among contestants(), where Weir has its own worker: only `./dev bench python` measures this program."""
    def run(python, steps, limit):
        return _weir_torch(mode, python, steps, limit)
    return run


def _weir_torch(mode, python, steps, limit):
    consistency = {"mode": "sync", "parts": WORKERS} if mode == "sync" else {"mode": "async"}
    with tempfile.TemporaryDirectory() as folder:
        job, out = pathlib.Path(folder) / "job.json", pathlib.Path(folder) / "out"
        job.write_text(json.dumps({
            "name": "weir_torch", "data": {"batch_size": BATCH}, "train": {"examples": (WARMUP + steps) * WORKERS * BATCH},
            "consistency": consistency, "optimizer": {"type": "sgd", "learning_rate": LEARNING_RATE}}),
            encoding="utf-8")
        out.mkdir()
        command = [str(environments.BIN / "cli/weir"), "up", f"--ps={SERVERS}", f"--workers={WORKERS}", str(job), "--", python,
                   str(HERE / "weir_torch.py"), f"--job={job}", f"--data={data()}", f"--out={out}", f"--warmup={WARMUP}",
                   f"--workers={WORKERS}"]
        processes.run([Process("weir up", command, environments.weir_package())], limit)
        # In async a worker makes as many steps as it can until the job ends.
        return summed([json.loads(file.read_text(encoding="utf-8")) for file in out.glob("*.json")], WORKERS)


def pytorch_version(python):
    return output_of([python, "-c", "import torch; print(torch.__version__)"])


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def tensorflow_ps(steps_a_call):
    def run(python, steps, limit):
        tasks = {"chief": 1, "ps": SERVERS, "worker": WORKERS}
        cluster = {job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in tasks.items()}
        group = [Process(f"{job} {index}", [
            python, str(HERE / "tensorflow_ps.py"), f"--task={job}:{index}", f"--cluster={json.dumps(cluster)}", f"--data={data()}",
            f"--steps={steps}", f"--warmup={WARMUP}", f"--batch={BATCH}", f"--steps_a_call={steps_a_call}",
            f"--rate={LEARNING_RATE}"], serves=job != "chief") for job, count in tasks.items() for index in range(count)]
        return summed(processes.run(group, limit), 1)
    return run


def tensorflow_version(python):
    return output_of([python, "-c", "import tensorflow; print(tensorflow.__version__)"])


# ---- MXNet, whose key-value store is ps-lite -------------------------------------------------------------------------


def mxnet_kvstore(mode):
    def run(python, steps, limit):
        command = [python, str(HERE / "mxnet_kvstore.py"), f"--mode={mode}", f"--data={data()}", f"--steps={steps}",
                   f"--warmup={WARMUP}", f"--batch={BATCH}", f"--rate={LEARNING_RATE}"]
        common = {"DMLC_NUM_SERVER": str(SERVERS), "DMLC_NUM_WORKER": str(WORKERS), "DMLC_PS_ROOT_URI": "127.0.0.1",
                  "DMLC_PS_ROOT_PORT": str(free_port()), "DMLC_INTERFACE": "lo", "MXNET_CPU_WORKER_NTHREADS": "1",
                  # By default it leaves arrays of less than a million values on one server.
                  "MXNET_KVSTORE_BIGARRAY_BOUND": "10000"}
        group = [Process(role, command, {**common, "DMLC_ROLE": role}, serves=role != "worker")
                 for role in ["scheduler"] + SERVERS * ["server"] + WORKERS * ["worker"]]
        return summed(processes.run(group, limit), WORKERS)
    return run


def mxnet_version(python):
    return output_of([python, "-c", "import mxnet; print(mxnet.__version__)"])


def contestants(options):
    def nothing():
        return None

    found = []
    for row, transport in [("Weir, shared memory", "shared_memory"), ("Weir, TCP", "tcp")]:
        for mode in ["async", "sync"]:
            found.append(Contestant("weir", row, mode, nothing, weir_cluster(mode, transport), weir_version))
    found.append(Contestant("weir", "Weir's worker without any exchange", "async", nothing, weir_compute, weir_version))
    def pytorch():
        return environments.python_for("pytorch", options.pytorch, "pytorch" in options.install)

    for row, transport in [("PyTorch RPC, shm", "shm"), ("PyTorch RPC, TCP", "tcp")]:
        for mode in ["async", "sync"]:
            found.append(Contestant("pytorch", row, mode, pytorch, pytorch_rpc(mode, transport), pytorch_version))
    found.append(Contestant("pytorch", "PyTorch DDP, gloo", "sync", pytorch, pytorch_ddp, pytorch_version))

    def tensorflow():
        return environments.python_for("tensorflow", options.tensorflow, "tensorflow" in options.install)

    for row, steps_a_call in [("TensorFlow ParameterServerStrategy, a step a call", 1),
                              ("TensorFlow ParameterServerStrategy, 20 steps a call", 20)]:
        found.append(Contestant("tensorflow", row, "async", tensorflow, tensorflow_ps(steps_a_call), tensorflow_version))

    def mxnet():
        return environments.python_for("mxnet", options.mxnet, "mxnet" in options.install)

    for mode in ["async", "sync"]:
        found.append(Contestant("mxnet", "MXNet, dist_async and dist_sync", mode, mxnet, mxnet_kvstore(mode), mxnet_version))
    return found
