"""A metric is one entry of a table: who measures, writes or shows it reads it there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import folders
import pytest
import torch
from rounds import noted_scenes

import byzantium as bz
from byzantium.data import load
from byzantium.learning import (
    Settings,
    Simulation,
    evaluation,
    formulas,
    measured_heterogeneity,
    metrics,
    mlp,
)
from byzantium.learning.formulas import Round
from byzantium.learning.metrics import Metric
from byzantium.reports import report
from byzantium.reports.contents import contents as page_contents
from byzantium.runs import Run, Store, perform
from byzantium.tables import Picture
from byzantium.vectors.points import moments

TITLE = "length of the step, in <units>"
LENGTH = Metric(
    "length", TITLE, lambda scene: scene.aggregate.norm(), max, scale="log", record="steps"
)
SHARE = Metric("largest", "share (%)", lambda at: at.test["accuracy"] / 2, scale="percent")


def relative_spread(rows: torch.Tensor) -> float:
    return evaluation.relative_spread(*moments(rows), len(rows))


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
    scenes = noted_scenes(monkeypatch, needs="report")
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


# -- the first rounds ---------------------------------------------------------------------------


def slow_b2(rows: list[list[float]]) -> float:
    """The spread over the squared mean, by loops."""
    mean = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    squares = [(x - m) ** 2 for row in rows for x, m in zip(row, mean, strict=True)]
    return math.fsum(squares) / len(rows) / math.fsum(m * m for m in mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_spread_is_the_spread_over_the_squared_mean(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for n, d, shift in ((2, 3, 0.0), (7, 40, 1.0), (20, 1000, 100.0)):
        rows = torch.randn(n, d, generator=generator).to(dtype) + shift
        assert relative_spread(rows) == pytest.approx(slow_b2(rows.tolist()), rel=1e-3)
        assert relative_spread(7 * rows) == pytest.approx(relative_spread(rows), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_metrics_of_a_round_share_one_pass_and_agree_with_loops(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for n, d, shift in ((1, 5, 1.0), (2, 3, 0.0), (7, 40, 1.0), (20, 1000, 100.0)):
        rows = torch.randn(n, d, generator=generator).to(dtype) + shift
        scene = Round(n, range(n), rows, rows, 0.0, rows[0])
        exact = rows.double()
        away = exact - exact.mean(dim=0)
        expected = float(away.square().sum(dim=1).mean())
        tolerance = 1e-6 if dtype == torch.float32 else 1e-12
        assert formulas.spread(scene) == pytest.approx(expected, rel=tolerance)
        assert evaluation.spread(rows) == pytest.approx(expected, rel=1e-12, abs=1e-20)
        assert formulas.relative_spread(scene) == relative_spread(rows)
        distance = float((exact[0] - exact.mean(dim=0)).norm())
        assert float(formulas.distance(scene)) == pytest.approx(distance, rel=1e-4, abs=1e-9)


def test_relative_spread_of_few_or_no_rows_that_differ() -> None:
    assert relative_spread(torch.tensor([[1.0, 2.0]])) == 0
    assert relative_spread(torch.ones(3, 4)) == 0
    assert relative_spread(torch.tensor([[1.0], [-1.0]])) == math.inf
    assert math.isnan(relative_spread(torch.zeros(3, 4)))


def test_the_first_rounds_say_how_different_the_honest_vectors_are() -> None:
    """Momentum included, attackers excluded; in 25 rounds, because an epoch has fewer."""
    run = Run(n=8, f=2, attack="BitFlip()", rule="Median()", rounds=40, momentum=0.9, record=())
    training = run.simulation()
    assert training.batches.epoch < 25 == training.early_rounds
    for record in training:
        measured = record.get("early_heterogeneity")
        if record["round"] > 25:
            assert measured is None
        else:
            assert measured == pytest.approx(slow_b2(training.sent[:6].tolist()), rel=1e-3)


@pytest.mark.parametrize(("steps", "rounds"), [(1, 73), (2, 37), (10, 25)])
def test_the_first_rounds_are_a_pass_over_the_smallest_part(steps: int, rounds: int) -> None:
    run = Run(n=20, f=0, rule="Mean()", batch=1, local_steps=steps, partition="by_label()")
    training = run.simulation()
    assert min(map(len, training.batches.parts)) == 73
    assert training.early_rounds == rounds


def test_it_is_written_for_each_round_and_summed_up_by_the_median(tmp_path: Path) -> None:
    run, store = Run(n=20, f=0, rule="Mean()", rounds=30, evaluate_every=10), Store(tmp_path)
    training = run.simulation()
    values = [record["early_heterogeneity"] for record in list(training)[:25]]
    assert perform(run, store.folder(run)) is not None
    (result,) = store.results([run])
    assert [len(line.get("early_heterogeneity", ())) for line in result.metrics] == [10, 10, 5]
    assert metrics.early_heterogeneity(result.metrics) == pytest.approx(median(values), rel=1e-8)
    assert "early_heterogeneity" not in metrics.words()
    without: list[dict[str, Any]] = [
        {"round": 10, "loss": 1.0},
        {"round": 20, "early_heterogeneity": []},
    ]
    assert metrics.early_heterogeneity(without) is None


def test_a_mean_of_zero_is_not_written() -> None:
    zero = {"early_heterogeneity": math.inf}
    line = metrics.line({"round": 2}, [zero, {"early_heterogeneity": 2.0}])
    assert line == {"round": 2, "early_heterogeneity": [2.0]}
    assert metrics.line({"round": 1}, [zero]) == {"round": 1, "early_heterogeneity": []}


def test_what_is_measured_beforehand_is_what_an_honest_run_records(tmp_path: Path) -> None:
    run = Run(n=10, f=3, rule="Mean()", attack="NoAttack()", rounds=25, partition="dirichlet(0.5)")
    store, calls = Store(tmp_path), list[tuple[int, int]]()
    assert perform(run, store.folder(run)) is not None
    (result,) = store.results([run])
    measured = run.heterogeneity(lambda done, total: calls.append((done, total)))
    assert calls == [(k, 25) for k in range(1, 26)]
    assert measured == pytest.approx(metrics.early_heterogeneity(result.metrics), rel=1e-8)
    # Neither the rule nor the attackers take part, and the f of the run does not matter.
    other = run.varied(rule="Krum()", attack="BitFlip()", rounds=3, record=("weights",))
    assert other.heterogeneity() == measured


def test_measuring_leaves_the_model_as_it_is() -> None:
    data, model = load("digits"), mlp((1, 8, 8), (8,))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert measured_heterogeneity(Settings(n=5), data, model) > 0
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_what_cannot_be_measured_is_one_sentence() -> None:
    data, model = load("digits"), mlp((1, 8, 8), (8,))
    with pytest.raises(bz.ByzantiumError, match=r"diverged in round \d+.*smaller learning rate"):
        measured_heterogeneity(Settings(n=5, learning_rate=1e30), data, model)

    def nothing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0 * outputs.sum()

    with pytest.raises(bz.ByzantiumError, match="nothing but zeros"):
        measured_heterogeneity(Settings(n=5), data, model, loss=nothing)
