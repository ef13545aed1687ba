#!/usr/bin/python3
"""`weir import`: a job begins with the tensors of a safetensors file."""
import json
import pathlib
import unittest

import numpy as np
import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import job

WEIR = str(support.ROOT / "cli/weir")
TYPES = {"float32": "F32", "int64": "I64", "uint64": "U64", "float16": "F16", "float64": "F64", "bfloat16": "BF16"}


def write_halves(path, tensors):
    """The same of PyTorch's tensors, since NumPy has no bfloat16."""
    write_safetensors(path, {name: Halves(t) for name, t in tensors.items()})


class Halves:
    """A tensor of PyTorch as write_safetensors() takes arrays."""

    def __init__(self, tensor):
        self.dtype, self.shape, self.nbytes = str(tensor.dtype).removeprefix("torch."), tensor.shape, 2 * tensor.numel()
        self.tobytes = tensor.contiguous().view(torch.int16).numpy().tobytes


def write_safetensors(path, arrays):
    """As the format's specification says; the tensors lie in the order of the mapping."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        header[name] = {"dtype": TYPES[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path):
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {name: np.frombuffer(data, np.float32, int(np.prod(t["shape"], dtype=int)), begin + t["data_offsets"][0])
            .reshape(t["shape"]) for name, t in header.items() if name != "__metadata__"}


class Import(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.file, self.weights = self.folder / "model.safetensors", self.folder / "weights"

    def weir(self, *arguments, code=0):
        done = support.run([WEIR, *map(str, arguments)])
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def begins_with(self, model, state):
        """Whether a job that has `weights` begins with this state."""
        opt = weir.torch.Optimizer(model, job(checkpoint={"init_from": str(self.weights)}), train.Examples())
        next(loop := opt.loader())
        found = {name: value.clone() for name, value in model.state_dict().items()}
        loop.close()
        return found.keys() == state.keys() and all(torch.equal(found[name], value) for name, value in state.items())

    def trained(self, saved=False):
        """A model that was trained for an epoch, and its checkpoints."""
        model, checkpoints = train.make_model(norm=True), self.folder / "checkpoints"
        more = {"checkpoint": {"directory": str(checkpoints)}} if saved else {}
        opt = weir.torch.Optimizer(model, job(train={"epochs": 1}, **more), train.Examples())
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        return model, checkpoints

    def test_it_is_the_reverse_of_export(self):
        model, checkpoints = self.trained(saved=True)
        self.weir("export", checkpoints, self.file)
        exported = train.make_model(norm=True)
        exported.load_state_dict({name: torch.tensor(array) for name, array in read_safetensors(self.file).items()})
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(exported.state_dict()[name], value), name)

        said = self.weir("import", self.file, self.weights)
        self.assertIn(f"{len(model.state_dict())} tensors of {self.file}", said)
        self.assertIn(": ok", self.weir("checkpoint", "verify", self.weights))
        self.assertTrue(self.begins_with(train.make_model(norm=True), model.state_dict()))

    def test_a_file_of_another_order(self):
        """PyTorch users' files have the tensors by type and name, and counts as integers."""
        model, _ = self.trained()
        arrays = {name: value.numpy() for name, value in model.state_dict().items()}
        write_safetensors(self.file, dict(sorted(arrays.items(), key=lambda item: (item[1].dtype != np.int64, item[0]))))
        weir.torch.save_weights(train.make_model(norm=True), self.folder / "like")
        self.weir("import", self.file, self.weights, f"--like={self.folder / 'like'}")
        self.assertTrue(self.begins_with(train.make_model(norm=True), model.state_dict()))

        self.weights = self.folder / "sorted"
        self.weir("import", self.file, self.weights)
        with self.assertRaisesRegex(weir.ConfigError, "expected the name '0.weight', got '4.num_batches_tracked'"):
            self.begins_with(train.make_model(norm=True), {})

    def test_halves(self):
        """bfloat16 and float16 become the float32 of the same value, subnormals too."""
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                state = {name: value.to(dtype) for name, value in train.make_model().state_dict().items()}
                state["0.bias"][:3] = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).tiny / 4, -0.0])
                write_halves(self.file, state)
                self.weights = self.folder / f"{dtype}"
                self.weir("import", self.file, self.weights)
                self.assertTrue(self.begins_with(train.make_model(), {name: value.float() for name, value in state.items()}))
        state["0.bias"] = torch.zeros(len(state["0.bias"]), dtype=torch.bfloat16)
        state["0.bias"][1] = torch.nan
        write_halves(self.file, state)
        error = self.weir("import", self.file, self.folder / "not a number", code=78)
        self.assertIn("tensor '0.bias' (BF16): element 1 is nan", error)

    def test_what_is_refused(self):
        good = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
        write_safetensors(self.file, good)
        self.weir("import", self.file, self.folder / "like")
        like = f"--like={self.folder / 'like'}"
        cases = [
            ({**good, "b": np.zeros(3, np.float64)}, (), ["tensor 'b' is of F64", "F32"]),
            ({**good, "b": np.float16([0, 0, -np.inf])}, (), ["tensor 'b' (F16): element 2 is -inf"]),
            ({**good, "b": np.float32([0, np.nan, 0])}, (), ["tensor 'b' (F32): element 1 is nan"]),
            ({**good, "n": np.int64([5, 2**24 + 1])}, (), ["tensor 'n' (I64): element 1 is 16777217", "16777216"]),
            ({**good, "n": np.int64([-2**40])}, (), ["tensor 'n' (I64): element 0 is -1099511627776"]),
            ({**good, "n": np.uint64([2**63])}, (), ["tensor 'n' (U64): element 0 is 9223372036854775808"]),
            ({**good, "e": np.zeros((2, 0), np.float32)}, (), ["e"]),
            ({**good, "t/keys": np.int64([5, 5]), "t/values": np.ones((2, 3), np.float32)}, (),
             ["table 't' has two rows for the key 5"]),
            ({}, (), ["tensors"]),
            ({"w": good["w"]}, (like,), ["has no tensor 'b'", "step-00000000"]),
            ({**good, "c": good["b"]}, (like,), ["has the tensor 'c'", "step-00000000"]),
            ({**good, "w": good["w"].T.copy()}, (like,), ["tensor 'w' has the shape [3, 2]", "[2, 3]"]),
        ]
        for arrays, flags, texts in cases:
            with self.subTest(texts=texts):
                write_safetensors(self.file, arrays)
                error = self.weir("import", self.file, self.weights, *flags, code=78)
                for text in [str(self.file), *texts]:
                    self.assertIn(text, error)
                self.assertFalse(self.weights.exists())
        self.file.write_bytes(b"no safetensors at all")
        self.assertIn(str(self.file), self.weir("import", self.file, self.weights, code=78))
        self.assertIn("no-such", self.weir("import", self.folder / "no-such", self.weights, code=78))
        write_safetensors(self.file, good)
        self.assertIn("no-such", self.weir("import", self.file, self.weights, f"--like={self.folder / 'no-such'}", code=78))
        self.assertIn("s3://bucket/weights", self.weir("import", self.file, "s3://bucket/weights", code=78))

    def test_buffers_that_are_not_batch_norms(self):
        """--like says that they are some; otherwise they would be parameters, of which the job has none with these names."""
        model = train.make_model(own=True)
        model[4].mean.fill_(7)
        write_safetensors(self.file, {name: value.numpy() for name, value in model.state_dict().items()})
        weir.torch.save_weights(train.make_model(own=True), self.folder / "like")
        self.weir("import", self.file, self.weights, f"--like={self.folder / 'like'}")
        self.assertTrue(self.begins_with(train.make_model(own=True), model.state_dict()))
        self.weights = self.folder / "unlike"
        self.weir("import", self.file, self.weights)
        with self.assertRaisesRegex(weir.ConfigError, "of a different model from the job's"):
            self.begins_with(train.make_model(own=True), model.state_dict())

    def test_weights_that_are_there_stay(self):
        write_safetensors(self.file, {"w": np.ones(3, np.float32)})
        self.weir("import", self.file, self.weights)
        before = {path: path.read_bytes() for path in self.weights.rglob("*") if path.is_file()}
        write_safetensors(self.file, {"w": np.zeros(3, np.float32)})
        self.assertIn(str(self.weights), self.weir("import", self.file, self.weights, code=78))
        self.assertEqual(before, {path: path.read_bytes() for path in self.weights.rglob("*") if path.is_file()})


if __name__ == "__main__":
    unittest.main()
