"""`byzantium watch`, as a program beside a sweep."""

from __future__ import annotations

import gzip
import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from programs import program

from byzantium.cli import main

SWEEP = """
[fixed]
n = 3
f = 0
rounds = 2000
evaluate_every = 10
batch = 1
[varies]
rule = ["Mean()", "Median()"]
"""


def data(address: str) -> dict[str, Any]:
    with urlopen(f"{address}data") as answer:
        return dict(json.loads(gzip.decompress(answer.read())))


def test_a_sweep_is_watched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SWEEP)
    Path("results").mkdir()
    watch = subprocess.Popen(
        program("watch", "--sweep", "mine.toml", "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    request.addfinalizer(watch.kill)  # also where the test fails
    assert watch.stdout is not None
    said = re.search(r"http://127\.0\.0\.1:\d+/", watch.stdout.readline())
    assert said is not None
    before = data(said[0])["live"]
    assert (before["done"], before["total"], before["share"]) == (0, 2, 0)
    sweep = subprocess.Popen(
        program("sweep", "mine.toml"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    shares, running = [before["share"]], set[str]()
    while shares[-1] < 1:
        now = data(said[0])["live"]
        shares.append(now["share"])
        running |= {one["name"] for one in now["running"]}
        assert sweep.poll() in (None, 0)
        time.sleep(0.05)
    assert sweep.wait(timeout=120) == 0
    assert shares == sorted(shares)
    assert len(set(shares)) > 2  # it grew while the runs went on
    assert running
    assert data(said[0])["live"]["done"] == 2
    watch.send_signal(signal.SIGINT)
    _, last = watch.communicate(timeout=60)
    assert watch.returncode == 0
    assert last == "Stopped; jobs that run go on.\n"
    written = {path.name for path in Path("results").iterdir() if path.is_file()}
    assert written <= {"report.html"}  # by the sweep


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["watch", str(tmp_path), "--port", port])
    assert result.exit_code == 1
    assert f"port {port} cannot be used" in result.output
    assert "--port" in result.output
    assert "Traceback" not in result.output
