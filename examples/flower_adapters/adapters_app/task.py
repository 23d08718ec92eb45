"""The task: a small transformer that counts learns to count in threes, by an adapter."""

from __future__ import annotations

import functools
import logging
import warnings
from typing import Any

import torch
from flwr.app import ArrayRecord
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # peft calls it
logging.getLogger("transformers").setLevel(logging.ERROR)
TOKENS, LENGTH = 29, 12


def sequences(step: int, first: Tensor) -> Tensor:
    """Sequences of tokens, each of which is the one before it plus a step."""
    return (first[:, None] + step * torch.arange(LENGTH)) % TOKENS


def train(model: nn.Module, batches: int, step: int, first: Tensor) -> None:
    """Train a model to count in such steps, from some first tokens."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    for _ in range(batches):
        ids = sequences(step, first[torch.randint(len(first), (32,))])
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


@functools.cache
def base() -> dict[str, Tensor]:
    """The weights of the transformer, which counts; nothing is downloaded."""
    torch.manual_seed(0)
    model = transformer()
    train(model, 300, 1, torch.arange(TOKENS))
    return dict(model.state_dict())


def transformer() -> nn.Module:
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def adapted(arrays: ArrayRecord | None = None) -> Any:
    """The transformer with an adapter: a new one, which changes nothing, or one from arrays."""
    weights, model = base(), transformer()
    model.load_state_dict(weights)
    torch.manual_seed(1)
    wrapped = get_peft_model(
        model,
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    )
    if arrays is not None:
        set_peft_model_state_dict(wrapped, arrays.to_torch_state_dict())
    return wrapped


def factors(model: Any) -> dict[str, Tensor]:
    """What a client sends: the factors of the adapter, by PEFT's names."""
    return dict(get_peft_model_state_dict(model))


def accuracy(arrays: ArrayRecord) -> float:
    """How many tokens of sequences in threes the model predicts after the fourth, in percent."""
    ids = sequences(3, torch.arange(TOKENS))
    with torch.no_grad():
        predicted = adapted(arrays).eval()(input_ids=ids).logits.argmax(dim=2)
    return 100 * float((predicted[:, 3:-1] == ids[:, 4:]).float().mean())
