"""The blocks of code of the pages, and their marks: the tests that run or check blocks share this."""
import ast
import dataclasses
import re

PAGES = ("*.md", "docs/**/*.md", "worker/**/*.md")
# Pages that a program writes.
GENERATED = {"docs/config.md", "docs/flags.md", "docs/metrics_list.md"}
FENCE = re.compile(r"( *)```([\w+-]*)$")
# A line before a block: <!-- run by: //tests/python:data_test --> or <!-- not run: needs a cluster -->.
MARK = re.compile(r" *<!-- (run by|not run): (.+) -->$")


@dataclasses.dataclass(frozen=True)
class Block:
    """language: as behind the fence; "": none is given, or the block is indented. run_by: the test's label. reason: why it is not run."""

    page: str
    line: int
    language: str
    text: str
    run_by: str = ""
    reason: str = ""

    @property
    def where(self):
        """For messages."""
        return f"{self.page}:{self.line}"


def _marks(lines, begin):
    """What the mark before a block says, {"run_by": ...} or {"reason": ...}."""
    before = next((line for line in reversed(lines[:begin]) if line.strip()), "")
    mark = MARK.match(before)
    return {{"run by": "run_by", "not run": "reason"}[mark[1]]: mark[2]} if mark else {}


def blocks_of(page, text):
    """Of one page."""
    lines, i = text.splitlines(), 0
    while i < len(lines):
        fence = FENCE.match(lines[i])
        if fence:
            end = next((j for j in range(i + 1, len(lines)) if lines[j] == fence[1] + "```"), len(lines))
            body = [line.removeprefix(fence[1]) for line in lines[i + 1:end]]
            yield Block(page, i + 1, fence[2], "\n".join(body) + "\n", **_marks(lines, i))
            i = end + 1
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()) and not _in_list(lines, i):
            end = next((j for j in range(i, len(lines)) if lines[j].strip() and not lines[j].startswith("    ")), len(lines))
            body = [line[4:] for line in lines[i:end]]
            yield Block(page, i + 1, "", "\n".join(body).rstrip() + "\n", **_marks(lines, i))
            i = end
        else:
            i += 1


def _in_list(lines, i):
    """Whether an indented line continues an item of a list."""
    before = next((line for line in reversed(lines[:i]) if line.strip() and not line.startswith("    ")), "")
    return re.match(r" *(?:[-*]|\d+\.) ", before) is not None


def pages(root):
    """(name, text) of all pages that people write, and of the examples' docstrings."""
    for path in sorted(root.glob("examples/*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False)
        yield path.relative_to(root).as_posix(), f"\n{docstring}"
    for path in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        page = path.relative_to(root).as_posix()
        if page not in GENERATED:
            yield page, path.read_text(encoding="utf-8")


def blocks(root):
    """Of all pages."""
    for page, text in pages(root):
        yield from blocks_of(page, text)


def block_with(root, page, words):
    """The one block of a page that has these words in it."""
    (found,) = [block for block in blocks(root) if block.page == page and words in block.text]
    return found
