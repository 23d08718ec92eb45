"""Data sets: tensors to learn from and to test with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, Self

import torch
from torch import Tensor

from byzantium.core import ByzantiumError, one_line, register

P = ParamSpec("P")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set in memory: samples and targets to learn from, and others to test with.

    - `name`: what tables, reports and errors call it.
    - `train_x`: the samples to learn from, (N, ...) of float32; images are (N, channels, height,
      width).
    - `train_y`: their targets: class labels, (N,) of int64 from 0 to classes - 1; or, for
      regression, numbers, (N,) or (N, k) of float32.
    - `test_x`: the samples to test with, in the form of `train_x`.
    - `test_y`: their targets, in the form of `train_y`.
    - `classes`: how many classes there are; 0 for regression.
    - `digests`: the digest ("sha256:...") of each file that it was read from, by file name; empty
      where there is none.
    - `train_user`: to whom each sample to learn from belongs, (N,) whole numbers, for the partition
      `by_user`; None where that is not known.

    >>> x, y = torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> Dataset("mine", x, y, x[:3], y[:3], classes=3)
    <mine: 6 samples to learn from and 3 to test with, 1 x 2 x 2, 3 classes>
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    digests: Mapping[str, str] = field(default_factory=dict)
    train_user: Tensor | None = None

    def __post_init__(self) -> None:
        for x, y, use in (
            (self.train_x, self.train_y, "learn from"),
            (self.test_x, self.test_y, "test with"),
        ):
            if len(x) != len(y) or not len(y):
                raise ByzantiumError(
                    f"{self.name} needs samples to {use}, and a target for each, "
                    f"got {len(x)} samples and {len(y)} targets"
                )
            if not x.numel() or not y.numel():
                raise ByzantiumError(
                    f"{self.name} needs at least one number in each sample and target to {use}, "
                    f"got the shapes {tuple(x.shape)} and {tuple(y.shape)}"
                )
            if not x.is_floating_point() or not x.isfinite().all():
                raise ByzantiumError(f"{self.name} needs samples of finite numbers to {use}")
            self._check_targets(y, use)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ByzantiumError(
                f"{self.name} has samples of {_size(self.train_x)} to learn from and of "
                f"{_size(self.test_x)} to test with"
            )
        if self.train_user is not None and self.train_user.shape != self.train_y.shape[:1]:
            raise ByzantiumError(
                f"{self.name} needs a user for each of {len(self.train_y)} samples to learn from, "
                f"got {len(self.train_user)}"
            )

    def _check_targets(self, y: Tensor, use: str) -> None:
        if not self.classes:
            if not y.is_floating_point() or not y.isfinite().all():
                raise ByzantiumError(
                    f"{self.name} has no classes: its targets to {use} must be finite numbers of "
                    f"a floating-point dtype, got {y.dtype}"
                )
            return
        if y.ndim != 1 or y.is_floating_point():
            raise ByzantiumError(
                f"{self.name} needs a whole number for each sample as labels to {use}, got "
                f"{y.dtype} of shape {tuple(y.shape)}"
            )
        if int(y.min()) < 0 or int(y.max()) >= self.classes:
            raise ByzantiumError(
                f"{self.name} needs labels from 0 to {self.classes - 1}, "
                f"got {int(y.min())} to {int(y.max())} in the samples to {use}"
            )

    def __repr__(self) -> str:
        kinds = f"{self.classes} classes" if self.classes else "targets that are numbers"
        return (
            f"<{self.name}: {len(self.train_x)} samples to learn from and {len(self.test_x)} "
            f"to test with, {_size(self.train_x)}, {kinds}>"
        )

    @classmethod
    def of_torch(cls, name: str, train: Any, test: Any, classes: int | None = None) -> Self:
        """A data set made of two of torch's, or of any two sequences of pairs (sample, target).

        - `name`: what tables, reports and errors call it.
        - `train`, `test`: the pairs to learn from, and those to test with.
        - `classes`: how many classes there are; by default one more than the largest label, and 0
          (regression) where the targets are not whole numbers.

        >>> from torch.utils.data import TensorDataset
        >>> pairs = TensorDataset(torch.rand(8, 3), torch.arange(8) % 2)
        >>> Dataset.of_torch("pairs", pairs, pairs)
        <pairs: 8 samples to learn from and 8 to test with, 3, 2 classes>
        """
        (train_x, train_y), (test_x, test_y) = (_stacked(name, part) for part in (train, test))
        if classes is None:
            classes = count_classes(name, train_y, test_y)
        return cls(name, train_x, train_y, test_x, test_y, classes)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Dataset:
        """The same data set on a device, with floating-point numbers of a dtype."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

        before = {name: getattr(self, name) for name in ("train_x", "train_y", "test_x", "test_y")}
        after: dict[str, Any] = {name: moved(tensor) for name, tensor in before.items()}
        same = all(after[name] is before[name] for name in before)
        return self if same else replace(self, **after)


def count_classes(name: str, *targets: Tensor) -> int:
    """How many classes some targets are of: one more than the largest label; 0 for regression.

    More classes than samples are refused: a model has an output for each class, so that one label
    of a small file would decide how much memory is taken.

    >>> count_classes("mine", torch.tensor([0, 2, 1]), torch.tensor([2]))
    3
    """
    if targets[0].is_floating_point():
        return 0
    largest = max([0, *(int(y.max()) for y in targets if len(y))])
    samples = sum(map(len, targets))
    if largest >= max(samples, 1):
        raise ByzantiumError(
            f"{name} has a label {largest}, but only {samples} samples: number its classes from 0 "
            "without gaps; for regression, save the targets as floating-point numbers"
        )
    return 1 + largest


def _stacked(name: str, pairs: Any) -> tuple[Tensor, Tensor]:
    try:
        listed = [pairs[k] for k in range(len(pairs))]
        samples = torch.stack([torch.as_tensor(pair[0]).float() for pair in listed])
        targets = torch.stack([torch.as_tensor(pair[1]) for pair in listed])
    except (TypeError, IndexError, KeyError, ValueError, RuntimeError) as error:
        raise ByzantiumError(
            f"{name} needs a data set with a length, of pairs of a tensor and a target, all of one "
            f"shape: {one_line(str(error))}"
        ) from error
    return samples, targets.float() if targets.is_floating_point() else targets.long()


def _size(x: Tensor) -> str:
    return " x ".join(str(side) for side in x.shape[1:]) or "1 number"


def dataset(make: Callable[P, Dataset]) -> Callable[P, Dataset]:
    """Decorate a function that makes a data set, so that a plugin offers it by the function's name.

    The parameters of the function are those of the notation: `--data "ring(noise=1)"`.

    >>> @dataset
    ... def ring(noise: float = 0.1) -> Dataset:
    ...     angle = torch.arange(100.0)
    ...     x = torch.stack([angle.cos(), angle.sin()], dim=1) + noise * torch.randn(100, 2)
    ...     y = (angle.cos() > 0).long()
    ...     return Dataset("ring", x[:80], y[:80], x[80:], y[80:], classes=2)
    >>> ring(noise=1)
    <ring: 80 samples to learn from and 20 to test with, 2, 2 classes>
    """
    return register(make, "data set")
