"""A table copied by ranges of its blocks, as of an exact snapshot of the source, by as many
processes as one likes.

A range is one COPY in a session of its own, which imports the snapshot; a TID range scan reads just
these blocks. Columns are what :mod:`spillway.plugins.arrow_copy` makes of them: the types and
values that a slot's changes have.

Memory: one batch of rows. In Python, one call a row, which hands it to a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow.compute as pc
from psycopg import pq

from spillway._kernels.encoders.arrow.copy import CopiedRows
from spillway.consumer.snapshots import begin_with_snapshot, connect_sql, lock
from spillway.errors import LakeError, SourceError, SpillwayError
from spillway.pg.conninfo import redact
from spillway.plugins.arrow_copy import copy_statement, take_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from spillway.consumer.snapshots import CopiedTable, Source, SourceSnapshot
    from spillway.plugins.arrow_schema import TablePlan

#: In the message of the error of whoever copies: the snapshot is in somebody's way.
DDL_WAITS: Final = "an ALTER TABLE, TRUNCATE or VACUUM FULL waits for the load"

_ROWS_PER_BATCH: Final = 100_000
_BYTES_PER_BATCH: Final = 16 << 20

#: blocks [first, end); None: to the table's end
BlockRange = tuple[int, int | None]

#: bits of the offset in a row's place; its block's number is above them
_OFFSET_BITS: Final = 16


class TableCopy:
    """Rows of one table, from anywhere: it can be pickled, and holds no connection between calls.

    Args:
        source: where from.
        snapshot: what is copied is as of it; it must stay open.
        copied: the table. Of one that is partitioned, blocks are numbered through its partitions.
    """

    def __init__(self, source: Source, snapshot: SourceSnapshot, copied: CopiedTable) -> None:
        self._conninfo = source.conninfo
        self._settings: Mapping[str, str] = source.session_settings
        self._snapshot = snapshot.name
        self._name = copied.name
        self._columns = copied.columns
        parts, first = [], 0
        for part in copied.parts:
            parts.append((part.plan, first, first + part.blocks))
            first += part.blocks
        self._parts = tuple(parts)

    def __repr__(self) -> str:
        # The state has a password in it.
        return f"{type(self).__name__}({self._name})"

    @property
    def columns(self) -> list[str]:
        """The names of what :meth:`batches` yields, in order."""
        return list(self._columns)

    def batches(self, first: int, end: int | None) -> Iterator[tuple[pa.Array, list[pa.Array]]]:
        """Yield the rows in blocks [*first*, *end*); without an end: all the rest.

        Yields:
            where each row stands, its block's number times 65536 plus the offset, and its columns.

        Raises:
            LakeError: the source refuses, or the connection broke; :data:`DDL_WAITS` in its
                message: somebody waits to alter the table.
            SpillwayError: a value can't be represented.
        """
        for at, (plan, begins, ends) in enumerate(self._parts):
            is_last = at == len(self._parts) - 1
            start = max(first, begins)
            until = end if is_last or (end is not None and end < ends) else ends
            if until is not None and start >= until:
                continue
            shift = begins << _OFFSET_BITS
            own_end = None if until is None else until - begins
            for places, arrays in self._batches(plan, start - begins, own_end):
                yield (pc.add(places, shift) if shift else places), arrays

    def _batches(
        self, plan: TablePlan, first: int, end: int | None
    ) -> Iterator[tuple[pa.Array, list[pa.Array]]]:
        descriptor = plan.descriptor
        try:
            with self._connect(plan, first) as connection:
                begin_with_snapshot(connection, self._settings, self._snapshot)
                # Not to be in line behind DDL that waits for the load itself: nobody would see that
                # deadlock.
                lock(connection, descriptor.schema, descriptor.name, wait=False)
                yield from self._rows(connection, plan, first, end)
                connection.execute("COMMIT")
        except psycopg.errors.LockNotAvailable:
            raise LakeError(
                f"{plan.read_name}: {DDL_WAITS}",
                hint="The load lets it go first, and begins anew.",
            ) from None
        except psycopg.Error as error:
            raise LakeError(
                f"copying {plan.read_name} from block {first} failed: "
                f"{' '.join(redact(str(error), self._conninfo).split())}",
                hint="The load goes on where it is when it is run again.",
            ) from None

    def _connect(self, plan: TablePlan, first: int) -> psycopg.Connection[Any]:
        try:
            return connect_sql(self._conninfo)
        except SourceError as error:
            raise LakeError(
                f"copying {plan.read_name} from block {first} failed: {error.message}",
                hint=f"{error.hint} The load goes on where it is when it is run again.",
            ) from None

    def _rows(
        self, connection: psycopg.Connection[Any], plan: TablePlan, first: int, end: int | None
    ) -> Iterator[tuple[pa.Array, list[pa.Array]]]:
        pgconn = connection.pgconn
        statement = copy_statement(plan, first, end).as_bytes(connection)
        result = pgconn.exec_(statement)
        if result.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        rows = CopiedRows(plan.columns, plan.not_utf8_escaped)
        put, receive = rows.put, pgconn.get_copy_data
        try:
            while True:
                size, message = receive(0)
                if size < 0:
                    break
                put(message)
                if rows.rows >= _ROWS_PER_BATCH or rows.size >= _BYTES_PER_BATCH:
                    yield take_shown(rows, plan)
        except SpillwayError as error:
            raise type(error)(
                f"table {plan.read_name}: {error.message}",
                hint=error.hint,
                **error.details,
            ) from error
        ended = pgconn.get_result()
        if ended is None or not rows.ended:
            raise psycopg.OperationalError("the copy ended early")
        if ended.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(ended)
        pgconn.get_result()
        if rows.rows:
            yield take_shown(rows, plan)
