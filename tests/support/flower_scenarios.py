"""What happens in a real federation: scenarios of `engines/flower/test_federations.py`.

python flower_scenarios.py NAME FOLDER prints what was seen, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paths import ROOT

sys.path.insert(0, str(ROOT / "examples" / "flower"))

from launch import Federation

HOSTILE = "0: NonFinite(); 1: Scaling(-10)"
RULE = "GeometricMedian()"


def until(true: Callable[[], Any], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.3)


def rounds_in(results: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in results.glob("*/rounds.jsonl")
        for line in path.read_text().splitlines()
    ]


def finished(results: Path, number: int) -> Callable[[], bool]:
    """Whether the checkpoint of a round is there."""
    return lambda: bool(list(results.glob(f"*/checkpoint-{number:09d}.pt")))


def result_of(log: str) -> dict[str, Any]:
    told = [line for line in log.splitlines() if line.startswith("RESULT ")]
    return dict(json.loads(told[-1].removeprefix("RESULT "))) if told else {"log": log[-3000:]}


def processes(word: str) -> list[int]:
    """Those in whose command a word stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def servers() -> list[int]:
    """The processes of Flower and Ray."""
    return [*processes("flower-"), *processes("flwr-"), *processes("ray::")]


# -- what happens ---------------------------------------------------------------------------------


def simulation(work: Path) -> dict[str, Any]:
    with Federation(work) as federation:
        federation.link(simulation=True)
        config = {"num-rounds": 2, "min-nodes": 6, "f": 2, "rule": RULE, "byzantine": HOSTILE}
        run = federation.submit({**config, "folder": str(work / "results")}, simulated=6)
        status = federation.wait(run)
        return {
            "status": status,
            "rounds": rounds_in(work / "results"),
            **result_of(federation.log(run)),
        }


def deployment(work: Path) -> dict[str, Any]:
    """Six nodes: one sends NaN, one flips signs, one is killed; then the server is killed."""
    seen: dict[str, Any] = {}
    with Federation(work) as federation:
        federation.link()
        for k in range(6):
            federation.node(k, 6)
        until(lambda: len(federation.online()) == 6)
        config = {"num-rounds": 3, "min-nodes": 4, "f": 2, "rule": RULE, "timeout": 90.0}
        run = federation.submit(config)
        seen["clean status"], seen["clean"] = federation.wait(run), result_of(federation.log(run))

        results = work / "results"
        config |= {"byzantine": HOSTILE, "folder": str(results), "num-rounds": 5}
        run = federation.submit(config)
        until(finished(results, 1))
        federation.stop("supernode-5", signal.SIGKILL)
        until(finished(results, 3))
        (server, *_) = processes("flwr-serverapp")
        os.kill(server, signal.SIGKILL)
        seen["killed"] = federation.wait(run)
        run = federation.submit(config)
        seen["status"], log = federation.wait(run), federation.log(run)
        seen["resumed"] = "going on after round" in log
        seen["result"], seen["rounds"] = result_of(log), rounds_in(results)
    return seen


def four_nodes(work: Path) -> dict[str, Any]:
    """NaN, a flipped sign and a node that is killed leave one honest node against one liar."""
    with Federation(work) as federation:
        federation.link()
        for k in range(4):
            federation.node(k, 4)
        until(lambda: len(federation.online()) == 4)
        results = work / "results"
        config = {"num-rounds": 6, "min-nodes": 2, "f": 2, "rule": RULE, "timeout": 90.0}
        run = federation.submit({**config, "byzantine": HOSTILE, "folder": str(results)})
        federation.stop("supernode-3", signal.SIGKILL)
        status, log = federation.wait(run), federation.log(run)
        return {"status": status, "rounds": rounds_in(results), "log": log[-6000:]}


def corrupt(work: Path) -> dict[str, Any]:
    """Four nodes, and one that pushes metrics which are no protobuf."""
    from federation import received, reply
    from superlink import SuperNode

    stopped = threading.Event()
    with Federation(work) as federation:
        federation.link()
        for k in range(4):
            federation.node(k, 4)
        bad = SuperNode(
            lambda message: reply(message, received(message), num_examples=60, train_loss=1.0),
            lambda parcel, node: [parcel.replace("MetricRecord", lambda body: b"\xff" * 9)],
            f"http://127.0.0.1:{federation.port}",
        )
        until(lambda: len(federation.online()) == 5)

        def act() -> None:
            while not stopped.wait(0.3):
                bad.act()

        acting = threading.Thread(target=act)
        acting.start()
        try:
            config = {"num-rounds": 2, "min-nodes": 5, "f": 1, "rule": RULE, "timeout": 90.0}
            run = federation.submit({**config, "folder": str(work / "results")})
            status = federation.wait(run)
        finally:
            stopped.set()
            acting.join()
        rounds, log = rounds_in(work / "results"), federation.log(run)
        return {"status": status, "bad": bad.id, "rounds": rounds, **result_of(log)}


def tls(work: Path) -> dict[str, Any]:
    """Encrypted, with three known nodes and one that nobody has registered."""
    with Federation(work, tls=True) as federation:
        federation.link()
        for k in range(3):
            federation.node(k, 3)
        federation.node(3, 4, registered=False)
        until(lambda: len(federation.online()) == 3)
        stranger = federation.processes["supernode-3"]
        until(lambda: stranger.poll() is not None)
        run = federation.submit({"num-rounds": 1, "min-nodes": 3, "f": 1, "rule": RULE})
        return {
            "status": federation.wait(run),
            "online": len(federation.online()),
            "stranger": stranger.returncode,
            **result_of(federation.log(run)),
        }


SCENARIOS = {
    function.__name__: function for function in (simulation, deployment, four_nodes, corrupt, tls)
}


def main() -> None:
    """Play one, and say what was left running."""
    name, work = sys.argv[1], Path(sys.argv[2])
    seen = SCENARIOS[name](work)
    with suppress(TimeoutError):  # ending takes time on a busy machine
        until(lambda: not servers(), 60)
    seen["left"] = servers()
    print("SEEN", json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
