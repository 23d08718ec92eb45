"""Released runs that were repeated: what is said of each, beside the released run of its seed."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

import folders
import pytest
from folders import comparison, made
from published_rows import rows

from byzantium.papers import CAUSES, RELEASED, Replay, artifact, replays
from byzantium.papers.replay import training_losses
from byzantium.reports import figures
from byzantium.reports.markdown import markdown
from byzantium.runs import Job, Result, Run, Store
from byzantium.tables import Version

ONE = Version(seeds=1, released=True, only="krum noniid")
KRUM = {"aggregator": "krum", "attack": "mimic", "momentum": "0.0", "s": "1", "split": "noniid"}
LABELS = ("aggregator", "attack", "momentum", "s", "split")


def released(name: str, seed: int, **labels: str) -> list[dict[str, str]]:
    """The rows of a file of the released logs that belong to a run."""
    text = resources.files("byzantium.papers").joinpath("reference", name).read_text()
    wanted = {**KRUM, **labels, "artifact": "table2", "seed": str(seed)}
    lines = csv.DictReader(text.splitlines())
    return [row for row in lines if all(row[k] == wanted[k] for k in (*LABELS, *wanted))]


def lines(job: Job, seed: int = 0, wrong_from: int = 99, gap: float = 5.0) -> list[dict[str, Any]]:
    """The metrics of a run that is the released one, and wrong from some evaluation on."""
    curve = released("published_curves.csv", seed)
    logged = {int(r["round"]): r for r in released("released_losses.csv", seed)}
    found = []
    for k, row in enumerate(curve):
        accuracy = float(row["accuracy"]) + gap * (k >= wrong_from)
        last = 30 * (k + 1)
        losses = [
            float(logged[at]["training_loss"]) * (1 + 1e-7 + 0.1 * (k >= wrong_from))
            if at in logged
            else 1.0
            for at in range(last - 29, last + 1)
        ]
        found.append({"round": last, "accuracy": accuracy, "loss": 1.0, "losses": losses})
    return found


def write(store: Store, version: Version, *wrong_from: int, until: int = 20) -> None:
    (cell,) = made("table2", version).cells
    for seed, (job, wrong) in enumerate(zip(cell.jobs, wrong_from, strict=True)):
        found = lines(job, seed, wrong)[:until]
        final = fmean(line["accuracy"] for line in found[-5:])
        folders.write(store, job, found, folders.completed(final) if until == 20 else None)


def only(store: Store, version: Version = ONE) -> list[Replay]:
    return list(replays(comparison("table2", store, version)))


def test_a_run_is_equal_until_it_differs(tmp_path: Path) -> None:
    store, three = Store(tmp_path), Version(released=True, only="krum noniid")
    write(store, three, 0, 4, 99)
    first, second, third = only(store, three)
    assert [r.seed for r in (first, second, third)] == [0, 1, 2]
    assert [r.equal for r in (first, second, third)] == [0, 4, 20]
    assert [r.ends for r in (first, second, third)] == [30, 150, None]
    assert first.loss_difference == pytest.approx(0.1, rel=1e-3)
    assert second.loss_difference == pytest.approx(1e-7, rel=1e-3)
    assert third.loss_difference == pytest.approx(1e-7, rel=1e-3)
    for seed, replay in enumerate((first, second, third)):
        accuracies = [float(r["accuracy"]) for r in released("published_curves.csv", seed)]
        assert replay.final is not None
        assert replay.final[0] == pytest.approx(fmean(accuracies[-5:]))
        assert replay.final[1] - replay.final[0] == pytest.approx(5.0 * (seed < 2))


def test_one_image_is_a_difference_and_rounding_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (job,) = made("table2", ONE).cells[0].jobs
    for gap, equal in ((0.001, 20), (100 / 9984, 3), (-100 / 9984, 3)):
        folders.write(store, job, lines(job, 0, 3, gap), folders.completed(40.0))
        assert only(store)[0].equal == equal


def test_a_run_that_stopped_early_has_no_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, ONE, 99, until=3)
    (replay,) = only(store)
    assert (replay.equal, replay.final, replay.agrees) == (3, None, None)
    text = markdown([comparison("table2", store, ONE)], store)
    (row,) = rows(text, "aggregator")
    assert row[1:4] == ["0", "3 of 3", "1e-7"]
    assert row[5] == "at round 90"
    write(store, ONE, 0)
    (row,) = rows(markdown([comparison("table2", store, ONE)], store), "aggregator")
    assert row[4:] == ["30.85", "35.85 (+5.00)", "agrees"]


def test_a_cheaper_version_repeats_nothing(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=1, released=True, only="krum iid", model="mlp")
    (job,) = made("table2", version).cells[0].jobs
    folders.write(store, job, lines(job), folders.completed(40.0))
    text = markdown([comparison("table2", store, version)], store)
    (row,) = rows(text, "aggregator")
    assert row[5:] == ["40.00", "—"]
    assert "cells were repeated" not in text


def test_runs_that_both_collapsed_agree(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(released=True, only="krum bit-flip 0.9 s=1")
    (cell,) = made("figure-main", version).cells
    for job in cell.jobs:
        found = [{"round": 30, "accuracy": 9.8, "loss": 1.0, "losses": [1.0] * 30}]
        folders.write(store, job, found, folders.diverged(55))
    repeated = list(replays(comparison("figure-main", store, version)))
    assert [replay.agrees for replay in repeated] == [True, True, True]
    # The log of the last seed ends with NaN after its first evaluation.
    assert [len(replay.curve) for replay in repeated] == [20, 20, 1]
    assert repeated[2].final is not None
    assert repeated[2].final == pytest.approx((9.82, 9.82))


def test_the_text_opens_with_what_was_repeated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store, ONE, 7)
    text = markdown([comparison("table2", store, ONE)], store)
    assert "1 of the 120 published cells were repeated" in text
    assert "In 1 of 1 run the training losses of the first three logged rounds differ" in text
    assert "In 1 of 1 run the test accuracy of the first evaluation equals" in text
    assert "Of their 20 evaluations the first 7 equal the published ones" in text
    assert "In 1 of these 1 the mean of the last five" in text
    assert text.index("repeated with") < text.index("## In short")
    assert "Where they differ" not in text
    write(store, ONE, 0)
    text = markdown([comparison("table2", store, ONE)], store)
    assert "In 0 of 1 run the training losses" in text
    assert "In 0 of 1 run the test accuracy" in text
    assert "Where they differ, and why (1 run)" in text
    assert "- `table2 krum mimic momentum=0.0 s=1 noniid`, seed 0: the first losses differ" in text
    assert "by up to 1.0e-1; the first accuracy differs by +499 images. Cause" in text
    plain = markdown([comparison("table2", store, Version(seeds=1))], store)
    assert "repeated with" not in plain


def test_an_exception_has_its_cause_or_none_is_known(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for rule, known in (("rfa noniid", True), ("krum noniid", False)):
        version = Version(seeds=1, released=True, only=rule)
        write(store, version, 0, until=3)
        text = markdown([comparison("table2", store, version)], store)
        (line,) = (line for line in text.splitlines() if "Cause: " in line)
        name, _, cause = line.partition("`, seed 0: ")
        name, cause = name.removeprefix("- `table2 "), cause.partition("Cause: ")[2]
        assert (name, 0) in CAUSES if known else cause.startswith("not shown; ")
        assert ("from an initial model that is changed" in cause) == known


def test_causes_belong_to_cells_of_released_runs() -> None:
    names = {cell.name for name in RELEASED for cell in made(name, Version(seeds=1)).cells}
    assert {name for name, _ in CAUSES} <= names


def test_losses_belong_to_the_rounds_before_their_evaluation() -> None:
    metrics: list[dict[str, Any]] = [
        {"round": 3, "losses": [1.0, 2.0, 3.0]},
        {"round": 5, "losses": [4.0, 5.0]},
        {"round": 6},
    ]
    result = Result(Run(), Path(), "unfinished", metrics, {})
    assert training_losses(result) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0}


def test_a_figure_has_each_seed_on_its_published_curve(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2, released=True, only="krum noniid")
    write(store, version, 99, 99)
    compared = comparison("table2", store, version)
    assert compared.artifact.picture.kind == "curves"
    drawn = figures.KINDS["curves"](compared)
    ((axis,),) = [[axis for axis in drawn.axes if axis.lines]]
    curves = [[*map(float, line.get_ydata())] for line in axis.lines]  # type: ignore[arg-type]
    assert curves[:2] == curves[2:]
    assert len(curves) == 4
    assert [text.get_text() for text in drawn.legends[0].get_texts()][1:] == [
        "thin: ours",
        "wide and pale: published, same seed",
    ]
    assert artifact("table1", Version(released=True)).picture.kind == "table"


def test_cells_that_end_differently_with_fresh_masks_are_listed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shared = Version(seeds=1, released=True)
    ends = {
        ("alie", 1): (80.0, 20.0),
        ("ipm", 1): (80.0, 80.4),
        ("mimic", 1): (10.0, 11.0),
        ("bit-flip", 1): (50.0, 9.0),
        ("alie", 2): (81.0, 80.0),
        ("mimic", 2): (11.6, 11.9),
        ("label-flip", 2): (50.0, 50.0),
    }
    for (attack, s), values in ends.items():
        for version, value in zip((shared, Version(seeds=1)), values, strict=True):
            chosen = [
                cell
                for cell in made("figure-main", version).cells
                if cell.name == f"krum {attack} momentum=0.0 s={s} noniid"
            ]
            (job,) = chosen[0].jobs
            folders.write(store, job, [], folders.completed(value))
    text = markdown([comparison("figure-main", store, Version(seeds=1))], store)
    assert "7 cells of the main figure were run with both, seed 0. 2 of them end" in text
    assert "Of 2 settings that were run with s = 1 and s = 2" in text
    assert "in 1 with shared masks and in 1 with fresh ones" in text
    listed = {row[1]: row[-2:] for row in rows(text[text.index("## Shared and") :], "aggregator")}
    assert listed == {"ALIE": ["80.00", "20.00"], "BF": ["50.00", "9.00"]}
