#!/usr/bin/python3
"""Programs and commands of the pages run as they stand there: README.md, docs/cli.md, docs/click_models.md, docs/deploy.md,
docs/python.md, docs/recovery.md and docs/security.md. What the text around a program has made is made here first."""
import json
import os
import pathlib
import shutil
import sys
import unittest

import support

sys.path.insert(0, str(support.ROOT / "tests/structure"))
# pylint: disable=wrong-import-position
import page_blocks
import torch
import torch.nn.functional as F
import weir
import weir.torch
from torch import nn

LABEL = "//tests/python:pages_test"
BLOCKS = [block for block in page_blocks.blocks(support.ROOT) if block.run_by == LABEL]
EXAMPLES = 200
used = set()


def block(page, text):
    """The text of the page's one block that has this in it."""
    found = page_blocks.block_with(support.ROOT, page, text)
    used.add(found)
    return found.text


def config(page, text):
    """A config, or a part of one, as a dict."""
    found = block(page, text)
    return json.loads(found if found.lstrip().startswith("{") else "{" + found + "}")


class InFolder(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(temporary.name)


class Programs(InFolder):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        self.x = torch.randn(EXAMPLES, 6)
        self.y = (self.x.sum(1) > 0).long()
        self.job = config("docs/python.md", '"parts": 2}')
        support.write_job("job.json", **self.job)

    def names(self, **more):
        """What a program of a page has: a model, and data."""
        return {"torch": torch, "nn": nn, "F": F, "weir": weir, "model": nn.Linear(6, 2), "x": self.x, "y": self.y,
                "train_set": torch.utils.data.TensorDataset(self.x, self.y), **more}

    def run_block(self, page, text, names, placeholders=()):
        program = block(page, text)
        for placeholder, value in placeholders:
            self.assertIn(placeholder, program)
            program = program.replace(placeholder, value)
        exec(compile(program, f"{page}: {text}", "exec"), names)  # pylint: disable=exec-used
        return names

    def train(self, names):
        """The loop of the first program, with the optimizer of another one."""
        for x, y in names["opt"].loader():
            names["opt"].zero_grad()
            loss = F.cross_entropy(names["model"](x), y)
            loss.backward()
            names["opt"].step(loss=loss)

    def check_learned(self, names):
        self.assertGreater((names["model"](self.x).argmax(1) == self.y).float().mean().item(), 0.8)

    def test_readme(self):
        """What the script is after the change; with more epochs, since the data is small."""
        support.write_job("job.json", **config("README.md", '"batch_size": 50') | {"train": {"epochs": 100}})
        after = [line[1:] for line in block("README.md", "+opt = weir.torch.Optimizer").splitlines() if not line.startswith("-")]
        names = self.names(Net=lambda: nn.Linear(6, 2), DataLoader=None)
        del names["model"]
        exec(compile("\n".join(after), "README.md", "exec"), names)  # pylint: disable=exec-used
        self.check_learned(names)

    def test_first_program(self):
        support.write_job("job.json", **self.job | {"train": {"epochs": 100}})
        self.check_learned(self.run_block("docs/python.md", "# was: DataLoader(train_set, ...)", self.names()))

    def test_job_in_the_words_of_torch(self):
        names = self.names(sys=sys, CosineAnnealingLR=torch.optim.lr_scheduler.CosineAnnealingLR)
        self.addCleanup(setattr, sys, "argv", sys.argv)
        sys.argv = ["train.py", "--write"]
        with self.assertRaises(SystemExit) as ended:
            self.run_block("docs/python.md", "weir.torch.job(optimizer", names)
        self.assertIsNone(ended.exception.code)
        self.assertEqual(json.loads(pathlib.Path("job.json").read_text(encoding="utf-8"))["optimizer"]["weight_decay"], 0.01)
        sys.argv = ["train.py"]
        self.run_block("docs/python.md", "weir.torch.job(optimizer", names)
        self.train(names)
        self.assertEqual(names["opt"].batches_total, 10 * EXAMPLES // 64 + 1)

    def test_weights_of_batches(self):
        names = self.names()
        names["opt"] = opt = weir.torch.Optimizer(names["model"], "job.json", names["train_set"])
        for x, y in opt.loader():
            opt.zero_grad()
            y[0] = -100
            self.run_block("docs/python.md", "opt.step(loss=loss, weight=", names | {"logits": names["model"](x), "labels": y})

    def test_local_steps(self):
        names = self.run_block("docs/python.md", "local_steps=4", self.names())
        self.train(names)
        self.check_learned(names)
        self.assertEqual(names["opt"].steps_total, 20 * EXAMPLES // (10 * 4))

    def test_evaluation(self):
        names = self.run_block("docs/python.md", "def evaluate(model):", self.names())
        self.train(names)
        self.assertGreater(names["evaluate"](names["model"])["accuracy"], 0)

    def test_gan(self):
        points = torch.randn(100, 2) + 4
        critic = nn.Linear(2, 1)
        before = critic.weight.clone()
        names = self.names(Generator=lambda: nn.Linear(2, 2), Critic=lambda: critic, train_set=points)
        self.run_block("docs/python.md", "nn.ModuleDict(", names)
        self.assertFalse(torch.equal(critic.weight, before))

    def test_tables(self):
        support.write_job("job.json", **self.job | config("docs/python.md", '"name": "words", "dim": 16'))
        names = self.run_block("docs/python.md", "weir.torch.EmbeddingBag(", self.names())
        model, label = names["Model"](), torch.randint(2, (EXAMPLES, 1)).float()
        data = torch.utils.data.TensorDataset(torch.randint(99, (EXAMPLES, 4)), torch.randint(9, (EXAMPLES,)), label)
        opt = weir.torch.Optimizer(model, "job.json", data)
        losses = []
        for words, user, clicked in opt.loader():
            opt.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(words, user), clicked)
            losses.append(loss.item())
            loss.backward()
            opt.step(loss=loss)
        self.assertEqual(len(losses), 2 * EXAMPLES // 50)

    def test_numpy(self):
        x = torch.randn(EXAMPLES, 20).numpy()
        names = self.run_block("docs/python.md", "with weir.Client(", self.names(x=x, y=x.sum(1)),
                               [("= ...     #", "= -0.1 * x[step.examples].mean(0)     #"), ("loss=...", "loss=0")])
        self.assertEqual(names["trained"]["weight"].shape, (20,))


class Commands(InFolder):
    """In a folder with configs/ and examples/, where the commands are on PATH."""

    def setUp(self):
        super().setUp()
        for folder in ("configs", "examples"):
            shutil.copytree(support.ROOT / folder, folder)
        pathlib.Path("bin").mkdir()
        for program in ("cli/weir", "ps_server/ps_server", "worker/worker"):
            pathlib.Path("bin", pathlib.Path(program).name).symlink_to(support.ROOT / program)
        self.environment = os.environ | {"PATH": f"{pathlib.Path('bin').absolute()}:{os.environ['PATH']}"}

    def run_block(self, page, text):
        done = support.run(["bash", "-e", "-c", block(page, text)], env=self.environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_click_model(self):
        self.assertIn("test auc", self.run_block("docs/click_models.md", "weir up --ps=2 --workers=4 configs/ctr_dcn.json").lower())

    def test_recovery(self):
        self.assertIn("sha256", self.run_block("docs/recovery.md", "weir up --ps=2 --workers=4 --restart"))

    def run_alone(self, lines):
        """A shell's lines, in a network of its own, since ports are fixed. What they have started ends with them. None: it cannot be."""
        alone = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-e", "-c"]
        tried = support.run([*alone, "ip link set lo up"])
        if tried.returncode != 0:
            print(f"SKIPPED: no namespaces may be made here: {tried.stderr.strip()}")
            return None
        done = support.run([*alone, "\n".join(["ip link set lo up", *lines])], env=self.environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_by_hand(self):
        """What four terminals run, all at once."""
        program = block("docs/cli.md", "export CLUSTER=")
        pathlib.Path("bazel-bin").symlink_to(support.ROOT)
        lines = [line + " &" if line.startswith("TF_CONFIG=") else line for line in program.splitlines()]
        self.assertEqual(sum(line.endswith("&") for line in lines), 4)
        said = self.run_alone([*lines, "for task in $(jobs -p); do wait $task; done"])
        if said is not None:
            self.assertIn("the job is done", said)

    def test_tls(self):
        """A server and a worker, with their certificates, of which a reader asks meanwhile."""
        program = block("docs/security.md", "weir certs init certs --spec=cluster.json").replace("\\\n", " ")
        shutil.copy("configs/digits.json", "job.json")
        support.write_job("cluster.json", ps=["127.0.0.1:2222"], worker=["127.0.0.1:2223"])
        lines = []
        for line in program.splitlines():
            line = line.partition("  #")[0]
            if line.startswith(("ps_server", "worker")):
                line += " --set=train.epochs=10000 &"
            elif line.startswith("weir status"):
                line = f"until {line}; do sleep 0.1; done"
            lines.append(line)
        said = self.run_alone(lines)
        if said is not None:
            self.assertRegex(said, "connections +TLS 1.3")
            self.assertRegex(said, "identity +spiffe://weir/worker/0")

    def test_manifests(self):
        self.run_block("docs/deploy.md", "weir manifest configs/digits.json")
        self.run_block("docs/deploy.md", "weir manifest examples/cnn.json")
        for folder in ("digits-job", "cnn-job"):
            self.assertTrue(pathlib.Path(folder, "kustomization.yaml").exists(), folder)


class All(unittest.TestCase):
    def test_each_block_with_this_mark_is_run_here(self):
        """It comes last, by load_tests()."""
        self.assertEqual({b.where for b in BLOCKS} - {b.where for b in used}, set())


def load_tests(loader, _, __):
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (Programs, Commands, All))


if __name__ == "__main__":
    unittest.main()
