"""Two halves of the classes, and what the two cliques of a dumbbell learn: for cliques.toml."""

from __future__ import annotations

import copy

import numpy as np
from torch import Tensor
from torch.nn.utils import vector_to_parameters

import byzantium as bz
from byzantium.learning import Loop
from byzantium.learning.evaluation import accuracy


@bz.partition
def halves(labels, workers, rng):  # type: ignore[no-untyped-def]
    """The first half of the workers share the first half of the classes, at random."""
    middle = (labels.max() + 1) / 2
    sides = [rng.permutation(np.flatnonzero(side)) for side in (labels < middle, labels >= middle)]
    counts = -(-workers // 2), workers // 2
    return [part for k, side in zip(counts, sides, strict=True) for part in np.array_split(side, k)]


def accuracy_of_mean(training: Loop, models: Tensor) -> float:
    """The test accuracy of the mean of some models."""
    model = copy.deepcopy(training.model)
    vector_to_parameters(models.mean(dim=0), model.parameters())
    return accuracy(model, training.data.test_x, training.data.test_y)


def _metric(name: str, title: str, part: slice) -> bz.Metric:
    return bz.Metric(
        name,
        f"test accuracy of the mean model of {title} (%)",
        lambda at: accuracy_of_mean(at.training, at.training.models[part]),
        scale="percent",
        record="cliques",
    )


everybody = _metric("everybody", "all nodes", slice(None))
clique_1 = _metric("clique_1", "clique 1", slice(10))
clique_2 = _metric("clique_2", "clique 2", slice(10, 20))
