"""What `make` installs: torch without CUDA where it can be had, and no waiting where it cannot."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from paths import ROOT

SCRIPT = ROOT / "scripts" / "torch_index.py"
(PINNED,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of two indices, of PyPI's kind and of PyTorch's, with a torch of no content."""
    for index, version in (("pypi", PINNED), ("cpu", f"{PINNED}+cpu")):
        folder = tmp_path / index / "torch"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
            about = f"torch-{version}.dist-info"
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(torch: str) -> tuple[str, str]:
    """What the script prints for pip, and what it says."""
    done = subprocess.run(
        [sys.executable, SCRIPT, torch], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("\n") == 1
    return done.stdout.strip(), done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("pip"), reason="an environment without pip")
def test_pip_prefers_the_build_without_cuda_to_the_pinned_one_of_pypi(
    served: str, tmp_path: Path
) -> None:
    option, said = asked(f"{served}/cpu")
    assert option == f"--extra-index-url={served}/cpu"
    assert f"from {served}/cpu" in said
    report = tmp_path / "report.json"
    command = (
        f"{sys.executable} -m pip --isolated --quiet install --dry-run --ignore-installed"
        f" --no-cache-dir --report {report} --index-url {served}/pypi"
        f" --constraint {ROOT}/constraints.txt torch"
    ).split()
    for options, version in (([], PINNED), ([option], f"{PINNED}+cpu")):
        subprocess.run([*command, *options], check=True)
        (installed,) = json.loads(report.read_text())["install"]
        assert installed["metadata"]["version"] == version


def test_an_index_that_refuses_or_lacks_torch_is_passed_over_and_that_is_said(served: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    for index in (f"http://127.0.0.1:{closed}", f"{served}/nothing", "https://no-such.invalid/"):
        option, said = asked(index)
        assert option == ""
        assert f"{index} does not answer; from PyPI it brings CUDA on Linux, 2.7 GB." in said


def test_an_index_that_accepts_and_is_silent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.spec_from_file_location("torch_index", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not module.answers(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_whoever_wants_cuda_is_given_what_pypi_has() -> None:
    option, said = asked("cuda")
    assert option == ""
    assert "CUDA" in said


def test_any_other_word_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "gpu"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "TORCH must be cpu, cuda or the address of an index, got 'gpu'\n"
