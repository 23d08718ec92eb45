"""The long description of the package: the README, with links that work on a package index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def absolute(text: str, address: str, version: str) -> str:
    """A Markdown text whose links to files name a repository, at the tag of a version.

    - `text`: the text; its relative links are paths from the top of the repository.
    - `address`: the address of the repository on GitHub.
    - `version`: the version, without the v of its tag.
    """

    def link(found: re.Match[str]) -> str:
        picture, name, path = found.groups()
        folder = "raw" if picture else "blob"
        return f"{picture}[{name}]({address}/{folder}/v{version}/{path})"

    return RELATIVE.sub(link, text)


class Readme(MetadataHookInterface):
    """Sets the long description and, once there is an address, the project's URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if address := self.config["address"].rstrip("/"):
            text = absolute(text, address, metadata["version"])
            metadata["urls"] = {
                "Repository": address,
                "Changelog": f"{address}/blob/main/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
