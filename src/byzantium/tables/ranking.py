"""Rankings of pipelines by the worst attack of a suite."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from byzantium.core import ByzantiumError, files
from byzantium.runs import Run, without_f
from byzantium.tables.results import ResultTable, tied

# By split, number of attackers and attack: the accuracy of each seed, in percent.
Scores = Mapping[tuple[str, int], Mapping[str, tuple[float, ...]]]
#: The label of runs in which nobody attacks.
NOBODY = "none"
#: The accuracy that a run counts with whose model diverged, in percent.
DIVERGED = 0.0
#: The most bytes that the file of a ranking may have.
LARGEST = 64 << 20


@dataclass(frozen=True)
class Worst:
    """The attack of a suite that hurts a pipeline most, in one setting.

    - `attack`: its name.
    - `mean`: the mean accuracy over seeds, in percent.
    - `deviation`: the standard deviation over seeds; NaN with one seed.
    - `values`: the accuracy of each seed, in percent.

    >>> Worst("ipm", 61.5, 2.0).attack
    'ipm'
    """

    attack: str
    mean: float
    deviation: float
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """A pipeline in a ranking.

    - `name`: its short name, or the rule itself.
    - `rule`: the rule, without f.
    - `root`: how many root samples of each class the server has; 0 without root data.
    - `scores`: its accuracies.
    - `commit`: the commit of the program that made them; empty for runs of the user.

    >>> row = Row("mean", "Mean()", 0, {("iid", 1): {"none": (96.0,), "ipm": (20.0, 30.0)}})
    >>> row.worst("iid", 1, ["ipm"]).mean, row.undisturbed("iid", 1)
    (25.0, 96.0)
    """

    name: str
    rule: str
    root: int
    scores: Scores = field(repr=False)
    commit: str = ""

    def worst(self, split: str, f: int, suite: Collection[str]) -> Worst | None:
        """The most harmful attack of a suite; None unless all of them were run."""
        scores = self.scores.get((split, f), {})
        if not all(scores.get(attack) for attack in suite):
            return None
        attack = min(suite, key=lambda attack: fmean(scores[attack]))
        values = scores[attack]
        deviation = stdev(values) if len(values) > 1 else math.nan
        return Worst(attack, fmean(values), deviation, tuple(values))

    def undisturbed(self, split: str, f: int) -> float | None:
        """The mean accuracy where nobody attacks; None if that was not run."""
        values = self.scores.get((split, f), {}).get(NOBODY)
        return fmean(values) if values else None


@dataclass(frozen=True)
class Ranking:
    """Pipelines and what they did under the attacks of a suite.

    - `suite`: the version of the suite.
    - `attacks`: the names of its attacks.
    - `rows`: the pipelines.
    - `machine`: the processor that computed the rows; of several, all with commas between them.

    >>> rows = [Row(name, name, 0, {("iid", 1): {"ipm": (value,)}})
    ...         for name, value in (("a", 10.0), ("b", 90.0))]
    >>> [row.name for row in Ranking("1", ("ipm",), tuple(rows)).sorted("iid")]
    ['b', 'a']
    """

    suite: str
    attacks: tuple[str, ...]
    rows: tuple[Row, ...]
    machine: str = ""

    @property
    def settings(self) -> list[tuple[str, int]]:
        """The splits and numbers of attackers that some row has, in their order."""
        return list(dict.fromkeys(key for row in self.rows for key in row.scores))

    def attackers(self, split: str) -> list[int]:
        """The numbers of attackers of a split."""
        return [f for name, f in self.settings if name == split]

    def score(self, row: Row, split: str) -> float:
        """The mean of a row's worst accuracies over the numbers of attackers; NaN if one lacks."""
        worst = [row.worst(split, f, self.attacks) for f in self.attackers(split)]
        means = [one.mean for one in worst if one is not None]
        return fmean(means) if len(means) == len(worst) and means else math.nan

    def sorted(self, split: str) -> list[Row]:
        """The rows that are complete in a split, the best first."""
        ranked = {row.name: self.score(row, split) for row in self.rows}
        complete = [row for row in self.rows if not math.isnan(ranked[row.name])]
        return sorted(complete, key=lambda row: -ranked[row.name])

    def best(self, split: str, f: int) -> list[Row]:
        """The rows that are best in a column, several if they are tied; none with one seed each."""
        worst = [(row, row.worst(split, f, self.attacks)) for row in self.sorted(split)]
        cells = [(row, one) for row, one in worst if one is not None]
        top = max((one for _, one in cells), key=lambda one: one.mean, default=None)
        if top is None or len(top.values) < 2:
            return []
        return [row for row, one in cells if tied(top.values, one.values)]

    def with_rows(self, rows: Iterable[Row]) -> Self:
        """This ranking with further rows; one of the same rule and root data is replaced."""
        rows = tuple(rows)
        new = {(row.rule, row.root) for row in rows}
        others = [row for row in self.rows if (row.rule, row.root) not in new]
        return type(self)(self.suite, self.attacks, (*others, *rows), self.machine)

    def write(self, path: Path) -> None:
        """Write the ranking to a JSON file, a row to a line."""
        lines = [json.dumps(_as_json(row)) for row in self.rows]
        head = {"suite": self.suite, "attacks": list(self.attacks), "machine": self.machine}
        text = f'{json.dumps(head)[:-1]}, "rows": [\n' + ",\n".join(lines) + "\n]}\n"
        files.write(path, text)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a ranking that `write` wrote."""
        try:
            values = json.loads(files.read(path, LARGEST).decode())
            rows = tuple(_from_json(row) for row in values["rows"])
            return cls(values["suite"], tuple(values["attacks"]), rows, values["machine"])
        except Exception as error:
            raise ByzantiumError(f"{path} is not a ranking: {error}") from error


def _as_json(row: Row) -> dict[str, Any]:
    scores: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (split, f), attacks in row.scores.items():
        rounded = {name: [round(v, 2) for v in values] for name, values in attacks.items()}
        scores.setdefault(split, {})[str(f)] = rounded
    fixed = {"name": row.name, "rule": row.rule, "root": row.root, "commit": row.commit}
    return {**fixed, "scores": scores}


def _from_json(values: Mapping[str, Any]) -> Row:
    scores = {
        (split, int(f)): {name: tuple(map(float, seeds)) for name, seeds in attacks.items()}
        for split, counts in values["scores"].items()
        for f, attacks in counts.items()
    }
    return Row(values["name"], values["rule"], values["root"], scores, values["commit"])


def ranking_rows(table: ResultTable, commit: str = "") -> list[Row]:
    """The rows of a ranking, from the results of a benchmark; cells with missing runs are left out.

    >>> from byzantium.papers import benchmark, compare
    >>> from byzantium.runs import Store
    >>> ranking_rows(compare(benchmark(rules=["Mean()"]), Store("nowhere")))
    []
    """
    rows: dict[str, dict[tuple[str, int], dict[str, tuple[float, ...]]]] = {}
    texts: dict[str, tuple[str, int]] = {}
    for cell in table.cells:
        labels, job = cell.labels, cell.jobs[0]
        name = labels["aggregator"]
        assert isinstance(job, Run)
        texts[name] = (without_f(job.rule), job.root)
        if cell.missing:
            continue
        values = tuple(
            DIVERGED if result.measured is None else result.measured for result in cell.results
        )
        setting = (labels["split"], labels["f"])
        rows.setdefault(name, {}).setdefault(setting, {})[labels["attack"]] = values
    return [Row(name, *texts[name], scores, commit) for name, scores in rows.items()]
