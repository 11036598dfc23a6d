r"""What a table looks like in Arrow: the schema of its batches, made once a relation descriptor.

A batch has the change's own columns first (:data:`CHANGE_FIELDS`), then ``_old_key``, then the
table's live columns under their names. ``_old_key`` is a struct of the replica identity's columns
and is left out for a table without any.

======================================  =====================================================
PostgreSQL                              Arrow
======================================  =====================================================
boolean                                 bool
smallint, integer, bigint               int16, int32, int64
real, double precision                  float32, float64
text, varchar, char(n), json            utf8
bytea                                   binary
date                                    date32
time                                    time64[us]
timestamp, timestamptz                  timestamp[us], timestamp[us, UTC]
numeric(p, s), p ≤ 38 and 0 ≤ s ≤ p     decimal128(p, s)
a domain                                what its base type is
anything else                           utf8: what PostgreSQL prints
======================================  =====================================================

No value is changed to fit: one that its Arrow type cannot hold is an error, and the options
``numeric_as=text`` and ``temporal_as=text`` make all such columns utf8. With
``not_representable=mark`` it is null, and the message says so; see ``refused_values``.

Arrow's text and names are UTF-8, into which those of a database in another encoding are converted,
as the server does for a client. Bytes that are no characters, which a database in SQL_ASCII may
have, are ``\xff`` in names; in values they are an error, or the same with ``not_utf8=escape``.

A table's column that is named like one of the change's, in whatever case, is written with one
underscore more: ``_op`` as ``__op``, ``__op`` as ``___op``. With ``column_names=safe`` all but
letters, digits and underscores are underscores: ``first name`` is ``first_name``.

Virtual generated columns are left out: WAL does not have them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spillway._kernels.values.text.output import datum_text
from spillway.errors import DecodingError
from spillway.pg.encoding import readable
from spillway.pg.text_settings import TextSettings
from spillway.plugins.type_names import format_type_with_typmod, numeric_typmod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor, TypeDescriptor

#: I, U, D, T; where the change is in WAL; its transaction's commit record, that record's end, its
#: top-level xid; the change's number in the transaction, from 0; when it committed; the columns
#: that are null here because their TOAST value did not change and so is not in WAL.
CHANGE_FIELDS: Final = (
    pa.field("_op", pa.utf8(), nullable=False),
    pa.field("_lsn", pa.uint64(), nullable=False),
    pa.field("_commit_lsn", pa.uint64(), nullable=False),
    pa.field("_commit_end_lsn", pa.uint64(), nullable=False),
    pa.field("_xid", pa.uint32(), nullable=False),
    pa.field("_seq", pa.uint64(), nullable=False),
    pa.field("_commit_time", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("_unchanged_toast", pa.list_(pa.field("item", pa.utf8(), nullable=False))),
)
OLD_KEY: Final = "_old_key"
_RESERVED: Final = re.compile(
    "_+(?:" + "|".join([*(f.name[1:] for f in CHANGE_FIELDS), OLD_KEY[1:]]) + ")",
    # Most readers of tables don't tell names apart that differ in case only.
    re.IGNORECASE,
)

#: What not every reader of tables takes in a column's name.
_UNSAFE: Final = re.compile(r"\W")

#: PostgreSQL's built-in type oid → how a builder stores it, and as what
_DIRECT: Final[Mapping[int, tuple[str, pa.DataType]]] = {
    16: ("bool", pa.bool_()),
    17: ("binary", pa.binary()),
    20: ("int64", pa.int64()),
    21: ("int16", pa.int16()),
    23: ("int32", pa.int32()),
    25: ("text", pa.utf8()),
    114: ("text", pa.utf8()),
    700: ("int32", pa.float32()),
    701: ("int64", pa.float64()),
    1042: ("text", pa.utf8()),
    1043: ("text", pa.utf8()),
}
_TEMPORAL: Final[Mapping[int, tuple[str, pa.DataType]]] = {
    1082: ("date", pa.date32()),
    1083: ("time", pa.time64("us")),
    1114: ("timestamp", pa.timestamp("us")),
    1184: ("timestamp", pa.timestamp("us", tz="UTC")),
}
_NUMERIC: Final = 1700
_VARHDRSZ: Final = 4
_DECIMAL128_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one column is built; ``kind`` is a key of the kernel's KINDS."""

    column: ColumnDescriptor
    #: name in Arrow
    name: str
    kind: str
    type: pa.DataType
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How a table's batches are built."""

    descriptor: RelationDescriptor
    columns: tuple[ColumnPlan, ...]
    #: the fields of ``_old_key``
    key_columns: tuple[ColumnPlan, ...]
    schema: pa.Schema
    #: the schema as an IPC message: what every stream of this table begins with
    schema_message: bytes
    #: bytes of text that are not UTF-8 become ``\xff``; else they are an error
    not_utf8_escaped: bool = False
    #: a value without a form is null, and told of in the message's schema; else it is an error
    marks_refused: bool = False


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """Slot options that decide about types, and the version whose type names are written."""

    server_version_num: int
    numeric_as_text: bool = False
    temporal_as_text: bool = False
    not_utf8_escaped: bool = False
    marks_refused: bool = False
    #: columns have names that every reader of tables takes
    safe_names: bool = False
    #: every column is what PostgreSQL prints: for people, and for comparing with what they wrote
    all_as_text: bool = False
    #: how columns that are printed are printed; None: PostgreSQL's defaults
    settings: TextSettings | None = None


