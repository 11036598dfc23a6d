"""Booleans as PostgreSQL reads them.

Source: parse_bool_with_len, src/backend/utils/adt/bool.c
"""

from __future__ import annotations

from typing import Final

#: The fewest letters of ``on`` and ``off`` that tell them apart.
_ON_OFF_LETTERS: Final = 2


def parse_bool(text: str) -> bool | None:
    """Parse a boolean: true, false, yes, no, on, off, 1, 0 and beginnings of the words that are
    unique.

    Case does not matter, blanks do. None: *text* is not a boolean.
    """
    text = text.lower()
    if not text:
        return None
    if text == "1" or "true".startswith(text) or "yes".startswith(text):
        return True
    if text == "0" or "false".startswith(text) or "no".startswith(text):
        return False
    if len(text) >= _ON_OFF_LETTERS:
        if text == "on":
            return True
        if "off".startswith(text):
            return False
    return None
