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

**A partitioned table as one.** With ``partition_root`` rows of its partitions are rows of the
topmost table that the option names: its name, its columns by name with its attribute numbers, its
primary key; and behind them ``_partition``, the oid of the partition (attribute number -6, as
tableoid has it). A plan of a partition so has its own places of columns, and the root's schema,
which is the same for all partitions. Rows are told by the root's primary key if the partition's
replica identity has it; without a primary key by the whole row, where the identity is FULL: a key
of one partition does not tell rows of two.

**Masked columns**: see ``masks``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spillway._kernels.values.text.output import datum_text
from spillway.errors import DecodingError
from spillway.pg.encoding import readable
from spillway.pg.text_settings import TextSettings
from spillway.plugins.masks import hashed, hashed_bytes
from spillway.plugins.type_names import format_type_with_typmod, numeric_typmod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor, TypeDescriptor
    from spillway.declarations.masks import Mask
    from spillway.plugins.masks import Masks

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
_OID: Final = 26
#: FirstLowInvalidHeapAttributeNumber's neighbour, tableoid: attribute number of ``_partition``
_TABLEOID: Final = -6
#: what names all partitioned tables in ``partition_root``
ALL_ROOTS: Final = "all"
PARTITION: Final = "_partition"
_LIKE_PARTITION: Final = re.compile("_+partition", re.IGNORECASE)
#: what types of masked columns are called, so that no value of theirs is taken for the source's
_MASKED: Final = "masked"
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
class MadeColumn:
    """A column that has one value in all rows, and is not built of them."""

    name: str
    type: pa.DataType
    value: str | int | None
    #: whether the old key has it, too
    in_key: bool = False

    def array(self, length: int) -> pa.Array:
        """Return it for so many rows."""
        return pa.repeat(pa.scalar(self.value, self.type), length)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How a table's batches are built."""

    #: the table that rows are read of
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
    #: behind ``columns``
    made: tuple[MadeColumn, ...] = ()
    #: names of those columns that are hashed when they are built, and with what
    hashed: frozenset[str] = frozenset()
    secret: bytes = field(default=b"", repr=False)
    #: the table under whose name rows go out, if it is another one: the root of a partition
    root: RelationDescriptor | None = None

    @property
    def read_name(self) -> str:
        """Schema and name of the table that rows are read of, as they are shown."""
        return _table_name(self.descriptor)

    def finished(self, column: ColumnPlan, values: pa.Array) -> pa.Array:
        """Return a built column as it is shown."""
        return hashed(values, self.secret) if column.name in self.hashed else values


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
    #: partitioned tables that are one, by schema.table, or :data:`ALL_ROOTS`
    partition_roots: frozenset[str] = frozenset()
    masks: Masks = field(default_factory=dict)
    mask_secret: bytes = field(default=b"", repr=False)

    def root_of(
        self, table: RelationDescriptor, above: Sequence[RelationDescriptor] | None = None
    ) -> RelationDescriptor | None:
        """Return the table under whose name rows of *table* go out; None: its own.

        *above* are the partitioned tables that it is a partition of, its parent first; those of its
        descriptor unless they are given.
        """
        if not self.partition_roots:
            return None
        chain = (table, *(table.ancestors if above is None else above))
        for each in reversed(chain):
            if each.kind == "p" and (
                ALL_ROOTS in self.partition_roots or _table_name(each) in self.partition_roots
            ):
                return each
        return None


def plan_table(descriptor: RelationDescriptor, options: SchemaOptions) -> TablePlan:
    """Plan the batches of a table as of *descriptor*.

    Raises:
        DecodingError: the descriptor contradicts itself.
    """
    return _plan(descriptor, options.root_of(descriptor), options)


def plan_partition(
    descriptor: RelationDescriptor, root: RelationDescriptor, options: SchemaOptions
) -> TablePlan:
    """Plan the batches of a partition of *root*, whose descriptor says nothing of that.

    Raises:
        DecodingError: the descriptor contradicts itself.
    """
    return _plan(descriptor, root, options)


