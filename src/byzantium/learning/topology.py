"""Topologies: graphs whose nodes are the workers of a training without a server."""

from __future__ import annotations

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from byzantium.core import (
    ByzantiumError,
    Positive,
    Registry,
    Seed,
    cached_property,
    files,
    notation,
    one_line,
)

Array = NDArray[np.float64]
Edge = tuple[int, int]

# The most bytes of a file of edges, and characters of the name of a graph with its edges.
LARGEST_FILE = 1 << 20
# How often a random graph is drawn until one fits.
DRAWS = 1000
# The most nodes of a graph: all of them are in one process, and a complete graph has n² / 2 edges.
MOST_NODES = 1000


@dataclass(frozen=True)
class Topology:
    r"""A graph whose nodes are workers: two that share an edge send each other their models.

    - `n`: how many nodes there are; they are the numbers from 0 to n - 1.
    - `edges`: pairs of nodes, each pair once.

    In plain gossip, neighbors count by their Metropolis weights,

    .. math:: w_{ij} = \frac{1}{1 + \max(d_i, d_j)}, \qquad w_{ii} = 1 - \sum_{j \ne i} w_{ij}

    with the degrees :math:`d_i`. They are symmetric, so that plain gossip keeps the mean.

    >>> ring = Topology(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> ring.neighbors(0), ring.weights[0].round(3).tolist()
    ([1, 3], [0.333, 0.333, 0.0, 0.333])
    >>> round(ring.algebraic_connectivity, 3), ring.connectivity
    (2.0, 2)
    """

    n: int
    edges: tuple[Edge, ...]

    def __init__(self, n: int, edges: Iterable[Sequence[int]]) -> None:
        pairs = {_edge(pair, n) for pair in edges}
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "edges", tuple(sorted(pairs)))

    @cached_property
    def adjacency(self) -> NDArray[np.bool_]:
        """(n, n): whether two nodes share an edge."""
        matrix = np.zeros((self.n, self.n), dtype=bool)
        for i, j in self.edges:
            matrix[i, j] = matrix[j, i] = True
        return matrix

    @property
    def degrees(self) -> NDArray[np.int64]:
        """(n,): how many neighbors each node has."""
        degrees: NDArray[np.int64] = self.adjacency.sum(axis=1)
        return degrees

    def neighbors(self, node: int) -> list[int]:
        """The nodes that share an edge with one, in order."""
        nodes: list[int] = np.flatnonzero(self.adjacency[node]).tolist()
        return nodes

    @cached_property
    def weights(self) -> Array:
        """(n, n): the Metropolis weights; symmetric, and rows and columns sum to one."""
        degrees = self.degrees
        larger = np.maximum(degrees[:, None], degrees)
        weights: Array = self.adjacency / (1.0 + larger)
        return weights + np.diag(1 - weights.sum(axis=1))

    @property
    def equal_weights(self) -> Array:
        """(n, n): a node and its neighbors count alike; rows sum to one."""
        together: Array = self.adjacency + np.eye(self.n)
        return together / together.sum(axis=1, keepdims=True)

    @property
    def laplacian(self) -> Array:
        """(n, n): degrees on the diagonal, -1 where two nodes share an edge."""
        laplacian: Array = np.diag(self.degrees.astype(np.float64)) - self.adjacency
        return laplacian

    # -- how well connected it is ----------------------------------------------------------------

    @property
    def components(self) -> int:
        """How many parts it has that no edge connects; 1 if it is connected."""
        left, parts = set(range(self.n)), 0
        while left:
            parts += 1
            left -= self.reached_from(min(left))
        return parts

    def reached_from(self, start: int) -> set[int]:
        """The nodes to which paths lead from one, itself included."""
        reached, queue = {start}, deque([start])
        while queue:
            new = set(self.neighbors(queue.popleft())) - reached
            reached |= new
            queue.extend(new)
        return reached

    @cached_property
    def algebraic_connectivity(self) -> float:
        """The second smallest eigenvalue of the Laplacian; 0 where it is not connected."""
        return 0.0 if self.n < 2 else max(0.0, float(np.linalg.eigvalsh(self.laplacian)[1]))

    @cached_property
    def fiedler_vector(self) -> Array:
        """(n,): the eigenvector of the algebraic connectivity, of length one.

        Its signs cut the graph where it is weakest. The entry of largest magnitude is positive.
        Symmetric graphs, such as complete ones, have several such vectors: it is one of them.
        """
        if self.n < 2:
            return np.zeros(self.n)
        vector: Array = np.linalg.eigh(self.laplacian)[1][:, 1]
        return vector * np.sign(vector[abs(vector).argmax()])

    @cached_property
    def spectral_gap(self) -> float:
        """1 - (the second largest magnitude of the eigenvalues of the weights).

        Plain gossip multiplies the distance to the mean by at most 1 minus this number.
        """
        return 1.0 if self.n < 2 else 1 - float(np.sort(abs(np.linalg.eigvalsh(self.weights)))[-2])

    @cached_property
    def connectivity(self) -> int:
        """The fewest nodes without which the others are not connected; n - 1 if all share edges."""
        import networkx  # torch depends on it, too

        graph = networkx.Graph(list(self.edges))
        graph.add_nodes_from(range(self.n))
        return int(networkx.node_connectivity(graph)) if self.n > 1 else 0

    def subgraph(self, nodes: Sequence[int]) -> Topology:
        """The graph of some nodes and the edges among them; they are numbered in this order."""
        place = {node: k for k, node in enumerate(nodes)}
        among = [(place[i], place[j]) for i, j in self.edges if i in place and j in place]
        return Topology(len(place), among)

    def describe(self) -> str:
        """How many nodes and edges it has, and how well they are connected.

        >>> Topology(4, [(0, 1), (1, 2), (2, 3), (3, 0)]).describe()
        '4 nodes, 4 edges, connectivity 2, algebraic connectivity 2, spectral gap 0.667'
        """
        parts = "" if self.components == 1 else f" in {self.components} parts"
        return (
            f"{self.n} nodes{parts}, {len(self.edges)} edges, connectivity {self.connectivity}, "
            f"algebraic connectivity {self.algebraic_connectivity:.3g}, spectral gap "
            f"{self.spectral_gap:.3g}"
        )


