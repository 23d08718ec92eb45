"""How different the vectors of honest workers are, measured by a short training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

from torch import nn

from byzantium.core import ByzantiumError
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition
from byzantium.learning.clocks import SYNCHRONOUS
from byzantium.learning.losses import Loss
from byzantium.learning.method import WorkerMethod
from byzantium.learning.randomness import Randomness
from byzantium.learning.server import MakeOptimizer
from byzantium.learning.settings import Settings
from byzantium.learning.simulation import Simulation
from byzantium.rules import Mean

# More rounds than are trained, so that the model is not evaluated.
NEVER = 2**31


def measured_heterogeneity(
    settings: Settings,
    data: Dataset,
    model: nn.Module,
    partition: Partition | None = None,
    optimizer: MakeOptimizer | None = None,
    *,
    loss: Loss | None = None,
    randomness: Callable[[Settings], Randomness] = Randomness,
    worker: WorkerMethod | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    r"""The median :math:`B^2` of what workers send in the first rounds of an honest training.

    .. math:: B^2 = \frac{1}{n} \sum_{i=1}^{n} \|x_i - \bar x\|^2 / \|\bar x\|^2

    The vectors are what rules would be given, momentum included. The server takes their mean. The
    worker with the fewest samples passes over them once; there are at least 25 rounds. Compare it
    with `guarantees.largest_heterogeneity`.

    - `settings`: how many workers there are, their batches, momentum and so on. Nobody attacks, and
      how many rounds are named does not matter, nor does the clock.
    - `model`: what is trained; a copy is, so that the model stays as it is.
    - `partition`: how the samples are dealt to the workers; by default `iid`.
    - `optimizer`, `loss`, `randomness`, `worker`: as those of `Simulation`.
    - `watch`: called with how many rounds are done, and how many there are in all.

    >>> from byzantium.data import by_label, iid, load
    >>> from byzantium.guarantees import most_attackers
    >>> from byzantium.learning import Settings, mlp
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> data, model, settings = load("digits"), mlp((1, 8, 8)), Settings(n=25, momentum=0.9)
    >>> similar = measured_heterogeneity(settings, data, model, iid())
    >>> sorted_by_label = measured_heterogeneity(settings, data, model, by_label())
    >>> similar < 3 < 23 < sorted_by_label
    True
    >>> most_attackers(25, similar) >= 5, most_attackers(25, sorted_by_label)
    (True, 0)
    """
    changes: dict[str, Any] = {"attackers": 0, "rounds": NEVER, "evaluate_every": NEVER}
    changes |= {"record": (), "clock": SYNCHRONOUS, "topology": None}
    honest, others = replace(settings, **changes), (optimizer, loss, randomness, worker)
    training = Simulation(honest, data, copy.deepcopy(model), Mean(), None, partition, *others)
    values, total = [], training.early_rounds
    for record in islice(training, total):
        if training.history.status == "diverged":
            raise ByzantiumError(
                f"the honest training {training.history.outcome}, so nothing can be measured; try "
                "a smaller learning rate"
            )
        watch(record["round"], total)
        values.append(record["early_heterogeneity"])
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        raise ByzantiumError("workers send nothing but zeros, so nothing can be measured")
    return median(finite)