def _plan(
    descriptor: RelationDescriptor, root: RelationDescriptor | None, options: SchemaOptions
) -> TablePlan:
    shown = root or descriptor
    masks = options.masks.get(_table_name(shown), {})
    live = [c for c in shown.columns if not c.dropped and c.generated != "v"]
    names = _names(live, safe=options.safe_names)
    if root is not None:
        names = {n: f"_{x}" if _LIKE_PARTITION.fullmatch(x) else x for n, x in names.items()}
    columns: dict[int, ColumnPlan] = {}
    made: list[MadeColumn] = []
    made_of: dict[int, tuple[ColumnDescriptor, MadeColumn]] = {}
    masked: dict[int, Mask] = {}
    for column, own in _own_columns(descriptor, live):
        attnum, name = column.attnum, names[column.attnum]
        mask = masks.get(readable(column.name))
        if mask is not None:
            masked[attnum] = mask
        if mask is None:
            columns[attnum] = _plan_column(own, name, descriptor.types, options)
        elif mask.kind == "hash":
            columns[attnum] = ColumnPlan(own, name, "printed", pa.utf8())
        elif mask.kind == "constant":
            made_of[attnum] = (column, MadeColumn(name, pa.utf8(), mask.value))
        elif mask.kind == "null":
            type_ = _plan_column(own, name, descriptor.types, options).type
            made_of[attnum] = (column, MadeColumn(name, type_, None))
    key = _Key.of(descriptor, root)
    identity = [n for n in key.identity if n in names]
    key_columns = tuple(columns[n] for n in identity if n in columns)
    made += [column for _, column in made_of.values()]
    if root is not None:
        # Equal rows of two partitions are two rows.
        in_key = key.replica_identity == "f"
        oid = None if descriptor is root else descriptor.oid
        made.append(MadeColumn(PARTITION, pa.int64(), oid, in_key))

    fields = [*CHANGE_FIELDS]
    in_key_too = [each for each in made if each.in_key]
    in_old_key: list[ColumnPlan | MadeColumn] = [*key_columns, *in_key_too]
    if in_old_key:
        inner = [pa.field(p.name, p.type) for p in in_old_key]
        fields.append(pa.field(OLD_KEY, pa.struct(inner)))
    of_shown = {column.attnum: column for column in live}
    for attnum, plan in columns.items():
        told: dict[str, object] = _column_metadata(
            plan, of_shown[attnum], descriptor.types, options
        )
        fields.append(_field(plan.name, plan.type, told, masked.get(attnum), options))
    for attnum, (column, each) in made_of.items():
        told = {"name": readable(column.name), "attnum": attnum, "not_null": False}
        fields.append(_field(each.name, each.type, told, masked[attnum], options))
    if root is not None:
        fields.append(_PARTITION_FIELD)
    hidden = [n for n in (*key.primary, *key.told_by) if n in masked and not masked[n].tells_rows]
    relation: dict[str, object] = {
        "schema": readable(shown.schema),
        "table": readable(shown.name),
        "oid": shown.oid,
        "replica_identity": key.replica_identity,
        "primary_key": [names[n] for n in key.primary if n in columns],
        "identity_columns": [p.name for p in in_old_key],
        # Dropped ones included: a table has another schema after ADD and DROP COLUMN than before
        # them.
        "attributes": len(shown.columns),
        **key.told(descriptor, root),
    }
    if hidden:
        relation["masked_key"] = sorted({names[n] for n in hidden})
    schema = pa.schema(fields, metadata={"spillway.relation": json.dumps(relation)})
    message = schema.serialize().to_pybytes()
    return TablePlan(
        descriptor,
        tuple(columns.values()),
        key_columns,
        schema,
        message,
        options.not_utf8_escaped,
        options.marks_refused,
        tuple(made),
        frozenset(columns[n].name for n, mask in masked.items() if mask.kind == "hash"),
        options.mask_secret,
        root,
    )


def _own_columns(
    descriptor: RelationDescriptor, columns: Iterable[ColumnDescriptor]
) -> Iterator[tuple[ColumnDescriptor, ColumnDescriptor]]:
    """Yield *columns*, which are *descriptor*'s or its root's, each with its own of that name."""
    own = {c.name: c for c in descriptor.columns if not c.dropped}
    for column in columns:
        if column.name not in own:
            raise DecodingError(
                f"{_table_name(descriptor)} has no column {readable(column.name)!r} of the table "
                "that it is a partition of"
            )
        yield column, own[column.name]


