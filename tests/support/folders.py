"""Stores of results that nobody trained: run folders written by hand, for reports and figures."""

from __future__ import annotations

import base64
import csv
import functools
import gzip
import json
import re
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from byzantium.papers import artifact, compare
from byzantium.runs import Job, Run, Store
from byzantium.tables import Artifact, Cell, ResultTable, Version

SURROUNDINGS = {
    "byzantium": "0.1.0",
    "numerics": 1,
    "python": "3.11.7",
    "torch": "2.13.0",
    "threads": 1,
    "machine": "2 x x86_64, Linux",
}


# Making hundreds of runs takes a while; they never change.
made = functools.cache(artifact)


def comparison(name: str, store: Store, version: Version | None = None) -> ResultTable:
    version = version or Version()
    return compare(made(name, version), store)


def write(
    store: Store,
    job: Job,
    lines: Iterable[dict[str, Any]] = (),
    summary: dict[str, Any] | None = None,
) -> None:
    """A folder as a job leaves it; without a summary the job is not done."""
    folder = store.folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(job.toml())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        done = {"seconds": 12.0, **SURROUNDINGS, **summary}
        (folder / "summary.json").write_text(json.dumps(done))


def fail(store: Store, job: Job, reason: str) -> None:
    """An attempt at a job that is not done failed."""
    write(store, job)
    (store.folder(job) / "failed.json").write_text(json.dumps({"reason": reason}))


def completed(accuracy: float, **others: Any) -> dict[str, Any]:
    return {"status": "completed", "accuracy": accuracy, **others}


def diverged(at: int = 40) -> dict[str, Any]:
    return {"status": f"diverged in round {at}", "accuracy": None}


def evaluations(job: Job, values: Iterable[float], **others: Any) -> list[dict[str, Any]]:
    """A line for each accuracy, 30 rounds apart; everything else as given or plausible."""
    assert isinstance(job, Run)
    found = []
    for k, value in enumerate(values, 1):
        line = {
            "round": 30 * k,
            "loss": 2.1 / k,
            "accuracy": value,
            "train_loss": 2.2 / k,
            "distance": 0.3,
            "spread": 0.5,
            "norm": 1.5 + job.momentum,
            "b2": 3.0 * k,
            "weights": [1 / job.n] * job.n,
        }
        found.append({**line, **others})
    return found


def fill(store: Store, artifact: Artifact, accuracy: Callable[[Cell, int], float]) -> None:
    """Every run of an artifact, with these accuracies by cell and seed; two evaluations each."""
    for cell in artifact.cells:
        for seed, job in enumerate(cell.jobs):
            if isinstance(job, Run):
                value = accuracy(cell, seed)
                write(store, job, evaluations(job, [value / 2, value]), completed(value))
            else:
                line = {"round": 20, "error": 5.0 + seed, "deviation": 1.0}
                write(store, job, [line], {"status": "completed", "error": 5.0 + seed})


def held(page: Path) -> Any:
    """The data that a page of the report holds, read without the code that is tested."""
    text = re.search(r'<script id="data" type="application/gzip">([^<]*)<', page.read_text())
    assert text is not None
    return json.loads(gzip.decompress(base64.b64decode(text[1])))


def published(name: str, file: str = "published_results.csv") -> list[dict[str, str]]:
    """The published rows of an artifact, read without the code that is tested."""
    path = resources.files("byzantium.papers").joinpath("reference", file)
    return [row for row in csv.DictReader(path.read_text().splitlines()) if row["artifact"] == name]


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON that may be growing; empty if there is none."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]
