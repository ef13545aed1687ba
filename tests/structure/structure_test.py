#!/usr/bin/python3
"""Checks the sources and BUILD files against the arrows of the design: which folder may include which, no cycle between folders,
where gRPC, CUDA and Catch2 may appear, and which functions of the C library what computes weights must not call. Reads the whole
source tree, so it covers a new file or folder too. First shows that it finds planted faults.
"""
import pathlib
import re

import tree_check

# What each folder may include and depend on, besides itself. tests may reach everything.
ARROWS = {
    "proto": set(),
    "common": {"proto"},
    "ps_server": {"proto", "common"},
    "client": {"proto", "common"},
    "worker": {"proto", "common", "client", "local"},
    "cli": {"proto", "common", "client"},
    "bench": {"proto", "common", "client"},
    # Servers and workers in one process; only main.cc and python's library include this folder.
    "local": {"proto", "common", "ps_server"},
    "python": {"proto", "common", "client", "worker", "local", "cli", "ps_server"},
}

# A program of one's own brings its model, its data and its loop; the order of examples is the job's.
PYTHON_OF_WORKER = "worker/data/dataset.h"

# libweir.so has programs within it, as a whole.
PYTHON_OF_PROGRAMS = {"cli": "cli/program.h", "ps_server": "ps_server/program.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LABEL = re.compile(r'"//([a-z_]+)(?:/[^":]*)?(?::(?!__pkg__|__subpackages__)[^"]*)?"')
GRPC_HEADER = re.compile(r"^(grpcpp|grpc|grpc\+\+)/|\.grpc\.pb\.h$")
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|curand|cusparse|nvml|nvrtc|nccl)[A-Za-z0-9_]*(\.h|\.hpp|\.cuh|/)")
GRPC_FILE = re.compile(r"^(.*_service(_.*)?|grpc_.*|server(_.*)?|main(_.*)?)$")
CUDA_FILE = re.compile(r"^cuda_.*$")
# Code that logs past common/telemetry/logging.h ignores --log_format.
SPDLOG_HEADER = re.compile(r"^spdlog/")
SPDLOG_FILE = re.compile(r"^logging$")

# The servers' weights have the same bits on every CPU; common/base/portable_math.h has what this takes.
WEIGHTS = ("common/base/portable_math", "common/base/random", "common/model/", "common/optimizer/", "ps_server/shard/",
           "ps_server/table/")
OF_THE_CPU = re.compile(r"(?<![\w.>:])(?:std::|__builtin_)?(?:pow|exp|exp2|exp10|expm1|log|log2|log10|log1p|sin|cos|tan|sincos|asin|acos|atan|"
                        r"atan2|sinh|cosh|tanh|cbrt|hypot|erf|erfc|tgamma|lgamma|fma)[fl]?\(")


def sources(root, suffixes):
    for folder in [*ARROWS, "tests"]:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root)


def includes(root):
    """path -> [(line number, quote, header)]"""
    found = {}
    for path in sources(root, {".h", ".cc", ".cu", ".cuh"}):
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        matches = ((number, INCLUDE.match(line)) for number, line in enumerate(lines, 1))
        found[path] = [(number, m.group(1), m.group(2)) for number, m in matches if m]
    return found


def reaching(found, pattern):
    """header of the project -> the header of `pattern` that it includes, directly or through other headers."""
    reach = {}
    grown = True
    while grown:
        grown = False
        for path, lines in found.items():
            if path.suffix not in (".h", ".cuh") or str(path) in reach:
                continue
            for _, _, header in lines:
                if pattern.search(header) or header in reach:
                    reach[str(path)] = header if pattern.search(header) else reach[header]
                    grown = True
                    break
    return reach


