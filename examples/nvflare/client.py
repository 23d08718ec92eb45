"""A site as in FLARE's own examples; `misbehave` is there only to rehearse attacks."""

from __future__ import annotations

import argparse
import time
from typing import Any

import nvflare.client as flare
import torch
from task import Network, part, test, train

State = dict[str, torch.Tensor]


def train_on_own_data(sites: int, behavior: str) -> None:
    """Train each model that the server sends on the data of this site, and send it back."""
    k = int(flare.get_site_name().rpartition("-")[2]) - 1
    x, y = part(k, sites)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model = Network()
        model.load_state_dict({name: torch.as_tensor(a) for name, a in received.params.items()})
        _, accuracy = test(model, x, y)
        train(model, x, y)
        params: Any = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        meta = {"NUM_STEPS_CURRENT_ROUND": len(x)}
        if behavior:
            params = misbehave(behavior, received.params, params, meta)
        flare.send(
            flare.FLModel(
                params=params,
                params_type=flare.ParamsType.FULL,
                metrics={"accuracy": accuracy},
                meta=meta,
            )
        )


def misbehave(behavior: str, received: Any, params: State, meta: dict[str, Any]) -> State:
    """What a broken or hostile site sends instead of its model."""
    model = {name: torch.as_tensor(array) for name, array in received.items()}
    match behavior:
        case "NaN":
            return {name: torch.full_like(a, float("nan")) for name, a in params.items()}
        case "flip":
            return {name: model[name] - 10 * (a - model[name]) for name, a in params.items()}
        case "noise":
            return {name: a + 10 * torch.randn_like(a) for name, a in params.items()}
        case "shapes":
            return {name: torch.cat([a.reshape(-1), torch.zeros(1)]) for name, a in params.items()}
        case "keys":
            return {**params, "unexpected": torch.zeros(1)}
        case "huge":
            return {**params, next(iter(params)): torch.zeros(4000, 1000)}
        case "steps":
            meta["NUM_STEPS_CURRENT_ROUND"] = 1e12
            return {name: model[name] - (a - model[name]) for name, a in params.items()}
        case "silence":
            time.sleep(3600)
        case "error":
            raise RuntimeError("this site fails on purpose")
    return params


def behavior_of(site: str, behaviors: str) -> str:
    """The behavior of a site, from a text such as `site-1=NaN,site-2=flip`; mostly empty."""
    return dict(one.split("=") for one in behaviors.split(",") if one).get(site, "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--byzantine", default="")
    arguments = parser.parse_args()
    flare.init()
    train_on_own_data(arguments.sites, behavior_of(flare.get_site_name(), arguments.byzantine))
