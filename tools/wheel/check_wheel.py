"""Installs a wheel where nothing else is, and trains with it; and again in a root that has glibc, Python, NumPy and the wheel alone."""
import http.server
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Of the system: what auditwheel leaves to it, since every manylinux system has it (PEP 600).
SYSTEM = re.compile(r"/(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libstdc\+\+|libgcc_s|libz)[.-]")
EXAMPLE = ROOT / "examples/logistic_regression.py"


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, text=True, **options)


def check_libraries(package):
    """Ends the program if a binary takes a library from elsewhere."""
    for binary in [package / "lib/libweir.so", *(package / "bin").iterdir()]:
        for line in run("ldd", binary, stdout=subprocess.PIPE).stdout.splitlines():
            own = "weir.libs/" in line or "weir/bin/../lib/libweir.so" in line or "weir/lib/libweir.so" in line
            if not (own or SYSTEM.search(line) or "linux-vdso" in line):
                sys.exit(f"wheel: {binary.name} takes a library that is not in the wheel: {line.strip()}")


class NoObjects(http.server.BaseHTTPRequestHandler):
    """Object storage whose buckets are empty."""

    def do_GET(self):  # pylint: disable=invalid-name
        body = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def check_object_storage(weir, folder):
    """HTTP is spoken, and HTTPS, with a certificate that is checked."""
    spec = folder / "cluster.json"
    spec.write_text('{"cluster": {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}}')
    run(weir, "certs", "init", folder / "certs", f"--spec={spec}", stdout=subprocess.DEVNULL)
    key = next(path for path in (folder / "certs").rglob("*.key") if path.name != "ca.key")
    for scheme, code, said in (("http", 78, "no checkpoints are there"), ("https", 78, "certificate")):
        with http.server.HTTPServer(("127.0.0.1", 0), NoObjects) as server:
            if scheme == "https":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(key.with_suffix(".pem"), key)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            environment = {**os.environ, "AWS_ENDPOINT_URL": f"{scheme}://127.0.0.1:{server.server_port}", "AWS_REGION": "us-east-1",
                           "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "NO_PROXY": "*"}
            done = subprocess.run([weir, "checkpoint", "list", "s3://bucket/runs"], env=environment, text=True, check=False,
                                  capture_output=True)
            server.shutdown()
        if done.returncode != code or said not in done.stderr:
            sys.exit(f"wheel: object storage by {scheme} ends with {done.returncode}: {done.stdout}{done.stderr}")


def make_root(root, site):
    """A root with glibc, what else every manylinux system has, Python, NumPy and the wheel, and nothing of Debian's beside."""
    python = pathlib.Path("/usr/bin/python3").resolve()
    about = "import os, sysconfig; print(os.path.dirname(os.__file__), sysconfig.get_config_var('EXT_SUFFIX'))"
    library, suffix = run(python, "-c", about, stdout=subprocess.PIPE).stdout.split()
    modules = [f"{library}/lib-dynload/{name}{suffix}" for name in ("_ctypes", "_contextvars", "_asyncio", "_json", "_queue")]
    found = run("ldd", python, *filter(os.path.exists, modules), site / "weir/lib/libweir.so", stdout=subprocess.PIPE).stdout
    needed = {pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", found)}
    needed |= {path for path in pathlib.Path("/lib/x86_64-linux-gnu").glob("*.so.*") if SYSTEM.search(str(path))}
    for path in {python, *(path for path in needed if site not in path.resolve().parents)}:
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    shutil.copytree(library, root / library[1:], ignore=lambda folder, names: [
        name for name in names if name in ("__pycache__", "test", "dist-packages") or (
            folder.endswith("lib-dynload") and f"{folder}/{name}" not in modules)])
    shutil.copytree(site, root / "site")
    for name in ("proc", "dev", "tmp", "example"):
        (root / name).mkdir()
    for file in (EXAMPLE, EXAMPLE.with_suffix(".json")):
        shutil.copy(file, root / "example")
    return f"/{python.relative_to('/')}"


def check_alone(site, folder):
    """Trains with the wheel in such a root."""
    root = folder / "root"
    python = make_root(root, site)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": "/site", "PYTHONDONTWRITEBYTECODE": "1", "LD_BIND_NOW": "1"}
    enter = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c",
             'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"', str(root)]
    weir, job, program = "/site/weir/bin/weir", f"/example/{EXAMPLE.stem}.json", [python, f"/example/{EXAMPLE.name}"]
    for command in (program, [weir, "up", "--ps=2", "--workers=2", job, "--", *program], [weir, "demo"]):
        done = subprocess.run([*enter, *command], env=environment, text=True, check=False, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"wheel: where there is nothing but glibc, Python, NumPy and the wheel, {' '.join(command)} ends with "
                     f"{done.returncode}: {done.stdout}{done.stderr}")


def check(wheel):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        run("/usr/bin/python3", "-m", "venv", folder / "venv")
        run(folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        site = next(folder.glob("venv/lib/python*/site-packages"))
        check_libraries(site / "weir")
        programs = folder / "venv/bin"
        run(programs / "python", EXAMPLE)
        run(programs / "weir", "up", "--ps=2", "--workers=2", EXAMPLE.with_suffix(".json"), "--", programs / "python", EXAMPLE,
            stdout=subprocess.DEVNULL)
        check_object_storage(programs / "weir", folder)
        check_alone(site, folder)
