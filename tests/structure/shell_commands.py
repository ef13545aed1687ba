"""Checks commands of Weir in text of a shell, without running them: programs, commands, flags and files must exist. What a command
takes is what its --help says.
"""
import functools
import pathlib
import re
import shlex
import subprocess
import sys

# Where the programs are: the runfiles of a test, or else what `./dev build` has built.
OWN = {"weir": "cli/weir", "ps_server": "ps_server/ps_server", "worker": "worker/worker"}
PYTHONS = {"python", "python3"}
# [--flag=a|b] and [FILE] of a synopsis.
OPTIONAL = re.compile(r"\[(--[^\]\n]*|[A-Z_]+)\]")
ALTERNATIVE = re.compile(r"\|[^\s|]+")
OPTION = re.compile(r"^  (?:-\w,)?(--[\w-]+)(\S*)", re.M)
ASSIGNMENT = re.compile(r"\w+=")
ENDS = {"&&", "||", ";", "|", "&", "(", ")", "do", "done", "then"}
# Where `./dev` and its programs look for flags.
OF_DEV = ("dev", "tools/*", "bench/*.cc", "tests/bench/*.cc", "tests/bench/*/*.py", "tests/chaos/*.cc", "tests/hosts/*.py", "tests/simulation/*.cc")


def program(root, name):
    """The path of a program."""
    found = [path for path in (pathlib.Path(OWN[name]).absolute(), root / "bazel-bin" / OWN[name]) if path.is_file()]
    if not found:
        sys.exit(f"{OWN[name]} is not built; `./dev build //{OWN[name].replace('/', ':')}` builds it")
    return found[0]


@functools.lru_cache(maxsize=None)
def help_of(path, *commands):
    """(commands, {flag: what follows it}, [positionals]) of a program or one of its commands."""
    text = subprocess.run([path, *commands, "--help"], capture_output=True, text=True, check=True).stdout

    def section(title):
        return text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]

    return (re.findall(r"^  ([\w-]+) ", section("Subcommands"), re.M), dict(OPTION.findall(section("Options"))),
            re.findall(r"^  (\w+ .*)", section("Positionals"), re.M))


def commands_in(text):
    """The words of each command. A line that ends with \\ continues on the next, and so does a synopsis."""
    text = re.sub(r"\\\n\s*|\n\s+(?=\[)", " ", text)
    for line in OPTIONAL.sub(lambda m: ALTERNATIVE.sub("", m[1].replace(" | ", " ")), text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|")
        lexer.whitespace_split, lexer.commenters = True, ""
        words = []
        for word in lexer:
            if word.startswith("#"):
                break
            if word in ENDS:
                yield words
                words = []
            else:
                words.append(word)
        yield words


def faults_of_own(path, name, words, others):
    """Of the words behind one of Weir's programs. others: the paths of ps_server and worker."""
    commands, flags, positionals = help_of(path)
    chain = []
    while commands:
        if not words or words[0] not in commands:
            if not (words and words[0] in flags):
                yield f"`{' '.join([name, *chain, *words[:1]])}` is no command; there are {', '.join(commands)}"
            return
        chain.append(words[0])
        words = words[1:]
        commands, flags, positionals = help_of(path, *chain)
    if chain == ["run"]:
        # It becomes one of these, and takes what that takes.
        flags = flags | {flag: value for other in others for flag, value in help_of(other)[1].items()}
    title, given = " ".join([name, *chain]), []
    words = [word for word in words if word != "..."]
    while words and words[0] != "--":
        word, words = words[0], words[1:]
        flag, equals, _ = word.partition("=")
        if not flag.startswith("--"):
            given.append(word)
        elif flag not in flags:
            yield f"`{title}` has no flag {flag}"
        elif not equals and flags[flag].startswith("="):
            words = words[1:]
    required = [p for p in positionals if p.endswith("[required]")]
    if len(given) < len(required) or len(given) > len(positionals) and not any(" ... " in p for p in positionals):
        yield f"`{title}` takes {len(required)} to {len(positionals)} words without --, got {len(given)}: {' '.join(given)}"


def faults_of_dev(root, verb, words):
    """Of the words behind `./dev`."""
    source = (root / "dev").read_text(encoding="utf-8")
    if f"\nverb_{verb}() " not in source:
        return [f"`./dev` has no verb {verb}"]
    if verb == "bench" and words and f"\n    {words[0]})" not in source:
        return [f"`./dev bench` has no {words[0]}"]
    known = "\n".join(path.read_text(encoding="utf-8") for pattern in OF_DEV for path in root.glob(pattern) if path.is_file())
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [f"`./dev {verb}` has no flag {flag}" for flag in flags if not re.search(rf"{flag[2:]}\b", known)]


def faults_of(root, words):
    """(whether it is a command of Weir, what is wrong with it)."""
    while words and (ASSIGNMENT.match(words[0]) or words[0] == "exec"):
        words = words[1:]
    if not words:
        return True, []
    name = words[0].rpartition("/")[2]
    if name in OWN:
        paths = {own: str(program(root, own)) for own in OWN}
        found = list(faults_of_own(paths[name], name, words[1:], (paths["ps_server"], paths["worker"])))
        end = words.index("--") if "--" in words else len(words)
        return True, found + files_lacking(root, words[:end]) + faults_of(root, words[end + 1:])[1]
    if words[0] == "./dev" and len(words) > 1:
        return True, faults_of_dev(root, words[1], words[2:])
    if name in PYTHONS and len(words) > 1 and words[1].startswith("examples/"):
        if not (root / words[1]).exists():
            return True, [f"there is no {words[1]}"]
        text = (root / words[1]).read_text(encoding="utf-8")
        return True, [f"{words[1]} has no flag {word}" for word in words[2:] if word.startswith("--") and word.partition("=")[0] not in text]
    if name == "pip" and "dist/weir-*.whl" in words:  # what `./dev wheel` makes
        return True, []
    if words[:2] == ["bazel", "run"]:
        package, _, target = words[2][2:].partition(":")
        build = root / package / "BUILD.bazel"
        exists = build.exists() and f'name = "{target}"' in build.read_text(encoding="utf-8")
        return True, [] if exists else [f"there is no target {words[2]}"]
    return False, []


def files_lacking(root, words):
    """Files of the repository that a command names, and that are not there."""
    return [f"there is no {word}" for word in words if re.match(r"(configs|examples)/[\w/]+\.\w+$", word) and not (root / word).exists()]
