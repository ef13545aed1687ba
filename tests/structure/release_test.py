#!/usr/bin/python3
"""Checks what a release says of itself: each place with the version has that of the file VERSION, and the wheel's page has links that
work on an index, and the least versions of what the package needs. First shows that it finds planted faults.
"""
import email
import pathlib
import re
import runpy

import tree_check

# File or folder -> what is the version there. Each must be found.
PLACES = {
    "common/protocol/handshake.h": r'kVersion\[\] = "([^"]+)"',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"\A.*?^## ([^\s,]+)",
    "docs/compatibility.md": r"Weir is version ([\d.]+\d)",
    "python/capi/weir_c.h": r'"([\d.]+)", as `weir --version`',
}
# In these folders, and in the text of commands.
IMAGE_FOLDERS = ("deploy", "docs", "cli/commands")
IMAGE = re.compile(r"\bweir(?:-gpu|-python)?:(\d+\.\d[\w.-]*)|^ARG VERSION=(.+)$|^ *(?:# *)?newTag: (\S+)$", re.M)
METADATA = "tools/wheel/metadata.py"
# What names a needed package in a page.
WORDS = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "ray": "Ray"}


def faults_of_versions(root):
    version = (root / "VERSION").read_text(encoding="utf-8").strip()
    for name, pattern in PLACES.items():
        found = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.M | re.S if name == "CHANGELOG.md" else re.M)
        if not found:
            yield f"{name}: the version is not where {pattern} finds it"
        elif found[1] != version:
            yield f"{name}: the version is {found[1]}, but VERSION says {version}"
    for path in sorted(path for folder in IMAGE_FOLDERS for path in (root / folder).rglob("*")):
        if not path.is_file() or path.suffix in (".png", ".svg", ".gif"):
            continue
        text = path.read_text(encoding="utf-8")
        for found in IMAGE.finditer(text):
            if found[found.lastindex] != version:
                line = text.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(root)}:{line}: the version is {found[found.lastindex]}, but VERSION says {version}"
    wanted = re.search(r"find_package\(Weir ([\d.]+)", (root / "examples/cpp/CMakeLists.txt").read_text(encoding="utf-8"))
    if not f"{version}.".startswith(f"{wanted[1] if wanted else 'none'}."):
        yield f"examples/cpp/CMakeLists.txt: must ask for Weir {version}, or for its first two numbers"


def faults_of_page(root):
    module = runpy.run_path(str(root / METADATA))
    told = email.message_from_string(module["metadata"]("https://weir.example/blob/v{version}"))
    for field in ("Name", "Version", "Summary", "Author", "License", "Keywords", "Requires-Python", "Project-URL", "Classifier"):
        if not told[field]:
            yield f"{METADATA}: {field} is missing"
    links = re.findall(r"\]\(([^)]*)\)", told.get_payload())
    yield from (f"{module['PAGE']}: the index cannot follow {link}" for link in links if not link.startswith("https://"))
    if not links:
        yield f"{module['PAGE']}: there are no links"
    if "](" in email.message_from_string(module["metadata"]("")).get_payload():
        yield f"{module['PAGE']}: without an address there are links"
    for package, least in {**module["NEEDS"], **module["EXTRAS"]}.items():
        for name, pattern in ((module["PAGE"], rf"^\| {WORDS[package]}.* \| {re.escape(least)} \|$"),
                              ("docs/python.md", rf"\b{WORDS[package]}\s{re.escape(least)} or newer")):
            if not re.search(pattern, (root / name).read_text(encoding="utf-8"), re.M):
                yield f"{name}: {METADATA} asks for {WORDS[package]} {least}"


def faults(root):
    yield from faults_of_versions(root)
    yield from faults_of_page(root)


TREE = pathlib.Path(__file__).resolve().parent.parent.parent
PLANTED = {
    "VERSION": "1.2.3\n",
    "common/protocol/handshake.h": 'inline constexpr char kVersion[] = "1.2.2";\n',
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
    "CHANGELOG.md": "# Changes\n\n## 1.2.2\n\n## 1.2.3\n",
    "docs/compatibility.md": "Weir is version 1.2.3 and has\n",
    "docs/deploy.md": "run\n    weir-gpu:1.2.0 .\n",
    "deploy/Dockerfile": "ARG VERSION=1.2.3\nFROM weir:1.2.3\nFROM redis:7\n",
    "deploy/a.yaml": "  newTag: 1.2.4\n",
    "python/capi/weir_c.h": "// nothing\n",
    "examples/cpp/CMakeLists.txt": "find_package(Weir 1.1 REQUIRED)\n",
    METADATA: (TREE / METADATA).read_text(encoding="utf-8"),
    "tools/wheel/page.md": "[a](../../docs/python.md) [b](http://b)\n| NumPy | 1.22 |\n| PyTorch, for x | 1.13 |\n| JAX | 0.4.30 |\n| Ray | 2 |\n",
    "docs/python.md": "NumPy 1.22 or newer, PyTorch\n1.13 or newer, JAX 0.4.30 or newer, Ray 2.60 or newer\n",
}
tree_check.check_planted(faults, PLANTED, [
    "common/protocol/handshake.h: the version is 1.2.2", "CHANGELOG.md: the version is 1.2.2", "docs/deploy.md:2: the version is 1.2.0",
    "deploy/a.yaml:1: the version is 1.2.4", "python/capi/weir_c.h: the version is not", "examples/cpp/CMakeLists.txt: must ask",
    "tools/wheel/page.md: the index cannot follow http://b", "tools/wheel/page.md: without an address",
    "tools/wheel/page.md: tools/wheel/metadata.py asks for Ray 2.60",
])
tree_check.main(faults)
