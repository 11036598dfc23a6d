"""Iceberg's schemas and the lake's: types, field ids, and what a schema becomes when a source's
table changes.

A column of an Iceberg table is its field id, which is never given twice: what was written under an
id is found under it, whatever the column is called since. So columns that come, go, get another
name or a wider type of the same kind change the table's metadata and no file. Iceberg knows
fewer types than the lake, and fewer ways to widen one:

==========================  =========================================================
in the lake                 in Iceberg
==========================  =========================================================
smallint, int               int; which of the two is noted in the table's properties
bigint, float, double       long, float, double
decimal(p, s)               decimal(p, s)
timestamp                   timestamptz
timestamp_ntz               timestamp
string, binary, boolean     the same
date                        date
array, struct               list, struct
==========================  =========================================================

:func:`widest` is where history's columns for several types begin: int → long, float → double and
decimals of more digits before the point stay one column; int → double, int → decimal, and decimals
of another scale don't.

The property :data:`NOTES` says of field ids what Iceberg has no place for: the attribute number at
the source, and smallint. It changes in the commit that changes the schema.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField
from pyspark.sql.types import StructType as SparkStruct

from spillway.errors import LakeTableConflict
from spillway.lake.shape import type_changes as schema_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyiceberg.table import Transaction
    from pyiceberg.table.update.schema import UpdateSchema

#: A table's property: JSON, by field id.
NOTES: Final = "spillway.fields"
#: Metadata of a field of Spark's, by which it reads columns of Parquet files by id.
SPARK_FIELD_ID: Final = "parquet.field.id"
_ARROW_FIELD_ID: Final = b"PARQUET:field_id"
_ATTNUM: Final = "spillway.attnum"
_SMALL: Final = "smallint"

_PRIMITIVES: Final = {
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.bool_(): BooleanType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
    pa.timestamp("us"): TimestampType(),
}
_ARROW: Final = {
    iceberg: arrow for arrow, iceberg in _PRIMITIVES.items() if arrow != pa.int16()
}  # fmt: skip

_PROMOTIONS: Final = {(IntegerType, LongType), (FloatType, DoubleType)}

#: What is noted of a field id: ``attnum``, ``type``.
Notes = dict[int, dict[str, Any]]


def iceberg_type(type_: pa.DataType, number: Callable[[], int] = lambda: 0) -> IcebergType:
    """Return Iceberg's type for one of the lake's; *number* gives ids to the fields in it."""
    types = pa.types
    if types.is_decimal(type_):
        return DecimalType(type_.precision, type_.scale)
    if types.is_list(type_):
        own = number()
        return ListType(own, iceberg_type(type_.value_type, number), element_required=False)
    if types.is_struct(type_):
        ids = [number() for _ in type_]
        return StructType(
            *(
                NestedField(own, field.name, iceberg_type(field.type, number), required=False)
                for own, field in zip(ids, type_, strict=True)
            )
        )
    return _PRIMITIVES[type_]


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return a new table's schema; ids are counted from 1."""
    last = 0

    def number() -> int:
        nonlocal last
        last += 1
        return last

    ids = [number() for _ in schema]
    return Schema(
        *(
            NestedField(own, field.name, iceberg_type(field.type, number), required=False)
            for own, field in zip(ids, schema, strict=True)
        )
    )


