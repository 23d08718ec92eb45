"""A comparison of Flower's strategies and ours, with one Byzantine client."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from robust.task import network

STRATEGIES = ("FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "robust")
BEHAVIORS = (
    "NoAttack()",
    "NonFinite()",
    "Scaling(factor=-10)",
    "GaussianNoise(scale=10)",
    "WrongShapes()",
    "ExtraKeys()",
    "Claim(examples=-60)",
    "Failure()",
)
ROUNDS = 3


def main(
    grid: Grid,
    strategy_of: Callable[[str], Strategy],
    evaluate: Callable[[int, ArrayRecord], MetricRecord],
) -> None:
    """Print the accuracy of each strategy, or the error that ends its run."""
    print(f"| one client of all | {' | '.join(STRATEGIES)} |", flush=True)
    print("|---" * (len(STRATEGIES) + 1) + "|", flush=True)
    for behavior in BEHAVIORS:
        cells = []
        for which in STRATEGIES:
            arrays = ArrayRecord(network().state_dict())
            try:
                result = strategy_of(which).start(
                    grid,
                    arrays,
                    ROUNDS,
                    train_config=ConfigRecord({"byzantine": f"0: {behavior}"}),
                    evaluate_fn=evaluate,
                )
                accuracy = result.evaluate_metrics_serverapp[ROUNDS]["accuracy"]
                cells.append(f"{accuracy:.2f}")
            except Exception as error:  # it would have ended the run
                cells.append(f"ends: {type(error).__name__}")
        print(f"| `{behavior}` | {' | '.join(cells)} |", flush=True)
