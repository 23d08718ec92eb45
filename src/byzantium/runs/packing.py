"""Packing: folders of results become lines of packs, and lines become folders again.

Nothing is lost at any moment, also not by `kill -9`: a pack is written under another name, brought
to the disk, renamed and read back before a folder is removed; a folder is written before its line
is removed. In between both are there and equal, and the same command again goes on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from byzantium.core import BusyError, ByzantiumError, files, folder_lock, is_locked
from byzantium.core.locks import LOCK, MARK
from byzantium.runs import packs, records
from byzantium.runs.job import CONFIGURATION, SECONDS, SUMMARY, Job
from byzantium.runs.packs import SUFFIX
from byzantium.runs.store import Store, job_in

# The folder of results has a folder with this name, for the lock of the process that packs it.
PACKING = ".packing"
IDENTITY = re.compile(r"[0-9a-f]{16}")
PACK_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
# What a folder holds for processes, and what goes with it.
TEMPORARY = (LOCK, MARK, SECONDS)

#: Called with how many of how many jobs are done.
Watch = Callable[[int, int], None]


@dataclasses.dataclass
class Changes:
    """What `pack` or `unpack` did.

    - `moved`: how many folders became lines of a pack, or lines of it folders, by pack.
    - `skipped`: why a folder or a line stays as it is, in one sentence, by what it is called.
    - `remainders`: folders in which files are left that are not packed, such as models and logs.
    """

    moved: dict[Path, int] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    remainders: list[Path] = dataclasses.field(default_factory=list)


def pack(
    store: Store, pack_of: Callable[[Job], str], watch: Watch = lambda done, total: None
) -> Changes:
    """Move folders of results into packs; a job that is in a pack already stays in that pack.

    A folder stays where a process works in it, where it cannot be read, or where its job is not
    done and has a checkpoint from which it goes on. Models, logs and other files that are not
    packed stay in the folder.

    - `pack_of`: the name of the pack for a job, such as "table2".
    - `watch`: called with how many folders are read, and how many there are.

    Raises an error, and changes nothing, where a pack that is there cannot be read.

    >>> import tempfile
    >>> from byzantium.runs import Mimicry, perform
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store, job = Store(folder), Mimicry(rule="Median()", n=11, attackers=2)
    ...     summary = perform(job, store.folder(job))
    ...     changes = pack(store, lambda job: "mine")
    ...     print(store.result(job).status, store.result(job).pack.name)
    completed mine.jsonl
    """
    with folder_lock(store.root / PACKING):
        _clear(store.root)
        changes, before = Changes(), _lines_by_pack(store.root)
        packed = {identity: path for path, lines in before.items() for identity in lines}
        folders = [path for path in sorted(store.root.iterdir()) if IDENTITY.fullmatch(path.name)]
        after = {path: dict(lines) for path, lines in before.items()}
        for k, folder in enumerate(folders):
            watch(k, len(folders))
            identity = folder.name
            if identity in packed and not (folder / CONFIGURATION).exists():
                continue  # what is left of a folder that was packed
            try:
                job = _packable(store, folder)
                path = packed.get(identity) or store.root / (_pack_name(pack_of(job)) + SUFFIX)
                line = packs.encode(identity, _contents(folder))
                was = before[path][identity] if identity in packed else b""
                if was and SUMMARY in packs.decode(was) and not store.result(job).done:
                    raise ByzantiumError("it is not finished, and a pack has it finished")
            except Exception as error:  # whatever it is that the file of somebody else causes
                changes.skipped[str(folder)] = records.describe_file_error(error)
            else:
                after.setdefault(path, {})[identity] = line
        for path, lines in after.items():
            if lines != before.get(path):
                _write(path, lines.values())
            for identity, line in sorted(lines.items()):
                folder = store.root / identity
                if str(folder) not in changes.skipped and folder.is_dir():
                    _remove(folder, line, path, changes)
        watch(len(folders), len(folders))
    return changes


def _packable(store: Store, folder: Path) -> Job:
    """The job of a folder that can be packed; raises an error that says why it cannot."""
    if folder.is_symlink() or not folder.is_dir():
        raise ByzantiumError("it is not a folder")
    if is_locked(folder):
        raise BusyError("a process works on it")
    try:
        job = job_in(folder)
    except FileNotFoundError:
        raise ByzantiumError(f"it has no {CONFIGURATION}") from None
    if not store.result(job).done and any(folder.glob("*.pt")):
        raise ByzantiumError("it is not finished, and continues from its checkpoint")
    return job


def _pack_name(name: str) -> str:
    if not PACK_NAME.fullmatch(name):
        raise ByzantiumError(f"a pack needs a name of small letters, digits and -, got {name!r}")
    return name


def _contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder that are packed, by name; raises an error where one is a link."""
    contents = {}
    for path in folder.iterdir():
        if packs.NAME.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
            if path.is_symlink():
                raise ByzantiumError(f"{path.name} is a link")
            contents[path.name] = files.read(path, packs.LONGEST_LINE)
    return contents


