"""The artifacts are the paper's, cell by cell, and the published numbers fit them."""

from __future__ import annotations

import csv
import pickle
from importlib import resources
from pathlib import Path

import pytest

from byzantium.papers import MAKERS, artifact, compare, published
from byzantium.papers.requests import Requests
from byzantium.runs import Mimicry, Run, Store, perform
from byzantium.runs.store import Result
from byzantium.tables import MeasuredCell, Published, Version

# Cells and runs with three seeds; equal runs are one.
COUNTS = {
    "table1": (10, 30),
    "table2": (10, 30),
    "table3": (10, 30),
    "table4": (10, 30),
    "figure-main": (80, 240),
    "figure-hyperparameters": (12, 36),
    "figure-gradient-norms": (20, 60),
    "figure-clipping-radius": (160, 420),
    "figure-krum-selections": (3, 9),
    "figure-overparameterization": (60, 180),
    "figure-b2": (60, 180),
    "figure-resampling": (10, 30),
    "figure-mimic-demo": (40, 108),
}


def rows(name: str) -> list[dict[str, str]]:
    text = resources.files("byzantium.papers").joinpath("reference", name).read_text()
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("name", MAKERS)
def test_every_artifact_is_complete_and_can_be_sent_elsewhere(name: str) -> None:
    made = artifact(name)
    assert (len(made.cells), len(made.jobs)) == COUNTS[name]
    assert len({cell.name for cell in made.cells}) == len(made.cells)
    assert pickle.loads(pickle.dumps(made.jobs)) == made.jobs
    for label in (*made.picture.lines, made.picture.columns):
        assert all(label in cell.labels for cell in made.cells), label
    assert not made.cheaper


def test_every_published_cell_is_one_of_ours() -> None:
    made = {name: artifact(name) for name in MAKERS}
    for row in rows("published_results.csv"):
        fits = [
            cell
            for cell in made[row["artifact"]].cells
            if all(str(cell.labels[key]) == row[key] for key in published.KEYS)
        ]
        assert len(fits) == 1, row
        found = published.cell(row["artifact"], fits[0].labels)
        assert found is not None
        said = (found.mean, found.deviation, found.seeds)
        assert said == (float(row["mean_accuracy"]), float(row["std_accuracy"]), 3)
        (run,) = {job.varied(seed=0) for job in fits[0].jobs}
        assert isinstance(run, Run)
        assert (run.n, run.attacker_count) == (int(row["n"]), int(row["q"]))
        assert run.momentum == float(row["momentum"])
        assert ("Bucketing(s=2)" in run.rule) == (row["s"] == "2")
        assert run.partition == {"iid": "iid()", "noniid": "by_label()"}[row["split"]]


def test_published_curves_are_as_long_as_they_are() -> None:
    count = 0
    for name in ("table2", "table4", "figure-main"):
        for cell in artifact(name).cells:
            for curve in published.curves(name, cell.labels):
                count += len(curve)
                assert [point[0] for point in curve] == [30 * k for k in range(1, len(curve) + 1)]
    assert count == len(rows("published_curves.csv"))
    assert published.curves("table1", artifact("table1").cells[0].labels) == []


def test_the_published_mean_is_that_of_the_last_five_evaluations() -> None:
    """Of runs that met NaN, whose curves end there, the later evaluations are those of class 0."""
    for name in ("table2", "table4", "figure-main"):
        for cell in artifact(name).cells:
            curves = [[p[1] for p in curve] for curve in published.curves(name, cell.labels)]
            whole = [[*curve, *[9.82] * (20 - len(curve))] for curve in curves]
            means = [sum(curve[-5:]) / 5 for curve in whole]
            expected = published.cell(name, cell.labels)
            assert expected is not None
            assert sum(means) / len(means) == pytest.approx(expected.mean, abs=0.011), cell.name
            assert expected.collapsed == sum(mean <= 12 for mean in means)
            squares = [
                (sum(curve[end - 5 : end]) / 5 - expected.mean) ** 2
                for curve in whole
                for end in (15, 16, 17, 18, 19, 20)
            ]
            assert expected.spread == pytest.approx((sum(squares) / len(squares)) ** 0.5)
            for seeds in (1, 2, 3):
                some = published.of_seeds(name, cell.labels, seeds)
                assert some is not None
                assert some.mean == pytest.approx(sum(means[:seeds]) / seeds)


def test_a_cheaper_version_says_so() -> None:
    version = Version(seeds=1, rounds=60, model="mlp", data="digits", only="krum s=2")
    made = artifact("figure-main", version)
    assert len(made.jobs) == 10
    assert all(
        (job.rounds, job.model, job.data, job.learning_rate) == (60, "mlp", "digits", 0.01)
        for job in made.jobs
        if isinstance(job, Run)
    )
    assert "1 seed instead of 3" in made.cheaper
    assert "60 rounds" in made.cheaper
    with pytest.raises(
        ValueError, match="no cell of table2 has all words of 'krum s=7'; its first"
    ):
        artifact("table2", Version(only="krum s=7"))
    with pytest.raises(ValueError, match="no artifact 'tabel2'; did you mean 'table2'"):
        artifact("tabel2")
    with pytest.raises(ValueError, match="figure-b2 compares sizes of the paper's model"):
        artifact("figure-b2", Version(model="mlp"))


