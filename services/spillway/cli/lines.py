"""An answer as lines of text, in each form, for a terminal or a pipe."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from spillway.cli import tables
from spillway.cli.answer import Format, Record, Rows

if TYPE_CHECKING:
    from spillway.cli.answer import Answer


def lines_of(answer: Answer, form: Format) -> list[str]:
    """Return an answer as lines, for whoever reads standard output."""
    if form is Format.JSON:
        return [json.dumps(answer.raw, ensure_ascii=False)]
    if form is Format.NAME:
        return [str(name) for name in answer.names]
    width = tables.width() if sys.stdout.isatty() else None
    lines: list[str] = []
    for part in answer.parts:
        if isinstance(part, Rows):
            found = tables.row_lines(part.rows, part.columns, width, is_wide=form is Format.WIDE)
        elif isinstance(part, Record):
            found = tables.record_lines(part.values, width)
        else:
            found = tables.text_lines(part.lines, width)
        if lines:
            lines.append("")
        if part.heading:
            lines.append(tables.heading(part.heading, width))
        lines += found
    return lines
