#!/usr/bin/python3
"""Checks docs/guarantees_tests.md against the tree: every file, test case, invariant and planted bug that it names must exist. It
must name all invariants and planted bugs, each bug under a promise that lists the invariants which must catch it. It must have
the promises of docs/guarantees.md, and no others. The files of that page and of docs/architecture.md must exist, too. First shows
that it finds planted faults.
"""
import re

import tree_check

PROMISES = "docs/guarantees.md"
PAGE = "docs/guarantees_tests.md"
TOUR = "docs/architecture.md"  # beside them
INVARIANTS = "tests/simulation/invariants.h"
BUGS = "tests/simulation/planted_*.cc"
PROMISE = re.compile(r"^#+ (\d+\. .*)$", re.M)
TEST_CASE = re.compile(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
# {"name", "in words", {Invariant::kOne, Invariant::kOther},
BUG = re.compile(r'\{"([^"]+)",\s*(?:"[^"]*"\s*)+,\s*\{((?:\s*Invariant::\w+,?)+)\s*\}')
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def read(root, path):
    return (root / path).read_text(encoding="utf-8") if (root / path).is_file() else ""


def test_cases(text):
    return {"".join(LITERAL.findall(literals)) for literals in TEST_CASE.findall(text)}


def bullets(text):
    """Each "- ..." of the page as one line."""
    for bullet in re.findall(r"^- (?:.+\n)(?:  .+\n)*", text, re.M):
        yield " ".join(bullet[2:].split())


def faults(root):
    page = read(root, PAGE)
    promises = read(root, PROMISES)
    for path in sorted(set(re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.[a-z]+)`", promises + page + read(root, TOUR)))):
        if not (root / path).is_file():
            yield f"there is no file {path}"
    for promise in sorted(set(PROMISE.findall(promises)) ^ set(PROMISE.findall(page))):
        yield f"only one of the pages has the promise '{promise}'"
    invariants = set(re.findall(r"^  (k[A-Z]\w*),$", read(root, INVARIANTS), re.M))
    bugs = {name: set(re.findall(r"\bk\w+", caught_by))
            for path in sorted(root.glob(BUGS)) for name, caught_by in BUG.findall(path.read_text(encoding="utf-8"))}
    named = 0
    page_invariants, page_bugs, of_promise = set(), set(), set()
    for bullet in bullets(page):
        if bullet.startswith("Invariants: "):
            of_promise = set(re.findall(r"`(\w+)`", bullet))
            page_invariants |= of_promise
            for name in sorted(of_promise - invariants):
                yield f"there is no invariant {name} in {INVARIANTS}"
        elif bullet.startswith("Planted bugs: "):
            for name in re.findall(r"\*([^*]+)\*", bullet):
                page_bugs.add(name)
                if name not in bugs:
                    yield f"there is no planted bug '{name}' in {BUGS}"
                for invariant in sorted(bugs.get(name, set()) - of_promise):
                    yield f"the planted bug '{name}' must be caught by {invariant}, which its promise does not list"
        elif test := re.match(r"`(tests/\S+_test\.cc)`: ", bullet):
            cases = test_cases(read(root, test.group(1)))
            for name in LITERAL.findall(bullet):
                named += 1
                if name not in cases:
                    yield f"{test.group(1)} has no test case '{name}'"
    for name in sorted(invariants - page_invariants):
        yield f"the page does not name the invariant {name}"
    for name in sorted(set(bugs) - page_bugs):
        yield f"the page does not name the planted bug '{name}'"
    if named == 0:
        yield "the page names no test case"


tree_check.check_planted(faults, {
    PROMISES: "### 1. One\n### 2. Two\n`client/none.cc`\n",
    PAGE: '## 1. One\n- `tests/a_test.cc`: "one", "two\n  lines", "three"\n- `tests/b_test.cc`: "one"\n- Invariants: `kOnce`, `kNone`\n'
          '- Planted bugs: *dedup off*, *dedup on*\n',
    TOUR: "`ps_server/none.cc`, `tests/a_test.cc`\n",
    "tests/a_test.cc": 'TEST_CASE("one") {\nTEST_CASE(\n    "two "\n    "lines") {\n',
    INVARIANTS: "enum class Invariant {\n  kOnce,\n  kTorn,\n};\n",
    "tests/simulation/planted_bugs.cc": '{"dedup off",\n "x", {Invariant::kOnce,\n Invariant::kTorn}, y},\n',
    "tests/simulation/planted_files.cc": '{"torn", "x" "y", {Invariant::kTorn}, z},\n',
}, [
    "only one of the pages has the promise '2. Two'", "there is no file client/none.cc",
    "there is no file ps_server/none.cc", "there is no file tests/b_test.cc", "tests/a_test.cc has no test case 'three'",
    "tests/b_test.cc has no test case 'one'", f"there is no invariant kNone in {INVARIANTS}",
    "the planted bug 'dedup off' must be caught by kTorn, which its promise does not list",
    f"there is no planted bug 'dedup on' in {BUGS}", "the page does not name the invariant kTorn",
    "the page does not name the planted bug 'torn'",
])
tree_check.main(faults)
