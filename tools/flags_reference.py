#!/usr/bin/python3
"""Makes docs/flags.md, the reference of all commands and flags, from what the programs print with --help.

  tools/flags_reference.py           writes the page, from the programs in bazel-bin
  tools/flags_reference.py --check   ends with 1 if the page is not what this program would write
  --bin=DIR                          the programs are under DIR, as in bazel-bin
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/flags.md"
PROGRAMS = {"weir": "cli/weir", "ps_server": "ps_server/ps_server", "worker": "worker/worker", "weir bench": "bench/weir_bench"}
# "  --ps=N    Servers [1 to 64]", in the sections that describe what may be given.
ENTRY = re.compile(r"^  (\S+(?: [A-Z]\S*)?(?: \.\.\.)?)(?:  +(.*))?$")
SAME = {"--help", "--version"}
INTRO = """# Commands and flags

All flags of all programs, as `--help` prints them. [cli.md](cli.md) says what each command does.
`-h` or `--help` prints the help of any command; `--version`, of a program, its version. `tools/flags_reference.py` makes this page.
"""


def sections(text):
    """Of a help: {title: [(name, meaning), ...]}; "" has the description."""
    found, title = {"": [(text.splitlines()[0], "")]}, None
    for line in text.splitlines()[1:]:
        if heading := re.fullmatch(r"(Positionals|Options|Subcommands):", line):
            title = heading[1]
        elif not line.startswith("  "):
            title = None
        elif title and (entry := ENTRY.match(line)):
            found.setdefault(title, []).append((entry[1], entry[2] or ""))
    return found


def cell(text):
    return re.sub(r"<(\w)", r"\\<\1", text.replace("|", r"\|"))


def page(programs):
    lines = [INTRO]

    def describe(program, words):
        name = " ".join([program, *words])
        ran = subprocess.run([programs / PROGRAMS[program], *words, "--help"], capture_output=True, text=True, check=True)
        parts = sections(ran.stdout)
        rows = [(f"`{place}`", meaning) for place, meaning in parts.get("Positionals", [])]
        rows += [(f"`{flag}`", meaning) for flag, meaning in parts.get("Options", [])
                 if not SAME & set(re.split(r"[,=]", flag))]
        if rows or not parts.get("Subcommands"):
            lines.append(f"## {name}\n\n{parts[''][0][0].rstrip('.')}.\n")
            if rows:
                lines.append("| | |\n|---|---|")
                lines.extend(f"| {cell(flag)} | {cell(meaning)} |" for flag, meaning in rows)
                lines.append("")
        for command, _ in parts.get("Subcommands", []):
            if f"{name} {command}" != "weir bench":
                describe(program, [*words, command])

    for program in PROGRAMS:
        describe(program, [])
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "bazel-bin")
    args = parser.parse_args()
    text = page(args.bin)
    if not args.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/flags.md is not what the programs' --help says: build //cli:weir, //ps_server, //worker and "
                 "//bench:weir_bench, and run tools/flags_reference.py")


main()
