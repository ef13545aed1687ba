"""The public names of the Python package, read from its sources, and the uses of them in programs."""
import ast

PACKAGE = "python"
MODULES = {"weir": "weir/__init__.py", "weir.torch": "weir/torch/__init__.py", "weir.jax": "weir/jax.py", "weir.ray": "weir/ray/__init__.py"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parse(root, module):
    """The syntax of a file of the package, "weir/jax.py"."""
    return ast.parse((root / PACKAGE / module).read_text(encoding="utf-8"))


def public_names(tree):
    """Of a module: its __all__."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return ast.literal_eval(node.value)
    return []


def definition(root, module, name):
    """(file, node) of a class or function that a module has, through imports. A node of None: it is a value."""
    for node in parse(root, module).body:
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    there = "/".join([*module.split("/")[:-node.level], *node.module.split(".")])
                    file = f"{there}.py" if (root / PACKAGE / f"{there}.py").exists() else f"{there}/__init__.py"
                    return definition(root, file, alias.name)
    return module, None


def methods(root, file, node):
    """{name: node} of a class's methods and properties, those of its bases in the package first."""
    found = {}
    for base in node.bases:
        if isinstance(base, ast.Name):
            there, of = definition(root, file, base.id)
            found |= methods(root, there, of) if isinstance(of, ast.ClassDef) else {}
    return found | {m.name: m for m in node.body if isinstance(m, FUNCTIONS)}


def parameters(function):
    """Names of what a function may be given by name; those that begin with _ and what ** takes are left out."""
    arguments = function.args
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *filter(None, [arguments.vararg])]
    return [a.arg for a in found if a.arg not in ("self", "cls") and not a.arg.startswith("_")]


class Names:
    """The objects of the package that the variables of a page's programs are."""

    def __init__(self, root):
        self.root, self.variables = root, {}

    def resolve(self, node):
        """("weir.torch", None) of a module, (file, node) of a class, function or method; None: not known. LookupError: there is none."""
        if isinstance(node, ast.Call):
            made = self.resolve(node.func)
            return made if made and isinstance(made[1], ast.ClassDef) else None
        if isinstance(node, ast.Name):
            return self.variables.get(node.id) or (("weir", None) if node.id == "weir" else None)
        if not isinstance(node, ast.Attribute):
            return None
        of = self.resolve(node.value)
        if of is None:
            return None
        module, within = of
        if within is None:
            name = f"{module}.{node.attr}"
            if name in MODULES:
                return name, None
            if node.attr not in public_names(parse(self.root, MODULES[module])):
                raise LookupError(f"{module} has no {node.attr}")
            found = definition(self.root, MODULES[module], node.attr)
            return found if found[1] else None
        members = methods(self.root, module, within) if isinstance(within, ast.ClassDef) else {}
        # Otherwise it is an attribute, or a method of a class of torch.
        return (module, members[node.attr]) if node.attr in members else None

    def faults(self, tree):
        """Names and arguments that do not exist."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._bind(node.targets[0].id, node.value)
            if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
                self._bind(node.optional_vars.id, node.context_expr)
        for node in ast.walk(tree):
            try:
                found = self.resolve(node.func if isinstance(node, ast.Call) else node)
            except LookupError as error:
                yield str(error)
                continue
            if isinstance(node, ast.Call) and found and found[1]:
                yield from self._faults_of_call(node, *found)

    def _bind(self, name, value):
        try:
            found = self.resolve(value) if isinstance(value, ast.Call) else None
        except LookupError:
            return  # told where it stands
        if found:
            self.variables[name] = found

    def _faults_of_call(self, call, file, called):
        function = methods(self.root, file, called).get("__init__") if isinstance(called, ast.ClassDef) else called
        if function is None or function.args.kwarg and not function.args.kwarg.annotation:
            return
        takes_more = function.args.kwarg is not None and ast.unparse(function.args.kwarg.annotation) != "NoReturn"
        known = parameters(function)
        for keyword in call.keywords:
            if keyword.arg and keyword.arg not in known and not takes_more:
                yield f"{called.name}() has no argument {keyword.arg}"