@dataclass(frozen=True, slots=True)
class _Key:
    """What tells the rows of a table under whose name they go out; attnums are that table's."""

    primary: tuple[int, ...]
    deferrable: bool
    replica_identity: str
    #: what changes have of the row that was there
    identity: tuple[int, ...]
    #: the partition's changes don't say which row of the root they are of
    lost: bool = False

    @property
    def told_by(self) -> tuple[int, ...]:
        """The columns of the identity that tell a row: not those of a whole row."""
        return () if self.replica_identity == "f" else self.identity

    def told(self, table: RelationDescriptor, root: RelationDescriptor | None) -> dict[str, object]:
        """Return what a message of *table* says of it beside its columns."""
        told: dict[str, object] = {}
        if self.deferrable:
            # Two rows may have one key until their transaction commits.
            told["primary_key_deferrable"] = True
        if root is table and self.replica_identity == "n":
            told["without_rows"] = True
        if self.lost:
            told["partition_without_key"] = _table_name(table)
        return told

    @classmethod
    def of(cls, table: RelationDescriptor, root: RelationDescriptor | None) -> _Key:
        if root is None:
            return cls(
                table.primary_key,
                table.primary_key_deferrable,
                table.replica_identity,
                table.identity_columns,
            )
        # The same for all partitions, however their own identities are made.
        numbers = {c.name: c.attnum for c in root.columns if not c.dropped}
        logged = {
            numbers[table.columns[n - 1].name]
            for n in table.identity_columns
            if table.columns[n - 1].name in numbers
        }
        primary, deferrable = root.primary_key, root.primary_key_deferrable
        is_full = table.replica_identity == "f"
        if primary and not deferrable and (table is root or logged.issuperset(primary)):
            return cls(primary, False, "d", primary)
        if table is root:
            # It has no rows of its own.
            return cls(primary, deferrable and bool(primary), "n", ())
        if is_full:
            whole = tuple(n for n in numbers.values() if n in logged)
            return cls(primary if deferrable else (), deferrable and bool(primary), "f", whole)
        return cls(primary, deferrable and bool(primary), "n", (), lost=bool(primary))


_PARTITION_FIELD: Final = pa.field(
    PARTITION,
    pa.int64(),
    metadata={
        "spillway.column": json.dumps(
            {
                "name": PARTITION, "attnum": _TABLEOID, "type": "oid", "type_oid": _OID,
                "typmod": -1, "not_null": False,
            }
        )
    },
)  # fmt: skip


def _table_name(table: RelationDescriptor) -> str:
    return f"{readable(table.schema)}.{readable(table.name)}"


def _field(
    name: str,
    type_: pa.DataType,
    told: dict[str, object],
    mask: Mask | None,
    options: SchemaOptions,
) -> pa.Field:
    # Never non-null in Arrow: a DELETE, a TRUNCATE and unchanged TOAST have nulls anywhere.
    told = told if mask is None else _masked_metadata(told, mask, options)
    return pa.field(name, type_, metadata={"spillway.column": json.dumps(told)})


def _masked_metadata(
    metadata: dict[str, object], mask: Mask, options: SchemaOptions
) -> dict[str, object]:
    """Return what is told of a masked column: nothing of its values, and a type of its own."""
    missing, labels = metadata.pop("missing", None), metadata.get("labels")
    metadata = {k: v for k, v in metadata.items() if k in ("name", "attnum", "not_null")}
    metadata |= {"type": f"{_MASKED} ({mask.kind})", "type_oid": 0, "typmod": -1}
    if mask.kind == "constant":
        metadata["missing"] = mask.value
    elif mask.kind == "hash" and isinstance(missing, str):
        metadata["missing"] = hashed_bytes(missing.encode(), options.mask_secret)
    if mask.kind == "hash" and isinstance(labels, dict):
        metadata["labels"] = {
            oid: hashed_bytes(label.encode(), options.mask_secret) for oid, label in labels.items()
        }
    return metadata


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


def is_text_in_a_lake(
    column: ColumnDescriptor, types: Mapping[int, TypeDescriptor], server_version_num: int
) -> bool:
    """Say whether lake tables have a column as text, as PostgreSQL prints it, for want of a type;
    without options of the slot.
    """
    planned = _plan_column(column, column.name, types, SchemaOptions(server_version_num))
    # Arrow has a time of day, and Spark none that Delta Lake can store.
    return planned.kind in ("printed", "time")


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
    plan: ColumnPlan,
    column: ColumnDescriptor,
    types: Mapping[int, TypeDescriptor],
    options: SchemaOptions,
) -> dict[str, object]:
    """Return what is told of *column*, which is *plan*'s, or its namesake of the root."""
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
    if labels := _labels(column.type_oid, types):
        metadata["labels"] = {str(oid): readable(label) for oid, label in sorted(labels.items())}
    if plan.column.missing is not None:
        metadata["missing"] = _missing_text(plan, plan.column.missing, types, options)
    return metadata


def _labels(oid: int, types: Mapping[int, TypeDescriptor]) -> dict[int, str]:
    """Return the labels, by their oids, that values of a type are printed with: an enum's, or those
    of an array or a domain of it.

    A row has a label's oid, so ALTER TYPE … RENAME VALUE changes what is printed of rows that
    nobody touched.
    """
    labels: dict[int, str] = {}
    seen: set[int] = set()
    while oid and oid not in seen and (descriptor := types.get(oid)) is not None:
        seen.add(oid)
        if descriptor.kind == "e":
            labels = dict(descriptor.enum_labels)
        oid = descriptor.base_oid or (descriptor.element_oid if descriptor.is_array else 0)
    return labels


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
