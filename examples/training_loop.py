"""A training loop in plain PyTorch: the rule is one line of it.

Eight honest workers share the handwritten digits. Two attackers send the honest mean with its sign
flipped, ten times as long. The mean follows them; the pipeline learns.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import byzantium as bz
from byzantium.data import load

data = load("digits")
x, y, test = data.train_x.double(), data.train_y, data.test_x.double()


def gradient(model: nn.Module, rows: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))


for rule in (bz.Mean(), bz.Bucketing(s=2) >> bz.GeometricMedian()):
    torch.manual_seed(0)
    shards = torch.randperm(len(y)).chunk(8)
    generator = torch.Generator().manual_seed(0)  # of the buckets; omit it in real use
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    for _ in range(200):
        batches = [shard[torch.randint(len(shard), (32,))] for shard in shards]
        honest = torch.stack([gradient(model, batch) for batch in batches])
        attack = -10 * honest.mean(dim=0).expand(2, -1)
        update = rule(torch.cat([honest, attack]), generator)
        weights = parameters_to_vector(model.parameters()).detach()
        vector_to_parameters(weights - 0.1 * update, model.parameters())
    accuracy = (model(test).argmax(dim=1) == data.test_y).double().mean()
    print(f"{rule!r}: {accuracy:.0%} of the test images are right")
