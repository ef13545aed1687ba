"""A hook of MkDocs: draws the Mermaid diagrams of pages when the site is built, as SVG within the page, so that no script has to be
loaded to see them.
"""
import merm
from pymdownx.superfences import SuperFencesException


def draw(source, language, css_class, options, md, **_):
    """A block of `mermaid`, as a custom fence of pymdownx.superfences. What Mermaid would not take is an error of the build."""
    try:
        drawn = merm.render_diagram(source)
    except Exception as error:  # Any other type would leave the block as text, without a word.
        raise SuperFencesException(f"a Mermaid diagram cannot be drawn: {error}") from error
    if "<text" not in drawn:
        raise SuperFencesException(f"this kind of Mermaid diagram cannot be drawn: {source[:40]}")
    return f'<div class="diagram">{drawn}</div>'


def on_config(config):
    """Adds the fence."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "mermaid", "class": "mermaid", "format": draw}]
    return config
