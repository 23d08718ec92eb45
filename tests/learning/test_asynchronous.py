"""Trainings in simulated time are what a slow loop over arrivals computes, or Algorithm 2."""

from __future__ import annotations

import copy
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import members
import pytest
import torch
from checkpoints import assert_goes_on
from pages import forget
from rounds import noted_scenes
from torch import Tensor, nn
from torch.nn import functional

import byzantium as bz
from byzantium.data import by_label, iid, load
from byzantium.learning import (
    BASGD,
    AsynchronousSimulation,
    Clock,
    FedBuff,
    Settings,
    Simulation,
    Synchronous,
    WorkerMethod,
    clocks,
    mlp,
    parse_clock,
    simulate,
)
from byzantium.learning.checkpoint import CheckpointError
from byzantium.learning.formulas import Round
from byzantium.runs import Run, Store, perform

DIGITS = load("digits")
N, ATTACKERS = 9, 2
CLOCKS = [
    "BASGD(buffers=5, times='pareto')",
    "BASGD(buffers=6, timer=2, times='exponential', haste=4)",
    "FedBuff(size=5, times='exponential')",
    "FedBuff(size=5, times='pareto', lasting=True, haste=4)",
    "Synchronous(times='pareto')",
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return mlp((1, 8, 8), hidden=(4,))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def simulation(
    clock: str | None,
    rule: bz.Aggregator | None = None,
    attack: bz.Attack | None = None,
    **options: Any,
) -> Simulation:
    values: dict[str, Any] = {"n": N, "attackers": ATTACKERS, "rounds": 12, "batch": 4}
    values |= {"momentum": 0.8, "evaluate_every": 100, "record": (), **options}
    parts = DIGITS, model(), rule or bz.Median(), attack or bz.InnerProduct(0.4), by_label()
    if clock is None:
        return Simulation(Settings(**values), *parts)
    return AsynchronousSimulation(Settings(**values, clock=clock), *parts)


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("time", "staleness")}


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """What the metrics see of each round; ask for "noted"."""
    return noted_scenes(monkeypatch)


# -- what it computes ------------------------------------------------------------------------------

SAME = ["BASGD(9)", "FedBuff(9)", "Synchronous(times='pareto', haste=7)"]


@pytest.mark.parametrize("clock", SAME)
@pytest.mark.parametrize(
    "attack",
    [
        bz.NoAttack(),
        bz.BitFlip(),
        bz.LabelFlip(),
        bz.Mimic(warmup=2),
        bz.ALittleIsEnough(),
        bz.Adaptive("loss", budget=10),
    ],
    ids=repr,
)
def test_equal_times_and_a_buffer_for_each_worker_are_algorithm_2_to_the_bit(
    clock: str, attack: bz.Attack
) -> None:
    """With momentum, an attack, buckets, and a rule that remembers; every record included."""
    rule = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=1.0)
    options: dict[str, Any] = {"rounds": 4, "evaluate_every": 2}
    options["local_steps"] = 1 + isinstance(attack, bz.BitFlip)
    options["record"] = ("distance", "spread", "weights", "losses", "rejected")
    plain, other = (simulation(one, rule, attack, **options) for one in (None, clock))
    assert list(plain) == [timeless(record) for record in other]
    assert torch.equal(weights(plain.model), weights(other.model))
    assert plain.history.evaluations == other.history.evaluations
    assert all(record["staleness"] == 0 for record in other.history.rounds)


def test_a_root_gradient_is_the_same_too() -> None:
    rule = bz.RootMatching(f=2)
    options: dict[str, Any] = {"rounds": 4, "root": 2, "record": ("root",)}
    plain, other = (simulation(one, rule, **options) for one in (None, "BASGD(9)"))
    assert list(plain) == [timeless(record) for record in other]
    assert torch.equal(weights(plain.model), weights(other.model))


