"""Members of one's own: in a file or an installed package, in the notation, in runs, in results."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.shell_completion import BashComplete
from pages import DO, byzantium, folder_of, forget, run_commands

import byzantium as bz
from byzantium.cli import main
from byzantium.learning import metrics
from byzantium.reports.contents import contents as page_contents
from byzantium.runs import Mimicry, Processes, Run, Store, execute, load, perform, plugins
from byzantium.runs import store as results
from byzantium.tables import pivots

SMALL: dict[str, Any] = {"n": 7, "f": 1, "rounds": 4, "evaluate_every": 2, "batch": 8}
OPTIONS = [w for k, v in SMALL.items() for w in (f"--{k.replace('_', '-')}", str(v))]
RULE = """
from dataclasses import dataclass
import numpy as np
import byzantium as bz

@dataclass(frozen=True)
class First(bz.Weighting):
    '''The vector of one worker.'''
    which: int = 0
    def weights(self, geometry):
        return np.eye(geometry.n)[self.which]
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test in an empty folder, and nothing loaded before and after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("BYZANTIUM_DATA", raising=False)
    yield tmp_path
    forget()


def written(text: str, name: str = "mine.py") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


# -- the pages ------------------------------------------------------------------------------------


def performed(page: str) -> tuple[list[str], list[results.Result]]:
    """Run the commands of a page; what each said, and the runs that there are now."""
    with folder_of(DO / page, Path()):
        said = run_commands(DO / page)
        return said, list(Store("results"))


def listed(said: list[str]) -> str:
    (text,) = [text for text in said if "Krum" in text]
    return re.sub(r"[\s│]+", " ", text)  # a row may take two lines


def test_the_page_on_rules() -> None:
    said, (run,) = performed("rule.md")
    assert run.status == "completed"
    own = ("NearestHalf", "Middle", "Majority")
    assert all(f" {name}(" in listed(said) for name in own)
    assert listed(said).count("(my_rules.py)") == len(own)


def test_the_page_on_attacks() -> None:
    _, (run,) = performed("attack.md")
    assert "Opposite()" in run.job.configuration()["attack"]
    assert run.status == "completed"


def test_the_page_on_data() -> None:
    _, runs = performed("data.md")
    found: dict[str, Any] = {r.job.configuration()["data"].split()[0]: r.accuracy for r in runs}
    assert len(runs) == 4
    assert found["prices.npz"] is None
    assert found["rings.npz"] > 40  # of three classes
    assert found["stripes(width=2.0)"] > 60  # of two


def test_the_page_on_plugins() -> None:
    said, runs = performed("plugins.md")
    assert listed(said).count("(my_plugin.py)") == 1
    assert len(runs) == 5
    (first,) = [run for run in runs if run.job.configuration()["rounds"] == 60]
    assert first.accuracy is not None
    assert first.accuracy > 40  # of ten classes
    assert all(-1 <= line["cosine"] <= 1 for line in first.metrics)
    assert Path("results/report.html").exists()
    assert "my_plugin.py sha256:" in page_contents(Store("results"), [])["surroundings"][0]


# -- identity, and reading ------------------------------------------------------------------------


def test_a_run_is_another_when_the_source_of_its_plugin_is() -> None:
    plain = Run(**SMALL)
    path = written(RULE)
    first = bz.load_plugin(path)
    run = Run(rule="Bucketing(s=2) >> First()", **SMALL)
    assert run.plugin == (str(first),)
    assert Run(**SMALL).identity == plain.identity  # which names nothing of it
    assert run.varied(rule="Mean()") == Run(rule="Mean()", **SMALL)
    written(RULE.replace("[self.which]", "[-1 - self.which]"))
    second = bz.load_plugin(path)
    changed = Run(rule="Bucketing(s=2) >> First()", **SMALL)
    assert changed.plugin == (str(second),)
    assert changed.rule == run.rule
    assert changed.identity != run.identity
    assert torch.equal(bz.parse_rule("First()")(torch.eye(3)), torch.eye(3)[2])
    assert Mimicry(rule="First", n=10, attackers=2).plugin == (str(second),)


