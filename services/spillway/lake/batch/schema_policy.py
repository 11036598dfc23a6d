"""What a job does where a table's shape changes: the policy of
``spillway lake run --on-schema-change``.

==============  ====================================================================================
``evolve``      the tables follow; one that can't, as nobody knows what became of a column's
                values, or which rows a table has that had another name, is set aside, until it is
                loaded anew
``pause``       the job stops before the first change of a row that the tables don't hold as they
                are
``quarantine``  that table is set aside from there on (:mod:`spillway.lake.state.quarantine`), the
                others go on
==============  ====================================================================================

*To stop* is to end the batch exactly there, at the commit LSN of the transaction with that change:
what was before is in all tables, published and confirmed, and nothing after it. Run again, the job
stops there again, or, with another policy, goes on.

A change is behind a table whose current state was loaded as of a later LSN, or is being loaded:
then nothing is to be followed, whatever it was. So ``spillway lake load --resync`` is the way on
from what can't be followed, and out of quarantine; without it, a table that the policy
``quarantine`` set aside comes back when the job is run with ``evolve`` and can follow; any other
comes back when ``spillway lake resume`` asks for it.

Driver only. Decisions depend on the batch's messages and on what is durable, so a batch that comes
again is decided in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from spillway.errors import LakeSchemaChange, LakeSchemaConflict
from spillway.lake.load_anew import load_anew
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spillway.errors import SpillwayError
    from spillway.lake.shape.changes import SchemaChange
    from spillway.lake.shape.partition import Partition
    from spillway.lake.state.quarantine import Quarantine


class OnSchemaChange(StrEnum):
    """See the module."""

    EVOLVE = "evolve"
    PAUSE = "pause"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class TableChanges:
    """One table's part of a batch, as far as the policy looks at it."""

    #: ``schema.table``
    table: str
    directory: str
    changes: tuple[SchemaChange, ...]
    #: whether it has a current table, whose values must be known
    has_current: bool
    #: what its current table is partitioned by
    partitions: tuple[Partition, ...] = ()


@dataclass(slots=True)
class Decision:
    """What to do with a batch."""

    #: the batch ends there, and *error* is raised then; None: at its end
    stop_lsn: int | None = None
    error: SpillwayError | None = None
    #: tables to set aside, by directory: from which LSN on, and why
    set_aside: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: directories of tables that come back
    released: set[str] = field(default_factory=set)
    #: why tables that were asked for can't come back, by directory
    refused: dict[str, str] = field(default_factory=dict)


def decide(
    policy: OnSchemaChange,
    tables: Iterable[TableChanges],
    quarantined: dict[str, Quarantine],
    is_behind: Callable[[str, int], bool],
) -> Decision:
    """Decide about a batch.

    Args:
        policy: the job's.
        tables: those with changes in the batch, and all that are in quarantine, with what is set
            aside of them.
        quarantined: those in quarantine, by directory.
        is_behind: whether a table, by its directory, was loaded as of later than an LSN, or is
            being loaded.
    """
    decision = Decision()
    for table in tables:
        state = quarantined.get(table.directory)
        # Who asks for a table takes what its changes are.
        followed = OnSchemaChange.EVOLVE if state is not None and state.resumed else policy
        stop = next(
            (
                change
                for change in table.changes
                if _stops(followed, change, table)
                and not is_behind(table.directory, change.place[0])
            ),
            None,
        )
        if state is not None:
            # A change that the policy has nothing against doesn't lead back.
            if stop is None and (
                may_return(policy, state) or is_behind(table.directory, state.loaded_after)
            ):
                decision.released.add(table.directory)
            elif stop is not None and state.resumed:
                decision.refused[table.directory] = _not_followed(stop, table)
        elif stop is not None and policy == OnSchemaChange.QUARANTINE:
            decision.set_aside[table.directory] = (stop.place[0], str(stop))
        elif stop is not None and policy == OnSchemaChange.EVOLVE:
            decision.set_aside[table.directory] = (stop.place[0], _not_followed(stop, table))
        elif stop is not None and (decision.stop_lsn is None or stop.place[0] < decision.stop_lsn):
            decision.stop_lsn = stop.place[0]
            decision.error = _error(stop, _without_partition(stop, table))
    return decision


def may_return(policy: OnSchemaChange, state: Quarantine) -> bool:
    """Say whether a table comes back without having been loaded anew, if it can follow."""
    return state.resumed or (policy == OnSchemaChange.EVOLVE and not state.by_command)


def _not_followed(change: SchemaChange, table: TableChanges) -> str:
    """Say what a table can't follow, and what is to be done."""
    load = load_anew(table.table)
    partition = _without_partition(change, table)
    if partition is not None:
        return (
            f"{change}, and its current table is partitioned by {partition}. Load it anew with "
            f"other partitions: {load}, and --partition-by '{table.table}=…' (nothing behind = for "
            "none)"
        )
    return f"{change}, and what it has of before that is not in WAL. Load it anew: {load}"


def _stops(policy: OnSchemaChange, change: SchemaChange, table: TableChanges) -> bool:
    if change.loses_values and table.has_current:
        return True
    if _without_partition(change, table) is not None:
        return True
    return policy != OnSchemaChange.EVOLVE and not change.needs_nothing


def _without_partition(change: SchemaChange, table: TableChanges) -> Partition | None:
    """Return what the current table is partitioned by and can't be after a change."""
    types = {column.name: column.type for column in change.shape.columns}
    taken = {name.lower() for name in types}
    return next(
        (
            p
            for p in table.partitions
            if not p.is_of(types.get(p.column)) or p.name.lower() in taken
        ),
        None,
    )


def _error(change: SchemaChange, partition: Partition | None) -> SpillwayError:
    lsn = Lsn(change.place[0])
    load = load_anew(change.table)
    column = change.after or change.before
    details = {"relation": change.table, "lsn": str(lsn), "change": change.kind}
    if column is not None:
        details["column"] = column.name
    if partition is not None:
        return LakeSchemaConflict(
            f"{change.table} changed before {lsn}: {change}, and its current table is partitioned "
            f"by {partition}. The lake has everything before that and nothing after it",
            hint=f"Load the table anew with other partitions: {load}, and --partition-by "
            f"'{change.table}=…' (nothing behind = for none). Or set it aside: --on-schema-change "
            "quarantine.",
            **details,
        )
    way = (
        f"load the table anew ({load})"
        if change.loses_values
        else "run the job once with --on-schema-change evolve"
    )
    return LakeSchemaChange(
        f"{change.table} changed before {lsn}: {change}. The lake has everything before that "
        "and nothing after it",
        hint=f"When that is as it should be, {way}: it goes on from here.",
        **details,
    )
