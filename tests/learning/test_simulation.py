"""Algorithm 2 is what a plain loop computes; it repeats itself, survives, and says if it fails."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import byzantium as bz
from byzantium.data import Dataset, by_label, iid, load
from byzantium.learning import History, Settings, Simulation, checkpoint, mlp, simulate
from byzantium.learning.history import STATUSES, Status

DIGITS = load("digits")
RULE = bz.Bucketing(s=2) >> bz.GeometricMedian()


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return mlp((1, 8, 8), hidden=(16,))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradient(model: nn.Module, indices: Tensor) -> Tensor:
    loss = functional.cross_entropy(model(DIGITS.train_x[indices]), DIGITS.train_y[indices])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("heavy_ball", [False, True])
def test_it_is_algorithm_2_step_by_step(heavy_ball: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop as the paper writes it: lists of vectors, momentum for each worker, IPM attackers."""
    beta, rate, n, q = 0.8, 0.2, 7, 2
    ours = model()
    settings = Settings(
        n=n,
        attackers=q,
        rounds=5,
        batch=8,
        momentum=beta,
        heavy_ball=heavy_ball,
        learning_rate=rate,
    )
    training = Simulation(settings, DIGITS, ours, bz.Median(), bz.InnerProduct(0.4), by_label())
    drawn: list[Tensor] = []
    draw = training.batches.draw

    def noted(workers: list[int]) -> Tensor:
        drawn.append(draw(workers))
        return drawn[-1]

    monkeypatch.setattr(training.batches, "draw", noted)
    theirs = copy.deepcopy(ours)
    list(training)

    momenta: list[Tensor | None] = [None] * (n - q)
    for indices in drawn:
        for i in range(n - q):
            g, m = gradient(theirs, indices[i]), momenta[i]
            momenta[i] = g if m is None else beta * m + (1 if heavy_ball else 1 - beta) * g
        honest = torch.stack([m for m in momenta if m is not None])
        bad = -0.4 * honest.mean(dim=0)
        step = bz.Median()(torch.cat([honest, bad.expand(q, -1)]))
        moved = weights(theirs) - rate * step
        nn.utils.vector_to_parameters(moved, theirs.parameters())
    assert len(drawn) == 5
    assert (weights(ours) - weights(theirs)).abs().max() < 1e-5


def run(seed: int = 3, **options: object) -> tuple[Tensor, object]:
    trained = model()
    settings = Settings(
        n=9,
        attackers=2,
        rounds=12,
        batch=8,
        momentum=0.5,
        evaluate_every=4,
        seed=seed,
        **options,  # type: ignore[arg-type]
    )
    history = simulate(settings, DIGITS, trained, RULE, bz.Mimic(warmup=2), by_label())
    return weights(trained), history


@pytest.mark.parametrize(
    "options", [{}, {"participants": 5}, {"local_steps": 3, "local_rate": 0.05}], ids=str
)
def test_a_run_repeats_itself_whatever_the_global_generator_does(options: dict[str, int]) -> None:
    first, history = run(**options)
    torch.rand(17)
    second, again = run(**options)
    assert torch.equal(first, second)
    assert history == again
    assert not torch.equal(first, run(seed=4, **options)[0])


def test_a_passive_recording_does_not_change_the_run() -> None:
    plain, history = run()
    watched, records = run(record=("distance", "spread", "norm", "weights", "rejected"))
    assert torch.equal(plain, watched)
    assert history.evaluations == records.evaluations  # type: ignore[attr-defined]
    record = records.rounds[-1]  # type: ignore[attr-defined]
    assert len(record["weights"]) == 9
    assert sum(record["weights"]) == pytest.approx(1)
    assert record["rejected"] == []
    assert 0 < record["distance"] < record["norm"] * 3
    assert record["spread"] > 0


