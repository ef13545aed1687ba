#!/usr/bin/python3
"""A worker in another language: drives a real ps_server with stubs that the plain gRPC tools generate from the .proto files.
Joins, pulls, pushes (in float32 and bfloat16, in one chunk and in several), checks each value, and ends the job.
"""
import array
import json
import os
import pathlib
import queue
import random
import struct
import subprocess
import sys
import tempfile
import time

LIMIT_SECONDS = 60  # for anything
ELEMENTS = 300_000  # in two chunks
CHUNK = 262_144
BATCH = 8
STEPS = 4
RATE = 0.5


def generate(folder):
    """Generates the stubs, as any Python project does."""
    protos = ["failure", "options", "job_config", "model", "coordinator", "parameter_server"]
    subprocess.run(
        ["protoc", "-I.", f"--python_out={folder}", f"--grpc_out={folder}",
         "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin", *(f"proto/{name}.proto" for name in protos)],
        check=True)
    sys.path.insert(0, str(folder))


def start_server(folder, job, token):
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "cluster.json").write_text('{"cluster": {"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:1"]}}')
    port_file = folder / "port"
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    if token:
        (folder / "token").write_text(token)
        (folder / "token").chmod(0o600)
        environment["WEIR_TOKEN_FILE"] = str(folder / "token")
    server = subprocess.Popen(
        ["ps_server/ps_server", f"--config={folder}/job.json", f"--cluster={folder}/cluster.json", "--task=ps:0",
         f"--port_file={port_file}"], env=environment)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not port_file.exists():
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.01)
    return server, f"127.0.0.1:{port_file.read_text().strip()}"


def floats(data, bf16):
    if bf16:
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return array.array("f", data)


