"""What PEFT itself makes of merged adapters: the logits of the dense computation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import adapter_folders  # first: it keeps the Hub out  # noqa: F401
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import byzantium as bz
from byzantium.engines import merge_adapters

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

IDS = torch.arange(20).reshape(2, 10) % 60


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


class Convolutions(nn.Module):
    """A model without transformers, with a kernel of 3 x 3 and one of 1 x 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3)
        self.second = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids: Tensor) -> Any:
        x = input_ids.to(self.head.bias).reshape(2, 1, 10, 1).expand(2, 1, 10, 5) / 10
        x = self.second(self.first(x).relu()).mean(dim=(2, 3))
        return type("Output", (), {"logits": self.head(x)})


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "attention": (llama, {"target_modules": ["q_proj", "v_proj"]}),
    "all linear, rsLoRA": (llama, {"target_modules": "all-linear", "use_rslora": True}),
    "patterns": (
        llama,
        {
            "target_modules": ["q_proj", "v_proj", "down_proj"],
            "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 6},
            "alpha_pattern": {"model.layers.1.self_attn.v_proj": 3},
        },
    ),
    "embedding and head": (
        llama,
        {"target_modules": ["embed_tokens", "q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "biases": (llama, {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "GPT-2": (gpt2, {"target_modules": ["c_attn", "c_proj"]}),
    "convolutions": (Convolutions, {"target_modules": ["first", "second", "head"]}),
}


def contributions(
    make: Callable[[], nn.Module], options: Mapping[str, Any], folder: Path
) -> tuple[nn.Module, list[Path], list[dict[str, Tensor]]]:
    """A model, folders of adapters for it, and what each makes of its weights, as PEFT says."""
    torch.manual_seed(0)
    model = make().eval()
    paths, merged = [], []
    for i in range(5):
        config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **options)
        wrapped = peft.get_peft_model(copy.deepcopy(model), config)
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if parameter.requires_grad:
                    size = 0.02 if "modules_to_save" in name or "bias" in name else 0.1
                    parameter.add_(size * torch.randn_like(parameter))
        paths.append(folder / f"c{i}")
        wrapped.save_pretrained(paths[-1])
        whole = wrapped.double().merge_and_unload()
        merged.append({name: one.detach().clone() for name, one in whole.state_dict().items()})
    return model, paths, merged


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("text", ["Mean()", "GeometricMedian()", "Krum(f=1)"])
@pytest.mark.parametrize("case", CASES)
def test_a_merged_adapter_gives_the_logits_of_the_dense_computation(
    tmp_path: Path, case: str, text: str
) -> None:
    make, options = CASES[case]
    model, paths, rows = contributions(make, options, tmp_path)
    start = {name: one.double() for name, one in model.state_dict().items()}
    summary = merge_adapters(bz.parse_rule(text), paths, tmp_path / "merged", rank="full")
    if case != "embedding and head":  # whose whole weights are long, and not changes
        report = bz.parse_rule(text).explain(rows, base=start)
        weights = torch.tensor([one["weight"] for one in summary["contributors"]])
        assert torch.allclose(weights, report.weights.float(), atol=1e-6)
    weights = torch.tensor([one["weight"] for one in summary["contributors"]]).double()
    dense = copy.deepcopy(model).double()
    dense.load_state_dict(
        {name: sum(w * row[name] for w, row in zip(weights, rows, strict=True)) for name in start}
    )
    expected = logits(dense)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "merged").eval()
    assert float((logits(loaded) - expected).abs().max()) <= 1e-5
    assert float((logits(model) - expected).abs().max()) > 1e-3

    # The same as weights of the model, without PEFT.
    base = {name: one.contiguous().clone() for name, one in model.state_dict().items()}
    save_file(base, tmp_path / "base.safetensors")
    output = tmp_path / "model.safetensors"
    merge_adapters(bz.parse_rule(text), paths, output, base=tmp_path / "base.safetensors")
    plain = make().eval()
    plain.load_state_dict(load_file(output))
    tolerance = 1e-5 if case != "embedding and head" else 1e-2  # the weights may be others
    assert float((logits(plain) - expected).abs().max()) <= tolerance


def test_a_cut_adapter_trains_on(tmp_path: Path) -> None:
    """Of a merged adapter of one contributor, padded to a larger rank, all ranks can be trained."""
    model, paths, _ = contributions(llama, {"target_modules": ["q_proj"]}, tmp_path)
    merge_adapters(bz.Krum(f=1), paths, tmp_path / "merged", rank=6)
    loaded = peft.PeftModel.from_pretrained(model, tmp_path / "merged", is_trainable=True)
    loaded(input_ids=IDS, labels=IDS).loss.backward()
    gradients = {name: one.grad for name, one in loaded.named_parameters() if one.grad is not None}
    for name, gradient in gradients.items():
        if "lora_B" in name:
            assert gradient.shape[1] == 6
            assert (gradient.norm(dim=0) > 0).all()
    assert len(gradients) == 4


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda: peft.LoraConfig(target_modules=["q_proj"], use_dora=True), "is a DoRA adapter"),
        (lambda: peft.LoHaConfig(target_modules=["q_proj"]), "'LOHA', not LORA"),
        (lambda: peft.LoKrConfig(target_modules=["q_proj"]), "'LOKR', not LORA"),
        (lambda: peft.LoraConfig(target_modules=["q_proj"], lora_bias=True), "no plain LoRA"),
    ],
)
def test_other_types_of_adapters_are_refused(
    tmp_path: Path, make: Callable[[], Any], refused: str
) -> None:
    _, paths, _ = contributions(llama, {"target_modules": ["q_proj"]}, tmp_path)
    peft.get_peft_model(llama(), make()).save_pretrained(tmp_path / "other")
    summary = merge_adapters(bz.Krum(f=1), [*paths, tmp_path / "other"], tmp_path / "merged")
    assert refused in summary["contributors"][-1]["rejected"]
