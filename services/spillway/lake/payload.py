"""Messages of the ``arrow`` plugin: what is in one, and its columns as lake tables can hold them.

A message is an Arrow IPC stream: a schema and one batch of changes of one table. The columns that begin with an
underscore are the plugin's (:data:`CHANGE_COLUMNS`), then come the table's own under their names. The schema's
metadata says which table it is and what identifies its rows.

Lake types are what Spark, Delta Lake and Parquet agree on, which is less than Arrow has:

====================================  ====================================================================
Arrow                                 in the lake
====================================  ====================================================================
uint64 (the LSNs, ``_seq``)           bigint: an LSN is a byte position and stays below 2^63 for ever
uint8, uint16, uint32                 smallint, int, bigint
decimal of more than 38 digits        string, PostgreSQL's text: no digit is lost
time of day, duration, interval       string
dictionaries, large and view types    their plain forms
timestamps                            microseconds; with a zone: instants in UTC; without: ``timestamp_ntz``
a struct without fields               left out: Parquet can't store it
====================================  ====================================================================

Everything here works on whole batches; nothing is done per row in Python.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spillway.errors import LakeError, LakeSchemaConflict

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

_MAX_DECIMAL_DIGITS: Final = 38


def _escaped(identifier: str) -> str:
    """Escape all but letters, digits and inner underscores; a dot, too: it stands between schema and table."""
    return re.sub(
        r"[^\w$-]|^_", lambda match: "".join(f"~{b:02X}" for b in match[0].encode()), identifier
    )


def table_of(directory: str) -> tuple[str, str]:
    """Return schema and table of a lake table's directory; see :attr:`Relation.directory`."""
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

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def directory(self) -> str:
        """The lake tables' directory name: the name itself, what file systems or Spark mind written ``~XX``."""
        return f"{_escaped(self.schema)}.{_escaped(self.table)}"


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
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(
            f"a message's schema does not say which relation it is of: {error!r}",
            hint="The slot must use the plugin `arrow` of this release or a later one.",
        ) from error


def fingerprint(schema: pa.Schema) -> str:
    """Return a short text that is equal for equal schemas, metadata included."""
    return hashlib.blake2b(schema.serialize(), digest_size=12).hexdigest()


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
    """Return a message's schema as lake tables hold it: lake types, all columns nullable, no metadata.

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
                hint="Spark and Delta Lake don't keep such names apart: rename one, or leave the table out (--table).",
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


def merge_schemas(stored: pa.Schema, incoming: pa.Schema, relation: str) -> pa.Schema:
    """Return *stored* with the columns that only *incoming* has: the policy "evolve".

    Columns that *incoming* lacks were dropped at the source and stay, null from then on.

    Raises:
        LakeSchemaConflict: a column's type is another one than stored.
    """
    fields = list(stored)
    conflicts = []
    for field in incoming:
        at = stored.get_field_index(field.name)
        if at < 0:
            fields.append(field)
            continue
        merged = _merge_types(stored.field(at).type, field.type)
        if merged is None:
            conflicts.append((field, stored.field(at).type))
        else:
            fields[at] = pa.field(field.name, merged)
    if conflicts:
        # The last: a key's column is in conflict in the old key, too, which comes first.
        field, before = conflicts[-1]
        raise LakeSchemaConflict(
            f"column {field.name!r} of {relation} is {field.type} now, its lake table has {before}",
            hint="Lake tables follow added and dropped columns only. Move the table's history and current away; the job "
            "then begins new ones with the new type, which have what changes from then on.",
            relation=relation,
            column=field.name,
        )
    return pa.schema(fields)


def _merge_types(stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
    if stored == incoming:
        return stored
    if not (pa.types.is_struct(stored) and pa.types.is_struct(incoming)):
        return None
    fields = {f.name: f.type for f in stored}
    for field in incoming:
        merged = _merge_types(fields.get(field.name, field.type), field.type)
        if merged is None:
            return None
        fields[field.name] = merged
    return pa.struct([pa.field(name, type_) for name, type_ in fields.items()])


def conform(batch: pa.RecordBatch, target: pa.Schema, from_lsn: int = 0) -> pa.RecordBatch:
    """Return *batch* with exactly *target*'s columns and types; a column that it lacks is null.

    Args:
        batch: a message's batch.
        target: a lake schema, or Spark's Arrow form of it.
        from_lsn: rows whose commit record starts before this are left out.
    """
    if from_lsn and batch.num_rows:
        commit_lsns = batch.column("_commit_lsn")
        bound = pa.scalar(from_lsn, commit_lsns.type)
        # Rows come in commit order: mostly none is before the bound, and nothing is copied.
        if commit_lsns[0].as_py() < from_lsn:
            batch = batch.filter(pc.greater_equal(commit_lsns, bound))
    schema = batch.schema
    columns = []
    for field in target:
        at = schema.get_field_index(field.name)
        if at >= 0:
            columns.append(_cast(batch.column(at), field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast as :func:`lake_type` promised, and structs by their fields' names."""
    if array.type == type_:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _cast(array.storage, type_)
    if pa.types.is_struct(array.type) and pa.types.is_struct(type_):
        children = []
        for field in type_:
            at = array.type.get_field_index(field.name)
            children.append(
                _cast(array.field(at), field.type) if at >= 0 else pa.nulls(len(array), field.type)
            )
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_time(array.type) and pa.types.is_string(type_):
        # As PostgreSQL prints it: no zeros at the end of a fraction.
        return pc.replace_substring_regex(array.cast(type_), r"\.?0+$", "")
    return array.cast(type_)