class Counting(nn.Module):
    """Counts the samples it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.samples = model(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.samples += len(x)
        return self.inner(x)


@pytest.mark.parametrize(
    ("attack", "workers"),
    [(bz.Mimic(target=0), 7), (bz.InnerProduct(), 7), (bz.ALittleIsEnough(), 7), (bz.BitFlip(), 9)],
    ids=repr,
)
def test_gradients_nobody_needs_are_not_computed(attack: bz.Attack, workers: int) -> None:
    counting = Counting()
    settings = Settings(n=9, attackers=2, rounds=2, batch=4, evaluate_every=100)
    training = Simulation(settings, DIGITS, counting, bz.Median(), attack)
    training.gradients.batched = False  # a batched pass would be counted once
    counting.samples = 0  # two were looked at, to see whether the model fits the data
    next(iter(training))
    assert counting.samples == workers * 4


def test_label_flippers_learn_the_wrong_labels_and_bit_flippers_send_the_opposite() -> None:
    """Attackers' own vectors carry no momentum, as in the published runs."""
    settings = Settings(n=5, attackers=2, rounds=3, batch=4, momentum=0.9)
    for attack, sign in ((bz.LabelFlip(), 1), (bz.BitFlip(), -1)):
        training = Simulation(settings, DIGITS, model(), bz.Mean(), attack)
        iterator = iter(training)
        next(iterator)
        before = copy.deepcopy(training.model)
        source = copy.deepcopy(training.own_batches)
        next(iterator)
        indices = source.draw([0, 1])
        for j in range(2):
            y = attack.labels(DIGITS.train_y[indices[j]], 10)
            loss = functional.cross_entropy(before(DIGITS.train_x[indices[j]]), y)
            pieces = torch.autograd.grad(loss, list(before.parameters()))
            expected = sign * torch.cat([piece.flatten() for piece in pieces])
            assert torch.allclose(training.sent[3 + j], expected, atol=1e-6)


def test_client_sampling_keeps_the_momentum_of_those_who_stay_away() -> None:
    settings = Settings(n=6, rounds=2, batch=4, momentum=0.9, participants=3)
    training = Simulation(settings, DIGITS, model(), bz.Mean())
    iterator = iter(training)
    next(iterator)
    took_part = [i for i in range(6) if training.sent[i].any()]
    assert len(took_part) == 3
    before = training.sent.clone()
    next(iterator)
    changed = [i for i in range(6) if not torch.equal(training.sent[i], before[i])]
    assert len(changed) == 3


def test_any_optimizer_will_do() -> None:
    trained = model()
    settings = Settings(n=5, rounds=60, batch=16)
    history = simulate(
        settings, DIGITS, trained, bz.Mean(), optimizer=lambda p: torch.optim.Adam(p, lr=0.01)
    )
    assert history.status == "completed"
    assert history.accuracy > 80


def test_robust_rules_learn_where_the_mean_is_destroyed() -> None:
    settings = Settings(n=10, attackers=2, rounds=80, learning_rate=0.2, batch=16)
    attack = bz.GaussianNoise(scale=100.0)
    robust = simulate(settings, DIGITS, model(), bz.TrimmedMean(f=2), attack)
    destroyed = simulate(settings, DIGITS, model(), bz.Mean(), attack)
    assert robust.accuracy > 75
    assert destroyed.accuracy < 40


def test_workers_that_send_nan_are_survived() -> None:
    settings = Settings(n=10, attackers=2, rounds=20, learning_rate=0.2, record=("rejected",))
    history = simulate(settings, DIGITS, model(), bz.Krum(f=2), bz.NonFinite("mixture"))
    assert history.status == "completed"
    assert all(record["rejected"] == [8, 9] for record in history.rounds)


def test_a_run_that_diverges_says_so() -> None:
    settings = Settings(n=4, rounds=50, learning_rate=1e30)
    history = simulate(settings, DIGITS, model(), bz.Mean())
    assert history.status == "diverged"
    assert history.diverged_in == len(history.rounds) < 50


@pytest.mark.parametrize(
    "attack", [None, bz.BitFlip(), bz.Tuned(bz.InnerProduct())], ids=lambda attack: repr(attack)
)
def test_honest_vectors_that_overflow_are_a_divergence(attack: bz.Attack | None) -> None:
    """Their loss is finite, and their gradients are beyond what a rule takes."""
    x, y = torch.full((40, 3), 1e19), torch.arange(40) % 2
    x[::2] *= -1
    trained = mlp((3,), hidden=(), classes=2)
    for parameter in trained.parameters():
        nn.init.zeros_(parameter)
    settings = Settings(n=6, attackers=1, rounds=3, batch=4)
    history = simulate(
        settings, Dataset("large", x, y, x, y, 2), trained, bz.Krum(f=1), attack, iid()
    )
    assert history.status == "diverged"
    assert history.diverged_in == 1
    assert math.isfinite(history.rounds[0]["loss"])


