"""What no rule can promise some runs, beside what they measured: a sentence for their table."""

from __future__ import annotations

from collections.abc import Iterable

from byzantium.learning import metrics
from byzantium.runs import Result, Run
from byzantium.tables.terms import short_name

MEANING = (
    "B² is the variance of the honest vectors of the first rounds over the square of their mean."
)


def heterogeneity(results: Iterable[Result]) -> str:
    r"""The limit on :math:`B^2` beside the measured one, in a sentence for each number of workers.

    The measured number is the median over the first rounds of a run; of several runs, the smallest
    and the largest are named, for each data set and partition. Attackers change the model, and so
    what honest workers send: where nobody attacks in some of the runs, only these count. Empty
    where no run has recorded it, as in results of earlier versions, or where f is 0.

    - `results`: results of runs.

    >>> from pathlib import Path
    >>> lines = [{"round": 30, "early_heterogeneity": [27.0, 28.0, 31.0]}]
    >>> result = Result(Run(attack="Mimic()"), Path("results"), "unfinished", lines, {})
    >>> print(heterogeneity([result]))  # doctest: +ELLIPSIS
    5 of 25 need B² < 3; yours is 28. B² is the variance of the honest vectors ...
    """
    from byzantium.guarantees import describe_limit

    measured: dict[tuple[int, int], dict[tuple[str, str], list[tuple[bool, float]]]] = {}
    for result in results:
        job, b2 = result.job, metrics.early_heterogeneity(result.metrics)
        if isinstance(job, Run) and b2 is not None and 0 < 2 * job.bad < job.vectors:
            groups = measured.setdefault((job.vectors, job.bad), {})
            calm = job.attack == "NoAttack()" or not job.attacker_count
            groups.setdefault((job.data, job.partition), []).append((calm, b2))
    sentences = []
    for (n, f), groups in sorted(measured.items()):
        several = [len(set(column)) > 1 for column in zip(*groups, strict=True)]
        named: dict[str, list[float]] = {}
        for (data, partition), values in groups.items():
            texts = data.partition(" sha256:")[0], short_name("partition", partition)
            name = ", ".join(text for text, shown in zip(texts, several, strict=True) if shown)
            calm = any(one for one, _ in values)
            named.setdefault(name, []).extend(b2 for one, b2 in values if one or not calm)
        sentences.append(f"{describe_limit(n, f, named)}.")
    return " ".join([*sentences, MEANING]) if sentences else ""