def faults_of_includes(root):
    found = includes(root)
    rules = [("gRPC", GRPC_HEADER, GRPC_FILE, "*_service, grpc_*, server and main"),
             ("CUDA", CUDA_HEADER, CUDA_FILE, "cuda_*"), ("spdlog", SPDLOG_HEADER, SPDLOG_FILE, "logging")]
    reach = {name: reaching(found, pattern) for name, pattern, _, _ in rules}
    for path, lines in found.items():
        folder = path.parts[0]
        for number, quote, header in lines:
            where = f"{path}:{number}: "
            first = header.split("/")[0]
            if header.startswith(("./", "../")) or (quote == '"' and (root / path.parent / header).exists()
                                                    and not (root / header).exists()):
                yield where + f'"{header}": write the path from the repository\'s root'
            if folder == "tests":
                continue
            if first in ARROWS and first != folder and first not in ARROWS[folder]:
                yield where + f"{folder} must not include {first} ({header})"
            if folder not in ("local", "python") and first == "local" and path.name != "main.cc":
                yield where + f"only main.cc and python include local ({header})"
            if folder == "python" and first == "worker" and not header.startswith(PYTHON_OF_WORKER):
                yield where + f"python includes nothing of worker but {PYTHON_OF_WORKER} ({header})"
            if folder == "python" and header != PYTHON_OF_PROGRAMS.get(first, header):
                yield where + f"python includes nothing of {first} but {PYTHON_OF_PROGRAMS[first]} ({header})"
            if first == "tests" or header.startswith(("catch2/", "benchmark/")):
                yield where + f"only tests include {header}"
            for name, pattern, allowed, names in rules:
                if allowed.match(path.stem):
                    continue
                if pattern.search(header):
                    yield where + f"only files named {names} include {name} headers ({header})"
                elif header in reach[name]:
                    yield where + f"{header} brings in {name} ({reach[name][header]}), which only files named {names} may"


def room_of(path):
    """The folder. A file in a top-level folder is a room of its own, together with its header: client/types.h is below
    client/exchange, client/join.cc above it."""
    return str(path.parent) if len(path.parts) > 2 else str(path.with_suffix(""))


def faults_of_rooms(root):
    """Cycles between rooms of one top-level folder: an include that leads to a room from which the including room is reached."""
    edges = {}
    for path, lines in includes(root).items():
        if path.parts[0] == "tests":
            continue
        for number, quote, header in lines:
            other = room_of(pathlib.PurePath(header))
            if quote == '"' and header.split("/")[0] == path.parts[0] and other != room_of(path):
                edges.setdefault(room_of(path), {}).setdefault(other, f"{path}:{number}: ")

    def way(start, goal):
        """The rooms from `start` to `goal`, both included; None: no path exists."""
        ways, seen = [[start]], {start}
        for rooms in ways:
            if rooms[-1] == goal:
                return rooms
            for room in edges.get(rooms[-1], {}):
                if room not in seen:
                    seen.add(room)
                    ways.append([*rooms, room])
        return None

    reported = set()
    for room, others in edges.items():
        for other, where in others.items():
            back = way(other, room)
            # Files of one folder may need each other.
            if back and any((root / r).is_dir() for r in back) and frozenset(back) not in reported:
                reported.add(frozenset(back))
                yield where + f"a cycle between folders: {' -> '.join([room, *back])}"


def faults_of_builds(root):
    for path in sources(root, {".bazel"}):
        folder = path.parts[0]
        if folder == "tests":
            continue
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            for label in LABEL.finditer(line.split("#")[0]):
                other = label.group(1)
                if other in ARROWS and other != folder and other not in ARROWS[folder] and "__" not in label.group(0):
                    yield f"{path}:{number}: {folder} must not depend on {other} ({label.group(0)})"


def faults_of_headers(root):
    for path in sources(root, {".h", ".cuh"}):
        if "#pragma once" not in (root / path).read_text(encoding="utf-8").splitlines():
            yield f"{path}:1: a header needs #pragma once"


def faults_of_arithmetic(root):
    for path in sources(root, {".h", ".cc", ".inc"}):
        if not str(path).startswith(WEIGHTS):
            continue
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            call = OF_THE_CPU.search(line.split("//")[0])
            if call:
                yield f"{path}:{number}: the bits of {call.group(0)}...) differ by CPU; take those of common/base/portable_math.h"


def faults(root):
    for faults_of in (faults_of_includes, faults_of_rooms, faults_of_builds, faults_of_headers, faults_of_arithmetic):
        yield from faults_of(root)