def _edge(pair: Sequence[int], n: int) -> Edge:
    try:
        i, j = sorted(int(end) for end in pair)
    except (TypeError, ValueError):
        raise ByzantiumError(f"an edge is a pair of nodes such as (0, 1), got {pair!r}") from None
    if not 0 <= i < j < n:
        raise ByzantiumError(
            f"an edge joins two different nodes from 0 to {n - 1}, got {i} and {j}"
        )
    return i, j


# -- families -------------------------------------------------------------------------------------


def complete(n: int) -> Topology:
    """Every node shares an edge with every other.

    >>> len(complete(4).edges), complete(4).connectivity
    (6, 3)
    """
    return Topology(n, [(i, j) for i in range(n) for j in range(i)])


def ring(n: int) -> Topology:
    """Each node shares an edge with the one before it and the one after it.

    >>> ring(5).neighbors(0)
    [1, 4]
    """
    return Topology(n, [(i, (i + 1) % n) for i in range(n) if i != (i + 1) % n])


def torus(n: int, rows: Positive | None = None) -> Topology:
    """A grid whose opposite sides are joined: each node has four neighbors.

    The nodes are numbered row by row. Without `rows` it is as near to a square as n allows.

    >>> torus(9).neighbors(4)
    [1, 3, 5, 7]
    """
    if rows is None:
        rows = next((k for k in range(math.isqrt(n), 0, -1) if n % k == 0), 1)
    columns = n // rows
    if rows * columns != n or rows < 2 or columns < 2:
        raise ByzantiumError(
            f"a torus needs n = rows x columns, both at least 2, got n={n}, {rows=}"
        )
    steps = [(k, k - k % columns + (k + 1) % columns) for k in range(n)]
    steps += [(k, (k + columns) % n) for k in range(n)]
    return Topology(n, steps)


