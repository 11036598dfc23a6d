"""Found changes as JSON values, made by hand: a model costs more than finding a change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.service.model import ChangePage, ColumnValue, FoundChange, LogicalMessage

#: media types of changes beside JSON documents
JSON_LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"


def view(change: FoundChange) -> dict[str, Any]:
    """Give a FoundChangeView."""
    return {
        "operation": change.operation,
        "schema": change.schema,
        "table": change.table,
        "table_oid": change.table_oid,
        "lsn": str(change.lsn),
        "commit_lsn": str(change.commit_lsn),
        "commit_end_lsn": str(change.commit_end_lsn),
        "xid": change.xid,
        "committed_at": change.committed_at
        and change.committed_at.isoformat().replace("+00:00", "Z"),
        "origin": change.origin,
        "columns": [column_view(column) for column in change.columns],
        "position": str(change.position),
        "message": change.message and message_view(change.message),
    }


def json_lines(changes: Iterable[FoundChange]) -> str:
    """Give a line with a FoundChangeView for each change."""
    return "".join(f"{json.dumps(view(change))}\n" for change in changes)


def message_view(message: LogicalMessage) -> dict[str, Any]:
    """Give a LogicalMessageView."""
    text = message.text
    return {
        "transactional": message.transactional,
        "prefix": message.prefix,
        "content": text,
        "content_hex": message.hex if text is None else None,
    }


def column_view(column: ColumnValue) -> dict[str, Any]:
    """Give a column of a FoundChangeView."""
    return {
        "name": column.name,
        "type": column.type,
        "is_key": column.is_key,
        "old_is": column.old_is,
        "old": column.old,
        "new_is": column.new_is,
        "new": column.new,
        "changed": column.changed,
    }


def page_view(page: ChangePage) -> dict[str, Any]:
    """Give a ChangesPage."""
    return {
        "changes": [view(change) for change in page.changes],
        "next": None if page.following is None else str(page.following),
        "tables": list(page.tables),
        "looked_from_lsn": str(page.looked_from_lsn),
        "looked_upto_lsn": str(page.looked_upto_lsn),
        "retained_from_lsn": str(page.retained_from_lsn),
        "retained_from": page.retained_from
        and page.retained_from.isoformat().replace("+00:00", "Z"),
        "decoded_lsn": str(page.decoded_lsn),
        "began_earlier": page.began_earlier,
        "timed_out": page.timed_out,
        "undecided": page.undecided,
        "unreadable": [{"from_lsn": str(a), "upto_lsn": str(b)} for a, b in page.unreadable],
        "read_bytes": page.read_bytes,
        "passed_over_bytes": page.passed_over_bytes,
    }
