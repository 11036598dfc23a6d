"""The command that loads a table of a lake anew, as hints and reasons have it.

It can be pasted into a shell, whatever the table's name.
"""

from __future__ import annotations

import shlex


def load_anew(table: str, *options: str) -> str:
    """Return the command for ``schema.table`` and what it has to be given besides.

    Args:
        table: its name.
        options: that it takes for this, as they are typed.
    """
    words = ["spillway lake load --resync --table", shlex.quote(table), *options]
    return f"{' '.join(words)}, with the job's --slot and --lake"