def plan_table(descriptor: RelationDescriptor, options: SchemaOptions) -> TablePlan:
    """Plan the batches of a table as of *descriptor*.

    Raises:
        DecodingError: the descriptor contradicts itself.
    """
    live = [c for c in descriptor.columns if not c.dropped and c.generated != "v"]
    names = _names(live, safe=options.safe_names)
    by_attnum = {
        column.attnum: _plan_column(column, names[column.attnum], descriptor.types, options)
        for column in live
    }
    columns = tuple(by_attnum.values())
    key_columns = tuple(by_attnum[n] for n in descriptor.identity_columns if n in by_attnum)

    def field(plan: ColumnPlan) -> pa.Field:
        # Never non-null in Arrow: a DELETE, a TRUNCATE and unchanged TOAST have nulls anywhere.
        metadata = _column_metadata(plan, descriptor.types, options)
        return pa.field(plan.name, plan.type, metadata={"spillway.column": json.dumps(metadata)})

    fields = [*CHANGE_FIELDS]
    if key_columns:
        fields.append(pa.field(OLD_KEY, pa.struct([pa.field(p.name, p.type) for p in key_columns])))
    fields += [field(plan) for plan in columns]
    relation = {
        "schema": readable(descriptor.schema),
        "table": readable(descriptor.name),
        "oid": descriptor.oid,
        "replica_identity": descriptor.replica_identity,
        "primary_key": [by_attnum[n].name for n in descriptor.primary_key if n in by_attnum],
        "identity_columns": [plan.name for plan in key_columns],
        # Dropped ones included: a table has another schema after ADD and DROP COLUMN than before
        # them.
        "attributes": len(descriptor.columns),
    }
    if descriptor.primary_key_deferrable:
        # Two rows may have one key until their transaction commits.
        relation["primary_key_deferrable"] = True
    schema = pa.schema(fields, metadata={"spillway.relation": json.dumps(relation)})
    message = schema.serialize().to_pybytes()
    return TablePlan(
        descriptor,
        columns,
        key_columns,
        schema,
        message,
        options.not_utf8_escaped,
        options.marks_refused,
    )


