"""What the wheel says of itself to pip and to an index of packages: its METADATA, with page.md as its page there."""
import pathlib
import posixpath
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = "tools/wheel/page.md"
# Where the files of a version are to be seen, as "https://HOST/PROJECT/blob/v{version}". Empty: the project has no address yet. Then
# the page names files without links, and there are no Project-URLs.
ADDRESS = ""
# The least versions: docs/python.md and page.md name them, too.
NEEDS = {"numpy": "1.22"}
EXTRAS = {"torch": "1.13", "jax": "0.4.30", "ray": "2.60"}
URLS = {"Documentation": "docs/README.md", "Source": "README.md", "Changelog": "CHANGELOG.md"}
KEYWORDS = ("parameter server", "sgd", "distributed training", "asynchronous", "embeddings", "pytorch", "jax")
CLASSIFIERS = (
    "Development Status :: 4 - Beta", "Intended Audience :: Developers", "Intended Audience :: Science/Research",
    "License :: OSI Approved :: Apache Software License", "Operating System :: POSIX :: Linux", "Programming Language :: C++",
    "Programming Language :: Python :: 3", "Programming Language :: Python :: 3 :: Only",
    "Topic :: Scientific/Engineering :: Artificial Intelligence", "Topic :: System :: Distributed Computing", "Typing :: Typed")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def version():
    return (ROOT / "VERSION").read_text(encoding="utf-8").strip()


def page(address):
    """page.md with links to files of the project that work on an index; without an address, with the files' names."""
    def link(match):
        label, target = match.groups()
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(PAGE), target))
        return f"[{label}]({address}/{path})" if address else f"{label} (`{path}`)"

    return LINK.sub(link, (ROOT / PAGE).read_text(encoding="utf-8"))


def metadata(address=ADDRESS):
    address = address.format(version=version())
    return "\n".join([
        "Metadata-Version: 2.1", "Name: weir", f"Version: {version()}",
        "Summary: A parameter server for SGD: data-parallel training in sync, bounded and async mode",
        "Author: The authors of Weir", "License: Apache-2.0", f"Keywords: {','.join(KEYWORDS)}",
        *(f"Project-URL: {name}, {address}/{path}" for name, path in URLS.items() if address),
        *(f"Classifier: {classifier}" for classifier in CLASSIFIERS),
        "Requires-Python: >=3.9", *(f"Requires-Dist: {name}>={least}" for name, least in NEEDS.items()),
        *(line for name, least in EXTRAS.items()
          for line in (f"Provides-Extra: {name}", f"Requires-Dist: {name}>={least}; extra == '{name}'")),
        "Description-Content-Type: text/markdown", "", page(address)])
