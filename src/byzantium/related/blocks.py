"""Rules that look at some of the columns, and remember the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from byzantium.related.memory import Remembering
from byzantium.rules import GeometricMedian, MatrixRule
from byzantium.rules.kinds import whole_rows
from byzantium.vectors import Geometry
from byzantium.vectors.distances import Array


@dataclass(frozen=True, repr=False)
class BlockGeometricMedian(Remembering, MatrixRule):
    r"""The geometric median of the columns that matter most; the others wait in a memory (BGMD).

    .. math:: y_i = x_i + m, \quad \mathrm{out}_K = \operatorname*{argmin}_z
        \sum_i \|z - y_{i,K}\|, \quad m \leftarrow \frac{1}{n} \sum_i y_i \text{ outside } K

    K are the :math:`\lfloor \mathrm{share} \cdot d \rfloor` columns (at least one) with the largest
    norms :math:`\|(y_{1,k}, \ldots, y_{n,k})\|`; outside K the result is zero, inside K the memory
    m is. So nothing that honest workers send is lost, and the median is that of fewer columns. With
    `share=1` the rule is the geometric median.

    Nothing is promised with a smaller share: attackers choose the columns by large entries, and
    what waits is a plain mean, which is added to all vectors afterwards.

    - `share`: the share of the columns, above 0 and at most 1.

    Acharya, Hashemi, Jain, Sanghavi, Dhillon, Topcu: Robust Training in High Dimensions via Block
    Coordinate Geometric Median Descent, AISTATS 2022.

    >>> rule = BlockGeometricMedian(share=0.5)
    >>> updates = torch.tensor([[1.0, 0.4], [1.0, 0.4], [9.0, 0.4]])
    >>> rule(updates), rule.state_dict()
    (tensor([1., 0.]), {'memory': tensor([0.0000, 0.4000])})
    """

    share: Annotated[float, Gt(0), Le(1)]
    delta_max: ClassVar[float] = 0
    remembered: ClassVar[tuple[str, ...]] = ("memory",)

    def _chosen(self, rows: Tensor) -> Tensor:
        """Add the memory to the rows, and return the indices of the columns of the block."""
        if self.memory:
            rows += self.memory["memory"].to(rows)
        count = max(1, int(self.share * rows.shape[1]))
        norms = rows.double().square().sum(dim=0)
        return norms.argsort(descending=True, stable=True)[:count].sort().values

    def aggregate(self, updates: Tensor) -> Tensor:
        block = self._chosen(updates)
        result = torch.zeros_like(updates[0])
        result[block] = GeometricMedian()(updates[:, block])
        return result

    def advance(self, geometry: Geometry, aggregate: Tensor, weights: Array | None) -> None:
        rows = whole_rows(self, geometry)
        block = self._chosen(rows)
        memory = rows.mean(dim=0)
        memory[block] = 0
        self._keep(memory=memory)
