"""A server as in Flower's own examples, with another strategy."""

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


def strategy_of(context: Context, name: str) -> Strategy:
    """The strategy of that name: one of Flower's, or by default `RobustStrategy`."""
    run, nodes = context.run_config, int(context.run_config["min-nodes"])
    sizes: dict[str, Any] = {
        "min_train_nodes": nodes,
        "min_available_nodes": nodes,
        "fraction_evaluate": 0.0,
    }
    f = int(run["f"])
    match name:
        case "FedAvg":
            return FedAvg(**sizes)
        case "FedMedian":
            return FedMedian(**sizes)
        case "FedTrimmedAvg":
            return FedTrimmedAvg(beta=0.25, **sizes)
        case "Krum":
            return Krum(num_malicious_nodes=f, **sizes)
    return RobustStrategy(
        str(run["rule"]),
        f=f,
        folder=str(run["folder"]) or None,
        name=str(run["name"]),
        node_timeout=float(run["node-timeout"]),
        **sizes,
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
        rehearsal.main(grid, lambda name: strategy_of(context, name), evaluate)
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
    summary: dict[str, Any] = {
        "strategy": str(context.run_config["strategy"]),
        "accuracy": accuracies,
        "used": used,
    }
    if isinstance(strategy, RobustStrategy):
        summary["nodes"] = strategy.trust.sentences()
    print("RESULT", json.dumps(summary), flush=True)
    if context.run_config["folder"]:
        path = Path(str(context.run_config["folder"]), "result.json")
        path.write_text(json.dumps(summary) + "\n")
