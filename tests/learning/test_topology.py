"""Graphs of workers: their families, weights and connectivity, and those in texts and files."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from byzantium.core import ByzantiumError
from byzantium.learning import Topology, topology

FAMILIES = [
    topology.complete(7),
    topology.ring(8),
    topology.torus(12),
    topology.star(6),
    topology.dumbbell(8),
    topology.dumbbell(9, bridges=2),
    topology.erdos_renyi(10, 0.4),
    topology.random_regular(10, 4),
    topology.random_regular(11, 8),
]


def connected_without(graph: Topology, removed: tuple[int, ...]) -> bool:
    """Whether the nodes that are left reach each other, by powers of the adjacency matrix."""
    left = [k for k in range(graph.n) if k not in removed]
    steps = np.eye(len(left)) + graph.adjacency[np.ix_(left, left)]
    return bool((np.linalg.matrix_power(steps, len(left)) > 0).all())


@pytest.mark.parametrize("graph", FAMILIES, ids=lambda graph: graph.describe())
def test_metropolis_weights_are_symmetric_and_sum_to_one(graph: Topology) -> None:
    degrees = [sum(node in edge for edge in graph.edges) for node in range(graph.n)]
    assert degrees == graph.degrees.tolist()
    for i in range(graph.n):
        others = 0.0
        for j in range(graph.n):
            if i != j:
                shared = (min(i, j), max(i, j)) in graph.edges
                expected = 1 / (1 + max(degrees[i], degrees[j])) if shared else 0.0
                assert graph.weights[i, j] == pytest.approx(expected)
                others += expected
        assert graph.weights[i, i] == pytest.approx(1 - others)
    assert np.array_equal(graph.weights, graph.weights.T)


@pytest.mark.parametrize("graph", FAMILIES, ids=lambda graph: graph.describe())
def test_connectivity_is_the_smallest_cut_that_a_search_of_all_cuts_finds(graph: Topology) -> None:
    cuts = (
        size
        for size in range(graph.n - 1)
        for removed in combinations(range(graph.n), size)
        if not connected_without(graph, removed)
    )
    assert graph.connectivity == next(cuts, graph.n - 1)
    assert graph.components == 1


def test_algebraic_connectivity_has_its_known_values() -> None:
    known = {
        topology.complete(9): 9,
        topology.star(9): 1,
        topology.ring(9): 2 - 2 * math.cos(2 * math.pi / 9),
        topology.torus(20, rows=4): 2 - 2 * math.cos(2 * math.pi / 5),
    }
    for graph, value in known.items():
        assert graph.algebraic_connectivity == pytest.approx(value)
    apart = Topology(5, [(0, 1), (2, 3), (3, 4)])
    assert (apart.components, apart.connectivity) == (2, 0)
    assert apart.algebraic_connectivity == pytest.approx(0, abs=1e-12)


def test_fiedler_vector_is_an_eigenvector_that_cuts_the_dumbbell_at_its_bridge() -> None:
    graph = topology.dumbbell(10)
    vector = graph.fiedler_vector
    np.testing.assert_allclose(
        graph.laplacian @ vector, graph.algebraic_connectivity * vector, atol=1e-12
    )
    assert len(set(np.sign(vector[:5]))) == len(set(np.sign(vector[5:]))) == 1
    assert vector[0] * vector[9] < 0


def test_plain_gossip_contracts_as_fast_as_the_spectral_gap_says() -> None:
    graph = topology.torus(12)
    values = np.random.default_rng(0).normal(size=graph.n)
    away = values - values.mean()
    after = graph.weights @ away
    assert np.linalg.norm(after) <= (1 - graph.spectral_gap) * np.linalg.norm(away) + 1e-12
    assert topology.complete(6).spectral_gap == pytest.approx(1)


@pytest.mark.parametrize("graph", FAMILIES, ids=lambda graph: graph.describe())
def test_weights_of_rules_that_know_no_graph_count_a_node_and_its_neighbors_alike(
    graph: Topology,
) -> None:
    for i in range(graph.n):
        for j in range(graph.n):
            together = i == j or j in graph.neighbors(i)
            expected = 1 / (1 + len(graph.neighbors(i))) if together else 0.0
            assert graph.equal_weights[i, j] == pytest.approx(expected)


def test_erdos_renyi_draws_each_pair_once_in_order() -> None:
    """Graphs of earlier versions: a number for each pair, until all nodes are connected."""
    for p, seed in ((0.15, 0), (0.3, 5)):
        rng = np.random.default_rng(seed)
        while True:
            pairs = [(i, j) for i in range(12) for j in range(i) if rng.random() < p]
            if Topology(12, pairs).components == 1:
                break
        assert topology.erdos_renyi(12, p, seed) == Topology(12, pairs)


def test_random_graphs_follow_from_their_seed() -> None:
    families: list[Callable[[int], Topology]] = [
        lambda seed: topology.erdos_renyi(12, 0.4, seed),
        lambda seed: topology.random_regular(12, 3, seed),
    ]
    for family in families:
        assert family(1) == family(1) != family(2)
    shares = [len(topology.erdos_renyi(30, 0.3, seed).edges) / 435 for seed in range(20)]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.02)  # 8,700 pairs: 4 standard errors


@pytest.mark.parametrize(("n", "degree"), [(25, 22), (8, 7), (9, 4), (50, 3), (2, 1)])
def test_random_regular_graphs_are_regular(n: int, degree: int) -> None:
    graph = topology.random_regular(n, degree, seed=2)
    assert set(graph.degrees.tolist()) == {degree}
    assert graph.components == 1


def test_subgraph_has_the_edges_among_its_nodes() -> None:
    graph = topology.ring(6).subgraph([0, 1, 2, 5])
    assert graph.edges == ((0, 1), (0, 3), (1, 2))
    assert topology.star(5).subgraph([1, 2, 3]).components == 3


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("ring", topology.ring(6)),
        ("torus(rows=2)", topology.torus(6, 2)),
        ("erdos_renyi(0.5, seed=3)", topology.erdos_renyi(6, 0.5, 3)),
        ("edges('0-1,2 2-3,4,5')", Topology(6, [(0, 1), (0, 2), (2, 3), (2, 4), (2, 5)])),
    ],
)
def test_texts_name_topologies_and_are_spelled_in_one_way(text: str, same: Topology) -> None:
    assert topology.read(text, 6) == topology.read(topology.spelled(text), 6) == same
    assert topology.spelled(topology.spelled(text)) == topology.spelled(text)


def test_a_file_of_edges_becomes_their_text(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("# three nodes\n0 1\n1, 2   # the last\n\n2;0\n")
    assert topology.spelled(str(path)) == "edges(pairs='0-1,2 1-2')"
    large = topology.random_regular(200, 10)
    path.write_text("".join(f"{i} {j}\n" for i, j in large.edges))
    assert topology.read(topology.spelled(str(path)), 200) == large
    path.write_text("0 1\n1 two\n")
    with pytest.raises(ByzantiumError, match=r"line 2 of .* must name two nodes"):
        topology.spelled(str(path))
    path.write_bytes(b"\xef\xbb\xbf0 1\r\n1\t2\r\n1 0\r\n")  # as some editors do
    assert topology.spelled(str(path)) == "edges(pairs='0-1 1-2')"
    path.write_text("0 1\n2 2\n")
    with pytest.raises(ByzantiumError, match=r"^line 2 of .* joins node 2 to itself"):
        topology.spelled(str(path))
    path.write_text("0 1\n2 " + "1" * 5000)
    with pytest.raises(ByzantiumError, match=r"^line 2 of .* must name two nodes"):
        topology.spelled(str(path))
    path.write_bytes(b"1" * 2_000_000)
    with pytest.raises(ByzantiumError, match="has more than 1048576 bytes"):
        topology.spelled(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ByzantiumError, match="is no text"):
        topology.spelled(str(path))
    with pytest.raises(ByzantiumError, match="cannot be read: No such file"):
        topology.spelled(str(tmp_path / "missing.txt"))


@pytest.mark.parametrize(
    ("text", "n", "error"),
    [
        ("ringg", 5, "did you mean 'ring'"),
        ("torus", 7, "a torus needs n = rows x columns"),
        ("dumbbell(4)", 7, "needs from 1 to 3 bridges, got bridges=4"),
        (
            "erdos_renyi(0.01)",
            20,
            "none of 1000 random graphs of 20 nodes with p=0.01",
        ),
        ("erdos_renyi(2)", 20, "needs 0 <= p <= 1"),
        ("random_regular(3)", 5, "n times degree to be even"),
        ("random_regular(1)", 6, "none of 1000 random graphs"),
        ("edges('0-9')", 5, "two different nodes from 0 to 4, got 0 and 9"),
        ("edges('1-1')", 5, "two different nodes from 0 to 4, got 1 and 1"),
        ("edges('0-1;2')", 5, "edges are written as"),
        (f"edges('0-{'1' * 5000}')", 5, "edges are written as"),
        ("edges('0-1 2-3')", 4, "no path leads from node 0 to node 2 of n=4"),
        ("edges('')", 4, "a training needs a connected graph"),
        ("edges('0-1 1-2')", 4, "no path leads from node 0 to node 3"),
        ("complete", 1001, "a graph has at most 1,000 nodes, got n=1001"),
    ],
)
def test_errors_say_what_is_wrong(text: str, n: int, error: str) -> None:
    with pytest.raises(ByzantiumError, match=error):
        topology.read(topology.spelled(text), n)
