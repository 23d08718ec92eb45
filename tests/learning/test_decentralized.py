"""Training without a server: known answers, a slow reference, attacks, metrics and checkpoints."""

from __future__ import annotations

import logging
import math
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import members
import numpy as np
import pytest
import reference
import torch
from checkpoints import DIGITS, same
from programs import program

import byzantium as bz
from byzantium.core import ByzantiumError
from byzantium.core.options import identity_fields
from byzantium.learning import (
    DecentralizedSimulation,
    Settings,
    Simulation,
    checkpoint,
    linear,
    simulate,
    topology,
)
from byzantium.learning.checkpoint import CheckpointError
from byzantium.learning.training import loop_for
from byzantium.reports.promises import command
from byzantium.runs import Run, Store

RADIUS_0 = bz.ClippedGossip(f=1, radius=0)


def model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return linear((1, 8, 8))


def training(rule: Any, attack: bz.Attack | None = None, **options: Any) -> DecentralizedSimulation:
    settings = {"n": 9, "rounds": 3, "batch": 4, "topology": "torus", "dtype": "float64", **options}
    optimizer = settings.pop("optimizer", None)
    parts = (Settings(**settings), DIGITS, model(), rule, attack)
    loop = loop_for(parts[0])(*parts, optimizer=optimizer)
    assert isinstance(loop, DecentralizedSimulation)
    return loop


def run(loop: Any) -> list[dict[str, Any]]:
    return list(loop)


