"""Start a federation on this machine, train, print the rejected nodes, and stop everything.

python launch.py simulation                        # Flower's simulation, in one process
python launch.py deployment                        # a SuperLink and SuperNodes, a process each
python launch.py tls                               # the same with TLS and known SuperNodes only
python launch.py rehearsal --nodes 8               # all strategies, all behaviors: a table
python launch.py adapters                          # LoRA adapters, one of them poisoned: a table
python launch.py deployment --byzantine "0: NonFinite(); 1: Scaling(-10)" --rounds 3

Everything listens on the loopback address (Ray, inside the simulation, on all: run it in a network
namespace of its own). Keys and certificates are for a trial, in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

APP = Path(__file__).parent
ADAPTERS = APP.parent / "flower_adapters"
BIN = Path(sys.executable).parent


class Federation:
    """Processes of a federation; each is the leader of a group, and is stopped with its group.

    - `work`: a folder for logs, keys and Flower's own files.
    - `tls`: encrypt, and let only nodes join whose keys are registered.
    """

    def __init__(self, work: Path, port: int = 18100, *, tls: bool = False) -> None:
        self.work, self.port, self.tls = work, port, tls
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(work / "flower"),
            "HOME": str(work),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_AUTH_MODE": "disabled",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        (work / "flower").mkdir(parents=True, exist_ok=True)
        secure = f'root-certificates = "{work}/ca.crt"' if tls else "insecure = true"
        (work / "flower" / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{port}"\n{secure}\n'
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all processes by their ids, the latest first."""
        for name in reversed(list(self.processes)):
            self.stop(name)

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        for sign in (how, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        with suppress(ProcessLookupError):  # helpers of one that ended by itself
            os.killpg(process.pid, signal.SIGKILL)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.work / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def _run(self, *command: str, timeout: float = 120) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.stdout + done.stderr

    # -- parts -------------------------------------------------------------------------------------

    def link(self, *, simulation: bool = False) -> None:
        """Start a SuperLink, and wait for it."""
        if self.tls:
            self._certify()
        secure = (
            *(
                "--ssl-ca-certfile",
                f"{self.work}/ca.crt",
                "--ssl-certfile",
                f"{self.work}/server.crt",
            ),
            *("--ssl-keyfile", f"{self.work}/server.key", "--enable-supernode-auth"),
        )
        self._start(
            "superlink",
            "flower-superlink",
            *(secure if self.tls else ("--insecure",)),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
            *(("--simulation",) if simulation else ()),
        )
        for _ in range(240):
            if self.processes["superlink"].poll() is not None:
                raise RuntimeError((self.work / "superlink.log").read_text())
            if self._healthy():
                return
            time.sleep(0.5)
        raise TimeoutError("the SuperLink did not start")

    def _healthy(self) -> bool:
        import ssl

        scheme = "https" if self.tls else "http"
        trusted = ssl.create_default_context(cafile=f"{self.work}/ca.crt") if self.tls else None
        with suppress(OSError):
            address = f"{scheme}://127.0.0.1:{self.port}/health"
            return bool(urllib.request.urlopen(address, context=trusted).status == 200)
        return False

    def node(self, k: int, of: int, *, registered: bool = True) -> None:
        """Start a SuperNode with part k of the data."""
        secure: tuple[str, ...] = ("--insecure",)
        if self.tls:
            key = self._key(f"node-{k}", registered)
            secure = (
                *("--root-certificates", f"{self.work}/ca.crt"),
                *("--auth-supernode-private-key", str(key)),
                *("--ssl-ca-certfile", f"{self.work}/ca.crt"),
                *("--ssl-certfile", f"{self.work}/server.crt"),
                *("--ssl-keyfile", f"{self.work}/server.key"),
            )
        self._start(
            f"supernode-{k}",
            "flower-supernode",
            *secure,
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--host", "127.0.0.1", "--port", str(self.port + 1000 + k)),
            *("--node-config", f"partition-id={k} num-partitions={of}"),
        )

    def online(self) -> list[dict[str, Any]]:
        """The nodes that are connected."""
        output = self._run("flwr", "supernode", "list", "here", "--format", "json")
        nodes = json.loads(output[output.index("{") :]).get("nodes", [])
        return [node for node in nodes if node.get("status") == "online"]

    def submit(self, config: dict[str, Any], simulated: int = 0, app: Path = APP) -> str:
        """Start a run of an app; its id."""
        options = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        command = ["flwr", "run", str(app), "here", "--format", "json", "-c", options]
        if simulated:
            resources = "init-args-num-cpus=2 client-resources-num-cpus=1"
            command += ["--federation-config", f"num-supernodes={simulated} {resources}"]
        output = self._run(*command)
        try:
            return str(json.loads(output[output.index("{") :])["run-id"])
        except (ValueError, KeyError) as error:
            raise RuntimeError(output) from error

    def status(self, run: str) -> str:
        """The status of a run, from the SuperLink: exit codes do not show it."""
        output = self._run("flwr", "list", "here", "--format", "json")
        runs = json.loads(output[output.index("{") :])["runs"]
        return next(str(one["status"]) for one in runs if str(one["run-id"]) == run)

    def wait(self, run: str, seconds: float = 600) -> str:
        """Wait for the end of a run; its status."""
        deadline = time.monotonic() + seconds
        # The log ends with the run; polling takes more time than the run.
        with suppress(subprocess.TimeoutExpired):
            self._run("flwr", "log", run, "here", "--stream", timeout=seconds)
        while not (status := self.status(run)).startswith("finished"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run} is {status} after {seconds:g} s")
            time.sleep(1)
        return status

    def log(self, run: str) -> str:
        return self._run("flwr", "log", run, "here", "--show")

    # -- keys --------------------------------------------------------------------------------------

    def _key(self, name: str, registered: bool) -> Path:
        """A key of a node, which is registered with the SuperLink."""
        path = self.work / name
        kind = ("-t", "ecdsa", "-b", "384", "-N", "", "-q")
        subprocess.run(["ssh-keygen", *kind, "-f", str(path)], check=True)
        if registered:
            self._run("flwr", "supernode", "register", f"{path}.pub", "here")
        return path

    def _certify(self) -> None:
        """Write a certificate for the loopback address, and an authority that signs it."""
        work = self.work
        (work / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        new = ("openssl", "req", "-newkey", "rsa:3072", "-nodes", "-keyout")
        for command in (
            (*new, "ca.key", "-x509", "-days", "2", "-subj", "/CN=trial", "-out", "ca.crt"),
            (*new, "server.key", "-subj", "/CN=localhost", "-out", "server.csr"),
            (
                *("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey"),
                *("ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"),
                *("-out", "server.crt"),
            ),
        ):
            subprocess.run(command, cwd=work, check=True, capture_output=True)


def main() -> None:
    """Train once, and print who was rejected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "mode", choices=["simulation", "deployment", "tls", "rehearsal", "adapters"]
    )
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--f", type=int, default=2)
    parser.add_argument("--rule", default="GeometricMedian()")
    parser.add_argument("--strategy", default="robust")
    parser.add_argument("--byzantine", default="0: NonFinite(); 1: Scaling(-10)")
    parser.add_argument("--results", type=Path, help="a folder for `byzantium report`")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="federation-"))
    config = {
        "num-rounds": arguments.rounds,
        "min-nodes": arguments.nodes,
        "f": arguments.f,
        "rule": arguments.rule,
        "strategy": arguments.strategy,
        "byzantine": arguments.byzantine,
        "folder": str(arguments.results.absolute()) if arguments.results else "",
        "rehearse": arguments.mode == "rehearsal",
    }
    simulated = arguments.mode in ("simulation", "rehearsal", "adapters")
    app, table = APP, arguments.mode == "rehearsal"
    if arguments.mode == "adapters":
        app, table, arguments.nodes = ADAPTERS, True, 5
        config = {"num-rounds": arguments.rounds}
    print(f"logs and keys: {work}", flush=True)
    with Federation(work, tls=arguments.mode == "tls") as federation:
        federation.link(simulation=simulated)
        if not simulated:
            for k in range(arguments.nodes):
                federation.node(k, arguments.nodes)
        run = federation.submit(config, arguments.nodes if simulated else 0, app)
        status = federation.wait(run, 3600)
        lines = federation.log(run).splitlines()
        if table:
            print("\n".join(line for line in lines if line.startswith("|")))
        else:
            print("\n".join(line for line in lines if "node " in line or "RESULT" in line))
        if not status.endswith("completed"):
            print("\n".join(lines[-40:]))
        print(status)


if __name__ == "__main__":
    main()
