"""Bringing a current table up to date from its history, where that is ahead of it by more than a
batch: after a load (:mod:`spillway.lake.load.initial_load`), and at a pace of its own
(:mod:`spillway.lake.batch.pace`).

All changes in between are of one shape, which current has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.lake.shape import columns as table_shape
from spillway.lake.shape import emptied, net_effect
from spillway.lake.shape.kinds import HISTORY
from spillway.lake.tables.contract import MULTISET, Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spillway.lake.shape.net_effect import NetEffect
    from spillway.lake.tables.contract import LakeTables


@dataclass(frozen=True, slots=True)
class Behind:
    """A table whose current state is behind."""

    #: its directory
    name: str
    #: ``schema.table``
    table: str
    key: tuple[str, ...]
    shape: table_shape.Shape
    key_deferrable: bool
    #: rows that are gone stay
    softly: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.shape.columns)

    @property
    def wanted(self) -> pa.Schema:
        """The current table's columns."""
        shape = self.shape
        if self.softly:
            shape = table_shape.with_deleted_at(shape, self.table)
        return table_shape.current_schema(shape.columns)


def catch_up(tables: LakeTables, behind: Behind, batch: Batch) -> None:
    """Merge what history has in the range of *batch*, by Spark."""
    name, key, columns = behind.name, behind.key, behind.columns
    events = tables.history(name, batch.start_lsn, batch.end_lsn)
    events = table_shape.as_of_last(events, [behind.shape], behind.table)
    current = tables.current(name)
    events = emptied.as_deletes(events, columns, current, softly=behind.softly)
    effect = effect_of(
        events, columns, key, lambda: current,
        key_deferrable=behind.key_deferrable, softly=behind.softly,
    )  # fmt: skip
    tables.apply(name, effect, behind.wanted, key, batch)


def effect_of(
    events: DataFrame,
    columns: Sequence[str],
    key: tuple[str, ...],
    current: Callable[[], DataFrame | None],
    *,
    key_deferrable: bool,
    softly: bool,
    plain: bool = False,
) -> NetEffect:
    """Return what changes come to, by how the table tells its rows.

    Args:
        events: the changes, in one shape.
        columns: the table's.
        key: what tells its rows, or MULTISET.
        current: gives the current table, where that has to be looked at.
        key_deferrable: two rows may have one key within a transaction.
        softly: rows that are gone stay.
        plain: see :func:`spillway.lake.shape.net_effect.keyed`.
    """
    if key == MULTISET:
        effect = net_effect.multiset(events, columns)
    elif key_deferrable:
        effect = net_effect.keyed_at_commit(events, columns, key)
    else:
        effect = net_effect.keyed(events, columns, key, current(), plain=plain)
    return net_effect.softly(effect, events, columns, key) if softly else effect


def catch_up_directly(tables: LakeTables, behind: Behind, batch: Batch) -> bool:
    """Do the same without Spark, if format and table allow it, and the changes fit into memory;
    return whether it is done: if not, nothing is.
    """
    if behind.softly or behind.key_deferrable or behind.key == MULTISET or not batch.start_lsn:
        return False
    history = tables.schema(HISTORY, behind.name)
    if history is None or not table_shape.plainly_stored(history, behind.shape):
        return False
    rows = tables.changes_plain(behind.name, batch.start_lsn, batch.end_lsn, behind.wanted)
    return rows is not None and tables.merge_plain(
        behind.name, batch.start_lsn, behind.wanted, behind.key, batch, rows
    )