PLANTED = {
    "common/a.h": ('#pragma once\n\n#include "ps_server/shard.h"\n', "common/a.h:3: common must not include ps_server"),
    "ps_server/b.cc": ('#include "worker/model.h"\n', "ps_server/b.cc:1: ps_server must not include worker"),
    "ps_server/b2.cc": ('#include "client/client.h"\n', "ps_server/b2.cc:1: ps_server must not include client"),
    "worker/c.cc": ('#  include "ps_server/shard.h"\n', "worker/c.cc:1: worker must not include ps_server"),
    "client/d.cc": ('#include "worker/x.h"\n', "client/d.cc:1: client must not include worker"),
    "client/e.h": ("#pragma once\n#include <grpcpp/grpcpp.h>\n", "client/e.h:2: only files named *_service"),
    "client/f.cc": ('#include "proto/ps.grpc.pb.h"\n', "client/f.cc:1: only files named *_service"),
    "client/grpc_link.h": ("#pragma once\n#include <grpcpp/channel.h>\n", None),
    "client/middle.h": ('#pragma once\n#include "client/grpc_link.h"\n', "client/middle.h:2: client/grpc_link.h brings"),
    "client/g.cc": ('#include "client/middle.h"\n', "client/g.cc:1: client/middle.h brings in gRPC (grpcpp/channel.h)"),
    "worker/h.cc": ("#include <cublas_v2.h>\n", "worker/h.cc:1: only files named cuda_*"),
    "worker/cuda_backend.cc": ("#include <cuda_runtime.h>\n#include <cublas_v2.h>\n", None),
    "client/m.cc": ('#include "spdlog/spdlog.h"\n', "client/m.cc:1: only files named logging include spdlog"),
    "ps_server/push_service.cc": ("#include <grpcpp/server.h>\n", None),
    "ps_server/process/server.cc": ("#include <grpcpp/server.h>\n", None),
    "worker/main.cc": ('#include "local/in_process_cluster.h"\n', None),
    "worker/loop.cc": ('#include "local/in_process_cluster.h"\n', "worker/loop.cc:1: only main.cc and python include local"),
    "python/capi/a.cc": ('#include "local/in_process_cluster.h"\n#include "worker/data/dataset.h"\n', None),
    "python/capi/b.cc": ('#include "worker/trainer.h"\n', "python/capi/b.cc:1: python includes nothing of worker but"),
    "python/capi/c.cc": ('#include "cli/program.h"\n#include "ps_server/program.h"\n', None),
    "python/capi/d.cc": ('#include "ps_server/shard/shard.h"\n', "python/capi/d.cc:1: python includes nothing of ps_server but"),
    "bench/b.cc": ('#include "ps_server/shard/shard.h"\n', "bench/b.cc:1: bench must not include ps_server"),
    "worker/i.cc": ('#include "catch2/catch.hpp"\n', "worker/i.cc:1: only tests include"),
    "worker/j.cc": ('#include "../common/base/random.h"\n', "worker/j.cc:1: \"../common/base/random.h\": write the path"),
    "client/types.h": ("#pragma once\n", None),
    "client/api.h": ('#pragma once\n#include "client/types.h"\n', None),
    "client/api.cc": ('#include "client/api.h"\n#include "client/low/n.h"\n', None),
    "client/low/n.h": ('#pragma once\n#include "client/types.h"\n', None),
    "bench/o.h": ('#pragma once\n#include "bench/p.h"\n', None),
    "bench/p.cc": ('#include "bench/o.h"\n', None),
    "worker/low/q.h": ("#pragma once\n", None),
    "worker/low/r.cc": ('\n#include "worker/high/s.h"\n', "worker/high/s.h:2: a cycle between folders: worker/high -> worker/low -> worker/high"),
    "worker/high/s.h": ('#pragma once\n#include "worker/low/q.h"\n', None),
    "common/optimizer/t.cc": ("// std::pow(2, 3)\nf = std::cos(x);\n", "common/optimizer/t.cc:2: the bits of std::cos(...) differ by CPU"),
    "ps_server/table/u.inc": ("g = powf(x, 2);\n", "ps_server/table/u.inc:1: the bits of powf(...) differ by CPU"),
    "ps_server/shard/v.cc": ("h = log_.Begin(std::sqrt(x)) + catalog(1) + store.log();\n", None),
    "worker/w.cc": ("f = std::exp(x);\n", None),
    "common/k.h": ("int x;\n", "common/k.h:1: a header needs #pragma once"),
    "worker/BUILD.bazel": ('deps = [\n"//ps_server:shard", "//client"]\n', "worker/BUILD.bazel:2: worker must not depend"),
    "common/BUILD.bazel": ('visibility = ["//worker:__subpackages__", "//cli:__pkg__"]\ndeps = ["//worker"]\n',
                           "common/BUILD.bazel:2: common must not depend on worker"),
    "tests/worker/l_test.cc": ('#include "ps_server/shard.h"\n#include "catch2/catch.hpp"\n', None),
}
tree_check.check_planted(faults, {name: text for name, (text, _) in PLANTED.items()},
                         [fault for _, fault in PLANTED.values() if fault])
tree_check.main(faults)
