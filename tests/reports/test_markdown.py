"""REPRODUCTION.md says what the results say: numbers, verdicts, order, what is missing."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from statistics import fmean, stdev

import folders
import pytest
from folders import comparison, made
from paths import ROOT
from published_rows import rows
from rich.console import Console

from byzantium.cli.report import report
from byzantium.cli.reproduce import reproduce
from byzantium.papers import MAKERS, published
from byzantium.papers.requests import Requests
from byzantium.reports.markdown import markdown, terminal
from byzantium.runs import Store
from byzantium.tables import ResultTable, Version, own_runs, pivots
from byzantium.tables.terms import short_name

ONE = Version(seeds=1)
CHEAP = Version(seeds=1, rounds=60, model="mlp", data="digits")


def number(row: dict[str, str], seed: int) -> float:
    """An accuracy to write for a published row: off by what depends on the row and the seed."""
    return float(row["mean_accuracy"]) - 3 + len(row["aggregator"]) + 0.25 * seed


def spread(row: dict[str, str]) -> float:
    """That of the published means of five evaluations: see `papers/test_bucketing.py`."""
    found = published.cell(row["artifact"], row)
    assert found is not None
    return found.spread


def filled(
    store: Store, name: str, version: Version | None = None
) -> dict[tuple[str, ...], dict[str, str]]:
    """A store with an accuracy for every published cell; the published rows by their labels."""
    labels = ("aggregator", "attack", "momentum", "s", "split")
    found = {tuple(row[k] for k in labels): row for row in folders.published(name)}
    folders.fill(
        store,
        made(name, version or Version()),
        lambda cell, seed: number(found[tuple(str(cell.labels[k]) for k in labels)], seed),
    )
    return found


# -- numbers ------------------------------------------------------------------------------------


def test_a_table_holds_published_ours_difference_and_verdict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    theirs = filled(store, "table2")
    shown = rows(markdown([comparison("table2", store)], store), "aggregator")
    assert len(shown) == len(theirs) == 10
    for row in theirs.values():
        ours = [number(row, seed) for seed in range(3)]
        mean, deviation = float(row["mean_accuracy"]), float(row["std_accuracy"])
        gap = fmean(ours) - mean
        within = abs(gap) <= max(1.5, 2 * deviation, 2 * spread(row))
        assert [
            short_name("aggregator", row["aggregator"]),
            row["split"],
            f"{mean:.2f} ± {deviation:.2f}",
            f"{fmean(ours):.2f} ± {stdev(ours):.2f} (3 seeds)",
            f"{gap:+.2f}",
            "agrees" if within else "**differs**",
        ] in shown
    verdicts = [row[-1] for row in shown]
    assert set(verdicts) == {"agrees", "**differs**"}
    agree = verdicts.count("agrees")
    assert f"{agree} of 10 cells agree" in markdown([comparison("table2", store)], store)


def test_the_main_figure_is_a_table_of_sixteen_rows(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2)
    theirs = filled(store, "figure-main", version)
    text = markdown([comparison("figure-main", store, version)], store)
    shown = {tuple(row[:3]): row[3:] for row in rows(text, "aggregator")}
    assert len(shown) == 16
    attacks = ("bit-flip", "label-flip", "mimic", "ipm", "alie")
    differ = 0
    for (aggregator, attack, momentum, s, _), row in theirs.items():
        ours = [number(row, seed) for seed in range(2)]
        mean, deviation = float(row["mean_accuracy"]), float(row["std_accuracy"])
        entry = f"{fmean(ours):.1f} ± {stdev(ours):.1f} ({mean:.1f})"
        off = abs(fmean(ours) - mean) > max(1.5, 2 * deviation, 2 * spread(row))
        differ += off
        found = shown[short_name("aggregator", aggregator), momentum, s][1 + attacks.index(attack)]
        assert found == (f"**{entry}**" if off else entry)
    assert 0 < differ < 80
    for labels, (worst, *entries) in shown.items():
        values = [float(entry.strip("*").split()[0]) for entry in entries]
        published = [float(entry.strip("*)").partition("(")[2]) for entry in entries]
        of_ours, of_theirs = worst.strip(")").split(" (")
        assert float(of_ours.split()[0]) == min(values), labels
        assert float(of_theirs) == min(published), labels
    # Those that differ are listed in full, once each.
    assert text.count("**differs**") == differ
    assert f"{80 - differ} of 80 cells agree" in text


def test_shares_of_attackers_and_effective_workers(tmp_path: Path) -> None:
    store, whole = Store(tmp_path), made("figure-krum-selections")
    for cell in whole.cells:
        for seed, job in enumerate(cell.jobs):
            first = [0.0] * 19 + [1.0]
            second = [0.5] + [0.0] * 18 + [0.5] if seed else first
            lines = folders.evaluations(job, [10, 20, 30])
            for line, weights in zip(lines, (first, second, second), strict=True):
                line["weights"] = weights
            folders.write(store, job, lines, folders.completed(30.0))
    text = markdown([comparison("figure-krum-selections", store)], store)
    # The last worker: 1 for seed 0; (1 + 0.5 + 0.5) / 3 for seeds 1 and 2.
    last = (1 + 2 / 3 + 2 / 3) / 3
    effective = 1 / (last**2 + (1 - last) ** 2)
    for s, row in zip("123", rows(text, "s"), strict=True):
        assert row == [
            s,
            f"{last:.3f}",
            f"{last:.3f} (worker 19, an attacker)",
            f"{effective:.1f} of 20",
            "3",
        ]


def test_a_shorter_last_block_of_rounds_counts_for_less(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=1, rounds=40)
    for job in made("figure-krum-selections", version).jobs:
        lines = folders.evaluations(job, [10, 20])
        lines[1]["round"] = 40
        lines[0]["weights"] = [1.0] + [0.0] * 19
        lines[1]["weights"] = [0.0] * 19 + [1.0]
        folders.write(store, job, lines, folders.completed(20.0))
    text = markdown([comparison("figure-krum-selections", store, version)], store)
    assert rows(text, "s")[0][1:3] == ["0.250", "0.750 (worker 0)"]


def test_errors_of_the_demonstration(tmp_path: Path) -> None:
    store, whole = Store(tmp_path), made("figure-mimic-demo")
    for cell in whole.cells:
        for seed, job in enumerate(cell.jobs):
            error = 10 * float(cell.labels["x"]) + seed
            line = {"round": 20, "error": error, "deviation": 1.0}
            folders.write(store, job, [line], {"status": "completed", "error": error})
    shown = rows(markdown([comparison("figure-mimic-demo", store)], store), "over")
    assert len(shown) == 10
    assert ["share of copies", "0.4", *["5 ± 1"] * 4] in shown
    assert ["dimension", "1000", *["10001 ± 1"] * 4] in shown


def test_a_figure_of_losses_shows_losses_and_one_of_norms_their_ratio(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("figure-b2", "figure-gradient-norms"):
        folders.fill(store, made(name, ONE), lambda cell, seed: 90.0)
    text = markdown([comparison("figure-b2", store, ONE)], store)
    assert rows(text, "s")[0] == ["1", "1", *["4.5"] * 5]  # the mean of 3 and 6
    text = markdown([comparison("figure-gradient-norms", store, ONE)], store)
    ratios = [row[1] for row in rows(text, "momentum")]
    assert ratios == ["1", "1.33", "1.6", "1.66"]  # (1.5 + momentum) / 1.5


# -- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "accuracy", "verdict"),
    [
        # Published: 98.75 ± 0.02, so 1.5 points count.
        ("mean noniid", 98.75 + 1.5, "agrees"),
        ("mean noniid", 98.75 - 1.5, "agrees"),
        ("mean noniid", 98.75 - 1.51, "**differs**"),
        ("mean noniid", 98.75 + 1.51, "**differs**"),
        # Published: 89.9 ± 4.75, so two standard deviations do.
        ("krum noniid", 89.9 + 9.5, "agrees"),
        ("krum noniid", 89.9 - 9.5, "agrees"),
        ("krum noniid", 89.9 - 9.51, "**differs**"),
    ],
)
def test_verdicts_at_the_edge(tmp_path: Path, cell: str, accuracy: float, verdict: str) -> None:
    store, version = Store(tmp_path), Version(seeds=1, only=cell)
    folders.fill(store, made("table1", version), lambda cell, seed: accuracy)
    shown = rows(markdown([comparison("table1", store, version)], store), "aggregator")
    assert [row[-1] for row in shown] == [verdict]


def test_fewer_seeds_have_verdicts_and_a_cheaper_version_has_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for version, says in ((Version(seeds=1), True), (Version(rounds=60), False), (CHEAP, False)):
        folders.fill(store, made("table2", version), lambda cell, seed: 90.0)
        text = markdown([comparison("table2", store, version)], store)
        shown = rows(text, "aggregator")
        assert len(shown) == 10
        assert all((row[-1] != "—") == (row[-2] != "—") == says for row in shown)
        assert ("cells agree" in text) == says
        assert ("not comparable" in text) != says
        assert f"Cheaper version: {', '.join(version.words())}." in text
    assert "1 seed instead of 3, 60 rounds, model mlp, data set digits" in text


def test_the_order_of_the_rules_is_counted_in_pairs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ours = {"mean": 90.0, "krum": 80.0, "median": 70.0, "rfa": 60.0, "cclip": 50.0}
    folders.fill(store, made("table2", CHEAP), lambda cell, seed: ours[cell.labels["aggregator"]])
    kept = pairs = 0
    for a, b in itertools.combinations(folders.published("table2"), 2):
        gap = float(a["mean_accuracy"]) - float(b["mean_accuracy"])
        wide = max(1.5, 2 * float(a["std_accuracy"]), 2 * float(b["std_accuracy"]))
        if a["split"] == b["split"] and abs(gap) > wide:
            pairs += 1
            kept += (gap > 0) == (ours[a["aggregator"]] > ours[b["aggregator"]])
    assert 0 < kept < pairs
    text = markdown([comparison("table2", store, CHEAP)], store)
    assert f"{kept} of {pairs} pairs of rules are in the published order" in text


def test_what_is_missing_unfinished_or_diverged_is_said(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2)
    whole = made("table2", version)
    cells = {(c.labels["aggregator"], c.labels["split"]): c for c in whole.cells}
    folders.fill(store, whole, lambda cell, seed: 90.0)
    for folder in (store.folder(job) for job in cells["krum", "iid"].jobs):
        (folder / "config.toml").unlink()
        (folder / "summary.json").unlink()
    for job in cells["rfa", "iid"].jobs:
        (store.folder(job) / "summary.json").unlink()
    folders.write(store, cells["mean", "iid"].jobs[1], [], folders.diverged())
    for job in cells["cclip", "iid"].jobs:
        folders.write(store, job, [], folders.diverged())
    compared = comparison("table2", store, version)
    text = markdown([compared], store)
    shown = {(row[0], row[1]): row[3:] for row in rows(text, "aggregator")}
    assert shown["Krum", "iid"] == ["missing", "—", "missing"]
    assert shown["RFA", "iid"] == ["unfinished", "—", "missing"]
    assert shown["CClip", "iid"] == ["diverged", "—", "**collapsed**"]
    assert shown["Mean", "iid"][0] == "90.00 (1 seed, 1 diverged)"
    assert "2 of 10 cells missing" in text
    for compared_cell in compared.cells:
        absent = compared_cell.cell in (cells["krum", "iid"], cells["rfa", "iid"])
        assert (f"\n{compared.command(compared_cell)}\n" in text) == absent


def test_what_failed_is_said_and_why(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2)
    whole = made("table2", version)
    cells = {(c.labels["aggregator"], c.labels["split"]): c for c in whole.cells}
    folders.fill(store, whole, lambda cell, seed: 90.0)
    failed = [*cells["krum", "iid"].jobs, cells["mean", "iid"].jobs[1]]
    for job in failed:
        (store.folder(job) / "summary.json").unlink()
        folders.fail(store, job, "OSError: `no` <b>space</b>")
    text = markdown([comparison("table2", store, version)], store)
    shown = {(row[0], row[1]): row[3:] for row in rows(text, "aggregator")}
    assert shown["Krum", "iid"] == ["failed", "—", "missing"]
    assert shown["Mean", "iid"][0] == "90.00 (1 seed, 1 failed)"
    assert "; 3 runs failed" in text
    assert "\n- ``OSError: `no` <b>space</b>`` (3 runs)\n" in text


# -- commands -----------------------------------------------------------------------------------


def commands(text: str) -> list[str]:
    return re.findall(r"^(?:.*`)?(byzantium reproduce [^`\n]*)", text, re.MULTILINE)


def parsed(command: str) -> tuple[str, Version]:
    program, verb, name, *flags = shlex.split(command)
    assert (program, verb) == ("byzantium", "reproduce")
    options = {name for parameter in reproduce.params for name in parameter.opts}
    values: dict[str, object] = {}
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        assert flag in options
        values[flag.removeprefix("--")] = int(value) if value.isdigit() else value
    return name, Version(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAKERS)
def test_the_command_of_a_cell_makes_that_cell(tmp_path: Path, name: str) -> None:
    compared = comparison(name, Store(tmp_path), ONE)
    for cell in compared.cells[:: max(1, len(compared.cells) // 2)]:
        narrowed = made(*parsed(compared.command(cell)))
        assert narrowed.name == name
        assert narrowed.cells == (cell.cell,)


def test_the_commands_of_the_text_make_what_it_shows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = made("table2", CHEAP)
    folders.fill(store, dataclasses.replace(whole, cells=whole.cells[3:]), lambda cell, seed: 90.0)
    text = markdown([comparison("table2", store, CHEAP)], store)
    first, *cells = [command for command in commands(text) if "table2" in command]
    assert made(*parsed(first)).jobs == whole.jobs
    missing = [job for command in cells for job in made(*parsed(command)).jobs]
    assert missing == [job for cell in whole.cells[:3] for job in cell.jobs]


# Rules or other choices, times attacks or splits, times three seeds; equal runs once.
RUNS = {
    "table1": 5 * 2 * 3,
    "table3": 5 * 2 * 3,
    "table4": 5 * 2 * 3,
    "figure-main": 4 * 5 * 2 * 2 * 3,
    "figure-hyperparameters": 6 * 2 * 3,
    "figure-gradient-norms": 5 * 4 * 3,
    "figure-clipping-radius": 5 * 2 * (3 * 3 + 1 + 4) * 3,  # without momentum, three are one
    "figure-krum-selections": 3 * 3,
    "figure-overparameterization": 5 * 3 * 4 * 3,
    "figure-b2": 5 * 3 * 4 * 3,
    "figure-resampling": 5 * 2 * 3,
    "figure-mimic-demo": (5 + 5 - 1) * 4 * 3,  # dimension 100 with a share of 0.2 is in both
}


@pytest.mark.parametrize("given", [False, True])
def test_everything_not_run_is_listed_with_its_command(tmp_path: Path, given: bool) -> None:
    store = Store(tmp_path)
    folders.fill(store, made("table2", CHEAP), lambda cell, seed: 90.0)
    versions = {"table2": CHEAP, **(dict.fromkeys(RUNS, ONE) if given else {})}
    text = markdown([comparison(n, store, version) for n, version in versions.items()], store)
    _, _, rest = text.partition("## Not run")
    shown = rows(rest, "artifact")
    assert [parsed(row[2].strip("`")) for row in shown] == [(name, Version()) for name in RUNS]
    assert [row[1] for row in shown] == [f"{count} runs" for count in RUNS.values()]
    assert {"table2", *RUNS} == set(MAKERS)


def test_what_is_done_of_an_artifact_that_is_not_shown_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folders.fill(store, made("table4", Version(seeds=1)), lambda cell, seed: 90.0)
    shown = rows(markdown([], store), "artifact")
    assert len(shown) == len(MAKERS)
    assert [row[1] for row in shown if "table4" in row[2]] == ["30 runs, 10 done"]


def test_the_first_sentence_counts_published_cells_that_were_run_as_in_the_paper(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    runs = {"table2": 3, "table4": 1}
    ours = {
        key: fmean(number(row, seed) for seed in range(seeds))
        for name, seeds in runs.items()
        for key, row in filled(store, name, Version(seeds=seeds)).items()
    }
    filled(store, "figure-main", Version(seeds=1, model="mlp"))  # another model: does not count
    # The figure shows the label-sorted cells of both tables once more, without the mean.
    labels = ("aggregator", "attack", "momentum", "s", "split")
    gaps = [
        (abs(ours[key] - float(row["mean_accuracy"])), 2 * float(row["std_accuracy"]))
        for name in (*runs, "figure-main")
        for row in folders.published(name)
        if (key := tuple(row[k] for k in labels)) in ours
    ]
    assert len(gaps) == 20 + 8
    agree = sum(gap <= max(1.5, deviations) for gap, deviations in gaps)
    assert 0 < agree < 28
    text = markdown([comparison("table2", store)], store)
    assert "120 accuracies were published (Tables 1 to 4 and the main figure). 28 of them" in text
    assert f"random numbers of our own: {agree} agree." in text


# -- the rest -----------------------------------------------------------------------------------


def test_machines_versions_and_time_come_from_the_summaries(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folders.fill(store, made("figure-b2", ONE), lambda cell, seed: 90.0)
    jobs = made("figure-b2", ONE).jobs
    for job in jobs[:20]:
        lines = folders.evaluations(job, [90.0])
        done = folders.completed(90.0, machine="64 x arm64, Darwin", seconds=3600.0, threads=4)
        folders.write(store, job, lines, done)
    both = [comparison(name, store, ONE) for name in MAKERS if "b2" in name or "over" in name]
    assert len(both) == 2
    text = markdown(both, store)
    # The two figures are made from the same runs, which count once.
    hours = (20 * 3600 + (len(jobs) - 20) * 12) / 3600
    assert f"{len(jobs)} runs, {hours:.1f} hours of computing" in text
    python = "Python 3.11.7, torch 2.13.0, byzantium 0.1.0 (numerics 1)"
    assert f"- 64 x arm64, Darwin; {python}, 4 threads a run: 20 runs, 20.0 h" in text
    assert f"- 2 x x86_64, Linux; {python}, 1 thread a run: {len(jobs) - 20} runs" in text


def test_artifacts_stand_in_the_order_of_the_paper_and_no_path_of_the_machine(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "results")
    names = ["figure-mimic-demo", "table4", "table2"]
    for name in names:
        folders.fill(store, made(name, CHEAP), lambda cell, seed: 90.0)
    text = markdown([comparison(name, store, CHEAP) for name in names], store)
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    shown = [made(name, CHEAP) for name in reversed(names)]
    versions = [f" ({', '.join(one.cheaper)})" if one.cheaper else "" for one in shown]
    assert any(versions)
    assert titles == [
        "In short",
        "How it was made",
        *(f"{one.title}{version}" for one, version in zip(shown, versions, strict=True)),
        "Not run",
    ]
    assert "\nbyzantium report results --markdown REPRODUCTION.md\n" in text
    assert "--markdown" in [name for parameter in report.params for name in parameter.opts]
    assert str(tmp_path) not in text


def test_each_version_of_an_artifact_has_its_own_picture(tmp_path: Path) -> None:
    store = Store(tmp_path)
    both = [comparison("table2", store, version) for version in (CHEAP, Version())]
    for one in both:
        folders.fill(store, one.artifact, lambda cell, seed: 90.0)
    both = [comparison("table2", store, one.artifact.version) for one in both]
    pictures = {one.artifact.stem: f"figures/{one.artifact.stem}.png" for one in both}
    assert markdown(both, store).count("![") == 0
    text = markdown(both, store, pictures)
    assert len(pictures) == 2
    assert all(text.count(f"]({picture})") == 1 for picture in pictures.values())


def test_nothing_at_all_is_a_text_too(tmp_path: Path) -> None:
    text = markdown([], Store(tmp_path / "none"))
    assert "No run is finished yet." in text
    assert len(commands(text)) == len(MAKERS)


@pytest.mark.parametrize("name", MAKERS)
def test_every_artifact_has_a_section_when_half_of_it_is_there(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    whole = made(name, ONE)
    cells = whole.cells[::2]
    folders.fill(store, dataclasses.replace(whole, cells=cells), lambda cell, seed: 50.0)
    compared = comparison(name, store, ONE)
    text = markdown([compared], store)
    done = sum(cell.verdict != "missing" for cell in compared.cells)
    assert done >= len(cells)  # of the demonstration, some are in both halves
    assert f"{len(whole.cells) - done} of {len(whole.cells)} cells missing" in text
    assert "missing" in _rendered(compared)


def _rendered(compared: ResultTable) -> str:
    file = io.StringIO()
    Console(width=200, file=file).print(terminal(compared))
    return file.getvalue()


def test_the_terminal_shows_the_same_rows_in_colour(tmp_path: Path) -> None:
    store = Store(tmp_path)
    filled(store, "table2")
    compared = comparison("table2", store)
    expected = [
        [cell.strip("*") for cell in row] for row in rows(markdown([compared], store), "aggregator")
    ]
    drawn = terminal(compared)
    columns = [list(column.cells) for column in drawn.columns]
    assert [[str(cell) for cell in row] for row in zip(*columns, strict=True)] == expected
    styles = {str(cell): cell.style for cell in columns[-1]}  # type: ignore[union-attr]
    assert styles == {"agrees": "green", "differs": "bold red"}


def test_the_terminal_has_a_row_for_each_published_cell(tmp_path: Path) -> None:
    compared = comparison("figure-main", Store(tmp_path), CHEAP)
    text = _rendered(compared)
    assert terminal(compared).row_count == 80
    assert "cheaper version: 1 seed instead of 3, 60 rounds" in text
    assert "not comparable" in text


# -- ours ----------------------------------------------------------------------------------------


def test_the_text_in_the_repository_is_what_its_results_say(tmp_path: Path) -> None:
    """`byzantium report results --markdown REPRODUCTION.md` was run after the last result."""
    repository = ROOT
    git = shutil.which("git") or "false"
    command = [git, "-C", str(repository), "ls-files", "results"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("not a clone of the repository")
    for name in listed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(repository / name, tmp_path / name)
    store = Store(tmp_path / "results")
    comparisons = [comparison(name, store, version) for name, version in Requests(store)]
    own = pivots(own_runs(store, comparisons))
    stems = [one.artifact.stem for one in [*comparisons, *own]]
    pictures = {stem: f"results/figures/{stem}.png" for stem in stems}
    assert set(pictures.values()) == {name for name in listed if name.endswith(".png")}
    text = markdown(comparisons, store, pictures, own)
    assert (repository / "REPRODUCTION.md").read_text() == text
