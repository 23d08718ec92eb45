"""Data, models, losses and numbers of one's own: files, users, regression, float64, devices."""

from __future__ import annotations

import functools
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from click.testing import CliRunner
from torch import nn
from user_data import arrays

import byzantium as bz
from byzantium.cli import main
from byzantium.data import Dataset, by_user, load
from byzantium.data import user_files as own
from byzantium.learning import Settings, Simulation, convnet, losses, mlp, resnet20
from byzantium.learning.models import check_fit
from byzantium.learning.worker import Momentum, Workers
from byzantium.reports.contents import contents as page_contents
from byzantium.runs import Run, Store, check_ready, perform
from byzantium.runs import builders as parts

SMALL: dict[str, Any] = {"n": 7, "f": 1, "rounds": 4, "evaluate_every": 2, "batch": 8}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BYZANTIUM_DATA", raising=False)


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my.npz", "my.safetensors"])
def test_a_file_is_a_data_set(name: str) -> None:
    held = arrays(user_train=np.arange(60) // 10)
    np.savez("my.npz", **held)
    safetensors.numpy.save_file(held, "my.safetensors")
    data = load(name)
    assert repr(data) == "<my: 60 samples to learn from and 9 to test with, 3, 3 classes>"
    assert torch.equal(data.train_x, torch.from_numpy(held["x_train"]))
    assert torch.equal(data.test_x, torch.from_numpy(held["x_test"]).float())
    assert torch.equal(data.test_y, torch.from_numpy(held["y_test"]))
    assert data.train_user is not None
    assert data.train_user.tolist() == held["user_train"].tolist()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 9, 9), (6, 1, 9, 9)),
        ((6, 9, 9, 3), (6, 3, 9, 9)),
        ((6, 3, 9, 9), (6, 3, 9, 9)),
        ((6, 9), (6, 9)),
    ],
)
def test_pixels_have_their_channels_first_and_are_at_most_one(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    held = arrays(x_train=pixels, x_test=pixels, y_train=np.arange(6), y_test=np.arange(6)[:, None])
    np.savez("my.npz", **held)
    x = load("my.npz").train_x
    assert tuple(x.shape) == expected
    channels_last = shape[-1] == 3
    again = (x.movedim(1, 3) if channels_last else x.reshape(shape)) * 255
    assert np.array_equal(again.round().numpy().astype(np.uint8), pixels)


OBJECTS = np.array([{"a": 1}, None], dtype=object)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"y_test": None}, "lacks the array y_test; it needs x_train, y_train, x_test"),
    "pickled": ({"x_train": OBJECTS}, "holds no arrays that can be read: Object arrays cannot"),
    "words": ({"y_train": np.array(["a"] * 60)}, "y_train must hold a number for each sample"),
    "flat": ({"x_train": np.zeros(60)}, "x_train must hold numbers of shape (N, ...)"),
    "infinite": ({"x_train": np.full((60, 3), np.inf)}, "needs samples of finite numbers to learn"),
    "fewer": ({"y_train": np.arange(59)}, "got 60 samples and 59 targets"),
    "shapes": ({"x_test": np.zeros((9, 4))}, "samples of 3 to learn from and of 4 to test with"),
    "kinds": ({"y_test": np.zeros(9)}, "y_train and y_test must both hold classes"),
    "negative": ({"y_train": np.arange(60) - 1}, "needs labels from 0 to 58, got -1 to 58"),
    "users": ({"user_train": np.zeros(5, dtype=int)}, "a user for each of 60 samples"),
    "no users": ({"user_train": np.zeros(60)}, "user_train must hold a number for each sample"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_data_set_is_one_sentence(name: str) -> None:
    changes, sentence = BAD[name]
    np.savez("my.npz", **arrays(**changes))
    with pytest.raises(bz.ByzantiumError, match=re.escape(sentence)) as caught:
        load("my.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["my.npz", "my.safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", pickle.dumps({"x_train": 1}), bytes(999)])
def test_bytes_that_are_no_arrays_are_one_sentence(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(bz.ByzantiumError, match=f"{name} (holds no arrays|lacks)"):
        load(name)


@pytest.mark.parametrize("content", [b"x_train,y_train\n1,2\n", b"", b"\x93NUMPY", b"PK\x03\x04"])
def test_what_is_no_npz_file_is_called_that(content: bytes) -> None:
    Path("my.npz").write_bytes(content)
    with pytest.raises(bz.ByzantiumError, match=r"my.npz holds .*: it is no .npz file") as caught:
        load("my.npz")
    assert "pickle" not in str(caught.value)


def test_nothing_pickled_is_executed() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, ("executed",)

    np.savez("my.npz", **arrays(), allow_pickle=True, extra=np.array([Evil()], dtype=object))
    load("my.npz")
    np.savez("my.npz", **arrays(x_train=np.array([Evil()] * 60, dtype=object)))
    with pytest.raises(bz.ByzantiumError):
        load("my.npz")
    assert not Path("executed").exists()


def test_a_run_is_known_by_the_contents_of_its_data_and_not_by_their_place() -> None:
    np.savez("my.npz", **arrays())
    run = Run(data="my.npz", partition="iid", **SMALL)
    assert re.fullmatch(r"my\.npz sha256:[0-9a-f]{16}", run.data)
    Path("there").mkdir()
    Path("my.npz").rename("there/my.npz")
    assert Run(data="there/my.npz", partition="iid", **SMALL) == run
    summary = perform(run.varied(data=str(Path("there/my.npz").absolute())), Path("results/x"))
    assert summary is not None
    assert summary["data"]["my.npz"].startswith(run.data.removeprefix("my.npz "))
    np.savez("there/my.npz", **arrays(y_train=(np.arange(60) + 1) % 3))
    parts.dataset.cache_clear()
    with pytest.raises(bz.ByzantiumError, match="has changed: its contents were sha256:"):
        run.varied(seed=3).dataset()
    assert Run(data="there/my.npz", partition="iid", **SMALL).identity != run.identity


def test_data_that_are_not_here_are_named_and_results_of_them_can_be_read() -> None:
    np.savez("my.npz", **arrays())
    run, store = Run(data="my.npz", partition="iid", **SMALL), Store("results")
    perform(run, store.folder(run))
    Path("my.npz").unlink()
    own._places.clear()
    assert [result.ending for result in store] == ["completed"]
    parts.dataset.cache_clear()
    with pytest.raises(
        bz.ByzantiumError, match=r"my.npz sha256:.* were not found; say where: --data"
    ):
        run.varied(seed=1).dataset()


# -- users, torch's data sets ---------------------------------------------------------------------


def test_by_user_deals_whole_users(tmp_path: Path) -> None:
    users = torch.tensor([4, 4, 9, 1, 9, 9, 2, 1])
    y = torch.zeros(8).long()
    for workers in (1, 2, 3, 4):
        dealt = by_user()(y, workers, torch.Generator().manual_seed(3), users)
        assert sorted(torch.cat(dealt).tolist()) == list(range(8))
        held = [set(users[part].tolist()) for part in dealt]
        assert all(not a & b for k, a in enumerate(held) for b in held[:k])
        assert max(map(len, held)) - min(map(len, held)) <= 1
    with pytest.raises(bz.ByzantiumError, match="as many workers as there are users, 4, got work"):
        by_user()(y, 5, torch.Generator(), users)
    with pytest.raises(bz.ByzantiumError, match="needs data that say to whom each sample belongs"):
        check_ready([Run(partition="by_user", **SMALL)])


def test_a_run_by_user_gives_each_honest_worker_its_own() -> None:
    np.savez("my.npz", **arrays(user_train=np.arange(60) // 10))
    run = Run(data="my.npz", partition="by_user", attack="Mimic(warmup=1)", **SMALL)
    training = run.simulation()
    assert sorted(len(part) for part in training.batches.parts) == [10] * 6
    for part in training.batches.parts:
        assert len({k // 10 for k in part.tolist()}) == 1


def test_data_sets_of_torch_are_taken_as_they_are() -> None:
    class Squares(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, k: int) -> tuple[torch.Tensor, float]:
            return torch.tensor([float(k)]), k**2 + 0.5

    data = Dataset.of_torch("squares", Squares(), Squares())
    assert data.classes == 0
    assert data.train_y.tolist() == [k**2 + 0.5 for k in range(10)]
    uneven: list[Any] = [(torch.zeros(2), 0), (torch.zeros(3), 0)]
    for wrong in ([], [1, 2], uneven, iter(uneven)):
        with pytest.raises(bz.ByzantiumError, match="mine needs"):
            Dataset.of_torch("mine", wrong, wrong)


# -- losses ---------------------------------------------------------------------------------------


def line(noise: float = 0.0) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 3.0]) + 4
    return Dataset("line", x[:300], y[:300], x[300:], y[300:], classes=0)


def write_line() -> None:
    data = line()
    np.savez(
        "line.npz",
        **{
            f"{a}_{b}": getattr(data, f"{b}_{a}").numpy()
            for a in ("x", "y")
            for b in ("train", "test")
        },
    )


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber(delta=2)"])
def test_regression_is_a_loss(loss: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    settings = Settings(n=9, attackers=2, rounds=120, learning_rate=0.2, loss=loss)
    rule = bz.Bucketing(s=2) >> bz.GeometricMedian()
    training = Simulation(settings, line(), model, rule, bz.InnerProduct())
    list(training)
    assert set(training.history.evaluations[-1]) == {"round", "loss"}
    assert training.history.evaluations[-1]["loss"] < 0.1
    assert np.allclose(model.weight.detach().numpy(), [[1, -2, 3]], atol=0.2)
    other = Simulation(settings, line(), nn.Linear(3, 1), rule, bz.InnerProduct())
    other.load_result(training.result())
    assert other.history.evaluations == training.history.evaluations


def test_a_run_of_regression_reports_its_loss_and_no_accuracy() -> None:
    write_line()
    run = Run(data="line.npz", model="linear", loss="squared", partition="iid", **SMALL)
    store = Store("results")
    check_ready([run])
    summary = perform(run, store.folder(run))
    assert summary is not None
    assert summary["loss"] > 0
    assert "accuracy" not in summary
    (result,) = store
    assert result.done
    assert result.accuracy is None
    for changes, sentence in (
        ({"loss": "cross_entropy"}, "does not fit line|one number"),
        ({"partition": "by_label"}, "needs a whole number for each sample as labels"),
        ({"long_tail": 2.0}, "long_tail needs data with classes"),
        ({"attack": "LabelFlip()"}, "needs labels of classes"),
    ):
        with pytest.raises(bz.ByzantiumError, match=sentence):
            begun(run.varied(**changes))


def test_a_table_of_regression_has_losses_and_the_largest_is_the_worst() -> None:
    write_line()
    Path("s.toml").write_text(
        """
        [fixed]
        data = "line.npz"
        model = "linear"
        loss = "squared"
        partition = "iid"
        n = 9
        f = 2
        rounds = 30
        evaluate_every = 5
        learning_rate = 0.1
        momentum = 0
        [varies]
        seed = [0, 1, 2, 3]
        rule = ["Mean()", "Median()"]
        attack = ["BitFlip()", "InnerProduct(epsilon=0.1)"]
        """,
        encoding="utf-8",
    )
    done = CliRunner().invoke(main, ["sweep", "s.toml", "--table", "t.md", "--table", "t.csv"])
    assert done.exit_code == 0, done.output
    text = Path("t.md").read_text(encoding="utf-8")
    assert "Test loss; mean" in text
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    head, rows = table[0], {row[0]: row[1:] for row in table[2:]}
    assert head[1] == "worst"
    losses = {
        rule: [float(cell.strip("*").partition(" ")[0]) for cell in cells]
        for rule, cells in rows.items()
    }
    assert all(worst == max(others) > 0 for worst, *others in losses.values())
    assert losses["CM"][0] < losses["Mean"][0]
    assert rows["CM"][0].startswith("**")
    contents = page_contents(Store("results"), [])
    assert contents["headline"] is None  # it speaks of percents
    (shown,) = contents["tables"]
    assert shown["measure"] == "loss"
    assert shown["judged"]


def begun(run: Run) -> None:
    check_ready([run])
    list(run.simulation())


def test_every_loss_has_the_gradient_of_its_definition() -> None:
    """Workers' rows, batched and one by one, against autograd on each worker alone."""
    x, y = torch.randn(4, 1, 8, 3), torch.randn(4, 1, 8)
    small, large = nn.Sequential(nn.Linear(3, 1)), nn.Sequential(nn.Linear(3, 1), nn.Softplus())
    for model in (small, large):
        for text in ("squared", "absolute", "huber(delta=0.5)"):
            loss = losses.read(text)
            workers = Workers(model, 4, loss)
            workers.compute(workers.sent, range(4), x, y, Momentum(0.0), rate=1.0, seeds=[0] * 4)
            for i in range(4):
                alone = loss(model(x[i, 0]), y[i, 0])
                gradient = torch.autograd.grad(alone, list(model.parameters()))
                expected = torch.cat([g.flatten() for g in gradient])
                assert torch.allclose(workers.sent[i], expected, atol=1e-6)


def test_any_function_is_a_loss_in_python() -> None:
    settings = Settings(n=5, rounds=3)
    smooth = functools.partial(nn.functional.cross_entropy, label_smoothing=0.2)
    data = load("digits")
    history = Simulation(settings, data, mlp((1, 8, 8)), bz.Mean(), loss=smooth)
    list(history)
    assert "accuracy" in history.history.evaluations[-1]
    with pytest.raises(bz.ByzantiumError, match="a loss must give one number"):
        Simulation(settings, data, mlp((1, 8, 8)), bz.Mean(), loss=lambda out, y: out)


# -- model and data -------------------------------------------------------------------------------


def test_models_for_pictures_fit_them_and_have_no_state() -> None:
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    data = Dataset("pictures", x, y, x, y, classes=10)
    for model in (convnet(), resnet20(), convnet(width=12), resnet20(width=4)):
        check_fit(model, data, losses.cross_entropy)
        assert not list(model.buffers())
        a, b = model(x), model(x[:1])
        assert torch.allclose(a[:1], b, atol=1e-5)  # no sample sees another


def test_a_small_picture_model_learns_from_a_run() -> None:
    run = Run(model="convnet(width=8)", partition="iid", n=4, f=0, rounds=40)
    training = run.simulation()
    list(training)
    assert training.history.accuracy > 60


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Linear(64, 10), "does not fit digits, whose samples are 1 x 8 x 8"),
        (
            mlp((1, 8, 8), classes=7),
            r"an answer of shape \(7,\) for each sample, and digits has 10",
        ),
        (mlp((1, 28, 28)), "does not fit digits"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)), "BatchNorm"),
        (nn.LSTM(8, 8), "does not fit digits"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_model_that_does_not_fit_the_data_is_one_sentence_before_any_work(
    model: nn.Module, sentence: str
) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence) as caught:
        Simulation(Settings(n=5, rounds=3), load("digits"), model, bz.Mean())
    assert "\n" not in str(caught.value)


# -- numbers and devices --------------------------------------------------------------------------


def test_a_run_in_float64_is_in_float64_everywhere() -> None:
    run = Run(dtype="float64", attack="Mimic()", momentum=0.9, record=("heterogeneity",), **SMALL)
    training = run.simulation()
    list(training)
    assert training.sent.dtype == torch.float64
    assert training.data.train_x.dtype == torch.float64
    assert {p.dtype for p in training.model.parameters()} == {torch.float64}
    narrow = run.varied(dtype="float32").simulation()
    list(narrow)
    assert run.identity != run.varied(dtype="float32").identity
    wide, small = (t.history.evaluations[-1]["loss"] for t in (training, narrow))
    assert wide != small
    assert abs(wide - small) < 1e-3
    other = run.simulation()
    other.load_result(training.result())
    with pytest.raises(ValueError, match="another simulation"):
        narrow.load_result(training.result())


def test_a_device_that_is_not_here_is_one_sentence_and_results_of_it_can_be_read() -> None:
    run = Run(device="cuda:7", **SMALL)
    assert run.identity != Run(**SMALL).identity
    with pytest.raises(bz.ByzantiumError, match="cannot use the device 'cuda:7'"):
        check_ready([run])
    with pytest.raises(bz.ByzantiumError, match="'meta', which holds no numbers"):
        Run(device="meta", **SMALL).simulation()


LAYERS = {
    "batched": [nn.Flatten(), nn.Linear(64, 10)],
    "one by one": [nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)],
    "pictures": list(convnet(1)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_workers_compute_where_the_model_is(name: str) -> None:
    """Where there are only shapes: torch refuses to mix those tensors with any that are here."""
    model = nn.Sequential(*LAYERS[name]).to("meta")
    workers = Workers(model, 3)
    for steps in (1, 2):
        x = torch.empty(3, steps, 4, 1, 8, 8, device="meta")
        y = torch.zeros(3, steps, 4, dtype=torch.long, device="meta")
        found = workers.compute(
            workers.sent, range(3), x, y, Momentum(0.9), rate=0.1, seeds=[1, 2, 3]
        )
        assert {found.device.type, workers.sent.device.type} == {"meta"}
