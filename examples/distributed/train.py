"""Ranks learn digits together, although each has other labels and the last two are attackers.

    torchrun --nnodes=1 --nproc-per-node=8 examples/distributed/train.py

The images are sorted by label and split among the honest ranks, so that each has few labels. The
attackers send the opposite of their gradient, ten times as long. `--rule "Mean()"` shows the harm.

A run that is started again continues from its checkpoints, to the same bits. To have torchrun
restart it when a rank dies or hangs:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts=3 --rdzv-backend=c10d \
        --rdzv-endpoint=127.0.0.1:29400 --nnodes=1 --nproc-per-node=8 examples/distributed/train.py

(Without the variable the new ranks search for the old ones, and do not find them.)
"""

from __future__ import annotations

import argparse
import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

import byzantium as bz
from byzantium.data import Dataset, by_label, load
from byzantium.engines.distributed.ranks import TIMEOUT
from byzantium.engines.distributed.training import aggregate_gradients
from byzantium.learning import Momentum, checkpoint, mlp

ATTACKERS = 2
BATCH, RATE, BETA = 32, 0.1, 0.9


class Worker:
    """One rank: its share of the data, its momentum, and its copy of the model."""

    def __init__(self, rule: bz.Aggregator, rank: int, n: int) -> None:
        self.data, self.rule, self.attacks = load("digits"), rule, rank >= n - ATTACKERS
        labels = self.data.train_y
        parts = by_label()(labels, n - ATTACKERS, torch.Generator().manual_seed(0))
        self.part = torch.arange(len(labels)) if self.attacks else parts[rank]
        torch.manual_seed(0)  # all begin with the same model
        self.model = mlp((1, 8, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.momentum = Momentum(BETA)
        self.generator = torch.Generator().manual_seed(rank)
        self.round = 0

    def step(self, timeout: float) -> None:
        index = torch.randint(len(self.part), (BATCH,), generator=self.generator)
        batch = self.part[index]
        loss = cross_entropy(self.model(self.data.train_x[batch]), self.data.train_y[batch])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss * (-10 if self.attacks else 1))
        aggregate_gradients(
            self.model.parameters(),
            self.rule,
            generator=self.generator,
            momentum=self.momentum,
            timeout=timeout,
        )
        self.optimizer.step()
        self.round += 1

    def state(self) -> dict[str, Any]:
        """All that the next rounds depend on."""
        return {
            "round": self.round,
            "model": self.model.state_dict(),
            "rule": self.rule.state_dict(),
            "momentum": self.momentum.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.round = state["round"]
        self.model.load_state_dict(state["model"])
        self.rule.load_state_dict(state["rule"])
        self.momentum.load_state_dict(state["momentum"])
        self.generator.set_state(state["generator"])


def resume(worker: Worker, folder: Path) -> None:
    """Continue from the newest checkpoint that every rank has.

    A rank that was killed may lack the last one; each stores two, and no rank is farther ahead.
    """
    states = {}
    for path in checkpoint.checkpoints(folder):
        try:
            state = checkpoint.load(path)
        except checkpoint.CheckpointError as error:
            print(error, flush=True)
            continue
        states[state["round"]] = state
    newest = torch.tensor(max(states, default=0))
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    has = torch.tensor(int(newest) in states)
    dist.all_reduce(has, op=dist.ReduceOp.MIN)
    if int(newest) and bool(has):
        worker.load(states[int(newest)])


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: Dataset) -> float:
    right = model(data.test_x).argmax(dim=1) == data.test_y
    return 100 * float(right.float().mean())


def digest(worker: Worker) -> str:
    """A digest of the model and the state of the rule, equal for equal runs."""
    total = hashlib.sha256()
    tensors: list[Tensor] = [
        *worker.model.state_dict().values(),
        *worker.rule.state_dict().values(),
    ]
    for tensor in tensors:
        total.update(tensor.numpy().tobytes())
    return total.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rule", default="NearestNeighborMixing(f=2) >> CenteredClipping(radius=1)"
    )
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="rounds between checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("distributed-run"))
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank")
    arguments = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=arguments.timeout))
    torch.set_num_threads(1)
    rank, n = dist.get_rank(), dist.get_world_size()
    worker = Worker(bz.parse_rule(arguments.rule), rank, n)
    folder = arguments.folder / f"rank-{rank}"
    resume(worker, folder)
    if rank == 0 and worker.round:
        print(f"going on after round {worker.round}", flush=True)
    while worker.round < arguments.rounds:
        worker.step(arguments.timeout)
        if worker.round % arguments.every == 0 or worker.round == arguments.rounds:
            checkpoint.save(folder, worker.round, worker.state())
            if rank == 0:
                right = accuracy(worker.model, worker.data)
                print(f"round {worker.round}: accuracy {right:.1f}", flush=True)
    print(f"rank {rank} of {n}: digest {digest(worker)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
