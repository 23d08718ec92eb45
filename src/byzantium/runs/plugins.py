"""Plugins: rules, attacks, models and so on from a Python file of the user's, or from a package.

Loading one runs its code. A plugin is never loaded because a result or a configuration names it,
but only because the user does: on the command line, in the file of a sweep, or by `load_plugin`.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from byzantium import rules
from byzantium.core import (
    ByzantiumError,
    Formula,
    Plugin,
    Registry,
    check_dataclass,
    files,
    notation,
    one_line,
    registered_as,
    type_name,
)
from byzantium.learning import WorkerMethod, metrics
from byzantium.learning.clocks import Clock

logger = logging.getLogger("byzantium")

# The group in which installed packages name the module that holds their members.
GROUP = "byzantium.plugins"
# How a run records a plugin: its name, and a digest of its source.
PLUGINS_USED = "The plugins that it uses, by name and digest; it finds them out by itself."
RECORDED = re.compile(r"(?P<name>[^/\\\x00-\x1f]{1,200}) (?P<digest>sha256:[0-9a-f]{64})")

# The most bytes of a file with source code.
LARGEST_SOURCE = 1 << 24

# The plugins that this process has loaded, by name and digest.
_loaded: dict[str, Plugin] = {}


def tables() -> dict[str, Registry[Any]]:
    """The tables of members, to which plugins add, by the field of a run that names a member."""
    from byzantium.attacks import notation as attacks
    from byzantium.data import datasets, partition
    from byzantium.learning import clocks, losses
    from byzantium.rules import notation as rules
    from byzantium.runs import builders

    return {
        "rule": rules.members(),
        "attack": attacks.members(),
        "partition": partition.PARTITIONS,
        "model": builders.MODELS,
        "data": datasets.DATA,
        "loss": losses.LOSSES,
        "worker": builders.worker_methods(),
        "clock": clocks.members(),
        "record": metrics.TABLE,
    }


# -- loading ------------------------------------------------------------------------------------


def load_plugin(path: str | os.PathLike[str]) -> Plugin:
    """Run a Python file, and make what it defines available by name.

    These are its public classes that are rules, mixings, attacks or worker methods; its functions
    that are decorated with `partition`, `model`, `dataset` or `loss`; and its `Metric` objects. A
    file that has changed can be loaded again, and replaces what it defined before.

    - `path`: the file; its name ends in .py. Its code is run.

    Returns its name, the digest of its source, and where it is.

    With these lines in my_rules.py, `load_plugin("my_rules.py")` makes Smallest() a rule that can
    be named everywhere, as in `byzantium.parse_rule("Bucketing(s=2) >> Smallest()")`::

        from byzantium import MatrixRule

        class Smallest(MatrixRule):
            def aggregate(self, updates):
                return updates.min(dim=0).values
    """
    place = Path(os.path.expanduser(path)).absolute()
    try:
        source = files.read(place, LARGEST_SOURCE, pipe=True)
    except OSError as error:
        raise ByzantiumError(f"the plugin {path} cannot be read: {error.strerror}") from error
    plugin = Plugin(place.name, f"sha256:{hashlib.sha256(source).hexdigest()}", str(place))
    if str(plugin) in _loaded:
        return _loaded[str(plugin)]
    if not RECORDED.fullmatch(str(plugin)) or not plugin.name.endswith(".py"):
        raise ByzantiumError(f"a plugin is a Python file, whose name ends in .py, got {path}")
    # The digest is part of the name: a changed file is another module.
    stem = re.sub(r"\W", "_", place.stem)
    name = f"byzantium_plugin_{stem}_{plugin.digest[7:15]}"
    loader = _Source(place, source)
    spec = importlib.util.spec_from_file_location(name, place, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    try:
        with _plugin_errors(plugin.name, str(place)):
            loader.exec_module(module)
        return _take(plugin, module)
    except BaseException:
        del sys.modules[name]
        raise


def load_installed() -> None:
    """Load the plugins of installed packages: the entry points "byzantium.plugins".

    One that cannot be loaded is named in the log, and left out.
    """
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: one.name):
        try:
            _load_entry(entry)
        except ByzantiumError as error:
            logger.warning("%s", error)


def _load_entry(entry: importlib.metadata.EntryPoint) -> Plugin:
    with _plugin_errors(entry.name):
        module = entry.load()
    if not isinstance(module, ModuleType):
        raise ByzantiumError(
            f"the plugin {entry.name} must name a module in the group {GROUP!r}, it names "
            f"{type_name(module)}"
        )
    version = entry.dist.version if entry.dist is not None else "?"
    with _plugin_errors(entry.name):
        plugin = Plugin(entry.name, f"sha256:{_digest_of_package(module, version)}")
    return _loaded.get(str(plugin)) or _take(plugin, module)


class _Source(importlib.abc.InspectLoader):
    """Runs the bytes of which the digest was taken, and no older translation of them."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.source)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.source, str(self.path))