# -- known answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rule", [bz.Gossip(), bz.ClippedGossip(f=2, radius=math.inf), bz.Mean()])
def test_gossip_on_a_complete_graph_is_the_mean_at_a_server(rule: Any, momentum: float) -> None:
    options: dict[str, Any] = {"momentum": momentum, "rounds": 6, "evaluate_every": 2}
    loop = training(rule, topology="complete", **options)
    server = Simulation(
        Settings(n=9, batch=4, dtype="float64", **options), DIGITS, model(), bz.Mean()
    )
    for own, other in zip(loop, server, strict=True):
        assert own["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert own["spread"] == pytest.approx(other["spread"], rel=1e-9)
        assert own["distance"] == pytest.approx(0, abs=1e-12)
        assert own["weights"] == pytest.approx([1 / 9] * 9)
        assert own["kept"] == pytest.approx([1.0] * 36)
        for one in loop.models:
            assert torch.allclose(one, server.server.model_vector(), rtol=0, atol=1e-13)
    for own, other in zip(loop.history.evaluations, server.history.evaluations, strict=True):
        assert own["accuracy"] == pytest.approx(other["accuracy"])
        assert own["worst_accuracy"] == pytest.approx(other["accuracy"])
        assert own["consensus"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("graph", ["ring", "star", "dumbbell", "erdos_renyi(0.5)"])
def test_plain_gossip_keeps_the_mean_where_nobody_attacks(graph: str) -> None:
    for record in training(bz.Gossip(), topology=graph):
        assert record["distance"] == pytest.approx(0, abs=1e-12)
        assert sum(record["weights"]) == pytest.approx(1)


def test_with_radius_0_every_node_trains_alone() -> None:
    loop = training(RADIUS_0, rounds=4, momentum=0.9, learning_rate=0.3)
    expected = loop.models.detach().clone()
    for _ in loop:
        expected -= 0.3 * loop.sent
        assert torch.allclose(loop.models, expected, rtol=0, atol=1e-15)
    assert len({tuple(one.tolist()) for one in loop.models}) == 9


def test_gradients_are_those_at_each_nodes_own_model() -> None:
    loop = training(RADIUS_0, rounds=2)
    rounds = iter(loop)
    next(rounds)
    models = loop.models.detach().clone()
    batches = []
    draw = loop._next_indices
    loop._next_indices = lambda workers: batches.append(draw(workers)) or batches[-1]  # type: ignore[method-assign,func-returns-value]
    next(rounds)
    x, y = loop.data.train_x[batches[0]], loop.data.train_y[batches[0]]
    net = model().double()
    for node in range(9):
        torch.nn.utils.vector_to_parameters(models[node], net.parameters())
        loss = torch.nn.functional.cross_entropy(net(x[node, 0]), y[node, 0])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        gradient = torch.cat([g.flatten() for g in gradients])
        assert torch.allclose(loop.sent[node], gradient, atol=1e-14)


# -- a round, slowly -----------------------------------------------------------------------------


def slow_dissensus(i: int, X: np.ndarray, W: np.ndarray, h: int, epsilon: float) -> np.ndarray:
    push, weight = np.zeros_like(X[i]), 0.0
    for j in range(len(X)):
        if j != i and j < h:
            push += W[i, j] * (X[j] - X[i])
        elif j != i:
            weight += W[i, j]
    return X[i] - epsilon * push / weight


def slow_spectral(i: int, X: np.ndarray, W: np.ndarray, h: int, epsilon: float) -> np.ndarray:
    adjacency = (W[:h, :h] > 0) & ~np.eye(h, dtype=bool)
    laplacian = np.diag(adjacency.sum(axis=1)) - adjacency
    v = np.linalg.eigh(laplacian.astype(float))[1][:, 1]
    return X[i] + epsilon * v[i] * sum(v[j] * X[j] for j in range(h))


SLOW_ATTACKS: dict[str, tuple[bz.Attack, Callable[..., np.ndarray]]] = {
    "dissensus": (bz.Dissensus(epsilon=1.5), partial(slow_dissensus, epsilon=1.5)),
    "spectral": (bz.SpectralHeterogeneity(2.0), partial(slow_spectral, epsilon=2.0)),
    "InnerProduct": (
        bz.InnerProduct(epsilon=0.5),  # of the node and its honest neighbors
        lambda i, X, W, h: -0.5 * np.mean([X[j] for j in range(h) if W[i, j] > 0], axis=0),
    ),
}
SLOW_RULES: dict[str, tuple[Any, Callable[..., np.ndarray]]] = {
    "Gossip": (bz.Gossip(), lambda X, W: reference.plain_gossip(X, W)),
    "ClippedGossip": (bz.ClippedGossip(f=1), lambda X, W: reference.clipped_gossip(X, 1, None, W)),
    "ClippedSumGossip": (
        bz.ClippedSumGossip(f=1),
        lambda X, W: reference.clipped_sum_gossip(X, 1, W),
    ),
    "TrimmedGossip": (bz.TrimmedGossip(f=1), lambda X, W: reference.trimmed_gossip(X, 1, W)),
    "NNA": (
        bz.NearestNeighborMixing(f=1),
        lambda X, W: np.array(
            [reference.nearest_neighbor_mixing(X[[0, *np.flatnonzero(W[0, 1:]) + 1]], 1)[0][0]]
        ),
    ),
    "TrimmedMean": (
        bz.TrimmedMean(f=1),
        lambda X, W: np.array([reference.trimmed_mean(X[W[0] > 0], 1)[0]]),
    ),
}


@pytest.mark.parametrize("rule", SLOW_RULES)
@pytest.mark.parametrize("attack", SLOW_ATTACKS)
def test_a_round_agrees_with_slow_loops(attack: str, rule: str) -> None:
    """On a dumbbell, two of whose nodes attack; each honest node is computed by itself."""
    (sends, slow_attack), (fast_rule, slow_rule) = SLOW_ATTACKS[attack], SLOW_RULES[rule]
    loop = training(fast_rule, sends, n=10, attackers=2, topology="dumbbell", rounds=2)
    rounds, W, h = iter(loop), loop.topology.weights, 8
    next(rounds)
    before = loop.models.detach().clone()
    next(rounds)
    X = (before - 0.1 * loop.sent).numpy()
    for i in range(h):
        received = X.copy()
        for k in (8, 9):
            received[k] = slow_attack(i, X, W, h) if W[i, k] else np.nan
        order = [i, *(j for j in range(10) if j != i and W[i, j] > 0)]
        expected = slow_rule(received[order], W[np.ix_(order, order)])[0]
        np.testing.assert_allclose(loop.models[i].numpy(), expected, atol=1e-12)


def test_dissensus_of_strength_1_stops_plain_gossip() -> None:
    loop = training(bz.Gossip(), bz.Dissensus(), n=6, attackers=2, topology="complete", rounds=4)
    expected = loop.models.detach().clone()
    for _ in loop:
        expected[:4] -= 0.1 * loop.sent[:4]
        assert torch.allclose(loop.models[:4], expected[:4], atol=1e-13)


def test_attackers_that_follow_the_protocol_are_nodes_like_others() -> None:
    """Under NoAttack the models of all nodes follow one product with the weights."""
    loop = training(bz.Gossip(), bz.NoAttack(), attackers=3, rounds=3)
    before = loop.models.detach().clone()
    for _ in loop:
        expected = torch.from_numpy(loop.topology.weights) @ (before - 0.1 * loop.sent)
        assert torch.allclose(loop.models, expected, atol=1e-13)
        before = loop.models.detach().clone()


def test_robust_gossip_bounds_what_plain_gossip_lets_attackers_do() -> None:
    """Models of noise: plain gossip follows them, CS+ and clipping hardly."""
    accuracies = {}
    for rule in (bz.Gossip(), bz.ClippedGossip(f=1), bz.TrimmedGossip(f=1), bz.ClippedSumGossip(1)):
        loop = training(
            rule,
            bz.GaussianNoise(30.0),
            n=8,
            attackers=1,
            rounds=15,
            topology="complete",
            batch=32,
            learning_rate=1.0,
            record=(),
        )
        run(loop)
        accuracies[type(rule).__name__] = loop.history.evaluations[-1]["worst_accuracy"]
    plain = accuracies.pop("Gossip")
    assert plain < 40 < 70 < min(accuracies.values()), (plain, accuracies)


# -- attacks, state and checkpoints --------------------------------------------------------------

# Those that aim at the steps of a server are refused; those that search take long.
NODE_ATTACKS = [
    pytest.param(
        attack, marks=[pytest.mark.slow] * ("Tuned" in repr(attack) or "Adaptive" in repr(attack))
    )
    for attack in members.ATTACKS
    if not attack.needs_server
]


@pytest.mark.parametrize("attack", NODE_ATTACKS, ids=repr)
def test_every_attack_sends_to_nodes_and_goes_on_from_its_checkpoint(
    tmp_path: Path, attack: bz.Attack
) -> None:
    """A shared rule with a state and random numbers at the nodes, too, and Adam."""
    rule: bz.Aggregator | bz.Mixing = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=1)
    rule = rule if "NonFinite" not in repr(attack) else bz.TrimmedGossip(f=2)
    check_resumed(
        lambda: training(
            rule,
            attack,
            attackers=2,
            n=6,
            topology="complete",
            rounds=2,
            optimizer=torch.optim.Adam,
        ),
        tmp_path,
    )


@pytest.mark.parametrize("rule", [rule for rule, _ in SLOW_RULES.values()], ids=repr)
def test_every_rule_goes_on_from_its_checkpoint(tmp_path: Path, rule: Any) -> None:
    check_resumed(lambda: training(rule, bz.Mimic(warmup=1), attackers=1, momentum=0.9), tmp_path)


def check_resumed(make: Callable[[], DecentralizedSimulation], folder: Path) -> None:
    whole = make()
    paths = [checkpoint.save(folder, r["round"], whole.state_dict()) for r in whole]
    assert len(whole.history.rounds) == whole.settings.rounds
    restored = make()
    restored.load_state_dict(checkpoint.load(paths[-2]))
    run(restored)
    assert same(restored.result(), whole.result())
    assert torch.equal(restored.models, whole.models)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("models", torch.zeros(8, 650, dtype=torch.float64)),
        ("models", torch.full((9, 650), math.nan, dtype=torch.float64)),
        ("models", None),
        ("rules", [{}] * 8),
        ("rules", [{"center": torch.zeros(3)}] * 9),
        ("rules", None),
        ("attacks", [{}] * 9),
        ("attacks", [{"unknown": torch.tensor(99)}] * 8),
        ("attacks", "none"),
        ("optimizer", {}),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(name: str, value: Any) -> None:
    def make() -> DecentralizedSimulation:
        return training(bz.CenteredClipping(radius=1), bz.Mimic(warmup=1), attackers=1)

    source, loop = make(), make()
    rounds = iter(source)
    next(rounds)
    before = loop.models.detach().clone()
    with pytest.raises(CheckpointError):
        loop.load_state_dict({**source.state_dict(), name: value})
    assert torch.equal(loop.models, before)
    assert not loop.history.rounds


def test_a_training_that_diverged_says_so_and_is_read_back(tmp_path: Path) -> None:
    settings = Settings(n=4, rounds=50, learning_rate=1e30, topology="ring")
    first = simulate(settings, DIGITS, model(), bz.Gossip(), folder=tmp_path)
    assert first.status == "diverged"
    again = simulate(settings, DIGITS, model(), bz.Gossip(), folder=tmp_path)
    assert repr(again) == repr(first)


def test_too_many_unusable_models_are_an_error_and_f_of_them_are_rejected() -> None:
    loop = training(bz.TrimmedGossip(f=1), bz.NonFinite(), attackers=1, record=("rejected",))
    assert [record["rejected"] for record in loop] == [[8]] * 3
    loop = training(bz.TrimmedGossip(f=1), bz.NonFinite(), attackers=3, topology="complete")
    with pytest.raises(bz.TooManyRejected, match="but 3 are unusable"):
        run(loop)


# -- metrics -------------------------------------------------------------------------------------


def test_metrics_are_those_of_the_honest_nodes() -> None:
    rule = bz.ClippedGossip(f=1)
    loop = training(rule, bz.Dissensus(3.0), attackers=2, n=12, topology="torus(rows=3)", batch=8)
    records, net = run(loop), model().double()
    accuracies = []
    for node in range(10):
        torch.nn.utils.vector_to_parameters(loop.models[node], net.parameters())
        correct = net(DIGITS.test_x.double()).argmax(dim=1) == DIGITS.test_y
        accuracies.append(100 * float(correct.double().mean()))
    last = loop.history.evaluations[-1]
    assert last["accuracy"] == pytest.approx(np.mean(accuracies))
    assert last["worst_accuracy"] == pytest.approx(min(accuracies))
    honest = loop.models[:10]
    away = (honest - honest.mean(dim=0)).square().sum(dim=1)
    assert last["consensus"] == pytest.approx(float(away.mean().sqrt()))
    mean = torch.nn.utils.parameters_to_vector(loop.model.parameters())
    assert torch.allclose(mean, honest.mean(dim=0))
    assert len(records[-1]["kept"]) == len(loop.recorded_edges)
    assert all(0 <= share <= 1 for share in records[-1]["kept"])
    # Edges to attackers who push are clipped most.
    kept = dict(zip(loop.recorded_edges, records[-1]["kept"], strict=True))
    to_attackers = [share for (_, j), share in kept.items() if j >= 10]
    assert max(to_attackers) < np.mean([share for (_, j), share in kept.items() if j < 10])


def test_a_server_records_nothing_of_nodes() -> None:
    loop = Simulation(Settings(n=4, rounds=1), DIGITS, model(), bz.Mean())
    assert {"kept", "consensus", "worst_accuracy"}.isdisjoint(
        {*run(loop)[0], *loop.history.evaluations[0]}
    )


@pytest.mark.parametrize("words", [("losses",), ("heterogeneity",), ("heard", "norm"), ()])
def test_other_metrics_work_without_a_server(words: tuple[str, ...]) -> None:
    loop = training(bz.ClippedGossip(f=1), bz.Dissensus(), attackers=1, record=words)
    assert len(run(loop)) == 3


def test_local_steps_and_models_of_any_kind_work_at_nodes() -> None:
    settings = Settings(n=4, rounds=2, batch=2, topology="ring", local_steps=3, local_rate=0.1)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.Dropout(0.5))
    net.append(torch.nn.Linear(4, 10))
    history = simulate(settings, DIGITS, net, bz.Gossip())
    assert history.status == "completed"


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Settings(n=9, topology="ring", participants=3), "needs participants=None, got"),
        (lambda: Settings(n=9, topology="ring", cache=True), "needs cache=False, got cache=True"),
        (lambda: Settings(n=9, topology="ring", root=5), "needs root=0, got root=5"),
        (lambda: Settings(n=9, topology="ring", weights="sizes"), "needs weights='equal', got"),
        (lambda: Settings(n=9, topology="circle"), "a topology is one of complete, ring"),
        (lambda: Settings(n=7, topology="torus"), "a torus needs n = rows x columns"),
        (
            lambda: training(bz.ClippedGossip(f=3)),
            "needs at least 2f + 1 = 7 vectors, got 5: node ",
        ),
        (lambda: training(bz.Krum(f=2), topology="ring"), "node 0 of ring has 2 neighbors"),
        (lambda: training(bz.Mean(), bz.Adaptive("collapse")), "aims at the steps of a server"),
        (
            lambda: Run(
                topology="ring", rule="Mean()", attack="Tuned(Dissensus(), aim='alignment')"
            ),
            "aims at the steps of a server",
        ),
        (
            lambda: training(bz.Bucketing(s=2)),
            "after Bucketing(s=2) no vector is that of one node",
        ),
        (
            lambda: Run(topology="ring", rule="ClippedGossip() >> Resampling(s=2)", f=1),
            "after Resampling(s=2) no vector is that of one node",
        ),
        (
            lambda: Run(topology="torus", n=16, rule="ClippedGossip()", f=3),
            "needs at least 2f + 1 = 7 vectors, got 5: node 0 of torus has 4 neighbors and itself",
        ),
        (
            lambda: Settings(n=4, topology="edges('0-1 2-3')"),
            "needs a connected graph, but in edges(pairs='0-1 2-3') no path leads",
        ),
        (lambda: training(bz.RootOnly()), "needs root data"),
        (
            lambda: DecentralizedSimulation(Settings(n=9), DIGITS, model(), bz.Gossip()),
            "needs a graph, such as topology='ring'",
        ),
        (
            lambda: Simulation(Settings(n=9, topology="ring"), DIGITS, model(), bz.Mean()),
            "a Simulation takes no topology, got topology='ring'",
        ),
        (
            lambda: Simulation(Settings(n=9), DIGITS, model(), bz.Mean(), bz.Dissensus()),
            "Dissensus() sends to nodes of a graph: name one",
        ),
        (lambda: bz.Dissensus()(torch.ones(2, 3), q=1), "sends to a node of a graph, node=..."),
        (lambda: Run(attack="Dissensus()"), "sends to nodes of a graph"),
        (lambda: Run(rule="ClippedGossip()"), "is only a mixing; it must end in a rule"),
        (lambda: Run(topology="ring", rule="Krum()"), "needs at least"),
    ],
)
def test_errors_say_what_is_wrong(make: Callable[[], object], error: str) -> None:
    with pytest.raises(ByzantiumError, match=re.escape(error)):
        make()


