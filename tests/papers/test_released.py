"""Our simulator beside the code that the authors of the paper released, given the same numbers."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from paths import SUPPORT
from torch import Tensor, nn

import byzantium as bz
from byzantium.cli import main
from byzantium.data import Batches, Dataset, GivenBatches, Partition, load
from byzantium.learning import Randomness, Settings, Simulation, mlp
from byzantium.learning.checkpoint import CheckpointError
from byzantium.learning.loop import Loop
from byzantium.learning.models import FixedDropout
from byzantium.papers import RELEASED, artifact, published
from byzantium.rules import Permutations
from byzantium.runs import Event, Processes, Run, Store, execute, perform
from byzantium.runs.released import Shuffles, masked, philox, whole_batches
from byzantium.tables import Cell, Version

# 134 trajectories of the released code on our digits, in float64; its settings say how.
FILE = SUPPORT / "released_trajectories.json"
RECORDED: dict[str, Any] = json.loads(FILE.read_text())
FIXED = RECORDED["settings"]
DIGITS = load("digits")
RULES = {
    "avg": "Mean()",
    "krum": "Krum(power=4)",
    "cm": "Median()",
    "rfa": "GeometricMedian(steps=8, smoothing=0.1, start='zero')",
    "cp": "CenteredClipping(radius={radius}, steps=3)",
}
ATTACKS = {
    "NA": bz.NoAttack(),
    "BF": bz.BitFlip(),
    "LF": bz.LabelFlip(),
    "mimic": bz.Mimic(warmup=3),
    "IPM": bz.InnerProduct(epsilon=0.1),
    "ALIE": bz.ALittleIsEnough(),
}


class InOrder(Permutations):
    """The recorded permutations, one after the other."""

    def __init__(self) -> None:
        self.left = iter(RECORDED["permutations"])

    def permutation(self, n: int) -> NDArray[np.int64]:
        return np.array(next(self.left))


class Recorded(Randomness):
    """The recorded batches and permutations; what mimicry begins with is drawn from seed 0."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        seeded = torch.Generator().manual_seed(0)
        self.generators = {**self.generators, "server": InOrder(), "attack": seeded}
        who = "10 honest, 2 attackers" if settings.attackers else "12 honest"
        self.blocks = torch.tensor(RECORDED["batches"][who])

    def batches(self, data: Dataset, partition: Partition) -> Batches:
        return self._given(0, self.honest)

    def own_batches(self, data: Dataset) -> Batches:
        return self._given(self.honest, self.settings.attackers)

    def _given(self, first: int, workers: int) -> Batches:
        return GivenBatches(
            lambda worker, block: self.blocks[block, first + worker], workers, self.settings.batch
        )


