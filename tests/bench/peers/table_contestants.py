"""The contestants of `--tables`: two workers read the rows of batches from two servers and push gradients for them."""
import json

import environments
import processes
from contestants import (HERE, SERVERS, WORKERS, Contestant, free_port, pytorch_version, summed, tensorflow_version,
                         weir_version)
from processes import Process

# One table. A batch has 26 features of 4,096 examples.
ROWS, DIM, KEYS = 1_000_000, 16, 26 * 4096
LEARNING_RATE = 0.01
WARMUP = 10  # steps a worker
COLUMNS = ["async"]
PEERS = ["weir", "pytorch", "tensorflow"]
FIRST_STEPS = 10
MIN_STEPS = 10

WEIR_BEST = [("Weir, shared memory", "async"), ("Weir, TCP", "async")]
RATIOS = [
    ("Weir, the better / PyTorch RPC's best", WEIR_BEST, [("PyTorch RPC, shm", "async"), ("PyTorch RPC, TCP", "async")], 5),
    ("Weir, the better / TensorFlow's best", WEIR_BEST,
     [(f"TensorFlow ParameterServerStrategy, {call}", "async") for call in ["a step a call", "20 steps a call"]], 5),
]


def weir(transport):
    def run(_, steps, limit):
        command = [str(environments.BIN / "tests/bench/tables_bench"), f"--ps_server={environments.BIN / 'ps_server/ps_server'}",
                   f"--rows={ROWS}", f"--dim={DIM}", f"--transport={transport}", f"--steps={steps}"]
        return summed(processes.run([Process("tables_bench", command)], limit), 1)
    return run


def pytorch_rpc(transport):
    def run(python, steps, limit):
        port = free_port()
        names = SERVERS * ["server"] + WORKERS * ["worker"]
        group = [Process(name, [python, str(HERE / "pytorch_rows.py"), f"--transport={transport}", f"--rank={rank}",
                                f"--port={port}", f"--servers={SERVERS}", f"--workers={WORKERS}", f"--steps={steps}",
                                f"--warmup={WARMUP}", f"--rows={ROWS}", f"--dim={DIM}", f"--keys={KEYS}",
                                f"--rate={LEARNING_RATE}"], serves=name == "server") for rank, name in enumerate(names)]
        return summed(processes.run(group, limit), WORKERS)
    return run


def tensorflow_ps(steps_a_call):
    def run(python, steps, limit):
        tasks = {"chief": 1, "ps": SERVERS, "worker": WORKERS}
        cluster = {job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in tasks.items()}
        group = [Process(f"{job} {index}", [
            python, str(HERE / "tensorflow_rows.py"), f"--task={job}:{index}", f"--cluster={json.dumps(cluster)}",
            f"--steps={steps}", f"--warmup={WARMUP}", f"--steps_a_call={steps_a_call}", f"--rows={ROWS}", f"--dim={DIM}",
            f"--keys={KEYS}", f"--rate={LEARNING_RATE}"], serves=job != "chief")
            for job, count in tasks.items() for index in range(count)]
        return summed(processes.run(group, limit), 1)
    return run


def contestants(options):
    found = []
    for row, transport in [("Weir, shared memory", "shared_memory"), ("Weir, TCP", "tcp")]:
        found.append(Contestant("weir", row, "async", lambda: None, weir(transport), weir_version))

    def pytorch():
        return environments.python_for("pytorch", options.pytorch, "pytorch" in options.install)

    for row, transport in [("PyTorch RPC, shm", "shm"), ("PyTorch RPC, TCP", "tcp")]:
        found.append(Contestant("pytorch", row, "async", pytorch, pytorch_rpc(transport), pytorch_version))

    def tensorflow():
        return environments.python_for("tensorflow", options.tensorflow, "tensorflow" in options.install)

    for row, steps_a_call in [("TensorFlow ParameterServerStrategy, a step a call", 1),
                              ("TensorFlow ParameterServerStrategy, 20 steps a call", 20)]:
        found.append(Contestant("tensorflow", row, "async", tensorflow, tensorflow_ps(steps_a_call), tensorflow_version))
    return found
