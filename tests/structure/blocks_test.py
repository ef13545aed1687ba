#!/usr/bin/python3
"""Checks every block of code of the pages. A config passes `weir config check`, alone or as a part of a job; Python compiles, and the
names and arguments of the package that it uses exist; commands of Weir exist, with their flags. Any other block has a mark that says
why it is not run. A block that another test runs names the test, which names the page. First shows that it finds planted faults.
"""
import ast
import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile

import shell_commands
import tree_check
from package_api import Names
from page_blocks import MARK, blocks_of, pages

SHELL = {"sh", "bash"}
# Words of a shell that need no mark.
HARMLESS = {"export", "cd", "umask"}
OF_WEIR = re.compile(r"^(?:\w+=\S+ )*(?:exec )?(?:python3? examples/|(?:\./dev|bazel|(?:[\w/-]*/)?(?:weir|ps_server|worker)) )",
                     re.M)
# A fragment is tried alone, and within each of these jobs.
CLICKS = {
    "tables": [{"name": "keys", "dim": 4}],
    "model": {"layers": [{"type": "embedding", "table": "keys", "column": "user"}, {"type": "dense", "units": 1}],
              "loss": "sigmoid_cross_entropy"},
}
JOBS = ({}, {"checkpoint": {"directory": "runs"}, "tables": [{"name": "words", "dim": 4}]}, CLICKS)
ROWS = "click,user,tags,age\n1,a,x|y,3\n0,b,x,2\n"


def kind(block):
    """"json", "python", "shell" or "other"."""
    first = next((line for line in block.text.splitlines() if line and not line.startswith("#")), "")
    if block.language in ("json", "python"):
        return block.language
    if block.language in SHELL or not block.language and OF_WEIR.search(block.text):
        return "shell"
    return "json" if not block.language and re.match(r'"\w+": ', first) else "other"


def faults_of_config(root, text):
    """Of a config, or of some of its fields."""
    whole = text.strip() if text.lstrip().startswith("{") else "{" + text + "}"
    try:
        # Nobody answers for a store here.
        fields = json.loads(whole.replace('"s3://', '"'))
    except ValueError as error:
        return [f"is no JSON: {error}"]
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("train.csv", "test.csv"):
            pathlib.Path(folder, name).write_text(ROWS, encoding="utf-8")
        for job in JOBS:
            pathlib.Path(folder, "job.json").write_text(json.dumps(job | fields), encoding="utf-8")
            done = subprocess.run([shell_commands.program(root, "weir"), "config", "check", "job.json"], cwd=folder, capture_output=True,
                                  text=True, check=False)
            if done.returncode == 0:
                return []
            said.append(done.stderr.strip())
    return [f"`weir config check` refuses it: {said[0]}"]


def faults_of_python(names, text):
    """Of a program, or a part of one."""
    try:
        return list(dict.fromkeys(names.faults(ast.parse(text))))
    except SyntaxError as error:
        return [f"line {error.lineno} is no Python: {error.msg}"]


def faults_of_label(root, block):
    """Of the test that a mark names."""
    package, _, name = block.run_by.removeprefix("//").partition(":")
    build = root / package / "BUILD.bazel"
    sources = [root / package / (name + suffix) for suffix in (".py", ".cc")]
    if not build.exists() or f'"{name}"' not in build.read_text(encoding="utf-8"):
        return [f"there is no test {block.run_by}"]
    if not any(block.page in source.read_text(encoding="utf-8") for source in sources if source.exists()):
        return [f"{block.run_by} does not name the page"]
    return []


def faults_of_block(root, names, block):
    """(how it is checked, what is wrong)."""
    of, found, foreign = kind(block), [], []
    if of == "shell":
        for words in shell_commands.commands_in(block.text):
            own, wrong = shell_commands.faults_of(root, words)
            found += wrong
            foreign += [] if own or words[0] in HARMLESS else [words[0]]
    elif of == "python":
        found = faults_of_python(names, block.text)
    elif of == "json" and not block.reason:
        found = faults_of_config(root, block.text)
    if block.run_by:
        return "run by a test", found + faults_of_label(root, block)
    if block.reason:
        return "not run, with the reason", found
    if foreign:
        found.append(f"has commands that are not Weir's ({', '.join(dict.fromkeys(foreign))}), and no mark")
    if of == "other":
        found.append("has no mark: <!-- run by: //the:test --> or <!-- not run: the reason -->")
    return {"json": "configs checked", "python": "Python compiled, names looked up", "shell": "commands looked up"}.get(of, ""), found


