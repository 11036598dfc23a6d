"""What a lake job asks of a table format: the contract of ``delta/``, ``iceberg/`` and
``parquet/``.

Each source table becomes two lake tables below the lake's path:

``history/<schema>.<table>``
    every change, append only: the plugin's columns, then the table's. Nothing is ever rewritten.
``current/<schema>.<table>``
    the rows as they are now. Kept by applying each batch's net effect, read back from the history:
    what current shows is durable in history first.

and beside them ``ddl/events`` (:mod:`spillway.lake.shape.changes`) and, of tables that are set
aside, ``quarantine/<schema>.<table>``.

**A table's commit carries the LSN that it goes up to**, in the same atomic step as the rows: the
table holds all changes whose commit record starts before that LSN, and no other. It is the only
truth about what is durable. Repeating a batch is harmless: rows before the table's LSN are left
out, and a commit to an LSN that the table has already does nothing. This is what makes the lake
exactly once, whatever Spark's checkpoint remembers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from spillway.errors import LakeSchemaConflict, LakeTableConflict
from spillway.lake.load_anew import load_anew
from spillway.lake.shape.kinds import HISTORY
from spillway.lake.shape.payload import Relation, relation_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spillway.lake.shape.columns import Followed
    from spillway.lake.shape.net_effect import NetEffect
    from spillway.lake.shape.partition import Partition

#: The key of a table whose rows nothing tells apart: its current state counts copies.
MULTISET: Final[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A range of commit LSNs, [start, end), on its way into the lake."""

    slot_name: str
    start_lsn: int
    end_lsn: int
    batch_id: int


class CommitsLost(Exception):
    """Commits that were to be made together are not there, or nobody knows whether they are:
    another one was first, or the catalog didn't say. All that was done is to be done again.
    """


