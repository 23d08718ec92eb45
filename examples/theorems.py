"""The theorems of the bucketing paper, measured: workers that minimize quadratics, and attackers.

1. The lower bound (Theorem 3): two worlds that no rule can distinguish, and an error in one.
2. The plateau (Theorem 2): gradient descent stays away from the optimum in proportion to
   delta zeta^2, where zeta^2 is how much the honest gradients differ.
3. Momentum (Theorem 2): the noise of the workers' gradients, sigma^2, adds to it, and momentum
   removes this part.
4. Overparameterization (Theorem 4): where zeta = 0 at the optimum the gradient goes to zero.

Algorithm 2 is that of `byzantium.learning`: workers have a `Momentum`, and `Server` has the rule
and takes the step. Prints the numbers, and with --out draws them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import byzantium as bz
from byzantium.learning import Momentum, Server

N, MU = 25, 0.5
# Rounds of trainings with noise; results are means over the second half.
ROUNDS = 1000
RULES = (
    "Mean()",
    "Median()",
    "GeometricMedian()",
    "TrimmedMean()",
    "Krum()",
    "AgnosticClipping()",
    "CenteredClipping(radius=1)",
    "Bucketing(s=2) >> TrimmedMean()",
)


@dataclass(frozen=True)
class Quadratics:
    """Honest worker i minimizes sum_k curvature_ik (x_k - optimum_ik)^2 / 2, with noise sigma.

    - `curvature`, `optimum`: (h, d).
    - `sigma2`: the variance of a worker's gradient, over all coordinates.
    """

    curvature: Tensor
    optimum: Tensor
    sigma2: float = 0.0

    def gradients(self, x: Tensor) -> Tensor:
        """The gradients of the workers, (h, d), without noise."""
        return self.curvature * (x - self.optimum)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of the mean of the honest workers' functions, (d,)."""
        return self.gradients(x).mean(dim=0)

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The gradients of the workers, (h, d), with noise."""
        noise = torch.randn(self.optimum.shape, generator=generator, dtype=torch.float64)
        return self.gradients(x) + noise * (self.sigma2 / self.optimum.shape[1]) ** 0.5

    def heterogeneity(self, x: Tensor) -> float:
        """The mean of ||grad f_i - grad f||^2: the paper's zeta^2 + B^2 ||grad f||^2."""
        return float((self.gradients(x) - self.gradient(x)).square().sum(dim=1).mean())


class Point(nn.Module):
    """A model whose parameters are the coordinates of a point."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.clone())


def descend(
    world: Quadratics,
    f: int,
    rule: bz.Aggregator,
    attack: bz.Attack,
    *,
    rounds: int = 60,
    rate: float = 0.3,
    momentum: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Algorithm 2 with f attackers: where it ends, and ||grad f||^2 before each round."""
    d = world.optimum.shape[1]
    model = Point(torch.ones(d, dtype=torch.float64))
    server = Server(model, rule, torch.optim.SGD(model.parameters(), lr=rate))
    workers = Momentum(momentum)  # one for all workers: the formula is the same in every row
    noise, chance = (torch.Generator().manual_seed(2 * seed + k) for k in (0, 1))
    norms = []
    for _ in range(rounds):
        x = model.x.detach()
        norms.append(world.gradient(x).square().sum())
        honest = workers.update(world.sample(x, noise))
        sent = honest
        if f:
            bad = attack(honest, q=f, rule=rule, epoch=1, generator=chance)
            sent = torch.cat([honest, bad])
        server.step(sent, chance)
    return model.x.detach(), torch.stack(norms)


# -- 1. two worlds --------------------------------------------------------------------------------


