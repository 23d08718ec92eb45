"""Why the mean is not enough, why robust rules are not either, and what bucketing does.

25 workers, 5 of them attackers. The honest ones hold different data: random vectors of +-1, as in
the paper's demonstration. Prints the distance of each rule to the honest mean, with and without
bucketing, and the claims of the paper with measured values. (For a picture of three groups of
workers in the plane, and the results of rules: `python scripts/pictures.py mimic`.)
"""

from __future__ import annotations

import math

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import byzantium as bz

N, Q, D, DRAWS = 25, 5, 1000, 100
RULES: dict[str, bz.Aggregator] = {
    "mean": bz.Mean(),
    "Krum": bz.Krum(f=Q),
    "median": bz.Median(),
    "geo. median": bz.GeometricMedian(),
    "trimmed": bz.TrimmedMean(f=Q),
}


def sample(attack: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """All vectors, and the mean of the honest ones."""
    honest = torch.randint(2, (N - Q, D), generator=generator).float() * 2 - 1
    mean = honest.mean(dim=0)
    vector = {"mimic": honest[0], "far away": torch.full((D,), 1e6)}[attack]
    return torch.cat([honest, vector.expand(Q, D)]), mean


def error(rule: bz.Aggregator, attack: str) -> tuple[float, float]:
    """Mean distance to the honest mean, in units of sqrt(d), and mean effective workers."""
    generator = torch.Generator().manual_seed(0)
    errors, workers = [], []
    for _ in range(DRAWS):
        X, mean = sample(attack, generator)
        report = rule.explain(X, generator)
        errors.append(float((report.aggregate - mean).norm()) / math.sqrt(D))
        workers.append(report.effective_workers)
    return sum(errors) / DRAWS, sum(workers) / DRAWS


def comparison() -> Table:
    table = Table(title=f"Distance to the mean of {N - Q} honest workers (of one worker: 0.97)")
    table.add_column("rule")
    for attack in ("mimic", "far away"):
        table.add_column(attack, justify="right")
        table.add_column(f"{attack}, s=2", justify="right")
    table.add_column("heard", justify="right")
    table.add_column("heard, s=2", justify="right")
    for name, rule in RULES.items():
        distances, workers = [], []
        for attack in ("mimic", "far away"):
            for pipeline in (rule, bz.Bucketing(s=2) >> rule):
                distance, effective = error(pipeline, attack)
                distances.append(f"{distance:.2f}" if distance < 100 else f"{distance:.0e}")
                if attack == "mimic":
                    workers.append(f"{effective:.1f}")
        table.add_row(name, *distances, *workers)
    return table


def claims() -> Table:
    """The claims of the paper, and measured values."""
    table = Table(title="The paper | ours")
    for column in ("claim", "paper", "measured"):
        table.add_column(column)
    signs = torch.tensor([[(-1.0) ** i] for i in range(2 * 12 + 1)])
    robust = ", ".join(
        f"{rule(signs).item():+.0f}" for rule in (bz.Krum(f=0), bz.Median(), bz.GeometricMedian())
    )
    table.add_row("25 workers hold ±1: Krum, median, geometric median", "±1", robust)
    table.add_row("… and the mean", "≈ 0", f"{bz.Mean()(signs).item():.2f}")
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(24, 50, generator=generator)
    for s in (2, 3):
        spread = [float(bz.Bucketing(s)(X, generator).var(dim=0).sum()) for _ in range(2000)]
        ratio = sum(spread) / len(spread) / float(X.var(dim=0).sum())
        table.add_row(f"Lemma 1: spread after bucketing, s={s}", f"1/{s}", f"{ratio:.3f}")
    nu = 0.1
    delta, delta_max = 3 / 60, 1 / 2 - nu
    pipeline = bz.Bucketing(math.floor(delta_max / delta + 1e-9)) >> bz.GeometricMedian()
    honest = torch.randint(2, (57, 50), generator=generator).float() * 2 - 1
    rho2 = float(honest.var(dim=0).sum()) * 2
    for name, vector in (("mimic", honest[0]), ("far away", torch.full((50,), 1e6))):
        X = torch.cat([honest, vector.expand(3, 50)])
        squares = [
            float((pipeline(X, generator) - honest.mean(dim=0)).square().sum()) for _ in range(500)
        ]
        table.add_row(
            f"Theorem 1: squared error / rho², {pipeline!r}, 3 of 60, {name}",
            f"≤ {delta / (nu * delta_max):.2f}",
            f"{sum(squares) / 500 / rho2:.3f}",
        )
    return table


if __name__ == "__main__":
    console = Console()
    console.print(comparison())
    console.print(claims())