class LakeTables(Protocol):
    """The lake tables of one path. Driver only; calls for different tables may come from different
    threads.

    *name* is :attr:`spillway.lake.shape.payload.Relation.directory`, ``schema.table`` mostly.
    """

    @property
    def takes_special(self) -> bool:
        """Whether :meth:`merge_plain` may do a TRUNCATE, and values left out as unchanged."""
        ...

    def together(self) -> AbstractContextManager[bool]:
        """Make the commits of the block in one step, at its end, where the tables' catalog can;
        yield whether it can. If not, they are made one by one, as ever.

        It is about calls in the block's context (:mod:`contextvars`) or copies of it: they find the
        tables as these commits make them, and everybody else as they are.

        Raises:
            CommitsLost: at the block's end.
        """
        ...

    def durable_lsn(self, kind: str, name: str) -> int:
        """Return the LSN that the table's own last commit goes up to; 0 when there is no table."""
        ...

    def schema(self, kind: str, name: str) -> pa.Schema | None: ...

    def partitions(self, kind: str, name: str) -> tuple[Partition, ...] | None:
        """Return what the table was made to be partitioned by (:mod:`spillway.lake.tables.layout`);
        None when there is no table.
        """
        ...

    def widest(self, stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
        """Return the type that a stored column can be given to hold *incoming*'s values, too
        (:mod:`spillway.lake.shape.type_changes`).

        None: there is none that leaves the table's files as they are.
        """
        ...

    def append_history(self, name: str, rows: DataFrame, batch: Batch, kind: str = HISTORY) -> None:
        """Commit *rows*; their columns may be more than the table has, and wider
        (:mod:`spillway.lake.shape.type_changes`).

        *kind* is history, or another append-only table's: :data:`DDL`,
        :data:`spillway.lake.state.quarantine.QUARANTINE`.
        """
        ...

    def append_plain(self, name: str, rows: pa.Table, batch: Batch, kind: str = HISTORY) -> bool:
        """Commit *rows*, all that :meth:`append_history` would be given, which the driver has:
        without Spark, if this format and table allow it.

        Their columns are the table's, or a new table's. Return whether it is done, and durable; if
        not, nothing is.
        """
        ...

    def history(self, name: str, start_lsn: int, end_lsn: int, kind: str = HISTORY) -> DataFrame:
        """Return the changes whose commit record starts in [*start_lsn*, *end_lsn*)."""
        ...

    def columns_plain(self, kind: str, name: str, columns: Sequence[str]) -> pa.Table | None:
        """Return *columns* of all rows of a table that is only appended to and has them from its
        beginning, in any order; None: they are too many, or Spark's to read.
        """
        ...

    def changes_plain(
        self, name: str, start_lsn: int, end_lsn: int, columns: pa.Schema
    ) -> pa.Table | None:
        """Return the same changes in order, with *columns* of the table's, for :meth:`merge_plain`;
        None: they are too many, or Spark's to read.
        """
        ...

    def current(self, name: str) -> DataFrame | None: ...

    def key(self, name: str) -> tuple[str, ...] | None:
        """Return the key that the current table was made with; None when there is no table."""
        ...

    def reshape(self, name: str, followed: Followed) -> None:
        """Give the current table *followed*'s columns and rows in one atomic step; its LSN stays.

        Another key, if there is one, comes a step before: the rows are none then.
        """
        ...

    def merge_plain(
        self,
        name: str,
        start_lsn: int,
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
        rows: pa.Table | None = None,
    ) -> bool:
        """Commit the net effect of a batch's plain changes without Spark's planning, if this format
        and table allow it.

        Plain: all in history's last commit, in one shape; unless :attr:`takes_special`, no TRUNCATE
        and no value left out as unchanged. The current table has everything before *start_lsn*, or
        is to be made if that is 0. *rows* are history's last commit, if the driver has it. Return
        whether it is done; if not, nothing is.
        """
        ...

    def apply(
        self, name: str, effect: NetEffect, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        """Commit a batch's net effect; *columns* are the table's, which it has already if it is
        there.
        """
        ...


def row_key(relation: Relation, columns: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the columns that the current table is merged by, :data:`MULTISET`, or None: history
    only.

    The key must be known for rows that are gone, and that is what the replica identity logs. A
    primary key that is deferrable is none by itself, as PostgreSQL has it; with replica identity
    FULL it is one, and its batches are reduced by
    :func:`spillway.lake.shape.net_effect.keyed_at_commit`.
    """
    if relation.logged_key:
        return relation.logged_key
    identity = set(relation.identity_columns)
    if relation.replica_identity == "f" or (identity and identity.issuperset(columns)):
        return MULTISET
    return relation.identity_columns or None


def check_key(relation: Relation) -> None:
    """Refuse a table whose changes don't tell rows, though it has a key.

    Raises:
        LakeSchemaConflict: its key is masked, or not that of all its partitions.
    """
    if relation.masked_key:
        columns = ", ".join(relation.masked_key)
        raise LakeSchemaConflict(
            f"rows of {relation.name} are told by {columns}, which the masks take away",
            hint=f"Leave {columns} out of --mask, or give hash(…) of it; then load the table: "
            f"{load_anew(relation.name)}.",
            relation=relation.name,
            column=relation.masked_key[0],
        )
    if relation.partition_without_key:
        raise LakeSchemaConflict(
            f"changes of {relation.partition_without_key}, a partition of {relation.name}, don't "
            f"have the primary key of {relation.name}",
            hint=f"ALTER TABLE {relation.partition_without_key} REPLICA IDENTITY DEFAULT; then "
            f"load the table: {load_anew(relation.name)}.",
            relation=relation.name,
        )


def check_name(name: str, directories: Collection[str]) -> None:
    """Refuse tables whose names are one text, by which the lake's state knows them.

    Args:
        name: ``schema.table``.
        directories: of the tables that have it.

    Raises:
        LakeSchemaConflict: they are several.
    """
    if len(directories) > 1:
        told = " and ".join(
            ".".join('"' + part.replace('"', '""') + '"' for part in table_of(each))
            for each in sorted(directories)
        )
        raise LakeSchemaConflict(
            f"{told} are two tables, and both names are {name} in a lake",
            hint="Rename one of them, or its schema, so that no schema's name has a dot, and fill "
            "another lake.",
            relation=name,
        )


def check_soft_deletes(relation: Relation, key: tuple[str, ...]) -> None:
    """Refuse to keep rows that are gone where nothing tells them apart.

    Raises:
        LakeSchemaConflict: the table counts copies.
    """
    if key == MULTISET:
        raise LakeSchemaConflict(
            f"{relation.name} has no key by which a row that is gone could be told from others",
            hint="Give the table a primary key; or fill another lake without --soft-deletes of it.",
            relation=relation.name,
        )


def relation_of_all(
    schemas: Iterable[pa.Schema], key: Callable[[str], tuple[str, ...] | None] = lambda _: None
) -> Relation:
    """Return the table that messages with *schemas*, in order, are of, as of the last of them that
    says what tells its rows; where none does, *key* says it of the current table.
    """
    relations = [relation_of(schema) for schema in schemas]
    newest = relations[-1]
    with_rows = [relation for relation in relations if not relation.without_rows]
    if with_rows:
        return with_rows[-1]
    return replace(newest, replica_identity="f") if key(newest.directory) == MULTISET else newest


def check_same_key(name: str, stored: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Refuse to merge by another key than the current table was made with.

    Raises:
        LakeTableConflict: they differ.
    """
    if stored != wanted:
        raise LakeTableConflict(
            f"the rows of {name} are identified by ({', '.join(wanted)}) now, "
            f"its current table was made with ({', '.join(stored)})",
            hint="The primary key or the replica identity was changed at the source. Load the "
            f"table anew: {load_anew('.'.join(table_of(name)))}.",
            relation=name,
        )
