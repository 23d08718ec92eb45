"""Gossip on graphs: known answers, independent references, and what attackers can do to a node."""

from __future__ import annotations

from typing import Any

import inputs
import members
import numpy as np
import pytest
import reference
import torch

import byzantium as bz
from byzantium.learning import Topology, topology
from byzantium.rules.gossip import OwnVector

GRAPHS = {
    "ring": topology.ring(9),
    "torus": topology.torus(12),
    "dumbbell": topology.dumbbell(10),
    "star": topology.star(7),
    "random": topology.erdos_renyi(11, 0.5, seed=1),
}
ROBUST = {
    "ClippedGossip": (bz.ClippedGossip, reference.clipped_gossip),
    "ClippedSumGossip": (bz.ClippedSumGossip, reference.clipped_sum_gossip),
    "TrimmedGossip": (bz.TrimmedGossip, reference.trimmed_gossip),
}
GOSSIP = [mix.mixing for mix in members.GOSSIP]


def mixed(mixing: bz.Mixing, graph: Topology, X: torch.Tensor) -> np.ndarray:
    """The mixed vectors; sizes are not checked, so that f may be too large for a node."""
    return mixing.on_graph(graph.weights)(X).double().numpy()


@pytest.mark.parametrize("name", GRAPHS)
def test_plain_gossip_is_a_product_with_the_weights_and_keeps_the_mean(name: str) -> None:
    graph = GRAPHS[name]
    X = inputs.gaussian(graph.n, 30).double()
    result = mixed(bz.Gossip(), graph, X)
    np.testing.assert_allclose(result, graph.weights @ X.numpy(), atol=1e-13)
    np.testing.assert_allclose(result.mean(axis=0), X.numpy().mean(axis=0), atol=1e-14)


@pytest.mark.parametrize("f", [0, 1, 2])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("robust", ROBUST)
def test_robust_gossip_agrees_with_the_reference_on_graphs(robust: str, name: str, f: int) -> None:
    mixing, slow = ROBUST[robust]
    graph = GRAPHS[name]
    X = inputs.heterogeneous(graph.n).double()
    expected = slow(X.numpy(), f, weights=graph.weights)  # type: ignore[operator]
    np.testing.assert_allclose(mixed(mixing(f=f), graph, X), expected, atol=1e-12)


