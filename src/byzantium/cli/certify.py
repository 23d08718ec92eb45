"""`certify`: search for the worst input of a rule."""

from __future__ import annotations

from pathlib import Path

import click

from byzantium.cli import options as opt
from byzantium.cli.execution import execute_jobs
from byzantium.cli.main import main
from byzantium.cli.terminal import err, out
from byzantium.core import ByzantiumError, import_optional
from byzantium.runs import Certification, Engine, Store, certificates, pipelines


def _counts(_: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        sentence = f"{text!r} is not whole numbers with commas between them."
        raise click.BadParameter(sentence, param=parameter) from None


@main.command()
@click.argument("rules", metavar="RULE...", nargs=-1, shell_complete=opt.COMPLETIONS["rule"])
@opt.plugin_option
@click.option(
    "--all", "all_rules", is_flag=True, help="Attack all rules, alone and behind mixings."
)
@opt.count_option("--n", "How many vectors there are, Byzantine ones included.", 25, least=3)
@click.option(
    "--f",
    "counts",
    callback=_counts,
    default="1,3,5,8,10",
    show_default=True,
    help="How many vectors are Byzantine: one or several numbers, with commas. A rule that is "
    "written without f is built for the same number.",
)
@opt.count_option(
    "--seeds", "How many searches are made for each rule and f, with seeds 0, 1, ...", 3
)
@opt.count_option("--budget", "How many inputs each search tries.", Certification.budget)
@click.option(
    "--json", type=opt.FilePath(dir_okay=False), help="Also write what was found to a JSON file."
)
@click.option(
    "--markdown", type=opt.FilePath(dir_okay=False), help="Also write the table to a Markdown file."
)
@click.option(
    "--figure", type=opt.FilePath(dir_okay=False), help="Also draw c against delta into a PNG file."
)
@opt.results_option
@opt.engine_options
def certify(
    rules: tuple[str, ...],
    all_rules: bool,
    n: int,
    counts: tuple[int, ...],
    seeds: int,
    budget: int,
    json: Path | None,
    markdown: Path | None,
    figure: Path | None,
    results: Path,
    engine: Engine,
) -> None:
    """Search for the inputs that hurt a rule most.

    RULE is a rule, with mixings before it if wanted. Of n vectors f are Byzantine; delta = f/n is
    their share, and rho^2 the mean squared distance between two honest ones. The squared error of
    the result, to the mean of the honest vectors, is written as c delta rho^2. A search tries
    inputs to make c large, so the true worst case is at least what it found. The input is in the
    folder of the search as `input.npy`; its first f rows are the Byzantine ones,
    unless the table names others, as for groups.

    \b
    byzantium certify "Krum()" "NearestNeighborMixing() >> TrimmedMean()" --f 5 --jobs 2
    """  # noqa: D301
    from byzantium.reports import certificates as rendering

    if not rules and not all_rules:
        raise ByzantiumError("certify needs a rule, such as 'Krum()', or --all")
    if figure:
        import_optional("matplotlib", "report", "a figure")
    pairs: list[tuple[str, tuple[int, ...]]] = [(rule, counts) for rule in rules]
    if all_rules:
        pairs += [(text, (f,)) for f in counts for text in pipelines(n, f)]
    todo = [one for text, some in pairs for one in _searches(text, n, some, seeds, budget)]
    listed = certificates(execute_jobs(todo, Store(results), engine))
    out.print(rendering.terminal(listed))
    out.print(f"the inputs that were found are in {results}", soft_wrap=True, highlight=False)
    if json:
        rendering.write_json(listed, json)
    if markdown:
        markdown.write_text(rendering.text(listed), encoding="utf-8")
    if figure:
        rendering.draw(listed, figure)


def _searches(
    rule: str, n: int, counts: tuple[int, ...], seeds: int, budget: int
) -> list[Certification]:
    """A search for each f and seed; raises an error if the rule is undefined for every f."""
    searches, errors = [], []
    for f in counts:
        try:
            first = Certification(rule=rule, n=n, f=f, budget=budget)
            searches += [first.varied(seed=seed) for seed in range(seeds)]
        except ByzantiumError as error:
            errors.append(error)
    if not searches:
        raise errors[0]
    for each in errors:
        err.print(f"left out: {each}", soft_wrap=True)
    return searches