@pytest.mark.parametrize("participants", [None, 7])
def test_more_unusable_attackers_than_declared_are_an_error_and_no_divergence(
    participants: int | None,
) -> None:
    settings = Settings(n=8, attackers=3, rounds=3, participants=participants)
    training = Simulation(settings, DIGITS, model(), bz.Krum(f=1), bz.NonFinite("nan"))
    with pytest.raises(bz.TooManyRejected, match=r"Krum\(f=1\) can do without its f = 1") as error:
        list(training)
    honest = 5 if participants is None else participants - len(error.value.reasons)
    assert min(error.value.reasons) == honest
    assert training.history.status == "running"
    assert training.history.diverged_in is None


@pytest.mark.parametrize("status", STATUSES)
def test_a_history_is_read_from_what_is_written_of_it(status: Status) -> None:
    history = History([{"round": 1, "loss": 2.0}, {"round": 2, "loss": 3.0}], [], status)
    written = history.state_dict()
    assert written["status"] == {"diverged": "diverged in round 2"}.get(status, status)
    assert History.of(written) == history
    for other in ("diverged", "diverged in round 3", "stopped", "completed "):
        with pytest.raises(ValueError, match=f"its history has 2 rounds, and cannot be '{other}'"):
            History.of({**written, "status": other})


def test_two_simulations_from_one_state_go_on_apart() -> None:
    one, other = simulation(), simulation()
    rounds = iter(one)
    next(rounds)
    other.load_state_dict(one.state_dict())
    assert list(other) == list(rounds)
    assert other.history == one.history


def test_zeta2_and_b2_are_those_of_full_local_gradients() -> None:
    settings = Settings(n=4, rounds=1)
    training = Simulation(settings, DIGITS, model(), bz.Mean(), partition=by_label())
    rows = torch.stack([gradient(training.model, part) for part in training.batches.parts])
    centre = rows.mean(dim=0)
    zeta2 = float((rows - centre).square().sum(dim=1).mean())
    measured = training.heterogeneity()
    assert measured["zeta2"] == pytest.approx(zeta2, rel=1e-4)
    assert measured["b2"] == pytest.approx(zeta2 / float(centre.square().sum()), rel=1e-4)
    even = Simulation(settings, DIGITS, model(), bz.Mean(), partition=iid())
    assert even.heterogeneity()["b2"] < 0.2 * measured["b2"]


# -- checkpoints -------------------------------------------------------------------------------

SCRIPT = """
import hashlib, json, sys, time
from pathlib import Path
import torch
import byzantium as bz
from byzantium.learning import Settings, by_label, load, mlp, simulate
from byzantium.learning import simulation

rounds = simulation.Simulation._round
def told(self, t):
    print(t, flush=True)
    return rounds(self, t)
simulation.Simulation._round = told
torch.manual_seed(0)
model = mlp((1, 8, 8), hidden=(16,))
settings = Settings(n=9, attackers=2, rounds=30, batch=8, momentum=0.9, evaluate_every=7,
                    record=("weights", "distance"))
history = simulate(settings, load("digits"), model,
                   bz.Bucketing(s=2) >> bz.CenteredClipping(radius=1.0), bz.Mimic(warmup=9),
                   by_label(), optimizer=lambda p: torch.optim.Adam(p), folder=Path(sys.argv[1]),
                   seconds=float(sys.argv[2]))
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
content = weights.numpy().tobytes() + json.dumps([history.rounds, history.evaluations]).encode()
print("done", history.status, hashlib.sha256(content).hexdigest(), flush=True)
"""


