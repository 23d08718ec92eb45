"""Checkpoints that are damaged, forged or somebody else's: refused as such, and survived."""

from __future__ import annotations

import copy
import logging
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import members
import pytest
import torch
from checkpoints import (
    DIGITS,
    SETTINGS,
    STATES,
    model,
    put,
    same,
    saved,
    simulation,
    trained,
)
from torch import Tensor

import byzantium as bz
from byzantium.core.locks import BusyError, folder_lock
from byzantium.learning import Loop, Settings, Simulation, checkpoint, mlp, saving, simulate
from byzantium.learning.checkpoint import MAGIC, CheckpointError
from byzantium.learning.training import loop_for

# -- files that hold no state --------------------------------------------------------------------


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


BAD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.touch(),
    "no checkpoint": lambda path: path.write_bytes(b"PK\3\4 something else"),
    "only a head": lambda path: path.write_bytes(MAGIC),
    "no zip": lambda path: put(path, b"something else"),
    "half a zip": lambda path: put(path, saved(STATES[3])[:-1000]),
    "code": lambda path: put(path, saved({"fingerprint": Bomb()})),
    "a class": lambda path: put(path, saved(SETTINGS)),
    "no mapping": lambda path: put(path, saved([1, 2])),
    "an empty state": lambda path: put(path, saved({})),
    "names that are numbers": lambda path: put(path, saved({1: 2})),
    "no text": lambda path: put(path, saved({**STATES[3], "fingerprint": 7})),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "what gives no bytes": lambda path: path.symlink_to("/proc/self/mem"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("name", BAD)
def test_what_holds_no_state_is_a_checkpoint_error_and_passed_over(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the newest checkpoint and, in another folder, as the model of a finished run."""
    monkeypatch.chdir(tmp_path)
    expected = simulation()
    list(expected)
    for place, bad in (("a", "checkpoint-000000004.pt"), ("b", "model.pt")):
        folder = tmp_path / place
        checkpoint.save(folder, 3, STATES[2])
        BAD[name](folder / bad)
        if name in ("an empty state", "names that are numbers", "no text"):
            with pytest.raises(CheckpointError, match="it is not the state of a simulation"):
                simulation().load_state_dict(checkpoint.load(folder / bad))
        else:
            with pytest.raises(CheckpointError, match=re.escape(str(folder / bad))) as caught:
                checkpoint.load(folder / bad)
            assert "\n" not in str(caught.value)
        caplog.clear()
        if name == "a folder":
            with pytest.raises(IsADirectoryError, match=bad):  # when it must write there
                trained(folder)
            continue
        with caplog.at_level(logging.WARNING, logger="byzantium"):
            assert same(trained(folder).result(), expected.result())
        assert bad in caplog.text or name in ("a pipe", "a link to nowhere")
    assert not (tmp_path / "exploded").exists()


def test_a_damaged_checkpoint_of_a_later_round_does_not_keep_ours_from_being_saved(
    tmp_path: Path,
) -> None:
    for number in (10**8, 10**8 + 1, 10**8 + 2):
        (tmp_path / f"checkpoint-{number}.pt").write_bytes(b"damaged")
    checkpoint.save(tmp_path, 3, STATES[2])
    checkpoint.save(tmp_path, 4, STATES[3])
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert len(newest["history"]["rounds"]) == 4


# -- states of another form ----------------------------------------------------------------------

Where = tuple[Any, ...]


def places(state: Any, where: Where = ()) -> Iterator[Where]:
    """Every place in a state, the inner ones too."""
    items = state.items() if isinstance(state, dict) else ()
    if isinstance(state, (list, tuple)):
        items = enumerate(state)  # type: ignore[assignment]
    for key, value in items:
        yield (*where, key)
        yield from places(value, (*where, key))


def at(state: Any, where: Where) -> Any:
    for key in where:
        state = state[key]
    return state


STRANGE: tuple[Any, ...] = (
    None,
    "text",
    b"bytes",
    7,
    -1,
    10**30,
    0.5,
    True,
    [],
    [[[]]],
    {},
    {"a": 1},
    (1, 2),
)


def changed(value: Any, draw: random.Random) -> Any:
    """Something of another form in its place."""
    if isinstance(value, Tensor) and draw.random() < 0.7:
        other: list[Tensor] = [
            value.flatten()[:-1],
            torch.cat([value.flatten(), value.flatten()[:1]]),
            value[None],
            torch.zeros(()),
            value.to(torch.complex64),
            value.to(torch.bool),
            value.flatten()[:1].expand(10**6, 1),
            torch.zeros(3, 3).to_sparse(),
            torch.full_like(value, 255 if value.dtype == torch.uint8 else 10**6),
        ]
        return draw.choice(other)
    if isinstance(value, dict) and draw.random() < 0.7:
        return draw.choice([{**value, "more": 1}, dict(list(value.items())[1:])])
    if isinstance(value, list) and draw.random() < 0.7:
        return draw.choice([value[:-1], [*value, *value[:1]], value[::-1]])
    return draw.choice(STRANGE)


def forged(state: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], Where]:
    """A copy of a state in which one place is another, or missing."""
    # Parts are as likely as each other, however many places they have.
    part = draw.choice(list(state))
    where = draw.choice([(part,), *((part, *rest) for rest in places(state[part]))])
    state = copy.deepcopy(state)
    inner = at(state, where[:-1])
    if isinstance(inner, tuple):
        where = where[:-1]
        inner = at(state, where[:-1])
    if isinstance(inner, dict) and draw.random() < 0.2:
        del inner[where[-1]]
    else:
        inner[where[-1]] = changed(inner[where[-1]], draw)
    return state, where


def refused(seed: int, folder: Path) -> bool:
    """Whether a forged state is refused; if not, it is gone on with to the end."""
    state, where = forged(STATES[3], random.Random(seed))
    path = checkpoint.save(folder, 4, state)
    training = simulation()
    before = copy.deepcopy(training.state_dict())
    try:
        training.load_state_dict(checkpoint.load(path))
    except CheckpointError:
        assert same(training.state_dict(), before), f"{where} was refused and taken in part"
        return True
    list(training)
    return False


def check_forgeries(seeds: range, folder: Path) -> None:
    with_errors = [refused(seed, folder) for seed in seeds]
    # The others are of a form that does no harm: another loss in the history, one name more.
    assert sum(with_errors) > 0.7 * len(seeds)


def test_a_state_of_another_form_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    check_forgeries(range(60), tmp_path)


@pytest.mark.slow
def test_thousands_of_forged_states(tmp_path: Path) -> None:
    check_forgeries(range(60, 1500), tmp_path)


@pytest.mark.parametrize("part", [*STATES[3], "history rounds", "model of another size"])
def test_a_run_with_a_forged_checkpoint_ends_as_if_undisturbed(tmp_path: Path, part: str) -> None:
    expected = simulation()
    list(expected)
    state = copy.deepcopy(STATES[3])
    if part == "history rounds":
        del state["history"]["rounds"][1]["loss"]
    elif part == "model of another size":
        state["model"] = mlp((1, 8, 8), hidden=(5,)).state_dict()
    else:
        del state[part]
    checkpoint.save(tmp_path, 3, STATES[2])
    checkpoint.save(tmp_path, 4, state)
    assert same(trained(tmp_path).result(), expected.result())


def test_a_finished_run_whose_model_is_unfinished_is_not_finished(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "model.pt", simulation().result())
    with pytest.raises(CheckpointError, match="not the state of a finished simulation"):
        simulation().load_result(checkpoint.load(tmp_path / "model.pt"))
    assert trained(tmp_path).history.status == "completed"


# -- what must not be refused ----------------------------------------------------------------------


@pytest.mark.parametrize("member", members.RULES, ids=members.name)
def test_every_rule_goes_on_from_its_checkpoint(tmp_path: Path, member: members.Rule) -> None:
    settings = Settings(n=members.N, rounds=3, batch=2, evaluate_every=2, record=("weights",))
    check_resumed(lambda: Simulation(settings, DIGITS, model(), member.fresh()), tmp_path)


@pytest.mark.parametrize("attack", members.ATTACKS, ids=repr)
def test_every_attack_goes_on_from_its_checkpoint(tmp_path: Path, attack: bz.Attack) -> None:
    for participants in (None,) if attack.needs_node else (None, 4):
        graph = "complete" if attack.needs_node else None
        settings = Settings(
            n=11, attackers=2, rounds=3, batch=2, participants=participants, topology=graph
        )
        rule = bz.Median() if participants else bz.TrimmedMean(f=2)
        check_resumed(
            lambda settings=settings, rule=rule: loop_for(settings)(  # type: ignore[misc]
                settings, DIGITS, model(), rule, attack
            ),
            tmp_path / str(participants),
        )


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: torch.optim.AdamW(p, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, momentum=0.1, centered=True),
    torch.optim.Adagrad,
    torch.optim.Rprop,
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_from_its_checkpoint(
    tmp_path: Path, optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    settings = Settings(n=3, rounds=3, batch=2)
    check_resumed(
        lambda: Simulation(settings, DIGITS, model(), bz.Mean(), optimizer=optimizer), tmp_path
    )


class Slow(torch.optim.SGD):
    """An optimizer of one's own, with a state that appears late and a number beside it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        for parameter in self.param_groups[0]["params"]:
            if self.calls == 2:
                self.state[parameter]["late"] = torch.zeros(2)
        return super().step(closure)


def test_an_optimizer_of_ones_own_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings = Settings(n=3, rounds=3, batch=2)
    check_resumed(
        lambda: Simulation(settings, DIGITS, model(), bz.Mean(), optimizer=Slow), tmp_path
    )


def check_resumed(make: Callable[[], Loop], folder: Path) -> None:
    """Saved after each round and read by another, which goes on to the same end."""
    whole = make()
    paths = [checkpoint.save(folder, r["round"], whole.state_dict()) for r in whole]
    assert len(whole.history.rounds) == whole.settings.rounds
    for path in paths[-2:]:  # the last two are kept
        restored = make()
        restored.load_state_dict(checkpoint.load(path))
        list(restored)
        assert same(restored.result(), whole.result())


def test_a_simulation_that_diverged_is_read_back(tmp_path: Path) -> None:
    settings = Settings(n=4, rounds=50, learning_rate=1e30, record=("distance",))
    first = simulate(settings, DIGITS, model(), bz.Mean(), folder=tmp_path)
    assert first.status == "diverged"
    again = simulate(settings, DIGITS, model(), bz.Mean(), folder=tmp_path)
    assert repr(again) == repr(first)


# -- two at once -----------------------------------------------------------------------------------

LONG = """
import sys; from pathlib import Path
import byzantium as bz
from byzantium.core.locks import BusyError
from byzantium.learning import Settings, load, mlp, simulate
settings = Settings(n=3, rounds=int(sys.argv[2]), batch=2, evaluate_every=20)
try:
    model = mlp((1, 8, 8), hidden=(4,))
    simulate(settings, load("digits"), model, bz.Mean(), folder=Path(sys.argv[1]))
except BusyError as error:
    print("busy:", error)
else:
    print("done")
"""


def test_two_simulations_never_work_in_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LONG, str(tmp_path), "200"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate()[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    busy = f"busy: another process works on {tmp_path}\n"
    assert said in ([busy, "done\n"], ["done\n", "done\n"])  # the other came when it was done
    assert (tmp_path / "model.pt").exists()


def test_a_folder_someone_works_in_is_refused_and_a_finished_one_only_read(tmp_path: Path) -> None:
    settings, done = Settings(n=3, rounds=2, batch=2), tmp_path / "done"
    with (
        folder_lock(done),
        pytest.raises(BusyError, match=re.escape(f"another process works on {done}")),
    ):
        simulate(settings, DIGITS, model(), bz.Mean(), folder=done)
    first = simulate(settings, DIGITS, model(), bz.Mean(), folder=done)
    before = {path.name: path.stat().st_mtime_ns for path in [done, *done.iterdir()]}
    assert simulate(settings, DIGITS, model(), bz.Mean(), folder=done) == first
    assert {path.name: path.stat().st_mtime_ns for path in [done, *done.iterdir()]} == before


@pytest.mark.parametrize(("share", "rounds"), [(math.inf, [2, 4]), (1e-12, [2])])
def test_savings_after_evaluations_take_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, rounds: list[int]
) -> None:
    monkeypatch.setattr(saving, "SHARE", share)
    found: list[str] = []
    for _ in saving.checkpointed(simulation(), tmp_path):
        found += [path.name for path in checkpoint.checkpoints(tmp_path)]
    assert list(dict.fromkeys(sorted(found))) == [f"checkpoint-{k:09d}.pt" for k in rounds]
