"""The matrix of gradients is what a plain loop over the workers computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from byzantium.data import load
from byzantium.learning import Settings, Simulation, models
from byzantium.learning.gradients import WorkerGradients, set_parameters, vector_of
from byzantium.rules import MatrixRule

N, B = 4, 5
SHAPE = (1, 28, 28)


def batches(shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, B, *shape, generator=generator)
    return x, torch.randint(10, (N, B), generator=generator)


def in_the_order_of(parameter: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """The values of a gradient in the order in which its parameter lies in memory."""
    order = sorted(range(piece.ndim), key=parameter.stride().__getitem__, reverse=True)
    return piece.permute(order).reshape(-1)


def by_hand(model: nn.Module, x: Tensor, y: Tensor, seeds: list[int] | None = None) -> Tensor:
    rows = []
    for i in range(len(x)):
        if seeds is not None:
            torch.manual_seed(seeds[i])
        loss = functional.cross_entropy(model(x[i]), y[i])
        pieces = torch.autograd.grad(loss, list(model.parameters()))
        flat = zip(model.parameters(), pieces, strict=True)
        rows.append(torch.cat([in_the_order_of(p, piece) for p, piece in flat]))
    return torch.stack(rows)


@pytest.fixture(params=["linear", "mlp", "cnn", "own"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(1)
    made: dict[str, nn.Module] = {
        "linear": models.linear(SHAPE),
        "mlp": models.mlp(SHAPE, hidden=(16, 8)),
        "cnn": models.cnn(),
        "own": nn.Sequential(
            nn.Conv2d(1, 3, 5, stride=4), nn.GroupNorm(1, 3), nn.Flatten(), nn.LazyLinear(10)
        ),
    }
    chosen = made[request.param]
    chosen(torch.zeros(1, *SHAPE))
    return chosen


def test_gradients_agree_with_a_plain_loop(model: nn.Module) -> None:
    x, y = batches()
    gradients = WorkerGradients(model)
    matrix = torch.full((N, gradients.d), torch.nan)
    seeds = [11, 12, 13, 14]
    losses = gradients(matrix, x[:, None], y[:, None], seeds=seeds)
    expected = by_hand(model, x, y, seeds)
    assert (matrix - expected).abs().max() <= 1e-6
    torch.manual_seed(seeds[2])
    third = functional.cross_entropy(model(x[2]), y[2]).detach()
    assert float(losses[2]) == pytest.approx(float(third), abs=1e-6)


def test_gradients_at_models_of_their_own_agree_with_a_plain_loop(model: nn.Module) -> None:
    x, y = batches()
    gradients = WorkerGradients(model)
    seeds = [11, 12, 13, 14]
    before = vector_of(gradients.columns)
    models = before + 0.1 * torch.randn(N, gradients.d, generator=torch.Generator().manual_seed(2))
    matrix = torch.full((N, gradients.d), torch.nan)
    losses = gradients(matrix, x[:, None], y[:, None], seeds=seeds, models=models)
    assert torch.equal(vector_of(gradients.columns), before)
    for i in range(N):
        set_parameters(gradients.columns, models[i])
        expected = by_hand(model, x[i : i + 1], y[i : i + 1], seeds[i : i + 1])[0]
        assert (matrix[i] - expected).abs().max() <= 1e-6 * max(1, float(expected.abs().max()))
        torch.manual_seed(seeds[i])
        loss = functional.cross_entropy(model(x[i]), y[i]).detach()
        assert float(losses[i]) == pytest.approx(float(loss), rel=1e-5)


def test_local_steps_start_at_a_worker_s_own_model() -> None:
    x, y = (torch.stack([one, one.flip(0)], dim=1) for one in batches())
    model = models.mlp(SHAPE, hidden=(16,))
    gradients = WorkerGradients(model)
    before = vector_of(gradients.columns)
    own = before + 0.1 * torch.randn(N, gradients.d, generator=torch.Generator().manual_seed(2))
    together, alone = torch.zeros(N, gradients.d), torch.zeros(N, gradients.d)
    gradients(together, x, y, rate=0.1, models=own)
    assert torch.equal(vector_of(gradients.columns), before)
    for i in range(N):
        set_parameters(gradients.columns, own[i])
        gradients(alone[i : i + 1], x[i : i + 1], y[i : i + 1], rate=0.1)
    assert torch.equal(together, alone)


def test_both_ways_agree_where_both_apply() -> None:
    x, y = batches()
    gradients = WorkerGradients(models.mlp(SHAPE, hidden=(16,)))
    assert gradients.batched
    at_once, streamed = torch.zeros(N, gradients.d), torch.zeros(N, gradients.d)
    losses = gradients(at_once, x[:, None], y[:, None])
    gradients.batched = False
    assert torch.allclose(gradients(streamed, x[:, None], y[:, None]), losses, atol=1e-6)
    assert (at_once - streamed).abs().max() <= 1e-6


def test_momentum_is_kept_in_the_matrix(model: nn.Module) -> None:
    x, y = batches()
    gradients = WorkerGradients(model)
    before = torch.randn(N, gradients.d)
    matrix = before.clone()
    seeds = [1, 2, 3, 4]
    gradients(matrix, x[:, None], y[:, None], keep=0.9, share=0.1, seeds=seeds)
    assert torch.allclose(matrix, 0.9 * before + 0.1 * by_hand(model, x, y, seeds), atol=1e-6)


def test_the_structure_of_the_model_decides() -> None:
    assert WorkerGradients(models.linear(SHAPE)).batched
    assert WorkerGradients(models.mlp(SHAPE)).batched
    assert not WorkerGradients(models.cnn()).batched
    assert not WorkerGradients(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))).batched

    class Own(nn.Sequential):
        """Whose forward could mix the samples of different workers."""

    assert not WorkerGradients(Own(nn.Linear(3, 3))).batched
    assert not WorkerGradients(models.mlp(SHAPE, hidden=(2000,))).batched  # large


def test_dropout_follows_the_seed_of_the_worker_and_leaves_the_global_one_alone() -> None:
    x, y = batches()
    x[1], y[1] = x[0], y[0]
    gradients = WorkerGradients(models.cnn())
    first, second = torch.zeros(N, gradients.d), torch.zeros(N, gradients.d)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    gradients(first, x[:, None], y[:, None], seeds=[1, 2, 3, 4])
    assert torch.equal(torch.get_rng_state(), state)
    gradients(second, x[:, None], y[:, None], seeds=[1, 1, 3, 4])
    assert torch.equal(second[0], first[0])
    assert torch.equal(second[1], first[0])
    assert not torch.equal(first[1], first[0])


def test_the_model_is_left_as_it_was() -> None:
    x, y = batches()
    model = models.cnn()
    before = [p.detach().clone() for p in model.parameters()]
    gradients = WorkerGradients(model)
    gradients(torch.zeros(N, gradients.d), x[:, None], y[:, None])
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_frozen_parameters_have_no_column() -> None:
    model = models.mlp((6,), hidden=(4,))
    model[1].requires_grad_(False)
    gradients = WorkerGradients(model)
    assert gradients.d == 4 * 10 + 10
    x, y = batches((6,))
    gradients(torch.zeros(N, gradients.d), x[:, None], y[:, None])


def test_what_nobody_would_aggregate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"keeps 1.running_mean, 1.running_var, 1.num_batches"):
        WorkerGradients(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match="no parameters to train"):
        WorkerGradients(nn.Flatten())
    gradients = WorkerGradients(models.linear((2,)))
    with pytest.raises(ValueError, match=r"must have shape \(4, 30\)"):
        gradients(torch.zeros(4, 3), torch.zeros(4, 1, 5, 2), torch.zeros(4, 1, 5).long())


def test_scale_multiplies_the_channels() -> None:
    wide = models.cnn(scale=2)
    assert [tuple(p.shape) for p in wide.parameters()][:3] == [
        (64, 1, 3, 3),
        (64,),
        (128, 64, 3, 3),
    ]
    assert wide(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_several_local_steps_send_how_far_the_worker_went() -> None:
    x, y = batches((6,))
    model = models.mlp((6,), hidden=(4,))
    gradients = WorkerGradients(model)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    matrix = torch.zeros(2, gradients.d)
    # Two workers take two steps each.
    gradients(matrix, x.view(2, 2, B, 6), y.view(2, 2, B), rate=0.3, share=0.5)
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), start)
    for worker in range(2):
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.3)
        for step in range(2):
            optimizer.zero_grad()
            k = 2 * worker + step
            functional.cross_entropy(local(x[k]), y[k]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        end = torch.cat([p.detach().flatten() for p in local.parameters()])
        assert torch.allclose(matrix[worker], 0.5 * (start - end) / 0.3, atol=1e-5)


def test_a_layer_used_twice_and_a_loss_of_ones_own_are_batched_right() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 10, bias=False))
    x, y = batches((6,))

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels) ** 2

    gradients = WorkerGradients(model, loss)
    assert gradients.batched
    at_once, streamed = torch.zeros(N, gradients.d), torch.zeros(N, gradients.d)
    gradients(at_once, x[:, None], y[:, None])
    gradients.batched = False
    gradients(streamed, x[:, None], y[:, None])
    assert (at_once - streamed).abs().max() <= 1e-6


def test_the_gradient_of_the_pooling_is_that_of_torch_to_the_bit() -> None:
    torch.manual_seed(0)
    ours = models.cnn()
    plain = copy.deepcopy(ours)
    plain[3] = torch.nn.MaxPool2d(2)
    x, y = torch.randn(2, 1, 8, 1, 28, 28), torch.randint(10, (2, 1, 8))
    rows = []
    for model in (ours, plain):
        gradients = WorkerGradients(model)
        rows.append(torch.zeros(2, gradients.d))
        gradients(rows[-1], x, y, seeds=[3, 4])
    assert torch.equal(*rows)


class Threads(MatrixRule):
    """The mean, which notes with how many threads torch computes."""

    def aggregate(self, updates: Tensor) -> Tensor:
        SEEN.append(torch.get_num_threads())
        return updates.mean(dim=0)


SEEN: list[int] = []


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("hidden", "threads"), [(64, 1), (4096, 2)])
def test_a_small_model_uses_one_thread_and_gives_the_others_back(hidden: int, threads: int) -> None:
    settings = Settings(n=10, rounds=2, record=())
    network = models.mlp((1, 8, 8), (hidden,))
    SEEN.clear()
    for _ in Simulation(settings, load("digits"), network, Threads()):
        assert torch.get_num_threads() == 2
    assert len(SEEN) == 2
    assert set(SEEN) == {threads}
