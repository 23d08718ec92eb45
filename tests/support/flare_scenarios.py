"""What happens in a real job of FLARE: scenarios of `engines/nvflare/test_jobs.py`.

python flare_scenarios.py NAME FOLDER prints what was seen, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paths import ROOT

APP = ROOT / "examples" / "nvflare"
sys.path.insert(0, str(APP))


# What the server writes about each site that connects.
JOINED = re.compile(r"New client site-\d+.* joined")


def until(true: Callable[[], Any], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.3)


def processes(word: str) -> list[int]:
    """Those in whose command a word stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


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
    """Six sites that are processes: NaN, a flipped sign, and one that is killed."""
    from job import recipe_of
    from nvflare.recipe.poc_env import PocEnv

    from byzantium.engines.nvflare import RobustAggregator

    class Poc(PocEnv):  # type: ignore[misc]
        """FLARE's own, which waits for the sites: it only gives the server three seconds."""

        def _get_session_manager(self) -> Any:
            log = work / "poc" / "example_project" / "prod_00" / "server" / "log.txt"
            until(lambda: log.exists() and len(JOINED.findall(log.read_text())) >= 6)
            return super()._get_session_manager()

    results = work / "results"
    aggregator = RobustAggregator("GeometricMedian()", f=2, timeout=40, folder=str(results))
    recipe = recipe_of(6, 3, "site-1=NaN,site-2=flip", aggregator)
    env = Poc(num_clients=6, extra={"login_timeout": 60})
    try:
        recipe.execute(env)
        until(lambda: list(results.glob("*/checkpoint-000000001.pt")))
        # The oldest first: FLARE's own process of a site reports the death of the one with the job.
        for process in sorted(processes("site-3")):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # The controller ends now; FLARE itself waits much longer for a word of the lost site.
        ended = ("summary.json", "failed.json")
        until(lambda: any(list(results.glob(f"*/{name}")) for name in ended))
        (log,) = (work / "poc" / "example_project" / "prod_00" / "server").glob("*-*/log.txt")
        return {"rounds": rounds_in(results), "log": log.read_text()[-3000:]}
    finally:
        env.stop()


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