@contextmanager
def _plugin_errors(name: str, place: str = "") -> Iterator[None]:
    """Turn any error in the code of a plugin into one line, with the number of the line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        line, trace = "", error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == place:
                line = f" (line {trace.tb_lineno})"
            trace = trace.tb_next
        why = one_line(f"{type(error).__name__}: {error}")
        raise ByzantiumError(f"the plugin {name} cannot be loaded: {why}{line}") from error


def _digest_of_package(module: ModuleType, version: str) -> str:
    """The digest of all Python files of the package of a module."""
    top = sys.modules[module.__name__.partition(".")[0]]
    roots = [Path(root) for root in getattr(top, "__path__", [])]
    if roots:
        sources = [(file.relative_to(root), file) for root in roots for file in root.rglob("*.py")]
    else:
        sources = [(Path(top.__name__), Path(top.__file__))] if top.__file__ else []
    digest = hashlib.sha256(version.encode())
    for name, file in sorted(sources):
        content = files.read(file, LARGEST_SOURCE)
        digest.update(f"\n{name.as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


# -- members ------------------------------------------------------------------------------


class Member(NamedTuple):
    table: Registry[Any]
    name: str
    value: Any


def _take(plugin: Plugin, module: ModuleType) -> Plugin:
    """Add the members of a module, all or none."""
    members = _members(plugin, module)
    if not members:
        raise ByzantiumError(
            f"the plugin {plugin.name} defines nothing to add: no public class that is a rule, a "
            "mixing, an attack or a worker method, no function marked as a partition, a model, a "
            "data set or a loss, and no Metric"
        )
    older = [
        one for one in _loaded.values() if (one.name, one.place) == (plugin.name, plugin.place)
    ]
    for table, name, _ in members:
        if table.plugins.get(name) not in older:
            table.check_new(name, plugin)
    for one in older:
        for table in tables().values():
            table.remove(one)
        del _loaded[str(one)]
    for table, name, member in members:
        table.add(name, member, plugin)
    _loaded[str(plugin)] = plugin
    return plugin


def _members(plugin: Plugin, module: ModuleType) -> list[Member]:
    kinds = {table.kind: table for table in tables().values()}
    members: dict[tuple[str, str], Member] = {}
    for variable, value in vars(module).items():
        if variable.startswith("_") or not _is_of(value, module):
            continue
        table, name = None, getattr(value, "__name__", "")
        if inspect.isclass(value) and issubclass(value, Formula):
            if not inspect.isabstract(value):
                check_dataclass(value)
                bases: dict[str, Any] = {
                    "rule": (rules.Aggregator, rules.Mixing),
                    "worker": WorkerMethod,
                    "clock": Clock,
                }
                found_in = (part for part, base in bases.items() if issubclass(value, base))
                table = tables()[next(found_in, "attack")]
        elif isinstance(value, metrics.Metric):
            table, name = tables()["record"], value.name
            _check_metric(plugin, value)
        elif (kind := registered_as(value)) is not None:
            table = kinds[kind]
        if table is not None:
            members[table.kind, name] = Member(table, name, value)
    return list(members.values())


def _is_of(value: Any, module: ModuleType) -> bool:
    """Whether it was defined there, and not only imported."""
    if isinstance(value, metrics.Metric):
        return value not in metrics.SHIPPED
    package = module.__name__.partition(".")[0]
    return str(getattr(value, "__module__", "")).partition(".")[0] == package


def _check_metric(plugin: Plugin, metric: metrics.Metric) -> None:
    """Raise an error where the record of a round or an evaluation has this name already."""
    shipped = metrics.SHIPPED
    taken = {"round", *(m.key for m in shipped), *(m.name for m in shipped)}
    if metric.key in taken or metric.name == "round":
        raise ByzantiumError(
            f"{plugin.name} defines the metric {metric.name!r}, and {metric.key!r} is recorded "
            "already; give it another name"
        )
    if metric.record is None:
        raise ByzantiumError(
            f"{plugin.name} defines the metric {metric.name!r} with record=None, which is for our "
            "own; leave record out, or name the word that asks for it"
        )


# -- jobs -----------------------------------------------------------------------------------


def used(texts: Mapping[str, str | Iterable[str]]) -> tuple[str, ...]:
    """The plugins of the members that some texts name, each as its name and digest.

    - `texts`: the texts, by the names of `tables`.
    """
    plugins = set()
    for part, text in texts.items():
        table = tables()[part]
        names = notation.names(text) if isinstance(text, str) else set(text)
        if part == "record":  # words, which may ask for several metrics
            names = {metric.name for metric in table.values() if metric.record in names}
        plugins |= {str(table.plugins[name]) for name in names if name in table.plugins}
    return tuple(sorted(plugins))


def check_recorded(job: Any, names: Iterable[str]) -> bool:
    """Whether a plugin of a job is not loaded, so that the texts of the job cannot be read.

    Such texts must at least be printable; the names and digests of plugins must be valid.
    """
    for text in job.plugin:
        if not RECORDED.fullmatch(text):
            raise ByzantiumError(
                f"{job.display_name} finds out by itself which plugins it uses, and notes them as "
                f"'name sha256:...', got {text[:80]!r}; load a plugin with --plugin or load_plugin"
            )
    if not missing(job.plugin):
        return False
    for name in names:
        value = getattr(job, name)
        for text in (value,) if isinstance(value, str) else value:
            if not text.isprintable() or not 0 < len(text) <= notation.LONGEST:
                raise ByzantiumError(f"{job.display_name} needs a printable text for {name}")
    return True


def record_plugins(job: Any, names: Iterable[str]) -> None:
    """Record which plugins a job uses, and, for other processes, the paths of their files.

    The paths are no part of its identity.
    """
    object.__setattr__(job, "plugin", used({name: getattr(job, name) for name in names}))
    object.__setattr__(job, "_places", {text: _loaded[text].place for text in job.plugin})


def missing(texts: Iterable[str]) -> list[str]:
    """The plugins among these, by name and digest, that are not loaded."""
    return [text for text in texts if text not in _loaded]


def load_required(job: Any) -> None:
    """Load the plugins of a job; raises an error where one is missing or has changed.

    The paths of plugins come with a job from a process whose user chose to load them.
    """
    places: Mapping[str, str] = getattr(job, "_places", {})
    for text in missing(job.plugin):
        name, _, digest = text.rpartition(" ")
        if text not in places:
            raise ByzantiumError(
                f"this needs the plugin {name} ({digest[:19]}...), which is not loaded; "
                "load it with --plugin FILE or byzantium.load_plugin(file)"
            )
        load_plugin(places[text]) if places[text] else load_installed()
        if text not in _loaded:
            raise ByzantiumError(f"the plugin {name} has changed since this job was planned")
