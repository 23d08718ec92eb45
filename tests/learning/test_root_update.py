"""Root data: what training on them gives, compared with slow loops."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import byzantium as bz
from byzantium.learning import RootUpdate, root_gradient


def network(seed: int = 0) -> nn.Sequential:
    """With statistics of batches, a counter, dropout and a parameter that is not trained."""
    torch.manual_seed(seed)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    model = nn.Sequential(*layers)
    layers[0].bias.requires_grad_(False)
    return model


def samples(n: int = 18, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % classes


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples()), batch_size=6, **options)


def snapshot(model: nn.Module) -> list[Any]:
    state = [tensor.clone() for tensor in model.state_dict().values()]
    modes = [module.training for module in model.modules()]
    return [state, modes, [None if p.grad is None else p.grad.clone() for p in model.parameters()]]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def trained_by_hand(model: nn.Module, epochs: int, rate: float) -> dict[str, Tensor]:
    """A loop without an optimizer."""
    x, y = samples()
    for _ in range(epochs):
        for start in range(0, len(x), 6):
            model.zero_grad()
            loss = functional.cross_entropy(model(x[start : start + 6]), y[start : start + 6])
            torch.autograd.backward(loss)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(rate * parameter.grad)
    return model.state_dict()


def plain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def test_it_is_what_a_loop_of_local_epochs_gives() -> None:
    start = plain(seed=5).state_dict()
    state = {name: tensor.numpy().copy() for name, tensor in start.items()}
    found = RootUpdate(plain(), loader(), learning_rate=0.3, epochs=2)(state)
    expected = trained_by_hand(plain(seed=5), epochs=2, rate=0.3)
    assert list(found) == list(expected)
    for name, array in found.items():
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float32
        assert np.allclose(array, expected[name].numpy(), atol=1e-6)
        assert np.array_equal(state[name], start[name].numpy())  # what came in is unchanged


def test_the_module_is_left_as_it_was_also_after_an_error() -> None:
    model = network().eval()
    model[1].train()
    model.get_parameter("0.weight").grad = torch.ones(8, 4)
    before = snapshot(model)
    root = RootUpdate(model, loader(shuffle=True), momentum=0.9)
    changed = root()
    assert equal(snapshot(model), before)
    assert not np.allclose(changed["4.weight"], before[0][-2])
    assert int(changed["1.num_batches_tracked"]) == 3
    root_gradient(model, loader())
    assert equal(snapshot(model), before)

    def broken() -> Iterator[Any]:
        yield samples()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        RootUpdate(model, broken())()
    assert equal(snapshot(model), before)


def test_a_seed_fixes_dropout_and_order_and_touches_no_other_generator() -> None:
    def three(seed: int) -> list[dict[str, Tensor]]:
        root = RootUpdate(network(), loader(shuffle=True), seed=seed)
        return [root() for _ in range(3)]

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, torch_state = three(1), torch.get_rng_state()
    torch.manual_seed(9)
    again, other = three(1), three(2)
    torch.manual_seed(0)
    network()
    assert torch.equal(torch_state, torch.get_rng_state()), "only the network draws"
    assert not torch.equal(state, torch_state)
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(first[0]["4.weight"], other[0]["4.weight"])
    assert not torch.equal(first[0]["4.weight"], first[1]["4.weight"]), "each round draws anew"


def test_momentum_goes_on_over_rounds_and_after_a_restart() -> None:
    beta, model = 0.75, plain()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    root, bare = RootUpdate(model, loader(), momentum=beta), RootUpdate(model, loader())
    other = {name: tensor + 1 for name, tensor in start.items()}
    m: dict[str, Tensor] = {}
    states = [start, other, start]
    for k, state in enumerate(states):
        restarted = RootUpdate(model, loader(), momentum=beta)
        restarted.load_state_dict(root.state_dict())
        found, again, without = root(state), restarted(state), bare(state)
        for name in state:
            change = without[name] - state[name]
            m[name] = beta * m[name] + (1 - beta) * change if k else change
            assert torch.allclose(found[name], state[name] + m[name], atol=1e-6)
            assert torch.equal(found[name], again[name])


def test_another_optimizer_and_half_precision() -> None:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    state = {name: t.numpy().astype(np.float16) for name, t in plain().state_dict().items()}
    found = RootUpdate(plain(), [samples()], optimizer=adam)(state)
    for name, array in found.items():
        assert array.dtype == np.float16
        steps = np.abs(array.astype(float) - state[name])
        assert np.allclose(steps[steps > 0], 0.01, atol=1e-3)  # the first step of Adam is the rate


def test_the_root_gradient_is_that_of_the_whole_data_in_batches_of_any_size() -> None:
    x, y = samples(17)
    batches = [(x[:5], y[:5]), (x[5:6], y[5:6]), (x[6:], y[6:])]
    model = plain()
    found = root_gradient(model, batches)
    torch.autograd.backward(functional.cross_entropy(model(x), y))
    expected = torch.cat([torch.as_tensor(p.grad).reshape(-1) for p in model.parameters()])
    assert torch.allclose(found, expected, atol=1e-6)
    assert not found.requires_grad


def test_parameters_without_use_count_as_zero_and_those_not_trained_are_omitted() -> None:
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gradient = root_gradient(model, loader())
    assert gradient.shape == (trained,)
    assert gradient[:2].tolist() == [0, 0]


@pytest.mark.parametrize("make", [RootUpdate, root_gradient])
def test_a_missing_class_is_named(make: Any) -> None:
    x, y = samples(12, 3)
    y[y == 1] = 0

    def run(**options: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = make(plain(), [(x, y)], **options)
            if make is RootUpdate:
                result(), result()
        return [str(one.message) for one in caught]

    (told,) = run()
    assert "lack the classes 1:" in told
    (told,) = run(classes=30)
    assert "lack the classes 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...:" in told
    y[:2] = 1
    assert not run()
    assert not run(loss=lambda out, targets: out.sum() * targets.float().mean())


def test_targets_that_are_no_labels_lack_no_class() -> None:
    x = torch.randn(6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        root_gradient(plain(), [(x, 5 + torch.rand(6, 3))], functional.mse_loss)
        RootUpdate(plain(), [(x, 5 + torch.rand(6, 3))], functional.mse_loss)()


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([], "no batches"),
        (iter(()), "a generator can be read only once"),
        ([{"x": torch.ones(2, 4)}], r"a pair \(inputs, targets\), got a dict"),
        ([(torch.ones(2, 4), [0, 1])], "targets must be a tensor, got a list"),
    ],
)
def test_bad_batches_get_one_sentence(batches: Any, told: str) -> None:
    for call in (lambda: root_gradient(plain(), batches), RootUpdate(plain(), batches)):
        with pytest.raises(bz.ByzantiumError, match=told):
            call()


def test_another_model_gets_one_sentence() -> None:
    state = plain().state_dict()
    lacking = {name: one for name, one in state.items() if name != "2.bias"}
    cases = {
        "lacks '2.bias'": lacking,
        "has 'more'": {**state, "more": torch.ones(1)},
        r"shape \(9,\) in the global model and \(8,\)": {**state, "0.bias": torch.ones(9)},
    }
    for told, given in cases.items():
        with pytest.raises(bz.ByzantiumError, match=told):
            RootUpdate(plain(), loader())(given)
    frozen = plain().requires_grad_(False)
    with pytest.raises(bz.ByzantiumError, match="no parameters to train"):
        RootUpdate(frozen, loader())()
    with pytest.raises(bz.ByzantiumError, match="no parameters to train"):
        root_gradient(frozen, loader())


@pytest.mark.parametrize(
    "options", [{"epochs": 0}, {"seed": -1}, {"momentum": 1.0}, {"classes": 0}]
)
def test_parameters_are_checked(options: Any) -> None:
    with pytest.raises(bz.ByzantiumError, match=next(iter(options)).replace("momentum", "beta")):
        RootUpdate(plain(), loader(), **options)
