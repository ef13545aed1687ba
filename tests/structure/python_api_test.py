#!/usr/bin/python3
"""Checks the docstrings of the Python package, of which tools/docs_site makes the reference: each public class, function, method and
property has one, which names each parameter. First shows that it finds planted faults.
"""
import ast
import re

import tree_check
from package_api import FUNCTIONS, MODULES, PACKAGE, definition, parameters, parse, public_names

# Decorators of what the docstring of another definition describes.
ELSEWHERE = {"overload", "setter"}
# Classes of which Weir alone makes objects.
MADE_BY_WEIR = {"Future", "Gate", "Gradient", "JobFields", "Step", "View", "Weights"}


def faults_of(where, node, function):
    """Of a class or function, whose parameters are those of `function`."""
    text = ast.get_docstring(node)
    if text is None:
        yield f"{where} has no docstring"
    for name in parameters(function) if text and function else []:
        if not re.search(rf"\b{name}\b", text):
            yield f"{where}: the docstring does not name the parameter {name}"


def faults(root):
    count = 0
    for module in MODULES.values():
        for name in public_names(parse(root, module)):
            file, node = definition(root, module, name)
            where = f"{PACKAGE}/{file}: {name}"
            count += 1
            if not isinstance(node, ast.ClassDef):
                yield from faults_of(where, node, node) if node else []
                continue
            members = [m for m in node.body if isinstance(m, FUNCTIONS)]
            made_by_users = [m for m in members if m.name == "__init__" and name not in MADE_BY_WEIR]
            yield from faults_of(where, node, next(iter(made_by_users), None))
            for method in members:
                named = {d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "") for d in method.decorator_list}
                if not method.name.startswith("_") and not named & ELSEWHERE:
                    yield from faults_of(f"{where}.{method.name}()", method, method)
    if count == 0:
        yield "the package has no public names"


tree_check.check_planted(faults, {
    "python/weir/__init__.py": "from .a import A, f as g\nfrom .low import h\n#: x\nV = 1\n__all__ = ['A', 'V', 'g', 'h']\n",
    "python/weir/a.py": 'class A:\n  """x: one."""\n  def __init__(self, x, y): ...\n  def p(self): ...\n  @overload\n  def _q(self): ...\n'
                        '  @property\n  def r(self):\n    """Of all."""\ndef f(a, *, b, **c):\n  """ab, a"""\n',
    "python/weir/low/__init__.py": "def h(): ...\n",
    "python/weir/torch/__init__.py": "__all__ = []\n",
    "python/weir/jax.py": "",
    "python/weir/ray/__init__.py": "from ..low import h\n__all__ = ['h']\n",
}, [
    "python/weir/a.py: A: the docstring does not name the parameter y", "python/weir/a.py: A.p() has no docstring",
    "python/weir/a.py: g: the docstring does not name the parameter b",
    "python/weir/low/__init__.py: h has no docstring", "python/weir/low/__init__.py: h has no docstring",
])
tree_check.main(faults)
