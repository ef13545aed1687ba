#!/usr/bin/python3
"""Checks the links of all pages: each file that a page names is there, and each heading. First shows that it finds planted faults."""
import re

import tree_check

PAGES = ("*.md", "docs/**/*.md", "tools/wheel/page.md")
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
FENCED = re.compile(r"^ *```.*?^ *```", re.M | re.S)
HEADING = re.compile(r"^#+ +(.*?) *$", re.M)
# Of a heading: what an anchor leaves out.
MARKUP = re.compile(r"\]\([^)]*\)|[^\w\- ]")


def without_code(text):
    """The text without blocks of code, with as many lines."""
    return FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)


def anchors(text):
    """Of a page's headings, as GitHub makes them."""
    found = set()
    for heading in HEADING.findall(without_code(text)):
        name, count = MARKUP.sub("", heading).lower().replace(" ", "-"), 0
        while name + (f"-{count}" if count else "") in found:
            count += 1
        found.add(name + (f"-{count}" if count else ""))
    return found


def faults(root):
    pages = sorted({path for pattern in PAGES for path in root.glob(pattern)})
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    for path, text in texts.items():
        for number, line in enumerate(without_code(text).splitlines(), 1):
            for file, anchor in LINK.findall(line):
                where = f"{path.relative_to(root).as_posix()}:{number}"
                target = (path.parent / file).resolve() if file else path
                if re.match(r"\w+:", file):
                    continue
                if not target.exists():
                    yield f"{where}: a link leads nowhere: {file}"
                elif anchor and target.suffix == ".md" and anchor not in anchors(texts.get(target) or target.read_text(encoding="utf-8")):
                    yield f"{where}: {file or 'this page'} has no heading #{anchor}"
    if not texts:
        yield "there are no pages"


tree_check.check_planted(faults, {
    "README.md": "# A\n[a](docs/a.md#two-words) [b](docs/b.md)\n\n```\n[c](none.md)\n# no\n```\n[d](#a) [e](#no) [f](https://x.y/z#w)\n",
    "docs/a.md": "## Two `words`, [so](x.md)\n## One\n### One\n[g](#one-1) [h](#one-2) [i](../README.md#b) [j](../docs)\n",
}, [
    "README.md:2: a link leads nowhere: docs/b.md", "README.md:8: this page has no heading #no",
    "docs/a.md:1: a link leads nowhere: x.md", "docs/a.md:4: this page has no heading #one-2", "docs/a.md:4: ../README.md has no heading #b",
    "README.md:2: docs/a.md has no heading #two-words",
])
tree_check.main(faults)
