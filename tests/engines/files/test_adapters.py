"""Folders of LoRA adapters: their products are merged, and nothing that one claims is believed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_folders as adapters
import pytest
import torch
from adapter_folders import BEFORE, SHAPES
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import byzantium as bz
from byzantium.cli import main
from byzantium.engines import Adapters, merge, merge_adapters
from byzantium.engines.files.adapter_config import AdapterConfig
from byzantium.engines.files.input_files import UnreadableError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def near(result: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    for name, one in expected.items():
        assert float((result[name].double() - one).norm()) <= tolerance * float(one.norm()), name


def settings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / CONFIG).read_text())


# -- what is merged -----------------------------------------------------------------------------


def test_the_products_are_merged_and_not_the_factors(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path)
    merge_adapters(bz.Mean(), folders, tmp_path / "merged", rank="full")
    expected = adapters.mean(folders, [2.0] * 6)
    config = AdapterConfig(settings(tmp_path / "merged"))
    result = {k: v * config.scale(k) for k, v in adapters.update(tmp_path / "merged", 1.0).items()}
    near(result, expected)
    assert config.rank("q") == 20  # all of the matrix, as 6 x 4 is more
    assert config.rank("v") == 8
    means = {
        name: torch.stack([load_file(f / WEIGHTS)[name] for f in folders]).mean(dim=0)
        for name in load_file(folders[0] / WEIGHTS)
    }
    wrong = 2 * means[f"{BEFORE}q.lora_B.weight"] @ means[f"{BEFORE}q.lora_A.weight"]
    assert float((wrong - expected["q"]).norm()) > 0.5 * float(expected["q"].norm())


@pytest.mark.parametrize("rank", [None, 1, 3, 6])
def test_a_cut_says_what_it_loses(tmp_path: Path, rank: int | None) -> None:
    folders = adapters.several(tmp_path)
    summary = merge_adapters(bz.GeometricMedian(), folders, tmp_path / "merged", rank=rank)
    weights = [one["weight"] for one in summary["contributors"]]
    rows = [adapters.update(folder, 2.0) for folder in folders]
    lost, square = 0.0, 0.0
    config = AdapterConfig(settings(tmp_path / "merged"))
    merged = adapters.update(tmp_path / "merged", 1.0)
    for name in SHAPES:
        whole = sum(w * row[name] for w, row in zip(weights, rows, strict=True))
        assert isinstance(whole, Tensor)
        U, s, V = torch.linalg.svd(whole, full_matrices=False)
        k = min(rank or 4, 8) if name == "v" else rank or 4
        near({"": merged[name] * config.scale(name)}, {"": U[:, :k] * s[:k] @ V[:k]})
        lost, square = lost + float(s[k:].square().sum()), square + float(s.square().sum())
        of_module = summary["adapters"]["modules"][name]
        assert of_module["rank"] == k
        assert of_module["lost"] == pytest.approx(float(s[k:].square().sum() / s.square().sum()))
    assert summary["adapters"]["lost"] == pytest.approx(lost / square)
    with safe_open(tmp_path / "merged" / WEIGHTS, "pt") as file:
        assert json.loads(file.metadata()["byzantium"]) == summary


@pytest.mark.parametrize("rslora", [False, True])
def test_scales_come_from_the_configuration(tmp_path: Path, rslora: bool) -> None:
    patterns = {"rank_pattern": {"v": 2}, "alpha_pattern": {"^q": 5, "other": 9}}
    folders = []
    for i in range(5):
        tensors = adapters.state(i)
        tensors |= {k: v for k, v in adapters.state(i, 2).items() if "v.lora" in k}
        folders.append(adapters.save(tmp_path / f"c{i}", tensors, use_rslora=rslora, **patterns))
    merge_adapters(bz.Krum(f=1), folders, tmp_path / "merged")
    source = Adapters(folders)
    found = bz.Krum(f=1).explain(source)
    q, v = (5 / 2, 8 / 2**0.5) if rslora else (5 / 4, 8 / 2)
    winner = adapters.update(folders[int(found.weights.argmax())], 1.0)
    expected = {"q": q * winner["q"], "v": v * winner["v"]}
    near({name: found.aggregate[BEFORE + name] for name in SHAPES}, expected)
    config = AdapterConfig(settings(tmp_path / "merged"))
    assert {config.rank(name) for name in SHAPES} == {4, 2}
    merged = adapters.update(tmp_path / "merged", 1.0)
    near({name: merged[name] * config.scale(name) for name in SHAPES}, expected)


def test_trusted_scales_are_those_of_each_contributor(tmp_path: Path) -> None:
    folders = [
        adapters.save(tmp_path / f"c{i}", adapters.state(i, i + 1), r=i + 1, lora_alpha=3)
        for i in range(5)
    ]
    with pytest.raises(bz.ByzantiumError, match="no configuration is shared by more than half"):
        merge_adapters(bz.Mean(), folders, tmp_path / "merged")
    summary = merge_adapters(
        bz.Mean(), folders, tmp_path / "merged", rank="full", trust_scales=True
    )
    config = AdapterConfig(settings(tmp_path / "merged"))
    merged = adapters.update(tmp_path / "merged", 1.0)
    expected = adapters.mean(folders, [3 / (i + 1) for i in range(5)])
    near({name: merged[name] * config.scale(name) for name in SHAPES}, expected)
    assert not any(one["rejected"] for one in summary["contributors"])
    usual = merge_adapters(bz.Mean(), folders, tmp_path / "usual", trust_scales=True)
    assert {one["rank"] for one in usual["adapters"]["modules"].values()} == {5}


def test_the_configuration_of_the_operator_counts(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path / "four", 3, r=4)
    folders += [
        adapters.save(tmp_path / f"alpha{i}", adapters.state(9 + i), lora_alpha=16)
        for i in range(2)
    ]
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**adapters.CONFIG, "target_modules": ["v", "q"]}))
    with pytest.raises(bz.TooManyRejected, match=r"lora_alpha = '16.0' instead of '8.0'"):
        merge_adapters(bz.Krum(f=1), folders, tmp_path / "merged", config=own)
    summary = merge_adapters(bz.GeometricMedian(), folders, tmp_path / "merged", config=own)
    rejected = [one["name"] for one in summary["contributors"] if one["rejected"]]
    assert rejected == ["alpha0", "alpha1"]
    assert settings(tmp_path / "merged")["base_model_name_or_path"] == "tiny"


def test_text_that_only_one_contributor_writes_is_not_in_the_output(tmp_path: Path) -> None:
    """What loads an adapter would import and download by these names."""
    evil = {
        "auto_mapping": {"parent_library": "evil"},
        "base_model_name_or_path": "evil/model",
        "revision": "evil",
    }
    folders = [adapters.save(tmp_path / "a", adapters.state(9), **evil)]
    folders += adapters.several(tmp_path / "b", 4)
    merge_adapters(bz.Krum(f=1), folders, tmp_path / "merged")
    merged = settings(tmp_path / "merged")
    assert "evil" not in json.dumps(merged)
    assert merged["base_model_name_or_path"] == "tiny"
    with safe_open(tmp_path / "merged" / WEIGHTS, "pt") as file:
        assert "evil" not in file.metadata()["byzantium"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    folders = []
    for i in range(5):
        tensors = {name: tensor.to(dtype) for name, tensor in adapters.state(i).items()}
        tensors[f"{BEFORE}norm.weight"] = torch.full((7,), 1.0 + i)
        tensors[f"{BEFORE}steps"] = torch.tensor([i])
        folders.append(adapters.save(tmp_path / f"c{i}", tensors))
    merge_adapters(bz.Mean(), folders, tmp_path / "merged", rank="full")
    merged = load_file(tmp_path / "merged" / WEIGHTS)
    assert merged[f"{BEFORE}q.lora_A.weight"].dtype == dtype
    assert merged[f"{BEFORE}norm.weight"].tolist() == [3.0] * 7
    assert merged[f"{BEFORE}steps"].tolist() == [2]
    config = AdapterConfig(settings(tmp_path / "merged"))
    result = {k: v * config.scale(k) for k, v in adapters.update(tmp_path / "merged", 1.0).items()}
    near(result, adapters.mean(folders, [2.0] * 5), max(1e-14, 4 * torch.finfo(dtype).eps))


def test_a_root_is_the_adapter_of_the_operator(tmp_path: Path) -> None:
    folders = [adapters.save(tmp_path / f"c{i}", adapters.state(0, size=-3.0)) for i in range(3)]
    folders += [
        adapters.save(tmp_path / f"d{i}", adapters.state(0, size=1 + i / 9)) for i in range(2)
    ]
    root = adapters.save(tmp_path / "root", adapters.state(0))
    summary = merge_adapters(bz.RootMatching(f=3), folders, tmp_path / "merged", root=root)
    weights = [one["weight"] for one in summary["contributors"]]
    assert max(weights[:3]) < 0.01
    assert sum(weights) == pytest.approx(1)
    assert set(summary["root"]) == {WEIGHTS}
    for rule, given, error in (
        ("RootMatching(f=3)", None, "needs a root .* the folder of an adapter"),
        ("Krum(f=1)", root, "does not use a root"),
        ("FLTrust()", tmp_path / "nowhere", "the root .* cannot be opened"),
        (
            "FLTrust()",
            adapters.save(tmp_path / "x", adapters.state(0), r=5),
            "with r = '5' instead",
        ),
    ):
        with pytest.raises(bz.ByzantiumError, match=error):
            merge_adapters(bz.parse_rule(rule), folders, tmp_path / "merged", root=given)


# -- the weights of the model -------------------------------------------------------------------


def model_weights(path: Path) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(99)
    weights = {f"{name}.weight": torch.randn(*shape, generator=g) for name, shape in SHAPES.items()}
    weights |= {"other.weight": torch.randn(1000, 3, generator=g).bfloat16(), "n": torch.tensor(3)}
    save_file(weights, path)
    return weights


@pytest.mark.parametrize("text", ["GeometricMedian()", "Median()", "Bulyan(f=1)", "Mean()"])
def test_the_update_is_added_to_a_base(tmp_path: Path, text: str) -> None:
    weights = model_weights(tmp_path / "base.safetensors")
    folders, output = adapters.several(tmp_path, 7), tmp_path / "merged.safetensors"
    rule = bz.parse_rule(text)
    summary = merge_adapters(rule, folders, output, base=tmp_path / "base.safetensors")
    rows = [adapters.update(folder, 2.0) for folder in folders]
    dense = bz.parse_rule(text)(rows)
    merged = load_file(output)
    near(merged, {f"{name}.weight": weights[f"{name}.weight"] + dense[name] for name in SHAPES})
    assert set(merged) == set(weights)
    assert torch.equal(merged["other.weight"], weights["other.weight"])
    assert merged["n"] == 3
    assert "adapters" not in summary
    assert set(summary["base"]) == {"base.safetensors"}


def test_a_base_with_a_rank(tmp_path: Path) -> None:
    weights = model_weights(tmp_path / "base.safetensors")
    folders, output = adapters.several(tmp_path), tmp_path / "merged.safetensors"
    base = tmp_path / "base.safetensors"
    summary = merge_adapters(bz.Mean(), folders, output, base=base, rank=3)
    merged = load_file(output)
    for name, whole in adapters.mean(folders, [2.0] * 6).items():
        U, s, V = torch.linalg.svd(whole, full_matrices=False)
        expected = weights[f"{name}.weight"] + U[:, :3] * s[:3] @ V[:3]
        near({"": merged[f"{name}.weight"]}, {"": expected})
        assert summary["adapters"]["modules"][name]["rank"] == 3
    with pytest.raises(bz.ByzantiumError, match="has no rank to cut to"):
        merge_adapters(bz.Median(), folders, output, base=base, rank=3)


def test_whole_modules_replace_those_of_the_base(tmp_path: Path) -> None:
    """And the rule sees how they changed, not how large they are."""
    weights = model_weights(tmp_path / "base.safetensors")
    folders = []
    for i in range(5):
        tensors = adapters.state(i) | {
            f"{BEFORE}other.weight": weights["other.weight"] + i,
            f"{BEFORE}new.weight": torch.ones(2),
        }
        folders.append(adapters.save(tmp_path / f"c{i}", tensors, modules_to_save=["other", "new"]))
    base, output = tmp_path / "base.safetensors", tmp_path / "merged.safetensors"
    clipping = bz.Clipping(radius=1e-3) >> bz.Mean()
    merge_adapters(clipping, folders, output, base=base)
    merged = load_file(output)
    assert float((merged["other.weight"] - weights["other.weight"]).float().norm()) < 0.01
    assert merged["new.weight"].shape == (2,)
    merge_adapters(bz.Median(), folders, output, base=base)
    near(load_file(output), {"other.weight": (weights["other.weight"] + 2).double()}, 1e-2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"q.weight": None}, "the base has no weights for 'base_model.model.q'"),
        ({"q.weight": torch.ones(7, 20)}, r"the base has the shape \(7, 20\) at 'q.weight'"),
        ({"q.weight": torch.ones(20, 30)}, r"the base has the shape \(20, 30\) at 'q.weight'"),
        ({"q.weight": torch.full((30, 20), torch.nan)}, "not finite at 'q.weight'"),
    ],
)
def test_a_base_that_does_not_fit(tmp_path: Path, change: Any, error: str) -> None:
    path, output = tmp_path / "base.safetensors", tmp_path / "merged.safetensors"
    weights: dict[str, Any] = {**model_weights(path), **change}
    save_file({name: one for name, one in weights.items() if one is not None}, path)
    for rule in (bz.Mean(), bz.Median()):
        with pytest.raises(bz.ByzantiumError, match=error):
            merge_adapters(rule, adapters.several(tmp_path), output, base=path)
        assert not output.exists()


def test_rules_by_coordinate_need_a_base(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path, 7)
    with pytest.raises(bz.ByzantiumError, match=r"Median\(\) needs .* give a base \(--base FILE\)"):
        merge_adapters(bz.Median(), folders, tmp_path / "merged")


# -- strangers ----------------------------------------------------------------------------------


def rewritten(**config: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / CONFIG).write_text(json.dumps({**adapters.CONFIG, **config}))

    return spoil


def raw_config(content: bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / CONFIG).write_bytes(content))


def void(_: object) -> None:
    pass


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = adapters.state(0)
        change(state)
        save_file(state, folder / WEIGHTS)

    return spoil


def cut_off(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-8])


def linked(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        outside = folder.parent / f"outside-{name}"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return spoil


A, B = f"{BEFORE}q.lora_A.weight", f"{BEFORE}q.lora_B.weight"
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "another alpha": (rewritten(lora_alpha=800), "lora_alpha = '800.0' instead of '8.0'"),
    "another rank": (rewritten(r=1), "with r = '1' instead of '4'"),
    "rsLoRA": (rewritten(use_rslora=True), "use_rslora = 'true' instead of 'null'"),
    "an alpha pattern": (rewritten(alpha_pattern={"q": 1e6}), "with alpha_pattern = "),
    "other targets": (rewritten(target_modules=["q", "k", "v"]), "with target_modules = "),
    "a regular expression": (rewritten(rank_pattern={"(a+)+$": 4}), "no plain name"),
    "many patterns": (rewritten(rank_pattern={f"x{k}": 4 for k in range(1001)}), "more than 1000"),
    "alpha NaN": (raw_config(b'{"peft_type": "LORA", "r": 4, "lora_alpha": NaN}'), "no JSON"),
    "alpha infinite": (
        raw_config(b'{"peft_type": "LORA", "r": 4, "lora_alpha": 1e999}'), "no positive number"
    ),
    "alpha a text": (rewritten(lora_alpha="8"), "no positive number"),
    "alpha zero": (rewritten(lora_alpha=0), "no positive number"),
    "r true": (rewritten(r=True), "no positive number"),
    "r huge": (rewritten(r=10**30), "no positive number"),
    "r of many digits": (raw_config(b'{"r": ' + b"9" * 5000 + b"}"), "no JSON"),
    "a rank that is a list": (rewritten(rank_pattern={"q": [4]}), "rank_pattern makes no sense"),
    "patterns in a list": (rewritten(alpha_pattern=[1]), "alpha_pattern makes no sense"),
    "rsLoRA a text": (rewritten(use_rslora="yes"), "neither true nor false"),
    "DoRA": (rewritten(use_dora=True), "is a DoRA adapter"),
    "LoHa": (rewritten(peft_type="LOHA"), "of the type 'LOHA', not LORA"),
    "LoKr": (rewritten(peft_type="LOKR"), "of the type 'LOKR', not LORA"),
    "no type": (rewritten(peft_type=None), "of the type 'None', not LORA"),
    "a type that is a list": (rewritten(peft_type=["LORA"]), "not LORA"),
    "PiSSA": (rewritten(init_lora_weights="pissa_niter_4"), "changes the weights of the base"),
    "an unhashable start": (rewritten(init_lora_weights={"a": 1}), "changes the weights"),
    "experts": (rewritten(target_parameters=["x"]), "has 'target_parameters'"),
    "the unknown": (rewritten(use_new_lora=True), "has 'use_new_lora'"),
    "no object": (raw_config(b"[1]"), "no object of JSON"),
    "no JSON": (raw_config(b"{"), "no JSON"),
    "nested": (raw_config(b'{"a":' * 9999 + b"1" + b"}" * 9999), "no JSON"),
    "twice": (raw_config(b'{"r": 4, "r": 5}'), "twice"),
    "large": (raw_config(b'{"a": "' + b"x" * (1 << 20) + b'"}'), "more than 1048576 bytes"),
    "no configuration": (lambda f: (f / CONFIG).unlink(), "cannot be opened"),
    "no numbers": (lambda f: (f / WEIGHTS).unlink(), "cannot be opened"),
    "a pickle": (
        lambda f: void((f / WEIGHTS).write_bytes(b"PK\x03\x04" + b"x" * 99)), "is a pickle"
    ),
    "a pickle beside": (
        lambda f: void((f / WEIGHTS).rename(f / "adapter_model.bin")), "cannot be opened"
    ),
    "a header that lies": (cut_off, "bytes where its header says"),
    "a link of numbers": (linked(WEIGHTS), "leads out of its folder by a link"),
    "a link of settings": (linked(CONFIG), "leads out of its folder by a link"),
    "NaN": (tensors(lambda s: s[A].fill_(torch.nan)), "not finite, or of norm above 1e+18"),
    "absurd": (tensors(lambda s: (s[A].mul_(1e10), s[B].mul_(1e10))), "of norm above 1e+18"),
    "infinite times zero": (tensors(lambda s: (s[A].zero_(), s[B].fill_(torch.inf))), "not finite"),
    "rank of the shapes": (
        tensors(lambda s: s.update(adapters.state(0, 3))), "where its configuration says the rank 4"
    ),
    "ranks that differ": (tensors(lambda s: s.update({A: s[A][:2]})), "says the rank 4"),
    "another shape": (tensors(lambda s: s.update({B: torch.ones(31, 4)})), "the shape (31, 20)"),
    "another module": (
        tensors(lambda s: s.update({k.replace("q.", "k."): s.pop(k) for k in (A, B)})),
        "lacks the entry",
    ),
    "a module more": (
        tensors(lambda s: s.update({k.replace("q.", "k."): s[k].clone() for k in (A, B)})),
        "that the others lack",
    ),
    "one factor": (tensors(lambda s: s.pop(A)), "lacks the factor A"),
    "a vector": (tensors(lambda s: s.update({A: torch.ones(4)})), "is no matrix"),
    "integers": (tensors(lambda s: s.update({A: s[A].long()})), "is no matrix"),
    "two factors of a name": (
        tensors(lambda s: s.update({A.removesuffix(".weight"): s[A].clone()})), "has two factors A"
    ),
    "a magnitude": (
        tensors(lambda s: s.update({f"{BEFORE}q.lora_magnitude_vector": torch.ones(30)})),
        "is a DoRA adapter",
    ),
    "a bias of B": (
        tensors(lambda s: s.update({f"{BEFORE}q.lora_B.bias": torch.ones(30)})), "no plain LoRA"
    ),
    "a dtype": (tensors(lambda s: s.update({k: s[k].half() for k in (A, B)})), "torch.float16"),
    "nothing at all": (lambda f: save_file({"x": torch.ones(1)}, f / WEIGHTS), "no factors"),
    "far too much": (
        tensors(lambda s: s.update({f"{BEFORE}big": torch.ones(99999)})),
        "more than 4 times the usual",
    ),
}  # fmt: skip


@pytest.mark.parametrize("trust", [False, True], ids=["shared", "trusted"])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_stranger_is_rejected_with_a_reason(tmp_path: Path, what: str, trust: bool) -> None:
    """One of seven; also as the first, whose form might be taken for that of all."""
    spoil, reason = HOSTILE[what]
    folders = adapters.several(tmp_path, 7)
    spoil(folders[0])
    summary = merge_adapters(bz.Krum(f=1), folders, tmp_path / "merged", trust_scales=trust)
    reasons = [one["rejected"] for one in summary["contributors"]]
    assert reasons[1:] == [None] * 6
    if trust and reasons[0] is None:
        assert what in ("another alpha", "rsLoRA", "an alpha pattern")  # what is trusted then
    elif not (trust and what == "another rank"):  # its factors have rank 4
        assert reasons[0] is not None
        assert reason in reasons[0]
        assert reasons[0].isprintable()


def test_a_majority_of_lies_is_an_error_that_names_all(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path, 7)
    for folder in folders[:2]:
        rewritten(lora_alpha=9)(folder)
    with pytest.raises(bz.TooManyRejected, match=r"workers c0, c1 \(has a configuration with"):
        merge_adapters(bz.Krum(f=1), folders, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(bz.ByzantiumError, match="shared by more than half of the 1 contributors"):
        merge_adapters(bz.Mean(), [tmp_path], tmp_path / "merged")
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**adapters.CONFIG, "r": 5}))
    with pytest.raises(bz.TooManyRejected, match="none of 7 low-rank updates"):
        merge_adapters(bz.Mean(), folders, tmp_path / "merged", config=own)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"r": 0}, "no positive number"),
        ({"peft_type": "LOHA"}, "not LORA"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern for '\\('"),
    ],
)
def test_an_operator_with_a_wrong_configuration(tmp_path: Path, content: Any, error: str) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**adapters.CONFIG, **content}))
    with pytest.raises(bz.ByzantiumError, match=f"the configuration .*own.json .*{error}"):
        merge_adapters(bz.Mean(), adapters.several(tmp_path), tmp_path / "merged", config=own)


def test_patterns_mean_what_they_mean_for_peft() -> None:
    patterns = {"layers.0.q": 2, r"^model\.layers.1.q": 3, "v": 5}
    config = AdapterConfig({**adapters.CONFIG, "rank_pattern": patterns})
    for name, rank in (
        ("model.layers.0.q", 2),
        ("layers.0.q", 2),
        ("xlayers.0.q", 4),
        ("model.layers.1.q", 3),
        ("x.model.layers.1.q", 4),
        ("a.v", 5),
        ("a.vv", 4),
    ):
        assert config.rank(BEFORE + name) == rank, name
    again = config.with_ranks({"base_model.model.a.q": 7, "base_model.model.b.q": 7, "c.q": 1})
    assert [again.rank(name) for name in ("a.q", "b.q", "c.q", "d.c.q")] == [7, 7, 1, 7]
    with pytest.raises(UnreadableError):
        AdapterConfig({**adapters.CONFIG, "alpha_pattern": {"a|b": 4}}).check()


# -- the output ---------------------------------------------------------------------------------


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path)
    before = {path: path.read_bytes() for folder in folders for path in folder.iterdir()}
    (tmp_path / "link").symlink_to(folders[0])
    (tmp_path / "hard").mkdir()
    os.link(folders[1] / CONFIG, tmp_path / "hard" / CONFIG)
    for output in (folders[2], tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(bz.ByzantiumError, match="one of the files that are read"):
            merge_adapters(bz.Mean(), folders, output)
    (tmp_path / "file").write_text("x")
    with pytest.raises(bz.ByzantiumError, match="no folder to write in"):
        merge_adapters(bz.Mean(), folders, tmp_path / "file")
    assert before == {path: path.read_bytes() for folder in folders for path in folder.iterdir()}


def test_an_output_is_replaced(tmp_path: Path) -> None:
    folders, merged = adapters.several(tmp_path), tmp_path / "merged"
    merge_adapters(bz.Mean(), folders, merged, rank="full")
    merge_adapters(bz.Krum(f=1), folders, merged)
    assert sorted(path.name for path in merged.iterdir()) == [CONFIG, WEIGHTS]
    assert settings(merged)["r"] == 4
    assert load_file(merged / WEIGHTS)[A].shape == (4, 20)


def test_equal_adapters_are_named(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path, 5)
    folders += [adapters.save(tmp_path / "copy", adapters.state(3))]
    summary = merge_adapters(bz.GeometricMedian(), folders, tmp_path / "merged")
    assert [one["equal_to"] for one in summary["contributors"]] == [
        [],
        [],
        [],
        ["copy"],
        [],
        ["c3"],
    ]
    assert len(summary["contributors"][0]["sha256"][WEIGHTS]) == 64


def test_a_seed_repeats_a_result(tmp_path: Path) -> None:
    folders, rule = adapters.several(tmp_path, 7), bz.Bucketing(s=2) >> bz.Krum(f=0)
    for name in "ab":
        merge_adapters(rule, folders, tmp_path / name, seed=3)
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()


def test_wrong_arguments(tmp_path: Path) -> None:
    folders = adapters.several(tmp_path)
    for rank in (0, -1, 1.5, True, "half"):
        with pytest.raises(bz.ByzantiumError, match="rank"):
            merge_adapters(bz.Mean(), folders, tmp_path / "merged", rank=rank)  # type: ignore[arg-type]
    with pytest.raises(bz.ByzantiumError, match="needs a list of folders"):
        Adapters(folders[0])  # type: ignore[arg-type]
    with pytest.raises(bz.ByzantiumError, match="at least one folder"):
        Adapters([])
    with pytest.raises(bz.ByzantiumError, match="name the folders of the adapters"):
        merge(bz.Mean(), [folder / WEIGHTS for folder in folders], tmp_path / "merged.safetensors")


# -- the command --------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["aggregate", *map(str, arguments)])


def test_the_command_names_the_poisoned_one(tmp_path: Path) -> None:
    folders = [
        adapters.save(tmp_path / f"c{i}", adapters.state(i // 9, size=1 + i / 99)) for i in range(5)
    ]
    folders.append(adapters.save(tmp_path / "eve", adapters.state(77, size=-40.0)))
    rewritten(lora_alpha=1e4)(adapters.save(tmp_path / "mallory", adapters.state(0)))
    done = run(
        "--rule", "GeometricMedian()", *folders, tmp_path / "mallory", "-o", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    lines = {line.split()[1]: line for line in done.output.splitlines() if line.startswith("│")}
    assert "rejected: has a" in lines["mallory"]
    assert float(lines["eve"].split()[3]) < 0.02
    assert float(lines["c2"].split()[3]) > 0.1
    assert lines["q"].split()[3] == "4"
    assert "in total" in done.output
    assert f"merged: {tmp_path / 'out'}" in done.output.replace("\n", "")


def test_the_options_of_the_command(tmp_path: Path) -> None:
    weights = model_weights(tmp_path / "base.safetensors")
    folders = adapters.several(tmp_path)
    (tmp_path / "own.json").write_text(json.dumps(adapters.CONFIG))
    done = run(
        *("--rule", "Krum(f=1)", "--rank", "full", "--config", tmp_path / "own.json", "--seed", 1),
        *("--trust-scales", "--json", *folders, "-o", tmp_path / "out"),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["adapters"]["modules"]["q"] == {"rank": 4, "lost": 0.0}
    file = tmp_path / "merged.safetensors"
    done = run("--rule", "Median()", "--base", tmp_path / "base.safetensors", *folders, "-o", file)
    assert done.exit_code == 0, done.output
    assert set(load_file(file)) == set(weights)
    for arguments, error in (
        (("--rank", "0"), "'0' is neither"),
        (("--rank", "x"), "'x' is neither"),
        (("--force",), "--force is for files"),
        (("--config", tmp_path / "none.json"), "does not exist"),
    ):
        done = run("--rule", "Krum(f=1)", *arguments, *folders, "-o", tmp_path / "out")
        assert done.exit_code
        assert error in done.output
    for option in (("--rank", "4"), ("--trust-scales",)):
        done = run(
            "--rule", "Krum(f=1)", *option, tmp_path / "base.safetensors", "-o", tmp_path / "z"
        )
        assert done.exit_code
        assert "no configuration is shared" in " ".join(done.output.split())


@pytest.mark.parametrize("rule", [bz.Mean(), bz.GeometricMedian()], ids=repr)
def test_a_contributor_of_weight_three_counts_as_three(rule: bz.Aggregator, tmp_path: Path) -> None:
    folders = adapters.several(tmp_path)[:4]
    copies = []
    for name in ("again", "once more"):
        (tmp_path / name).symlink_to(folders[0], target_is_directory=True)
        copies.append(tmp_path / name)
    sizes = tmp_path / "sizes.toml"
    sizes.write_text("\n".join(f"{f.name} = {3 if f == folders[0] else 1}" for f in folders))
    done = run("--rule", repr(rule), "--weights", sizes, *folders, "-o", tmp_path / "by-weight")
    assert done.exit_code == 0, done.output
    merge_adapters(rule, [*folders, *copies], tmp_path / "repeated")
    near(adapters.update(tmp_path / "by-weight", 1.0), adapters.update(tmp_path / "repeated", 1.0))


def test_many_modules_are_summed_up(tmp_path: Path) -> None:
    shapes = {f"layer{k}.q": (6, 5) for k in range(30)}
    folders = [
        adapters.save(tmp_path / f"c{i}", adapters.state(i, shapes=shapes)) for i in range(5)
    ]
    done = run("--rule", "Mean()", "--rank", "2", *folders, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "6 others" in done.output
    assert done.output.count("layer") == 24