def test_doubtful_graphs_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="byzantium"):
        training(bz.Gossip(), bz.BitFlip(), n=5, attackers=1, topology="edges('0-4 1-4 2-3,4')")
    assert "the attackers separate honest nodes" in caplog.text
    assert "an honest node has 1 attacker among its neighbors, more than f = 0" in caplog.text
    assert "graph: 5 nodes, 4 edges, connectivity 1, algebraic connectivity 0.519" in caplog.text
    assert "its honest nodes: 4 nodes in 3 parts, 1 edges" in caplog.text
    caplog.clear()
    for _ in range(2):  # on the console once for all runs of a sweep
        Run(topology="ring", n=6, f=1, attackers=2, rule="Gossip()", attack="Mimic()").announce()
    assert caplog.text.count("on ring: an honest node has 1 attacker among its neighbors") == 1


# -- runs ------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "n": 8,
    "f": 1,
    "rounds": 6,
    "evaluate_every": 2,
    "batch": 4,
    "model": "linear",
}


def test_a_run_names_its_graph_and_keeps_the_identity_of_others(tmp_path: Path) -> None:
    assert "topology" not in identity_fields(Run())
    ring = Run(topology="ring()", rule="ClippedGossip", attack="Dissensus()", **SHORT)
    assert (ring.topology, ring.rule) == ("ring", "ClippedGossip(f=1)")
    other = ring.varied(topology="complete")
    assert ring.identity != other.identity
    assert Run(**SHORT).identity == Run(**SHORT, topology=None).identity
    edges = tmp_path / "graph.txt"
    edges.write_text("".join(f"{k} {(k + 1) % 8}\n" for k in range(8)))
    from_file = ring.varied(topology=str(edges))
    assert from_file.topology == "edges(pairs='0-1,7 1-2 2-3 3-4 4-5 5-6 6-7')"
    edges.unlink()
    assert Run.from_record({"topology": from_file.topology, "rule": ring.rule, **SHORT})
    with pytest.raises(ByzantiumError, match=r"its topology, .* is a path instead of its edges"):
        Run.from_record({"topology": str(edges), "rule": ring.rule, **SHORT})
    missing = {"plugin": ["mine.py sha256:" + 64 * "0"], "rule": "Mine()", **SHORT}
    assert Run.from_record({"topology": "complete()", **missing}).topology == "complete"
    for graph in ("circle", "edges('0-1')"):  # checked, although the plugin is not loaded
        with pytest.raises(ByzantiumError):
            Run.from_record({"topology": graph, **missing})


