"""The weights of a model with a merged update of adapters, computed block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from byzantium.core import ByzantiumError
from byzantium.engines.files.adapter_config import PREFIX
from byzantium.engines.files.adapters import Adapters
from byzantium.engines.files.input_files import printable, quote
from byzantium.engines.files.safetensors import DTYPES, Dtype
from byzantium.vectors import LowRankUpdate

# How many numbers are computed at a time.
BLOCK = 1 << 22
DTYPE_OF = {dtype.torch: dtype for dtype in DTYPES.values()}


class AdaptedModel:
    """The weights of a model, to which products are added and in which arrays are replaced.

    - `update`: the merged update.
    - `source`: the adapters that it was made of, with the model.
    - `cuts`: factors of the products that were cut.
    """

    def __init__(
        self,
        update: LowRankUpdate | Mapping[str, Tensor],
        source: Adapters,
        cuts: Mapping[str, tuple[Tensor, Tensor]],
    ) -> None:
        assert source.model is not None
        self.update, self.source, self.cuts, self.model = update, source, cuts, source.model
        #: Where in the model each product is added, and which arrays replace what is there.
        self.products: dict[str, str] = {}
        self.arrays: dict[str, str] = {}
        #: The dtype and shape of each array of the result.
        self.layout: dict[str, tuple[Dtype, tuple[int, ...]]] = {
            place: (entry.dtype, entry.shape)
            for place, entry in self.model.checkpoint.entries.items()
        }
        for name, entry in source.pattern.items():
            place = self.model.find(name)
            if entry.factored:
                if place is None:
                    raise ByzantiumError(
                        f"the base has no weights for {quote(name)}; name the model that the "
                        "adapters were trained for"
                    )
                self.products[place] = name
                continue
            if place is None:
                place = name.removeprefix(PREFIX)
                self.layout[place] = DTYPE_OF[entry.dtype], entry.shape
            if self.layout[place][1] != entry.shape:
                raise ByzantiumError(
                    f"the base has the shape {self.layout[place][1]} at {quote(place)}, and the "
                    f"adapters have {entry.shape}"
                )
            self.arrays[place] = name
        self.turned = {place: self._is_turned(place) for place in self.products}

    def _is_turned(self, place: str) -> bool:
        """Whether the model stores a matrix transposed; an error if the shapes do not fit.

        Factors are those of a linear layer, (out, in). Embeddings store (in, out), and so does
        GPT-2, whose configuration says fan_in_fan_out.
        """
        name = self.products[place]
        out, columns = self.source.pattern[name].shape
        fan = bool(self.source.config.settings.get("fan_in_fan_out"))
        embedding = self.source.factors[name][0][0].endswith("_B")
        stored = self._flat(place)
        if stored == (columns, out) and (embedding or fan):
            return True
        if stored == (out, columns) and not embedding:
            return False
        raise ByzantiumError(
            f"the base has the shape {self.layout[place][1]} at {quote(place)}, and the update is "
            f"of the shape {(out, columns)}"
        )

    def _flat(self, place: str) -> tuple[int, int]:
        """The shape of an array as a matrix; those of convolutions have further dimensions."""
        shape = self.layout[place][1]
        return (shape[0] if shape else 1), math.prod(shape[1:])

    def blocks(self, place: str) -> Iterator[Tensor]:
        """The numbers of an array of the result, some rows at a time."""
        dtype = self.layout[place][0]
        rows, columns = self._flat(place)
        change = self._change(place) if place in self.products else None
        array = self.update[self.arrays[place]] if place in self.arrays else None
        step = max(1, BLOCK // max(1, columns))
        for first in range(0, rows, step):
            last = min(first + step, rows)
            if array is not None:
                old = array.reshape(rows, columns)[first:last]
            else:
                entry = self.model.checkpoint.entries[place]
                raw = entry.raw(first * columns, last * columns)
                if change is None:
                    yield torch.from_numpy(raw)
                    continue
                values = torch.from_numpy(entry.dtype.values(raw).astype("float64"))
                if not values.isfinite().all():
                    raise ByzantiumError(
                        f"the base holds numbers that are not finite at {quote(place)}"
                    )
                old = values.reshape(-1, columns)
            if isinstance(change, tuple):
                old = old.double() + change[0][first:last] @ change[1]
            elif change is not None:
                old = old.double() + change[first:last]
            yield old.to(dtype.torch)

    def _change(self, place: str) -> Tensor | tuple[Tensor, Tensor]:
        """What is added to a matrix: whole, or as two factors."""
        name, update = self.products[place], self.update
        if not isinstance(update, LowRankUpdate):
            return update[name].T if self.turned[place] else update[name]
        b, a = self.cuts[name] if name in self.cuts else update.factors(name)
        return (a.T, b.T) if self.turned[place] else (b, a)

    def check_unchanged(self) -> None:
        """Raise an error if a file of the model was changed since it was opened."""
        if changed := self.model.checkpoint.changed():
            raise ByzantiumError(
                f"{printable(changed)} was changed while it was read; nothing is written"
            )


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of the numbers of a tensor."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