def train(folder: Path, seconds: float = 0, kill_at: int | None = None) -> list[str]:
    """Run the script; kill it, hard, when it begins a certain round."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if kill_at is not None and lines[-1] == str(kill_at):
                os.kill(process.pid, signal.SIGKILL)
                break
    return lines


def test_a_killed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    """Killed four times in one run, at round 3, 8, 15 and 22; saved after each round."""
    expected = train(tmp_path / "whole")[-1]
    assert expected.startswith("done completed")
    folder, begun = tmp_path / "killed", []
    for kill_at in (3, 8, 15, 22):
        begun.append(int(train(folder, kill_at=kill_at)[0]))
        assert 1 <= len(checkpoint.checkpoints(folder)) <= 2
    assert train(folder)[-1] == expected
    assert begun[0] == 0
    assert all(start > 0 for start in begun[1:]), "it went on, and did not begin again"
    assert checkpoint.checkpoints(folder) == []
    assert train(folder) == [expected]  # it is done: no round is run again


def simulation() -> Simulation:
    settings = Settings(n=5, rounds=6, batch=4)
    return Simulation(settings, DIGITS, model(), bz.CenteredClipping(radius=1.0))


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = simulation()
    paths = [checkpoint.save(tmp_path, r["round"], training.state_dict()) for r in training][-2:]
    assert checkpoint.checkpoints(tmp_path) == paths[::-1]
    damaged = bytearray(paths[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    paths[1].write_bytes(damaged)
    with caplog.at_level(logging.WARNING, logger="byzantium"):
        state = checkpoint.newest(tmp_path)
    assert state is not None
    assert len(state["history"]["rounds"]) == 5
    assert f"{paths[1]} is damaged" in caplog.text
    paths[0].write_bytes(paths[0].read_bytes()[:100])
    assert checkpoint.newest(tmp_path) is None


def test_what_is_no_checkpoint_or_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000000001.pt"
    path.write_bytes(b"something else")
    with pytest.raises(checkpoint.CheckpointError, match=re.escape(f"{path} is not a checkpoint")):
        checkpoint.load(path)
    other = Simulation(Settings(n=5, rounds=7, batch=4), DIGITS, model(), bz.Mean())
    with pytest.raises(checkpoint.CheckpointError, match="state of another simulation"):
        simulation().load_state_dict(other.state_dict())
    checkpoint.save(tmp_path, 2, other.state_dict())
    with pytest.raises(
        checkpoint.CheckpointError, match=re.escape(f"continue from {tmp_path}: this")
    ):
        simulate(Settings(n=5, rounds=6, batch=4), DIGITS, model(), bz.Mean(), folder=tmp_path)


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'exploded'}",)

    path = checkpoint.save(tmp_path, 1, {"bomb": Bomb()})
    with pytest.raises(checkpoint.CheckpointError, match=r"weights_only|[Uu]nsupported"):
        checkpoint.load(path)
    assert not (tmp_path / "exploded").exists()


# -- bad input ---------------------------------------------------------------------------------

REFUSED = [
    ({"n": 0}, "a simulation needs n >= 1, got n=0"),
    ({"attackers": 9}, "a simulation needs honest workers: attackers < n, got 9 of 9"),
    ({"attackers": -1}, "a simulation needs attackers >= 0, got attackers=-1"),
    ({"momentum": 1.0}, "a simulation needs 0 <= momentum < 1, got momentum=1.0"),
    ({"participants": 10}, "a simulation needs participants <= n, got 10 of 9"),
    (
        {"record": ("lose",)},
        "can record distance, spread, norm, weights, heard, rejected, losses, root, heterogeneity, "
        "got lose",
    ),
    ({"learning_rate": 0.0}, "a simulation needs learning_rate > 0, got learning_rate=0.0"),
    ({"local_steps": 0}, "a simulation needs local_steps >= 1, got local_steps=0"),
    ({"reshuffle_every": 0}, "a simulation needs reshuffle_every >= 1, got reshuffle_every=0"),
    (
        {"learning_rate": math.inf},
        "a simulation needs a finite learning_rate, got learning_rate=inf",
    ),
    ({"seed": -1}, "needs seed >= 0, got seed=-1"),
    ({"seed": 2**64}, "a simulation needs seed of at most 64 bits, got 65 bits"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=str)
def test_bad_settings_get_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Settings(**({"n": 9, "rounds": 3} | options))  # type: ignore[arg-type]


def test_a_model_that_nobody_could_aggregate_is_refused() -> None:
    with pytest.raises(ValueError, match="which nobody would aggregate"):
        Simulation(
            Settings(n=3, rounds=1),
            DIGITS,
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)),
            bz.Mean(),
        )


def test_a_data_set_of_ones_own_is_a_few_tensors() -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 4
    data = Dataset("mine", x, y, x, y, 4)
    history = simulate(Settings(n=4, rounds=2, batch=4), data, mlp((3,), classes=4), bz.Median())
    assert json.loads(json.dumps(history.rounds)) == history.rounds


def test_a_round_always_has_an_honest_worker() -> None:
    settings = Settings(n=5, attackers=4, rounds=20, batch=4, participants=1)
    history = simulate(settings, DIGITS, model(), bz.Mean(), bz.Mimic(warmup=1))
    assert history.status == "completed"
    assert all(math.isfinite(record["loss"]) for record in history.rounds)
