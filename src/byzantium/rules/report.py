"""The report of an aggregation: how much each worker counted, who was rejected, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from byzantium.vectors.source import Source


@dataclass(frozen=True)
class Report:
    """The report of one aggregation, which `rule.explain` returns: how much each worker counted.

    - `aggregate`: the result, the same as a call of the rule returns.
    - `weights`: (n,), how much each worker counted. For most rules the aggregate is the weighted
      sum of the workers' vectors; for a rule by coordinate the weight of a worker is the share of
      the averaged values that it supplied. Zero for rejected workers; NaN where the rule does not
      know its weights (`MatrixRule`).
    - `remainder`: the weight of points that are no workers, the origin or the center of a clipping:
      `weights.sum() + remainder` is 1.
    - `rejected`: the workers whose vectors were not finite, absurdly large or unreadable.
    - `mixing`: (m, n), how the m vectors that the rule saw were mixed from those of the n workers.
    - `reasons`: for each rejected worker, the reason.
    - `notes`: further sentences for the user.
    - `vouched`: (n,), the shares of the weight that the operator vouches for; None if all workers
      count the same.

    >>> from byzantium import Krum
    >>> updates = torch.tensor([[1.0], [1.1], [0.9], [1.0], [torch.nan], [50.0]])
    >>> report = Krum(f=1).explain(updates)
    >>> report.aggregate, report.weights.tolist(), report.rejected
    (tensor([1.]), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], (4,))
    """

    aggregate: Any
    weights: Tensor
    remainder: float
    rejected: tuple[int, ...]
    mixing: Tensor
    reasons: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    vouched: Tensor | None = None

    @property
    def effective_workers(self) -> float:
        r"""How many workers effectively took part, :math:`(\sum_i w_i)^2 / \sum_i w_i^2`.

        It is 1 when one worker decides alone, and n when all n count the same.

        >>> from byzantium import Krum, Mean
        >>> updates = torch.tensor([[1.0], [1.1], [0.9], [1.2], [50.0]])
        >>> [round(rule.explain(updates).effective_workers, 2) for rule in (Mean(), Krum(f=1))]
        [5.0, 1.0]
        """
        return float(self.weights.sum() ** 2 / self.weights.square().sum())

    @property
    def heard(self) -> float:
        r"""The share of the weight that was heard, :math:`\sum_i \min(w_i, p_i)`.

        :math:`p_i` is the share of worker i that the operator vouches for, or 1/n. It is 1 where
        all count as much as they should, as in the mean.

        >>> from byzantium import Krum, Mean
        >>> updates = torch.tensor([[1.0], [1.1], [0.9], [1.2], [50.0]])
        >>> Mean().explain(updates, weights=[5, 2, 1, 1, 1]).heard, Krum(f=1).explain(updates).heard
        (1.0, 0.2)
        """
        shares = self.weights.new_full((len(self.weights),), 1 / len(self.weights))
        shares = shares if self.vouched is None else self.vouched
        return round(float(torch.minimum(self.weights, shares).clamp(min=0).sum()), 12)


def rejections(reasons: Mapping[int, str], source: Source, most: int = 10) -> str:
    """Which workers were rejected and why; workers with the same reason are listed together."""
    sentences = []
    for reason in dict.fromkeys(reasons.values()):
        workers = sorted(worker for worker, other in reasons.items() if other == reason)
        more = f" and {len(workers) - most} more" if len(workers) > most else ""
        listed = ", ".join(map(source.row_name, workers[:most])) + more
        sentences.append(f"worker{'s' * (len(workers) > 1)} {listed} ({reason})")
    return ", ".join(sentences)
