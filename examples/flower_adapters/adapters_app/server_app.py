"""A server that trains with each rule, without and with a poisoned client, and prints a table."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from adapters_app.task import accuracy, adapted, factors
from byzantium.engines.flower import RobustStrategy

app = ServerApp()


def strategy_of(rule: str, nodes: int) -> Strategy:
    """FedAvg, which takes the mean of the factors, or a rule for their products."""
    sizes: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": nodes,
        "min_available_nodes": nodes,
    }
    return FedAvg(**sizes) if rule == "FedAvg" else RobustStrategy(rule, f=1, **sizes)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Print the accuracy of each rule after the rounds of the run."""
    run = context.run_config
    nodes, rounds = int(run["min-nodes"]), int(run["num-rounds"])
    start = ArrayRecord(factors(adapted()))
    print("| | all honest: accuracy (%) | one of five poisoned |\n|---|---|---|", flush=True)
    print(f"| before | {accuracy(start):.1f} | |", flush=True)
    for rule in str(run["rules"]).split(";"):
        cells = []
        for poisoned in (False, True):
            result = strategy_of(rule.strip(), nodes).start(
                grid, start, rounds, train_config=ConfigRecord({"poisoned": poisoned})
            )
            cells.append(f"{accuracy(result.arrays):.1f}")
        print(f"| `{rule.strip()}` | {' | '.join(cells)} |", flush=True)
