"""Messages of the ``arrow`` plugin: what is in one, and its columns as lake tables can hold them.

A message is an Arrow IPC stream: a schema and one batch of changes of one table. The columns that
begin with an underscore are the plugin's (:data:`CHANGE_COLUMNS`), then come the table's own under
their names. The schema's metadata says which table it is and what identifies its rows.

Lake types are what Spark, Delta Lake and Parquet agree on, which is less than Arrow has:

====================================  ==============================================================
Arrow                                 in the lake
====================================  ==============================================================
uint64 (the LSNs, ``_seq``)           bigint: an LSN is a byte position and stays below 2^63 for
                                      ever
uint8, uint16, uint32                 smallint, int, bigint
decimal of more than 38 digits        string, PostgreSQL's text: no digit is lost
time of day, duration, interval       string
dictionaries, large and view types    their plain forms
timestamps                            microseconds; with a zone: instants in UTC; without:
                                      ``timestamp_ntz``
a struct without fields               left out: Parquet can't store it
====================================  ==============================================================

Everything here works on whole batches; nothing is done per row in Python.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spillway.errors import LakeError, LakeSchemaConflict
from spillway.lake.shape.type_changes import type_token, widest
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The plugin's columns, as the lake holds them; every history table begins with them.
CHANGE_COLUMNS: Final = pa.schema(
    [
        pa.field("_op", pa.string()),
        pa.field("_lsn", pa.int64()),
        pa.field("_commit_lsn", pa.int64()),
        pa.field("_commit_end_lsn", pa.int64()),
        pa.field("_xid", pa.int64()),
        pa.field("_seq", pa.int64()),
        pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
        pa.field("_unchanged_toast", pa.list_(pa.field("element", pa.string()))),
    ]
)
#: A struct of the identity columns' old values; absent for a table that has none.
OLD_KEY: Final = "_old_key"

#: A message each; the row that closes a partition has only the range.
ENVELOPE: Final = pa.schema(
    [
        pa.field("relation", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("arrow_schema", pa.binary()),
        pa.field("changes", pa.int64()),
        # where its first and its last change stand
        pa.field("first_commit_lsn", pa.int64()),
        pa.field("first_seq", pa.int64()),
        pa.field("last_commit_lsn", pa.int64()),
        pa.field("last_seq", pa.int64()),
        # of these two, in microseconds since the epoch: a slot whose transactions say no time has 0
        pa.field("first_commit_time", pa.int64()),
        pa.field("last_commit_time", pa.int64()),
        # whether any of the changes is a TRUNCATE, or leaves a TOAST value out: what a consumer
        # must look for then
        pa.field("special", pa.bool_()),
        pa.field("payload", pa.binary()),
        pa.field("range_start", pa.int64()),
        pa.field("range_end", pa.int64()),
    ]
)

_MAX_DECIMAL_DIGITS: Final = 38


def _escaped(identifier: str) -> str:
    """Escape all but letters, digits and inner underscores; a dot, too: it stands between schema
    and table.
    """
    return re.sub(
        r"[^\w$-]|^_", lambda match: "".join(f"~{b:02X}" for b in match[0].encode()), identifier
    )


def directory_of(schema: str, table: str) -> str:
    """Return the lake tables' directory name: the table's own, what file systems or Spark mind
    written ``~XX``.
    """
    return f"{_escaped(schema)}.{_escaped(table)}"


def directory_named(table: str) -> str:
    """Return the directory's name of ``schema.table``."""
    schema, _, name = table.partition(".")
    return directory_of(schema, name)


def table_of(directory: str) -> tuple[str, str]:
    """Return schema and table of a lake table's directory; see :func:`directory_of`."""
    schema, _, table = directory.partition(".")
    return _unescaped(schema), _unescaped(table)


def _unescaped(name: str) -> str:
    return re.sub(
        "(?:~[0-9A-F]{2})+", lambda match: bytes.fromhex(match[0].replace("~", "")).decode(), name
    )


