"""What an executor does for an initial load: copy ranges of a table's blocks, as rows of its history.

A range is one COPY in a session of its own, which imports the load's snapshot; a TID range scan reads just these
blocks. Rows come as :mod:`spillway.plugins.arrow_copy` makes them, with the change's columns before them:

=================  =====================================================================
``_op``            R: the row was read, not changed
``_lsn``           the last position before the snapshot's LSN S, S - 1
``_commit_lsn``    the same: changes that the snapshot doesn't have are from S on
``_commit_end_lsn``  S
``_seq``           where in the table: the block's number times 65536, plus the offset
``_commit_time``   when the snapshot was taken
``_xid`` and rest  null
=================  =====================================================================

Memory: one batch of rows. In Python, one call a row, which hands it to a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from psycopg import pq

from spillway._kernels.arrow_copy import CopiedRows
from spillway.errors import LakeError, SpillwayError
from spillway.lake.initial_load_source import begin_with_snapshot, lock
from spillway.lake.payload import CHANGE_COLUMNS, conform
from spillway.plugins.arrow_copy import copy_statement, take_columns
from spillway.receiver.conninfo import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spillway.lake.initial_load_source import Source, SourceSnapshot
    from spillway.plugins.arrow_schema import TablePlan

#: The ``_op`` of a row that was loaded.
READ: Final = "R"
#: In the message of an executor's error, which reaches the driver as text: the snapshot is in somebody's way.
DDL_WAITS: Final = "an ALTER TABLE, TRUNCATE or VACUUM FULL waits for the load"

_ROWS_PER_BATCH: Final = 100_000
_BYTES_PER_BATCH: Final = 16 << 20

#: blocks [first, end); None: to the table's end
BlockRange = tuple[int, int | None]


class CopyRanges:
    """The function given to mapInArrow: numbers of ranges in, their rows out. Pickled to executors.

    Args:
        source: where from.
        snapshot: what is copied is as of it; it must stay open.
        plan: of the table.
        columns: the rows' schema: that of the table's history.
        ranges: what the numbers mean.
    """

    def __init__(
        self,
        source: Source,
        snapshot: SourceSnapshot,
        plan: TablePlan,
        columns: pa.Schema,
        ranges: Sequence[BlockRange],
    ) -> None:
        self._conninfo = source.conninfo
        self._settings: Mapping[str, str] = source.session_settings
        self._snapshot = snapshot.name
        self._lsn = snapshot.lsn
        self._taken_at_us = snapshot.taken_at_us
        self._plan = plan
        self._columns = columns
        self._ranges = tuple(ranges)

    def __repr__(self) -> str:
        # Spark shows a function's name in query plans; this one's state has a password in it.
        return type(self).__name__

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0):
                yield from self._copy(*self._ranges[number.as_py()])

    def _copy(self, first: int, end: int | None) -> Iterator[pa.RecordBatch]:
        descriptor = self._plan.descriptor
        try:
            with psycopg.connect(
                self._conninfo, autocommit=True, client_encoding="UTF8"
            ) as connection:
                begin_with_snapshot(connection, self._settings, self._snapshot)
                # Not to be in line behind DDL that waits for the load itself: nobody would see that deadlock.
                lock(connection, descriptor.schema, descriptor.name, wait=False)
                yield from self._rows(connection, first, end)
                connection.execute("COMMIT")
        except psycopg.errors.LockNotAvailable:
            raise LakeError(
                f"{descriptor.schema}.{descriptor.name}: {DDL_WAITS}",
                hint="The load lets it go first, and begins anew.",
            ) from None
        except psycopg.Error as error:
            raise LakeError(
                f"copying {descriptor.schema}.{descriptor.name} from block {first} failed: "
                f"{' '.join(redact(str(error), self._conninfo).split())}",
                hint="The load goes on where it is when it is run again.",
            ) from None

    def _rows(
        self, connection: psycopg.Connection[Any], first: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        pgconn = connection.pgconn
        statement = copy_statement(self._plan, first, end).as_bytes(connection)
        result = pgconn.exec_(statement)
        if result.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        rows = CopiedRows(self._plan.columns)
        put, receive = rows.put, pgconn.get_copy_data
        try:
            while True:
                size, message = receive(0)
                if size < 0:
                    break
                put(message)
                if rows.rows >= _ROWS_PER_BATCH or rows.size >= _BYTES_PER_BATCH:
                    yield self._batch(rows)
        except SpillwayError as error:
            descriptor = self._plan.descriptor
            raise type(error)(
                f"table {descriptor.schema}.{descriptor.name}: {error.message}",
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
            yield self._batch(rows)

    def _batch(self, rows: CopiedRows) -> pa.RecordBatch:
        count = rows.rows
        places, arrays = take_columns(rows, self._plan.columns)
        before = pa.repeat(pa.scalar(self._lsn - 1, pa.int64()), count)
        known = {
            "_op": pa.repeat(READ, count),
            "_lsn": before,
            "_commit_lsn": before,
            "_commit_end_lsn": pa.repeat(pa.scalar(self._lsn, pa.int64()), count),
            "_seq": places,
            "_commit_time": pa.repeat(
                pa.scalar(self._taken_at_us, CHANGE_COLUMNS.field("_commit_time").type), count
            ),
        }
        names = [*known, *(column.name for column in self._plan.columns)]
        return conform(
            pa.RecordBatch.from_arrays([*known.values(), *arrays], names=names), self._columns
        )