@pytest.fixture
def in_float64() -> Iterator[None]:
    """What is drawn without a word on its dtype is of float64: the start of mimicry."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def simulation(name: str) -> Simulation:
    """What a name such as "cp ALIE momentum=0.9 s=2 radius=10" stands for."""
    aggregator, attack, *words = name.split()
    values = {key: float(value) for key, _, value in (word.partition("=") for word in words)}
    q = 0 if attack == "NA" else FIXED["attackers"]
    rule = RULES[aggregator].format(**values)
    if values["s"] > 1:
        rule = f"Bucketing(s={values['s']:g}) >> {rule}"
    settings = Settings(
        n=FIXED["n"],
        attackers=q,
        rounds=FIXED["rounds"],
        batch=FIXED["batch"],
        momentum=values["momentum"],
        heavy_ball=True,
        learning_rate=FIXED["learning_rate"],
        reshuffle_every=FIXED["block"],
        dtype="float64",
    )
    return Simulation(
        settings,
        DIGITS,
        mlp((1, 8, 8), hidden=(12,)),
        bz.parse_rule(rule, f=q),
        ATTACKS[attack],
        randomness=Recorded,
    )


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", RECORDED["trajectories"])
def test_every_round_is_that_of_the_released_code(name: str) -> None:
    training = simulation(name)
    k = torch.arange(training.gradients.d, dtype=torch.float64)
    start = 0.1 * torch.sin(1 + 0.7 * k)
    torch.nn.utils.vector_to_parameters(start.clone(), training.model.parameters())
    for _, expected in zip(training, RECORDED["trajectories"][name], strict=True):
        p = torch.nn.utils.parameters_to_vector(training.model.parameters()).detach()
        numbers = [(p - start).norm(), p @ torch.cos(k), p @ torch.sin(k * k % 7)]
        assert [float(number) for number in numbers] == pytest.approx(expected, rel=1e-10)


# -- the numbers of the released runs --------------------------------------------------------------


def test_philox_gives_the_known_answer_of_its_authors() -> None:
    """`philox4x32 10` of the file kat_vectors of Random123, with zeros for counter and key."""
    assert philox(key=0, counter=0, count=1).tolist() == [0x6627E8D5]


def test_philox_is_the_textbook_loop() -> None:
    def slow(key: int, counter: int, subsequence: int) -> int:
        c, k = [counter, 0, subsequence, 0], [key % 2**32, key // 2**32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [b // 2**32 ^ c[1] ^ k[0], b % 2**32, a // 2**32 ^ c[3] ^ k[1], a % 2**32]
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        return c[0]

    for key, counter in ((0, 1), (2, 0), (2**40 + 7, 5)):
        expected = [slow(key, counter, i) for i in range(9)]
        assert philox(key, counter, 9).tolist() == expected


def test_buckets_are_those_of_numpy_and_go_on_from_a_state() -> None:
    shuffles, legacy = Shuffles(seed=3), np.random.RandomState(3)
    for _ in range(40):  # more numbers than the generator makes at a time
        listed = list(range(25))
        legacy.shuffle(listed)
        assert shuffles.permutation(25).tolist() == listed
    other = Shuffles(seed=0).set_state(shuffles.get_state())
    assert other.permutation(25).tolist() == shuffles.permutation(25).tolist()
    with pytest.raises(ValueError, match="not the state"):
        other.set_state(-shuffles.get_state())


def released_run(**changes: Any) -> Run:
    values = {
        "data": "digits",
        "rounds": 12,
        "n": 8,
        "f": 2,
        "rule": "Bucketing(s=2) >> Median()",
        "attack": "ALittleIsEnough()",
        "model": "mlp(hidden=4)",
        "batch": 8,
        "reshuffle_every": 4,
        "evaluate_every": 4,
        "momentum": 0.9,
        "randomness": "released",
        "record": ("losses",),
    }
    return Run.of(values | changes)


def test_the_order_of_samples_is_the_one_that_was_released() -> None:
    """Read from the description alone: an independent loop over workers, blocks and rounds."""
    labels = DIGITS.train_y.tolist()
    by_label = sorted(range(len(labels)), key=lambda k: labels[k])
    size = -(-len(labels) // 6)
    filled = by_label + by_label[: 6 * size - len(labels)]
    for partition in ("by_label()", "iid()"):
        training = released_run(partition=partition).simulation()
        for block in range(3):
            for batch in range(4):
                mine = slice(8 * batch, 8 * batch + 8)
                for r, drawn in enumerate(training.batches.draw(range(6))):
                    own = filled[r * size :][:size] if partition == "by_label()" else filled[r::6]
                    order = shuffled(r**3 + block, size)
                    assert drawn.tolist() == [own[k] for k in order[mine]]
                for j, drawn in enumerate(training.own_batches.draw(range(2))):
                    order = shuffled(block, len(labels))[(6 + j) % 6 :: 6]
                    assert drawn.tolist() == order[mine]
            training.batches.reshuffle()
            training.own_batches.reshuffle()


def shuffled(seed: int, count: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def test_the_test_set_is_sorted_and_of_whole_batches() -> None:
    y = torch.arange(300) % 3
    data = Dataset("few", torch.arange(300.0)[:, None], y, torch.arange(300.0)[:, None], y, 3)
    found = whole_batches(data)
    assert found.test_y.tolist() == [0] * 100 + [1] * 100 + [2] * 56
    assert found.test_x[:100, 0].tolist() == list(range(0, 300, 3))
    assert len(found.train_y) == 300


def test_masks_are_the_same_for_all_and_those_of_cuda_where_released() -> None:
    cnn = bz.learning.cnn()
    masked(cnn, seed=1)
    assert type(cnn[4]) is type(cnn[8]) is FixedDropout
    x = torch.ones(32, 64, 2, 2)
    numbers = philox(1, 0, 32 * 64).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    expected = torch.from_numpy((numbers < 0.75) / np.float32(0.75)).view(32, 64, 1, 1)
    assert torch.equal(cnn[4](x), expected.to(x) * x)
    second = cnn[8](torch.ones(32, 128))
    numbers = philox(1, 1, 32 * 128).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    assert torch.equal(second > 0, torch.from_numpy(numbers < 0.5).view(32, 128))
    assert set(second.unique().tolist()) == {0.0, 2.0}
    cnn.eval()
    assert torch.equal(cnn[4](x), x)


@pytest.mark.parametrize(("dropout", "different"), [("fresh", 8), ("shared", 1)])
def test_shared_dropout_drops_the_same_for_all_workers_and_rounds(
    dropout: Any, different: int
) -> None:
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.Dropout(0.5), torch.nn.Linear(9, 10)
    )
    settings = Settings(n=4, rounds=9, batch=8, evaluate_every=9, dropout=dropout)
    rounds = iter(Simulation(settings, DIGITS, model, bz.Mean()))
    dropped = set()

    def note(layer: torch.nn.Module, x: Any, y: torch.Tensor) -> None:
        dropped.add(tuple((y == 0).flatten().tolist()))

    model[2].register_forward_hook(note)
    next(rounds)
    assert len(dropped) == min(4, different)
    next(rounds)
    assert len(dropped) == different


@pytest.mark.parametrize("attack", ["BitFlip()", "LabelFlip()", "InnerProduct()", "NoAttack()"])
def test_recorded_losses_are_means_over_all_workers(attack: str) -> None:
    """Attackers' batches count, with the labels that they train on."""
    run = released_run(attack=attack, attackers=2, rounds=2, evaluate_every=2)
    training, other = run.simulation(), run.simulation()
    for record in training:
        each = []
        for source, bad in ((other.batches, False), (other.own_batches, True)):
            for batch in source.draw(range(2 if bad else 6)):
                y = DIGITS.train_y[batch]
                y = 9 - y if bad and attack == "LabelFlip()" else y
                outputs = other.model(DIGITS.train_x[batch])
                each.append(float(torch.nn.functional.cross_entropy(outputs, y).detach()))
        assert record["losses"] == pytest.approx(sum(each) / 8, rel=1e-6)
        assert record["loss"] == pytest.approx(sum(each[:6]) / 6, rel=1e-6)
        other.model.load_state_dict(training.model.state_dict())


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", [5, 8])
def test_a_run_that_stops_at_a_round_goes_on_as_if_it_had_not(tmp_path: Path, until: int) -> None:
    run = released_run()
    store, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    folder = store.folder(run)
    for _ in range(2):  # the second time it is there already
        assert perform(run.until(until), folder) is None
        found = store.result(run)
        assert found.status == "unfinished"
        assert [line["round"] for line in found.metrics] == list(range(4, until + 1, 4))
        assert max(int(path.stem[-9:]) for path in folder.glob("checkpoint-*.pt")) == until
    assert perform(run, folder) is not None
    perform(run, whole.folder(run))
    assert store.result(run).metrics == whole.result(run).metrics
    assert [len(line["losses"]) for line in store.result(run).metrics] == [4, 4, 4]