def two_worlds(rule: bz.Aggregator, f: int, zeta2: float = 1.0) -> tuple[float, float]:
    """The larger ||grad f||^2, and the larger f - min f, of the two worlds of the paper's proof.

    delta n workers minimize mu x^2 / 2 - zeta x / sqrt(delta), the others mu x^2 / 2. In the first
    world all are honest, in the second the delta n are Byzantine. The algorithm sees no difference.
    """
    delta = f / N
    slope = (zeta2 / delta) ** 0.5
    optimum = torch.zeros(N, 1, dtype=torch.float64)
    optimum[:f] = slope / MU
    first = Quadratics(torch.full_like(optimum, MU), optimum)
    assert first.heterogeneity(optimum[0]) <= zeta2
    x, _ = descend(first, 0, rule, bz.NoAttack(), rate=1.0)
    worlds = (first, Quadratics(first.curvature[f:], first.optimum[f:]))
    squares = [float(world.gradient(x).square().sum()) for world in worlds]
    return max(squares), max(squares) / (2 * MU)


# -- 2. the plateau -------------------------------------------------------------------------------


def plateau(rule: bz.Aggregator, f: int, zeta2: float) -> float:
    """The last ||grad f||^2; f honest workers hold rare data, and attackers copy another one."""
    h = N - f
    share = f / h
    optimum = torch.zeros(h, 2, dtype=torch.float64)
    optimum[:f, 0] = (zeta2 / (share * (1 - share))) ** 0.5
    world = Quadratics(torch.ones_like(optimum), optimum)
    return float(descend(world, f, rule, bz.Mimic(target=h - 1))[1][-1])


# -- 3. momentum ----------------------------------------------------------------------------------