def test_a_file_that_is_loaded_twice_or_copied_is_the_same() -> None:
    first = bz.load_plugin(written(RULE))
    assert bz.load_plugin(Path("mine.py").absolute()) is first
    Path("other").mkdir()
    assert bz.load_plugin(written(RULE, "other/mine.py")) is first


NOISY = RULE + "\nwith open({marker!r}, 'a') as file:\n    file.write('run ')\n"


def test_reading_results_never_runs_a_plugin(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    written(NOISY.format(marker=str(marker)))
    record = 'largest = bz.Metric("largest", "the largest", lambda at: [0.0] * 7, kind="shares",\n'
    Path("mine.py").write_text(
        Path("mine.py").read_text()
        + 'height = bz.Metric("height", "how high", lambda scene: 3.0, max)\n'
        + record
        + "    reduce=lambda v: v[0])\n"
    )
    command = ["run", *OPTIONS, "--rule", "First(which=1)", "--record", "height,largest"]
    byzantium(*command, "--plugin", "mine.py")
    assert marker.read_text() == "run "
    forget()
    (result,) = Store("results")
    assert result.accuracy is not None
    assert result.metrics[0]["height"] == 3.0
    assert result.metrics[0]["largest"] == [0.0] * 7
    byzantium("report", "results", "--csv", "table.csv")
    page = page_contents(Store("results"), [])
    assert page["runs"][0]["kind"] == "First"
    assert page["runs"][0]["rule"] == "First(which=1)"
    assert page["runs"][0]["series"]["height"] == [3.0, 3.0]
    assert page["metrics"]["height"] == {"title": "height", "scale": "linear"}
    assert "--plugin mine.py" in page["runs"][0]["command"]
    assert "mine.py sha256:" in page["surroundings"][0]
    assert "mine.py sha256:" in Path("table.csv").read_text()
    assert pickle.loads(pickle.dumps(result.job)) == result.job
    config = str(result.folder / "config.toml")
    said = byzantium("run", "--config", config).stdout  # it is done, which needs no code
    assert said.startswith("done before")
    said = byzantium("run", "--config", config, "--seed", "1", code=2).stderr
    assert "needs the plugin mine.py (sha256:" in said
    assert "--plugin FILE" in said
    for attempt in (result.job.aggregator, result.job.dataset):  # type: ignore[attr-defined]
        with pytest.raises(bz.ByzantiumError, match="which is not loaded"):
            attempt()
    assert marker.read_text() == "run "
    byzantium("run", "--config", config, "--seed", "1", "--plugin", "mine.py")
    assert marker.read_text() == "run run "


def test_a_result_of_older_source_is_read_beside_the_new_source() -> None:
    written(RULE)
    byzantium("run", *OPTIONS, "--rule", "First", "--plugin", "mine.py")
    written(RULE + "\n# changed\n")
    byzantium("run", *OPTIONS, "--rule", "First", "--plugin", "mine.py")
    assert len(list(Store("results"))) == 2
    with pytest.raises(bz.ByzantiumError, match=r"plugin mine.py"):
        [r.job.aggregator() for r in Store("results")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        'plugin = ["mine.py"]',
        'plugin = "mine.py"',
        'plugin = ["/etc/x.py sha256:' + "0" * 64 + '"]',
        'plugin = ["x\\u0007.py sha256:' + "0" * 64 + '"]',
        'data = "my.npz"',
        'data = "../my.npz"',
    ],
)
def test_what_a_strangers_configuration_names_is_neither_run_nor_opened(
    line: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    written(NOISY.format(marker=str(marker)))
    os.mkfifo("my.npz")  # who opened it would wait for ever
    with pytest.raises(bz.ByzantiumError):
        Run.from_record({**tomllib.loads(line), **SMALL})
    assert not marker.exists()


def test_a_configuration_that_claims_a_plugin_must_still_be_printable() -> None:
    claimed = {"plugin": ("x.py sha256:" + "0" * 64,), **SMALL}
    assert Run.from_record({"rule": "Unheard(of=1)", **claimed}).rule == "Unheard(of=1)"
    for field, text in (("rule", "a\0b"), ("attack", "x" * 3000), ("record", [""]), ("model", "")):
        with pytest.raises(bz.ByzantiumError, match=f"printable text for {field}"):
            Run.from_record({field: text, **claimed})
    with pytest.raises(bz.ByzantiumError, match="attackers < n"):
        Run.from_record({**claimed, "attackers": 9})


def test_a_table_has_own_rules_beside_others_and_never_two_versions_in_a_cell() -> None:
    path = written(RULE)

    def result(rule: str) -> results.Result:
        run = Run(rule=rule, **SMALL)
        return results.Result(run, Path(), "completed", [], {"accuracy": 50.0})

    bz.load_plugin(path)
    first, shipped = result("First()"), result("Median()")
    (table,) = pivots([first, shipped])
    assert [len(cell.results) for cell in table.cells] == [1, 1]
    written(RULE + "\n# changed\n")
    bz.load_plugin(path)
    tables = pivots([first, shipped, result("First()")])
    assert [len(cell.results) for table in tables for cell in table.cells] == [1, 1, 1]


# -- where it goes --------------------------------------------------------------------------------


def test_a_sweep_takes_its_plugins_and_data_into_spawned_processes() -> None:
    import numpy as np

    Path("there").mkdir()
    written(RULE, "there/mine.py")
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    np.savez("my.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    Path("there/sweep.toml").write_text(
        'plugin = "mine.py"\n[fixed]\nn = 7\nf = 1\nrounds = 4\nbatch = 8\ndata = "my.npz"\n'
        'partition = "iid"\n[varies]\nrule = ["Mean()", "First()"]\n'
    )
    store = Store("results")
    runs = load(Path("there/sweep.toml"))
    assert [bool(run.plugin) for run in runs] == [False, True]
    results = execute(runs, store, Processes(2))
    assert [result.status for result in results] == ["completed", "completed"]
    assert results[1].summary["data"] == {"my.npz": results[0].summary["data"]["my.npz"]}
    digest = results[1].summary["data"]["my.npz"]
    assert digest.startswith(runs[0].data.removeprefix("my.npz "))


def test_a_plugin_that_changed_since_the_plan_is_not_run() -> None:
    bz.load_plugin(written(RULE))
    run = Run(rule="First", **SMALL)
    forget()
    written(RULE + "\n# changed\n")
    with pytest.raises(bz.ByzantiumError, match=r"mine.py has changed since"):
        perform(run, Path("folder"))
    reason = json.loads(Path("folder/failed.json").read_text())["reason"]
    assert "mine.py has changed" in reason
    Path("mine.py").unlink()
    forget()
    with pytest.raises(bz.ByzantiumError, match="No such file"):
        perform(run, Path("folder"))
    written(RULE)
    assert perform(run, Path("folder")) is not None


def test_checkpoints_are_merged_by_it_and_the_output_says_so() -> None:
    for k in range(3):
        tensors = {"weight": torch.full((2,), float(k))}
        safetensors.torch.save_file(tensors, f"client_{k}.safetensors")
    names = [f"client_{k}.safetensors" for k in range(3)]
    how = ["--plugin", str(written(RULE)), "--rule", "First(which=2)"]
    said = json.loads(
        byzantium("aggregate", *names, "-o", "out.safetensors", "--json", *how).stdout
    )
    assert safetensors.torch.load_file("out.safetensors")["weight"].tolist() == [2.0, 2.0]
    assert said["plugin"] == [str(plugin) for plugin in plugins._loaded.values()]


def test_completion_knows_it() -> None:
    written(RULE)

    def completed(*words: str) -> set[str]:
        shell = BashComplete(main, {}, "byzantium", "_BYZANTIUM_COMPLETE")
        return {item.value for item in shell.get_completions(list(words[:-1]), words[-1])}

    line = ["run", "--plugin", "mine.py", "--rule", "Fir"]
    assert completed(*line) == {"First()"}
    assert completed("run", "--plugin", "nowhere.py", "--rule", "Med") == {"Median()"}
    assert completed("run", "--model", "re") == {"resnet20"}
    assert completed("run", "--partition", "by") == {"by_label", "by_user"}


def test_help_says_that_code_is_run() -> None:
    for command in ("run", "sweep", "plan", "list", "aggregate"):
        assert "its code is run" in " ".join(byzantium(command, "--help").output.split())


# -- an installed package --------------------------------------------------------------------------


def installed(folder: Path, source: str, target: str = "their_package.inner") -> None:
    package = folder / "their_package"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(source)
    info = folder / "their_package-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[byzantium.plugins]\ntheirs = {target}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "their_package"]:
        del sys.modules[name]


def test_an_installed_package_is_found_by_its_entry_point(site: Path) -> None:
    installed(site, RULE)
    assert "(theirs)" in byzantium("list", "rules").output
    byzantium("run", *OPTIONS, "--rule", "First(which=2)")
    (result,) = Store("results")
    (recorded,) = result.job.configuration()["plugin"]
    assert recorded.startswith("theirs sha256:")
    forget()
    for name in [name for name in sys.modules if name.split(".")[0] == "their_package"]:
        del sys.modules[name]
    (site / "their_package" / "other.py").write_text("# one file more\n")
    byzantium("run", *OPTIONS, "--rule", "First(which=2)")
    assert len(list(Store("results"))) == 2


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("import nothing_of_the_kind", "their_package.inner", "No module named"),
        ("x = 1", "their_package.inner", "defines nothing to add"),
        (RULE, "their_package.inner:First", "must name a module"),
    ],
)
def test_an_installed_package_that_is_no_plugin_stops_nothing(
    site: Path, source: str, target: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    installed(site, source, target)
    byzantium("run", *OPTIONS)
    assert sentence in caplog.text
    assert "theirs" in caplog.text


# -- sentences ------------------------------------------------------------------------------------

WRONG = {
    "nothing": ("x = 1", "mine.py defines nothing to add: no public class"),
    "private": (RULE.replace("First", "_First"), "mine.py defines nothing to add"),
    "imported": ("from byzantium import Krum, Metric", "mine.py defines nothing to add"),
    "shadows": (
        RULE.replace("First", "Krum"),
        "mine.py defines 'Krum', but a rule or mixing of this name is part of Byzantium",
    ),
    "raises": ("\n\n1 / 0", "cannot be loaded: ZeroDivisionError: division by zero (line 3)"),
    "exits": ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
    "syntax": ("def f(:\n", "cannot be loaded: SyntaxError: invalid syntax (mine.py, line 1)"),
    "bytes": ("# \0\n", "cannot be loaded"),
    "import": ("import nothing_of_the_kind", "ModuleNotFoundError: No module named 'nothing_of"),
    "no dataclass": (
        RULE.replace("@dataclass(frozen=True)\n", ""),
        "First has the parameter 'which' but is not a dataclass: write @dataclass(frozen=True)",
    ),
    "changeable": (
        RULE.replace("(frozen=True)", ""),
        "First is a dataclass that is not frozen: write @dataclass(frozen=True)",
    ),
    "metric": (
        "import byzantium as bz\nm = bz.Metric('mine', '', float, max, key='loss')",
        "defines the metric 'mine', and 'loss' is recorded already",
    ),
    "metric of all": (
        "import byzantium as bz\nm = bz.Metric('mine', '', float, max, record=None)",
        "with record=None, which is for our own",
    ),
    "partition": (
        "import byzantium as bz\n@bz.partition\ndef mine(x, y): pass",
        "mine needs the parameters labels, workers, rng to be a partition",
    ),
    "model": (
        "import byzantium as bz\n@bz.model\ndef mine(): pass",
        "mine needs a first parameter, the data set to build a model for",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plugin_that_cannot_be_is_one_sentence_and_adds_nothing(name: str) -> None:
    source, sentence = WRONG[name]
    before = {part: dict(table) for part, table in plugins.tables().items()}
    result = byzantium("list", "--plugin", str(written(source)), code=2)
    assert sentence in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output
    assert {part: dict(table) for part, table in plugins.tables().items()} == before
    assert not [module for module in sys.modules if module.startswith("byzantium_plugin_mine")]


def test_two_plugins_with_one_name_are_one_sentence() -> None:
    bz.load_plugin(written(RULE))
    with pytest.raises(bz.ByzantiumError, match=r"other.py and mine.py both define .* 'First'"):
        bz.load_plugin(written(RULE + "\n", "other.py"))
    assert next(iter(plugins._loaded.values())).name == "mine.py"


@pytest.mark.parametrize("path", ["nowhere.py", ".", "mine.txt", "no\nname.py"])
def test_a_path_that_is_no_python_file_is_one_sentence(path: str) -> None:
    written(RULE, "mine.txt")
    with pytest.raises(bz.ByzantiumError, match="plugin"):
        bz.load_plugin(path)


MEMBERS = """
import numpy as np, torch, byzantium as bz

class Light(bz.Weighting):
    def weights(self, geometry):
        return np.full(geometry.n, 0.5)

class Short(bz.Weighting):
    def weights(self, geometry):
        return [1.0]

class Leaky(bz.Mixing):
    def matrix(self, geometry, generator):
        return 0.5 * np.eye(geometry.n)

class Liar(bz.Mixing):
    def matrix(self, geometry, generator):
        return np.full((2, geometry.n), 1 / geometry.n)

class Flat(bz.Mixing):
    def matrix(self, geometry, generator):
        return np.full(geometry.n, 1 / geometry.n)

class Lopsided(bz.CoordinateWise):
    def averaged(self, n):
        return n - 1

class Silent(bz.Aggregator):
    pass

class Wide(bz.MatrixRule):
    def aggregate(self, updates):
        return updates

class Crooked(bz.Attack):
    def vectors(self, scene):
        return scene.honest
"""
MISTAKES = {
    "Light()": "the weights of Light() must sum to one, but sum to 2.5",
    "Short()": "Short() must give a weight for each of 5 vectors, got the shape (1,)",
    "Leaky() >> Mean()": "Leaky(): the rows of a mixing matrix must sum to one, but its row 0 sums",
    "Liar() >> Mean()": "Liar(): its rows() says that 5 vectors come out, but its matrix has 2",
    "Flat() >> Mean()": "Flat(): a mixing matrix has two dimensions, got 1",
    "Lopsided()": "Lopsided() needs averaged(5) to be from 1 to 5, and 5 minus an even number",
    "Silent()": "Silent does not say how it aggregates; a rule derives from Weighting, Coord",
    "Wide()": "Wide() must give one vector of dimension 3, got a Tensor of shape (5, 3)",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_member_that_does_not_do_what_its_base_asks_is_one_sentence(text: str) -> None:
    bz.load_plugin(written(MEMBERS))
    rule = bz.parse_rule(text)
    for attempt in (rule, rule.explain):
        with pytest.raises(bz.ByzantiumError, match=re.escape(MISTAKES[text])):
            attempt(torch.randn(5, 3))


def test_an_attack_that_sends_what_is_none_of_it_is_one_sentence() -> None:
    bz.load_plugin(written(MEMBERS))
    with pytest.raises(bz.ByzantiumError, match=r"must send 2 vectors of dimension 3, or one for"):
        bz.parse_attack("Crooked()")(torch.randn(5, 3), q=2)


def test_a_matrix_rule_has_unknown_weights_behind_mixings_too() -> None:
    bz.load_plugin(written(MEMBERS.replace("return updates", "return updates.amax(dim=0)")))
    assert (
        Run(rule="Wide()", record=("weights",), **SMALL).simulation().rule.knows_weights == "never"
    )
    found = bz.parse_rule("Bucketing(s=2) >> Wide()").explain(torch.randn(6, 3))
    assert found.weights.isnan().all()
    assert found.aggregate.isfinite().all()


def test_weights_of_rows_alone_are_enough_beside_an_origin() -> None:
    bz.load_plugin(written(RULE))
    X = torch.tensor([[1.0], [50.0], [2.0]])
    assert bz.parse_rule("Clipping(radius=3) >> First(which=1)")(X).item() == 3


def test_a_dataclass_keeps_the_notation_as_its_repr() -> None:
    bz.load_plugin(written(RULE))
    assert repr(bz.parse("First(which=0)")) == "First()"
    assert bz.parse("First(which=1)") == bz.parse("First(1)")


def test_the_table_of_metrics_is_as_it_was() -> None:
    assert list(metrics.TABLE) == [metric.name for metric in metrics.SHIPPED]
