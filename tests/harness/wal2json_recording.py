"""What the original wal2json wrote for the scenarios of tests/oracle, and how two runs of them are
compared.

Recorded by ``tests/golden/record_wal2json.py`` in ``tests/golden/wal2json/<scenario>.json``:
options → lines.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.cluster import Database

DIRECTORY = Path(__file__).resolve().parents[1] / "golden" / "wal2json"

#: What differs between runs. Numbers of xids, LSNs and times say only where a run was.
_VOLATILE = (
    (re.compile(r'("xid": ?)\d+'), r"\1XID"),
    (re.compile(r'("(?:next)?lsn": ?")[0-9A-F]+/[0-9A-F]+'), r"\1LSN"),
    (re.compile(r'("timestamp": ?")(?!2020)[^"]+'), r"\1TIME"),
    (re.compile(r'("origin": ?)[1-9]\d*'), r"\1ORIGIN"),
)
#: oids of types that users made, in ``"typeoid":…`` and in ``"columntypeoids":[…]``
_TYPE_OIDS = re.compile(r'"(?:typeoid|columntypeoids|keytypeoids)": ?\[?[^\]}"]*')
_USERS_OID = re.compile(r"\b(?:1638[4-9]|163[9]\d|16[4-9]\d\d|1[7-9]\d{3}|[2-9]\d{4}|\d{6,})\b")
#: A transaction that shows nothing: DDL of the scenario, or autovacuum's own.
_EMPTY = re.compile(r'\{\s*(?:"\w+": ?"?[^",\[]*"?,\s*)*"change": ?\[\s*\]\s*\}')


def clean_up(database: Database) -> None:
    """Drop what scenarios leave behind."""
    for table in ("t", "u", "w", "t2"):
        database.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
    database.execute("DROP SEQUENCE IF EXISTS s")
    database.execute(
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE "
        "'w2j%'"
    )


def options_of(database: Database, options: Mapping[str, str]) -> dict[str, str]:
    """Return *options* for this server: ``ORIGIN`` is the number of the origin w2j_one."""
    origin = database.query(
        "SELECT roident::text FROM pg_replication_origin WHERE roname = 'w2j_one'"
    )
    number = origin[0][0] if origin else "64000"
    return {k: v.replace("ORIGIN", number) for k, v in options.items()}


def normalised(rows: Iterable[tuple[str, int, str]]) -> list[str]:
    """Return the messages without what differs between runs, and without empty transactions."""
    lines: list[str] = []
    for _, _, message in rows:
        text = _TYPE_OIDS.sub(lambda oids: _USERS_OID.sub("OID", oids[0]), message)
        for pattern, replacement in _VOLATILE:
            text = pattern.sub(replacement, text)
        # In chunks and in format 2, an empty transaction is its beginning and its end.
        ended = text.startswith('{"action":"C"') or text in {"]}", "\t]\n}"}
        begun = bool(lines) and (
            lines[-1].startswith('{"action":"B"')
            or lines[-1].endswith(('"change":[', '"change": ['))
        )
        if ended and begun:
            lines.pop()
        elif not _EMPTY.fullmatch(text):
            lines.append(text)
    return lines


def recorded(scenario: str, label: str) -> list[str]:
    """Return what the original wrote, normalised."""
    return _recording(scenario)[label]


@cache
def _recording(scenario: str) -> dict[str, list[str]]:
    recording: dict[str, list[str]] = json.loads((DIRECTORY / f"{scenario}.json").read_text())
    return recording
