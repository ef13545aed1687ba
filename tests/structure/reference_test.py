#!/usr/bin/python3
"""Checks the pages of reference against the sources: the commands of `weir` and the flags of all programs, exit codes, the exceptions
of Python, and which workers report how busy they are. First shows that it finds planted faults.
"""
import re

import tree_check

COMMANDS, EXIT_CODES, PYTHON, METRICS = "docs/cli.md", "docs/exit_codes.md", "docs/python.md", "docs/metrics.md"
HELP, CODES, ERRORS = "cli/program.cc", "common/program/exit_codes.h", "python/weir/errors.py"
OF_WEIR = "cli/commands/*.cc"
PROGRAMS = (OF_WEIR, "bench/*.cc", "common/program/*.cc", "common/rpc/*.cc", "ps_server/program.cc", "worker/main.cc")
COMMAND = re.compile(r'(?:\.Add(?:Group)?|app(?:\(\))?\.add_subcommand|AddDescription)\(\s*(?:commands, )?"([\w-]+)"')
# A flag as CLI11 gets it: "-h,--help", "--ps", "--restart{3}".
FLAG = re.compile(r'"(?:-\w,)?(--[a-z_]+)["{]')
NAMED_FLAG = re.compile(r"(?<![\w-])--[a-z_]+")
# Codes that are no ExitCode: a damaged checkpoint, and `weir` that was ended by SIGHUP and by Ctrl-C.
OWN_CODES = {1, 129, 130}
REPORT = "compute_seconds"
SILENT = "Programs in Python do not report it"


def read(root, *patterns):
    return "\n".join(path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(root.glob(pattern)))


def first_cells(text):
    return re.findall(r"^\| (.+?) \|", text, re.M)


def differences(here, there, what, place, source):
    yield from (f"{place} lacks {what} {x}" for x in sorted(there - here))
    yield from (f"{source} lacks {what} {x}, which {place} names" for x in sorted(here - there))


def codes_in(text):
    return {int(code) for code in re.findall(r"\b\d+\b", text)}


def section(text, title):
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def faults(root):
    page = read(root, COMMANDS)
    listed = set(re.findall(r"`weir ([\w-]+)`", "\n".join(first_cells(page.partition("\n## ")[0]))))
    yield from differences(listed, set(COMMAND.findall(read(root, OF_WEIR))), "the command", COMMANDS, OF_WEIR)
    flags, named = set(FLAG.findall(read(root, *PROGRAMS))), set(NAMED_FLAG.findall(read(root, "docs/*.md")))
    for flag in sorted(flags - named):
        yield f"no page names the flag {flag}"
    for flag in sorted(set(NAMED_FLAG.findall("\n".join(first_cells(page)))) - flags):
        yield f"no program has the flag {flag}, which {COMMANDS} lists"

    codes = codes_in("\n".join(re.findall(r"^  kExit\w+ = (\d+),", read(root, CODES), re.M)))
    in_page = codes_in("\n".join(re.findall(r"^\| (\d+) \|", read(root, EXIT_CODES), re.M)))
    yield from differences(in_page, codes, "the code", EXIT_CODES, CODES)
    of_weir = codes_in("\n".join(first_cells(section(page, "Exit codes"))))
    yield from differences(of_weir, codes | OWN_CODES, "the code", COMMANDS, CODES)
    told = codes_in(" ".join(code for line in re.findall(r"^Exit codes: (.*)", read(root, HELP), re.M)
                             for code in re.findall(r"(?:^|; )(\d+) ", line)))
    yield from differences(told, codes | OWN_CODES, "the code", HELP, CODES)

    raised = set()
    for name, body in re.findall(r"^class (\w+)\(Error\):\n((?:(?: .*)?\n)*)", read(root, ERRORS), re.M):
        code = re.search(r"exit_code = .*?(\d+)$", body, re.M)
        raised.add(f"{name}, {code[1] if code else 70}")
    rows = {f"{name}, {code}" for name, code in re.findall(r"^\| `weir\.(\w+)` \| .* \| (\d+) \|$", read(root, PYTHON), re.M)}
    yield from differences(rows, raised, "the exception", PYTHON, ERRORS)

    if (REPORT in read(root, "python/capi/*.cc")) == (SILENT in read(root, METRICS)):
        yield f"{METRICS} says '{SILENT}' and python/capi sets {REPORT}, or neither"


tree_check.check_planted(faults, {
    COMMANDS: "| `weir up`, `weir gone` | runs |\n\n## weir up\n| `--ps=N`, `--old` | servers |\n\n## Exit codes\n| 0 | done |\n| 1 | x |\n"
              "| 129, 143 | y |\n",
    "cli/commands/a.cc": 'commands.Add("up", "x");\ncommands.AddGroup(\n  "certs", "y");\nAddDescription(commands, "man");\n'
                         'command->add_option("--ps", x);\n',
    "ps_server/program.cc": 'add("-h,--help", "--bind is for 8 --others");\n',
    EXIT_CODES: "| 0 | done |\n| 77 | x |\n",
    CODES: "  kExitOk = 0,\n  kExitDrained = 143,  // x\n",
    HELP: "Exit codes: 0 done; 1 damaged; 129 SIGHUP; 130 Ctrl-C, 143 SIGTERM.\n",
    ERRORS: 'class Error(Exception):\n    exit_code = 70\n\n\nclass Lost(Error):\n    """X."""\n\n    kind, exit_code = 4, 138\n\n\n'
            "class Bad(Error):\n    kind = 1\n",
    PYTHON: "| `weir.Lost` | gone | 74 |\n| `weir.Bad` | x | y | 70 |\n",
    METRICS: "",
}, [
    f"{COMMANDS} lacks the command certs", f"{COMMANDS} lacks the command man", f"{OF_WEIR} lacks the command gone",
    "no page names the flag --help", f"no program has the flag --old, which {COMMANDS} lists",
    f"{EXIT_CODES} lacks the code 143", f"{CODES} lacks the code 77, which {EXIT_CODES} names",
    f"{COMMANDS} lacks the code 130", f"{HELP} lacks the code 143",
    f"{PYTHON} lacks the exception Lost, 138", f"{ERRORS} lacks the exception Lost, 74",
    f"{METRICS} says",
])
tree_check.main(faults)