def test_processes_leave_runs_at_a_round_and_take_the_next(tmp_path: Path) -> None:
    jobs = [released_run(seed=seed).until(8) for seed in range(3)]
    events = list[Event]()
    results = execute(jobs, Store(tmp_path), Processes(2), events.append)
    assert [result.status for result in results] == ["unfinished"] * 3
    assert [event.kind for event in events].count("paused") == 3
    assert all(result.metrics[-1]["round"] == 8 for result in results)


def test_a_run_with_released_numbers_is_another_run() -> None:
    run = released_run()
    plain = run.varied(randomness="fresh")
    shared = plain.varied(dropout="shared")
    assert len({run.identity, plain.identity, shared.identity}) == 3
    texts = [one.simulation().fingerprint() for one in (run, plain, shared)]
    assert len(set(texts)) == 3
    assert "randomness" not in texts[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"partition": "dirichlet(1)"}, "needs 'iid()' or 'by_label()' for partition, got"),
        ({"seed": 2**32}, "needs seed < 4294967296, got seed=4294967296"),
        ({"randomness": "old"}, "a run needs 'fresh' or 'released' for randomness"),
        ({"dropout": "none"}, "a run needs 'fresh' or 'shared' for dropout"),
    ],
)
def test_what_was_not_released_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        released_run(**changes)


