"""What trackers were sent, read by programs that share nothing with those that sent it.

python tracked.py FOLDER starts a real MLflow server on loopback, tracks runs, and prints as JSON
what the server answers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from programs import program

RUN = (
    *("run", "--n", "10", "--f", "2", "--rule", "Krum()", "--batch", "8", "--rounds", "12"),
    *("--evaluate-every", "3", "--record", "distance,weights", "--out", "results"),
)
SWEEP = """
[fixed]
n = 10
f = 2
batch = 8
rounds = 6
evaluate_every = 3
record = []
[varies]
rule = ["Krum()", "Median()"]
"""


def tracked(folder: Path, *arguments: str, **environment: str) -> str:
    """The program, in a folder of its own; what it printed."""
    done = subprocess.run(
        program(*arguments),
        cwd=folder,
        env={
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# -- MLflow ----------------------------------------------------------------------------------------


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of MLflow's store."""
    with sqlite3.connect(database) as connection:
        return connection.execute(query).fetchall()


def served(work: Path) -> dict[str, Any]:
    """Runs that are tracked by a server: stopped, continued, a sweep, and sent again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    store = ["--backend-store-uri", f"sqlite:///{work}/store.db", "--workers", "1"]
    artifacts = ["--serve-artifacts", "--artifacts-destination", str(work / "artifacts")]
    with (work / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, *store, *artifacts],
            stdout=log,
            stderr=log,
            cwd=work,
            start_new_session=True,  # its workers are ended with it
        )
    try:
        _wait(address, server)
        place = {"MLFLOW_TRACKING_URI": address, "MLFLOW_EXPERIMENT_NAME": "trial"}
        tracked(work, *RUN, "--track", "mlflow", "--until", "6", **place)
        stopped = _runs(address)
        tracked(work, *RUN, "--track", "mlflow", **place)
        tracked(work, *RUN, "--track", "mlflow", **place)
        (work / "sweep.toml").write_text(SWEEP)
        tracked(
            work,
            "sweep",
            "sweep.toml",
            "--jobs",
            "2",
            "--out",
            "swept",
            "--track",
            "mlflow",
            **place,
        )
        tracked(work, *RUN, "--seed", "1", **place)
        tracked(work, "track", "results", "--to", "mlflow", **place)
        runs = _runs(address)
        files = [_files(address, run["info"]["run_id"]) for run in runs]
        return {"stopped": stopped, "runs": runs, "files": files}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise TimeoutError


def _asked(address: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.loads(answer.read()))


def _runs(address: str) -> list[dict[str, Any]]:
    experiment = _asked(address, "experiments/get-by-name?experiment_name=trial")["experiment"]
    body = {"experiment_ids": [experiment["experiment_id"]]}
    runs = _asked(address, "runs/search", body)["runs"]
    for run in runs:
        path = f"metrics/get-history?run_id={run['info']['run_id']}&metric_key=accuracy"
        run["accuracy"] = _asked(address, path).get("metrics", [])
    return list(runs)


def _files(address: str, run: str) -> list[str]:
    return sorted(
        f["path"] for f in _asked(address, f"artifacts/list?run_id={run}").get("files", [])
    )


# -- Weights & Biases ------------------------------------------------------------------------------


def wandb_records(path: Path) -> Iterator[Any]:
    """The records in a file of an offline run: a log in LevelDB's format, of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, offset, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while offset + 7 <= len(data):
        left = 32768 - offset % 32768
        if left < 7:
            offset += left
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + 7])
        whole += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def wandb_runs(folder: Path) -> list[dict[str, Any]]:
    """Of each offline run its id, its configuration, and what was logged."""
    runs = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        run: dict[str, Any] = {
            "config": {},
            "history": [],
            "summary": {},
            "artifacts": [],
            "exit": None,
        }
        for record in wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run |= {"id": record.run.run_id, "project": record.run.project}
                run["config"] |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
                run["group"] = record.run.run_group
            elif kind == "history":
                items = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json)
                    for i in record.history.item
                }
                run["history"].append({**items, "step": record.history.step.num})
            elif kind == "summary":
                run["summary"] |= {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json)
                    for i in record.summary.update
                }
            elif kind == "artifact":
                run["artifacts"] += [entry.path for entry in record.artifact.manifest.contents]
            elif kind == "request" and record.request.HasField("log_artifact"):
                contents = record.request.log_artifact.artifact.manifest.contents
                run["artifacts"] += [entry.path for entry in contents]
            elif kind == "exit":
                run["exit"] = record.exit.exit_code
        runs.append(run)
    return runs


def offline(work: Path) -> dict[str, Any]:
    """A run that is stopped, continued and sent again, in the offline mode."""
    environment = {"WANDB_MODE": "offline", "WANDB_PROJECT": "trial"}
    tracked(work, *RUN, "--track", "wandb", "--until", "6", **environment)
    tracked(work, *RUN, "--track", "wandb", **environment)
    tracked(work, *RUN, "--track", "wandb", **environment)
    return {"runs": wandb_runs(work)}


if __name__ == "__main__":
    scenario = {"served": served, "offline": offline}[sys.argv[1]]
    print("RESULT " + json.dumps(scenario(Path(sys.argv[2]).resolve())))
