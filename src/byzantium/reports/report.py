"""The page: one HTML file that contains all its data, to be opened, filtered and passed on."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from byzantium.core import files
from byzantium.reports.contents import contents
from byzantium.runs import Result
from byzantium.tables import Ranking, ResultTable

# The files of the page's script, in the order in which they are joined.
SCRIPTS = (
    "base",
    "tables",
    "ranking",
    "artifacts",
    "curves",
    "weights",
    "graph",
    "viewer",
    "runs",
    "live",
    "page",
)
TITLE = "Byzantine-robust learning"


def write(
    results: Iterable[Result],
    artifacts: Sequence[ResultTable],
    path: Path,
    title: str = TITLE,
    tables: Sequence[ResultTable] | None = None,
    ranking: Ranking | None = None,
) -> Path:
    """Write the report: one HTML page that holds all it shows, and loads nothing from elsewhere.

    - `results`: the results to show, such as a `Store` or a list.
    - `tables`: the tables of runs, as `pivots` makes them; by default rules by attacks.
    - `ranking`: that of the benchmark, if it is to be shown.

    Returns the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write([], [], Path(folder, "report.html"))
    ...     page.read_text(encoding="utf-8").startswith("<!doctype html>")
    True
    """
    files.write(path, page(contents(results, artifacts, tables, ranking), title))
    return path


def page(values: dict[str, Any], title: str = TITLE) -> str:
    """The text of the page.

    - `values`: its data, as `contents` makes it; under "live", the progress of jobs, if the page
      is served and asks for new data.
    """
    # The partial bundle of plotly.js that draws what we draw, as npm has it: page/README.md.
    script = "".join(_file(f"{name}.js") for name in SCRIPTS)
    scripts = {"plotly": _file("plotly-basic.min.js"), "script": script}
    # JSON, compressed to a fifth, in characters that cannot end its HTML element.
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    parts = {
        **scripts,
        "title": html.escape(title),
        "style": _file("report.css"),
        "policy": html.escape(_policy(scripts.values(), asks="live" in values)),
        "data": data,
    }
    # In one pass: what is filled in is never searched for places to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("report.html"))


def _file(name: str) -> str:
    folder = resources.files("byzantium.reports").joinpath("page")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str], *, asks: bool) -> str:
    """The browser runs these scripts and no others, and fetches nothing.

    - `asks`: whether the page may ask the server that it came from for data.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'"
    return f"{policy}; img-src data: blob:" + ("; connect-src 'self'" if asks else "")