class Slow:
    """A slow loop over all arrivals, which knows nothing of the simulation but its draws.

    Each worker takes a time of its own for each vector. It holds a copy of the model that it
    fetched, and computes when its time is over.
    """

    def __init__(self, training: Simulation, paces: list[float], momentum: float) -> None:
        self.model, self.paces, self.beta = copy.deepcopy(training.model), paces, momentum
        self.losses: dict[int, float] = {}
        self.batches: dict[int, list[Tensor]] = {worker: [] for worker in range(N)}
        draw = training.batches.draw

        def noted(workers: Sequence[int]) -> Tensor:
            drawn = draw(workers)
            for worker, indices in zip(workers, drawn, strict=True):
                self.batches[worker].append(indices)
            return drawn

        training.batches.draw = noted  # type: ignore[method-assign]

    def gradient(self, fetched: nn.Module, worker: int, indices: Tensor) -> Tensor:
        outputs = fetched(DIGITS.train_x[indices])
        loss = functional.cross_entropy(outputs, DIGITS.train_y[indices])
        self.losses[worker] = float(loss.detach())
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*fetched.parameters()])])

    def steps(self, clock: Clock) -> Iterator[tuple[float, float, float, Tensor]]:
        """The time, the mean staleness, the loss, and the weights of the model after each step."""
        arrivals = sorted((k * p, w) for w, p in enumerate(self.paces) for k in range(1, 200))
        fetched = {worker: copy.deepcopy(self.model) for worker in range(N)}
        begun, sent = dict.fromkeys(range(N), 0), dict.fromkeys(range(N), 0)
        momenta: dict[int, Tensor] = {}
        arrived: list[tuple[int, Tensor, int]] = []
        step = 0
        for time, worker in arrivals:
            row = torch.zeros(0)
            if worker < N - ATTACKERS:
                g = self.gradient(fetched[worker], worker, self.batches[worker][sent[worker]])
                m = momenta.get(worker)
                row = momenta[worker] = g if m is None else self.beta * m + (1 - self.beta) * g
                sent[worker] += 1
                if isinstance(clock, FedBuff):
                    row = row / math.sqrt(1 + step - begun[worker])
            arrived.append((worker, row, step - begun[worker]))
            place = (lambda w: w % clock.buffers) if isinstance(clock, BASGD) else int
            groups = {place(one) for one, _, _ in arrived}
            if len(groups) == clock.vectors(N):
                bad = {place(one) for one, _, _ in arrived if one >= N - ATTACKERS}
                honest = torch.stack(
                    [
                        torch.stack([v for one, v, _ in arrived if place(one) == b]).mean(dim=0)
                        for b in sorted(groups - bad)
                    ]
                )
                attack = (-0.4 * honest.mean(dim=0)).expand(len(bad), -1)
                moved = weights(self.model) - 0.1 * bz.Median()(torch.cat([honest, attack]))
                nn.utils.vector_to_parameters(moved, self.model.parameters())
                ages: dict[int, list[int]] = {}
                for one, _, age in arrived:
                    if one < N - ATTACKERS:
                        ages.setdefault(one, []).append(age)
                mean = sum(sum(a) / len(a) for a in ages.values()) / len(ages)
                yield time, mean, sum(self.losses[one] for one in ages) / len(ages), moved
                step, arrived = step + 1, []
            fetched[worker], begun[worker] = copy.deepcopy(self.model), step


