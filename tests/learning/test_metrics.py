"""A metric is one entry of a table: who measures, writes or shows it reads it there."""

from __future__ import annotations

import json
from pathlib import Path

import folders
import pytest
import torch

import byzantium as bz
from byzantium.data import load
from byzantium.learning import Settings, Simulation, metrics, mlp
from byzantium.learning.metrics import Metric, Round
from byzantium.reports import report
from byzantium.reports.contents import contents as page_contents
from byzantium.runs import Run, Store, perform
from byzantium.tables import Picture

TITLE = "length of the step, in <units>"
LENGTH = Metric(
    "length", TITLE, lambda scene: scene.aggregate.norm(), max, scale="log", record="steps"
)
SHARE = Metric("largest", "share (%)", lambda at: at.test["accuracy"] / 2, scale="percent")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two metrics more: one of rounds, and one of evaluations."""
    monkeypatch.setitem(metrics.TABLE, "length", LENGTH)
    monkeypatch.setitem(metrics.TABLE, "largest", SHARE)


@pytest.mark.usefixtures("added")
def test_a_metric_that_is_in_the_table_is_everywhere(tmp_path: Path) -> None:
    run = Run(rounds=5, evaluate_every=2, n=5, f=0, rule="Mean()", record=("steps", "largest"))
    store = Store(tmp_path)
    training = run.simulation()
    list(training)
    records, evaluations = training.history.rounds, training.history.evaluations
    lengths = [record["length"] for record in records]
    assert len(lengths) == 5
    assert all(type(length) is float and length > 0 for length in lengths)
    assert all(look["largest"] == look["accuracy"] / 2 for look in evaluations)

    assert perform(run, store.folder(run)) is not None
    lines = (store.folder(run) / "metrics.jsonl").read_text().splitlines()
    expected = [max(lengths[:2]), max(lengths[2:4]), lengths[4]]
    assert [json.loads(line)["length"] for line in lines] == expected

    found = page_contents(store, [])
    assert found["metrics"]["length"] == {"title": TITLE, "scale": "log"}
    assert found["metrics"]["largest"] == {"title": "share (%)", "scale": "percent"}
    (shown,) = found["runs"]
    assert shown["series"]["length"] == pytest.approx(expected, rel=1e-4)
    halves = [look["accuracy"] / 2 for look in evaluations]
    assert shown["series"]["largest"] == pytest.approx(halves, rel=1e-4)
    page = report.write(store, [], tmp_path / "report.html")
    assert folders.held(page)["metrics"]["length"]["title"] == TITLE

    assert Picture("curves", "a", "b", y="length").title == TITLE
    assert "steps, largest" in ", ".join(metrics.words())


@pytest.mark.usefixtures("added")
def test_a_simulation_that_records_it_goes_on_from_its_state() -> None:
    def simulation() -> Simulation:
        torch.manual_seed(0)
        settings = Settings(n=4, rounds=4, batch=4, evaluate_every=2, record=("steps", "largest"))
        return Simulation(settings, load("digits"), mlp((1, 8, 8), (8,)), bz.Median())

    training, other = simulation(), simulation()
    rounds = iter(training)
    next(rounds)
    next(rounds)
    other.load_state_dict(training.state_dict())
    assert list(other) == list(rounds)
    assert other.history == training.history


def test_a_metric_that_is_not_in_the_table_is_refused_with_what_is() -> None:
    with pytest.raises(ValueError, match=r"can record distance, .*, heterogeneity, got steps"):
        Settings(n=4, rounds=4, record=("steps",))


def test_what_a_metric_looks_at_is_what_was_sent_and_became_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenes: list[Round] = []

    def noted(scene: Round) -> float:
        scenes.append(scene)
        return 0.0

    monkeypatch.setitem(metrics.TABLE, "noted", Metric("noted", "", noted, max, needs="report"))
    settings = Settings(n=6, attackers=2, rounds=3, batch=4, participants=5, record=("noted",))
    training = Simulation(
        settings, load("digits"), mlp((1, 8, 8), (8,)), bz.Mean(), bz.NonFinite("nan")
    )
    for k, record in enumerate(training):
        scene = scenes[k]
        assert scene.n == 6
        assert scene.loss == record["loss"]
        assert scene.sent.shape == (5, training.gradients.d)
        assert len(scene.honest) == sum(worker < 4 for worker in scene.workers)
        sent = training.sent[list(scene.workers)]
        assert torch.equal(scene.sent.nan_to_num(), sent.nan_to_num())
        assert len(scene.explained.rejected) == 5 - len(scene.honest)
        assert torch.allclose(scene.aggregate, scene.honest.mean(dim=0), atol=1e-6)
