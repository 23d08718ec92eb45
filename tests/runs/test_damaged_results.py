"""Results damaged in random ways: every command ends in words, and names what is bad."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folders
import pytest
from click.testing import CliRunner, Result

from byzantium.cli import main
from byzantium.learning import checkpoint
from byzantium.papers.bucketing import artifact
from byzantium.papers.requests import Requests
from byzantium.runs import Run, Store, execute, load, perform
from byzantium.runs.progress import described
from byzantium.tables import Version

DEEP = 20000
DONE = ("summary.json", "model.pt")
STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, 0.5, 2**53, 2**70, 10**400, 1e200, float("nan"), float("inf")),
    *("", "text", "completed", "\ud800", "\x1b[2J", "[bold]", "x" * 10**5),
    *([], [1], {}, {"a": 1}, [[]], [{}], {"round": 1}, {"status": "completed"}),
)


def few_and_many(few: range, many: range) -> pytest.MarkDecorator:
    """The parameter `seeds`: few of them always, and many in the slow tests."""
    slow = pytest.param(many, id="many", marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [pytest.param(few, id="few"), slow])


# -- damage ----------------------------------------------------------------------------------------


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what it is in, and its name there."""
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield value, key
        yield from leaves(item)


def altered(text: str, draw: random.Random) -> str:
    """JSON in which one value, or name, is another."""
    value = json.loads(text)
    if not (places := list(leaves(value))):
        return json.dumps(draw.choice(STRANGE))
    inner, key = draw.choice(places)
    if isinstance(inner, dict) and draw.random() < 0.3:
        inner.pop(key)
    else:
        inner[key] = draw.choice(STRANGE)
    return json.dumps(value)


def alter(path: Path, draw: random.Random) -> None:
    """One value in a file of ours."""
    content = path.read_bytes()
    if path.suffix == ".json":
        path.write_text(altered(content.decode(), draw))
    elif path.suffix == ".jsonl" and content:
        lines = content.decode().splitlines()
        k = draw.randrange(len(lines))
        lines[k] = altered(lines[k], draw)
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".toml":
        lines = content.decode().splitlines()
        k = draw.randrange(len(lines))
        name = lines[k].partition(" = ")[0]
        value = draw.choice(["[]", "{}", "nan", "1e400", "'x'", f"0x{'f' * 4000}", "[" * 5000, ""])
        lines[k] = f"{name} = {value}"
        path.write_text("\n".join(lines) + "\n")
    else:
        flip(path, draw)


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    for _ in range(draw.choice([1, 1, 10])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size + 1)])


def replace(path: Path, draw: random.Random) -> None:
    """By another value, as JSON has it."""
    deep = ["[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, "a." * DEEP]
    values = [json.dumps(value) for value in STRANGE]
    path.write_text(draw.choice(values + deep) + draw.choice(["", "\n"]))


def repeat(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content + draw.choice([content, b"\0" * 100, b"\n", b"\xff\xfe\n"]))


def instead(path: Path, draw: random.Random) -> None:
    """Something that is no file, or another one."""
    content = path.read_bytes()
    path.unlink()
    makers: list[Callable[[], object]] = [
        path.mkdir,
        lambda: (path / "inner" / path.name).mkdir(parents=True),
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("nowhere"),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("/proc/self/mem"),
        lambda: path.symlink_to(draw.choice(sorted(path.parent.iterdir()) or [path])),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(bytes(len(content))),
        lambda: None,
    ]
    draw.choice(makers)()


def around(path: Path, draw: random.Random) -> None:
    """The folder it is in, or what stands beside it."""
    folder = path.parent
    beside = draw.choice([".lock", ".working", ".seconds", "failed.json", "run.log", *DONE])
    target = folder / draw.choice([beside, path.name + ".writing"])
    if target.name not in DONE or not target.exists():
        target.unlink(missing_ok=True) if not target.is_dir() else None
        makers: list[Callable[[], object]] = [
            lambda: target.write_text(draw.choice(["", "nan", "{}", "text", "[" * DEEP])),
            target.mkdir,
            lambda: target.symlink_to(folder.parent / "precious"),
        ]
        draw.choice(makers)()


def swallow(path: Path, draw: random.Random) -> None:
    """The whole folder is a file."""
    shutil.rmtree(path.parent)
    path.parent.write_text(draw.choice(["", "text", "{}"]))


DAMAGES = (alter, alter, alter, flip, truncate, replace, repeat, instead, around)


def damage(root: Path, draw: random.Random) -> str:
    """Somewhere, once or twice; in words what was done."""
    done = []
    for _ in range(draw.choice([1, 1, 2])):
        paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.exists()]
        path = draw.choice([path for path in paths if path.name != "precious"])
        how = draw.choice(DAMAGES)
        if path.parent != root and draw.random() < 0.05:
            how = swallow
        if path.parent == root and how is around:
            how = replace
        done.append(f"{how.__name__} {path.relative_to(root)}")
        if path.is_symlink():
            path.unlink()
        elif how is alter:
            try:
                how(path, draw)
            except (ValueError, RecursionError):  # damaged before
                truncate(path, draw)
        else:
            how(path, draw)
    return ", ".join(done)


