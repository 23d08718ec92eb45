"""The time of a round of a training in Flower's simulation, with its own strategy.

The clients have the model, the data, the batch and the learning rate of the bench's other
trainings, and send models after one local step. None attacks: a client of Flower does not see the
others. Ray, inside the simulation, listens on all addresses; so it runs in a network namespace of
its own, for which root is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

ROUNDS = 6
TRIM = 0.2  # the share of the clients that the trimmed mean leaves out at either end
NAMESPACE = ["unshare", "-n", "-p", "-f", "--kill-child", "--mount-proc", "bash", "-c"]


class FlowerError(Exception):
    """Flower's simulation could not be run; the message is one sentence."""


def seconds_of_round(name: str) -> float:
    """The median of the rounds of a simulation in a process of its own, except the first.

    - `name`: which of the trainings.
    """
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
        raise FlowerError("Flower is omitted: a network of its own needs root, unshare and ip.")
    command = [sys.executable, str(Path(__file__).resolve()), name]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {
            "HOME": home,
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        done = subprocess.run(
            [*NAMESPACE, 'ip link set lo up && "$@"', "--", *command],
            capture_output=True,
            text=True,
            env=environment,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise FlowerError(f"Flower is omitted: its simulation failed ({reason}).")
    return median(json.loads(lines[-1]))


def main(name: str) -> None:
    """Print the seconds of each round except the first."""
    import torch
    import training
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedTrimmedAvg
    from flwr.simulation import run_simulation

    make, n = training.JOBS[name].model, training.N
    client, server = ClientApp(), ServerApp()
    ends: list[float] = []

    @client.train()
    def one_step(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # there is a process for each core
        model, data = make(), training.JOBS[name].data()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        own = torch.arange(int(context.node_config["partition-id"]), len(data.train_y), n)
        chosen = own[torch.randperm(len(own))[: training.BATCH]]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = torch.nn.functional.cross_entropy(model(data.train_x[chosen]), data.train_y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        metrics = MetricRecord({"num-examples": training.BATCH})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        def evaluate(which: int, arrays: ArrayRecord) -> MetricRecord:
            ends.append(perf_counter())
            return MetricRecord({"round": which})

        strategy = FedTrimmedAvg(
            beta=TRIM, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n
        )
        arrays = ArrayRecord(make().state_dict())
        strategy.start(grid, arrays, ROUNDS, evaluate_fn=evaluate)

    run_simulation(
        server, client, n, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    )
    times = [after - before for before, after in pairwise(ends[1:])]
    assert len(times) == ROUNDS - 1, "a round failed"
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
