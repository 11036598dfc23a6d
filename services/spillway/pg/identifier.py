"""How PostgreSQL writes names: in double quotes where its grammar asks for them.

Source: quote_identifier, quote_qualified_identifier (src/backend/utils/adt/ruleutils.c)
"""

from __future__ import annotations

import re
from typing import Final

from spillway.pg.keywords import quoted_keywords

_SAFE: Final = re.compile(r"[a-z_][a-z0-9_]*")


def quote_identifier(name: str, server_version_num: int) -> str:
    """Return *name* as it has to stand in SQL: in double quotes unless it is plain and no keyword."""
    if _SAFE.fullmatch(name) and name not in quoted_keywords(server_version_num):
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_qualified_identifier(schema: str, name: str, server_version_num: int) -> str:
    """Return ``schema.name``, each part quoted by itself."""
    return f"{quote_identifier(schema, server_version_num)}.{quote_identifier(name, server_version_num)}"
