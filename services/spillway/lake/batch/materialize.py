"""A micro-batch of envelopes becomes table commits, then the slot is confirmed.

::

    envelopes ──cache──▶ which tables, which schemas                one pass over the slot
        │ what changed in a table's shape: follow, stop, or set the table aside (schema_policy)
        │ what can't be written though all else can: set that table aside (poison)
        │ per table; those at a pace of their own are merged beside the batches (pace)
        ├─▶ mapInArrow ─▶ history: append, commit carries end_lsn   without rows before its LSN
        └─▶ history [current's LSN, end_lsn) ─▶ net effect ─▶ current: merge, commit carries end_lsn
    ddl events: append, commit carries end_lsn                      only where there are any
    all tables' own commits read back ≥ end_lsn  ──▶  lake position  ──▶  slot confirmed to end_lsn

Current is fed from history, not from the envelopes: whatever a crash left undone between the two is
found by comparing their LSNs, and one table format's fast columnar files are read instead of Python
decoding again.

While a table is being loaded (:mod:`spillway.lake.load.initial_load`), its current table is the
load's, which leaves it as of an LSN that may be in the middle of a batch; history is ours alone.

Runs on the driver, in ``foreachBatch``, one batch at a time. A batch may come again after a crash;
each step finds what it did before and passes on. Memory: the envelopes of one batch, cached in
Spark with spilling to disk.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spillway.errors import LakeBehindSlot, LakeError, LakeSchemaConflict, LakeTableConflict
from spillway.failpoints import failpoint
from spillway.lake.batch.catch_up import effect_of
from spillway.lake.batch.near import bring
from spillway.lake.batch.pace import Pace
from spillway.lake.batch.plan import Plan, Planner, TableBatch, head_facts
from spillway.lake.batch.poison import is_tables_own, reason
from spillway.lake.batch.schema_policy import OnSchemaChange
from spillway.lake.load_anew import load_anew
from spillway.lake.shape import columns as table_shape
from spillway.lake.shape import emptied
from spillway.lake.shape.changes import (
    EVENT,
    EVENTS,
    KnownShapes,
    event_rows,
)
from spillway.lake.shape.kinds import CURRENT, DDL, HISTORY
from spillway.lake.shape.payload import (
    CHANGE_COLUMNS,
    Relation,
    conform,
    lake_schema,
    merge_schemas,
    parse_message,
    table_of,
)
from spillway.lake.state import boundaries, commit_points, position, quarantine
from spillway.lake.state.loads import is_loading, loading_tables, merge_lock, table_lock
from spillway.lake.state.quarantine import QUARANTINE, SET_ASIDE, SetAside
from spillway.lake.state.shown_tables import shown_tables
from spillway.lake.tables.contract import (
    MULTISET,
    Batch,
    CommitsLost,
    LakeTables,
    check_same_key,
    check_soft_deletes,
)
from spillway.pg.lsn import Lsn
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from spillway.consumer.slot import SlotClient
    from spillway.lake.batch.near import Near
    from spillway.lake.shape.changes import SchemaChange
    from spillway.lake.shape.columns import Place
    from spillway.lake.state.position import LakePosition
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

#: Rows that one Arrow batch carries from mapInArrow to the JVM: messages are joined up to it.
_ROWS_PER_BATCH = 100_000
#: Below this many changes a batch of a table is written as one file.
_CHANGES_PER_FILE = 250_000
#: Tables whose commits are made side by side: by Spark, which has its own threads; and without it,
#: by files and by objects. Objects are waited for; a file's commit is Python's work mostly, and
#: more threads would take it from each other.
_TABLES_AT_ONCE = 3
_FILES_AT_ONCE = 3
_OBJECTS_AT_ONCE = 8
#: How often a batch's commits are made together, when others come first or the catalog doesn't say.
_TOGETHER_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch did; ``changes`` counts what was new to history."""

    batch_id: int
    start_lsn: Lsn
    end_lsn: Lsn
    changes: dict[str, int]
    confirmed_lsn: Lsn
    seconds: float
    #: when the newest change was committed, by the source's clock; None: the batch has none
    newest_commit: datetime | None = None
    #: from the oldest change's commit until the batch was durable
    delay_s: float | None = None
    #: tables that are set aside, and why
    quarantined: tuple[str, ...] = ()
    #: when the newest change of each table was committed
    newest: Mapping[str, datetime] = field(default_factory=dict)
    #: tables that are set aside or being loaded, and when the oldest change was committed that the
    #: batch had of them; None: it had none
    behind: Mapping[str, datetime | None] = field(default_factory=dict)

    def __str__(self) -> str:
        total = sum(self.changes.values())
        return (
            f"batch {self.batch_id}: {total} changes in {len(self.changes)} tables, up to "
            f"{self.end_lsn}, {self.seconds:.1f} s, slot confirmed to "
            f"{self.confirmed_lsn}{self._freshness()}"
            + "".join(f"; {table}" for table in self.quarantined)
        )

    def _freshness(self) -> str:
        return "" if self.delay_s is None else f", {self.delay_s:.1f} s after its oldest commit"


