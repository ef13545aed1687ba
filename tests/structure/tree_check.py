"""What the checks of this folder share: each looks for faults in the source tree."""
import os
import pathlib
import sys
import tempfile


def check_planted(faults, planted, expected):
    """Ends the program unless the faults in a tree of the files {path: text} begin as `expected`, each, and there are no others."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in planted.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        got = list(faults(root))
    missed = [e for e in expected if not any(g.startswith(e) for g in got)]
    extra = [g for g in got if not any(g.startswith(e) for e in expected)]
    if missed or extra or len(got) != len(expected):
        sys.exit("the test itself is broken\nmissed: " + "\n  ".join(missed) + "\nfound without cause: " + "\n  ".join(extra))


def main(faults):
    """Prints what faults(root) yields for the source tree, and ends the program: with 1 if that is anything."""
    # Not the runfiles: WORKSPACE is a link into the tree.
    found = list(faults(pathlib.Path(os.path.realpath("WORKSPACE")).parent))
    print("\n".join(found))
    print(f"{len(found)} faults")
    sys.exit(1 if found else 0)
