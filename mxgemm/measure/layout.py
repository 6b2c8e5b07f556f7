"""Tables as plain text that fit a width: by headings instead of columns, then by cells of several lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_GAP: Final = "  "
_NARROWEST: Final = 16
"""Characters that a cell of several lines gets at least."""


@dataclass(frozen=True)
class Table:
    """Rows and how they may be laid out.

    Attributes:
        header: a name for each column; where all are empty, no line for them.
        rows: their cells.
        left: names of the columns that are aligned to the left; ``wrapped`` ones are too, others to the right.
        wrapped: names of the columns whose cells may take several lines.
        shared: names of the columns that become a heading above their rows where lines would be too long; the heading
            says the first by its value, the others by name and value.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str] = ()
    wrapped: Sequence[str] = ()
    shared: Sequence[str] = ()

    def lines(self, width: int) -> Iterator[list[str]]:
        """Yield lines of no more than ``width`` where the cells allow it, each as cells with the space around them."""
        columns = range(len(self.header))
        widths = [max(map(len, (name, *(row[i] for row in self.rows)))) for i, name in enumerate(self.header)]
        shared: list[int] = []
        if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            shared = [i for i in columns if self.header[i] in self.shared]
        kept = [i for i in columns if i not in shared]
        indent = [_GAP] if shared else []
        over = sum(widths[i] for i in kept) + len(_GAP) * (len(kept) - 1 + len(indent)) - width
        for i in kept:
            if over > 0 and self.header[i] in self.wrapped:
                narrower = max(widths[i] - over, min(widths[i], _NARROWEST))
                over -= widths[i] - narrower
                widths[i] = narrower
        if any(self.header):
            yield from self._row(self.header, kept, widths, indent)
        before: list[str] = []
        for row in self.rows:
            heading = [row[i] for i in shared]
            if heading != before:
                more = [f"{self.header[i]} {row[i]}" for i in shared[1:] if row[i]]
                yield [_GAP.join([heading[0], *more])]
            before = heading
            yield from self._row(row, kept, widths, indent)

    def _row(self, row: Sequence[str], kept: list[int], widths: list[int], indent: list[str]) -> Iterator[list[str]]:
        cells = [_broken(row[i], widths[i]) for i in kept]
        for number in range(max(map(len, cells))):
            line = list(indent)
            for i, parts in zip(kept, cells, strict=True):
                part = parts[number] if number < len(parts) else ""
                to_left = self.header[i] in (*self.left, *self.wrapped)
                line += [part.ljust(widths[i]) if to_left else part.rjust(widths[i]), _GAP]
            yield line[:-1]


def _broken(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""] if len(cell) > width else [cell]
