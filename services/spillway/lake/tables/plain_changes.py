"""A batch's changes out of history's files, reduced to the last one of each key: what a merge
without Spark begins with.

Formats merge them each with a library of its own: :mod:`spillway.lake.tables.delta.merge`,
:mod:`spillway.lake.tables.iceberg.merge`.

Changes are *plain* mostly (:func:`spillway.lake.shape.net_effect.keyed`): no TRUNCATE, no value
left out as unchanged, so that the last change of a key says all about it; changes of key are two
effects, as there. What is special is reduced as well: changes before a TRUNCATE are as if they had
not been, and of a value that was left out it is known which earlier change of the batch has it, or
that it is the one that the row had before the batch. Merges by position take that
(:mod:`spillway.lake.tables.positions`); others leave it to Spark (:func:`check_plain`).

The result is to be the same, row for row, as Spark's; whatever can't be sure of that is left to
Spark by raising :class:`NotDirect`, with nothing done: other kinds of changes, a row that moves to
another key and leaves values out, keys of types whose equality isn't that of their bytes. Memory is
bounded by :data:`_HISTORY_BYTES_MAX` of history's files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

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
    if is_large(files):
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
            more = [name for name in ("_old_key", "_unchanged_toast") if name in stored]
            tables.append(parquet.read(columns=[*wanted, *more]))
    if not tables:
        raise NotDirect("history has no changes")
    return changes_from(pa.concat_tables(tables, promote_options="default"), start_lsn)


def stored_columns(files: Iterable[LakePath], columns: Sequence[str]) -> pa.Table:
    """Read *columns* of all rows of *files*.

    Raises:
        NotDirect: there is too much, or none.
    """
    files = sorted(files, key=str)
    if not files or is_large(files):
        raise NotDirect("there are many rows, or none")
    tables = []
    for path in files:
        opened = BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path
        with pq.ParquetFile(opened) as parquet:
            tables.append(parquet.read(columns=list(columns)))
    return pa.concat_tables(tables)


def changes_between(
    files: Iterable[LakePath], start_lsn: int, end_lsn: int, schema: pa.Schema
) -> pa.Table:
    """Read history's changes whose commit record starts in [*start_lsn*, *end_lsn*), in order.

    Raises:
        NotDirect: as :func:`read_changes`.
    """
    changes = read_changes(files, start_lsn, schema)
    return changes.filter(pc.less(changes.column("_commit_lsn"), end_lsn))


def is_large(files: Iterable[LakePath]) -> bool:
    """Say whether history's files of a batch are too much to be read at once."""
    return sum(_size(path) for path in files) > _HISTORY_BYTES_MAX


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
    #: all rows that were there before are gone
    truncated: bool = False
    #: columns, and which of the rows that are there afterwards have the value that they had before
    kept: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    #: the rows that are there afterwards, a piece at a time and in any order, where they are many:
    #: *rows* has their keys alone then
    pieces: Callable[[], Iterator[pa.Table]] | None = None


def check_plain(changes: LastChanges) -> None:
    """Refuse what only a merge by position takes.

    Raises:
        NotDirect: there was a TRUNCATE, or a value is the one that the row had before.
    """
    if changes.truncated:
        raise NotDirect("there is a TRUNCATE")
    if changes.kept:
        raise NotDirect("large values are left out as unchanged")