def star(n: int) -> Topology:
    """Node 0 shares an edge with every other node, and these with nobody else.

    >>> star(4).degrees.tolist()
    [3, 1, 1, 1]
    """
    return Topology(n, [(0, k) for k in range(1, n)])


def dumbbell(n: int, bridges: Positive = 1) -> Topology:
    """Two cliques of n/2 nodes that few edges join: a graph that is easily cut.

    The first half of the nodes is one clique. Bridge k joins the k-th node from its end and the
    k-th of the other.

    He, Karimireddy, Jaggi: Byzantine-Robust Decentralized Learning via ClippedGossip, 2022.

    >>> dumbbell(6).edges
    ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5))
    """
    half = -(-n // 2)
    if not bridges <= n - half:
        raise ByzantiumError(
            f"a dumbbell of {n} nodes needs from 1 to {n - half} bridges, got {bridges=}"
        )
    cliques = [(i, j) for i in range(n) for j in range(i) if (i < half) == (j < half)]
    return Topology(n, cliques + [(half - 1 - k, half + k) for k in range(bridges)])


def erdos_renyi(n: int, p: Annotated[float, Ge(0), Le(1)], seed: Seed = 0) -> Topology:
    """Each pair of nodes shares an edge with probability p: the first connected graph of a draw.

    >>> erdos_renyi(10, 0.5).components
    1
    """
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(n) for j in range(i)], dtype=np.int64).reshape(-1, 2)
    for _ in range(DRAWS):
        drawn = pairs[rng.random(len(pairs)) < p]
        alone = n > 1 and not np.bincount(drawn.ravel(), minlength=n).all()  # a node has no edge
        if not alone and (graph := Topology(n, drawn.tolist())).components == 1:
            return graph
    raise ByzantiumError(
        f"none of {DRAWS} random graphs of {n} nodes with p={p:g} is connected: try a larger p; "
        f"most are with p = 2 ln(n) / n = {min(1, 2 * math.log(max(n, 2)) / n):.2g}"
    )


def random_regular(n: int, degree: Positive, seed: Seed = 0) -> Topology:
    """Each node has the same number of neighbors, drawn at random: the first connected graph.

    >>> graph = random_regular(10, 3)
    >>> set(graph.degrees.tolist()), graph.components
    ({3}, 1)
    """
    if degree >= n or n * degree % 2:
        raise ByzantiumError(
            f"a regular graph of {n} nodes needs degree < n, and n times degree to be even, "
            f"got {degree=}"
        )
    rng = np.random.default_rng(seed)
    few = min(degree, n - 1 - degree)  # a dense graph has all edges except those of a sparse one
    for _ in range(DRAWS):
        graph = _paired(n, few, rng)
        if graph is not None and few < degree:
            graph = Topology(n, np.argwhere(np.triu(~graph.adjacency, 1)).tolist())
        if graph is not None and graph.components == 1:
            return graph
    raise ByzantiumError(f"none of {DRAWS} random graphs of {n} nodes with {degree=} is connected")


def _paired(n: int, degree: int, rng: np.random.Generator) -> Topology | None:
    """One draw: ends of edges are paired; pairs that are no new edges are paired again."""
    edges: set[Edge] = set()
    ends = np.arange(n).repeat(degree)
    while len(ends):
        pairs = rng.permutation(ends).reshape(-1, 2)
        left: list[int] = []
        for i, j in np.sort(pairs, axis=1).tolist():
            if i == j or (i, j) in edges:
                left += [i, j]
            else:
                edges.add((i, j))
        if len(left) == len(ends):
            return None
        ends = np.array(left, dtype=np.int64)
    return Topology(n, edges)