def test_a_damaged_state_of_released_numbers_is_refused() -> None:
    training = released_run().simulation()
    rounds = iter(training)
    next(rounds)
    whole = training.state_dict()
    damages = [
        {"batches": {**whole["batches"], "passes": [-1] * 6}},
        {"batches": {**whole["batches"], "passes": [10**30] * 6}},
        {"own batches": {**whole["own batches"], "positions": [10**6] * 2}},
        {"generators": {**whole["generators"], "server": -whole["generators"]["server"]}},
    ]
    for damage in damages:
        with pytest.raises(CheckpointError):
            training.load_state_dict({**whole, **damage})
    training.load_state_dict(whole)
    next(rounds)


# -- artifacts -------------------------------------------------------------------------------------


def jobs(name: str, **version: Any) -> list[Run]:
    made = artifact(name, Version(released=True, **version)).jobs
    return [job for job in made if isinstance(job, Run)]


def test_a_released_version_has_the_numbers_of_each_seed() -> None:
    for run in jobs("figure-main"):
        assert (run.randomness, run.dropout, run.record) == ("released", "shared", ("losses",))
    mimic = [run.attack for run in jobs("table2", only="krum")]
    targets = (2, 4, 12, 14, 17, 1)  # iid, then sorted by label
    assert mimic == [f"Mimic(target={target})" for target in targets]
    assert {run.dropout for run in jobs("table2", dropout="fresh")} == {"fresh"}
    for run in jobs("table1"):
        rounds = run.rounds, run.reshuffle_every, run.evaluate_every
        assert (rounds, run.attack) == ((2250, 15, 15), "NoAttack()")
    version = Version(seeds=1, released=True)
    assert version.flags() == ["--seeds 1", "--released"]
    assert artifact("table2", version).stem == "table2-seeds-1-released"
    with pytest.raises(ValueError, match="no runs of figure-b2 can be repeated; those of table1,"):
        jobs("figure-b2")
    with pytest.raises(ValueError, match="released runs needs seeds <= 3, got seeds=4"):
        jobs("table2", seeds=4)


def test_cells_are_chosen_by_values_with_their_labels_or_without() -> None:
    for only in ("krum alie 0.0 1", "krum alie momentum=0.0 s=1", "krum,alie,0.0,1,noniid"):
        (run,) = jobs("figure-main", only=only, seeds=1)
        assert (run.rule, run.attack) == ("Krum(f=5, power=4)", "ALittleIsEnough()")
        assert run.momentum == 0
    assert len(jobs("figure-main", only="krum alie 1", seeds=1)) == 2
    with pytest.raises(ValueError, match="no cell of figure-main has all words of 'krum alie 3'"):
        jobs("figure-main", only="krum alie 3")


def test_the_command_stops_at_a_round_and_goes_on(tmp_path: Path) -> None:
    command = ["reproduce", "table2", "--released", "--only", "krum noniid", "--seeds", "1"]
    command += ["--data", "digits", "--model", "linear", "--rounds", "60", "--out", str(tmp_path)]
    stopped = CliRunner().invoke(main, [*command, "--until", "30"])
    assert stopped.exit_code == 0, stopped.output
    assert "1 of 1 stop at round 30; without --until they go on" in stopped.output
    (run,) = jobs("table2", only="krum noniid", seeds=1, data="digits", model="linear", rounds=60)
    assert Store(tmp_path).result(run).status == "unfinished"
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert Store(tmp_path).result(run).status == "completed"


