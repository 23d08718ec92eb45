"""What happens in a real job of FLARE: scenarios of `engines/nvflare/test_jobs.py`.

python flare_scenarios.py NAME FOLDER prints what was seen, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from paths import ROOT

APP = ROOT / "examples" / "nvflare"
sys.path.insert(0, str(APP))


def rounds_in(results: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in results.glob("*/rounds.jsonl")
        for line in path.read_text().splitlines()
    ]


def simulator(work: Path) -> dict[str, Any]:
    """Six sites in FLARE's simulator: NaN, a flipped sign, and an error."""
    from job import accuracy_of, recipe_of
    from nvflare.recipe.sim_env import SimEnv

    from byzantium.engines.nvflare import RobustAggregator

    results = work / "results"
    aggregator = RobustAggregator("GeometricMedian()", f=2, timeout=120, folder=str(results))
    recipe = recipe_of(6, 2, "site-1=NaN,site-2=flip,site-3=error", aggregator)
    run = recipe.execute(SimEnv(num_clients=6, workspace_root=str(work / "workspace")))
    return {"rounds": rounds_in(results), "accuracy": accuracy_of(Path(run.get_result()))}


def poc(work: Path) -> dict[str, Any]:
    """Six sites that are processes: NaN, a flipped sign, and one whose process dies."""
    from job import recipe_of
    from nvflare.recipe.poc_env import PocEnv

    from byzantium.engines.nvflare import RobustAggregator

    results = work / "results"
    aggregator = RobustAggregator("GeometricMedian()", f=2, timeout=60, folder=str(results))
    recipe = recipe_of(6, 2, "site-1=NaN,site-2=flip,site-3=exit", aggregator)
    env = PocEnv(num_clients=6, extra={"login_timeout": 60})
    try:
        run = recipe.execute(env)
        status = None
        result = run.get_result(timeout=400)
        with suppress(Exception):
            status = env.get_job_status(run.get_job_id())
        return {"rounds": rounds_in(results), "result": result, "status": status}
    finally:
        env.stop(clean_up=False)


SCENARIOS = {function.__name__: function for function in (simulator, poc)}


def main() -> None:
    """Play one; what FLARE leaves running ends with the network of its own."""
    name, work = sys.argv[1], Path(sys.argv[2])
    os.environ |= {
        "HOME": str(work),
        "NVFLARE_POC_WORKSPACE": str(work / "poc"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    os.chdir(work)
    seen = SCENARIOS[name](work)
    print("SEEN", json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
