#!/usr/bin/python3
"""Checks the words of comments, messages and pages: phrases that a reader stumbles over, sentences and cells that are too long, lines
of comments that are broken, tags that are missing. First shows that it finds planted faults.
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
# With these a sentence of a header begins instead of with the noun.
OPENING = re.compile(r"(?:// |\. )(Those|Whoever|What|The same)\b")
# In headers and in pages. Messages and the names of tests keep their words.
GOES_ON = re.compile(r"\b(go|goes|going|went) on\b", re.I)
# A line with a comment of C++.
COMMENT = re.compile(r"(?P<code>.*?)//(?P<indent> +)(?P<text>\S.*)")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
PAUSE = re.compile(r"[.:;!?][\"')]*$")
CPP_SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".inc"}
COLUMNS = 110
# A line that ends in the middle of a sentence is broken if the next word would fit and leave so many columns free.
SLACK = 10
# Headers that programs of users include, or that these headers include. Their comments have the tags "Requires:", "Errors:" and
# "Thread safety:".
PUBLIC = re.compile(r"client/(client|task|types|tensors/gradient_gate)\.h|"
                    r"common/(threads/future|model/model_spec|rpc/job_token|rpc/tls)\.h|python/capi/.*\.h")
UNTAGGED_SAFETY = re.compile(r"(?:^|\. )((?:Not t|T)hread-safe)\b")
UNTAGGED_ERROR = re.compile(r"(?:^|[.;] )((?:Aborted|AlreadyExists|DataLoss|DeadlineExceeded|FailedPrecondition|Internal|"
                            r"InvalidArgument|NotFound|OutOfRange|ResourceExhausted|Unavailable|Unimplemented)(?:, \w+)*: )")
END_OF_SENTENCE = re.compile(r"[.!?][\"')]*\s+")
WORDS_OF_SENTENCE = 35
CHARACTERS_OF_CELL = 250
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CELL_END = re.compile(r"(?<!\\)\|")
EMPHASIZED = re.compile(r"\*[^*]+\*")
QUOTED = re.compile(r'"[^"]*"|`[^`]*`')


def texts(root):
    for path in sorted(root.glob("*.md")):
        yield path
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                yield path


def paragraphs(text):
    """Of a page: (number of the first line, text), one for each paragraph, list and table; no code."""
    begin, lines, fenced = 0, [], False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        if fenced or fence or not line.strip() or (not lines and line.startswith("    ")):
            if lines:
                yield begin, "\n".join(lines)
            lines = []
            fenced ^= fence
            continue
        if not lines:
            begin = number
        lines.append(line)


def items(paragraph, begin):
    """(number of the first line, text) of each item of a list, or of the paragraph."""
    for number, line in enumerate(paragraph.split("\n"), begin):
        mark = ITEM.match(line.lstrip())
        if mark and number > begin:
            yield first, "\n".join(lines)
        if mark or number == begin:
            first, lines = number, [line.lstrip()[len(mark[0]):] if mark else line]
        else:
            lines.append(line)
    yield first, "\n".join(lines)


def without_quotes(text):
    """The text, with as many line breaks, without what it quotes."""
    return QUOTED.sub(lambda quote: "\n" * quote[0].count("\n"), text)


def comments(text):
    """Of C++: each paragraph of a comment, and each item of a list, as [(number of the line, match of COMMENT), ...]. No tables,
    formulas and examples: text with gaps, or that is indented without an item's mark."""
    paragraph, indent = [], 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = COMMENT.fullmatch(line)
        item = comment and ITEM.match(comment["text"])
        if paragraph:
            before = paragraph[-1][1]
            aligned = (comment and not item and not comment["code"].strip() and
                       comment.start("indent") == before.start("indent"))
            # An item that is broken continues where its mark stands.
            if not (aligned and (len(comment["indent"]) == indent or
                                 len(comment["indent"]) < indent and not PAUSE.search(before["text"]))):
                if not any("  " in line["text"] for _, line in paragraph):
                    yield paragraph
                paragraph = []
        if paragraph:
            paragraph.append((number, comment))
        elif comment and (item or len(comment["indent"]) == 1) and not comment["text"].startswith("---"):
            paragraph = [(number, comment)]
            indent = len(comment["indent"]) + (len(item[0]) if item else 0)


def broken_lines(paragraph):
    """Numbers of the lines that end early, in the middle of a sentence. clang-format makes such lines when it cuts a line that has
    become too long."""
    for (number, line), (_, following) in zip(paragraph, paragraph[1:]):
        item = ITEM.match(line["text"])
        indent = len(line["indent"]) + (len(item[0]) if item else 0)
        ends_early = len(line[0]) + 1 + len(following["text"].split()[0]) + SLACK <= COLUMNS
        if not PAUSE.search(line["text"]) and (ends_early or len(following["indent"]) < indent):
            yield number


def long_sentences(text, most):
    """(count of words, first words) of each sentence with more than `most`."""
    for sentence in END_OF_SENTENCE.split(text):
        words = sentence.split()
        if len(words) > most:
            yield len(words), " ".join(words[:5])


def counted(text):
    """The text as its words are counted: code, a quote and a name in italics are one word each, and a link is its text."""
    return LINK.sub(r"\1", EMPHASIZED.sub("NAME", QUOTED.sub(lambda quote: "QUOTE" + "\n" * quote[0].count("\n"), text)))