def last_changes(changes: pa.Table, schema: pa.Schema, key: Sequence[str]) -> LastChanges:
    """Reduce *changes*, which are in order, to the last one of each key: rows of *schema*, those
    that are there afterwards first, in the order of their keys.

    Raises:
        NotDirect: a key's equality isn't that of its stored value, or a part of one is null; a row
            moves and leaves values out.
    """
    for name in key:
        if not _is_plain_key(schema.field(name).type):
            raise NotDirect(f"key of type {schema.field(name).type}")
    own = pa.schema([pa.field(f.name, f.type) for f in schema])
    changes, truncated = _after_truncate(changes)
    new, unknown = _filled(changes, changes.select(own.names).cast(own))
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
    set_keys = set_keys if len(set_at) == len(changes) else set_keys.take(set_at)
    keys.append(set_keys)
    order.append(set_at * 2 + 1)
    if "_old_key" in changes.column_names:
        gone, gone_at, moved = _old_keys(changes, new, key)
        if any(bool(mask[moved].any()) for mask in unknown.values()):
            raise NotDirect("a row moves to another key and leaves values out")
        keys.append(gone.rename_columns(numbers))
        order.append(gone_at * 2)
    effects = pa.concat_tables(keys).append_column(
        "order", pa.array(np.concatenate(order), pa.int64())
    )
    if any(effects.column(name).null_count for name in numbers):
        raise NotDirect("a part of a key is null")
    if len(effects) > 1:
        last = effects.group_by(numbers).aggregate([("order", "max")])
    else:
        # Grouping is a plan of its own, which costs a millisecond whatever there is.
        last = effects.rename_columns([*numbers, "order_max"])
    at = last.column("order_max").to_numpy()
    is_set = at % 2 == 1
    chosen = _by_key(new, np.sort(at[is_set] // 2), key)
    rows, kept = new.take(chosen), {}
    for name, mask in unknown.items():
        missing = mask[chosen]
        if not missing.any():
            continue
        known = ~mask[set_at]
        source = _latest(set_keys.filter(pa.array(known)), set_at[known], rows, key)
        found = missing & (source >= 0)
        number = rows.schema.get_field_index(name)
        taken = new.column(name).take(pa.array(np.where(found, source, chosen)))
        rows = rows.set_column(number, rows.schema.field(name), taken)
        if bool((missing & ~found).any()):
            kept[name] = missing & ~found
    deleted = last.select(numbers).rename_columns(list(key)).filter(pa.array(~is_set))
    parts = [part for part in (rows, deleted) if len(part)]
    there = np.arange(len(rows) + len(deleted)) < len(rows)
    return LastChanges(
        pa.concat_tables(parts or [rows], promote_options="default"),
        pa.array(there, pa.bool_()),
        truncated,
        kept,
    )


def _after_truncate(changes: pa.Table) -> tuple[pa.Table, bool]:
    """Return the changes after the last TRUNCATE, and whether there was one."""
    truncates = np.flatnonzero(pc.equal(changes.column("_op"), "T").to_numpy())
    if not len(truncates):
        return changes, False
    return changes.slice(int(truncates[-1]) + 1), True


def _filled(changes: pa.Table, new: pa.Table) -> tuple[pa.Table, dict[str, npt.NDArray[np.bool_]]]:
    """Return the rows, where values that are left out as unchanged are the old row's, if that was
    logged; and of columns with others left, which.
    """
    if "_unchanged_toast" not in changes.column_names:
        return new, {}
    names = changes.column("_unchanged_toast").combine_chunks()
    if isinstance(names, pa.ChunkedArray) or not len(names):
        return new, {}
    flat, rows = pc.list_flatten(names).cast(pa.string()), pc.list_parent_indices(names).to_numpy()
    old = None
    if "_old_key" in changes.column_names:
        old = changes.column("_old_key").combine_chunks()
    unknown = {}
    for name in pc.unique(flat).to_pylist():
        if name not in new.column_names:
            continue
        mask = np.zeros(len(new), dtype=bool)
        mask[rows[pc.equal(flat, name).to_numpy(zero_copy_only=False)]] = True
        if isinstance(old, pa.StructArray) and old.type.get_field_index(name) >= 0:
            number = new.schema.get_field_index(name)
            logged = pc.struct_field(old, name).cast(new.schema.field(name).type)
            known = mask & logged.is_valid().to_numpy(zero_copy_only=False)
            both = pa.chunked_array([*new.column(name).chunks, logged])
            at = np.arange(len(new))
            taken = both.take(pa.array(np.where(known, at + len(new), at)))
            new = new.set_column(number, new.schema.field(name), taken)
            mask &= ~known
        if mask.any():
            unknown[name] = mask
    return new, unknown


def _latest(
    keys: pa.Table, at: npt.NDArray[np.int64], rows: pa.Table, key: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Return for each of *rows* the last of changes *at*, which have *keys*, that has its key; -1:
    none.
    """
    numbers = keys.column_names
    last = keys.append_column("at", pa.array(at)).group_by(numbers).aggregate([("at", "max")])
    wanted = rows.select(list(key)).rename_columns(numbers)
    wanted = wanted.append_column("row", pa.array(np.arange(len(rows))))
    found = wanted.join(last, numbers, join_type="inner")
    latest = np.full(len(rows), -1, dtype=np.int64)
    latest[found.column("row").to_numpy()] = found.column("at_max").to_numpy()
    return latest


def _old_keys(changes: pa.Table, new: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Any, Any]:
    """Return the keys that rows were deleted under or moved away from, and at which changes; and
    which changes are moves.
    """
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
    moves = pc.equal(op, "U").to_numpy() & moved
    ends = pc.equal(op, "D").to_numpy() | moves
    table = pa.table(before, schema=after.schema)
    return table.filter(pa.array(ends)), logged[ends], logged[moves]


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


def _by_key(rows: pa.Table, chosen: Any, key: Sequence[str]) -> Any:
    """Return which of *rows* are *chosen*, in the order of their keys: what is inserted together
    then has a range of its own in each of a file's row groups.
    """
    if len(chosen) <= 1:
        return chosen
    keys = rows.select(list(key)).take(chosen)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in key])
    return chosen[order.to_numpy()]