@dataclass(frozen=True, slots=True)
class Relation:
    """The table that a message is of, as of that message."""

    schema: str
    table: str
    oid: int
    primary_key: tuple[str, ...]
    identity_columns: tuple[str, ...]
    #: pg_class.relreplident: d default, i index, f full, n nothing; '' when the message doesn't say
    replica_identity: str = ""
    #: whether two rows may have one primary key until their transaction commits
    primary_key_deferrable: bool = False
    #: columns of the key that are left out or masked so that they tell no rows
    masked_key: tuple[str, ...] = ()
    #: of a partitioned table that is one: the partition whose changes don't say which row they are
    #: of, and whether the message is of no row
    partition_without_key: str = ""
    without_rows: bool = False

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def logged_key(self) -> tuple[str, ...]:
        """The primary key, if the replica identity logs it of rows that are gone; else nothing."""
        logged = set(self.identity_columns).issuperset(self.primary_key)
        return self.primary_key if logged else ()

    @property
    def directory(self) -> str:
        """See :func:`directory_of`."""
        return directory_of(self.schema, self.table)


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded payload: the relation and its changes, zero-copy on the payload's bytes."""

    relation: Relation
    batch: pa.RecordBatch


def parse_message(payload: bytes | pa.Buffer) -> Message:
    """Parse one message.

    Raises:
        LakeError: the payload is not an Arrow IPC stream with one batch and the plugin's metadata.
    """
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
            relation = relation_of(reader.schema)
    except (pa.ArrowInvalid, StopIteration) as error:
        raise LakeError(
            f"a message is not an Arrow IPC stream with a batch: {error}",
            hint="The slot must use the plugin `arrow`: its messages are what the lake reads.",
        ) from error
    return Message(relation, batch)


