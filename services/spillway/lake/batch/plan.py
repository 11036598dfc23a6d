"""What a batch is to do, before any of it is done: which tables it touches, in which shapes, and
what the policy makes of that.

::

    heads: of each schema of messages, where its changes begin and end
        └─▶ a part for each table: its shapes ──┐
    what is known of the tables ────────────────┴─▶ changes of shape ──decide──▶ the plan
        (events, loads, quarantine)

Nothing is written here but that a table is set aside, which must be durable before its messages
are. Runs on the driver.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.errors import LakeSchemaConflict
from spillway.failpoints import failpoint
from spillway.lake.batch.poison import attached_reason, refused_reason
from spillway.lake.batch.row_identity import (
    CHANGED,
    FirstUnidentified,
    has_key,
    identifies,
    new_key,
    new_key_reason,
    only_history_reason,
    unidentified_reason,
)
from spillway.lake.batch.schema_policy import (
    OnSchemaChange,
    TableChanges,
    decide,
    may_return,
)
from spillway.lake.shape import columns as table_shape
from spillway.lake.shape.changes import changes_of, shape_from_text
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import OLD_KEY, fingerprint, relation_of, table_of
from spillway.lake.state import quarantine
from spillway.lake.state.loads import (
    Stage,
    directories_named,
    is_loading,
    load_state,
    loaded_tables,
    may_be_several,
)
from spillway.lake.state.quarantine import QUARANTINE
from spillway.lake.tables.contract import check_key, check_name, relation_of_all, row_key
from spillway.pg.lsn import Lsn
from spillway.plugins.partition_roots import attached_of
from spillway.plugins.refused_values import refused_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from spillway.errors import SpillwayError
    from spillway.lake.batch.schema_policy import Decision
    from spillway.lake.shape.changes import KnownShapes, SchemaChange
    from spillway.lake.shape.columns import Place
    from spillway.lake.shape.payload import Relation
    from spillway.lake.state.quarantine import Quarantine
    from spillway.lake.tables.contract import Batch, LakeTables
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableBatch:
    """One table's part of a batch."""

    #: as of the last message
    relation: Relation
    #: its messages' schemas, and where the first and the last change of each is
    schemas: tuple[tuple[pa.Schema, Place, Place], ...]
    shapes: tuple[table_shape.Shape, ...]
    changes: int
    #: a TRUNCATE or an unchanged TOAST value is among the changes
    special: bool
    #: the part's own: less than the whole when the table is set aside in it, more when it comes
    #: back
    batch: Batch
    #: what the table looked like before, if it is known
    base: table_shape.Shape | None
    #: makes a frame of those of the batch and, of a table that comes back, of what was set aside;
    #: a frame that nobody asks for would cost what a small table's commit does
    messages: Callable[[], DataFrame]
    #: whether *messages* are the batch's and no others
    is_whole: bool = True

    @property
    def last_lsn(self) -> int:
        """Where the last change's commit record starts, or later within the batch."""
        return min(self.shapes[-1].last[0], self.batch.end_lsn - 1)

    @property
    def key(self) -> tuple[str, ...] | None:
        return row_key(self.relation, self.columns)

    @property
    def is_key_deferrable(self) -> bool:
        """Whether two rows may have one key within a transaction: at any time in the batch."""
        return any(relation_of(schema).primary_key_deferrable for schema, _, _ in self.schemas)

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns after the batch; ``schemas`` have those that were dropped in it,
        too.
        """
        return tuple(column.name for column in self.shapes[-1].columns)

    def shapes_from(self, lsn: int) -> tuple[table_shape.Shape, ...]:
        """Return the shapes of the changes from *lsn* on, and the one before if any of them could
        be of it.
        """
        shapes = tuple(shape for shape in self.shapes if shape.last[0] >= lsn) or self.shapes[-1:]
        base = self.shape_at(lsn)
        if base is None or base.facts == shapes[0].facts or lsn > shapes[0].first[0]:
            return shapes
        return (base, *shapes)

    def shape_at(self, lsn: int) -> table_shape.Shape | None:
        """Return the shape of the last changes before *lsn*, None if it isn't known."""
        return next((s for s in reversed(self.shapes) if s.first[0] < lsn), self.base)


