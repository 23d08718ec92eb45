"""The headline: results in one sentence, for the terminal and the top of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byzantium.reports import text_tables
from byzantium.tables import POINTS, MeasuredCell, ResultTable, terms, worst
from byzantium.tables.results import grouped


@dataclass(frozen=True)
class Headline:
    """Results in one sentence about the worst case, with its numbers.

    - `setting`: on what data, with what model and so on, and over how many seeds.
    - `place`: the number of the table that it is about.
    - `low`: the accuracy of the worst rule, in percent; None where no rule is shown to be worse
      than the best one.
    - `high`: the accuracy of the best rule; None where `low` is.
    """

    sentence: str
    setting: str
    place: int
    low: float | None = None
    high: float | None = None


def headline(tables: Sequence[ResultTable]) -> Headline | None:
    """The results in one sentence, about the worst attack; None where there is nothing to say.

    It names the best rule and the worst one, and the largest gain that a mixing brings, if that is
    another. Of several tables, it is about the one with the largest gap.

    - `tables`: tables of rules by attacks, as `pivots` makes them; others are left out.

    >>> from pathlib import Path
    >>> from byzantium.tables import pivots
    >>> from byzantium.runs import Result, Run
    >>> def done(rule: str, attack: str, accuracy: float) -> Result:
    ...     run = Run(rule=rule, attack=attack)
    ...     return Result(run, Path("results"), "completed", [], {"accuracy": accuracy})
    >>> attacks = ("Mimic()", "BitFlip()")
    >>> results = [done("Krum()", attack, 20.0) for attack in attacks]
    >>> results += [done("Bucketing(s=2) >> Krum()", attack, 90.0) for attack in attacks]
    >>> best, worst = headline(pivots(results)).sentence.split("; ")
    >>> print(best)
    Under the worst of 2 attacks, Bucketing(s=2) >> Krum is best, with a test accuracy of 90 %
    >>> print(worst)
    Krum has 20 %.
    """
    pictures = [(c, c.artifact.picture) for c in tables if text_tables.has_worst_case(c)]
    able = [c for c, picture in pictures if (picture.lines, picture.y) == (("rule",), "accuracy")]
    headlines = [_headline(c, cases, tables.index(c)) for c in able if (cases := _cases(c))]
    return max(headlines, key=lambda one: (one.high or 0.0) - (one.low or 0.0), default=None)


def _cases(table: ResultTable) -> dict[str, MeasuredCell]:
    """For each rule the worst case, if it was tried under every attack."""
    rows = grouped(table.cells, ["rule"])
    attacks = max(map(len, rows.values()))
    return {
        rule: found
        for (rule,), row in rows.items()
        if len(row) == attacks and all(one.values or one.diverged for one in row)
        if (found := worst(row)) is not None
    }


def _headline(table: ResultTable, cases: dict[str, MeasuredCell], place: int) -> Headline:
    name_of = text_tables.namer(table)
    attacks = len({cell.labels["attack"] for cell in table.cells})
    seeds = text_tables.usual_seeds(table)
    setting = f"{table.artifact.fixed}; {'one seed' if seeds == 1 else f'{seeds} seeds'}."
    there = [one for one in cases.values() if not one.diverged]
    if not there:
        sentence = f"Every rule diverged under the worst of {attacks} attacks."
        return Headline(sentence, setting, place)
    first = text_tables.best(there)[0]
    ties = [one for one in there if one is not first and not first.differs(one)]
    ties = ties if len(first.values) > 1 else []
    top = next(rule for rule, one in cases.items() if one is first)
    last = min(cases, key=lambda rule: _accuracy(cases[rule]))
    high, low = _accuracy(first), _accuracy(cases[last])
    is_gap = high > low and _comparable(first, cases[last])
    sentence = f"Under the worst of {attacks} attacks, {_words(name_of('rule', top))} "
    sentence += f"is best, with a test accuracy of {high:.0f} %"
    if is_gap:
        state = "diverged" if cases[last].diverged else f"has {low:.0f} %"
        sentence += f"; {_words(name_of('rule', last))} {state}."
    else:
        sentence = sentence.replace("is best, with", "has") + "."
    if ties:
        others = f"{len(ties)} other rule{'s' * (len(ties) > 1)}"
        sentence += f" The seeds do not show {others} to be worse."
    gain = _largest_gain(cases)
    if gain and gain != (last, top):
        alone, mixed = gain
        before = mixed.rpartition(" >> ")[0]
        sentence += (
            f" The largest gain by a mixing: {_words(name_of('rule', alone))} has "
            f"{_accuracy(cases[alone]):.0f} %, behind {name_of('rule', before)} "
            f"{_accuracy(cases[mixed]):.0f} %."
        )
    return Headline(sentence, setting, place, *((low, high) if is_gap else ()))


def _largest_gain(cases: dict[str, MeasuredCell]) -> tuple[str, str] | None:
    """The rule that gains most behind a mixing, alone and behind it; None if none gains much."""
    gains = []
    for rule, mixed in cases.items():
        before, _, alone = rule.rpartition(" >> ")
        if before and alone in cases and _comparable(cases[alone], mixed):
            gains.append((_accuracy(mixed) - _accuracy(cases[alone]), alone, rule))
    gain, alone, rule = max(gains, default=(0.0, "", ""))
    return (alone, rule) if gain > POINTS else None


def _comparable(a: MeasuredCell, b: MeasuredCell) -> bool:
    """Whether a sentence may compare two worst cases: several seeds must show a difference.

    One seed shows no difference; then the sentence has both numbers, and says that it is one seed.
    """
    return min(len(a.values), len(b.values)) < 2 or a.differs(b)


def _accuracy(cell: MeasuredCell) -> float:
    return 0.0 if cell.diverged or cell.value is None else cell.value


def _words(short: str) -> str:
    """A rule by the paper's name, and in words."""
    return next((rule.full for rule in terms.RULES if rule.short == short), short)
