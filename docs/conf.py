"""The site, built by Sphinx: `make docs`. Why Sphinx: see CONTRIBUTING.md."""

import inspect
import re
from dataclasses import is_dataclass
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

import byzantium

project = "Byzantium"
author = project_copyright = "The Byzantium developers"
version = release = byzantium.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
default_role = "py:obj"  # `Krum` in a docstring is code, and a link if there is such a name

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # tables that commands write begin at the third level

autodoc_typehints = "none"  # docstrings say in words what a parameter takes
autodoc_member_order = "bysource"
add_module_names = False
smartquotes = False  # they break code that readers type
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r">>> |\.\.\. |\$ "  # left out of what is copied, and so is output
copybutton_prompt_is_regexp = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"Byzantium {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator: Any, node: nodes.Element) -> None:
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def _fields(app: Sphinx, what: str, name: str, found: Any, *_: Any) -> tuple[str, str] | None:
    """The signature of a dataclass is its fields; Sphinx looks at `__new__`, which has none."""
    if not (inspect.isclass(found) and is_dataclass(found)):
        return None
    signature = inspect.signature(found)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare)), ""


def _examples(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Lines of help that are not to be wrapped are commands: they are shown as such."""
    shown: list[str] = []
    for line in lines:
        if line.startswith("| "):
            if not (shown and shown[-1].startswith("   ")):
                shown += ["", ".. code-block:: console", ""]
            shown.append(f"   $ {line[2:].strip()}")
        else:
            shown.append(line)
    lines[:] = shown


def _closed(app: Sphinx, name: str, source: list[str]) -> None:
    """Examples end with an empty line, for doctest; readers need none."""
    source[0] = re.sub(
        r"(^```python\n>>> (?:(?!^```).)*?)\n\n```", r"\1\n```", source[0], flags=re.M | re.S
    )


def setup(app: Sphinx) -> None:
    """Formulas become MathML, which browsers show without scripts or fonts of ours."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("source-read", _closed)
    app.connect("autodoc-process-signature", _fields)
    app.connect("sphinx-click-process-description", _examples)
