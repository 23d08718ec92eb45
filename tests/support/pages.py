"""Pages of the documentation: the files, the prompts and the commands that stand on them."""

from __future__ import annotations

import doctest
import glob
import itertools
import logging
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from click.testing import CliRunner, Result
from paths import ROOT

from byzantium.cli import main
from byzantium.runs import plugins

DO = ROOT / "docs" / "do"
NAME = re.compile(r"# (\w+\.(?:py|toml))\n")


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def write_files(page: Path) -> list[Path]:
    """Write the files of a page into this folder.

    A block whose first line is a comment with a name is that file; blocks behind it that have
    neither a name nor prompts go on with it.
    """
    files: dict[str, str] = {}
    for language in ("python", "toml"):
        name = ""
        for text in blocks(page, language):
            if text.startswith(">>>"):
                continue
            if named := NAME.match(text):
                name = named[1]
            if name:
                files[name] = files.get(name, "") + text + "\n\n"
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    return [Path(name) for name in files]


@contextmanager
def folder_of(page: Path, path: Path) -> Iterator[None]:
    """A folder with the files of a page, which can be imported; afterwards all is as before."""
    logger, before = logging.getLogger("byzantium"), list(sys.path)
    handlers = list(logger.handlers)
    with chdir(path):
        files = write_files(page)
        sys.path.insert(0, str(path))
        try:
            yield
        finally:
            sys.path[:], logger.handlers[:] = before, handlers
            for file in files:
                sys.modules.pop(file.stem, None)
            forget()


def run_prompts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def run_commands(page: Path) -> list[str]:
    """Run the commands of a page, one after the other; what each said.

    Where a page shows what a command says, it says that.
    """
    said = []
    for text in blocks(page, "console"):
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            program, *arguments = shlex.split(line, comments=True)
            if program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
                said.append("")
                continue
            assert program == "byzantium", line
            files = [sorted(glob.glob(a)) if "*" in a else [a] for a in arguments]
            said.append(byzantium(*itertools.chain(*files)).stdout)
            assert shown.split() == said[-1].split() or not shown.strip(), said[-1]
    return said


def byzantium(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result


def forget() -> None:
    """Be a process in which no plugin was loaded."""
    for plugin in list(plugins._loaded.values()):
        for table in plugins.tables().values():
            table.remove(plugin)
    plugins._loaded.clear()
    for name in [name for name in sys.modules if name.startswith("byzantium_plugin_")]:
        del sys.modules[name]
