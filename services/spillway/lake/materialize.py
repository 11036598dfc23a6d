"""A micro-batch of envelopes becomes table commits, then the slot is confirmed.

::

    envelopes ──cache──▶ which tables, which schemas                    one pass over the slot
        │ per table
        ├─▶ mapInArrow ─▶ history: append, commit carries end_lsn       rows before the table's LSN left out
        └─▶ history [current's LSN, end_lsn) ─▶ net effect ─▶ current: merge, commit carries end_lsn
    all tables' own commits read back ≥ end_lsn  ──▶  lake position  ──▶  slot confirmed to end_lsn

Current is fed from history, not from the envelopes: whatever a crash left undone between the two is found by comparing
their LSNs, and one table format's fast columnar files are read instead of Python decoding again.

While a table is being loaded (:mod:`spillway.lake.initial_load`), its current table is the load's, which leaves it as of an
LSN that may be in the middle of a batch; history is ours alone.

Runs on the driver, in ``foreachBatch``, one batch at a time. A batch may come again after a crash; each step finds
what it did before and passes on. Memory: the envelopes of one batch, cached in Spark with spilling to disk.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spillway.errors import LakeBehindSlot, LakeError, LakeSchemaConflict
from spillway.failpoints import failpoint
from spillway.lake import columns as table_shape
from spillway.lake import commit_points, net_effect, position
from spillway.lake.initial_load_state import is_loading, loading_tables, table_lock
from spillway.lake.payload import (
    Relation,
    conform,
    lake_schema,
    merge_schemas,
    parse_message,
    relation_of,
)
from spillway.lake.tables import (
    CURRENT,
    HISTORY,
    MULTISET,
    Batch,
    LakeTables,
    check_same_key,
    row_key,
)
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row

    from spillway.lake.position import LakePosition
    from spillway.lake.slot import SlotClient
    from spillway.lake.storage import LakePath

_log = logging.getLogger(__name__)

#: Rows that one Arrow batch carries from mapInArrow to the JVM: messages are joined up to it.
_ROWS_PER_BATCH = 100_000
#: Below this many changes a batch of a table is written as one file.
_CHANGES_PER_FILE = 250_000
_TABLES_AT_ONCE = 3


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

    def __str__(self) -> str:
        total = sum(self.changes.values())
        return (
            f"batch {self.batch_id}: {total} changes in {len(self.changes)} tables, up to {self.end_lsn}, "
            f"{self.seconds:.1f} s, slot confirmed to {self.confirmed_lsn}{self._freshness()}"
        )

    def _freshness(self) -> str:
        return "" if self.delay_s is None else f", {self.delay_s:.1f} s after its oldest commit"


@dataclass(frozen=True, slots=True)
class _TableBatch:
    """One table's part of a batch: its relation as of the last message, and the schema for all its messages."""

    relation: Relation
    schema: pa.Schema
    shapes: tuple[table_shape.Shape, ...]
    changes: int
    #: a TRUNCATE or an unchanged TOAST value is among the changes
    special: bool

    @property
    def last_lsn(self) -> int:
        """Where the last change's commit record starts."""
        return self.shapes[-1].last[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns after the batch; ``schema`` has those that were dropped in it, too."""
        return tuple(column.name for column in self.shapes[-1].columns)


class DecodeMessages:
    """The function given to mapInArrow: payloads in, rows of one schema out. Pickled to executors."""

    def __init__(self, columns: pa.Schema, from_lsn: int) -> None:
        self._columns = columns
        self._from_lsn = from_lsn

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            for body in batch.column("payload"):
                decoded = conform(
                    parse_message(body.as_buffer()).batch, self._columns, self._from_lsn
                )
                held.append(decoded)
                rows += decoded.num_rows
                if rows >= _ROWS_PER_BATCH:
                    yield pa.concat_batches(held)
                    held, rows = [], 0
        if rows:
            yield pa.concat_batches(held)


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
        report: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        self._tables = tables
        self._client = client
        self._path = path
        self._lake = lake
        self._only = frozenset(only)
        self._report = report
        self._told_history_only: set[str] = set()

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
                    F.first("arrow_schema").alias("arrow_schema"),
                    F.sum("changes").alias("changes"),
                    F.min(F.struct("first_commit_lsn", "first_seq")).alias("first"),
                    F.max(F.struct("last_commit_lsn", "last_seq")).alias("last"),
                    F.max("special").alias("special"),
                    F.min("first_commit_time").alias("oldest"),
                    F.max("last_commit_time").alias("newest"),
                )
                .collect()
            )
            batch = self._range(heads, batch_id)
            if batch is None:
                return
            parts = self._parts(heads)
            # Planning and committing is work of one thread: tables overlap theirs.
            with ThreadPoolExecutor(_TABLES_AT_ONCE, "spillway-lake") as threads:
                counts = threads.map(lambda part: self._commit(part, envelopes, batch), parts)
                changes = dict(zip((part.relation.name for part in parts), counts, strict=True))
        finally:
            envelopes.unpersist()
        confirmed = self._confirm(batch, parts, sum(changes.values()))
        times = [(head["oldest"], head["newest"]) for head in heads if head["relation"] is not None]
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
            )
        )

    def _commit(self, part: _TableBatch, envelopes: DataFrame, batch: Batch) -> int:
        """Make one table's part durable, history first; return how many changes were new to it."""
        failpoint("lake.before_history")
        messages = envelopes.where(F.col("relation") == part.relation.name)
        name = part.relation.directory
        with table_lock(self._path, name):
            had = self._tables.durable_lsn(HISTORY, name)
            appended = 0 if had >= batch.end_lsn else self._append(part, messages, batch, had)
            failpoint("lake.after_history")
            if not is_loading(self._path, name):
                self._merge(part, batch, had)
        failpoint("lake.after_current")
        return appended

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
                    f"batch {batch_id} was not read whole: nothing between {Lsn(end)} and {Lsn(start)}"
                )
        start, end = ranges[0][0], ranges[-1][1]
        if start > self._lake.lsn_value:
            raise LakeBehindSlot(
                f"batch {batch_id} begins at {Lsn(start)}, and the lake has everything before {self._lake.lsn} only",
                hint="The lake is older than the checkpoint (restored from a backup?): use a new checkpoint, "
                "and rewind the slot to the lake's position.",
                slot=self._lake.slot,
                lsn=self._lake.lsn,
            )
        return Batch(self._lake.slot, start, end, batch_id)

    def _parts(self, heads: list[Row]) -> list[_TableBatch]:
        """Return the tables that the batch touches, each with one schema for all its messages."""
        by_name: dict[str, list[Row]] = {}
        for head in heads:
            name = head["relation"]
            if name is not None and (not self._only or name in self._only):
                by_name.setdefault(name, []).append(head)
        parts = []
        for name, of_table in sorted(by_name.items()):
            of_table.sort(key=lambda head: tuple(head["first"]))
            schemas = [pa.ipc.read_schema(pa.py_buffer(head["arrow_schema"])) for head in of_table]
            merged = lake_schema(schemas[0])
            for schema in schemas[1:]:
                merged = merge_schemas(merged, lake_schema(schema), name)
            places = ((tuple(head["first"]), tuple(head["last"])) for head in of_table)
            shapes = table_shape.shapes(
                ((schema, *place) for schema, place in zip(schemas, places, strict=True)), name
            )
            changes = sum(head["changes"] for head in of_table)
            special = any(head["special"] for head in of_table)
            parts.append(_TableBatch(relation_of(schemas[-1]), merged, shapes, changes, special))
        return parts

    def _append(self, part: _TableBatch, messages: DataFrame, batch: Batch, had: int) -> int:
        """Append a table's changes to its history, which has everything before *had*; return how many."""
        name = part.relation.directory
        stored = self._tables.schema(HISTORY, name)
        if stored is not None:
            merge_schemas(stored, part.schema, part.relation.name)
        schema = from_arrow_schema(part.schema, prefer_timestamp_ntz=True)
        decode = DecodeMessages(to_arrow_schema(schema, timezone="UTC"), max(had, batch.start_lsn))
        if part.changes < _CHANGES_PER_FILE:
            messages = messages.coalesce(1)
        rows = messages.select("payload").mapInArrow(decode, schema)
        self._tables.append_history(name, rows, batch)
        return part.changes

    def _merge(self, part: _TableBatch, batch: Batch, had: int) -> None:
        """Bring a table's current state to the batch's end from its history, which had *had* before the batch."""
        name = part.relation.directory
        columns = part.columns
        key = row_key(part.relation, columns)
        if key is None:
            self._tell_history_only(part.relation)
            return
        start = self._tables.durable_lsn(CURRENT, name)
        # Loaded as of an LSN within the batch, current may have a newer shape than the changes before it.
        if start >= batch.end_lsn or start > part.last_lsn:
            return
        wanted = table_shape.current_schema(part.shapes[-1].columns)
        # If current was behind, there are changes in history that this batch says nothing about.
        plain = start >= had and not part.special
        direct = plain and start > 0 and key != MULTISET and len(part.shapes) == 1
        if direct and self._tables.merge_plain(name, start, wanted, key, batch):
            return
        self._follow(part, key, loaded=bool(start))
        events = table_shape.as_of_last(
            self._tables.history(name, start, batch.end_lsn), part.shapes, part.relation.name
        )
        if key == MULTISET:
            effect = net_effect.multiset(events, columns)
        else:
            effect = net_effect.keyed(events, columns, key, self._tables.current(name), plain=plain)
        self._tables.apply(name, effect, wanted, key, batch)

    def _confirm(self, batch: Batch, parts: list[_TableBatch], changes: int) -> int:
        """Advance the slot to the batch's end, once every table that it touched says that it is durable there."""
        for part in parts:
            name = part.relation.directory
            needed = {HISTORY: batch.end_lsn}
            if row_key(part.relation, part.columns) is not None:
                with table_lock(self._path, name):
                    if not is_loading(self._path, name):
                        needed[CURRENT] = min(batch.end_lsn, part.last_lsn + 1)
            for kind, lsn in needed.items():
                durable = self._tables.durable_lsn(kind, name)
                if durable < lsn:
                    raise LakeError(
                        f"{kind} table of {part.relation.name} says {Lsn(durable)} after a commit up to "
                        f"{Lsn(batch.end_lsn)}; the slot is not confirmed",
                        relation=part.relation.name,
                    )
        if batch.end_lsn > self._lake.lsn_value:
            failpoint("lake.before_position")
            # Before the position: a point may be published twice, and would never be after it.
            commit_points.publish(
                self._path, batch.end_lsn, batch.batch_id, changes, loading_tables(self._path)
            )
            self._lake = replace(self._lake, lsn=str(Lsn(batch.end_lsn)))
            position.store(self._path, self._lake)
        failpoint("lake.before_advance")
        confirmed = self._client.advance(self._lake.slot, self._lake.lsn_value)
        failpoint("lake.after_advance")
        return confirmed

    def _follow(self, part: _TableBatch, key: tuple[str, ...], *, loaded: bool) -> None:
        """Give the current table the columns that the source has at the batch's end."""
        name, relation = part.relation.directory, part.relation
        current = self._tables.current(name)
        if current is None:
            return
        newest = part.shapes[-1]
        dropped = table_shape.dropped_columns(current.schema, newest)
        if loaded and key == MULTISET and dropped:
            raise LakeSchemaConflict(
                f"{relation.name} has no primary key and lost column {dropped[0]!r}: its old rows can't be told apart "
                "from the new ones",
                hint="Give the table a primary key, or move its current table away and load it afresh.",
                relation=relation.name,
                column=dropped[0],
            )
        followed = table_shape.follow(current, newest, relation.name)
        if followed is not None:
            check_same_key(name, self._tables.key(name) or MULTISET, key)
            self._tables.reshape(name, followed)
            failpoint("lake.after_reshape")

    def _tell_history_only(self, relation: Relation) -> None:
        if relation.name not in self._told_history_only:
            self._told_history_only.add(relation.name)
            _log.warning(
                "%s has neither a primary key nor a replica identity: updates and deletes don't say which row. "
                "Its history is kept, a current table is not. (ALTER TABLE … ADD PRIMARY KEY, or REPLICA IDENTITY FULL)",
                relation.name,
            )
