"""Every value of every kind of job, of every wrong type: named with its file, or harmless."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import pytest

import byzantium as bz
from byzantium.papers import artifact, compare
from byzantium.reports import formats, markdown, measurements
from byzantium.reports.contents import contents
from byzantium.runs import Certification, Federation, Job, Mimicry, Run, Store
from byzantium.tables import Version, pivots

STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, 0.5, 2**53 + 1, 2**70, 10**400, 1e200, math.nan, math.inf, -math.inf),
    *("", "text", "completed", "\ud800", "\x1b[2J", "\u202e", "[bold]", "x" * 10**6),
    *([], [1], {}, {"a": 1}, [[]], [{}], {"\n": 1}, [True] * 5, [math.nan] * 5, [10**400] * 5),
)
MIMICRY = artifact("figure-mimic-demo", Version(seeds=1, only="krum dimension"))

# Of each kind of job one that is done, and a line of its metrics.
JOBS: dict[str, tuple[Job, dict[str, Any], dict[str, Any]]] = {
    "run": (
        Run(n=5, f=1, rounds=60, rule="Median()", attack="Mimic()"),
        {"accuracy": 50.0, "data": {"a.npz": f"sha256:{'0' * 64}"}},
        {
            "accuracy": 40.0,
            "loss": 1.0,
            "train_loss": 1.0,
            "distance": 0.1,
            "spread": 0.2,
            "norm": 1.5,
            "zeta2": 0.5,
            "b2": 2.0,
            "weights": [0.2] * 5,
            "rejected": {"3": 2},
            "unknown": 1.0,
        },
    ),
    "mimicry": (MIMICRY.jobs[0], {"error": 5.0}, {"error": 5.0, "deviation": 1.0}),
    "federation": (
        Federation(name="clinics", rule="Krum()"),
        {"rounds": 2, "accuracy": 50.0},
        {
            "sampled": 5,
            "used": 5,
            "absent": 0,
            "kept": 0,
            "f": 1,
            "accuracy": 50.0,
            "loss": 1.0,
            "weights": [0.2] * 5,
            "rejected": {"3": 1},
        },
    ),
    "certification": (
        Certification(rule="Median()", n=5, f=1, budget=20),
        {"c": 1.5, "error": 0.1, "how": "by hand", "tried": 20},
        {"c": 1.5, "error": 0.1},
    ),
}


# -- what is right, said once more and otherwise ---------------------------------------------------


def real(value: Any) -> bool:
    return type(value) in (int, float)


def finite(value: Any) -> bool:
    return real(value) and -1e100 <= value <= 1e100


def right(value: Any, good: Any, *, summary: bool) -> bool:
    """Whether a value may stand where a good one does."""
    if isinstance(good, str):
        return isinstance(value, str) and value.isprintable() and len(value) <= 300
    if isinstance(good, list):
        return isinstance(value, list) and len(value) == 5 and all(map(finite, value))
    if isinstance(good, dict) and summary:
        return value == {}
    if isinstance(good, dict):
        keys = isinstance(value, dict) and all(key.isprintable() for key in value)
        return keys and all(type(n) is int and 0 <= n <= 2**53 for n in value.values())
    if isinstance(good, int):
        return type(value) is int and 0 <= value <= 2**53
    if summary:
        return finite(value) and value >= 0
    return finite(value) or (isinstance(value, float) and not math.isfinite(value))


def cases() -> list[Any]:
    found = []
    for name, (_, summary, line) in JOBS.items():
        done = {"status": "completed", "seconds": 12.0, **folders.SURROUNDINGS, **summary}
        found += [pytest.param(name, "summary.json", field, id=f"{name} {field}") for field in done]
        lines = {"round": 30, **line}
        found += [pytest.param(name, "metrics.jsonl", f, id=f"{name} line {f}") for f in lines]
    return found


def allowed(job: Job, file: str, field: str, value: Any, good: Any) -> bool:
    """Whether a job with this value is shown."""
    if field == "status":
        return bool(value == "completed")
    if field == "round":
        return type(value) is int and 30 < value <= 2**53
    if field == "unknown":  # a plugin's metric, a number in the line before
        return right(value, 1.0, summary=False)
    if field == "accuracy" and file == "summary.json" and value is None:
        return isinstance(job, Federation)
    return right(value, good, summary=file == "summary.json")


@pytest.mark.parametrize(("name", "file", "field"), cases())
def test_a_wrong_value_is_named_with_its_file_and_a_right_one_is_shown(
    tmp_path: Path, name: str, file: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    job, summary, line = JOBS[name]
    for k, strange in enumerate(STRANGE):
        store = Store(tmp_path / str(k))
        lines = [{"round": 30, **line}, {"round": 60, **line}]
        done = {"status": "completed", **summary}
        good = {"seconds": 12.0, **folders.SURROUNDINGS, **done}.get(field)
        if file == "summary.json":
            done[field] = strange
        else:
            good, lines[1][field] = lines[1][field], strange
        folders.write(store, job, lines, done)
        caplog.clear()
        found = list(store)
        expected = allowed(job, file, field, strange, good)
        assert [result.job for result in found] == ([job] if expected else []), f"{strange!r:.40}"
        if not expected:
            (said,) = caplog.messages
            assert f"{store.folder(job) / file} cannot be read: " in said
            assert field in said
            assert said.isprintable()
            assert len(said) < 1500
        else:
            show(store)


def show(store: Store) -> None:
    """All that is made of results, short of pictures; none of it may raise."""
    compared = compare(MIMICRY, store)
    tables = pivots(store)
    json.dumps(contents(store, [compared], tables), allow_nan=False)
    if tables:
        markdown.markdown([], store, {}, tables)
    markdown.terminal(compared)
    for form in formats.FORMS.values():
        form([compared, *tables])
    for result in store:
        measurements.deviation(result)
    store.table().to_csv()


def test_a_round_comes_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, (job, summary, line) in JOBS.items():
        store = Store(tmp_path / name)
        lines = [{"round": 30, **line}, {"round": 30, **line}]
        folders.write(store, job, lines, {"status": "completed", **summary})
        assert not list(store)
        assert "line 2 has the round 30" in caplog.messages[-1]


@pytest.mark.parametrize("bad", ["\x1b[2J", "\n", "\u202e", "\ud800", "x" * 10**6])
def test_the_name_of_a_metric_can_be_shown(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    job, summary, line = JOBS["run"]
    folders.write(
        Store(tmp_path), job, [{"round": 30, **line, bad: 1.0}], {"status": "completed", **summary}
    )
    assert not list(Store(tmp_path))
    (said,) = caplog.messages
    assert "metrics.jsonl cannot be read: line 1 has a metric named " in said
    assert said.isprintable()


TEXTS: list[Callable[[str], Job]] = [
    lambda text: Run(data=text),
    lambda text: Run(device=text),
    lambda text: Run(rule=f"Mine('{text}')", plugin=(f"mine.py sha256:{'0' * 64}",)),
    lambda text: Run(rule="Mine()", plugin=(f"mi{text}ne.py sha256:{'0' * 64}",)),
    lambda text: Mimicry(rule=f"Mine('{text}')", plugin=(f"mine.py sha256:{'0' * 64}",)),
    lambda text: Certification(rule=f"Mine('{text}')", plugin=(f"mine.py sha256:{'0' * 64}",)),
    lambda text: Federation(name=text),
]


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x9b2J", "\n", "\u202e"])
@pytest.mark.parametrize("make", TEXTS)
def test_the_texts_of_a_job_can_be_shown(make: Callable[[str], Job], bad: str) -> None:
    with pytest.raises(bz.ByzantiumError) as caught:
        make(bad)
    assert str(caught.value).isprintable()