@pytest.mark.parametrize("haste", [1, 5])
@pytest.mark.parametrize("clock", ["BASGD(buffers=5", "FedBuff(size=5", "BASGD(buffers=9"])
def test_it_is_a_slow_loop_over_arrivals(clock: str, haste: int) -> None:
    training = simulation(f"{clock}, lasting=True, haste={haste})")
    assert isinstance(training, AsynchronousSimulation)
    paces = [1.0 + 0.37 * math.sqrt(2 + worker) for worker in range(N)]  # no two arrive at once
    training.paces = list(paces)
    honest = N - ATTACKERS
    slow = Slow(training, [p / (haste if w >= honest else 1) for w, p in enumerate(paces)], 0.8)
    after, expected = [], []
    for record in training:
        after.append(weights(training.model))
        expected.append((record["time"], record["staleness"], record["loss"]))
    stale = 0.0
    for ours, theirs, (time, age, loss, moved) in zip(
        after, expected, slow.steps(training.clock), strict=False
    ):
        assert theirs == pytest.approx((time, age, loss), rel=1e-4)
        assert torch.allclose(ours, moved, atol=1e-5)
        stale = max(stale, age)
    assert len(after) == 12
    assert stale > 0


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("rule", [bz.Krum(f=1), bz.Median(), bz.Mean()], ids=repr)
def test_the_weights_of_workers_are_those_of_their_buffers(clock: str, rule: bz.Aggregator) -> None:
    training = simulation(clock, rule, bz.BitFlip(), record=("weights", "rejected"))
    for record in training:
        assert "weights" not in record or sum(record["weights"]) == pytest.approx(1)
    means = record["weights"]
    if isinstance(rule, bz.Mean) and "FedBuff" in clock:
        assert sorted(set(means)) == pytest.approx([0.0, 0.2])


def test_who_is_rejected_with_a_buffer_is_named() -> None:
    """Attackers 7 and 8 share buffers 2 and 3 of 5 with the workers 2 and 3."""
    training = simulation("BASGD(buffers=5)", attack=bz.NonFinite("nan"), record=("rejected",))
    for record in training:
        assert {7, 8} & set(record["rejected"])
        assert set(record["rejected"]) <= {2, 3, 7, 8}


@pytest.mark.parametrize("attack", members.ATTACKS, ids=repr)
def test_every_attack_works_without_rounds(attack: bz.Attack) -> None:
    """Those on the nodes of a graph are the exception."""
    if attack.needs_node:
        with pytest.raises(bz.ByzantiumError, match="sends to nodes of a graph"):
            simulation(CLOCKS[0], attack=attack)
        return
    rules = {True: bz.FLTrust(), False: bz.Bucketing(s=2) >> bz.GeometricMedian()}
    for clock in (CLOCKS[1], CLOCKS[3]):
        rule, root = rules[attack.needs_root], 2 * attack.needs_root
        training = simulation(clock, rule, attack, rounds=3, root=root, record=("distance",))
        assert [record["round"] for record in training] == [1, 2, 3]
        assert weights(training.model).isfinite().all()


@pytest.mark.parametrize("worker", members.WORKERS, ids=repr)
def test_worker_methods_that_need_rounds_say_so(worker: WorkerMethod) -> None:
    settings = Settings(n=N, attackers=ATTACKERS, rounds=3, clock=CLOCKS[0])
    with pytest.raises(bz.ByzantiumError, match=r"compute in the same rounds|an option of the"):
        AsynchronousSimulation(settings, DIGITS, model(), bz.Median(), worker=worker)


# -- how often attackers send ----------------------------------------------------------------------


@pytest.mark.parametrize("haste", [0.5, 1, 60])
@pytest.mark.parametrize("clock", ["BASGD(buffers=5", "FedBuff(size=5"])
def test_attackers_never_have_more_vectors_than_they_are(
    clock: str, haste: float, scenes: list[Round]
) -> None:
    training = simulation(f"{clock}, times='pareto', haste={haste})", record=("noted",))
    list(training)
    bad = [len(scene.sent) - len(scene.honest) for scene in scenes]
    assert {len(scene.sent) for scene in scenes} == {5}
    assert max(bad) == ATTACKERS
    assert sum(bad) >= (23 if haste == 60 else 1)  # of 12 steps with at most two


