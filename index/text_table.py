"""Rows as lines of text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[tuple[str, ...]], *, right: set[int]) -> list[str]:
    """Rows as lines of aligned columns; those in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