def edges(n: int, pairs: str) -> Topology:
    """The edges of a text such as "0-1,2 1-2": node 0 shares edges with 1 and 2, and 1 with 2.

    >>> edges(3, "0-1,2 1-2") == complete(3)
    True
    """
    ends = []
    for entry in pairs.split():
        node, _, others = entry.partition("-")
        for other in others.split(","):
            if not (_is_number(node) and _is_number(other)):
                raise ByzantiumError(
                    f"edges are written as '0-1,2 1-2', where node 0 shares edges with 1 and 2, "
                    f"got {one_line(entry, 40)!r}"
                )
            ends.append((int(node), int(other)))
    return Topology(n, ends)


def _is_number(text: str) -> bool:
    """Whether a text is the number of a node, which is never long."""
    return text.isdecimal() and text.isascii() and len(text) < 10


TOPOLOGIES: Registry[Callable[..., Topology]] = Registry(
    "topology",
    {
        one.__name__: one
        for one in (complete, ring, torus, star, dumbbell, erdos_renyi, random_regular, edges)
    },
)


# -- from text ------------------------------------------------------------------------------------


def spelled(text: str) -> str:
    """The usual spelling of a topology; a file of edges becomes `edges(...)`.

    >>> spelled("torus(rows=2)"), spelled("ring()")
    ('torus(rows=2)', 'ring')
    """
    text = read_file(text) if is_file(text) else text
    try:
        return notation.spelled(text, TOPOLOGIES, leading=1, longest=LARGEST_FILE)[0]
    except ByzantiumError as error:
        raise ByzantiumError(
            f"a topology is one of {', '.join(TOPOLOGIES)}, or a file of edges: {error}"
        ) from error


@functools.lru_cache(maxsize=64)
def read(text: str, n: int) -> Topology:
    """The topology that a text names, for n workers; raises an error unless it is connected.

    >>> read("ring", 3).edges
    ((0, 1), (0, 2), (1, 2))
    """
    if n > MOST_NODES:
        raise ByzantiumError(f"a graph has at most {MOST_NODES:,} nodes, got n={n}")
    _, build = notation.spelled(text, TOPOLOGIES, leading=1, longest=LARGEST_FILE)
    topology: Topology = build(n)
    if topology.components > 1:
        apart = min(set(range(n)) - topology.reached_from(0))
        raise ByzantiumError(
            f"a training needs a connected graph, but in {one_line(text, 60)} no path leads from "
            f"node 0 to node {apart} of n={n}"
        )
    return topology


def is_file(text: str) -> bool:
    """Whether a text is a path of a file of edges: it has a dot or a slash, and no parentheses."""
    return "(" not in text and any(mark in text for mark in "./\\")


def read_file(path: str) -> str:
    """The notation of the edges in a file: a line for each edge, with the numbers of two nodes.

    Numbers are separated by spaces, commas or semicolons; what follows # is a comment.
    """
    try:
        lines = files.read(Path(path), LARGEST_FILE).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ByzantiumError(
            f"the file of edges {path} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ByzantiumError(f"the file of edges {path} is no text") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        ends = line.partition("#")[0].replace(",", " ").replace(";", " ").split()
        if len(ends) not in (0, 2) or not all(map(_is_number, ends)):
            raise ByzantiumError(
                f"line {number} of {path} must name two nodes, such as '0 1', got "
                f"{one_line(line, 40)!r}"
            )
        pair = sorted(map(int, ends))
        if pair and pair[0] == pair[1]:
            raise ByzantiumError(f"line {number} of {path} joins node {pair[0]} to itself")
        pairs += [pair] if pair else []
    return f'edges("{written(Topology(1 + max(map(max, pairs), default=0), pairs))}")'


def written(topology: Topology) -> str:
    """The edges of a topology, as `edges` reads them.

    >>> written(ring(4))
    '0-1,3 1-2 2-3'
    """
    after = itertools.groupby(topology.edges, key=lambda edge: edge[0])
    return " ".join(f"{i}-{','.join(str(j) for _, j in edges)}" for i, edges in after)