def byzantium(*arguments: str) -> Result:
    """A command, which must end in words: it returns, or exits with a code and a sentence."""
    said = CliRunner().invoke(main, list(arguments))
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    assert "Traceback" not in said.output
    return said


# -- reports and plans -----------------------------------------------------------------------------

SMALL = {"seeds": 1, "rounds": 60, "model": "mlp", "data": "digits"}
ASKED = {
    "table2": Version(**SMALL, only="krum"),  # type: ignore[arg-type]
    "figure-main": Version(**SMALL, only="krum s=2 mimic"),  # type: ignore[arg-type]
    "figure-gradient-norms": Version(**SMALL, only="mimic"),  # type: ignore[arg-type]
    "figure-krum-selections": Version(**SMALL, only="s=1"),  # type: ignore[arg-type]
    "figure-mimic-demo": Version(only="krum dimension"),
}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something of every kind of picture."""
    root = tmp_path_factory.mktemp("reported")
    store = Store(root / "results")
    for name, version in ASKED.items():
        folders.fill(store, artifact(name, version), lambda cell, seed: 50.0 + seed)
        Requests(store).add(name, version)
    return root


def check_report(whole: Path, seed: int, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(seed)
    shutil.copytree(whole, place)
    root = place / "results"
    (place / "precious").write_text("mine")
    before = {result.folder for result in Store(root)}
    assert len(before) > 8
    context = f"seed {seed}: {damage(root, draw)}"
    caplog.clear()
    said = byzantium("report", str(root), "--markdown", str(place / "text.md"))
    assert said.exit_code == 0, f"{context}: {said.output}"
    flags = shlex.split(" ".join(ASKED["table2"].flags()))
    plan = byzantium("plan", "table2", "--out", str(root), "--no-probe", *flags)
    assert plan.exit_code == 0, f"{context}: {plan.output}"
    gone = before - {result.folder for result in Store(root)}
    for folder in gone:
        if os.path.lexists(folder):
            assert str(folder) in caplog.text, context
    assert (place / "precious").read_text() == "mine", context
    shutil.rmtree(place)


@few_and_many(range(8), range(8, 200))
def test_a_damaged_folder_is_reported_and_planned(
    seeds: range, tmp_path: Path, reported: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in seeds:
        check_report(reported, seed, tmp_path / str(seed), caplog)


# -- sweeps ----------------------------------------------------------------------------------------

SWEEP = """
[fixed]
rounds = 6
evaluate_every = 2
n = 5
f = 1
batch = 4
model = "mlp(hidden=4)"
momentum = 0.9
attack = "Mimic(warmup=9)"
optimizer = "adam"
[varies]
rule = ["CenteredClipping(radius=1)", "Median()"]
seed = [0, 1]
"""


def half(run: Run, folder: Path) -> None:
    """Stopped after five of six rounds, with two checkpoints."""
    calls = iter([False] * 4 + [True])
    assert perform(run, folder, stop=lambda: next(calls)) is None
    assert len(checkpoint.checkpoints(folder)) == 2


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs and two unfinished ones, and all four undisturbed."""
    root = tmp_path_factory.mktemp("swept")
    (root / "sweep.toml").write_text(SWEEP)
    runs = load(root / "sweep.toml")
    execute(runs, Store(root / "whole"))
    store = Store(root / "results")
    for k, run in enumerate(runs):
        if k % 2:
            half(run, store.folder(run))
        else:
            shutil.copytree(root / "whole" / run.identity, store.folder(run))
    return root


def check_sweep(whole: Path, seed: int, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(seed)
    shutil.copytree(whole, place)
    root, runs = place / "results", load(whole / "sweep.toml")
    (root / "precious").write_text("mine")
    context = f"seed {seed}: {damage(root, draw)}"
    caplog.clear()
    unfinished = [run for run in runs if not Store(root).results([run])[0].done]
    said = byzantium("sweep", str(whole / "sweep.toml"), "--out", str(root))
    assert said.exit_code in (0, 1), f"{context}: {said.output}"
    assert (root / "precious").read_text() == "mine", context
    for run in runs:
        folder = root / run.identity
        done = Store(root).results([run])[0].done
        assert done or f"failed: {described(run)}" in " ".join(said.stderr.split()), context
        if done and run in unfinished:
            same_run(folder, place / "whole" / run.identity, context)
    assert (said.exit_code == 0) == all(result.done for result in Store(root).results(runs)), (
        context
    )
    shutil.rmtree(place)


def same_run(one: Path, other: Path, context: str) -> None:
    """To the bit."""
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text(), context
    models = [checkpoint.load(folder / "model.pt")["model"] for folder in (one, other)]
    for name, weights in models[0].items():
        assert weights.equal(models[1][name]), f"{context}: {name}"


@few_and_many(range(20), range(20, 400))
def test_a_damaged_sweep_is_finished_as_if_undisturbed_or_says_why(
    seeds: range, tmp_path: Path, swept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in seeds:
        check_sweep(swept, seed, tmp_path / str(seed), caplog)
