"""The terminal: texts are printed as they are, and texts of others have no effect on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from byzantium.core import printable_lines


class Terminal(Console):
    """A console on which texts of others, such as names in their results, have no effect.

    Brackets in them are not markup, and words between colons are not emoji. Control characters,
    such as those of escape sequences, are written out: all that is printed goes through `render`,
    where the escape sequences of our own colors are not part of the text yet.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with its styles; its width is measured here."""
        return super().render_str(printable_lines(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces that are printed."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


out, err = Terminal(), Terminal(stderr=True)
