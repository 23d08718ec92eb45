"""The site, built by Sphinx: `make docs`. Why Sphinx is said in CONTRIBUTING.md."""

import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from sphinx.application import Sphinx

import byzantium

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

project = "Byzantium"
author = copyright = "The Byzantium developers"
version = release = byzantium.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False
default_role = "py:obj"  # `Krum` in a docstring is code, and a link where there is such a name

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # what a parameter takes is said in words
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"Byzantium {release}"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def _inline(translator: Any, node: Any) -> None:
    translator.body.append(convert(node.astext()))
    raise __import__("docutils").nodes.SkipNode


def _display(translator: Any, node: Any) -> None:
    translator.body.append(convert(node.astext(), display="block"))
    raise __import__("docutils").nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Maths becomes MathML, which browsers show by themselves: no script, no fonts."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
