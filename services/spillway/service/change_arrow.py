"""Found changes as an Arrow IPC stream, a row a change: apart from what is imported at the start,
when nobody has asked for Arrow yet.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spillway.service.change_views import column_view

if TYPE_CHECKING:
    from spillway.service.model import FoundChange

_VALUE: Final = pa.struct(
    [
        pa.field("name", pa.utf8()),
        pa.field("type", pa.utf8()),
        pa.field("is_key", pa.bool_()),
        pa.field("old_is", pa.utf8()),
        pa.field("old", pa.utf8()),
        pa.field("new_is", pa.utf8()),
        pa.field("new", pa.utf8()),
        pa.field("changed", pa.bool_()),
    ]
)
#: its content as it is, text or not
_MESSAGE: Final = pa.struct(
    [
        pa.field("transactional", pa.bool_()),
        pa.field("prefix", pa.utf8()),
        pa.field("content", pa.binary()),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        pa.field("operation", pa.utf8()),
        pa.field("schema", pa.utf8()),
        pa.field("table", pa.utf8()),
        pa.field("table_oid", pa.int64()),
        pa.field("lsn", pa.uint64()),
        pa.field("commit_lsn", pa.uint64()),
        pa.field("commit_end_lsn", pa.uint64()),
        pa.field("xid", pa.uint32()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("origin", pa.utf8()),
        pa.field("columns", pa.list_(_VALUE)),
        pa.field("message", _MESSAGE),
    ]
)


class ArrowWriter:
    """Writes one stream of any number of pages; what it has written is taken piece by piece."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, _SCHEMA)

    def write(self, changes: tuple[FoundChange, ...]) -> bytes:
        """Return the next piece, which has *changes*, LSNs as numbers."""
        rows = [
            {
                **{field.name: getattr(change, field.name) for field in _SCHEMA},
                "columns": [column_view(column) for column in change.columns],
                "message": change.message
                and {field.name: getattr(change.message, field.name) for field in _MESSAGE},
            }
            for change in changes
        ]
        self._writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))
        return self._take()

    def end(self) -> bytes:
        """Return the last piece, after which there is no other."""
        self._writer.close()
        return self._take()

    def _take(self) -> bytes:
        written = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return written


def as_arrow(changes: tuple[FoundChange, ...]) -> bytes:
    """Write one page as a whole stream."""
    writer = ArrowWriter()
    return writer.write(changes) + writer.end()
