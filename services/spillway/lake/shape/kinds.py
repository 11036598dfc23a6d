"""The kinds of lake tables, which are the directories below a lake's path: see
:mod:`spillway.lake.tables.contract`.
"""

from __future__ import annotations

from typing import Final

HISTORY: Final = "history"
CURRENT: Final = "current"
#: Its one table is :data:`spillway.lake.shape.changes.EVENTS`. Those of source tables have a dot in
#: their name.
DDL: Final = "ddl"