def faults_of_header(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if found := OPENING.search(line):
            yield f"{name}:{number}: a sentence begins with '{found[1]}': say the noun"
        if found := GOES_ON.search(line.partition("//")[2]):
            yield f"{name}:{number}: '{found[0]}': continue"


def faults_of_comments(name, text):
    for paragraph in comments(text):
        begin = paragraph[0][0]
        prose = " ".join(line["text"] for _, line in paragraph)
        if PUBLIC.fullmatch(name):
            if found := UNTAGGED_SAFETY.search(prose):
                yield f"{name}:{begin}: '{found[1]}' without 'Thread safety:'"
            if (found := UNTAGGED_ERROR.search(prose)) and "Errors: " not in prose[:found.start() + 2]:
                yield f"{name}:{begin}: '{found[1]}' without 'Errors:'"
        for number in broken_lines(paragraph):
            yield f"{name}:{number}: the line ends early, in the middle of a sentence: wrap the comment anew"
        for count, words in long_sentences(re.sub(rf"^{ITEM.pattern}", "", prose), WORDS_OF_SENTENCE):
            yield f"{name}:{begin}: a sentence of {count} words, at most {WORDS_OF_SENTENCE}: '{words} ...'"


def faults_of_page(name, text):
    for begin, paragraph in paragraphs(text):
        for number, line in enumerate(without_quotes(paragraph).split("\n"), begin):
            if found := GOES_ON.search(line):
                yield f"{name}:{number}: '{found[0]}': continue"
        if paragraph.startswith("|"):
            for number, row in enumerate(paragraph.split("\n"), begin):
                if (count := max(len(cell.strip()) for cell in CELL_END.split(LINK.sub(r"\1", row)))) >= CHARACTERS_OF_CELL:
                    yield f"{name}:{number}: a cell of {count} characters, under {CHARACTERS_OF_CELL}"
            continue
        for number, item in items(paragraph, begin):
            for count, words in long_sentences(counted(item), WORDS_OF_SENTENCE):
                yield f"{name}:{number}: a sentence of {count} words, at most {WORDS_OF_SENTENCE}: '{words} ...'"


def faults(root):
    for path in texts(root):
        name = path.relative_to(root).as_posix()
        if name == SELF:
            continue
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            for phrase, instead in PHRASES.items():
                if found := phrase.search(line):
                    yield f"{name}:{number}: '{found[0]}': {instead}"
        if path.suffix == ".h":
            yield from faults_of_header(name, text)
        if path.suffix in CPP_SUFFIXES:
            yield from faults_of_comments(name, text)
        if path.suffix == ".md":
            yield from faults_of_page(name, text)


tree_check.check_planted(faults, {
    "README.md": "It ends all the same.\nGive all the same names.\n",
    "common/a.h": "// Those that are read.\n// One. Whoever reads.\n// of those that\n",
    "common/b.h": "// What is read. The same.\n// What\nint a;  // The same, and goes on: see What() of \"whatever\".\n",
    "worker/a.cc": '"is another job than ours"  // Likewise. What goes on.\n',
    "docs/a.md": "NotFound: it is none.\n",
    "docs/b.md": ('It\ngoes on. `go on` and "what went\non" stay.\n\n```\ngoes on\n```\n\n    going on\n\n'
                  "| and | goes on |\n"),
    "worker/b.h": (f"// One. {'word ' * 20}\n// {'word ' * 15}end. Two.\n// {'word ' * 35}\n//\n"
                   f"// - {'word ' * 20}\n//   {'word ' * 20}\n"),
    "client/types.h": "// Not thread-safe.\n\n// Reads. NotFound: none.\n// Errors: one. Aborted: two.\n// - NotFound: none.\n",
    "client/other.h": "// Thread-safe. NotFound: none.\n",
    "worker/b.cc": "// A line that\n// ends early.\n//\n// " + "x" * 107 + "\n// fits not\n// NULL.\n// A sentence.\n// Or:\n// more\n",
    "worker/c.cc": "//   a = b\n//   c\n//\n// a  1\n// b  2\n//\n// ---- one\n// two\n//\n// - an\n//   item\n// - no\n// item\n",
    "tests/b.cc": "int a;  // a line\n        // is\nint b;  // other\n// one\n",
    "docs/c.md": (f"- {'word ' * 30}\n- {'word ' * 30}\n  {'`code of words` ' * 6}\n\n{'word ' * 30}[a link](of.md words here)\n\n"
                  f"| {'word ' * 49}word | {'word ' * 49}[word](of.md) |\n| a | {'x' * 249}\\| |\n"),
    "tests/a.h": "// Those. What.\n",
}, [
    "README.md:1: 'all the same'",
    "common/a.h:1: a sentence begins with 'Those'",
    "common/a.h:2: a sentence begins with 'Whoever'",
    "common/b.h:1: a sentence begins with 'What'",
    "common/b.h:2: a sentence begins with 'What'",
    "common/b.h:3: a sentence begins with 'The same'",
    "common/b.h:3: 'goes on'",
    "worker/a.cc:1: 'another job than'",
    "worker/a.cc:1: 'Likewise'",
    "docs/a.md:1: 'it is none'",
    "docs/b.md:2: 'goes on'",
    "docs/b.md:11: 'goes on'",
    "worker/b.h:1: a sentence of 36 words",
    "worker/b.h:5: a sentence of 40 words",
    "client/types.h:1: 'Not thread-safe' without",
    "client/types.h:3: 'NotFound: ' without",
    "worker/b.cc:1: the line ends early",
    "worker/b.cc:5: the line ends early",
    "worker/c.cc:10: the line ends early",
    "worker/c.cc:12: the line ends early",
    "tests/b.cc:1: the line ends early",
    "docs/c.md:2: a sentence of 36 words",
    "docs/c.md:8: a cell of 251 characters",
    "tests/a.h:1: a sentence begins with 'Those'",
])
tree_check.main(faults)