def noisy(rule: bz.Aggregator, f: int, sigma2: float, momentum: float) -> float:
    """The mean of ||grad f||^2 over the last rounds; all minimize the same function, with noise."""
    optimum = torch.zeros(N - f, 10, dtype=torch.float64)
    world = Quadratics(torch.ones_like(optimum), optimum, sigma2)
    # The paper's step for a momentum: beta = 1 - 8 L eta.
    _, norms = descend(
        world,
        f,
        rule,
        bz.ALittleIsEnough(z=1.5),
        rounds=ROUNDS,
        rate=(1 - momentum) / 8,
        momentum=momentum,
    )
    return float(norms[ROUNDS // 2 :].mean())


# -- 4. overparameterization ----------------------------------------------------------------------


def shared_optimum(
    rule: bz.Aggregator, f: int, spread: float, zeta2: float = 0.0, rounds: int = 100
) -> Tensor:
    """||grad f||^2 over the rounds; the curvatures differ by `spread`, the optima by zeta2."""
    h = N - f
    generator = torch.Generator().manual_seed(0)
    signs = torch.arange(h)[:, None].expand(h, 4) % 2 * 2.0 - 1
    apart = torch.randn(h, 4, generator=generator, dtype=torch.float64)
    apart = (apart - apart.mean(dim=0)) / apart.std(dim=0, correction=0)
    world = Quadratics((1 + spread * signs).double(), apart * (zeta2 / 4) ** 0.5)
    return descend(world, f, rule, bz.ALittleIsEnough(z=1.5), rounds=rounds)[1]


# -- tables and figure ----------------------------------------------------------------------------


def main(out: Path | None) -> None:
    console = Console()
    counts, zetas = (1, 2, 4, 6), (0.5, 1.0, 2.0, 4.0)
    worlds = {rule: [two_worlds(bz.parse_rule(rule, f=f), f)[0] for f in counts] for rule in RULES}
    table = Table("||grad f||^2, the worse of two worlds", *(f"f = {f}" for f in counts))
    table.add_row("no algorithm below delta zeta^2 / 4", *(f"{f / N / 4:.3f}" for f in counts))
    for rule, values in worlds.items():
        table.add_row(rule, *(f"{value:.3f}" for value in values))
    console.print(table)

    steady = "TrimmedMean()"
    plateaus = {(f, z): plateau(bz.parse_rule(steady, f=f), f, z) for f in counts for z in zetas}
    table = Table(f"{steady}: plateau / zeta^2", *(f"f = {f}" for f in counts))
    table.add_row("f / (n - 2f)", *(f"{f / (N - 2 * f):.4f}" for f in counts))
    for z in zetas:
        table.add_row(f"zeta^2 = {z:g}", *(f"{plateaus[f, z] / z:.4f}" for f in counts))
    console.print(table)

    betas, sigmas = (0.0, 0.5, 0.9), (0.0, 1.0, 2.0, 4.0)
    noise = {b: [noisy(bz.parse_rule(steady, f=5), 5, s, b) for s in sigmas] for b in betas}
    table = Table(f"{steady}: plateau", *(f"sigma^2 = {s:g}" for s in sigmas))
    for b in betas:
        table.add_row(f"momentum {b:g}", *(f"{value:.5f}" for value in noise[b]))
    console.print(table)

    curves = {
        "ζ² = 0, B² = 0.25": shared_optimum(bz.parse_rule(steady, f=5), 5, 0.5),
        "ζ² = 0.01, B² = 0.25": shared_optimum(bz.parse_rule(steady, f=5), 5, 0.5, 0.01),
        "ζ² = 1, B² = 0.25": shared_optimum(bz.parse_rule(steady, f=5), 5, 0.5, 1.0),
    }
    for name, norms in curves.items():
        console.print(f"{name}: ||grad f||^2 is {norms[-1]:.2g} after {len(norms)} rounds")
    if out is not None:
        draw(out, counts, worlds, plateaus, sigmas, noise, curves)
        console.print(f"the figure: {out}")


def draw(
    out: Path,
    counts: Sequence[int],
    worlds: dict[str, list[float]],
    plateaus: dict[tuple[int, float], float],
    sigmas: Sequence[float],
    noise: dict[float, list[float]],
    curves: dict[str, Tensor],
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.9), layout="constrained")
    axes = figure.subplots(1, 4)
    deltas = [f / N for f in counts]
    axes[0].fill_between([0, *deltas], [0, *(d / 4 for d in deltas)], color="#DDDDDD")
    same_curve: dict[tuple[float, ...], list[str]] = {}
    for rule, values in worlds.items():
        same_curve.setdefault(tuple(round(v, 6) for v in values), []).append(
            rule.removesuffix("()")
        )
    for curve, rules in same_curve.items():
        axes[0].plot(deltas, curve, marker="o", markersize=3, label="\n".join(rules))
    axes[0].set(title="the worse of two worlds", xlabel="δ", ylabel="‖∇f‖² (ζ = 1)")
    axes[0].set_ylim(0, 2 * max(map(max, worlds.values())))  # space for the legend
    axes[0].legend(fontsize=6, title="grey: impossible", title_fontsize=6)
    for f in counts:
        zetas = sorted(z for g, z in plateaus if g == f)
        axes[1].plot(
            [f / (N - 2 * f) * z for z in zetas],
            [plateaus[f, z] for z in zetas],
            marker="o",
            markersize=3,
            label=f"δ = {f / N:g}",
        )
    axes[1].set(title="a plateau linear in δζ²", xlabel="δζ² / (1 - 2δ)", ylabel="‖∇f‖²")
    axes[1].legend(fontsize=6)
    for beta, values in noise.items():
        axes[2].plot(sigmas, values, marker="o", markersize=3, label=f"momentum {beta:g}")
    axes[2].set(title="momentum removes the noise", xlabel="σ²", ylabel="‖∇f‖² (ζ = 0)")
    axes[2].legend(fontsize=6)
    for name, norms in curves.items():
        axes[3].semilogy(norms, label=name)
    axes[3].set(title="a shared optimum is found", xlabel="round", ylabel="‖∇f‖²")
    axes[3].legend(fontsize=6)
    for axis in axes:
        axis.tick_params(labelsize=6)
        axis.title.set_fontsize(8)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="where to draw the figure")
    main(parser.parse_args().out)