class Shard:
    """One Exchange stream."""

    def __init__(self, stub, messages, metadata):
        self._messages = messages
        self._requests = queue.Queue()
        self._replies = stub.Exchange(iter(self._requests.get, None), timeout=LIMIT_SECONDS, metadata=metadata)
        self._id = 0

    def close(self):
        self._requests.put(None)
        assert list(self._replies) == []

    def exchange(self, push=None, gradient=b"", pull=None):
        """Returns the answers to the push and to the pull, and the weights."""
        self._id += 1
        size = 2 if push is not None and push.dtype == self._messages.BF16 else 4
        chunks = [(first, gradient[size * first:size * (first + CHUNK)])
                  for first in range(0, len(gradient) // size, CHUNK)]
        request = self._messages.ExchangeRequest(id=self._id, push=push, pull=pull)
        if chunks:
            request.first, request.gradient = chunks.pop(0)
        self._requests.put(request)
        pushed, pulled, weights, got = None, None, {}, 0
        while (push is not None and pushed is None) or (pull is not None and (pulled is None or got < ELEMENTS)):
            reply = next(self._replies)
            assert reply.id == self._id, reply
            assert not reply.HasField("error"), reply.error
            if reply.HasField("push"):
                pushed = reply.push
                assert pushed.outcome == self._messages.OK, pushed
            if reply.HasField("pull"):
                pulled = reply.pull
                assert pulled.outcome == self._messages.OK, pulled
                if pushed is None or pulled.version != pushed.version:
                    weights, got = {}, 0
            if reply.weights:
                weights[reply.first] = floats(reply.weights, pull.dtype == self._messages.BF16)
                got += len(weights[reply.first])
            for _ in range(reply.credit):
                if chunks:
                    first, data = chunks.pop(0)
                    self._requests.put(self._messages.ExchangeRequest(id=self._id, first=first, gradient=data))
        assert not chunks
        values = array.array("f")
        for first in sorted(weights):
            assert first == len(values)
            values += weights[first]
        return pushed, pulled, values


def train(server, address, mode, token):
    # pylint: disable=import-error,import-outside-toplevel,no-member
    import grpc
    from proto import coordinator_pb2, coordinator_pb2_grpc, job_config_pb2, model_pb2, parameter_server_pb2
    from proto import parameter_server_pb2_grpc

    config = job_config_pb2.JobConfig()
    config.model.layers.add(type=job_config_pb2.LayerConfig.LAYER_DENSE, name="out", units=2,
                            init=job_config_pb2.LayerConfig.INIT_ZEROS)
    config.data.format = job_config_pb2.DataConfig.FORMAT_DIGITS
    config.data.batch_size = BATCH
    config.train.examples = STEPS * BATCH
    config.consistency.mode = {"sync": job_config_pb2.ConsistencyConfig.MODE_SYNC,
                               "async": job_config_pb2.ConsistencyConfig.MODE_ASYNC}[mode]
    config.optimizer.type = job_config_pb2.OptimizerConfig.KIND_SGD
    config.optimizer.learning_rate = RATE

    # A job without a token: speaks as the first version of the protocol did.
    metadata = [("authorization", f"Bearer {token}")] if token else None
    protocol = model_pb2.ProtocolVersion(major=1, minor=1) if token else None
    instance = random.getrandbits(64)
    limits = {"timeout": LIMIT_SECONDS, "metadata": metadata}
    with grpc.insecure_channel(address) as channel:
        coordinator = coordinator_pb2_grpc.CoordinatorStub(channel)
        model = model_pb2.Model(tensors=[
            model_pb2.Tensor(name="a", shape=[100, 1000], init=model_pb2.Tensor.CONSTANT, init_value=2),
            model_pb2.Tensor(name="b", shape=[ELEMENTS - 100_000], init=model_pb2.Tensor.CONSTANT, init_value=-1)])
        member = coordinator.Join(
            coordinator_pb2.JoinRequest(role=coordinator_pb2.WORKER, task="worker:0", rank=0,
                                        instance=instance, model=model.SerializeToString(),
                                        job_config=config.SerializeToString(), train_examples=100,
                                        ps_addresses=[address], protocol=protocol), **limits)
        assert member.protocol.major == 1
        caller = model_pb2.Caller(worker=member.worker, incarnation=member.incarnation,
                                  epoch=member.membership.epoch, model_hash=member.model_hash,
                                  instance=instance if token else 0)
        messages = parameter_server_pb2
        shard = Shard(parameter_server_pb2_grpc.ParameterServerStub(channel), messages, metadata)
        _, pull, weights = shard.exchange(pull=messages.PullRequest(caller=caller, clock=0))
        assert pull.version.count == 0 and pull.elements == ELEMENTS
        expected = array.array("f", [2] * 100_000 + [-1] * (ELEMENTS - 100_000))
        assert weights == expected
        finished, batches = [], list(range(STEPS)) if mode == "sync" else []
        for step in range(STEPS):
            if not batches:  # async: the coordinator hands them out
                work = coordinator.NextRange(
                    coordinator_pb2.NextRangeRequest(caller=caller, completed_ranges=finished), **limits)
                batches = list(range(work.range.first_batch, work.range.first_batch + work.range.batches))
                finished = [work.range.id]
            bf16 = step % 2 == 1
            dtype = messages.BF16 if bf16 else messages.F32
            # Small multiples of 1/4: exact in bfloat16 too, weights included.
            gradient = array.array("f", (((i + step) % 8 - 3) / 4 for i in range(ELEMENTS)))
            data = gradient.tobytes()
            if bf16:
                data = b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
            push, pull, weights = shard.exchange(
                push=messages.PushRequest(caller=caller, clock=step, batch_plus_one=batches.pop(0) + 1, examples=BATCH,
                                          base=pull.version, elements=ELEMENTS, dtype=dtype),
                gradient=data, pull=messages.PullRequest(caller=caller, clock=step + 1, dtype=dtype))
            assert push.version.count == pull.version.count == step + 1
            expected = array.array("f", (w - RATE * g for w, g in zip(expected, gradient)))
            wrong = [(i, w, e) for i, (w, e) in enumerate(zip(weights, expected)) if w != e]
            assert len(weights) == ELEMENTS and not wrong, f"{len(weights)} values, wrong at step {step}: {wrong[:5]}"
        shard.close()
        if mode == "async":
            assert coordinator.NextRange(
                coordinator_pb2.NextRangeRequest(caller=caller, completed_ranges=finished), **limits).done
        coordinator.Leave(coordinator_pb2.LeaveRequest(caller=caller, done=True), **limits)
    assert server.wait(LIMIT_SECONDS) == 0


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as name:
        folder = pathlib.Path(name)
        generate(folder)
        for mode, token in [("sync", ""), ("async", f"{random.getrandbits(256):064x}")]:
            (folder / mode).mkdir()
            server, address = start_server(folder / mode, {
                "model": {"layers": [{"type": "dense", "name": "out", "units": 2, "init": "zeros"}]},
                "data": {"format": "digits", "batch_size": BATCH},
                "train": {"examples": STEPS * BATCH},
                "consistency": {"mode": mode},
                "optimizer": {"type": "sgd", "learning_rate": RATE},
            }, token)
            try:
                train(server, address, mode, token)
            finally:
                server.kill()
                server.wait()
            print(f"{mode}: {STEPS} steps as expected")


if __name__ == "__main__":
    assert struct.pack("=f", 1) == struct.pack("<f", 1), "little-endian only"
    main()
