"""A table of what one misbehaving site does to FLARE's FedAvg and to our aggregator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
BEHAVIORS = {
    "": "none misbehaves",
    "NaN": "sends NaN",
    "flip": "sends its change times -10",
    "noise": "adds Gaussian noise of scale 10",
    "shapes": "sends other shapes",
    "keys": "sends one more array",
    "huge": "sends 4 million numbers for an array",
    "steps": "sends the opposite, and says 10^12 steps",
    "error": "fails with an error",
    "silence": "never answers",
}
# After so long a job that has not ended will not; ours ends a round after 30 seconds.
SECONDS = 240


def outcome(aggregator: str, behavior: str) -> str:
    """The accuracy at the end of a job, or that there is none."""
    with tempfile.TemporaryDirectory() as workspace:
        command = [sys.executable, str(HERE / "job.py"), "--workspace", workspace]
        command += ["--aggregator", aggregator]
        command += ["--byzantine", f"site-1={behavior}" if behavior else ""]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "waits for ever"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            return "ends with an error"
        return output.strip().rpartition("accuracy ")[2].split()[0]


if __name__ == "__main__":
    print("| one site of eight | FedAvg | `RobustAggregator` |\n|---|---|---|", flush=True)
    for behavior, says in BEHAVIORS.items():
        cells = [outcome(aggregator, behavior) for aggregator in ("FedAvg", "robust")]
        print(f"| {says} | {' | '.join(cells)} |", flush=True)