def _write(path: Path, lines: Iterable[bytes]) -> None:
    """Write a pack, in the order of identities, and read it back."""
    content = b"".join(sorted(lines))
    if len(content) > packs.LARGEST_PACK:
        raise ByzantiumError(f"{path} would have more than {packs.LARGEST_PACK} bytes")
    files.write(path, content)
    if files.read(path, packs.LARGEST_PACK) != content:
        raise ByzantiumError(f"{path} was written, and reads differently")


def _remove(folder: Path, line: bytes, pack: Path, changes: Changes) -> None:
    """Remove what a pack holds of a folder; the folder, too, if nothing else is in it.

    The configuration goes first: without it, a `Store` reads the pack.
    """
    try:
        with folder_lock(folder):
            contents, packed = _contents(folder), packs.decode(line)
            begun = CONFIGURATION not in contents  # by a process that was killed
            if contents != (packed if not begun else {name: packed.get(name) for name in contents}):
                raise ByzantiumError("it was changed meanwhile")
            if not begun:
                changes.moved[pack] = changes.moved.get(pack, 0) + 1
            for name in sorted(contents, key=lambda name: name != CONFIGURATION):
                (folder / name).unlink()
            if any(path.name not in TEMPORARY for path in folder.iterdir()):
                changes.remainders.append(folder)
                return
            for name in (SECONDS, LOCK):
                (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # another process has just begun to work there
            folder.rmdir()
    except (OSError, ValueError, BusyError) as error:
        changes.skipped[str(folder)] = records.describe_file_error(error)


def unpack(store: Store, watch: Watch = lambda done, total: None) -> Changes:
    """Move all lines of packs back into folders with the same files, and remove empty packs.

    A line stays where it cannot be read, or where there is a folder of the job with other contents.

    - `watch`: called with how many lines are done, and how many there are.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     unpack(Store(folder)).moved
    {}
    """
    with folder_lock(store.root / PACKING):
        _clear(store.root)
        changes = Changes()
        lines = {path: _raw_lines(path, changes) for path in packs.paths(store.root)}
        done, total = 0, sum(map(len, lines.values()))
        for path, content in lines.items():
            rest = []
            for number, line in enumerate(content, 1):
                watch(done, total)
                done += 1
                try:
                    _restore(store.root, line)
                    changes.moved[path] = changes.moved.get(path, 0) + 1
                except Exception as error:  # whatever it is that the file of somebody else causes
                    changes.skipped[f"line {number} of {path}"] = records.describe_file_error(error)
                    rest.append(line)
            if rest and len(rest) < len(content):
                files.write(path, b"".join(rest))
            elif content and not rest:
                path.unlink()
        watch(total, total)
    return changes


def _raw_lines(path: Path, changes: Changes) -> list[bytes]:
    try:
        if path.is_symlink():
            raise ByzantiumError("it is a link")
        return files.read(path, packs.LARGEST_PACK).splitlines(keepends=True)
    except (OSError, ValueError) as error:
        changes.skipped[str(path)] = records.describe_file_error(error)
        return []


def _restore(root: Path, line: bytes) -> None:
    """Write the folder of a line, its configuration last: without it, a `Store` reads the pack."""
    match = packs.START.match(line)
    if match is None or len(line) > packs.LONGEST_LINE:
        raise ByzantiumError("it is too long, or does not begin with the identity of a job")
    folder, contents = root / match[1].decode(), packs.decode(line)
    if CONFIGURATION not in contents:
        raise ByzantiumError(f"it has no {CONFIGURATION}")
    if folder.is_symlink():
        raise ByzantiumError(f"{folder} is a link")
    with folder_lock(folder):
        if (folder / CONFIGURATION).exists():
            if _contents(folder) != contents:
                raise ByzantiumError(f"{folder} is there, and differs")
            return
        for name in sorted(contents, key=lambda name: name == CONFIGURATION):
            files.write(folder / name, contents[name])


def _clear(root: Path) -> None:
    """Remove packs that a killed process left half written."""
    for path in list(root.iterdir()):
        name = files.WRITING.sub("", path.name)
        if name != path.name and name.endswith(SUFFIX):
            files.clear_abandoned(root / name)


def _lines_by_pack(root: Path) -> dict[Path, dict[str, bytes]]:
    """The lines of all packs by identity; raises an error where one cannot be read."""
    lines: dict[Path, dict[str, bytes]] = {}

    def refuse(what: str, error: Exception) -> None:
        reason = records.describe_file_error(error)
        raise ByzantiumError(f"{what} cannot be read: {reason}") from error

    every = packs.Packs(root, refuse)
    for identity in every:
        line = every[identity]
        lines.setdefault(line.pack, {})[identity] = line.line.rstrip(b"\n") + b"\n"
    return lines
