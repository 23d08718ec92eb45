"""Tables of one's own runs: what varies, cells over seeds, and what seeds can show."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import folders
import pytest
from click.testing import CliRunner
from folders import completed, diverged, evaluations
from matplotlib.patches import Rectangle

from byzantium.cli import main
from byzantium.core import ByzantiumError
from byzantium.reports import escaping, formats, headline, text_tables
from byzantium.reports.figures import KINDS
from byzantium.runs import Metrics, Result, Run, Store
from byzantium.tables import ResultTable, pivots
from byzantium.tables.pivot import MEANING

RULES = ("Mean()", "Krum(f=2)", "Bucketing(s=2) >> Krum(f=2)")
ATTACKS = ("Mimic(warmup=1)", "ALittleIsEnough()", "BitFlip()")
BASE = Run(n=15, f=2, rounds=60, momentum=0.0)


def accuracy(rule: str, attack: str, seed: int) -> float:
    """Far apart by rule, near by attack; the mean is bad under one attack alone."""
    if rule == "Mean()":
        return (20.0 if attack == "BitFlip()" else 95.0) + seed
    return {RULES[1]: 60.0, RULES[2]: 80.0}[rule] + ATTACKS.index(attack) + 0.5 * seed


def lay(store: Store, run: Run, value: float) -> None:
    if math.isnan(value):
        folders.write(store, run, evaluations(run, [1.0]), diverged())
    else:
        folders.write(store, run, evaluations(run, [value / 2, value]), completed(value))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "own")
    for rule, attack, seed in itertools.product(RULES, ATTACKS, range(3)):
        run = BASE.varied(rule=rule, attack=attack, seed=seed)
        lay(store, run, accuracy(rule, attack, seed))
    return store


def only(found: list[ResultTable]) -> ResultTable:
    (table,) = found
    return table


# -- cells --------------------------------------------------------------------------------------


def test_a_table_is_rules_by_attacks_over_seeds_with_the_worst_first(store: Store) -> None:
    shown = text_tables.text_table(only(pivots(store)))
    # The paper's names, in the paper's order.
    assert shown.head == ("rule", "worst", "BF", "Mimic", "ALIE")
    assert [row[0].text for row in shown.rows] == ["Mean", "Krum", "Bucketing(s=2) >> Krum"]
    for rule, row in zip(RULES, shown.rows, strict=True):
        cells = []
        for attack in ("BitFlip()", "Mimic(warmup=1)", "ALittleIsEnough()"):
            values = [accuracy(rule, attack, seed) for seed in range(3)]
            cells.append((fmean(values), f"{fmean(values):.1f} ± {stdev(values):.1f}"))
        assert [entry.text for entry in row[1:]] == [min(cells)[1], *(text for _, text in cells)]


def test_the_best_is_marked_with_all_that_seeds_cannot_tell_from_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    values = {
        "Mean()": (90.0, 91.0, 92.0),
        "Median()": (89.0, 91.5, 91.0),
        "Krum()": (50.0, 51.0, 52.0),
    }
    for rule, found in values.items():
        for seed, value in enumerate(found):
            lay(store, BASE.varied(rule=rule, attack="Mimic()", seed=seed), value)
    rows = text_tables.text_table(only(pivots(store))).rows
    assert {row[0].text: row[-1].tone for row in rows} == {"Mean": "best", "CM": "best", "Krum": ""}


def test_one_seed_shows_no_difference(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for rule, value in (("Mean()", 90.0), ("Krum()", 10.0)):
        lay(store, BASE.varied(rule=rule, attack="Mimic()"), value)
    table = only(pivots(store))
    assert not table.cells[0].differs(table.cells[1])
    assert {entry.tone for row in text_tables.text_table(table).rows for entry in row} == {""}
    assert "cannot show" in text_tables.meaning(table)


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ((90.0, 91.0), (10.0, 12.0), True),
        ((90.0, 91.0), (80.0, 95.0), False),
        ((90.0, 90.0), (90.0, 90.0), False),
        ((90.0, 90.0), (89.0, 89.0), True),
        ((1.0, 2.0, 3.0), (3.0, 4.0, 5.0), False),  # t = 2.45, and 2.78 is needed
        ((1.0, 2.0, 3.0), (3.4, 4.4, 5.4), True),  # t = 2.94
    ],
)
def test_seeds_differ_by_welchs_test(
    tmp_path: Path, a: tuple[float, ...], b: tuple[float, ...], differ: bool
) -> None:
    store = Store(tmp_path)
    for rule, values in (("Mean()", a), ("Krum()", b)):
        for seed, value in enumerate(values):
            lay(store, BASE.varied(rule=rule, seed=seed), value)
    first, second = only(pivots(store)).cells
    assert first.differs(second) == second.differs(first) == differ


def test_rows_and_columns_are_chosen_and_nothing_but_seeds_is_averaged(store: Store) -> None:
    for rule, seed in itertools.product(RULES, range(2)):
        lay(store, BASE.varied(rule=rule, attack="BitFlip()", momentum=0.9, seed=seed), 70.0)
    large, small = pivots(store)
    assert "momentum 0" in large.artifact.title
    assert "momentum 0.9" in small.artifact.title
    assert sum(len(cell.results) for table in (large, small) for cell in table.cells) == 33
    found = pivots(store, rows=["rule", "attack"], columns="momentum")
    shown = text_tables.text_table(only(found))
    assert shown.head == ("rule", "attack", "momentum 0", "momentum 0.9")
    assert len(shown.rows) == 9
    assert [row[-1].text for row in shown.rows].count("") == 6


def test_what_varies_is_chosen_where_it_is_neither_rule_nor_attack(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for momentum, split in itertools.product((0.0, 0.9), ("iid()", "by_label()")):
        lay(store, BASE.varied(momentum=momentum, partition=split), 50.0)
    table = text_tables.text_table(only(pivots(store)))
    assert table.head == ("partition", "momentum 0", "momentum 0.9")
    assert [row[0].text for row in table.rows] == ["iid", "noniid"]


def test_tables_of_equal_size_stand_in_the_order_of_the_paper(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for split, rule in itertools.product(("by_label()", "dirichlet(0.1)", "iid()"), RULES[:2]):
        for attack in ATTACKS[:2]:
            lay(store, BASE.varied(partition=split, rule=rule, attack=attack), 50.0)
    titles = [table.artifact.title for table in pivots(store)]
    assert titles == [f"Rule by attack: {s}" for s in ("iid", "dirichlet(alpha=0.1)", "noniid")]
    table = only(pivots(store, worst_case=True))
    assert text_tables.text_table(table).head == ("rule", "iid", "dirichlet(alpha=0.1)", "noniid")


def test_the_setting_names_the_graph_of_trainings_without_a_server(tmp_path: Path) -> None:
    store, ring = Store(tmp_path), BASE.varied(topology="ring", f=1, rule="Gossip()")
    for attack in ATTACKS[:2]:
        lay(store, ring.varied(attack=attack), 50.0)
    for rows in ((), ("topology", "rule")):  # the column is not shown: all rows have the same
        graph = only(pivots(store, rows=rows)).artifact.fixed
        assert graph == "digits, mlp, noniid, ring, n = 15, f = 1, momentum 0, 60 rounds"
    for attack in ATTACKS[:2]:
        lay(store, ring.varied(attack=attack, topology="complete"), 60.0)
    tables = pivots(store, rows=("topology", "rule"))
    assert "ring" not in only(tables).artifact.fixed


def test_a_rule_with_another_f_is_the_same_rule(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for f in (1, 3):
        lay(store, BASE.varied(rule="Krum()", f=f, attack="Mimic()"), 50.0 + f)
    table = text_tables.text_table(only(pivots(store)))
    assert table.head == ("rule", "f = 1", "f = 3")
    assert [entry.text for entry in table.rows[0]] == ["Krum", "51.0", "53.0"]


def test_a_run_that_diverged_is_the_worst_and_one_attack_has_no_worst(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lay(store, BASE.varied(rule="Mean()", attack="Mimic()"), 10.0)
    assert "worst" not in text_tables.text_table(only(pivots(store))).head
    lay(store, BASE.varied(rule="Mean()", attack="BitFlip()"), math.nan)
    table = text_tables.text_table(only(pivots(store)))
    assert dict(zip(table.head, (entry.text for entry in table.rows[0]), strict=True)) == {
        "rule": "Mean",
        "worst": "diverged",
        "BF": "diverged",
        "Mimic": "10.0",
    }


def test_the_worst_case_of_each_cell(store: Store) -> None:
    iid = BASE.varied(rule="Mean()", attack=ATTACKS[0], partition="iid()")
    lay(store, iid, 30.0)
    table = only(pivots(store, rows=["rule"], columns="partition", worst_case=True))
    shown = {
        row[0].text: [entry.text for entry in row[1:]] for row in text_tables.text_table(table).rows
    }
    assert shown["Mean"] == ["30.0, 1 seed", "21.0 ± 1.0"]
    assert shown["Krum"] == ["", "60.5 ± 0.5"]
    assert (
        "the worst of 3 attacks; in 1 of 4 cells, not all of them are done" in table.artifact.notes
    )


@pytest.mark.parametrize(
    ("rows", "columns", "sentence"),
    [
        (["rul"], "", "did you mean 'rule'"),
        (["seed"], "", "and 'seed' is none"),
        (["attack"], "attack", "attack cannot be rows and columns at once"),
    ],
)
def test_wrong_rows_are_a_sentence(
    store: Store, rows: list[str], columns: str, sentence: str
) -> None:
    with pytest.raises(ByzantiumError, match=sentence):
        pivots(store, rows, columns)


# -- forms --------------------------------------------------------------------------------------


def test_latex_is_a_booktabs_table_in_which_nothing_is_a_command(store: Store) -> None:
    text = formats.latex(pivots(store))
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    lines = [line.strip().removesuffix(r"\\").strip() for line in body.strip().splitlines()]
    assert len(lines) == len(RULES)
    assert lines[2].startswith(r"Bucketing(s=2) $\gg$ Krum & \textbf{80.5 $\pm$ 0.5} & ")
    columns = re.search(r"begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    assert {line.count("&") for line in lines} == {len(columns[1]) - 1}
    for command in (r"\toprule", r"\caption{", r"\end{tabular}", r"\usepackage{booktabs}"):
        assert text.count(command) == 1
    hostile = escaping.in_latex(r"\input{/etc/passwd} & 100% $x_1^2$ #~")
    assert not re.search(r"(?<!\\)[&%#_]", hostile)
    assert not re.search(r"\\(?!textbackslash|textascii|[&%$#_{}])", hostile)


def test_csv_has_a_row_for_each_cell_with_all_digits(store: Store) -> None:
    rows = list(csv.DictReader(io.StringIO(formats.as_csv(pivots(store)))))
    assert len(rows) == len(RULES) * len(ATTACKS)
    for row in rows:
        rule = next(r for r in RULES if r.replace("f=2", "") == row["rule"])
        values = [accuracy(rule, row["attack"], seed) for seed in range(3)]
        assert float(row["mean"]) == pytest.approx(fmean(values), rel=1e-12)
        assert float(row["deviation"]) == pytest.approx(stdev(values), rel=1e-12)
        assert (row["seeds"], row["diverged"], row["missing"]) == ("3", "0", "0")
    marked = {row["rule"]: row["attack"] for row in rows if row["worst"] == "1"}
    assert marked["Mean()"] == "BitFlip()"
    assert marked["Krum()"] == "Mimic(warmup=1)"
    assert len(marked) == 3


def test_markdown_is_the_same_table(store: Store) -> None:
    text = formats.markdown(pivots(store))
    assert "| rule | worst | BF | Mimic | ALIE |" in text
    assert "| Mean | 21.0 ± 1.0 | 21.0 ± 1.0 | **96.0 ± 1.0** | **96.0 ± 1.0** |" in text
    assert "3 seeds" in text


def test_a_figure_has_a_line_for_each_rule_and_a_band(store: Store) -> None:
    figure = KINDS["curves"](only(pivots(store)))
    assert len(figure.axes) == len(ATTACKS)
    for axes in figure.axes:
        assert len(axes.get_lines()) == len(RULES)
        assert len(axes.collections) == len(RULES)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "Mean",
        "Krum",
        "Bucketing(s=2) >> Krum",
        "± std over seeds",
    ]


def test_a_figure_of_the_worst_case_has_a_cell_for_each(store: Store) -> None:
    lay(store, BASE.varied(rule="Mean()", attack=ATTACKS[0], momentum=0.9, partition="iid()"), 30.0)
    table = only(pivots(store, ["rule", "momentum"], "partition", worst_case=True))
    (axes,) = KINDS[table.artifact.picture.kind](table).axes
    assert len(axes.patches) == 4
    assert len({patch.get_xy() for patch in axes.patches if isinstance(patch, Rectangle)}) == 4
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:2] == ["Mean, momentum 0", "Mean, momentum 0.9"]


def test_lines_that_coincide_are_zoomed_to(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for rule, value in (("Mean()", 93.0), ("Krum()", 95.0)):
        run = BASE.varied(rule=rule, rounds=120)
        lines = evaluations(run, [20.0, value, value, value])
        folders.write(store, run, lines, completed(value))
    axes = KINDS["curves"](only(pivots(store))).axes[0]
    low, high = axes.get_ylim()
    assert 85 < low < 93 < 95 < high <= 100
    lay(store, BASE.varied(rule="Median()", rounds=120), 30.0)
    assert KINDS["curves"](only(pivots(store))).axes[0].get_ylim() == (0, 100)


def test_the_headline_names_the_best_rule_the_worst_and_the_largest_gain(store: Store) -> None:
    said = headline(pivots(store))
    assert said is not None
    assert said.sentence == (
        "Under the worst of 3 attacks, Bucketing(s=2) >> Krum is best, with a test accuracy of "
        "80 %; Mean has 21 %. The largest gain by a mixing: Krum has 60 %, behind Bucketing(s=2) "
        "80 %."
    )
    assert (said.low, said.high) == (21.0, 80.5)
    assert "3 seeds" in said.setting


def test_the_headline_calls_nothing_a_gain_that_seeds_do_not_show(tmp_path: Path) -> None:
    store = Store(tmp_path)
    values = {RULES[1]: (50.0, 70.0), RULES[2]: (55.0, 75.0)}
    for rule, attack in itertools.product(values, ATTACKS):
        for seed, value in enumerate(values[rule]):
            lay(store, BASE.varied(rule=rule, attack=attack, seed=seed), value)
    said = headline(pivots(store))
    assert said is not None
    assert said.low is None
    assert said.sentence == (
        "Under the worst of 3 attacks, Bucketing(s=2) >> Krum has a test accuracy of 65 %. "
        "The seeds do not show 1 other rule to be worse."
    )


# -- commands -----------------------------------------------------------------------------------


def test_report_makes_tables_and_figures_from_the_store_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["report", "own", "--markdown", "t.md", "--table", "t.tex", "--table", "t.csv"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "Mean" in done.output
    assert "mean ± standard deviation over 3 seeds" in " ".join(done.output.split())
    text = (tmp_path / "t.md").read_text()
    assert "27 runs" in text
    assert "No run is finished yet" not in text
    assert "| Mean | 21.0 ± 1.0 |" in text
    assert r"\toprule" in (tmp_path / "t.tex").read_text()
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 10
    for ending in ("png", "pdf"):
        assert (tmp_path / "own" / "figures" / f"rule-by-attack.{ending}").exists()


def test_wrong_options_are_a_sentence_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text("[fixed]\nrounds = 1\n[varies]\nseed = [0, 1]\n")
    for words, sentence in (
        (["--rows", "rul"], "did you mean 'rule'"),
        (
            ["--table", "t.docx"],
            "a table is written to a file that ends in .md, .tex, .csv, got t.docx",
        ),
    ):
        done = CliRunner().invoke(main, ["sweep", "s.toml", *words])
        assert done.exit_code == 2
        assert sentence in done.output
    assert not Path("results").exists()


# -- what no rule can promise -------------------------------------------------------------------


def measured(b2: float | None, **options: Any) -> Result:
    """A finished run whose first rounds had this B²; None where it was not recorded."""
    lines: list[Metrics] = [{"round": 30, "accuracy": 90.0}]
    if b2 is not None:
        lines[0]["early_heterogeneity"] = [b2 / 2, b2, 2 * b2]
    return Result(Run(**options), Path("results"), "completed", lines, {"accuracy": 90.0})


def test_a_table_says_once_what_b2_must_be_and_is() -> None:
    rules = ("Krum()", "Median()")
    results = [
        measured(28 + seed, rule=rule, attack="Mimic()", seed=seed)
        for rule in rules
        for seed in (0, 1)
    ]
    (table,) = pivots(results)
    assert table.artifact.notes == f"5 of 25 need B² < 3; yours is 28 to 29. {MEANING}"
    assert formats.markdown([table]).count("5 of 25 need B² &lt; 3; yours is 28 to 29.") == 1
    assert r"need B$^2$ $<$ 3" in formats.latex([table])


def test_runs_without_an_attack_say_how_different_honest_workers_are() -> None:
    """An attack that destroys the model makes all gradients alike."""
    results = [
        measured(1.3, rule="Mean()", attack="InnerProduct(epsilon=10)"),
        measured(33, rule="Mean()", attack="NoAttack()"),
    ]
    (table,) = pivots(results, ["rule"], "attack")
    assert table.artifact.notes == f"5 of 25 need B² < 3; yours is 33. {MEANING}"


def test_it_names_partitions_and_numbers_of_attackers_where_they_differ() -> None:
    options = {"rule": "Median()", "attack": "Mimic()"}
    results = [
        measured(1.5, partition="iid()", **options),
        measured(28, partition="by_label()", **options),
    ]
    (table,) = pivots(results, ["rule"], "partition")
    sentence = "5 of 25 need B² < 3; yours is 1.5 (iid), 28 (noniid)."
    assert table.artifact.notes == f"{sentence} {MEANING}"
    results = [measured(28, f=1, **options), measured(30, f=3, **options)]
    (table,) = pivots(results, ["rule"], "f")
    sentences = "1 of 25 need B² < 23; yours is 28. 3 of 25 need B² < 6.33; yours is 30."
    assert table.artifact.notes == f"{sentences} {MEANING}"


def test_old_results_and_runs_without_attackers_say_nothing() -> None:
    for result in (measured(None, attack="Mimic()"), measured(28, f=0, rule="Mean()")):
        (table,) = pivots([result])
        assert table.artifact.notes == ""


# -- other metrics ------------------------------------------------------------------------------


RATES = {"Mean()": 99.0, "Median()": 40.0, "Krum(f=2)": 2.0}
BACKDOORS = ("Backdoor()", "Backdoor(boost='n')")


def lay_backdoors(store: Store) -> None:
    """Runs whose success rate differs by rule and attack; others record none."""
    for (rule, rate), attack, seed in itertools.product(RATES.items(), BACKDOORS, range(3)):
        run = BASE.varied(rule=rule, attack=attack, seed=seed)
        value = rate - seed / 4 + (0.5 if attack == BACKDOORS[1] else 0)
        lines = evaluations(run, [90.0, 90.0])
        lines = [{**line, "success_rate": value} for line in lines]
        folders.write(store, run, lines, completed(90.0))
        lay(store, BASE.varied(rule=rule, attack="BitFlip()", seed=seed), 50.0)


def test_a_table_shows_the_metric_that_is_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lay_backdoors(store)
    table = only(pivots(store, metric="success_rate"))
    assert table.artifact.picture.title == "success rate of the backdoor (%)"
    assert table.artifact.stem == "rule-by-attack-success_rate"
    shown = text_tables.text_table(table)
    # Runs that did not record it are left out. The highest rate is the worst.
    assert shown.head == ("rule", "worst", "Backdoor", "Backdoor(boost='n')")
    texts = {row[0].text: [entry.text for entry in row[1:]] for row in shown.rows}
    assert texts == {
        "Mean": ["99.2 ± 0.2", "98.8 ± 0.2", "99.2 ± 0.2"],
        "CM": ["40.2 ± 0.2", "39.8 ± 0.2", "40.2 ± 0.2"],
        "Krum": ["2.2 ± 0.2", "1.8 ± 0.2", "2.2 ± 0.2"],
    }
    bold = {row[0].text for row in shown.rows if row[1].tone == "best"}
    assert bold == {"Krum"}
    # By accuracy, all runs are in one table.
    assert len(only(pivots(store)).cells) == 9
    worst = only(pivots(store, worst_case=True, metric="success_rate"))
    assert {c.labels["rule"]: c.value for c in worst.cells} == {
        "Mean()": 99.25,
        "Median()": 40.25,
        "Krum()": 2.25,
    }


def test_the_metric_reaches_files_figures_and_the_page(tmp_path: Path) -> None:
    store, folder = Store(tmp_path), str(tmp_path)
    lay_backdoors(store)
    files = [str(tmp_path / name) for name in ("mine.md", "mine.tex", "mine.csv")]
    options = [option for file in files for option in ("--table", file)]
    done = CliRunner().invoke(
        main, ["report", folder, "--metric", "success_rate", *options], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    for file in files:
        assert "99.2" in Path(file).read_text()
    assert (tmp_path / "figures" / "rule-by-attack-success_rate.png").exists()
    page = folders.held(tmp_path / "report.html")
    (shown,) = page["tables"]
    assert (shown["measure"], shown["less"], shown["judged"]) == ("success_rate", True, True)
    assert {cell["value"] for cell in shown["cells"]} == {98.75, 99.25, 39.75, 40.25, 1.75, 2.25}
    title = "success rate of the backdoor (%)"
    assert page["metrics"]["success_rate"] == {"title": title, "scale": "percent"}
    rates = [run["success_rate"] for run in page["runs"] if "Backdoor" in run["attack"]]
    values = (base - seed / 4 for base in RATES.values() for seed in range(3))
    assert sorted(rates) == sorted(value + more for value in values for more in (0, 0.5))
    assert all(run["success_rate"] is None for run in page["runs"] if run["attack"] == "BitFlip()")
    curves = [run["series"].get("success_rate") for run in page["runs"]]
    assert sum(curve is not None for curve in curves) == 18
    none = CliRunner().invoke(main, ["report", folder, "--metric", "zeta2"])
    assert none.exit_code == 0
    assert "none of these runs has recorded zeta2" in none.output


@pytest.mark.parametrize(
    ("metric", "worst_case", "sentence"),
    [
        ("succes_rate", False, "a metric that is a number.*did you mean 'success_rate'"),
        ("weights", False, "a metric that is a number"),
        ("spread", True, r"rules are judged \(accuracy, loss, .*\), got spread"),
    ],
)
def test_a_metric_that_no_table_can_show_is_refused(
    metric: str, worst_case: bool, sentence: str
) -> None:
    with pytest.raises(ByzantiumError, match=sentence):
        pivots([], worst_case=worst_case, metric=metric)
