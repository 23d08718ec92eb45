"""Many workers: their samples are gathered in blocks, and groups need no matrix of all pairs."""

from __future__ import annotations

import memory
import pytest
import torch

import byzantium as bz
from byzantium.data import by_label, load
from byzantium.learning import Settings, Simulation, loop, mlp

DIGITS = load("digits")


@pytest.mark.parametrize("attack", [bz.LabelFlip(), bz.Adaptive("loss", budget=10)], ids=repr)
@pytest.mark.parametrize("steps", [1, 2])
def test_blocks_of_workers_give_what_all_at_once_do(
    attack: bz.Attack, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks of three workers, and so few samples that new orders are drawn in between."""
    models = []
    for size in (loop.SAMPLE_BYTES, 3 * steps * 40 * 64 * 4 + 1):
        monkeypatch.setattr(loop, "SAMPLE_BYTES", size)
        torch.manual_seed(0)
        model = mlp((1, 8, 8), hidden=(16,))
        settings = Settings(
            n=11, attackers=2, rounds=4, batch=40, momentum=0.9, local_steps=steps, record=()
        )
        rule = bz.Hierarchy(3, bz.GeometricMedian(), deal="random") >> bz.GeometricMedian()
        training = Simulation(settings, DIGITS, model, rule, attack, by_label())
        blocks = list(training._worker_blocks(torch.zeros(9, steps, 40)))
        assert len(blocks) == (1 if size > 1e6 else 3)
        losses = [record["loss"] for record in training]
        models.append((losses, torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert models[0][0] == pytest.approx(models[1][0], rel=1e-5)
    assert torch.allclose(models[0][1], models[1][1], rtol=1e-4, atol=1e-5)


LARGE = """
from dataclasses import replace
import torch, byzantium as bz
from byzantium.data import load
from byzantium.learning import Settings, Simulation, linear

torch.set_num_threads(1)
n, data = 10_000, load("digits")
drawn = torch.randint(len(data.train_y), (60_000,))
data = replace(data, train_x=data.train_x[drawn], train_y=data.train_y[drawn])
inner = bz.AgnosticClipping(f=20)
rule = bz.Hierarchy(100, inner, deal="random") >> bz.AgnosticClipping(f=10)
rule(torch.randn(n, 3))  # imports and compiles
settings = Settings(n=n, attackers=500, rounds=3, batch=6, momentum=0.9, learning_rate=0.5)

def train():
    training = Simulation(settings, data, linear((1, 8, 8)), rule, bz.InnerProduct(epsilon=10))
    losses = [record["loss"] for record in training]
    assert losses[-1] < losses[0], losses

print(peak(train))
"""


@pytest.mark.slow
@memory.LINUX
def test_ten_thousand_workers_train_in_little_memory() -> None:
    """Their vectors take 26 MB, and inner products of all pairs would take 800 MB."""
    taken, said = memory.megabytes(LARGE)
    assert taken < 200, said
