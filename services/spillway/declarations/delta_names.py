"""Names of columns that Delta Lake does not store as they are: what the lake does about them, and
what a form says of them before.
"""

from __future__ import annotations

import re
from typing import Final

_ODD: Final = re.compile(r"[ ,;{}()\n\t=]")


def needs_column_mapping(name: str) -> bool:
    """Say whether Delta stores a column of that name with column mapping only."""
    return _ODD.search(name) is not None