def test_what_honest_workers_send_to_the_buffer_of_an_attacker_is_lost(
    scenes: list[Round],
) -> None:
    """An attacker that knows what else is in a buffer can make its mean what it wants."""
    training = simulation("BASGD(buffers=5, times='pareto', haste=9)", record=("noted",))
    list(training)
    for scene in scenes:
        wanted = (-0.4 * scene.honest.mean(dim=0)).expand(ATTACKERS, -1)
        assert torch.allclose(scene.sent[len(scene.honest) :], wanted, atol=1e-6)


def test_a_fast_attacker_sends_the_mean_of_its_own_vectors(scenes: list[Round]) -> None:
    training = simulation("FedBuff(size=9, haste=3)", attack=bz.NoAttack(), record=("noted",))
    list(training)
    assert all(torch.isfinite(scene.sent).all() for scene in scenes)
    assert scenes[0].buffered is not None
    assert scenes[0].buffered.shares == [1.0] * N


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "beyond"),
    [
        (Synchronous(times="exponential"), lambda t: math.exp(-t)),
        (Synchronous(times="pareto", tail=3), lambda t: min(1.0, (2 / 3 / t) ** 3)),
        (Synchronous(times="pareto"), lambda t: min(1.0, (1 / 3 / t) ** 1.5)),
        (Synchronous(), lambda t: float(t < 1)),
    ],
    ids=["exponential", "pareto 3", "pareto 1.5", "constant"],
)
def test_times_have_their_distribution(clock: Clock, beyond: Any) -> None:
    drawn = clock.draw(100_000, torch.Generator().manual_seed(1))
    for t in (0.2, 0.4, 0.9, 1.5, 3.0, 8.0):
        assert (drawn > t).double().mean().item() == pytest.approx(beyond(t), abs=0.005)
    if clock.times != "pareto" or clock.tail > 2:  # a mean of a heavy tail converges too slowly
        assert drawn.mean().item() == pytest.approx(1, abs=0.02)


def test_a_synchronous_round_takes_as_long_as_its_slowest_worker() -> None:
    training = simulation("Synchronous(times='exponential', lasting=True)", attackers=0)
    assert isinstance(training, AsynchronousSimulation)
    slowest = max(training.paces or ())
    times = [record["time"] for record in training]
    assert times == pytest.approx([slowest * (k + 1) for k in range(12)])
    fresh = simulation("Synchronous(times='exponential')", attackers=0)
    times = [0.0, *(record["time"] for record in fresh)]
    lasted = [late - early for early, late in pairwise(times)]
    assert len(set(lasted)) == 12


def test_without_waiting_steps_come_sooner_and_vectors_are_stale() -> None:
    ends = {}
    for clock in ("Synchronous(", "BASGD(5, ", "FedBuff(5, "):
        training = simulation(f"{clock}times='pareto')", rounds=40)
        records = list(training)
        stale = [record["staleness"] for record in records]
        assert (max(stale) > 0) == ("Sync" not in clock)
        ends[clock[:4]] = records[-1]["time"]
    assert ends["FedB"] < ends["BASG"] < ends["Sync"]


# -- the timer -------------------------------------------------------------------------------------


def test_the_timer_goes_on_where_the_workers_of_a_buffer_are_silent() -> None:
    """Workers 0 and 5, all those of the first of 5 buffers, need a hundred times as long."""
    ends = {}
    for timer in (None, 10):
        clock = f"BASGD(buffers=5, timer={timer}, times='exponential', lasting=True)"
        training = simulation(clock, rounds=5)
        assert isinstance(training, AsynchronousSimulation)
        training.paces = [100.0 if worker in (0, 5) else 1.0 for worker in range(N)]
        ends[timer] = [record["time"] for record in training]
        if timer:
            active = [training.table[worker] for worker in range(N) if worker not in (0, 5)]
            assert sorted(active) == list(range(7))  # evenly spread over the buffers
    assert ends[None][0] == 100
    assert 10 < ends[10][0] < ends[10][-1] < 30


