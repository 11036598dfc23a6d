"""Whether changes say which rows of the current table they are of.

A change of a row has in WAL what the replica identity says at that moment, an old key or an old
row. The current table is kept by one key. ALTER TABLE … REPLICA IDENTITY between two changes of a
batch, or a key that is given to a table later, leaves changes that say nothing of that key::

    REPLICA IDENTITY NOTHING    DELETE says no row; an UPDATE may have changed the key, or not
    REPLICA IDENTITY DEFAULT
    UPDATE …                    the batch's last message: the key is as ever

A row that is inserted says all of itself, so a message in such an identity is looked into: only
updates and deletes are in the way, unless the table had no such column yet. The planner sets the
table aside at the first of them.

A key may also be given another column under its name (DROP COLUMN, ADD COLUMN … PRIMARY KEY). The
rows that were there have a value in it at the source, which ALTER TABLE made and WAL doesn't have,
so none of them could be found again: such a table is set aside as well.

A table that had only its history gets its current table from that once it has a key, if history has
all that makes its rows: from its first change on, in one shape, and nothing but inserts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spillway.lake.load_anew import load_anew
from spillway.lake.shape.columns import columns_of
from spillway.lake.shape.payload import fingerprint, parse_message, relation_of
from spillway.lake.tables.contract import MULTISET, row_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spillway.lake.shape.columns import Shape

#: what is done to rows that were there
CHANGED: Final = ("U", "D")


def identifies(schema: pa.Schema, newest: Shape, key: tuple[str, ...]) -> bool:
    """Say whether changes in a message of *schema* say which rows they are of by *key*, columns of
    *newest*, a later shape.

    So do those of another table, which had the name before: none of its rows is left.
    """
    relation = relation_of(schema)
    if relation.without_rows or (relation.oid and newest.oid and relation.oid != newest.oid):
        return True
    columns = columns_of(schema)
    if key == MULTISET:
        names = tuple(column.name for column in columns)
        return relation.replica_identity == "f" or row_key(relation, names) == MULTISET
    wanted = {column.identity for column in newest.columns if column.name in key}
    logged = {column.identity for column in columns if column.name in relation.identity_columns}
    return wanted <= logged


def has_key(schema: pa.Schema, newest: Shape, key: tuple[str, ...]) -> bool:
    """Say whether rows in a message of *schema* have the columns of *key*."""
    wanted = {column.identity for column in newest.columns if column.name in key}
    return wanted <= {column.identity for column in columns_of(schema)}


def new_key(
    base: Shape | None, shapes: Sequence[Shape], key: tuple[str, ...]
) -> tuple[Shape, tuple[str, ...]] | None:
    """Return the first of *shapes* with all of *key*, and the columns of it whose values are not
    known of rows that were made before, in the shape *base*; None: all are.
    """
    newest = shapes[-1]
    if base is None or not base.is_of(newest):
        return None
    if not all(isinstance(column.identity, int) for column in (*base.columns, *newest.columns)):
        # One of the two doesn't say which columns they are.
        return None
    wanted = [column for column in newest.columns if column.name in key]
    new = tuple(
        column.name
        for column in wanted
        if base.column(column.identity) is None and column.missing is None
    )
    if not new:
        return None
    having = (s for s in shapes if s.is_of(newest) and all(s.column(c.identity) for c in wanted))
    return next(having), new


class FirstUnidentified:
    """The function given to mapInArrow: messages in, where the first of their changes is that says
    no row. Pickled to executors.

    Args:
        fingerprints: of the messages that are looked into, and whether what they insert counts.
        from_lsn: changes whose commit record starts before this don't count.
    """

    FOUND: Final = pa.schema([pa.field("_commit_lsn", pa.int64())])

    def __init__(self, fingerprints: Mapping[str, bool], from_lsn: int) -> None:
        self._fingerprints = fingerprints
        self._from_lsn = from_lsn

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first: int | None = None
        for batch in batches:
            for body in batch.column("payload"):
                message = parse_message(body.as_buffer()).batch
                with_inserts = self._fingerprints.get(fingerprint(message.schema))
                if with_inserts is None:
                    continue
                ops = pa.array((*CHANGED, "I") if with_inserts else CHANGED)
                lsns = message.column("_commit_lsn").cast(pa.int64())
                counts = pc.and_(
                    pc.is_in(message.column("_op").cast(pa.string()), ops),
                    pc.greater_equal(lsns, self._from_lsn),
                )
                found = pc.min(lsns.filter(counts)).as_py()
                if found is not None:
                    first = found if first is None else min(first, found)
        if first is not None:
            yield pa.RecordBatch.from_arrays([pa.array([first], pa.int64())], schema=self.FOUND)


def unidentified_reason(table: str, key: tuple[str, ...]) -> str:
    """Return what is told of a table that is set aside over such changes, and the way back."""
    by = "as whole rows" if key == MULTISET else f"by {', '.join(key)}"
    return (
        f"rows of {table} were updated or deleted while its replica identity did not tell them "
        f"{by}, as its current table has them: which rows those were is not in WAL. Load it anew: "
        f"{load_anew(table)}"
    )


def new_key_reason(table: str, columns: tuple[str, ...]) -> str:
    """Return what is told of a table that is set aside over a key of new columns, and the way
    back.
    """
    return (
        f"the rows of {table} are told by a new column, {', '.join(columns)}: what it is in rows "
        f"that were there before is not in WAL. Load it anew: {load_anew(table)}"
    )


def only_history_reason(table: str, key: tuple[str, ...]) -> str:
    """Return what is told of a table that is set aside as its history doesn't make its rows."""
    by = "by its whole rows" if key == MULTISET else f"by {', '.join(key)}"
    return (
        f"{table} had only its history, and now it is told {by}: which rows it has does not follow "
        "from that history, which has updates, deletes or other columns, or lacks its beginning. "
        f"Load it anew: {load_anew(table)}"
    )