def widest(stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
    """Return the type that a stored column becomes to hold *incoming*'s values, too; None: it
    can't.
    """
    wide = schema_types.widest(stored, incoming)
    if wide is None or wide == stored:
        return wide
    return wide if _promotes(iceberg_type(stored), iceberg_type(wide)) else None


def _promotes(one: IcebergType, other: IcebergType) -> bool:
    """Say whether files with values of the one type are read as the other, by Iceberg's rules."""
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        return one.scale == other.scale and one.precision <= other.precision
    return one == other or (type(one), type(other)) in _PROMOTIONS


def file_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of the table's data files: each field has its id, those in lists and
    structs, too.
    """
    return pa.schema([_file_field(field) for field in schema.fields])


def _file_field(field: NestedField) -> pa.Field:
    metadata = {_ARROW_FIELD_ID: str(field.field_id).encode()}
    return pa.field(field.name, _file_type(field.field_type), metadata=metadata)


def _file_type(type_: IcebergType) -> pa.DataType:
    if isinstance(type_, StructType):
        return pa.struct([_file_field(field) for field in type_.fields])
    if isinstance(type_, ListType):
        return pa.list_(_file_field(type_.element_field))
    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    known = _ARROW.get(type_)  # type: ignore[call-overload]
    if known is None:
        raise LakeTableConflict(
            f"a column of type {type_} is not of this lake's making",
            hint="Another engine added it. Drop it there, or move the table away and load it "
            "afresh.",
        )
    return known


def lake_schema(schema: Schema, notes: Notes) -> pa.Schema:
    """Return the table's schema in the lake's types."""
    return pa.schema([_lake_field(field, notes) for field in schema.fields])


def _lake_field(field: NestedField, notes: Notes) -> pa.Field:
    return pa.field(field.name, _lake_type(field.field_id, field.field_type, notes))


def _lake_type(own: int, type_: IcebergType, notes: Notes) -> pa.DataType:
    if isinstance(type_, StructType):
        return pa.struct([_lake_field(field, notes) for field in type_.fields])
    if isinstance(type_, ListType):
        element = type_.element_field
        inner = _lake_type(element.field_id, element.field_type, notes)
        return pa.list_(pa.field("element", inner))
    if isinstance(type_, IntegerType) and notes.get(own, {}).get("type") == _SMALL:
        return pa.int16()
    return _file_type(type_)


def spark_schema(schema: Schema, notes: Notes) -> SparkStruct:
    """Return Spark's schema for reading the table's files by field ids; attribute numbers are in
    the metadata.
    """
    spark = from_arrow_schema(lake_schema(schema, notes), prefer_timestamp_ntz=True)
    fields = []
    for field, ours in zip(spark.fields, schema.fields, strict=True):
        numbered = _numbered(field, ours)
        number = notes.get(ours.field_id, {}).get("attnum")
        if number is not None:
            numbered.metadata[_ATTNUM] = number
        fields.append(numbered)
    return SparkStruct(fields)


def _numbered(field: StructField, ours: NestedField) -> StructField:
    type_: Any = field.dataType
    if isinstance(ours.field_type, StructType):
        inner = zip(type_.fields, ours.field_type.fields, strict=True)
        type_ = SparkStruct([_numbered(each, its) for each, its in inner])
    return StructField(field.name, type_, True, {SPARK_FIELD_ID: ours.field_id})


def attnum(field: StructField) -> int | None:
    """Return a column's attribute number at the source, as far as it is known."""
    number: int | None = (field.metadata or {}).get(_ATTNUM)
    return number


def parsed_notes(properties: Mapping[str, str]) -> Notes:
    """Return what a table's properties say of its fields."""
    stored = json.loads(properties.get(NOTES, "{}"))
    return {int(own): dict(note) for own, note in stored.items()}


def noted(schema: Schema, wanted: SparkStruct, lake: pa.Schema, notes: Notes) -> str:
    """Return the property for a table that has *schema* now.

    Args:
        schema: the table's.
        wanted: columns that were just made or seen to, by name; their metadata has the attribute
            numbers.
        lake: their lake types.
        notes: what was noted of the others.
    """
    kept = {own: note for own, note in notes.items() if own in schema.field_ids}
    for field in schema.fields:
        if field.name in wanted.names:
            small = dict(_small(field, lake.field(field.name).type))
            for own, is_small in small.items():
                kept.setdefault(own, {}).pop("type", None)
                if is_small:
                    kept[own]["type"] = _SMALL
            number = attnum(wanted[field.name])
            if number is not None:
                kept.setdefault(field.field_id, {})["attnum"] = number
    return json.dumps({str(own): note for own, note in sorted(kept.items()) if note})


def _small(field: NestedField, type_: pa.DataType) -> Iterator[tuple[int, bool]]:
    ours = field.field_type
    if isinstance(ours, StructType):
        by_name = {inner.name: inner for inner in ours.fields}
        for inner in type_:
            yield from _small(by_name[inner.name], inner.type)
    elif isinstance(ours, ListType):
        yield from _small(ours.element_field, type_.value_type)
    else:
        yield field.field_id, type_ == pa.int16()


def add_columns(update: UpdateSchema, stored: Schema, incoming: pa.Schema) -> bool:
    """Stage what a history table needs to hold *incoming*, which has been merged with it; return
    whether that is anything.
    """
    return _added(update, StructType(*stored.fields), list(incoming), ())


def _added(
    update: UpdateSchema, stored: StructType, incoming: Iterable[pa.Field], above: tuple[str, ...]
) -> bool:
    changes = False
    by_name = {field.name: field for field in stored.fields}
    for field in incoming:
        path = (*above, field.name)
        there = by_name.get(field.name)
        wanted = iceberg_type(field.type)
        if there is None:
            update.add_column(path, wanted)
            changes = True
        elif isinstance(there.field_type, StructType):
            changes |= _added(update, there.field_type, list(field.type), path)
        elif isinstance(there.field_type, PrimitiveType) and there.field_type != wanted:
            update.update_column(path, wanted)
            changes = True
    return changes


def follow_columns(transaction: Transaction, wanted: pa.Schema, sources: Mapping[str, str]) -> bool:
    """Stage the columns of a current table in *transaction*; return whether its files have them as
    they are, all but what they lack.

    A column whose type can't be promoted is another one for Iceberg: the old one goes, with its id.

    Args:
        transaction: the table's.
        wanted: its columns to be.
        sources: which stored column each of them is; those that aren't in it are new.
    """
    by_name = {field.name: field for field in transaction.table_metadata.schema().fields}
    kept: dict[str, pa.Field] = {}
    for field in wanted:
        source = by_name.get(sources.get(field.name, ""))
        if source is not None and _promotes_all(source.field_type, iceberg_type(field.type)):
            kept[source.name] = field
    # Two steps of one commit: a name that one column leaves is another one's only then.
    with transaction.update_schema() as update:
        for name in by_name:
            if name not in kept:
                update.delete_column((name,))
        for name, field in kept.items():
            type_ = iceberg_type(field.type)
            if isinstance(type_, PrimitiveType) and by_name[name].field_type != type_:
                update.update_column((name,), type_)
            if field.name != name:
                update.rename_column((name,), field.name)
    carried = {field.name for field in kept.values()}
    with transaction.update_schema() as update:
        for field in wanted:
            if field.name not in carried:
                update.add_column((field.name,), iceberg_type(field.type))
    return all(field.name in carried or field.name not in sources for field in wanted)


def _promotes_all(stored: IcebergType, wanted: IcebergType) -> bool:
    """Say whether files of the one type are read as the other; of lists and structs: they are the
    same but for ids.
    """
    return _same(stored, wanted) or _promotes(stored, wanted)


def _same(one: IcebergType, other: IcebergType) -> bool:
    if isinstance(one, ListType) and isinstance(other, ListType):
        return _same(one.element_type, other.element_type)
    if isinstance(one, StructType) and isinstance(other, StructType):
        return len(one.fields) == len(other.fields) and all(
            a.name == b.name and _same(a.field_type, b.field_type)
            for a, b in zip(one.fields, other.fields, strict=True)
        )
    return one == other
