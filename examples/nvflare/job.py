"""Train on handwritten digits with sites of which some misbehave, in FLARE's simulator.

python job.py                                                  # two Byzantine sites of eight
python job.py --byzantine site-1=steps --aggregator FedAvg     # the same with FLARE's own FedAvg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from task import Network, digits, test

from byzantium.engines.nvflare import RobustAggregator

HERE = Path(__file__).parent


class AllSites(FedAvgRecipe):  # type: ignore[misc]
    """FLARE's recipe for FedAvg, in which all connected sites train in each round.

    FLARE's own trains with `min_clients` sites, and ends the job as soon as fewer are left: then
    one site that dies would end a job in which all are to train.
    """

    def _create_controller(self, *args: Any, **options: Any) -> Any:
        controller = super()._create_controller(*args, **options)
        controller.num_clients = 0
        return controller


def recipe_of(
    sites: int, rounds: int, byzantine: str, aggregator: RobustAggregator | None, f: int = 2
) -> FedAvgRecipe:
    """A job with our aggregator, or with FLARE's own mean; f sites may die."""
    return AllSites(
        name="digits",
        model=Network(),
        min_clients=sites - f,
        num_rounds=rounds,
        train_script=str(HERE / "client.py"),
        train_args=f"--sites {sites} --byzantine {byzantine or ','}",
        aggregator=aggregator,
    )


def main() -> None:
    """Run a job in the simulator."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rule", default="GeometricMedian()")
    parser.add_argument("--f", type=int, default=2)
    parser.add_argument("--aggregator", choices=["robust", "FedAvg"], default="robust")
    parser.add_argument("--byzantine", default="site-1=NaN,site-2=flip")
    parser.add_argument("--workspace", default="/tmp/nvflare/byzantium")
    arguments = parser.parse_args()
    robust = RobustAggregator(arguments.rule, f=arguments.f, timeout=30, folder="results")
    aggregator = robust if arguments.aggregator == "robust" else None
    recipe = recipe_of(
        arguments.sites, arguments.rounds, arguments.byzantine, aggregator, arguments.f
    )
    run = recipe.execute(SimEnv(num_clients=arguments.sites, workspace_root=arguments.workspace))
    print(f"accuracy {accuracy_of(Path(run.get_result())):.2f}")


def accuracy_of(workspace: Path) -> float:
    """The accuracy of the last model in the workspace of a job, on the test samples."""
    (path,) = workspace.rglob("FL_global_model.pt")
    model = Network()
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    data = digits()
    return test(model, data.test_x, data.test_y)[1]


if __name__ == "__main__":
    main()
