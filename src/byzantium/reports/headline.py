"""The headline: results in one sentence, for the terminal and the top of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byzantium.reports import text_tables
from byzantium.tables import MeasuredCell, ResultTable, terms, worst


@dataclass(frozen=True)
class Headline:
    """Results in one sentence about the worst case, with its numbers.

    - `sentence`: the sentence.
    - `setting`: on what data, with what model and so on, and over how many seeds.
    - `place`: the number of the table that it is about.
    - `low`: the lower accuracy in it, in percent: of a rule alone, or of the worst rule; None where
      there is nothing to compare.
    - `high`: the higher one: of the rule behind a mixing, or of the best rule.
    """

    sentence: str
    setting: str
    place: int
    low: float | None = None
    high: float | None = None


def headline(tables: Sequence[ResultTable]) -> Headline | None:
    """The results in one sentence, about the worst attack; None where there is nothing to say.

    It is about the table that shows the largest gap, between a rule alone and behind a mixing or
    between the worst and the best rule.

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
    >>> print(headline(pivots(results)).sentence)
    Under the worst of 2 attacks, Krum has a test accuracy of 20 %; behind Bucketing(s=2), 90 %.
    """
    pictures = [(c, c.artifact.picture) for c in tables if text_tables.has_worst_case(c)]
    able = [c for c, picture in pictures if (picture.lines, picture.y) == (("rule",), "accuracy")]
    headlines = [_headline(c, cases, tables.index(c)) for c in able if (cases := _cases(c))]
    return max(headlines, key=lambda one: (one.high or 0.0) - (one.low or 0.0), default=None)


def _cases(table: ResultTable) -> dict[str, MeasuredCell]:
    """For each rule the worst case, if it was tried under every attack."""
    rows: dict[str, list[MeasuredCell]] = {}
    for cell in table.cells:
        rows.setdefault(str(cell.labels["rule"]), []).append(cell)
    attacks = max(map(len, rows.values()))
    return {
        rule: found
        for rule, row in rows.items()
        if len(row) == attacks and all(one.values or one.diverged for one in row)
        if (found := worst(row)) is not None
    }


def _headline(table: ResultTable, cases: dict[str, MeasuredCell], place: int) -> Headline:
    name_of = text_tables.namer(table)
    attacks = len({cell.labels["attack"] for cell in table.cells})
    seeds = text_tables.usual_seeds(table)
    setting = f"{table.artifact.fixed}; {'one seed' if seeds == 1 else f'{seeds} seeds'}."
    gains = []
    for rule, mixed in cases.items():
        before, _, alone = rule.rpartition(" >> ")
        if before and alone in cases and _comparable(cases[alone], mixed):
            gains.append((_accuracy(mixed) - _accuracy(cases[alone]), alone, before, mixed))
    if gains and (best := max(gains, key=lambda gain: gain[0]))[0] > 0:
        _, alone, before, mixed = best
        low, high = _accuracy(cases[alone]), _accuracy(mixed)
        return Headline(
            f"Under the worst of {attacks} attacks, {_words(name_of('rule', alone))} has a test "
            f"accuracy of {low:.0f} %; behind {name_of('rule', before)}, {high:.0f} %.",
            setting,
            place,
            low,
            high,
        )
    top, last = (
        max(cases, key=lambda r: _accuracy(cases[r])),
        min(cases, key=lambda r: _accuracy(cases[r])),
    )
    high, low = _accuracy(cases[top]), _accuracy(cases[last])
    sentence = (
        f"Under the worst of {attacks} attacks, {_words(name_of('rule', top))} has a test accuracy "
        f"of {high:.0f} %"
    )
    if high > low and _comparable(cases[top], cases[last]):
        sentence += f", {_words(name_of('rule', last))} {low:.0f} %."
        return Headline(sentence, setting, place, low, high)
    return Headline(f"{sentence}.", setting, place)


def _comparable(a: MeasuredCell, b: MeasuredCell) -> bool:
    """Whether a sentence may compare two worst cases: several seeds must show a difference.

    One seed shows no difference; then the sentence has both numbers, and says that it is one seed.
    """
    several = min(len(a.values), len(b.values)) > 1
    return a.differs(b) if several else True


def _accuracy(cell: MeasuredCell) -> float:
    return 0.0 if cell.diverged or cell.value is None else cell.value


def _words(short: str) -> str:
    """A rule by the paper's name, and in words."""
    return next((rule.full for rule in terms.RULES if rule.short == short), short)