def relation_of(schema: pa.Schema) -> Relation:
    """Read the metadata of a message's schema.

    Raises:
        LakeError: it has none of the plugin's.
    """
    metadata = schema.metadata or {}
    try:
        described: dict[str, Any] = json.loads(metadata[b"spillway.relation"])
        return Relation(
            schema=described["schema"],
            table=described["table"],
            oid=int(described["oid"]),
            primary_key=tuple(described.get("primary_key") or ()),
            identity_columns=tuple(described.get("identity_columns") or ()),
            replica_identity=described.get("replica_identity") or "",
            primary_key_deferrable=bool(described.get("primary_key_deferrable")),
            masked_key=tuple(described.get("masked_key") or ()),
            partition_without_key=described.get("partition_without_key") or "",
            without_rows=bool(described.get("without_rows")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(
            f"a message's schema does not say which relation it is of: {error!r}",
            hint="The slot must use the plugin `arrow` of this release or a later one.",
        ) from error


def fingerprint(schema: pa.Schema) -> str:
    """Return a short text that is equal for equal schemas, metadata included."""
    return hashlib.blake2b(schema.serialize(), digest_size=12).hexdigest()


@lru_cache(maxsize=1024)
def lake_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the lake's type for an Arrow type, or None for one that is left out."""
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return lake_type(type_.storage_type)
    if types.is_dictionary(type_):
        return lake_type(type_.value_type)
    for is_type, becomes in _PLAIN:
        if is_type(type_):
            return becomes
    if types.is_decimal(type_):
        return (
            pa.string()
            if type_.precision > _MAX_DECIMAL_DIGITS
            else pa.decimal128(type_.precision, type_.scale)
        )
    if types.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC" if type_.tz else None)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        element = lake_type(type_.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if types.is_struct(type_):
        fields = [(f.name, lake_type(f.type)) for f in type_]
        kept = [pa.field(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(kept) if kept else None
    return type_


#: Checked in this order; what is not listed is handled by lake_type itself or stays as it is.
_PLAIN: Final = (
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.int64()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_time, pa.string()),
    (pa.types.is_duration, pa.string()),
    (pa.types.is_interval, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_null, pa.string()),
)


def lake_schema(schema: pa.Schema) -> pa.Schema:
    """Return a message's schema as lake tables hold it: lake types, all columns nullable, no
    metadata.

    Raises:
        LakeSchemaConflict: two columns differ in case only, which no lake format keeps apart.
    """
    fields = []
    seen: dict[str, str] = {}
    for field in schema:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise LakeSchemaConflict(
                f"columns {other!r} and {field.name!r} differ in case only",
                hint="Spark and Delta Lake don't keep such names apart: rename one, or leave the "
                "table out (--table).",
                relation=relation_of(schema).name,
            )
        type_ = lake_type(field.type)
        if type_ is not None:
            fields.append(pa.field(field.name, type_))
    return pa.schema(fields)


def table_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of the table's own columns, in order."""
    own = set(CHANGE_COLUMNS.names) | {OLD_KEY}
    return tuple(name for name in schema.names if name not in own)


#: What a stored column becomes to hold another type's values, too:
#: :func:`spillway.lake.shape.type_changes.widest`, or less.
Widest = Callable[[pa.DataType, pa.DataType], pa.DataType | None]


def merge_schemas(
    stored: pa.Schema, incoming: pa.Schema, relation: str, becomes: Widest = widest
) -> pa.Schema:
    """Return *stored* with what it takes to hold *incoming*'s rows, too.

    A column that *stored* lacks is added. One of another type makes the stored one wider where that
    loses nothing (*becomes*, the table format's), else it gets a column of its own beside it
    (:func:`column_for`). Columns that *incoming* lacks were dropped at the source and stay, null
    from then on.

    Raises:
        LakeSchemaConflict: two columns of *incoming* would be one.
    """
    return pa.schema(_merged_fields(list(stored), list(incoming), relation, becomes))


def _merged_fields(
    stored: list[pa.Field], incoming: list[pa.Field], relation: str, becomes: Widest
) -> list[pa.Field]:
    fields = {field.name: field.type for field in stored}
    taken: dict[str, str] = {}
    for field in incoming:
        name = column_for(field.name, field.type, fields, becomes)
        if taken.setdefault(name, field.name) != field.name:
            raise LakeSchemaConflict(
                f"columns {taken[name]!r} and {field.name!r} of {relation} would be one in its "
                f"history, {name!r}",
                hint="Rename one of them at the source.",
                relation=relation,
                column=field.name,
            )
        fields[name] = _merged_type(fields.get(name, field.type), field.type, relation, becomes)
    return [pa.field(name, type_) for name, type_ in fields.items()]


def _merged_type(
    stored: pa.DataType, incoming: pa.DataType, relation: str, becomes: Widest
) -> pa.DataType:
    if pa.types.is_struct(stored) and pa.types.is_struct(incoming):
        return pa.struct(_merged_fields(list(stored), list(incoming), relation, becomes))
    return becomes(stored, incoming) or stored


def _held(stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
    """Be :data:`Widest` for columns that have become what they are to be."""
    return stored if widest(stored, incoming) == stored else None


def column_for(
    name: str,
    type_: pa.DataType,
    stored: Mapping[str, pa.DataType],
    becomes: Widest = _held,
) -> str:
    """Return the column of *stored* that holds values of column *name* while it has the lake's type
    *type_*.

    Mostly the name itself. History never rewrites what it has, so where a column became one of
    another kind (text → int) its values are in ``<name>__<type>`` from then on. Of a column that
    isn't in *stored* yet, the name that it gets.
    """
    before = stored.get(name)
    if before is None or name in CHANGE_COLUMNS.names:
        return name
    if pa.types.is_struct(before) and pa.types.is_struct(type_):
        return name
    return name if becomes(before, type_) is not None else f"{name}__{type_token(type_)}"


def conform(
    batch: pa.RecordBatch,
    target: pa.Schema,
    from_lsn: int = 0,
    upto_lsn: int | None = None,
    *,
    relation: str = "",
) -> pa.RecordBatch:
    """Return *batch* with exactly *target*'s columns and types; a column that it lacks is null.

    Args:
        batch: a message's batch.
        target: a lake schema, or Spark's Arrow form of it; where it has columns for several types
            of one (:func:`column_for`) the batch's values are in that of their type.
        from_lsn: rows whose commit record starts before this are left out.
        upto_lsn: rows whose commit record starts there or later are left out.
        relation: the table's name, for errors.

    Raises:
        LakeError: a value is none of the target's type.
    """
    batch = between(batch, from_lsn, upto_lsn)
    try:
        arrays = _arrays(batch.schema, batch.columns, list(target), batch.num_rows)
    except _NotOfType as error:
        lsn = Lsn(batch.column("_commit_lsn")[error.row].as_py())
        raise LakeError(
            f"a value of column {error.column!r} of {relation or 'a table'}, in the transaction "
            f"that commits at {lsn}, is no {error.type}: {error}",
            relation=relation,
            column=error.column,
            lsn=str(lsn),
        ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=target)


class _NotOfType(Exception):
    """A column has a value that its type in the lake has not."""

    def __init__(self, error: pa.ArrowException, column: str, type_: pa.DataType, row: int) -> None:
        super().__init__(str(error))
        self.column = column
        self.type = type_
        self.row = row


def _fitted(array: pa.Array, field: pa.Field) -> pa.Array:
    """Cast a column as :func:`_cast` does.

    Raises:
        _NotOfType: it has a value that can't be.
    """
    try:
        return _cast(array, field.type)
    except pa.ArrowException as error:
        # The first row that fails, by halves.
        good, bad = 0, len(array)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                _cast(array.slice(0, middle), field.type)
                good = middle
            except pa.ArrowException:
                bad = middle
        raise _NotOfType(error, field.name, field.type, good) from error


def between(batch: pa.RecordBatch, from_lsn: int, upto_lsn: int | None = None) -> pa.RecordBatch:
    """Return the rows of *batch*, a message's, whose commit record starts in [*from_lsn*,
    *upto_lsn*).
    """
    if not batch.num_rows or not (from_lsn or upto_lsn is not None):
        return batch
    # Rows come in commit order: mostly none is beyond the bounds, and nothing is copied.
    commit_lsns = batch.column("_commit_lsn")
    if from_lsn and commit_lsns[0].as_py() < from_lsn:
        batch = batch.filter(pc.greater_equal(commit_lsns, pa.scalar(from_lsn, commit_lsns.type)))
        commit_lsns = batch.column("_commit_lsn")
    if upto_lsn is not None and batch.num_rows and commit_lsns[-1].as_py() >= upto_lsn:
        batch = batch.filter(pc.less(commit_lsns, pa.scalar(upto_lsn, commit_lsns.type)))
    return batch


def _arrays(
    fields: Iterable[pa.Field], arrays: Sequence[pa.Array], target: Sequence[pa.Field], rows: int
) -> list[pa.Array]:
    """Return an array for each field of *target*, out of those of *fields* that it holds."""
    types = {field.name: field.type for field in target}
    sources = {}
    for field, array in zip(fields, arrays, strict=True):
        type_ = lake_type(field.type)
        if type_ is not None:
            name = column_for(field.name, type_, types)
            # A reader that gave a schema of its own gets its types.
            sources[name if name in types else field.name] = array
    return [
        _fitted(sources[field.name], field) if field.name in sources else pa.nulls(rows, field.type)
        for field in target
    ]


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast as :func:`lake_type` promised, and structs by their fields' names."""
    if array.type == type_:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _cast(array.storage, type_)
    if pa.types.is_struct(array.type) and pa.types.is_struct(type_):
        inner = [array.field(at) for at in range(array.type.num_fields)]
        children = _arrays(list(array.type), inner, list(type_), len(array))
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_time(array.type) and pa.types.is_string(type_):
        # As PostgreSQL prints it: no zeros at the end of a fraction.
        return pc.replace_substring_regex(array.cast(type_), r"\.?0+$", "")
    return array.cast(type_)
