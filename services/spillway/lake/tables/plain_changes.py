"""A batch's plain changes out of history's files, reduced to the last one of each key: what a merge
without Spark begins with.

Formats merge them each with a library of its own: :mod:`spillway.lake.tables.delta.merge`,
:mod:`spillway.lake.tables.iceberg.merge`.

What comes here is *plain* (:func:`spillway.lake.shape.net_effect.keyed`): no TRUNCATE, no value
left out as unchanged, so that the last change of a key says all about it; changes of key are two
effects, as there. The result is to be the same, row for row; what can't be sure of that is left to
Spark by raising :class:`NotDirect`, with nothing done: other kinds of changes, keys of types whose
equality isn't that of their bytes. Memory is bounded by :data:`_HISTORY_BYTES_MAX` of history's
files.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spillway.storage.place import LakePath

#: History's files of one batch, compressed: some ten times as much in memory.
_HISTORY_BYTES_MAX: Final = 64 << 20


class NotDirect(Exception):
    """This batch is Spark's to merge."""


def read_changes(files: Iterable[LakePath], start_lsn: int, schema: pa.Schema) -> pa.Table:
    """Read history's changes from *start_lsn* on, in order; *schema* is the table's own columns.

    Raises:
        NotDirect: there is too much, or it isn't stored plainly.
    """
    files = sorted(files, key=str)
    if sum(_size(path) for path in files) > _HISTORY_BYTES_MAX:
        raise NotDirect("the batch is large")
    wanted = ["_op", "_commit_lsn", "_seq", *schema.names]
    tables = []
    for path in files:
        # All of it is read: one request.
        opened = BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path
        with pq.ParquetFile(opened, coerce_int96_timestamp_unit="us") as parquet:
            stored = parquet.schema_arrow.names
            missing = set(wanted).difference(stored)
            if missing:
                raise NotDirect(f"history has no column {', '.join(sorted(missing))}")
            old = ["_old_key"] if "_old_key" in stored else []
            tables.append(parquet.read(columns=[*wanted, *old]))
    if not tables:
        raise NotDirect("history has no changes")
    return changes_from(pa.concat_tables(tables, promote_options="default"), start_lsn)


def changes_from(changes: pa.Table, start_lsn: int) -> pa.Table:
    """Return history's changes from *start_lsn* on, in order."""
    lsns = changes.column("_commit_lsn").to_numpy()
    if len(lsns) and lsns.min() < start_lsn:
        changes = changes.filter(pc.greater_equal(changes.column("_commit_lsn"), start_lsn))
        lsns = changes.column("_commit_lsn").to_numpy()
    seqs = changes.column("_seq").to_numpy()
    later, same = lsns[1:] > lsns[:-1], lsns[1:] == lsns[:-1]
    if not bool(np.all(later | (same & (seqs[1:] > seqs[:-1])))):
        changes = changes.take(np.lexsort((seqs, lsns)))
    return changes


def _size(path: LakePath) -> int:
    size = path.size() if isinstance(path, ObjectPath) else path.stat().st_size
    if size is None:
        raise FileNotFoundError(str(path))
    return size


@dataclass(frozen=True, slots=True)
class LastChanges:
    """What is left of a batch's changes: one row a key."""

    #: of the table's columns; those of a row that is gone are null but for its key
    rows: pa.Table
    #: whether a row is there afterwards
    is_set: pa.Array


def last_changes(changes: pa.Table, schema: pa.Schema, key: Sequence[str]) -> LastChanges:
    """Reduce plain *changes*, which are in order, to the last one of each key: rows of *schema*,
    those that are there afterwards first, in the order of their keys.

    Raises:
        NotDirect: a key's equality isn't that of its stored value, or a part of one is null.
    """
    for name in key:
        if not _is_plain_key(schema.field(name).type):
            raise NotDirect(f"key of type {schema.field(name).type}")
    own = pa.schema([pa.field(f.name, f.type) for f in schema])
    new = changes.select(own.names).cast(own)
    keys, order = [], []
    # Files of Arrow's own writers come back with view types, which have few functions.
    op = changes.column("_op").cast(pa.string())
    if not {"I", "U", "D"}.issuperset(pc.unique(op).to_pylist()):
        raise NotDirect("there are changes of other kinds")
    # The effects in order: a change's second one, its row under the new key, has an odd number.
    set_at = np.flatnonzero(pc.not_equal(op, "D").to_numpy())
    # By numbers: a table's column may have any name.
    numbers = [str(n) for n in range(len(key))]
    set_keys = new.select(list(key)).rename_columns(numbers)
    keys.append(set_keys if len(set_at) == len(changes) else set_keys.take(set_at))
    order.append(set_at * 2 + 1)
    if "_old_key" in changes.column_names:
        gone, gone_at = _old_keys(changes, new, key)
        keys.append(gone.rename_columns(numbers))
        order.append(gone_at * 2)
    effects = pa.concat_tables(keys).append_column(
        "order", pa.array(np.concatenate(order), pa.int64())
    )
    if any(effects.column(name).null_count for name in numbers):
        raise NotDirect("a part of a key is null")
    last = effects.group_by(numbers).aggregate([("order", "max")])
    at = last.column("order_max").to_numpy()
    is_set = at % 2 == 1
    rows = _by_key(new.take(np.sort(at[is_set] // 2)), key)
    deleted = last.select(numbers).rename_columns(list(key)).filter(pa.array(~is_set))
    parts = [part for part in (rows, deleted) if len(part)]
    there = np.arange(len(rows) + len(deleted)) < len(rows)
    return LastChanges(
        pa.concat_tables(parts or [rows], promote_options="default"), pa.array(there, pa.bool_())
    )


def _old_keys(changes: pa.Table, new: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Any]:
    """Return the keys that rows were deleted under or moved away from, and at which changes."""
    old = changes.column("_old_key").combine_chunks()
    if isinstance(old, pa.ChunkedArray):
        raise NotDirect("old keys are large")
    logged = np.flatnonzero(old.is_valid().to_numpy(zero_copy_only=False))
    old, before = old.take(logged), {}
    for name in key:
        if old.type.get_field_index(name) < 0:
            raise NotDirect(f"the old key has no column {name}")
        before[name] = pc.cast(pc.struct_field(old, name), new.schema.field(name).type)
    after, op = (
        new.select(list(key)).take(logged),
        changes.column("_op").take(logged).cast(pa.string()),
    )
    moved = np.zeros(len(logged), dtype=bool)
    for name in key:
        same = pc.equal(before[name], after.column(name))
        moved |= ~pc.fill_null(same, False).to_numpy()
    ends = pc.equal(op, "D").to_numpy() | (pc.equal(op, "U").to_numpy() & moved)
    table = pa.table(before, schema=after.schema)
    return table.filter(pa.array(ends)), logged[ends]


def _is_plain_key(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(type_)
        or types.is_string(type_)
        or types.is_binary(type_)
        or types.is_boolean(type_)
        or types.is_date32(type_)
        or types.is_timestamp(type_)
        or types.is_decimal(type_)
    )


def _by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sort *rows*: what is inserted together then has a range of its own in each of a file's row
    groups.
    """
    order = pc.sort_indices(rows.select(list(key)), sort_keys=[(name, "ascending") for name in key])
    at = order.to_numpy()
    return rows if bool(np.all(at[1:] > at[:-1])) else rows.take(order)