def escape_name(name: str) -> str:
    """Return a table column's name in Arrow: itself, unless it looks like one of the change's."""
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def _names(columns: Sequence[ColumnDescriptor], *, safe: bool) -> dict[int, str]:
    """Return the columns' names in Arrow, by their numbers.

    Where safe names would be one, in whatever case, the column that has it already keeps it, or
    else the first one; the others have their numbers behind it.
    """
    names = {column.attnum: readable(column.name) for column in columns}
    if safe:
        plain = {n: _UNSAFE.sub("_", name) for n, name in names.items()}
        taken = {name.lower() for n, name in plain.items() if name == names[n]}
        for number, name in plain.items():
            if name == names[number]:
                continue
            free = name
            while free.lower() in taken:
                free += f"_{number}"
            taken.add(free.lower())
            names[number] = free
    return {number: escape_name(name) for number, name in names.items()}


def _plan_column(
    column: ColumnDescriptor,
    name: str,
    types: Mapping[int, TypeDescriptor],
    options: SchemaOptions,
) -> ColumnPlan:
    if options.all_as_text:
        return ColumnPlan(column, name, "printed", pa.utf8())
    oid, typmod = base_type(column.type_oid, column.typmod, types)
    direct = _DIRECT.get(oid)
    if direct is None and not options.temporal_as_text:
        direct = _TEMPORAL.get(oid)
    if direct is not None:
        return ColumnPlan(column, name, *direct)
    if oid == _NUMERIC and typmod >= _VARHDRSZ and not options.numeric_as_text:
        precision, scale = numeric_typmod(typmod)
        if precision <= _DECIMAL128_DIGITS and 0 <= scale <= precision:
            return ColumnPlan(
                column, name, "decimal", pa.decimal128(precision, scale), precision, scale
            )
    return ColumnPlan(column, name, "printed", pa.utf8())


def base_type(oid: int, typmod: int, types: Mapping[int, TypeDescriptor]) -> tuple[int, int]:
    """Follow domains down to what they are over (getBaseTypeAndTypmod)."""
    seen: set[int] = set()
    while (descriptor := types.get(oid)) is not None and descriptor.kind == "d":
        if oid in seen:
            raise DecodingError(f"domain {descriptor.schema}.{descriptor.name} is over itself")
        seen.add(oid)
        oid, typmod = descriptor.base_oid, descriptor.base_typmod
    return oid, typmod


def _column_metadata(
    plan: ColumnPlan, types: Mapping[int, TypeDescriptor], options: SchemaOptions
) -> dict[str, object]:
    column = plan.column
    metadata: dict[str, object] = {
        "name": readable(column.name),
        "attnum": column.attnum,
        "type": readable(
            format_type_with_typmod(
                column.type_oid, column.typmod, types, options.server_version_num
            )
        ),
        "type_oid": column.type_oid,
        "typmod": column.typmod,
        "not_null": column.not_null,
    }
    base_oid, base_typmod = base_type(column.type_oid, column.typmod, types)
    if base_oid != column.type_oid:
        metadata |= {"base_type_oid": base_oid, "base_typmod": base_typmod}
    if (base := types.get(base_oid)) is not None and base.kind == "e":
        metadata["enum"] = True
    if column.missing is not None:
        metadata["missing"] = _missing_text(plan, column.missing, types, options)
    return metadata


def _missing_text(
    plan: ColumnPlan, missing: bytes, types: Mapping[int, TypeDescriptor], options: SchemaOptions
) -> str:
    """Print what rows show that were written before ADD COLUMN … DEFAULT.

    A printed column's as its values are; others' with PostgreSQL's defaults, which a reader can
    rely on.
    """
    plain = TextSettings(options.server_version_num)
    settings = (options.settings or plain) if plan.kind == "printed" else plain
    if plan.column.length == -1:
        # Out of an array, so never compressed or out of line. A short header is one byte, with its
        # lowest bit set.
        missing = missing[1:] if missing[:1] and missing[0] & 1 else missing[_VARHDRSZ:]
    encoding = (options.settings or plain).encoding
    text = datum_text(plan.column, types, settings, missing)
    return readable(text.decode(encoding, "surrogateescape"))
