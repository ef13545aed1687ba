#!/usr/bin/python3
"""Checks the words of comments, messages and pages: phrases that a reader stumbles over. First shows that it finds planted faults.
"""
import re

import tree_check

SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".inc", ".md", ".proto", ".py", ".sh", ".yaml"}
FOLDERS = ("bench", "cli", "client", "common", "configs", "deploy", "docs", "examples", "local", "proto", "ps_server", "python", "tests",
           "tools", "worker")
# This file.
SELF = "tests/structure/words_test.py"
PHRASES = {
    re.compile(r"\blikewise\b", re.I): "say what is the same as what",
    re.compile(r"\ball the same\b(?! [a-z])", re.I): "'still', 'anyway' or 'even so'",
    re.compile(r"\bit is none\b", re.I): "name the thing that it is not",
    re.compile(r"\banother [a-z_]+ than\b", re.I): "'a different X from' or 'an X other than'",
}
# What a comment of a product's header begins a sentence with instead of the noun.
OPENING = re.compile(r"(?:// |\. )(Those|Whoever)\b")


def texts(root):
    for path in sorted(root.glob("*.md")):
        yield path
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                yield path


def faults(root):
    for path in texts(root):
        name = path.relative_to(root).as_posix()
        if name == SELF:
            continue
        header = path.suffix == ".h" and not name.startswith("tests/")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for phrase, instead in PHRASES.items():
                if found := phrase.search(line):
                    yield f"{name}:{number}: '{found[0]}': {instead}"
            if header and (found := OPENING.search(line)):
                yield f"{name}:{number}: a sentence begins with '{found[1]}': say the noun"


tree_check.check_planted(faults, {
    "README.md": "It ends all the same.\nGive all the same names.\n",
    "common/a.h": "// Those that are read.\n// One. Whoever reads.\n// of those that\n",
    "worker/a.cc": '"is another job than ours"  // Likewise\n',
    "docs/a.md": "NotFound: it is none.\n",
    "tests/a.h": "// Those.\n",
}, ["README.md:1: 'all the same'", "common/a.h:1: a sentence begins with 'Those'", "common/a.h:2: a sentence begins with 'Whoever'",
    "worker/a.cc:1: 'another job than'", "worker/a.cc:1: 'Likewise'", "docs/a.md:1: 'it is none'"])
tree_check.main(faults)
