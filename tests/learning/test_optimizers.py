"""Optimizers without torch's compiler take the steps that torch's take, and nothing loads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from byzantium.learning import optimizers

Make = Callable[[Any, Any], torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "sgd": lambda of, p: of.SGD(p, lr=0.1),
    "sgd with momentum": lambda of, p: of.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "adam": lambda of, p: of.AdamW(p, lr=0.1, weight_decay=1e-2),
}


def trained(make: Make, of: Any) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    parameters = [
        torch.nn.Parameter(torch.randn(size, generator=generator)) for size in ((3, 4), (5,))
    ]
    optimizer = make(of, parameters)
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in parameters)
    return [parameter.detach() for parameter in parameters], optimizer


@pytest.mark.parametrize("name", MAKES)
def test_steps_are_those_of_torch_to_the_bit(name: str) -> None:
    (theirs, before), (ours, after) = (trained(MAKES[name], of) for of in (torch.optim, optimizers))
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert type(before).__name__ == type(after).__name__  # the name is part of checkpoints
    # Each reads what the other saved.
    for one, other in ((before, after), (after, before)):
        one.load_state_dict(other.state_dict())
    assert str(before.state_dict()) == str(after.state_dict())


def test_a_run_does_not_load_the_compiler_of_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from byzantium.cli.main import main\n"
        "import byzantium.cli\n"
        "main(['run', '--rounds', '1', '--out', sys.argv[1]], standalone_mode=False)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
