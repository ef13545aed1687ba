#!/usr/bin/python3
"""Checks the site of `./dev docs` without building it: its menu has every page once, and each link between pages has its page."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
LINK = re.compile(r"\]\(([^()\s#]+\.(?:md|svg|png))")


def main():
    menu = re.findall(r"^ +- (?:[\w ]+: )?([\w/]+\.md)$", (ROOT / "tools/docs_site/mkdocs.yml").read_text(encoding="utf-8"), re.M)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "tools/docs_site/stage.py", folder], check=True)
        pages = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in pathlib.Path(folder).rglob("*.md")}
        faults = [f"the menu lacks {page}" for page in sorted(pages.keys() - set(menu))]
        faults += [f"there is no page {page}, which the menu lists" for page in sorted(set(menu) - pages.keys())]
        faults += [f"the menu lists {page} twice" for page in sorted(pages) if menu.count(page) > 1]
        for page, text in sorted(pages.items()):
            faults += [f"{page} links to {link}, which the site lacks" for link in LINK.findall(text)
                       if "://" not in link and not pathlib.Path(folder, page).parent.joinpath(link).exists()]
    print("\n".join(faults) or f"{len(pages)} pages, all in the menu")
    sys.exit(1 if faults or len(pages) < 20 else 0)


main()
