"""The server: the strategy is the one line that differs from Flower's own examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum, Strategy

from byzantium.engines.flower import RobustStrategy
from robust import rehearsal
from robust.task import digits, network, test

app = ServerApp()


def strategy_of(context: Context, which: str) -> Strategy:
    """Ours, or one of Flower's."""
    run, nodes = context.run_config, int(context.run_config["min-nodes"])
    least: dict[str, Any] = {
        "min_train_nodes": nodes,
        "min_available_nodes": nodes,
        "fraction_evaluate": 0.0,
    }
    f = int(run["f"])
    match which:
        case "FedAvg":
            return FedAvg(**least)
        case "FedMedian":
            return FedMedian(**least)
        case "FedTrimmedAvg":
            return FedTrimmedAvg(beta=0.25, **least)
        case "Krum":
            return Krum(num_malicious_nodes=f, **least)
    return RobustStrategy(
        str(run["rule"]),
        f=f,
        folder=str(run["folder"]) or None,
        name=str(run["name"]),
        node_timeout=float(run["node-timeout"]),
        **least,
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds of the run, and test after each."""
    data = digits()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = network()
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(model, data.test_x, data.test_y)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    if context.run_config["rehearse"]:
        rehearsal.main(grid, lambda which: strategy_of(context, which), evaluate)
        return
    strategy = strategy_of(context, str(context.run_config["strategy"]))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(context.run_config["num-rounds"]),
        timeout=float(context.run_config["timeout"]),
        evaluate_fn=evaluate,
    )
    accuracies = {k: m["accuracy"] for k, m in result.evaluate_metrics_serverapp.items()}
    used = {k: m.get("used") for k, m in result.train_metrics_clientapp.items()}
    told: dict[str, Any] = {
        "strategy": str(context.run_config["strategy"]),
        "accuracy": accuracies,
        "used": used,
    }
    if isinstance(strategy, RobustStrategy):
        told["nodes"] = strategy.trust.sentences()
    print("RESULT", json.dumps(told), flush=True)
    if context.run_config["folder"]:
        Path(str(context.run_config["folder"]), "result.json").write_text(json.dumps(told) + "\n")