@pytest.mark.parametrize("radius", [0.5, "second"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_other_radii_agree_with_the_reference_on_graphs(name: str, radius: Any) -> None:
    graph = GRAPHS[name]
    X = inputs.heterogeneous(graph.n).double()
    expected = reference.clipped_gossip(X.numpy(), 1, radius, graph.weights)
    result = mixed(bz.ClippedGossip(f=1, radius=radius), graph, X)
    np.testing.assert_allclose(result, expected, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_known_answers(name: str) -> None:
    graph = GRAPHS[name]
    X = inputs.gaussian(graph.n, 5).double()
    plain = mixed(bz.Gossip(), graph, X)
    # Radius 0: nobody moves. Radius infinite, or nobody to fear: plain gossip.
    assert (mixed(bz.ClippedGossip(f=1, radius=0), graph, X) == X.numpy()).all()
    for same in (
        bz.ClippedGossip(f=1, radius=float("inf")),
        bz.ClippedGossip(f=0),
        bz.ClippedSumGossip(f=0),
        bz.TrimmedGossip(f=0),
    ):
        np.testing.assert_allclose(mixed(same, graph, X), plain, atol=1e-14)
    complete = topology.complete(graph.n)
    one_step = mixed(bz.ClippedGossip(f=1, radius=float("inf")), complete, X)
    np.testing.assert_allclose(one_step - X.numpy().mean(axis=0), 0, atol=1e-13)


@pytest.mark.parametrize("robust", ROBUST)
def test_nobody_moves_where_f_neighbors_may_be_all_of_them(robust: str) -> None:
    X = inputs.gaussian(8, 5).double()
    assert (mixed(ROBUST[robust][0](f=2), topology.ring(8), X) == X.numpy()).all()
    # On a ring, one of two neighbors: CS+ stays, the others go to the nearer one at most.
    moved = mixed(ROBUST[robust][0](f=1), topology.ring(8), X) - X.numpy()
    assert (np.abs(moved).max() > 0) == (robust != "ClippedSumGossip")


@pytest.mark.parametrize("away", [10.0, 1e4, 1e12])
@pytest.mark.parametrize("robust", ROBUST)
def test_far_attackers_pull_a_node_no_farther_than_its_neighbors_allow(
    robust: str, away: float
) -> None:
    """Each attacker has the weight w, and moves a node by w times the largest honest distance."""
    graph = topology.complete(10)
    X = inputs.gaussian(10, 20).double()
    X[8:] = away * torch.ones(20)
    honest = X[:8].numpy()
    largest = max(reference.distance(x, y) for x in honest for y in honest)
    result = mixed(ROBUST[robust][0](f=2), graph, X)[:8]
    without = np.array([x + sum(y - x for y in honest) / 10 for x in honest])
    # ClippedGossip's radius is sqrt(sum w d^2 / b) <= sqrt(7 / 2) times the largest distance.
    radius = largest * np.sqrt(7 / 2)
    for own, other in zip(result, without, strict=True):
        assert reference.distance(own, other) <= 0.2 * radius + 0.7 * largest


def two_groups(size: int, links: int) -> Topology:
    """Two cliques; each node has so many neighbors in the other."""
    edges = [(g + i, g + j) for g in (0, size) for i in range(size) for j in range(i)]
    across = [(i, size + (i + k) % size) for i in range(size) for k in range(links)]
    return Topology(2 * size, edges + across)


def pull(robust: str, links: int, f: int, away: float) -> float:
    """How far a node at 1 moves toward a group at -1, if f attackers push from 1 + away.

    The neighbors of a node of `two_groups(10, links)`, its own group first.
    """
    X = torch.tensor([[1.0]] * 10 + [[-1.0]] * links + [[1.0 + away]] * f, dtype=torch.float64)
    n = len(X)
    mixing: bz.Mixing = ROBUST[robust][0](f=f).on_graph(np.full((n, n), 1 / n))
    return float(X[0] - mixing(X)[0]) * n


@pytest.mark.parametrize("robust", ROBUST)
def test_twice_the_byzantine_neighbors_against_the_algebraic_connectivity(robust: str) -> None:
    """Two groups are brought together if 4 f is smaller, and never if 2 f is not."""
    strengths = (0.0, 0.5, 1.0, 1.9, 2.1, 5.0, 100.0)
    for links in (1, 2, 3, 4, 5):
        connectivity = two_groups(10, links).algebraic_connectivity
        assert connectivity == pytest.approx(2 * links)
        for f in (1, 2, 3, 4, 5):
            least = min(pull(robust, links, f, away) for away in strengths)
            if 4 * f < connectivity - 0.5:
                assert least > 0.01
            elif 2 * f > connectivity - 0.5:  # attackers that do nothing are enough
                assert pull(robust, links, f, 0.0) == pytest.approx(0, abs=1e-12)


def test_cs_plus_and_trimming_break_down_at_a_quarter_of_the_algebraic_connectivity() -> None:
    # Two of four neighbors in the other group may be Byzantine: the connectivity is 8 = 4 f.
    assert pull("ClippedSumGossip", 4, 2, 0.0) == pytest.approx(0, abs=1e-12)
    assert pull("TrimmedGossip", 4, 2, 1.999) == pytest.approx(0.002)
    # These are nearer than the other group, which is trimmed instead of them.
    assert pull("TrimmedGossip", 3, 2, 1.999) == pytest.approx(2 - 2 * 1.999)


def test_a_rejected_neighbor_counts_as_byzantine_and_its_weight_stays_at_home() -> None:
    graph = topology.dumbbell(10)
    X = inputs.gaussian(10, 20).double()
    X[3] = torch.nan
    left = [k for k in range(10) if k != 3]
    weights = graph.weights[np.ix_(left, left)]
    expected = reference.trimmed_gossip(X[left].numpy(), 0, weights)
    np.testing.assert_allclose(mixed(bz.TrimmedGossip(f=1), graph, X), expected, atol=1e-12)


@pytest.mark.parametrize("mixing", GOSSIP, ids=repr)
def test_one_node_alone_computes_its_row_of_the_whole(mixing: bz.Mixing) -> None:
    """What a node gets is its own vector and those of its neighbors, in any order."""
    graph = topology.torus(30, rows=5)
    mixing = type(mixing)(**{**vars(mixing), "f": 1}) if hasattr(mixing, "f") else mixing
    X = inputs.heterogeneous(30).double()
    whole = mixed(mixing, graph, X)
    for node in (0, 7, 29):
        rows = [node, *reversed(graph.neighbors(node))]
        local = mixing.on_graph(graph.weights[np.ix_(rows, rows)]) >> OwnVector()
        np.testing.assert_allclose(local(X[rows]).numpy(), whole[node], atol=1e-12)


def test_a_graph_does_not_show_in_the_notation_and_must_fit_the_vectors() -> None:
    bound = bz.ClippedGossip(f=1).on_graph(topology.ring(5).weights)
    assert repr(bound) == "ClippedGossip(f=1)"
    assert bound == bz.ClippedGossip(f=1)
    with pytest.raises(bz.ByzantiumError, match="on a graph of 5 nodes, got 6 vectors"):
        bound(torch.ones(6, 2))
    with pytest.raises(bz.ByzantiumError, match="mixings before it must keep their number"):
        (bz.Bucketing(s=2) >> bound)(torch.ones(6, 2))
    chain = (bz.Gossip() >> bz.Gossip()).on_graph(topology.ring(5).weights)
    X = inputs.gaussian(5, 3).double()
    twice = topology.ring(5).weights @ topology.ring(5).weights @ X.numpy()
    np.testing.assert_allclose(chain(X).numpy(), twice, atol=1e-13)
