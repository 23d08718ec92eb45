"""Files are whole and lead nowhere else; one process works in a folder, and anyone may look."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from byzantium.core import files
from byzantium.core import locks as claims
from byzantium.core.locks import BusyError, folder_lock, is_locked


def program(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs this code, when it has said so."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# -- files ----------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for content in ("one ±", b"two"):
        files.write(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert [one.name for one in path.parent.iterdir()] == ["file"]


WRITER = """
import sys; from pathlib import Path; from byzantium.core import files
path, letter = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
while True:
    files.write(path, letter * 10**6)
"""


def test_whoever_writes_or_is_killed_meanwhile_a_file_is_whole(tmp_path: Path) -> None:
    """Two processes write one file as fast as they can, and are killed."""
    path = tmp_path / "file"
    writers = [program(WRITER, path, letter) for letter in "ab"]
    seen = set[str]()
    while len(seen) < 2:
        if path.exists():
            seen.add(path.read_text())
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    assert seen == {"a" * 10**6, "b" * 10**6}
    assert path.read_text() in seen
    (tmp_path / "mine.writing").touch()
    files.clear(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"file", "mine.writing"}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("summary.json", "summary.json.writing", ".summary.json", "summary.writing"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(OSError, match=r"summary\.json'$"):
        files.append(tmp_path / "summary.json", "theirs")
    files.write(tmp_path / "summary.json", "theirs")  # the link is replaced
    assert not (tmp_path / "summary.json").is_symlink()
    assert (tmp_path / "summary.json").read_text() == "theirs"
    assert precious.read_text() == "mine"


def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError, match=r"taken'$"):
        files.write(tmp_path / "taken", "text")
    with pytest.raises(OSError, match=r"taken'$"):
        files.append(tmp_path / "taken", "text")
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def test_nothing_but_files_is_read_and_no_pipe_waited_for(tmp_path: Path) -> None:
    pipe, folder, device = tmp_path / "pipe", tmp_path / "folder", tmp_path / "device"
    os.mkfifo(pipe)
    folder.mkdir()
    device.symlink_to("/dev/zero")
    opened = len(os.listdir("/proc/self/fd"))
    for path in (pipe, folder, device):
        with pytest.raises(OSError, match="it is not a file"):
            files.read(path, 100)
    for path in (pipe, folder):
        with pytest.raises(OSError, match=re.escape(path.name)):
            files.append(path, "text")
    assert len(os.listdir("/proc/self/fd")) == opened


# -- who works in a folder -----------------------------------------------------------------------

HOLDER = """
import sys, time; from pathlib import Path; from byzantium.core.locks import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(1000)
"""


def test_one_process_works_in_a_folder_and_anyone_may_look(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "nowhere")
    process = program(HOLDER, tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(BusyError, match=re.escape(f"another process works on {tmp_path}")):
        folder_lock(tmp_path).__enter__()
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
    assert not is_locked(tmp_path)
    process.communicate()
    assert not is_locked(tmp_path)
    with folder_lock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_looking_writes_nothing_and_takes_nothing(tmp_path: Path) -> None:
    """One thread looks all the time; who wants to work is never told that another does."""
    done, looks = threading.Event(), [0]

    def look() -> None:
        while not done.is_set():
            is_locked(tmp_path)
            looks[0] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        while looks[0] < 500:
            with folder_lock(tmp_path):
                pass
    finally:
        done.set()
        thread.join()


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        mark = json.loads((tmp_path / claims.MARK).read_text())
    assert mark["process"] == os.getpid()
    for change in ({"started": mark["started"] + 1}, {"process": 2**30}, {"process": "1"}):
        (tmp_path / claims.MARK).write_text(json.dumps(mark | change))
        assert not is_locked(tmp_path)
    (tmp_path / claims.MARK).write_text(json.dumps(mark))
    assert is_locked(tmp_path)


def test_on_another_machine_signs_of_life_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / claims.MARK
    for place in ("elsewhere", None):
        path.write_text(json.dumps({"place": place, "process": os.getpid(), "started": 1}))
        assert is_locked(tmp_path)
        os.utime(path, (time.time() - claims.STALE - 1,) * 2)
        assert not is_locked(tmp_path)
    monkeypatch.setattr(claims, "BEAT", 0.01)
    with folder_lock(tmp_path):
        os.utime(path, (0, 0))
        while path.stat().st_mtime < time.time() - claims.STALE:
            time.sleep(0.01)


def test_a_strange_mark_is_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "7", "null", "[" * 10**5, "\0", '{"place": 1}'):
        (tmp_path / claims.MARK).write_text(text)
        os.utime(tmp_path / claims.MARK, (0, 0))
        assert not is_locked(tmp_path)