def test_the_timer_runs_out_between_two_arrivals() -> None:
    """Worker 0 sends at 3, 6 and 9, worker 1 at 5 and 10: at 4 both buffers are emptied."""
    ends = {}
    for timer in (None, 4):
        clock = f"BASGD(buffers=2, timer={timer}, lasting=True)"
        training = simulation(clock, n=2, attackers=0, rounds=2)
        assert isinstance(training, AsynchronousSimulation)
        training.paces = [3.0, 5.0]
        ends[timer] = [record["time"] for record in training]
    # What worker 1 sends at 5 waits for the next vector of worker 0; at 10 the timer that began at
    # 6 has not run out yet.
    assert ends == {None: [5, 10], 4: [6, 10]}


def test_a_timer_that_is_too_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byzantium.learning.asynchronous.MOST_EMPTIED", 20)
    training = simulation("BASGD(buffers=9, timer=0.5, times='exponential')")
    with pytest.raises(bz.ByzantiumError, match="needs a longer timer or fewer buffers"):
        list(training)


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "attack"),
    [(one, bz.BitFlip() if k % 2 else bz.Mimic(warmup=3)) for k, one in enumerate(CLOCKS)],
)
def test_it_goes_on_from_any_round_to_the_same_bits(
    tmp_path: Path, clock: str, attack: bz.Attack
) -> None:
    def new() -> Simulation:
        return simulation(clock, bz.CenteredClipping(radius=1.0), attack, record=("distance",))

    assert_goes_on(new, tmp_path, (1, 6, 11))


SCRIPT = """
import hashlib, json, sys
from pathlib import Path
import torch
import byzantium as bz
from byzantium.data import by_label, load
from byzantium.learning import AsynchronousSimulation, Settings, mlp, simulate

rounds = AsynchronousSimulation._round
def told(self, t):
    print(t, flush=True)
    return rounds(self, t)
AsynchronousSimulation._round = told
torch.manual_seed(0)
model = mlp((1, 8, 8), hidden=(4,))
settings = Settings(n=9, attackers=2, rounds=20, batch=4, momentum=0.9, evaluate_every=7,
                    clock="BASGD(buffers=5, timer=4, times='pareto', haste=3)")
history = simulate(settings, load("digits"), model, bz.Median(), bz.Mimic(warmup=9), by_label(),
                   optimizer=lambda p: torch.optim.Adam(p), folder=Path(sys.argv[1]), seconds=0)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
content = weights.numpy().tobytes() + json.dumps([history.rounds, history.evaluations]).encode()
print("done", history.status, hashlib.sha256(content).hexdigest(), flush=True)
"""


