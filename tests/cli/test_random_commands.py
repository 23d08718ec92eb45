"""Thousands of command lines that nobody means: a sentence and an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import random
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from byzantium.cli import main
from byzantium.runs import Run

ODD = [
    *("", " ", "0", "-1", "1.5", "1e9", "nan", "inf", "-inf", "1e400", "0x10", "1_0", "٣", "½"),
    *("True", "None", "[]", "{}", "()", "[/b]", "[bold]", ":warning:", "{0}", "%s", "$x", "'", '"'),
    *("\\", "\n", "\t", "\r", "\x1b[31m", "\0", "\udc80", "\u202e", "é", "日本", "🙂", "a" * 3000),
    *("-", "--", "---x", "..", ".", "/", "/dev/null", "~nobody/x", "a/b", "nowhere", str(10**400)),
    *(str(2**63), str(2**64), "-" + str(10**400), "1" * 5000, "file", "config.toml"),
]
WORDS = [
    *("Krum", "Mean", "Median", "Bucketing", "GeometricMedian", "CenteredClipping", "TrimmedMean"),
    *("Mimic", "NoAttack", "BitFlip", "InnerProduct", "Tuned", "NonFinite", "MinMax", "mlp", "cnn"),
    *("linear", "sgd", "adam", "iid", "by_label", "dirichlet", "mixed", "f", "s", "m", "hidden"),
    *("power", "radius", "steps", "alpha", "kind", "start", "warmup", "attack", "epsilon", "True"),
]
LIKELY = {
    "rule": ["Krum()", "Bucketing(2) >> Median", "Bulyan()", "CenteredClipping(radius=inf)"],
    "attack": ["Mimic", "NonFinite('mixture')", "MinMax()", "Tuned(InnerProduct())", "BitFlip()"],
    "partition": ["iid", "dirichlet(1e-300)", "dirichlet(0.5)", "mixed(fraction=0.5)"],
    "model": ["linear", "mlp(hidden=1, layers=3)", "mlp", "cnn"],
    "optimizer": ["sgd(momentum=0.9)", "adam", "adam(weight_decay=1e300)"],
    "data": ["digits"],
    "record": ["weights,norm,rejected,spread,distance,heterogeneity", ",", "weights"],
    "learning_rate": ["1e-300", "1e300", "0.1"],
    "long_tail": ["1", "512", "1e308"],
    "momentum": ["0", "0.99", "1"],
}
# Small, and quickly over if it can be done at all.
SMALL = ["--n", "7", "--f", "1", "--rounds", "1", "--batch", "2"]
CHEAP = ["--seeds", "1", "--rounds", "1", "--model", "mlp", "--data", "digits"]
Lot = random.Random


def word(lot: Lot) -> str:
    """Something odd."""
    if lot.random() < 0.7:
        return lot.choice(ODD)
    return "".join(lot.choices(string.printable + "\0é\udc80[]()=>,'", k=lot.randint(1, 12)))


def notation(lot: Lot, depth: int = 0) -> str:
    """Something like the notation, well or badly formed."""
    values: list[Callable[[], str]] = [
        lambda: lot.choice(ODD[:30]),
        lambda: str(lot.randint(-2, 3)),
        lambda: repr(lot.choice(ODD)),
        lambda: lot.choice(["True", "None", "inf", "-inf", "1e999", "9" * 400, "0.1", "'zero'"]),
        lambda: notation(lot, depth + 1) if depth < 3 else "1",
    ]
    arguments = [
        lot.choice(["", f"{lot.choice(WORDS)}="]) + lot.choice(values)()
        for _ in range(lot.choice([0, 0, 1, 1, 2, 5]))
    ]
    text = f"{lot.choice(WORDS)}({', '.join(arguments)})"
    if lot.random() < 0.3 and depth < 3:
        text += lot.choice([" >> ", ">>", " + ", " "]) + notation(lot, depth + 1)
    if lot.random() < 0.2:
        place = lot.randrange(len(text))
        text = text[:place] + word(lot) + text[place + 1 :]
    return text


def value(lot: Lot, depth: int = 0) -> Any:
    """Something that a file may hold."""
    kinds: list[Callable[[], Any]] = [
        lambda: word(lot),
        lambda: notation(lot),
        lambda: lot.choice([None, True, False, 0, 1, 2, -1, 0.5, 10**30, 10**400]),
        lambda: lot.choice([float("nan"), float("inf"), -float("inf"), 1e-320]),
        lambda: [value(lot, depth + 1) for _ in range(lot.randint(0, 3))] if depth < 3 else [],
        lambda: {word(lot): value(lot, depth + 1) for _ in range(lot.randint(0, 2))},
    ]
    return lot.choice(kinds[: 6 if depth < 3 else 4])()


def field(lot: Lot) -> str:
    return lot.choice(list(Run.__dataclass_fields__))


def file(lot: Lot) -> str:
    """Write something like a sweep or a configuration, and say where."""
    small = {"n": 7, "f": 1, "rounds": 1, "batch": 2}
    fixed: Any = small | {field(lot): value(lot) for _ in range(lot.randint(0, 2))}
    sweep: Any = {"fixed": fixed, "varies": {field(lot): [value(lot)] for _ in range(2)}}
    if lot.random() < 0.3:
        sweep[lot.choice(["fixed", "varies", word(lot)])] = value(lot)
    written = fixed if lot.random() < 0.4 else sweep
    text = json.dumps(written)
    if lot.random() < 0.1:
        text = lot.choice(["", "[", "{", "[" * 10_000, '{"fixed":' * 5000, "\0", word(lot)])
    path = Path(lot.choice(["odd.json", "odd.toml"]))
    if path.suffix == ".toml" and lot.random() < 0.9:
        text = toml(written)
    path.write_bytes(text.encode("utf-8", lot.choice(["surrogatepass", "replace"])))
    return str(path)


def toml(values: Any) -> str:
    if not isinstance(values, dict):
        return json.dumps(values)
    plain = {k: v for k, v in values.items() if not isinstance(v, dict)}
    lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in plain.items()]
    for name, part in values.items():
        if isinstance(part, dict):
            lines += [f"[{json.dumps(name)}]", toml(part)]
    return "\n".join(lines).replace("NaN", "nan").replace("Infinity", "inf")


def run(lot: Lot) -> list[str]:
    command = ["run", *SMALL]
    for _ in range(lot.randint(1, 3)):
        name = field(lot)
        texts = ("rule", "attack", "partition", "model", "optimizer")
        made = notation(lot) if name in texts and lot.random() < 0.8 else word(lot)
        if lot.random() < 0.6:
            made = lot.choice(LIKELY.get(name, ["1", "2", "3"]))
        command += [f"--{name.replace('_', '-')}", made]
    if lot.random() < 0.2:
        command += [lot.choice(["--out", "--data-dir", "--config"]), word(lot)]
    if lot.random() < 0.2:
        command += ["--config", file(lot)]
    return command


def plan(lot: Lot) -> list[str]:
    target = lot.choice(["table2", "figure-mimic-demo", file(lot), word(lot)])
    options = ["--seeds", "--rounds", "--model", "--data", "--only", "--jobs", "--out"]
    odd = [lot.choice(options), lot.choice([word, notation])(lot)]
    return ["plan", target, "--no-probe", *CHEAP, *(odd if lot.random() < 0.8 else [])]


def reproduce(lot: Lot) -> list[str]:
    """Of each, something is wrong: what is right is tested elsewhere, and takes longer."""
    wrong = [["--only", "krum " + word(lot).strip() + "?"], ["--model", "?" + word(lot)]]
    wrong += [["--data", "?" + word(lot)], ["--rounds", "0"], ["--seeds", "x"], ["--jobs", "-1"]]
    return ["reproduce", "table2", *CHEAP, *lot.choice(wrong), "--out", lot.choice(["r", "a[/b]"])]


def picture(lot: Lot) -> list[str]:
    odd = [lot.choice(["--workers", "--seed", "--partition", "--data-dir"])]
    odd.append(notation(lot) if odd[0] == "--partition" else word(lot))
    return ["data", "picture", lot.choice(["digits", "digits", "?" + word(lot)]), *odd]


def others(lot: Lot) -> list[str]:
    return lot.choice(
        [
            ["sweep", file(lot), "--jobs", lot.choice(["1", word(lot)])],
            ["sweep", word(lot)],
            ["report", word(lot)],
            ["report", ".", "--csv", word(lot)],
            ["list", word(lot)],
            ["aggregate", "--rule", notation(lot), "file", file(lot), "-o", word(lot)],
            ["aggregate", "--rule", "Mean()", word(lot), "--seed", word(lot), "-o", "merged"],
            ["demo", "--rounds", "-1", "--jobs", word(lot)],
            ["data", lot.choice(["fetch", "verify"]), lot.choice(["digits", "?" + word(lot)])],
            [word(lot), word(lot)],
            ["run", "--" + word(lot), word(lot)],
        ]
    )


COMMANDS = [run, run, run, plan, reproduce, picture, others, others]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BYZANTIUM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("file").touch()


def tell(seed: int, count: int) -> None:
    """Give so many command lines and look at what becomes of each."""
    lot = Lot(seed)
    for _ in range(count):
        os.environ.pop("BYZANTIUM_DATA", None)  # --data-dir sets it, for the processes it starts
        command = lot.choice(COMMANDS)(lot)
        result = CliRunner().invoke(main, command)
        assert result.exception is None or isinstance(result.exception, SystemExit), command
        assert result.exit_code in (0, 1, 2), command
        assert "Traceback" not in result.output, command
        if result.exit_code == 2 and not command[0].startswith("-"):
            assert "Error: " in result.stderr or "Usage: " in result.stderr, command


@pytest.mark.parametrize("seed", range(3))
def test_odd_command_lines_end_in_a_sentence(seed: int) -> None:
    tell(seed, 50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_odd_command_lines_end_in_a_sentence(seed: int) -> None:
    tell(seed, 100)


@pytest.mark.parametrize(
    "arguments",
    [
        [b"run", b"--rule", b"Krum(f=2.5)"],
        [b"run", b"--rule", b"Krum() >> Mean()"],
        [b"run", b"--rule", b"\xff\xfe"],
        [b"run", b"--out", b"\xff\xfe"],
        [b"run", b"--learning-rate", b"1" * 400],
        [b"plan", "é".encode("latin-1")],
        [b"\xff"],
    ],
    ids=repr,
)
def test_the_program_itself_says_a_sentence(arguments: list[bytes]) -> None:
    program = [sys.executable.encode(), b"-c", b"from byzantium.cli import main; main()"]
    done = subprocess.run([*program, *arguments], capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"Error: ")
    assert done.stdout == b""
