"""A worker that gives the job's initial values, each worker its own, and pushes gradients of zeros; for the tests. As the
first upload begins, the file `begun` is made."""
import argparse
import json
import os
import pathlib
import signal
import threading

import numpy as np
import weir

EXAMPLES = 24


def on_upload(act):
    """Calls `act` when this process begins to upload: when its log says so, which still goes where it went."""
    log = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)

    def follow():
        seen = b""
        while data := os.read(reader, 1 << 16):
            os.write(log, data)
            seen += data
            if b"uploads the initial values" in seen:
                seen = b""
                act()

    threading.Thread(target=follow, daemon=True).start()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--elements", type=int, default=1000)
    parser.add_argument("--die", action="store_true", help="the worker that makes the file kills itself")
    args = parser.parse_args()

    def act():
        try:
            os.close(os.open(args.folder / "begun", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if args.die:
            os.kill(os.getpid(), signal.SIGKILL)

    on_upload(act)
    value = np.float32(json.loads(os.environ["TF_CONFIG"])["task"]["index"] + 1)
    tensors = {"w": np.full(args.elements, value), "b": np.full((3, 5), value)}
    into = {name: np.empty_like(array) for name, array in tensors.items()}
    with weir.Client(args.job, tensors, EXAMPLES) as client:
        for step in client.steps(into):
            step.gradient.flat[:] = 0
            step.push()
    np.savez(args.folder / f"weights-{os.getpid()}.npz", **into)


if __name__ == "__main__":
    main()
