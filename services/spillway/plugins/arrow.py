r"""The ``arrow`` output plugin: changes as columns, one batch a table.

A message is a complete Arrow IPC stream: a schema and one record batch with changes of one table,
in the order in which they were made. ``arrow_schema.py`` says what its columns are. Rows are
gathered over transactions until a bound is reached or the reader asks for what there is, so that a
message is worth its overhead; a transaction is cut only when it alone is larger than the bound.

A message's lsn is the end of the last transaction in it, or that of its last change when this
transaction goes on in the next message; its xid is that transaction's. Tables are emitted together,
and a transaction's rows may be spread over several messages of one step: what a consumer may
confirm is the stream's ``confirm_lsn``, never a message's lsn.

A TRUNCATE is one row in each of its tables, all their columns null. Logical decoding messages have
no table and are left out.

With ``ddl``, what DDL did to a table is a message between those of the rows before and after it:
one row of :data:`DDL_SCHEMA`, whose metadata has ``spillway.message`` = ``ddl``; see ``ddl_event``.

Options, beside PostgreSQL's settings for values that are printed (TimeZone, bytea_output, …):

=================  =============  =========================================================
batch_bytes        1048576        gather about so many bytes of columns, 1 to 268435456
batch_rows         65536          or so many rows, 1 to 16777216
numeric_as         decimal        text: every numeric column is utf8
temporal_as        native         text: every date, time and timestamp column is utf8
not_utf8           error          escape: bytes of text that are not UTF-8 are written as ``\xff``
not_representable  error          mark: a value that Arrow has no form for is null, and the
                                  message says so; see ``refused_values``
column_names       source         safe: all but letters, digits and underscores become underscores
ddl                off            on: DDL comes as messages of its own
partition_root                    a JSON list of partitioned tables that are one, or of "all"; see
                                  ``arrow_schema`` and ``partition_roots``
masks, mask_secret                columns that are left out or masked; see ``masks``
=================  =============  =========================================================
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from spillway._kernels.encoders.arrow.encoder import Encoder, put_message
from spillway.errors import InvalidOption
from spillway.pg.text_settings import TextSettings
from spillway.pg.timestamps import UNIX_EPOCH_US
from spillway.plugins import refused_values
from spillway.plugins.arrow_schema import (
    CHANGE_FIELDS,
    OLD_KEY,
    PARTITION,
    SchemaOptions,
    plan_table,
)
from spillway.plugins.ddl_event import DdlEvents
from spillway.plugins.interface import OutputPlugin
from spillway.plugins.partition_roots import EMPTIED, PartitionChange, partition_change
from spillway.plugins.shown_tables import shown_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway._kernels.encoders.arrow.encoder import Place, Table
    from spillway._kernels.messages.buffer import MessageBuffer
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.plugins.arrow_schema import ColumnPlan
    from spillway.plugins.interface import PluginContext

_BATCH_BYTES: Final = 1 << 20
#: Well below what int32 offsets can address, with room for one value of PostgreSQL's largest size.
_BATCH_BYTES_MAX: Final = 1 << 28
_BATCH_ROWS: Final = 1 << 16
_BATCH_ROWS_MAX: Final = 1 << 24
#: What of a change's own columns a message of DDL has.
_DDL_FIELDS: Final = ("_lsn", "_commit_lsn", "_commit_end_lsn", "_xid", "_commit_time")
#: The end of an IPC stream: continuation mark, length 0.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_EMPTY: Final = pa.py_buffer(b"")
#: What a message of DDL looks like; its columns mean what a change's do, ``event`` is JSON.
DDL_SCHEMA: Final = pa.schema(
    [
        *(field for field in CHANGE_FIELDS if field.name in _DDL_FIELDS),
        pa.field("event", pa.utf8()),
    ],
    metadata={"spillway.message": "ddl"},
)


class ArrowPlugin(OutputPlugin):
    """See the module."""

    name: ClassVar[str] = "arrow"
    binary = True

    def __init__(self, options: Mapping[str, str], context: PluginContext) -> None:
        """Take the options.

        Raises:
            InvalidOption: an option or its value is not known.
        """
        settings, rest = TextSettings.from_options(
            options, context.server_version_num, context.encoding
        )
        batch_bytes = _number(rest, "batch_bytes", _BATCH_BYTES, _BATCH_BYTES_MAX)
        batch_rows = _number(rest, "batch_rows", _BATCH_ROWS, _BATCH_ROWS_MAX)
        schema_options = SchemaOptions(
            context.server_version_num,
            numeric_as_text=_choice(rest, "numeric_as", "decimal", "text"),
            temporal_as_text=_choice(rest, "temporal_as", "native", "text"),
            not_utf8_escaped=_choice(rest, "not_utf8", "error", "escape"),
            marks_refused=_choice(rest, refused_values.OPTION, "error", refused_values.MARK),
            safe_names=_choice(rest, "column_names", "source", "safe"),
            settings=settings,
            **shown_tables(rest),
        )
        with_ddl = _choice(rest, "ddl", "off", "on")
        for option, value in rest.items():
            raise InvalidOption(
                f'option "{option}" = "{value}" is unknown',
                hint="The arrow plugin knows batch_bytes, batch_rows, numeric_as, temporal_as, "
                "not_utf8, not_representable, column_names, ddl, partition_root, masks and "
                "mask_secret.",
                option=option,
            )
        self._settings = settings
        self._encoder = Encoder(
            settings, partial(plan_table, options=schema_options), batch_bytes, batch_rows
        )
        self._options = schema_options
        self._with_ddl = with_ddl
        self._encoder.schema_changes = with_ddl or bool(schema_options.partition_roots)
        self._ddl = DdlEvents(context.server_version_num, context.encoding)

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:  # noqa: ARG002
        """Start gathering a transaction."""
        self._encoder.begin(header.xid, header.final_lsn, header.end_lsn, header.commit_time)

    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Gather the rows of *chunk*; emit when this transaction alone is over the bounds.

        Raises:
            DecodingError: a change is malformed.
            ValueNotRepresentable: a value has no form in its column's Arrow type.
        """
        offset, size = 0, len(chunk)
        while offset < size:
            offset = self._encoder.gather(chunk, offset, relations)
            change = self._encoder.schema_change
            if change is not None:
                self._encoder.schema_change = None
                moved = partition_change(change[1], self._options)
                if self._with_ddl or moved:
                    # Rows of before are never behind it.
                    self._emit(out)
                for each in moved:
                    self._put_partition(header, change[0], each, out)
                if self._with_ddl:
                    self._put_ddl(header, *change, out)
            elif self._encoder.full:
                self._emit(out)

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:  # noqa: ARG002
        """End the transaction; emit when the bounds are reached."""
        self._encoder.commit()
        if self._encoder.full:
            self._emit(out)

    def flush(self, out: MessageBuffer) -> None:
        """Emit what is gathered."""
        self._emit(out)

    # ---- sharing

    def state(self) -> object | None:
        """Return the same always: after ``flush`` nothing is gathered."""
        return ()

    def resume(self, state: object) -> None:
        """Do nothing: there is no state."""

    def _put_ddl(
        self, header: TransactionHeader, lsn: int, content: bytes, out: MessageBuffer
    ) -> None:
        values = {
            "_lsn": lsn,
            "_commit_lsn": header.final_lsn,
            "_commit_end_lsn": header.end_lsn,
            "_xid": header.xid,
            "_commit_time": header.commit_time + UNIX_EPOCH_US,
            "event": self._ddl.text(content, header).decode(),
        }
        batch = pa.RecordBatch.from_pylist([values], schema=DDL_SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, DDL_SCHEMA) as writer:
            writer.write_batch(batch)
        put_message(out, lsn, header.xid, [sink.getvalue()])

    def _put_partition(
        self, header: TransactionHeader, lsn: int, change: PartitionChange, out: MessageBuffer
    ) -> None:
        """Tell that a partition has come or gone, by a row of its root."""
        schema = change.marked_schema(header.final_lsn)
        values = {
            "_op": change.op,
            "_lsn": lsn,
            "_commit_lsn": header.final_lsn,
            "_commit_end_lsn": header.end_lsn,
            "_xid": header.xid,
            "_seq": self._encoder.next_seq,
            "_commit_time": header.commit_time + UNIX_EPOCH_US,
            PARTITION: change.partition,
        }
        # By place: a table's column may have any name.
        arrays = [
            pa.array([values.get(f.name) if _is_own(at, f.name, schema) else None], f.type)
            for at, f in enumerate(schema)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        put_message(out, lsn, header.xid, [sink.getvalue()])

    def _emit(self, out: MessageBuffer) -> None:
        tables = self._encoder.take()
        if not tables:
            return
        # The transaction at hand, if any, ends later than all others: tables with rows of it come
        # last.
        cut = tables[-1].commit_end_lsn if self._encoder.in_transaction else None
        for table in tables:
            lsn = table.last_lsn if table.commit_end_lsn == cut else table.commit_end_lsn
            # What pa.ipc.new_stream would write, but the schema's message is made once a table.
            batch = record_batch(table).serialize()
            schema = table.plan.schema_message
            if table.refused_count:
                schema = refused_values.marked_schema(table, self._settings).serialize()
            put_message(out, lsn, table.xid, [schema, batch, _END_OF_STREAM])
        self._encoder.taken()


def record_batch(table: Table) -> pa.RecordBatch:
    """Return a table's rows over the builders' own memory: valid until the table is cleared."""
    plan, rows = table.plan, table.rows

    def buffer(place: Place) -> pa.Buffer | None:
        if place is None:
            return None
        # A builder that never had a byte has no memory either, but Arrow wants a buffer.
        return pa.foreign_buffer(*place, base=table) if place[1] else _EMPTY

    def array(
        type_: pa.DataType,
        buffers: Sequence[Place],
        null_count: int = 0,
        *,
        length: int = rows,
        children: Sequence[pa.Array] | None = None,
    ) -> pa.Array:
        return pa.Array.from_buffers(
            type_, length, [buffer(b) for b in buffers], null_count, children=children
        )

    *numbers, op_offsets, ops = table.change_column_buffers()
    arrays = [array(pa.utf8(), [None, op_offsets, ops])]
    arrays += [
        array(field.type, [None, place])
        for field, place in zip(CHANGE_FIELDS[1:-1], numbers, strict=True)
    ]
    null_count, names, list_buffers, name_buffers = table.unchanged_buffers()
    unchanged_names = array(pa.utf8(), [None, *name_buffers], length=names)
    arrays.append(
        array(CHANGE_FIELDS[-1].type, list_buffers, null_count, children=[unchanged_names])
    )

    def column(i: int, planned: ColumnPlan) -> pa.Array:
        null_count, buffers = table.column_buffers(i)
        return plan.finished(planned, array(planned.type, buffers, null_count))

    in_key = [made.array(rows) for made in plan.made if made.in_key]
    if plan.key_columns or in_key:
        first = len(plan.columns)
        fields = [column(first + i, key) for i, key in enumerate(plan.key_columns)]
        if plan.key_columns:
            null_count, validity = table.key_validity_buffer()
        else:
            null_count, validity = 0, None
        arrays.append(
            array(
                plan.schema.field(OLD_KEY).type,
                [validity],
                null_count,
                children=[*fields, *in_key],
            )
        )
    arrays += [column(i, planned) for i, planned in enumerate(plan.columns)]
    arrays += [made.array(rows) for made in plan.made]
    if plan.root is not None:
        arrays[0] = _of_partition(arrays[0])
    return pa.RecordBatch.from_arrays(arrays, schema=plan.schema)


def _of_partition(ops: pa.Array) -> pa.Array:
    """Return operations on a partition as those on its root: TRUNCATE leaves the root's others."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 10 MB, for those who have partitions

    if not pc.any(pc.equal(ops, "T")).as_py():
        return ops
    return pc.if_else(pc.equal(ops, "T"), EMPTIED, ops)


def _is_own(at: int, name: str, schema: pa.Schema) -> bool:
    """Say whether a field is the change's, or the last one, ``_partition``."""
    return at < len(CHANGE_FIELDS) or (name == PARTITION and at == len(schema) - 1)


def _number(options: dict[str, str], name: str, default: int, largest: int) -> int:
    text = options.pop(name, None)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= largest:
        raise InvalidOption(
            f'could not parse value "{text}" for parameter "{name}"',
            hint=f"Give a number from 1 to {largest}.",
            option=name,
        )
    return int(text)


def _choice(options: dict[str, str], name: str, default: str, other: str) -> bool:
    """Say whether *other* is chosen."""
    value = options.pop(name, default)
    if value not in {default, other}:
        raise InvalidOption(
            f'could not parse value "{value}" for parameter "{name}"',
            hint=f"Give {default} or {other}.",
            option=name,
        )
    return value == other