def test_every_released_run_has_logged_losses() -> None:
    """Those of rounds 1, 11 and 21 of a block; with blocks of 15 rounds, 1 and 11."""
    for name in RELEASED:
        for cell in artifact(name).cells:
            for seed in range(3):
                logged = sorted(published.losses(name, cell.labels, seed))
                assert logged[:3] == ([1, 11, 16] if name in ("table1", "table3") else [1, 11, 21])
    assert published.losses("figure-b2", artifact("figure-b2").cells[0].labels, 0) == {}


class NearTie(NamedTuple):
    """A decision of the network that is all but undecided; the logged runs took the other side.

    - `layer`: the layer, max pooling (3) or a ReLU (7).
    - `call`: in which of its calls with gradients. Under label flips attackers compute them, too.
    - `place`: which of its inputs.
    - `equal`: up to which logged round the losses are equal with it decided the other way.
    """

    layer: int
    call: int
    place: tuple[int, ...]
    equal: int


NEAR_TIES = {
    "krum ipm momentum=0.9 s=2 noniid": NearTie(3, 8 * 20 + 10, (22, 60, 11, 18), 31),
    "krum alie momentum=0.9 s=2 noniid": NearTie(7, 9 * 20 + 10, (13, 73), 31),
    "cclip label-flip momentum=0.9 s=2 noniid": NearTie(7, 8 * 25 + 6, (14, 66), 21),
}
CELLS = [(name, cell) for name in RELEASED for cell in artifact(name, Version(seeds=1)).cells]


@pytest.mark.slow
@pytest.mark.skipif(
    "BYZANTIUM_DATA" not in os.environ, reason="BYZANTIUM_DATA names no folder with MNIST"
)
@pytest.mark.parametrize(("name", "cell"), CELLS, ids=lambda one: getattr(one, "name", one))
def test_losses_are_those_of_the_released_logs(name: str, cell: Cell) -> None:
    """The first three that were logged with seed 0, within 1e-5.

    Their rounding and ours differ, and a training under attack amplifies that: where float32 does
    not suffice, float64 must.
    """
    (run,) = jobs(name, only=cell.name, seeds=1)
    logged = sorted(published.losses(name, cell.labels, 0).items())[:3]
    worst = math.inf
    for dtype in ("float32", "float64"):
        training = run.varied(dtype=dtype).simulation()
        if cell.name in NEAR_TIES:
            force_tie(training, cell.name)
        worst = min(worst, difference(training, logged))
        if worst <= 1e-5:
            return
    assert worst <= 1e-5


def difference(training: Loop, logged: list[tuple[int, float]]) -> float:
    """The largest relative difference of losses from logged ones, given as (round, loss)."""
    losses = {}
    for record in training:
        losses[record["round"]] = record["losses"]
        if record["round"] == logged[-1][0]:
            break
    return max(abs(losses[k] / loss - 1) for k, loss in logged)


class Lowered(nn.Module):
    """A layer; in one of its calls with gradients, one of its inputs is lowered by 2e-6."""

    def __init__(self, layer: nn.Module, call: int, place: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.call, self.place, self.calls = layer, call, place, 0

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls == self.call:
                change = torch.zeros_like(x)
                change[self.place] = -2e-6
                x = x + change
        return self.layer(x)


def force_tie(training: Loop, cell: str) -> None:
    """Decide the near tie of a cell the other way."""
    tie, model = NEAR_TIES[cell], training.model
    assert isinstance(model, nn.Sequential)
    model[tie.layer] = Lowered(model[tie.layer], tie.call, tie.place)


@pytest.mark.slow
@pytest.mark.skipif(
    "BYZANTIUM_DATA" not in os.environ, reason="BYZANTIUM_DATA names no folder with MNIST"
)
@pytest.mark.parametrize("name", NEAR_TIES)
def test_one_near_tie_explains_the_difference(name: str) -> None:
    """With it decided the other way, losses up to some round are the logged ones to 6e-7."""
    (cell,) = (cell for _, cell in CELLS if cell.name == name)
    (run,) = jobs("figure-main", only=name, seeds=1)
    losses = published.losses("figure-main", cell.labels, 0)
    logged = sorted((at, loss) for at, loss in losses.items() if at <= NEAR_TIES[name].equal)
    training = run.simulation()
    force_tie(training, name)
    assert difference(training, logged) <= 6e-7
    assert difference(run.simulation(), logged) >= 1e-5
