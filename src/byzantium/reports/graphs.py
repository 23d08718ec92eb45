"""The graph of a training without a server, as the page draws it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from byzantium.learning.topology import Topology, read
from byzantium.runs import Metrics, Result, Run
from byzantium.runs.plugins import missing

# Graphs with more edges are described, and not drawn.
MOST_EDGES = 2000
# How far apart nodes are drawn, and how often the drawing of a graph is improved.
APART = 2.0
ITERATIONS = 200


def picture(result: Result) -> dict[str, Any] | None:
    """The graph of a run in words, and where its nodes and edges are drawn; None with a server.

    "kept" has for each edge how much of it honest nodes kept, relative to plain gossip, the
    mean over the rounds; None for edges among attackers, and where it was not recorded. "plain" has
    the mean weight of each node in plain gossip.
    """
    run = result.job
    if not isinstance(run, Run) or run.topology is None:
        return None
    graph = read(run.topology, run.n)
    honest = run.n - run.attacker_count
    plain = plain_weights(run, graph)[:honest].mean(axis=0).tolist()
    entries = {"text": run.graph(), "plain": plain}
    if len(graph.edges) > MOST_EDGES:
        return {**entries, "places": [], "edges": [], "kept": []}
    recorded = [edge for edge in graph.edges if edge[0] < honest]
    kept = dict(zip(recorded, mean_kept(result.metrics, len(recorded)), strict=False))
    return {
        **entries,
        "places": places(run.topology, run.n),
        "edges": graph.edges,
        "kept": [kept.get(edge) for edge in graph.edges],
    }


def plain_weights(run: Run, graph: Topology) -> Any:
    """(n, n): the weights of a node's neighbors before its rule looks at their vectors."""
    if missing(run.plugin) or any(stage.uses_graph for stage in run.aggregator().stages):
        return graph.weights
    return graph.equal_weights


def mean_kept(lines: Sequence[Metrics], edges: int) -> list[float]:
    """The mean over the rounds of how much of each edge was kept; empty if it was not recorded.

    - `edges`: how many edges there are; lines with another number are left out.
    """
    rounds, before, total = 0, 0, [0.0] * edges
    for line in lines:
        length, before = line["round"] - before, line["round"]
        if len(line.get("kept", ())) == edges:
            rounds += length
            total = [sum_ + length * kept for sum_, kept in zip(total, line["kept"], strict=True)]
    return [value / rounds for value in total] if rounds else []


@functools.lru_cache(maxsize=64)
def places(topology: str, n: int) -> list[list[float]]:
    """Where each node is drawn, from -1 to 1: on a circle if most pairs share an edge.

    Otherwise neighbors attract each other and all others repel, from the circle on, which is a ring
    already.
    """
    import networkx

    edges = read(topology, n).edges
    layout = networkx.circular_layout(range(n))
    if 4 * len(edges) < n * (n - 1):
        graph = networkx.Graph(list(edges))
        layout = networkx.spring_layout(graph, k=APART, pos=layout, iterations=ITERATIONS, seed=0)
    return [[round(float(x), 3) for x in layout[node]] for node in range(n)]
