"""The backend of a matrix: the module whose passes over vectors run on its device.

On the CPU these are the compiled passes; plain torch serves all other devices, and the CPU where
llvmlite cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from torch import Tensor

from byzantium._kernels import torch_passes
from byzantium._kernels.conjugate_gradients import Minimum
from byzantium._kernels.torch_passes import Array, Rows
from byzantium.core import fork_safe


class Passes(Protocol):
    """The passes over vectors that every backend defines; `torch_passes` documents each of them."""

    def mixed(self, matrix: Tensor, rows: Rows, mixing: Array) -> Tensor: ...

    def squared_norms(self, matrix: Tensor, rows: Rows) -> Array: ...

    def gram(
        self, matrix: Tensor, rows: Rows, anchors: Sequence[Tensor | None], reference: int
    ) -> Array: ...

    def combine(
        self,
        matrix: Tensor,
        rows: Rows,
        anchors: Sequence[Tensor | None],
        weights: Array,
        out: Tensor,
    ) -> None: ...

    def central_mean(
        self,
        matrix: Tensor,
        rows: Rows,
        mixing: Array | None,
        count: int,
        nearest: bool,
        out: Tensor,
        shares: Array | None = None,
    ) -> float: ...

    def moments(self, matrix: Tensor, rows: Rows, mean: Tensor, deviation: Tensor) -> None: ...

    def weighted_mean(
        self,
        matrix: Tensor,
        rows: Rows,
        mixing: Array | None,
        weights: Array,
        kept: float,
        nearest: bool,
        out: Tensor,
        shares: Array | None = None,
    ) -> float: ...

    def newton(self, gram: Array, counts: Array, near: float) -> Minimum | None: ...


def backend(matrix: Tensor) -> Passes:
    """The passes over a matrix, by its device."""
    return cpu_backend() if matrix.device.type == "cpu" else torch_passes


@cache  # while the interpreter exits, nothing can be imported any more
@fork_safe
def cpu_backend() -> Passes:
    """The passes for the CPU."""
    from byzantium._kernels.cpu_passes import passes  # imports llvmlite: only when it is needed

    return passes