def checked(root):
    """(place, how it is checked, what is wrong) of each block, and of each page with marks that are before no block."""
    for page, text in pages(root):
        names, found = Names(root), list(blocks_of(page, text))
        for block in found:
            yield (block.where, *faults_of_block(root, names, block))
        marks, marked = sum(map(bool, map(MARK.match, text.splitlines()))), sum(bool(block.run_by or block.reason) for block in found)
        if marks != marked:
            yield page, "", [f"has {marks} marks, and {marked} blocks with a mark before them"]


def faults(results):
    for place, _, found in results:
        yield from (f"{place}: {fault}" for fault in found)


PAGE = """
```json
"train": {"epochs": 2}
```

```json
{"train": {"epoch": 2}}
```

```json
{
```

<!-- not run: an excerpt -->
```json
{...}
```

    weir config chek job.json
    weir up --ps=2 --wrkers=4 configs/none.json -- python examples/none.py   # not --this
    weir export DIR
    ./dev build [--nothing=N] && ./dev tset && ./dev bench none
    weir config init [FILE] [--mode=sync|async]
                     [--nonsense]

```sh
kubectl apply
```

<!-- not run: needs a cluster -->
```sh
kubectl apply; worker --task=worker:0 --confg=job.json
```

```
text
```

<!-- run by: //tests/a:b_test -->

    bazel run //tests/none:c -- x

<!-- run by: //tests/a:d_test -->
```
text
```

<!-- run by: //tests/a:e_test -->
```
text
```

```python
opt = weir.torch.Optimizer(model, job, trainset=x)
opt.step(los=1, loss=2)
weir.torch.Optimiser
with weir.Client(job, {}, 1, more=...) as client:
    client.f(x=1)
```

```python
a b
```

<!-- not run: a mark -->
Text.
"""


def main():
    root = pathlib.Path(os.path.realpath("WORKSPACE")).parent
    own = {"dev": "\nverb_build() {\nverb_bench() {\n    wire)\n", "tests/a/BUILD.bazel": '"b_test", "d_test"', "tests/a/b_test.py": "README.md", "tests/a/d_test.cc": ""}
    package = {"python/weir/__init__.py": "from .client import Client\n__all__ = ['Client']",
               "python/weir/client.py": "class Client:\n  def __init__(self, a, *, b): ...",
               "python/weir/torch/__init__.py": "from .o import Optimizer\n__all__ = ['Optimizer']",
               "python/weir/torch/o.py": "class Optimizer:\n  def __init__(self, model, **refused: NoReturn): ...\n  def step(self, loss): ..."}
    real = {name: shell_commands.program(root, name) for name in shell_commands.OWN}
    shell_commands.program = lambda _, name: real[name]
    tree_check.check_planted(lambda tree: faults(checked(tree)), {"README.md": PAGE} | own | package, [
        "README.md:6: `weir config check` refuses it: job.json:1:12: train.epoch: unknown field", "README.md:10: is no JSON",
        "README.md:19: `weir config chek` is no command", "README.md:19: `weir up` has no flag --wrkers", "README.md:19: there is no configs/none.json",
        "README.md:19: there is no examples/none.py", "README.md:19: `weir export` takes 2 to 2 words", "README.md:19: `./dev build` has no flag --nothing",
        "README.md:19: `./dev` has no verb tset", "README.md:19: `./dev bench` has no none",
        "README.md:19: `weir config init` has no flag --nonsense", "README.md:26: has commands that are not Weir's (kubectl)",
        "README.md:31: `worker` has no flag --confg", "README.md:35: has no mark", "README.md:41: there is no target //tests/none:c",
        "README.md:44: //tests/a:d_test does not name the page", "README.md:49: there is no test //tests/a:e_test",
        "README.md:53: Optimizer() has no argument trainset", "README.md:53: step() has no argument los",
        "README.md:53: weir.torch has no Optimiser", "README.md:53: Client() has no argument more", "README.md:61: line 1 is no Python",
        "README.md: has 6 marks, and 5 blocks",
    ])
    results = list(checked(root))
    counts = collections.Counter(how for _, how, _ in results if how)
    print(", ".join(f"{count} {how}" for how, count in sorted(counts.items())))
    tree_check.main(lambda _: faults(results))


main()