def test_both_overparameterization_figures_share_their_runs() -> None:
    assert artifact("figure-b2").jobs == artifact("figure-overparameterization").jobs


def compared(
    mean: float,
    deviation: float,
    *values: float | None,
    spread: float = 0.0,
    collapsed: int = 0,
) -> MeasuredCell:
    cell = artifact("table2").cells[0]
    results = tuple(
        Result(
            job,
            Path(),
            "completed" if value is not None else "diverged",
            [],
            {"accuracy": value},
        )
        for job, value in zip(cell.jobs, values, strict=False)
    )
    return MeasuredCell(cell, Published(mean, deviation, 3, spread, collapsed), results)


def test_verdicts_at_their_edges() -> None:
    assert compared(90, 0.1, 91.5).verdict == "agrees"
    assert compared(90, 0.1, 91.51).verdict == "differs"
    assert compared(90, 2.0, 86.0).verdict == "agrees"
    assert compared(90, 2.0, 85.9).verdict == "differs"
    assert compared(90, 2.0, 80.0, spread=5.0).verdict == "agrees"
    assert compared(90, 2.0, 79.9, spread=5.0).verdict == "differs"
    assert compared(90, 2.0, None).verdict == "collapsed"
    assert compared(90, 2.0, 90.0, None).verdict == "collapsed"
    assert compared(90, 2.0, 12.0).verdict == "collapsed"
    assert compared(90, 2.0, 12.1).verdict == "differs"
    assert compared(90, 2.0, 12.0, collapsed=1).verdict == "agrees"
    assert compared(9.9, 0.2, None, collapsed=3).verdict == "agrees"
    assert compared(9.9, 0.2, 30.0, collapsed=3).verdict == "differs"
    assert compared(90, 2.0, 80.0, 100.0).value == 90
    assert compared(90, 2.0, 80.0, 100.0).deviation == pytest.approx(200**0.5)


def test_a_store_without_results_is_compared_as_missing(tmp_path: Path) -> None:
    version = Version(seeds=1)
    comparison = compare(artifact("table2", version), Store(tmp_path))
    assert {cell.verdict for cell in comparison.cells} == {"missing"}
    assert not comparison.begun
    command = comparison.command(comparison.cells[3])
    assert command == (
        "byzantium reproduce table2 --seeds 1 --only 'krum mimic momentum=0.0 s=1 noniid'"
    )
    only = artifact("table2", Version(seeds=1, only="krum mimic momentum=0.0 s=1 noniid"))
    assert only.jobs == comparison.cells[3].cell.jobs


def test_requests_are_remembered_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    assert list(Requests(store)) == []
    Requests(store).add("table2", Version(seeds=1))
    Requests(store).add("figure-main", Version(model="mlp"))
    Requests(store).add("table2", Version(seeds=1))
    assert list(Requests(store)) == [
        ("table2", Version(seeds=1)),
        ("figure-main", Version(model="mlp")),
    ]


def test_a_part_of_what_was_asked_for_is_shown_within_it(tmp_path: Path) -> None:
    store, whole = Store(tmp_path), Version(seeds=1)
    part = Version(seeds=1, only="krum iid")
    Requests(store).add("table2", part)
    Requests(store).add("table4", part)
    assert list(Requests(store)) == [("table4", part), ("table2", part)]
    Requests(store).add("table2", whole)
    assert list(Requests(store)) == [("table2", whole), ("table4", part)]
    Requests(store).add("table2", part)
    assert list(Requests(store)) == [("table2", whole), ("table4", part)]
    Requests(store).add("table2", Version(only="krum iid"))  # of three seeds
    assert next(iter(Requests(store))) == ("table2", Version(only="krum iid"))
    assert len(list(Requests(store))) == 3


def test_mimicry_hurts_krum_and_the_median_more_than_the_mean(tmp_path: Path) -> None:
    """The paper's point: one fixed target, and every rule but the mean is off by far more."""
    errors = {}
    for rule in ("Mean()", "Krum(power=4)", "Median()", "GeometricMedian()"):
        summary = perform(Mimicry(rule=rule), tmp_path / rule)
        assert summary is not None
        errors[rule] = summary["error"]
    # The mean moves by q/n of the way to the target: (q/n)^2 of a squared distance of about d.
    assert errors["Mean()"] == pytest.approx(0.2**2 * 100 * (1 - 1 / 40), rel=0.1)
    assert min(errors.values()) == errors["Mean()"]
    assert errors["Krum(power=4)"] > 10 * errors["Mean()"]
