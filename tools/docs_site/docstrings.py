"""An extension of Griffe: docstrings of Weir as Markdown. Lines that begin with "name: ", "name, name: " or "SomeError: ", and the
indented lines behind them, become items of a list.
"""
import re

import griffe

NAMED = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*|[A-Z]\w*(?:Error|Done|Lost)|Error): (?=\S)")
# Of Python, which Markdown would take as bold.
DUNDER = re.compile(r"(?<![`\w])__\w+__(?![`\w])")


def as_markdown(text):
    """The docstring's text with these lists."""
    lines, in_item = [], False
    for line in DUNDER.sub(lambda name: f"`{name[0]}`", text).split("\n"):
        named = NAMED.match(line)
        if named:
            if not in_item and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in named[1].split(", "))
            line = f"- **{names}**: {line[named.end():]}"
        in_item = bool(named) or in_item and line.startswith("    ")
        lines.append(line)
    return "\n".join(lines)


class Docstrings(griffe.Extension):
    """Rewrites each docstring as the object is read."""

    def on_object(self, *, obj, **_):
        """Before anything else sees the docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
