"""Libraries that are linked anew for the wheel, from the static ones of the same Debian packages: of the same code, but only what the
programs can reach. They take the place of Debian's, under the same names.

A table of functions (OpenBLAS: all kernels of a CPU; libcurl: all protocols) would bring everything that it names. Its references to
what is never called are made weak, so that nothing is brought for them and the table has null pointers there.
"""
import pathlib
import re
import subprocess


def output_of(*command):
    return subprocess.run([str(c) for c in command], check=True, text=True, stdout=subprocess.PIPE).stdout


def _link(library, debians, archive, called, tables, kept, weakened, folder, libraries=()):
    """Makes folder/library of the functions `called`. tables: the archive's members whose references to what matches `weakened`,
    but not `kept`, become weak. libraries: what it may need."""
    work = folder / f"{library}.d"
    work.mkdir()
    subprocess.run(["ar", "x", archive, *tables], check=True, cwd=work)
    for table in tables:
        subprocess.run(["objcopy", "--wildcard", f"--weaken-symbol=!{kept}", f"--weaken-symbol={weakened}", table], check=True, cwd=work)
    version = re.search(rf"{called[0]}@@(\S+)", output_of("nm", "-D", debians))
    exports = work / "exports.lds"
    exports.write_text(f"{version.group(1) if version else ''} {{ global: {'; '.join(called)}; local: *; }};")
    subprocess.run(
        ["gcc", "-shared", "-s", "-o", folder / library, f"-Wl,-soname,{library}", "-Wl,--no-undefined", "-Wl,--gc-sections",
         f"-Wl,--version-script={exports}", *(f"-Wl,--undefined={name}" for name in called), *(work / table for table in tables), archive,
         "-Wl,--as-needed", *libraries], check=True)


def _called(programs, pattern):
    found = {name for program in programs for name in re.findall(rf" U ({pattern})(?:@|$)", output_of("nm", "-D", "--undefined-only", program),
                                                                 re.MULTILINE)}
    return sorted(found)


def link_openblas(programs, folder):
    """cblas_sgemm() with its kernels for all CPUs, without those of other functions, LAPACK and its Fortran runtime: a thirtieth."""
    called = _called(programs, r"(?:cblas|openblas|blas)_\w+")
    if called != ["blas_memory_alloc", "blas_memory_free", "cblas_sgemm", "openblas_set_num_threads"]:
        raise SystemExit(f"wheel: the programs call {', '.join(called)} of OpenBLAS; keep the kernels of these, too")
    archive = pathlib.Path(output_of("gcc", "-print-file-name=libopenblas.a").strip()).resolve()
    tables = [name for name in output_of("ar", "t", archive).split() if name.startswith("setparam_")]
    _link("libopenblas.so.0", "/usr/lib/x86_64-linux-gnu/libopenblas.so.0", archive, called, tables, "sgemm_*", "*", folder,
          ["-lpthread", "-lm"])


def link_curl(programs, folder):
    """HTTP and HTTPS, without the other protocols and what these alone need, such as GnuTLS and LDAP. In libcurl's list of protocols HTTP
    and HTTPS come first, and a null pointer ends it."""
    debians = "/usr/lib/x86_64-linux-gnu/libcurl.so.4"
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", debians))
    _link("libcurl.so.4", debians, output_of("gcc", "-print-file-name=libcurl.a").strip(), _called(programs, r"curl_\w+"),
          ["libcurl_la-url.o"], "Curl_handler_http*", "Curl_handler_*", folder, [f"-l:{name}" for name in needed])
