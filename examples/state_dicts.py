"""Rules take models as state dicts of PyTorch, or as lists of arrays, which Flower uses.

Seven clients send a small model. One of them sends NaN, and is rejected; one sends its model a
hundred times too large, and hardly counts. `explain` reports this; a call returns only the model.
"""

import torch
from torch import Tensor, nn

import byzantium as bz

rule = bz.GeometricMedian()


def client(seed: int) -> dict[str, Tensor]:
    """The model of one client: the same start, with different noise."""
    torch.manual_seed(0)
    state = nn.Linear(4, 2).state_dict()
    torch.manual_seed(seed)
    return {name: value + 0.1 * torch.randn(value.shape) for name, value in state.items()}


clients = [client(seed) for seed in range(7)]
clients[2]["weight"][0, 0] = torch.nan
clients[5] = {name: 100 * value for name, value in clients[5].items()}

report = rule.explain(clients)
for i, weight in enumerate(report.weights.tolist()):
    print(f"client {i} counted {weight:.2f}")
for i in report.rejected:
    print(f"client {i} was rejected: {report.reasons[i]}")
print("merged:", {name: tuple(value.shape) for name, value in report.aggregate.items()})

arrays = [[value.numpy() for value in state.values()] for state in clients]
print("the same of arrays:", [(type(array).__name__, array.shape) for array in rule(arrays)])