@dataclass(slots=True)
class Plan:
    """What becomes of a batch: :meth:`Planner.plan`."""

    batch: Batch
    #: raised when the batch is durable
    error: SpillwayError | None
    parts: list[TableBatch] = field(default_factory=list)
    events: list[SchemaChange] = field(default_factory=list)
    #: after the batch, by directory
    quarantined: dict[str, Quarantine] = field(default_factory=dict)
    #: directories of tables that come back from it
    released: set[str] = field(default_factory=set)
    #: messages of tables in quarantine
    aside: dict[str, DataFrame] = field(default_factory=dict)
    #: tables that are paused from its end on
    paused: list[Quarantine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A table whose messages no lake table can hold."""

    table: str
    first_lsn: int
    last_lsn: int
    reason: str


def head_facts() -> list[Column]:
    """Return what there is to know of the messages of one schema."""
    return [
        F.first("arrow_schema").alias("arrow_schema"),
        F.sum("changes").alias("changes"),
        F.min(F.struct("first_commit_lsn", "first_seq")).alias("first"),
        F.max(F.struct("last_commit_lsn", "last_seq")).alias("last"),
        F.max("special").alias("special"),
    ]


class Planner:
    """Plans the batches of one slot into one lake."""

    def __init__(
        self,
        tables: LakeTables,
        path: LakePath,
        known: KnownShapes,
        policy: OnSchemaChange,
        only: Sequence[str],
    ) -> None:
        self._tables = tables
        self._path = path
        self._known = known
        self._policy = policy
        self._only = frozenset(only)
        #: of the tables that are followed, by name, if there may be several of it
        self._directories: dict[str, set[str]] = {}

    def plan(self, heads: Sequence[Row], envelopes: DataFrame, batch: Batch, lake_lsn: int) -> Plan:
        """Decide what to do with a batch, of which the lake has everything before *lake_lsn*."""
        by_name: dict[str, list[Row]] = {}
        for head in heads:
            name = head["relation"]
            if name is not None and (not self._only or name in self._only):
                by_name.setdefault(name, []).append(head)
        quarantined, asked = self._quarantined()
        stored, unchanged = self._stored(quarantined, batch, by_name)
        parts, unreadable = self._parts(by_name, envelopes, batch, stored)
        names = self._names(parts)
        decision = decide(
            self._policy,
            [self._changes(part, names) for part in parts],
            quarantined,
            self._is_behind,
        )
        if decision.stop_lsn is not None:
            # A batch that comes again may begin before what the lake has.
            begin = max(batch.start_lsn, min(lake_lsn, decision.stop_lsn))
            batch = replace(batch, start_lsn=begin, end_lsn=decision.stop_lsn)
        plan = Plan(batch, error=decision.error, released=unchanged)
        for part in parts:
            name = part.relation.name
            known = self._known.before(name, part.shapes[0].first)
            plan.events += [
                change
                for change in changes_of(name, known, part.shapes, names)
                if change.place[0] < batch.end_lsn
            ]
        for directory, each in unreadable.items():
            if directory not in quarantined:
                decision.set_aside[directory] = (max(each.first_lsn, batch.start_lsn), each.reason)
            elif quarantined[directory].resumed:
                decision.refused[directory] = each.reason
        refused = self._refused(parts, quarantined, batch)
        self._leave_out(refused, decision, quarantined)
        self._put(decision, quarantined, batch, by_command=refused.keys())
        for directory, each in unreadable.items():
            if directory in quarantined and each.last_lsn >= batch.start_lsn:
                plan.aside[directory] = envelopes.where(F.col("relation") == each.table)
        failpoint("lake.after_quarantined")
        for part in parts:
            directory = part.relation.directory
            begin, end = batch.start_lsn, batch.end_lsn
            if directory in decision.released:
                begin = min(begin, quarantined[directory].lsn_value)
                plan.released.add(directory)
            elif directory in quarantined:
                if part.shapes[-1].last[0] >= batch.start_lsn:
                    plan.aside[directory] = envelopes.where(F.col("relation") == part.relation.name)
                end = min(end, quarantined[directory].lsn_value)
            if part.shapes[0].first[0] < end and begin < end:
                plan.parts.append(_cut(part, replace(batch, start_lsn=begin, end_lsn=end)))
        for directory in plan.released:
            del quarantined[directory]
        plan.quarantined = quarantined
        plan.paused = self._pause(asked, quarantined, max(batch.end_lsn, lake_lsn))
        return plan

    def _pause(
        self, asked: Mapping[str, Quarantine], quarantined: Mapping[str, Quarantine], lsn: int
    ) -> list[Quarantine]:
        """Make it durable that tables are set aside from *lsn* on, where the batch ends: of what
        comes again they have the same, then, as if nobody had paused them.
        """
        paused = []
        for directory, state in asked.items():
            if directory not in quarantined:
                placed = replace(state, lsn=str(Lsn(lsn)))
                paused.append(quarantine.put(self._path, directory, placed))
                _log.info("%s", placed)
        return paused

    def _quarantined(self) -> tuple[dict[str, Quarantine], dict[str, Quarantine]]:
        """Return the tables that are set aside, from which LSN on what is set aside counts, and
        those that are to be paused.
        """
        every = quarantine.quarantined(self._path)
        asked = {name: state for name, state in every.items() if state.is_asked}
        found = {name: state for name, state in every.items() if name not in asked}
        for directory, state in found.items():
            if state.gives_up:
                loaded = self._tables.durable_lsn(CURRENT, directory)
                found[directory] = replace(state, lsn=str(Lsn(max(loaded, state.lsn_value))))
        return found, asked

    def _stored(
        self, quarantined: Mapping[str, Quarantine], batch: Batch, by_name: dict[str, list[Row]]
    ) -> tuple[dict[str, DataFrame], set[str]]:
        """Return what is set aside of tables that may come back, whose messages' heads are added to
        *by_name*, and those of the tables that have none.
        """
        stored: dict[str, DataFrame] = {}
        unchanged = set()
        for directory, state in quarantined.items():
            at = state.lsn_value
            if not (
                may_return(self._policy, state) or self._is_behind(directory, state.loaded_after)
            ):
                continue
            if self._tables.durable_lsn(QUARANTINE, directory):
                rows = self._tables.history(directory, at, batch.end_lsn, kind=QUARANTINE)
                found = rows.groupBy("fingerprint").agg(*head_facts()).collect()
                if found:
                    stored[directory] = rows
                    by_name.setdefault(state.table, []).extend(found)
            if state.table not in by_name:
                unchanged.add(directory)
        return stored, unchanged

    def _parts(
        self,
        by_name: Mapping[str, list[Row]],
        envelopes: DataFrame,
        batch: Batch,
        stored: Mapping[str, DataFrame],
    ) -> tuple[list[TableBatch], dict[str, _Unreadable]]:
        """Return the tables' parts, and by directory the tables whose messages no lake table can
        hold.

        Raises:
            LakeSchemaConflict: there is one, and the policy is to stop.
        """
        parts: list[TableBatch] = []
        unreadable: dict[str, _Unreadable] = {}
        for name, of_table in sorted(by_name.items()):
            try:
                self._check_name(name, of_table)
                parts.append(self._part(name, of_table, envelopes, batch, stored))
            except LakeSchemaConflict as error:
                if self._policy == OnSchemaChange.PAUSE:
                    raise
                found = _Unreadable(
                    name,
                    min(head["first"]["first_commit_lsn"] for head in of_table),
                    max(head["last"]["last_commit_lsn"] for head in of_table),
                    f"{error.message}. {error.hint}",
                )
                unreadable |= dict.fromkeys(_directories_of(of_table), found)
        return parts, unreadable

    def _check_name(self, name: str, heads: Sequence[Row]) -> None:
        """Refuse changes of two tables whose names are one text: shapes, messages and what is told
        of a table go by it.

        Raises:
            LakeSchemaConflict: the batch, or the lake, has another table of the name.
        """
        if not may_be_several(name):
            return
        held = self._directories.get(name)
        if held is None:
            held = directories_named(self._path, name)
        directories = held | _directories_of(heads)
        check_name(name, directories)
        self._directories[name] = directories

    def _refused(
        self, parts: Sequence[TableBatch], quarantined: Mapping[str, Quarantine], batch: Batch
    ) -> dict[str, tuple[int, str]]:
        """Return where tables, by directory, have the first value that is null in its message
        because the plugin has no form for it, and what is told of it.
        """
        found = {}
        for part in parts:
            if (untold := self._untold(part, batch)) is not None:
                found[part.relation.directory] = untold
            told = [each for s, _, _ in part.schemas if (each := refused_of(s)) is not None]
            if not told:
                continue
            directory = part.relation.directory
            state = quarantined.get(directory)
            begin = batch.start_lsn if state is None else state.lsn_value
            # What a load was later than, and a batch that comes again, is in nobody's way.
            begin = max(begin, self._tables.durable_lsn(HISTORY, directory) if state is None else 0)
            values = [value for each in told if (value := each.from_lsn(begin)) is not None]
            if values:
                first = min(values, key=lambda value: value.commit_lsn)
                at = max(begin, first.commit_lsn)
                if directory not in found or at < found[directory][0]:
                    found[directory] = (at, refused_reason(first, part.relation.name, self._path))
        return found

    def _untold(self, part: TableBatch, batch: Batch) -> tuple[int, str] | None:
        """Return from where on changes don't tell what becomes of a table's rows, and why: its key
        is masked, or not that of all its partitions, or a partition with rows was attached, or
        rows were changed under another replica identity or none.
        """
        directory = part.relation.directory
        for schema, first, last in part.schemas:
            attached = attached_of(schema)
            # What a load was later than is in nobody's way.
            if self._is_loaded(directory, attached.commit_lsn if attached else last[0]):
                continue
            if attached is not None:
                reason = attached_reason(attached, part.relation.name)
                return max(attached.commit_lsn, batch.start_lsn), reason
            try:
                check_key(relation_of(schema))
            except LakeSchemaConflict as error:
                return max(first[0], batch.start_lsn), f"{error.message}. {error.hint}"
        return self._unidentified(part, batch)

    def _unidentified(self, part: TableBatch, batch: Batch) -> tuple[int, str] | None:
        """Return from where on rows were changed of which WAL doesn't have what the current table
        is kept by, and what is told of it.

        Rows that are inserted meanwhile are no reason, so the messages are looked at: those in such
        an identity only, which are rare.
        """
        relation, key = part.relation, part.key
        if key is None or is_loading(self._path, relation.directory):
            return None
        if self._history_falls_short(part, batch):
            return batch.start_lsn, only_history_reason(relation.name, key)
        begin = self._tables.durable_lsn(CURRENT, relation.directory)
        newest = part.shapes[-1]
        if begin and (given := new_key(part.base, part.shapes, key)) is not None:
            shape, names = given
            if shape.first[0] >= begin and self._has_rows(relation.directory):
                at = max(shape.first[0], batch.start_lsn)
                return at, new_key_reason(relation.name, names)
        others = {
            fingerprint(schema): not has_key(schema, newest, key)
            for schema, _, last in part.schemas
            if last[0] >= begin and not identifies(schema, newest, key)
        }
        if not others:
            return None
        look = FirstUnidentified(others, begin)
        found = part.messages().mapInArrow(look, from_arrow_schema(look.FOUND)).collect()
        if not found:
            return None
        at = min(row["_commit_lsn"] for row in found)
        return max(at, batch.start_lsn), unidentified_reason(relation.name, key)

    def _has_rows(self, directory: str) -> bool:
        current = self._tables.current(directory)
        return current is not None and not current.isEmpty()

    def _history_falls_short(self, part: TableBatch, batch: Batch) -> bool:
        """Say whether a table of which there was only a history is to have a current table, and
        that history does not make its rows.
        """
        directory, name = part.relation.directory, part.relation.name
        if self._tables.durable_lsn(CURRENT, directory):
            return False
        held = self._tables.schema(HISTORY, directory)
        # It has old keys as soon as one message could have had one.
        if held is None or OLD_KEY in held.names:
            return False
        changes = self._tables.history(directory, 0, batch.start_lsn)
        if changes.isEmpty():
            return False
        known = [shape for shape in self._known.shapes(name) if shape.first[0] < batch.start_lsn]
        if not known or any(shape.facts != part.shapes[0].facts for shape in known):
            return True
        if load_state(self._path, directory) is None:
            lsn, seq = min(shape.first for shape in known)
            begins = (F.col("_commit_lsn") == lsn) & (F.col("_seq") == seq)
        else:
            begins = F.col("_op") == "R"
        # What retention has removed is not there any more.
        return (
            changes.where(begins).isEmpty()
            or not changes.where(F.col("_op").isin(*CHANGED)).isEmpty()
        )

    def _leave_out(
        self,
        refused: Mapping[str, tuple[int, str]],
        decision: Decision,
        quarantined: dict[str, Quarantine],
    ) -> None:
        """Have tables with such values set aside from there on, or stay so."""
        for directory, (lsn, why) in refused.items():
            if directory not in quarantined:
                other = decision.set_aside.get(directory)
                if other is None or lsn <= other[0]:
                    decision.set_aside[directory] = (lsn, why)
            elif directory in decision.released:
                decision.released.discard(directory)
                if quarantined[directory].resumed:
                    decision.refused[directory] = why

    def _put(
        self,
        decision: Decision,
        quarantined: dict[str, Quarantine],
        batch: Batch,
        *,
        by_command: Collection[str],
    ) -> None:
        """Make it durable which tables are set aside, in *quarantined* as well; those of
        *by_command* come back by one only, under every policy.
        """
        for directory, (lsn, reason) in decision.set_aside.items():
            if lsn < batch.end_lsn:
                asked = self._policy != OnSchemaChange.QUARANTINE or directory in by_command
                table = ".".join(table_of(directory))
                state = quarantine.made(table, lsn, reason, by_command=asked)
                quarantined[directory] = quarantine.put(self._path, directory, state)
                _log.warning("%s", state)
        for directory, reason in decision.refused.items():
            state = replace(
                quarantined[directory], reason=reason, resumed=False, gives_up=False, paused=False
            )
            quarantined[directory] = quarantine.put(self._path, directory, state)
            _log.warning("%s", state)

    def _part(
        self,
        name: str,
        heads: list[Row],
        envelopes: DataFrame,
        batch: Batch,
        stored: Mapping[str, DataFrame],
    ) -> TableBatch:
        """Return a table's part of a batch as if all of it were to be written."""
        heads.sort(key=lambda head: tuple(head["first"]))
        schemas: tuple[tuple[pa.Schema, Place, Place], ...] = tuple(
            (
                pa.ipc.read_schema(pa.py_buffer(head["arrow_schema"])),
                tuple(head["first"]),
                tuple(head["last"]),
            )
            for head in heads
        )
        shapes = table_shape.shapes(schemas, name)
        relation = relation_of_all([s for s, _, _ in schemas], self._tables.key)
        set_aside = stored.get(relation.directory)

        def messages() -> DataFrame:
            of_batch = envelopes.where(F.col("relation") == name).select("payload")
            if set_aside is None:
                return of_batch
            return set_aside.select("payload").unionAll(of_batch)

        return TableBatch(
            relation,
            schemas,
            shapes,
            sum(head["changes"] for head in heads),
            any(head["special"] for head in heads),
            batch,
            self._base(relation, shapes[0].first),
            messages,
            set_aside is None,
        )

    def _changes(
        self, part: TableBatch, names: Callable[[table_shape.Shape], str | None]
    ) -> TableChanges:
        name, directory = part.relation.name, part.relation.directory
        changes = changes_of(name, part.base, part.shapes, names)
        made = None
        if any(not change.needs_nothing for change in changes):
            made = self._tables.partitions(CURRENT, directory)
        return TableChanges(name, directory, changes, part.key is not None, made or ())

    def _names(self, parts: Sequence[TableBatch]) -> Callable[[table_shape.Shape], str | None]:
        """Return what says which name the table of a shape had last before it."""
        found: dict[int, list[tuple[Place, str]]] = {}
        for part in parts:
            for shape in part.shapes:
                found.setdefault(shape.oid, []).append((shape.first, part.relation.name))
        loaded: dict[int, list[tuple[Place, str]]] | None = None

        def before(shape: table_shape.Shape) -> str | None:
            nonlocal loaded
            places = [*found.get(shape.oid, ()), *self._known.names(shape.oid)]
            earlier = [each for each in places if each[0] < shape.first]
            if not earlier:
                # No change of it was ever seen: it may have been loaded under another name.
                if loaded is None:
                    loaded = _loaded_names(self._path)
                earlier = [each for each in loaded.get(shape.oid, ()) if each[0] < shape.first]
            return max(earlier)[1] if earlier else None

        return before

    def _base(self, relation: Relation, place: Place) -> table_shape.Shape | None:
        """Return the shape that a table has before *place*: of changes that came before, or as it
        was loaded.
        """
        known = self._known.before(relation.name, place)
        state = load_state(self._path, relation.directory)
        if state is None or not state.shape or state.lsn_value > place[0]:
            return known
        at = (state.lsn_value, 0)
        return shape_from_text(state.shape, at) if known is None or known.first < at else known

    def _is_loaded(self, directory: str, lsn: int) -> bool:
        """Say whether a table's current state has what commits at *lsn* from a load, or will.

        While a load copies, other DDL of its table waits, but not ATTACH PARTITION: that may be
        later than what is copied.
        """
        state = load_state(self._path, directory)
        if state is not None and state.stage == Stage.COPYING:
            return state.lsn_value > lsn
        return self._is_behind(directory, lsn)

    def _is_behind(self, directory: str, lsn: int) -> bool:
        """Say whether a table has nothing to follow at *lsn*: its current state is of later, or
        will be.
        """
        return (
            is_loading(self._path, directory) or self._tables.durable_lsn(CURRENT, directory) > lsn
        )


def _directories_of(heads: Sequence[Row]) -> set[str]:
    """Return the directories of the tables that messages of one name are of: one, nearly always."""
    schemas = (pa.ipc.read_schema(pa.py_buffer(head["arrow_schema"])) for head in heads)
    return {relation_of(schema).directory for schema in schemas}


def _cut(part: TableBatch, batch: Batch) -> TableBatch:
    """Return what of a table's part is before the end of *batch*, which is the part's own then."""
    schemas = tuple(each for each in part.schemas if each[1][0] < batch.end_lsn)
    if len(schemas) == len(part.schemas):
        return replace(part, batch=batch)
    relation = relation_of_all([schema for schema, _, _ in schemas])
    if relation.without_rows:
        relation = part.relation
    shapes = table_shape.shapes(schemas, relation.name)
    return replace(part, relation=relation, schemas=schemas, shapes=shapes, batch=batch)


def _loaded_names(path: LakePath) -> dict[int, list[tuple[Place, str]]]:
    """Return, by its oid, the name of each table that was loaded, and since when it is known."""
    found: dict[int, list[tuple[Place, str]]] = {}
    for directory in loaded_tables(path):
        state = load_state(path, directory)
        if state is not None and state.shape:
            at = (state.lsn_value, 0)
            oid = shape_from_text(state.shape, at).oid
            found.setdefault(oid, []).append((at, state.table))
    return found