class DecodeMessages:
    """The function given to mapInArrow: payloads in, rows of one schema out. Pickled to
    executors.
    """

    def __init__(self, columns: pa.Schema, from_lsn: int, upto_lsn: int) -> None:
        self._columns = columns
        self._from_lsn = from_lsn
        self._upto_lsn = upto_lsn

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            for body in batch.column("payload"):
                held.append(self._decoded(body.as_buffer()))
                rows += held[-1].num_rows
                if rows >= _ROWS_PER_BATCH:
                    yield pa.concat_batches(held)
                    held, rows = [], 0
        if rows:
            yield pa.concat_batches(held)

    def table(self, bodies: Iterable[pa.Buffer]) -> pa.Table:
        """Return the rows of messages, on the driver."""
        return pa.Table.from_batches(map(self._decoded, bodies), self._columns)

    def _decoded(self, body: pa.Buffer) -> pa.RecordBatch:
        message = parse_message(body)
        return conform(
            message.batch,
            self._columns,
            self._from_lsn,
            self._upto_lsn,
            relation=message.relation.name,
        )


class Materializer:
    """Writes batches of one slot into one lake; :meth:`process` is for ``foreachBatch``."""

    def __init__(
        self,
        tables: LakeTables,
        client: SlotClient,
        path: LakePath,
        lake: LakePosition,
        *,
        only: Sequence[str] = (),
        on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE,
        report: Callable[[BatchReport], None] = lambda _: None,
        pace: Pace | None = None,
    ) -> None:
        self._tables = tables
        self._client = client
        self._path = path
        self._lake = lake
        self._report = report
        self._pace = pace or Pace(tables, path, lake.slot, lake.lsn_value, {})
        #: of the batch at hand: directories of tables that were only appended to
        self._deferred: set[str] = set()
        #: the same: of tables whose current state is not the job's to bring forward
        self._behind: set[str] = set()
        #: whether somebody asked for the batch at hand to end where it does
        self._asked = False
        #: its tables' locks, kept until their commits are made together; None: they aren't
        self._kept: dict[str, ExitStack] | None = None
        self._shown = shown_tables(path)
        self._told_history_only: set[str] = set()
        self._known = KnownShapes(tables)
        self._planner = Planner(tables, path, self._known, on_schema_change, only)

    def process(self, envelopes: DataFrame, batch_id: int) -> None:
        """Make one micro-batch durable and confirm the slot.

        Raises:
            LakeError: any of its kinds; nothing of the batch is confirmed then.
        """
        began = time.monotonic()
        envelopes = envelopes.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            heads = (
                envelopes.groupBy("relation", "fingerprint", "range_start", "range_end")
                .agg(
                    *head_facts(),
                    F.min("first_commit_time").alias("oldest"),
                    F.max("last_commit_time").alias("newest"),
                    F.sum(F.length("payload")).alias("bytes"),
                )
                .collect()
            )
            batch = self._range(heads, batch_id)
            if batch is None:
                return
            plan = self._planner.plan(heads, envelopes, batch, self._lake.lsn_value)
            batch = plan.batch
            if batch.start_lsn < batch.end_lsn:
                changes = self._write(plan, envelopes, heads)
        finally:
            envelopes.unpersist()
        if batch.start_lsn < batch.end_lsn:
            confirmed = self._confirm(plan, sum(changes.values()))
            times = [
                (head["oldest"], head["newest"]) for head in heads if head["relation"] is not None
            ]
            oldest = _committed(heads, "oldest", min)
            self._report(
                BatchReport(
                    batch_id,
                    Lsn(batch.start_lsn),
                    Lsn(batch.end_lsn),
                    changes,
                    Lsn(confirmed),
                    time.monotonic() - began,
                    datetime.fromtimestamp(max(t[1] for t in times) / 1e6, UTC) if times else None,
                    max(0.0, time.time() - min(t[0] for t in times) / 1e6) if times else None,
                    tuple(str(each) for each in (*plan.quarantined.values(), *plan.paused)),
                    {
                        name: at
                        for name, at in _committed(heads, "newest", max).items()
                        if name in changes
                    },
                    {name: oldest.get(name) for name in map(_name, self._behind)},
                )
            )
        if plan.error is not None:
            raise plan.error

    def _write(self, plan: Plan, envelopes: DataFrame, heads: Sequence[Row]) -> dict[str, int]:
        """Make a batch durable in its tables; return the changes of each that were new to its
        history.
        """
        changes: dict[str, int] = {}
        poisoned: dict[str, BaseException] = {}
        near = bring(plan.parts, _sizes(heads), envelopes)
        oldest = _committed(heads, "oldest", min)
        whole = self._asked = boundaries.is_asked(self._path, plan.batch.end_lsn)
        deferred = [part for part in plan.parts if not whole and self._pace.defers(part)]
        self._deferred = {part.relation.directory for part in deferred}
        told = self._tables.durable_lsn(DDL, EVENTS) if plan.events else 0
        writing = partial(self._write_tables, plan, near, changes, poisoned, envelopes)
        for left in reversed(range(_TOGETHER_ATTEMPTS)):
            try:
                with ExitStack() as locks, self._tables.together() as later:
                    # What is merged stays this batch's until it is committed.
                    self._kept = {} if later else None
                    locks.callback(self._release)
                    writing()
            except CommitsLost as error:
                _log.info("a batch is committed anew: %s", error)
                if not left:
                    _log.warning(
                        "the tables of a batch are committed one by one, so that what is in the "
                        "way of one of them is told: %s",
                        error,
                    )
                    writing()
            else:
                break
        self._known.add(change for change in plan.events if change.place[0] >= told)
        for directory in poisoned:
            failpoint("lake.before_poisoned")
            quarantine.put(self._path, directory, plan.quarantined[directory])
            _log.warning("%s", plan.quarantined[directory])
        told_of = {part.relation.directory for part in plan.parts} | plan.aside.keys()
        self._pace.heard(told_of, plan.batch.end_lsn)
        for part in deferred:
            if part.relation.directory not in poisoned:
                self._pace.deferred(part, oldest[part.relation.name])
        self._pace.merged(
            part.relation.directory
            for part in plan.parts
            if part.relation.directory not in self._deferred
        )
        self._pace.store()
        if whole:
            self._pace.settle(plan.batch.end_lsn)
        return changes

    @contextmanager
    def _held(self, name: str) -> Iterator[None]:
        """Be the one who writes a table's current state: in the block, or until the commits are
        made that are made together.
        """
        kept = self._kept
        if kept is not None and name in kept:
            yield
            return
        with ExitStack() as locks:
            locks.enter_context(merge_lock(self._path, name))
            locks.enter_context(table_lock(self._path, name))
            if kept is not None:
                kept[name] = locks.pop_all()
            yield

    def _release(self) -> None:
        kept, self._kept = self._kept or {}, None
        for locks in kept.values():
            locks.close()

    def _write_tables(
        self,
        plan: Plan,
        near: Near,
        changes: dict[str, int],
        poisoned: dict[str, BaseException],
        envelopes: DataFrame,
    ) -> None:
        """Commit a batch to its tables; note what is new of each in *changes*, and what is the
        matter with those that can't be written in *poisoned*.
        """
        near_at_once = _OBJECTS_AT_ONCE if isinstance(self._path, ObjectPath) else _FILES_AT_ONCE
        # Planning and committing is work of one thread: tables overlap theirs.
        with (
            ThreadPoolExecutor(_TABLES_AT_ONCE, "spillway-lake") as threads,
            ThreadPoolExecutor(near_at_once, "spillway-lake-near") as near_threads,
        ):
            commits = []
            for part in plan.parts:
                bodies = near.get(part.relation.name)
                by = threads if bodies is None else near_threads
                if self._kept is not None and is_loading(self._path, part.relation.directory):
                    # A load commits to its history, too: it would be in the others' way.
                    commits.append((part, by.submit(self._commit, part, bodies)))
                else:
                    commits.append(
                        (part, by.submit(copy_context().run, self._commit, part, bodies))
                    )
            for part, commit in commits:
                error = commit.exception()
                if error is None:
                    self._note(part, commit.result(), changes)
                elif not is_tables_own(error):
                    raise error
                else:
                    self._try_again(part, changes, poisoned)
            self._poison(plan, poisoned, envelopes)
            aside = [
                threads.submit(copy_context().run, partial(self._set_aside, *each, plan))
                for each in plan.aside.items()
            ]
            for each in aside:
                if (error := each.exception()) is not None:
                    # What can't be set aside either is not a table's own trouble.
                    raise next(iter(poisoned.values()), error)
        self._append_events(plan, envelopes, near)

    @staticmethod
    def _note(part: TableBatch, appended: int, changes: dict[str, int]) -> None:
        """Note what a part brought; a batch that is written again may find it there."""
        name = part.relation.name
        changes[name] = max(appended, changes.get(name, 0))

    def _try_again(
        self, part: TableBatch, changes: dict[str, int], poisoned: dict[str, BaseException]
    ) -> None:
        """Commit a part that failed; note why, if it fails again by the table's own trouble."""
        try:
            self._note(part, self._commit(part), changes)
        except BaseException as error:
            if not is_tables_own(error):
                raise
            poisoned[part.relation.directory] = error

    def _poison(
        self, plan: Plan, poisoned: Mapping[str, BaseException], envelopes: DataFrame
    ) -> None:
        """Have the plan set tables aside whose parts can't be written."""
        for part in [part for part in plan.parts if part.relation.directory in poisoned]:
            name, directory = part.relation.name, part.relation.directory
            why = reason(poisoned[directory], name, self._path)
            lsn = plan.batch.start_lsn
            known = plan.quarantined.get(directory)
            if known is None and directory in plan.released:
                known = quarantine.quarantined(self._path)[directory]
            tried = str(Lsn(self._tables.durable_lsn(CURRENT, directory)))
            state = replace(quarantine.made(name, lsn, why, by_command=True), tried=tried)
            if known is not None and known.lsn_value <= lsn:
                state = replace(state, lsn=known.lsn, since=known.since)
            plan.quarantined[directory] = state
            plan.released.discard(directory)
            plan.aside[directory] = envelopes.where(F.col("relation") == name)
            plan.parts.remove(part)

    def _commit(self, part: TableBatch, bodies: Sequence[pa.Buffer] | None = None) -> int:
        """Make one table's part durable, history first; return how many changes were new to it.

        *bodies* are its messages, if they are here: then Spark is asked only for what the table's
        format can't do by itself.
        """
        failpoint("lake.before_history")
        name, batch = part.relation.directory, part.batch
        # Whoever writes current now, a load or a merge beside the batches, is not waited for.
        theirs = name in self._deferred or is_loading(self._path, name)
        with table_lock(self._path, name) if theirs else self._held(name):
            had = self._tables.durable_lsn(HISTORY, name)
            appended, history, rows = 0, None, None
            if had < batch.end_lsn:
                appended = part.changes
                history, rows = self._append(part, had, bodies)
            failpoint("lake.after_history")
            if not theirs and not is_loading(self._path, name):
                self._merge(part, had, history, rows)
        if theirs and name not in self._deferred:
            # The load may have ended meanwhile, and may not have seen what came.
            with self._held(name):
                if not is_loading(self._path, name):
                    self._merge(part, had, history, rows)
        failpoint("lake.after_current")
        return appended

    def _set_aside(self, directory: str, messages: DataFrame, plan: Plan) -> None:
        """Keep what comes for a table in quarantine as it is."""
        had = self._tables.durable_lsn(QUARANTINE, directory)
        begin = max(had, plan.batch.start_lsn, plan.quarantined[directory].lsn_value)
        if had < plan.batch.end_lsn:
            schema = from_arrow_schema(SET_ASIDE)
            kept = SetAside(begin, plan.batch.end_lsn)
            rows = messages.coalesce(1).mapInArrow(kept, schema)
            self._tables.append_history(directory, rows, plan.batch, kind=QUARANTINE)
        failpoint("lake.after_quarantine")

    def _append_events(self, plan: Plan, envelopes: DataFrame, near: Near) -> None:
        """Tell of what changed in the tables' shapes, in the lake's table of such events."""
        if not plan.events:
            return
        had = self._tables.durable_lsn(DDL, EVENTS)
        events = [change for change in plan.events if change.place[0] >= had]
        if events and had < plan.batch.end_lsn:
            made = self._changes_at(events, envelopes, near)
            rows = pa.Table.from_pylist(list(event_rows(events, made)), schema=EVENT)
            if not self._tables.append_plain(EVENTS, rows, plan.batch, kind=DDL):
                frame = envelopes.sparkSession.createDataFrame(rows).coalesce(1)
                self._tables.append_history(EVENTS, frame, plan.batch, kind=DDL)
        failpoint("lake.after_ddl")

    def _changes_at(
        self, events: Sequence[SchemaChange], envelopes: DataFrame, near: Near
    ) -> dict[Place, Mapping[str, Any]]:
        """Return when the changes at the places of *events*, which messages begin with, were made,
        and by which transactions.
        """
        places = {change.place for change in events}
        wanted = ["_commit_lsn", "_seq", "_xid", "_commit_time"]
        schema = from_arrow_schema(pa.schema([CHANGE_COLUMNS.field(name) for name in wanted]))
        lsns = [lsn for lsn, _ in places]
        decode = DecodeMessages(to_arrow_schema(schema, timezone="UTC"), min(lsns), max(lsns) + 1)
        rows: list[dict[str, Any]] = []
        here = {change.table for change in events} & near.keys()
        for name in here:
            rows += _first_rows(decode, near[name], places)
        if len(here) < len({change.table for change in events}):
            first = envelopes.where(F.col("first_commit_lsn").isin(lsns)).select("payload")
            found = first.mapInArrow(decode, schema).where(F.col("_commit_lsn").isin(lsns))
            found = found.where(F.col("_seq").isin([seq for _, seq in places]))
            rows += [row.asDict() for row in found.collect()]
        return {(row["_commit_lsn"], row["_seq"]): row for row in rows}

    def _range(self, heads: list[Row], batch_id: int) -> Batch | None:
        """Return the range that the batch read, None for an empty plan.

        Raises:
            LakeBehindSlot: the batch begins after what the lake has.
            LakeError: a partition's closing row is missing: it was not read to its end.
        """
        ranges = sorted(
            {(head["range_start"], head["range_end"]) for head in heads if head["relation"] is None}
        )
        if not ranges:
            return None
        for (_, end), (start, _) in pairwise(ranges):
            if end != start:
                raise LakeError(
                    f"batch {batch_id} was not read whole: nothing between {Lsn(end)} and "
                    f"{Lsn(start)}"
                )
        start, end = ranges[0][0], ranges[-1][1]
        if start > self._lake.lsn_value:
            raise LakeBehindSlot(
                f"batch {batch_id} begins at {Lsn(start)}, and the lake has everything before "
                f"{self._lake.lsn} only",
                hint="The lake is older than the checkpoint (restored from a backup?): use a new "
                "checkpoint, and rewind the slot to the lake's position.",
                slot=self._lake.slot,
                lsn=self._lake.lsn,
            )
        return Batch(self._lake.slot, start, end, batch_id)

    def _append(
        self, part: TableBatch, had: int, bodies: Sequence[pa.Buffer] | None
    ) -> tuple[pa.Schema, pa.Table | None]:
        """Append a table's changes to its history, which has everything before *had*; return its
        schema then, and what was appended if it is here.
        """
        name, batch = part.relation.directory, part.batch
        held = self._tables.schema(HISTORY, name)
        for schema, _, _ in part.schemas:
            incoming = lake_schema(schema)
            held = (
                incoming
                if held is None
                else merge_schemas(held, incoming, part.relation.name, self._tables.widest)
            )
        assert held is not None  # there is a message
        schema = from_arrow_schema(held, prefer_timestamp_ntz=True)
        decode = DecodeMessages(
            to_arrow_schema(schema, timezone="UTC"), max(had, batch.start_lsn), batch.end_lsn
        )
        if bodies is not None:
            rows = decode.table(bodies)
            if self._tables.append_plain(name, rows, batch):
                return held, rows
        messages = part.messages()
        if part.changes < _CHANGES_PER_FILE:
            messages = messages.coalesce(1)
        self._tables.append_history(name, messages.mapInArrow(decode, schema), batch)
        return held, None

    def _merge(
        self, part: TableBatch, had: int, history: pa.Schema | None, rows: pa.Table | None
    ) -> None:
        """Bring a table's current state to the batch's end from its history.

        History had *had* before the batch, and has the schema *history*; None: it is to be looked
        up. *rows* are what the batch brought to it, if they are here.
        """
        name, key, batch = part.relation.directory, part.key, part.batch
        start = self._tables.durable_lsn(CURRENT, name)
        # Loaded as of an LSN within the batch, current may have a newer shape than the changes
        # before it.
        if start >= batch.end_lsn or start > part.last_lsn:
            return
        if key is None:
            stored = self._tables.key(name)
            if stored is not None:
                raise LakeTableConflict(
                    f"changes of {part.relation.name} don't say which row they are of any more, "
                    "and its current table is kept by them",
                    hint="Give the table its primary key or replica identity back (ALTER TABLE … "
                    f"REPLICA IDENTITY FULL), and load it anew: {load_anew(part.relation.name)}.",
                    relation=part.relation.name,
                )
            self._tell_history_only(part.relation)
            return
        shapes = part.shapes_from(start)
        newest = shapes[-1]
        softly = self._shown.softly(part.relation.name)
        if softly:
            check_soft_deletes(part.relation, key)
            newest = table_shape.with_deleted_at(newest, part.relation.name)
        wanted = table_shape.current_schema(newest.columns)
        # If current was behind, history has changes that this batch brings once more, or says
        # nothing about: what they are is found where they are read.
        whole = start >= had
        if not whole:
            rows = None
        special = part.special or not whole
        plain = whole and not special and not softly
        deferrable = part.is_key_deferrable or self._pace.key_deferrable(name)
        # Rows that stay when they are gone are Spark's.
        direct = not softly and (not part.special or self._tables.takes_special)
        # A table that is to be made has all that history has, if that is this batch.
        begun = start > 0 or (rows is not None and not had)
        if direct and begun and key != MULTISET and len(shapes) == 1 and not deferrable:
            history = history or self._tables.schema(HISTORY, name)
            if (
                history is not None
                and table_shape.plainly_stored(history, newest)
                and self._tables.merge_plain(name, start, wanted, key, batch, rows)
            ):
                return
        self._follow(part, key, start, newest)
        events = table_shape.as_of_last(
            self._tables.history(name, start, batch.end_lsn), shapes, part.relation.name
        )
        columns = part.columns
        if special or softly:
            current = self._tables.current(name)
            events = emptied.as_deletes(events, columns, current, softly=softly)
        effect = effect_of(
            events, columns, key, lambda: self._tables.current(name),
            key_deferrable=deferrable, softly=softly, plain=plain,
        )  # fmt: skip
        self._tables.apply(name, effect, wanted, key, batch)

    def _confirm(self, plan: Plan, changes: int) -> int:
        """Advance the slot to the batch's end, once every table that it touched says that it is
        durable there.
        """
        batch = plan.batch
        for part in plan.parts:
            name = part.relation.directory
            needed = {HISTORY: part.batch.end_lsn}
            if part.key is not None and name not in self._deferred:
                with table_lock(self._path, name):
                    if not is_loading(self._path, name):
                        needed[CURRENT] = min(part.batch.end_lsn, part.last_lsn + 1)
            for kind, lsn in needed.items():
                self._check_durable(kind, name, lsn)
        for name in plan.aside:
            self._check_durable(QUARANTINE, name, batch.end_lsn)
        for name in plan.released:
            quarantine.release(self._path, name)
        self._behind = {*loading_tables(self._path), *plan.quarantined}
        if batch.end_lsn > self._lake.lsn_value:
            failpoint("lake.before_position")
            # Before the position: a point may be published twice, and would never be after it.
            with self._pace.behind() as waiting:
                behind = sorted(self._behind.union(waiting))
                commit_points.publish(self._path, batch.end_lsn, batch.batch_id, changes, behind)
            self._lake = replace(self._lake, lsn=str(Lsn(batch.end_lsn)))
            position.store(self._path, self._lake)
            self._pace.reached(batch.end_lsn)
        if self._asked:
            failpoint("lake.before_served")
            boundaries.served(self._path, batch.end_lsn)
        failpoint("lake.before_advance")
        confirmed = self._client.advance(self._lake.slot, self._lake.lsn_value)
        failpoint("lake.after_advance")
        return confirmed

    def _check_durable(self, kind: str, name: str, lsn: int) -> None:
        durable = self._tables.durable_lsn(kind, name)
        if durable < lsn:
            raise LakeError(
                f"{kind} table {name} says {Lsn(durable)} after a commit up to {Lsn(lsn)}; the "
                "slot is not confirmed",
                relation=name,
            )

    def _follow(
        self, part: TableBatch, key: tuple[str, ...], start: int, newest: table_shape.Shape
    ) -> None:
        """Give the current table, which is as of *start*, the columns that it has at the batch's
        end: those of *newest*.
        """
        name, relation = part.relation.directory, part.relation
        current = self._tables.current(name)
        if current is None:
            return
        before = part.shape_at(start)
        if before is not None and not before.is_of(newest):
            self._tables.reshape(name, table_shape.begun_anew(current, newest, key))
            failpoint("lake.after_reshape")
            return
        dropped = table_shape.dropped_columns(current.schema, newest)
        if start and key == MULTISET and dropped:
            raise LakeSchemaConflict(
                f"{relation.name} has no primary key and lost column {dropped[0]!r}: its old rows "
                "can't be told apart from the new ones",
                hint="Give the table a primary key, or move its current table away and load it "
                "afresh.",
                relation=relation.name,
                column=dropped[0],
            )
        followed = table_shape.follow(current, newest, relation.name, before)
        if followed is not None:
            check_same_key(name, self._tables.key(name) or MULTISET, key)
            self._tables.reshape(name, followed)
            failpoint("lake.after_reshape")

    def _tell_history_only(self, relation: Relation) -> None:
        if relation.name not in self._told_history_only:
            self._told_history_only.add(relation.name)
            _log.warning(
                "%s has neither a primary key nor a replica identity: updates and deletes don't "
                "say which row. Its history is kept, a current table is not. (ALTER TABLE … ADD "
                "PRIMARY KEY, or REPLICA IDENTITY FULL)",
                relation.name,
            )