def test_a_run_that_is_stopped_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    from byzantium.runs.job import perform

    run = Run(topology="ring", rule="ClippedGossip()", attack="Mimic(warmup=1)", **SHORT)
    whole = perform(run, tmp_path / "whole")
    assert perform(run.until(4), tmp_path / "parts") is None
    parts = perform(run, tmp_path / "parts")
    assert whole is not None
    assert parts is not None
    assert whole["accuracy"] == parts["accuracy"]
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert '"worst_accuracy"' in lines[0]


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    options = {**SHORT, "topology": "torus", "rounds": 150, "momentum": 0.9, "evaluate_every": 5}
    run = Run(rule="ClippedGossip()", attack="Dissensus()", **options)
    words = shlex.split(command(run))[1:]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = [*program(*words), "--out"]
    subprocess.run([*start, str(whole)], check=True, capture_output=True)
    metrics = Store(parts).folder(run) / "metrics.jsonl"
    killed = subprocess.Popen([*start, str(parts)], stdout=subprocess.DEVNULL)
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 10:
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert not Store(parts).result(run).done
    subprocess.run([*start, str(parts)], check=True, capture_output=True)
    assert metrics.read_text() == (Store(whole).folder(run) / "metrics.jsonl").read_text()


def test_attackers_of_a_run_may_be_more_than_f_of_a_neighborhood() -> None:
    run = Run(topology="ring", rule="ClippedGossip()", attackers=3, **SHORT)
    assert (run.vectors, run.bad, run.gap()) == (3, 1, "")
    assert repr(run.aggregator()) == "ClippedGossip(f=1) >> OwnVector()"
    # The limit is that of a server's rule, which sees gradients.
    lines = [{"round": 2, "early_heterogeneity": [99.0]}]
    assert not run.beyond_limit(lines)
    assert run.varied(topology=None, rule="Krum()").beyond_limit(lines)
    assert run.graph().startswith("graph: 8 nodes, 8 edges, connectivity 2, algebraic connecti")
    assert "its honest nodes: 5 nodes, 4 edges, connectivity 1" in run.graph()
    assert topology.read("ring", 8).subgraph(range(5)).components == 1
