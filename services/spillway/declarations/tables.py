"""Tables as options name them: ``schema.table``, or a word for all."""

from __future__ import annotations

import re
from typing import Final

#: Stands for every table that is not named.
ALL: Final = "all"
#: What parts a table from what is said of it is ``=``, so no name may have it.
_TABLE: Final = re.compile(r"[^\s=][^=]*\.[^=]*[^\s=]")


def is_table(text: object) -> bool:
    """Say whether it is a ``schema.table``."""
    return isinstance(text, str) and _TABLE.fullmatch(text) is not None


def is_table_or_all(text: object) -> bool:
    """Say whether it is a ``schema.table``, or the word for all."""
    return text == ALL or is_table(text)
