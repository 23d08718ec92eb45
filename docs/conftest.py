"""Each page is run in an empty folder, in which the files lie that stand on it."""

from collections.abc import Iterator
from pathlib import Path

import pages
import pytest


@pytest.fixture(autouse=True)
def _folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.delenv("BYZANTIUM_DATA", raising=False)
    with pages.folder_of(request.path, tmp_path):
        yield