def _name(directory: str) -> str:
    return ".".join(table_of(directory))


def _sizes(heads: Sequence[Row]) -> dict[str, int]:
    """Return the bytes of messages that a batch has of each table."""
    sizes: dict[str, int] = {}
    for head in heads:
        if head["relation"] is not None:
            sizes[head["relation"]] = sizes.get(head["relation"], 0) + head["bytes"]
    return sizes


def _committed(
    heads: Sequence[Row], which: str, choose: Callable[[int, int], int]
) -> dict[str, datetime]:
    """Return when the oldest or the newest change of each table was committed: *which* is that
    column of *heads*, *choose* gives the one of two.
    """
    found: dict[str, int] = {}
    for head in heads:
        if (name := head["relation"]) is not None:
            found[name] = choose(found.get(name, head[which]), head[which])
    return {name: datetime.fromtimestamp(at / 1e6, UTC) for name, at in found.items()}


def _first_rows(
    decode: DecodeMessages, bodies: Iterable[pa.Buffer], places: set[Place]
) -> Iterator[dict[str, Any]]:
    """Yield the first changes of messages, where they are at *places*."""
    for body in bodies:
        for row in decode.table([body]).slice(0, 1).to_pylist():
            if (row["_commit_lsn"], row["_seq"]) in places:
                yield row
