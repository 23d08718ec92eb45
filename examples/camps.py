"""Why the mean is not enough, and why robust rules are not either.

25 workers hold about +1 or about -1, and the right answer is their mean, about 0. Robust rules
answer with the larger group. Then one worker attacks, and the mean is lost. Behind buckets of two,
robust rules tolerate the attacker and use both groups; buckets are random: the mean of 1000 draws.
"""

import torch

import byzantium as bz

RULES: dict[str, bz.Aggregator] = {
    "mean": bz.Mean(),
    "Krum": bz.Krum(f=1),
    "median": bz.Median(),
    "geometric median": bz.GeometricMedian(),
}
honest = torch.tensor([[(-1) ** i + 0.001 * i] for i in range(25)], dtype=torch.float64)
attacked = honest.clone()
attacked[1] = 1e6

print(f"{'':16} {'all honest':>12} {'one sends 1e6':>14} {'behind buckets':>15}")
for name, rule in RULES.items():
    generator = torch.Generator().manual_seed(0)
    pipeline = bz.Bucketing(s=2) >> rule
    mean = torch.stack([pipeline(attacked, generator) for _ in range(1000)]).mean()
    print(f"{name:16} {rule(honest).item():12.2f} {rule(attacked).item():14.2f} {mean:15.2f}")