def train(folder: Path, kill_at: int | None = None) -> list[str]:
    """Run the script; kill it, hard, when it begins a certain round."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == str(kill_at):
                os.kill(process.pid, signal.SIGKILL)
                break
    return lines


@pytest.mark.slow
def test_a_killed_training_goes_on_bit_by_bit(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole")[-1]
    assert expected.startswith("done completed")
    begun = [int(train(tmp_path / "killed", kill_at=kill_at)[0]) for kill_at in (5, 13)]
    assert train(tmp_path / "killed")[-1] == expected
    assert begun[0] == 0 < begun[1]


STRANGE: dict[str, Any] = {
    "time": [-1.0, math.nan, math.inf, 3],
    "due": [[math.nan] * N, [-1.0] * N, [1.0], "text", None],
    "places": [[math.inf] * N],
    "idle": [[True] * 8, [1] * N],
    "begun": [[99] * N, [-1] * N],
    "table": [[0] * N, list(range(1, N + 1))],
    "paces": [[1.0] * N],
    "losses": [torch.zeros(3), None],
    "generator": [torch.zeros(5, dtype=torch.uint8)],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in STRANGE.items() for v in vs])
def test_a_state_with_a_strange_clock_is_refused(name: str, value: object) -> None:
    training = simulation("BASGD(buffers=5, times='exponential')")
    list(islice(training, 3))
    state = training.state_dict()
    other = simulation("BASGD(buffers=5, times='exponential')")
    with pytest.raises(CheckpointError):
        other.load_state_dict({**state, "clock": {**state["clock"], name: value}})
    assert other.history.rounds == []
    other.load_state_dict(state)


# -- as an option ----------------------------------------------------------------------------------


def test_a_clock_is_read_from_what_it_writes() -> None:
    assert set(clocks.members()) >= {"BASGD", "FedBuff", "Synchronous"}
    for text in CLOCKS:
        assert repr(parse_clock(text)) == text
    assert parse_clock("BASGD(11, 3)") == BASGD(buffers=11, timer=3)


def test_a_run_in_simulated_time_records_it(tmp_path: Path) -> None:
    run = Run(n=9, f=2, rounds=6, evaluate_every=2, batch=8, clock=" FedBuff( 5 ,times='pareto')")
    assert run.clock == "FedBuff(size=5, times='pareto')"
    assert run.vectors == 5
    assert run.identity != run.varied(clock="FedBuff(5)").identity
    assert Run().varied(clock="Synchronous").identity == Run().identity
    assert isinstance(Run(clock="Synchronous").simulation(), Simulation)
    store = Store(tmp_path)
    assert perform(run, store.folder(run)) is not None
    (result,) = store.results([run])
    times = [line["time"] for line in result.metrics]
    assert times == sorted(times)
    assert len({*times}) == 3
    assert all(line["staleness"] >= 0 for line in result.metrics)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clock": "BASGD(30)"}, "from 6 to 25, got 30"),
        ({"clock": "FedBuff(5)"}, "from 6 to 25, got 5"),
        ({"clock": "BASGD(11)", "participants": 5}, "needs participants=None"),
        ({"clock": "BASGD(11)", "cache": True}, "needs cache=False"),
        ({"clock": "BASGD(11)", "weights": "sizes"}, "needs weights='equal'"),
        ({"clock": "BASG(11)"}, "did you mean 'BASGD'"),
        ({"clock": "FedBuff(5, tail=1)"}, "tail > 1"),
        ({"clock": "FedBuff(5, haste=1e9)"}, "haste <= 1000"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=message):
        Settings(n=25, attackers=5, **options)
    with pytest.raises(bz.ByzantiumError, match=message):
        Run(n=25, f=5, rule="Median()", **options)


def test_the_bound_on_byzantine_vectors_counts_buffers() -> None:
    """5 of 11 buffers may be bad, where 5 of 25 workers are."""
    assert Run(n=25, f=5, rule="Krum()", clock="BASGD(13)").vectors == 13
    with pytest.raises(bz.ByzantiumError, match="Krum"):
        Run(n=25, f=5, rule="Krum()", clock="BASGD(11)")
    assert "5" in Run(n=25, f=5, rule="Median()", clock="BASGD(10)").gap()


def test_a_simulation_without_events_refuses_a_clock() -> None:
    settings = Settings(n=5, rounds=1, clock="BASGD(3)")
    with pytest.raises(bz.ByzantiumError, match="AsynchronousSimulation does"):
        Simulation(settings, DIGITS, model(), bz.Mean(), partition=iid())
    history = simulate(settings, DIGITS, model(), bz.Mean(), partition=iid())
    assert "time" in history.rounds[0]


def test_a_clock_of_a_plugin_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "hasty.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from byzantium.learning import BASGD\n"
        "@dataclass(frozen=True, repr=False)\n"
        "class Hasty(BASGD):\n"
        "    '''Buffers of which one may stay empty.'''\n"
        "    def vectors(self, n):\n"
        "        return self.buffers - 1\n"
    )
    bz.load_plugin(path)
    try:
        run = Run(n=9, f=2, rounds=2, rule="Median()", clock="Hasty(6)")
        assert run.clock == "Hasty(buffers=6)"
        assert [text.split()[0] for text in run.plugin] == ["hasty.py"]
        assert run.vectors == 5
        assert len(list(run.simulation())) == 2
    finally:
        forget()
