"""The space of vectors in which replies are aggregated: arrays as they are, or products of factors.

Clients that train LoRA adapters send factors A and B. Their mean means nothing, because each client
has a basis of its own; what counts are the products B A. So these are aggregated, and the result is
cut to the rank that the factors of the model have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from byzantium.core import ArgumentTypeError, ByzantiumError, type_name
from byzantium.engines.federation.vectors import Arrays, measure, spread_ratio
from byzantium.engines.files.adapter_config import AdapterConfig
from byzantium.rules import Aggregator, Report
from byzantium.vectors import LowRank, Source, as_source
from byzantium.vectors.distances import squared_distances
from byzantium.vectors.points import SourcePoints

# With or without the name of the adapter: lora_A.weight, lora_A.default.weight.
FACTOR = re.compile(r"(.+\.)?lora_(embedding_)?([AB])((?:\.\w+)?)", re.DOTALL)


class ArraySpace:
    """All arrays as one long vector, relative to the model."""

    def check(self, rule: Aggregator, optimizer: bool) -> None:
        """Raise an error if a rule, or an optimizer, makes no sense here."""

    def vector(self, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """A row as the source takes it."""
        return row

    def source(
        self, rows: Sequence[Mapping[str, Any] | None], model: Arrays, names: Sequence[object]
    ) -> Source:
        """Rows, of which None could not be used, relative to the model."""
        return as_source(list(rows), base=model, strict=False, names=names)

    def finished(self, report: Report, model: Arrays) -> Report:
        """A report whose aggregate has the form of the model."""
        return report

    def measure(
        self, model: Arrays, rows: Sequence[Arrays], aggregate: Arrays
    ) -> tuple[list[float], float | None]:
        """The distance of each row to the aggregate, and the spread-to-mean ratio of all rows."""
        return measure(model, rows, aggregate)

    def distance(self, model: Arrays, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        """How far two rows are from each other."""
        source = as_source([model], base=model)
        change = source.trusted("the root", one) - source.trusted("the root", other)
        return float(torch.linalg.vector_norm(change, dtype=torch.float64))


class AdapterSpace(ArraySpace):
    """Products of the factors of LoRA adapters, and all other arrays as they are.

    - `pairs`: for each product the names of its factors B and A.
    - `scales`: for each product its scale, alpha / r.
    """

    def __init__(self, pairs: Mapping[str, tuple[str, str]], scales: Mapping[str, float]) -> None:
        self.pairs, self.scales = pairs, scales
        self.factors = {name for pair in pairs.values() for name in pair}

    def __repr__(self) -> str:
        return f"AdapterSpace({', '.join(self.pairs)})"

    def check(self, rule: Aggregator, optimizer: bool) -> None:
        first = next(iter(self.factors))
        what = f"the model has factors of adapters, such as {first!r}, which are aggregated as"
        if rule.knows_weights != "always":
            raise ByzantiumError(
                f"{what} products, and {rule!r} needs their coordinates: take a rule by weights, "
                "such as GeometricMedian()"
            )
        if type(rule.stages[-1]).remember is not Aggregator.remember:  # type: ignore[attr-defined]
            raise ByzantiumError(
                f"{what} products, and {rule.stages[-1]!r} holds a center from round to round, "
                "which products have in other bases: take Clipping(radius) >> Mean(), for example"
            )
        if optimizer:
            raise ByzantiumError(
                f"{what} products, and factors of the aggregate have another basis than those of "
                "the model, so that no optimizer= can move from one to the other; omit it"
            )

    def vector(self, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        if row is None:
            return None
        vector = {name: array for name, array in row.items() if name not in self.factors}
        for module, (b, a) in self.pairs.items():
            # Those of convolutions have further dimensions.
            left, right = (row[name].reshape(row[name].shape[0], -1) for name in (b, a))
            vector[module] = left, right, self.scales[module]
        return vector

    def source(
        self, rows: Sequence[Mapping[str, Any] | None], model: Arrays, names: Sequence[object] = ()
    ) -> LowRank:
        vectors = [self.vector(row) for row in rows]
        return LowRank(vectors, base=self.vector(model), names=names or None)

    def finished(self, report: Report, model: Arrays) -> Report:
        update, arrays = report.aggregate, {}
        for name, array in model.items():
            if name not in self.factors:
                arrays[name] = update[name].numpy().reshape(array.shape).astype(array.dtype)
        for module, (b_name, a_name) in self.pairs.items():
            cut = update.cut(module, len(model[a_name]))
            root = self.scales[module] ** 0.5
            for name, factor in ((b_name, cut.b), (a_name, cut.a)):
                array = model[name]
                # A rank beyond the size of the matrix has no use.
                padded = np.zeros((array.shape[0], array.size // max(1, array.shape[0])))
                padded[: len(factor), : factor.shape[1]] = (factor / root).numpy()
                arrays[name] = padded.reshape(array.shape).astype(array.dtype)
        return replace(report, aggregate={name: arrays[name] for name in model})

    def measure(
        self, model: Arrays, rows: Sequence[Arrays], aggregate: Arrays
    ) -> tuple[list[float], float | None]:
        n, source = len(rows), self.source([*rows, aggregate], model)
        gram = SourcePoints(source, anchors={"origin": None}).gram
        squares = squared_distances(gram)
        origin = gram - gram[:, [-1]] - gram[-1] + gram[-1, -1]  # about the model
        mean_squared = max(0.0, float(origin[:n, :n].mean()))
        spread = float(squares[:n, :n].mean()) / 2
        return np.sqrt(squares[:n, n]).tolist(), spread_ratio(spread, mean_squared)

    def distance(self, model: Arrays, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        super().distance(model, one, other)  # raises an error if they do not fit the model
        points = SourcePoints(self.source([one, other], model))
        return float(np.sqrt(squared_distances(points.gram)[0, 1])) * points.unit


def space_of(model: Arrays, adapters: bool | Mapping[str, Any]) -> ArraySpace:
    """The space for a model: that of products if it has pairs of factors.

    - `adapters`: False where factors are arrays like all others; or the configuration of the
      adapters, which has their scales.

    >>> space_of({"q.lora_A.weight": np.ones((1, 3)), "q.lora_B.weight": np.ones((2, 1))}, True)
    AdapterSpace(q)
    """
    if not isinstance(adapters, bool | Mapping):
        raise ArgumentTypeError(
            f"adapters must be True, False or the configuration of adapters, a mapping, got "
            f"{type_name(adapters)}"
        )
    if adapters is False:
        return ArraySpace()
    pairs: dict[str, dict[str, str]] = {}
    for name, array in model.items():
        stem = name.removesuffix(".weight")
        match = FACTOR.fullmatch(stem)
        if match is not None and array.dtype.kind == "f" and array.ndim >= 2 and array.size:
            pairs.setdefault(f"{(match[1] or '').removesuffix('.')}{match[4]}", {})[match[3]] = name
    complete = {
        module: (pair["B"], pair["A"])
        for module, pair in pairs.items()
        if len(pair) == 2 and _fit(model[pair["B"]], model[pair["A"]])
    }
    if not complete:
        return ArraySpace()
    for name in model:
        if "lora_magnitude" in name:
            raise ByzantiumError(
                f"{name!r} belongs to a DoRA adapter, whose update is no product of factors; only "
                "plain LoRA can be aggregated (or factors as any arrays, adapters=False)"
            )
    config = None if adapters is True else AdapterConfig(dict(adapters))
    if config is not None:
        config.check(strange=False)
    return AdapterSpace(
        complete, {module: 1.0 if config is None else config.scale(module) for module in complete}
    )


def _fit(b: Any, a: Any) -> bool:
    return b.size // b.shape[0] == a.shape[0] and b.dtype == a.dtype
