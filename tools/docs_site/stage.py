#!/usr/bin/python3
"""Lays the pages of the repository out for MkDocs: stage.py FOLDER. A link from page to page stays a link; a link to any other file
of the repository, which the site does not have, becomes the file's path.
"""
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Pages outside of docs/, and docs/README.md, whose place README.md has in the site.
MOVED = {"README.md": "index.md", "docs/README.md": "documentation.md"} | {page: page for page in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
IMAGES = (".svg", ".png", ".gif")
ITEM = re.compile(r"\s*([-*]|\d+\.) ")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def site_path(path):
    """Where a file of the repository is in the site, or None."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/") and path.endswith((".md",) + IMAGES):
        return path.removeprefix("docs/")
    return None


def with_deep_lists(text):
    """Lists in lists, which GitHub takes with two spaces, and Python-Markdown with four."""
    lines, in_list = [], False
    for line in text.split("\n"):
        if line and not line[0].isspace() or ITEM.match(line):
            in_list = bool(ITEM.match(line))
        indent = len(line) - len(line.lstrip())
        lines.append(" " * indent + line if in_list else line)
    return "\n".join(lines)


def rewritten(text, path):
    """The text of a page of the repository with the links that its place in the site needs."""
    def link(match):
        bang, label, target = match.groups()
        file, hash_, anchor = target.partition("#")
        if "://" in target or not file:
            return match.group(0)
        there = os.path.normpath(os.path.join(os.path.dirname(path), file))
        to = site_path(there)
        if to is None:
            return f"`{there}`" if label.strip("`").endswith(os.path.basename(there)) else f"{label} (`{there}`)"
        return f"{bang}[{label}]({os.path.relpath(to, os.path.dirname(site_path(path)) or '.')}{hash_}{anchor})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else with_deep_lists(LINK.sub(link, part)) for part in parts)


def main():
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    files = [ROOT / path for path in MOVED] + [p for p in sorted((ROOT / "docs").rglob("*")) if p.suffix in (".md",) + IMAGES]
    for file in dict.fromkeys(files):
        path = str(file.relative_to(ROOT))
        to = folder / site_path(path)
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            to.write_text(rewritten(file.read_text(encoding="utf-8"), path), encoding="utf-8")
        else:
            shutil.copy(file, to)


main()
