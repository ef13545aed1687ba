#!/usr/bin/python3
"""The programs of docs/data.md run on small files, and the examples that need packages of Hugging Face run, and learn."""
import collections
import os
import pathlib
import re
import unittest

import support

support.run_with("WEIR_DATA_PYTHON")
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

# pylint: disable=wrong-import-position,wrong-import-order
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
import webdataset as wds
import weir
import weir.torch

POINTS, REVIEWS, BATCH, PARTS = 96, 200, 8, 2
WORDS = "a bad film of no worth and a good film that I saw with joy twice".split()
# What follows on a program of the page, and says what it has trained.
TRAIN = """
import sys, weir.torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
opt = weir.torch.Optimizer(model, "job.json", train_set, progress=False)
for x, y in opt.loader():
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.as_tensor(x)), y)
    loss.backward()
    opt.step(loss=loss)
print("trained:", model.weight.tolist())
"""


def job(examples):
    return {"seed": 5, "data": {"batch_size": BATCH}, "train": {"examples": examples},
            "consistency": {"mode": "sync", "parts": PARTS}, "optimizer": {"type": "sgd", "learning_rate": 0.1}}


def blocks():
    """The page's programs, by words of the text before each: ("Parquet, where it fits", program)."""
    page = (support.ROOT / "docs/data.md").read_text(encoding="utf-8")
    found = re.findall(r"((?:[^\n]+\n)+)\n(?:<!--[^\n]*\n)?```python\n(.*?)```", page, re.DOTALL)
    return [(text.replace("*", ""), program) for text, program in found]


def program(begin):
    (found,) = [code for text, code in blocks() if text.startswith(begin)]
    return found


class Page(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(temporary.name)
        os.environ["HF_HOME"] = temporary.name
        support.write_job("job.json", **job(2 * POINTS))
        self.x = np.random.default_rng(1).normal(size=(POINTS, 3)).astype(np.float32)
        self.label = (self.x.sum(1) > 0).astype(np.int64)
        points = pa.table({"a": self.x[:, 0], "b": self.x[:, 1], "c": self.x[:, 2], "label": self.label})
        pq.write_table(points, "points.parquet", row_group_size=8)
        for n in range(4):
            part = slice(n * POINTS // 4, (n + 1) * POINTS // 4)
            pq.write_table(points.slice(part.start, POINTS // 4), f"points-{n}.parquet")
            with wds.TarWriter(f"points-{n}.tar") as tar:
                for i in range(part.start, part.stop):
                    tar.write({"__key__": f"{i:04}", "x.npy": self.x[i], "label.cls": int(self.label[i])})
            texts = [" ".join(WORDS[:1 + i * 7 % len(WORDS)]) for i in range(n, REVIEWS, 4)]
            pq.write_table(pa.table({"text": texts, "label": [i % 2 for i in range(n, REVIEWS, 4)]}), f"reviews-{n}.parquet")

    def test_every_program_of_the_page_is_run_here(self):
        self.assertEqual(len(blocks()), 6)

    def run_program(self, *begins):
        names = {}
        for begin in begins:
            exec(compile(program(begin), begin, "exec"), names)  # pylint: disable=exec-used
        return names

    def check_points(self, begin, passes=2):
        """It trains on each point as often as there are passes."""
        train_set = self.run_program(begin)["train_set"]
        model = torch.nn.Linear(3, 2)
        opt = weir.torch.Optimizer(model, "job.json", train_set, progress=False)
        seen, losses = collections.Counter(), []
        for batch in opt.loader():
            x, y = (batch["x"], batch["label"]) if isinstance(batch, dict) else batch
            seen.update(tuple(row) for row in torch.as_tensor(x).tolist())
            opt.zero_grad()
            loss = F.cross_entropy(model(torch.as_tensor(x)), y)
            losses.append(loss.item())
            loss.backward()
            opt.step(loss=loss)
        self.assertEqual((len(seen), set(seen.values())), (POINTS, {passes}))
        self.assertEqual(set(seen), {tuple(row) for row in self.x.tolist()})
        self.assertLess(sum(losses[-6:]), sum(losses[:6]))

    def test_parquet(self):
        self.check_points("Parquet, where it fits")

    def test_parquet_by_groups_of_rows(self):
        self.check_points("Parquet that does not fit")

    def test_streaming_datasets(self):
        self.check_points("Hugging Face `datasets` with `streaming=True`")

    def test_webdataset(self):
        self.check_points("WebDataset.")

    def test_webdataset_on_two_workers(self):
        """The same bits as in one process."""
        pathlib.Path("train.py").write_text(program("WebDataset.") + TRAIN, encoding="utf-8")
        alone = support.run([support.PYTHON, "train.py"])
        self.assertEqual(alone.returncode, 0, alone.stderr)
        done = support.run(support.up("job.json", ["train.py"], "--workers=2", "--verbose"))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.findall(r"trained: .*", done.stdout + done.stderr)
        self.assertEqual(set(found), {alone.stdout.strip()})

    def test_datasets_and_batches_by_length(self):
        names = self.run_program("Hugging Face `datasets`, here", "`batch_sampler` puts rows of about one length")
        train_set, lengths = names["train_set"], names["lengths"]
        self.assertEqual(len(train_set), REVIEWS)
        padded = {}
        for name, options in (("plain", {"collate_fn": names["pad"]}), ("by length", names["options"])):
            model = torch.nn.EmbeddingBag(256, 2)
            opt = weir.torch.Optimizer(model, job(2 * REVIEWS), train_set, progress=False)
            padded[name], real = 0, 0
            for tokens, label in opt.loader(**options):
                padded[name] += tokens.numel()
                real += int((tokens > 0).sum())
                opt.zero_grad()
                F.cross_entropy(model(tokens), label).backward()
                opt.step()
            self.assertEqual(real, 2 * sum(lengths))
        self.assertLess(padded["by length"], 0.7 * padded["plain"])
        self.assertLess(padded["by length"], 1.15 * 2 * sum(lengths))


class Examples(unittest.TestCase):
    def check(self, name, job_name, text, least, few):
        """Alone, and on two workers; returns what they print."""
        path, examples = support.ROOT / "examples" / name, support.ROOT / "examples"
        found = []
        for command in ([support.PYTHON, path, few],
                        support.up(examples / job_name, [path, few], "--ps=2", "--workers=2", "--verbose")):
            done = support.run(list(map(str, command)))
            self.assertEqual(done.returncode, 0, done.stderr)
            found += re.findall(text + r" ([0-9.]+)", done.stdout + done.stderr)
        self.assertGreater(float(found[0]), least)
        self.assertEqual(found, found[:1] * 3)

    def test_hf_gpt2(self):
        # Who always guesses a space is right for 0.155 of the text.
        self.check("hf_gpt2.py", "hf_gpt2.json", "characters guessed right:", 0.2, "--most=4000")

    def test_accelerated_cnn(self):
        self.check("accelerated_cnn.py", "cnn.json", "test accuracy:", 0.4, "--most=600")


if __name__ == "__main__":
    unittest.main()
