#!/usr/bin/python3
"""The tensors of a job have the names of the plain model, whatever wraps it; and an export has all of them."""
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
from weir.torch.weights import PlainModel

WEIR = str(support.ROOT / "cli/weir")


class Wrapper(torch.nn.Module):
    """As wrappers of modules are made: they have it under a name of their own."""

    def __init__(self, module, name):
        super().__init__()
        setattr(self, name, module)
        self.call = lambda x: getattr(self, name)(x)

    def forward(self, x):
        return self.call(x)


class DistributedDataParallel(Wrapper):
    """Of another package."""

    def __init__(self, module):
        super().__init__(module, "module")


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.norm = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6)
        self.b.weight = self.a.weight
        self.again = self.norm
        self.frozen = torch.nn.Linear(6, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, x):
        return self.frozen(self.again(self.b(self.norm(self.a(x))))) * self.mask


def train_once(model, **fields):
    opt = weir.torch.Optimizer(model, job(train={"epochs": 1}, **fields), train.Examples())
    for x, y, *_ in opt.loader():
        names = list(opt.client.model.names)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    return names


def safetensors(path):
    """Name -> (dtype, bytes)."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def loaded(path):
    dtypes = {"F32": np.float32, "BOOL": np.bool_, "I64": np.int64}
    return {name: torch.from_numpy(np.frombuffer(data, dtypes[dtype]).reshape(shape).copy())
            for name, (dtype, shape, data) in safetensors(path).items()}


def write(path, state):
    dtypes = {torch.float32: "F32", torch.bool: "BOOL", torch.int64: "I64"}
    entries, data = {}, b""
    for name, t in state.items():
        entries[name] = {"dtype": dtypes[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + t.numel() * t.element_size()]}
        data += t.numpy().tobytes()
    header = json.dumps(entries).encode()
    pathlib.Path(path).write_bytes(len(header).to_bytes(8, "little") + header + data)


class Names(unittest.TestCase):
    def test_wrappers_have_no_names(self):
        plain = train.make_model(norm=True)
        wraps = [lambda m: Wrapper(m, "_orig_mod"), lambda m: Wrapper(m, "_checkpoint_wrapped_module"), DistributedDataParallel,
                 lambda m: Wrapper(m, "_fsdp_wrapped_module"), torch.nn.DataParallel,
                 lambda m: Wrapper(torch.nn.DataParallel(m), "_orig_mod")]
        expected = train_once(plain)
        self.assertIn("4.num_batches_tracked", expected)
        for wrap in wraps:
            inner = train.make_model(norm=True)
            inner[0], inner[4] = wrap(inner[0]), wrap(inner[4])
            for model in (wrap(train.make_model(norm=True)), inner):
                found = PlainModel(model)
                self.assertEqual([name for name, _ in found.named_parameters()], [name for name, _ in plain.named_parameters()])
                self.assertEqual([name for name, _ in found.named_buffers()], [name for name, _ in plain.named_buffers()])
        inner = train.make_model(norm=True)
        inner[0] = Wrapper(torch.nn.DataParallel(inner[0]), "_orig_mod")
        self.assertEqual(train_once(inner), expected)

    def test_a_part_of_the_models_own(self):
        """Its name stays."""
        model = torch.nn.Sequential(Wrapper(torch.nn.Linear(6, 3), "module"))
        self.assertEqual(train_once(model), ["0.module.weight", "0.module.bias"])

    def test_parametrizations(self):
        model = torch.nn.Sequential(torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(6, 3, bias=False)))
        (name, _), = PlainModel(model).named_parameters()
        self.assertIn(name, model.state_dict())


class Exports(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def weir(self, *arguments, code=0):
        done = support.run([WEIR, *map(str, arguments)])
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def test_all_names_of_the_plain_model(self):
        model, checkpoints, out = Tied(), self.folder / "checkpoints", self.folder / "out.safetensors"
        train_once(model, checkpoint={"directory": str(checkpoints)})
        self.weir("export", checkpoints, out)
        plain = Tied()
        found = loaded(out)
        self.assertEqual(set(plain.state_dict()) - set(found), {"frozen.weight", "frozen.bias", "mask"})
        self.assertTrue(torch.equal(found["b.weight"], model.a.weight))

        rest = self.folder / "rest.safetensors"
        write(rest, Tied().state_dict())
        self.assertIn("and 3 of", self.weir("export", checkpoints, out, f"--with={rest}"))
        plain.load_state_dict(loaded(out))
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(plain.state_dict()[name], value), name)

        write(rest, {**Tied().state_dict(), "b.weight": torch.zeros(2, 2)})
        self.assertIn("tensor 'b.weight' has the shape [2, 2] there, and [6, 6] in the checkpoint",
                      self.weir("export", checkpoints, out, f"--with={rest}", code=78))

    def test_an_export_of_tied_weights_is_imported(self):
        model, checkpoints, out = Tied(), self.folder / "checkpoints", self.folder / "out.safetensors"
        train_once(model, checkpoint={"directory": str(checkpoints)})
        self.weir("export", checkpoints, out)
        for n, like in enumerate(([], [f"--like={checkpoints}"])):
            weights = self.folder / f"weights{n}"
            self.weir("import", out, weights, *like)
            again = Tied()
            with torch.no_grad():
                again.a.weight.zero_()
            opt = weir.torch.Optimizer(again, job(checkpoint={"init_from": str(weights)}), train.Examples())
            next(loop := opt.loader())
            loop.close()
            self.assertTrue(torch.equal(again.b.weight, model.b.weight))
        # Of the two one was changed.
        data = bytearray(out.read_bytes())
        value = model.a.weight.detach().numpy().tobytes()
        data[data.rfind(value)] ^= 1
        out.write_bytes(data)
        self.assertIn("'a.weight' and 'b.weight' are one in the job", self.weir("import", out, self.folder / "other", code=78))


if __name__ == "__main__":
    unittest.main()
