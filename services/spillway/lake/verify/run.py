"""``spillway lake verify``: the lake against its source, as of one LSN, while both go on.

::

    hold the job ──▶ snapshot of the source, as of S ──▶ ask for a batch up to S ──▶ let it go on
    the job (or, when none is at work, a run of it from here) reaches S
    each table: the source's snapshot against the lake pinned at S

S is later than all that WAL had when the job was held (:mod:`spillway.consumer.snapshots`), so the
lake isn't past it, and there is a batch that ends there even when nothing is written.

Both sides are as of the same LSN, so every difference is one: there is no "may still be on its
way". The source's tables keep their shapes for as long as it takes (DDL waits, as for pg_dump).
:mod:`spillway.lake.verify.checksums` says what is compared.

A table without a current table has nothing that could be compared, which is said of it: one that is
set aside, or whose changes don't say which rows they are of. If they do, its current table was
removed, and that is a difference. Columns that one side lacks are named: the lake follows ALTER
TABLE with the table's next change.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, cast

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spillway.consumer.connect import DEFAULT_ADDRESS, connect, exports_of, identity_of
from spillway.consumer.row_checksums import values_of
from spillway.consumer.row_differences import Difference
from spillway.consumer.snapshots import Source, names_any
from spillway.errors import (
    LakeError,
    LakeSchemaConflict,
    LakeTableConflict,
    NotReady,
    SourceError,
    SpillwayError,
)
from spillway.failpoints import failpoint
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.copy_ranges import CopyRanges
from spillway.lake.load_anew import load_anew
from spillway.lake.read import Lake
from spillway.lake.session import session_for
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import DELETED_AT, quoted
from spillway.lake.shape.payload import OLD_KEY, directory_of, lake_schema, table_of
from spillway.lake.state import boundaries, commit_points, job_record, position, shown_tables
from spillway.lake.state.loads import BLOCK_BYTES, RANGE_BYTES, is_loading, known_tables
from spillway.lake.state.quarantine import quarantined
from spillway.lake.tables.contract import check_name
from spillway.lake.tables.formats import lake_tables
from spillway.lake.verify import checksums
from spillway.lake.verify.comparison import TableComparison, compare
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.plugins.masks import with_secret
from spillway.storage.place import ObjectPath, lake_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from spillway.consumer.snapshots import CopiedTable, SourceSnapshot, SourceTable
    from spillway.lake.read import Pin
    from spillway.lake.state.position import LakePosition
    from spillway.lake.tables.contract import LakeTables
    from spillway.storage.place import LakePath

_POLL_S: Final = 0.2
#: On object storage a look is a request.
_POLL_IN_BUCKET_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What ``spillway lake verify`` is told."""

    path: LakePath
    source_dsn: str = field(repr=False)
    #: ``schema.table``; empty: all that the lake has a current table of
    tables: tuple[str, ...] = ()
    #: differences to name, per table
    limit: int = 20
    #: how long a job at work may take until it reaches the snapshot
    timeout_s: float = 600.0
    grpc: str = DEFAULT_ADDRESS
    token: str = field(default="", repr=False)
    master: str = "local[*]"
    driver_memory: str = "2g"
    #: further settings of Spark's
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: Path | None = None
    #: further options of the data source
    source_options: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Verification:
    """What came out: both sides had everything before *lsn*, and nothing else."""

    lsn: Lsn
    tables: list[TableComparison]
    #: what one of them could not be compared for, which is said of each
    refused: SpillwayError | None = None
    #: tables with rows at the source that the job follows, and of which the lake has nothing
    absent: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.refused is None and all(table.equal for table in self.tables)


def verify(
    settings: VerifySettings,
    *,
    tell: Callable[[str], None] = lambda _: None,
    on_table: Callable[[TableComparison], None] = lambda _: None,
    spark: SparkSession | None = None,
) -> Verification:
    """Compare the lake with its source.

    Args:
        settings: see :class:`VerifySettings`.
        tell: told what is being waited for.
        on_table: called with each table's outcome as it is known.
        spark: a session to use; else one is started, and stopped at the end.

    Raises:
        LakeError: there is no such lake or table.
        SourceError: the source gives no snapshot.
        NotReady: the job at work did not reach the snapshot in time.
    """
    lake = position.existing(settings.path)
    record = job_record.load(settings.path)
    job = JobSettings(
        slot=lake.slot,
        path=settings.path,
        checkpoint=lake_path(record.checkpoint),
        table_format=cast("Literal['delta', 'iceberg', 'parquet']", lake.table_format),
        grpc=settings.grpc,
        token=settings.token,
        tables=tuple(record.tables),
        max_bytes_per_batch=record.max_bytes_per_batch,
        on_schema_change=record.on_schema_change,  # type: ignore[arg-type] # a run wrote it
        merge=record.merge,  # type: ignore[arg-type] # as above
        master=settings.master,
        driver_memory=settings.driver_memory,
        conf=settings.conf,
        source_options=settings.source_options,
    )
    with closing(connect(job.options())) as client:
        source = Source(
            settings.source_dsn,
            {
                **client.position(lake.slot).options,
                **with_secret(shown_tables.plugin_options(settings.path)),
            },
            exports_of(job.options(), lake.slot),
            identity=identity_of(client, lake.source),
        )
    with session_for(settings, lake.table_format, spark) as session:
        return _Verifier(settings, lake, job, source, session, tell, on_table).run()


class _Verifier:
    def __init__(
        self,
        settings: VerifySettings,
        lake: LakePosition,
        job: JobSettings,
        source: Source,
        spark: SparkSession,
        tell: Callable[[str], None],
        on_table: Callable[[TableComparison], None],
    ) -> None:
        self._settings = settings
        self._lake = lake
        self._job = job
        self._source = source
        self._spark = spark
        self._tell = tell
        self._on_table = on_table
        #: tables that could not be compared, and what each failed with
        self._refused: dict[str, SpillwayError] = {}

    def run(self) -> Verification:
        path = self._settings.path
        with ExitStack() as held:
            with boundaries.hold(path):
                wanted = self._wanted()
                there = self._at_source(wanted)
                absent = tuple(
                    name
                    for name, table in sorted(there.items())
                    if table.size_bytes and name not in wanted and self._is_followed(name)
                )
                snapshot = self._snapshot([there[name] for name in wanted if name in there])
                held.callback(snapshot.close)
                held.enter_context(boundaries.request(path, snapshot.lsn))
                failpoint("lake.verify_asked")
            self._reach(snapshot.lsn)
            pin = Lake(self._spark, path).at(Lsn(snapshot.lsn))
            if pin.lsn != snapshot.lsn:
                raise LakeError(
                    f"the lake at {path} ended no batch at {Lsn(snapshot.lsn)}: it has one at "
                    f"{pin.lsn}",
                    hint="The job at work is of another release, or has another directory for its "
                    "lake. Verify again.",
                )
            tables = lake_tables(self._lake.table_format, self._spark, path, self._lake.slot)
            outcomes = []
            for name, directory in wanted.items():
                outcome = self._isolated(name, directory, snapshot, pin, tables)
                self._on_table(outcome)
                outcomes.append(outcome)
        refused = next(iter(self._refused.values()), None)
        return Verification(pin.lsn, outcomes, refused, absent)

    def _at_source(self, wanted: Mapping[str, str]) -> dict[str, SourceTable]:
        """Return the source's tables by name; of a *wanted* name that two have, neither can be
        compared.
        """
        found: dict[str, SourceTable] = {}
        for table in self._source.tables(()):
            two = (found.setdefault(table.name, table), table)
            try:
                check_name(table.name, {directory_of(*each.shown) for each in two})
            except LakeSchemaConflict as error:
                if table.name in wanted:
                    self._refused[table.name] = error
        return found

    def _is_followed(self, name: str) -> bool:
        """Say whether a table that is not named is one of the lake's all the same."""
        return not self._settings.tables and (not self._job.tables or name in self._job.tables)

    def _snapshot(self, tables: list[SourceTable]) -> SourceSnapshot:
        """Take a snapshot of the source, without the tables that it refuses."""
        while True:
            try:
                return self._source.snapshot(tables, self._tell, threading.Event())
            except SpillwayError as error:
                refused = [one for one in tables if names_any(error, [one.name, *one.copied_names])]
                if not refused:
                    raise
                self._refused.update((one.name, error) for one in refused)
                tables = [one for one in tables if one not in refused]

    def _isolated(
        self, name: str, directory: str, snapshot: SourceSnapshot, pin: Pin, tables: LakeTables
    ) -> TableComparison:
        """Compare one table, whose trouble is its own."""
        source = snapshot.connection
        try:
            if name in self._refused:
                raise self._refused[name]
            with source.transaction():
                return self._table(name, directory, snapshot, pin, tables)
        except psycopg.Error as error:
            if source.closed or source.broken:
                raise
            said = error.diag.message_primary or " ".join(str(error).split())
            self._refused[name] = SourceError(
                f"rows of {name} can't be read at the source: {said}",
                hint=error.diag.message_hint or "The source's log says more.",
                sqlstate=error.sqlstate,
            )
        except SpillwayError as error:
            if not names_any(error, [name]) and name not in self._refused:
                raise
            self._refused[name] = error
        refused = self._refused[name]
        return TableComparison(name, skipped=f"{refused.message}. {refused.hint}")

    def _wanted(self) -> dict[str, str]:
        """Return the tables to compare: the source's name, and the lake's directory."""
        path = self._settings.path
        folder = path / CURRENT
        made = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        # What has no current table, for whatever reason, is not passed over in silence.
        directories = sorted(made | known_tables(path) | quarantined(path).keys())
        known = {".".join(table_of(name)): name for name in directories}
        if not self._settings.tables:
            return known
        for name in self._settings.tables:
            if name not in known:
                raise LakeError(
                    f"the lake at {self._settings.path} has no current table of {name}",
                    hint=f"It has {', '.join(known) or 'none'}.",
                    relation=name,
                )
        return {name: known[name] for name in self._settings.tables}

    def _reach(self, lsn: int) -> None:
        """See to it that a batch ends at *lsn*."""
        try:
            self._tell(f"bringing the lake to {Lsn(lsn)}")
            run_job(
                replace(self._job, until_lsn=Lsn(lsn)), on_batch=lambda _: None, spark=self._spark
            )
        except LakeTableConflict:
            if not position.is_locked(self._settings.path):
                raise
        else:
            return
        self._tell(f"waiting for the job at work to reach {Lsn(lsn)}")
        is_object = isinstance(self._settings.path, ObjectPath)
        pause_s = _POLL_IN_BUCKET_S if is_object else _POLL_S
        deadline = time.monotonic() + self._settings.timeout_s
        while self._reached() < lsn:
            if time.monotonic() > deadline:
                raise NotReady(
                    f"the job at work on {self._settings.path} reached {Lsn(self._reached())}, not "
                    f"{Lsn(lsn)}, in {self._settings.timeout_s:.0f} s",
                    hint="Is it running still, and not far behind? Give it longer with --timeout.",
                )
            time.sleep(pause_s)

    def _reached(self) -> int:
        newest = next(commit_points.points(self._settings.path), None)
        return 0 if newest is None else newest.lsn_value

    def _table(
        self, name: str, directory: str, snapshot: SourceSnapshot, pin: Pin, tables: LakeTables
    ) -> TableComparison:
        if (aside := quarantined(self._settings.path).get(directory)) is not None:
            return TableComparison(
                name, skipped=f"it is in quarantine since {aside.lsn}: {aside.reason}"
            )
        if directory in pin.point.loading:
            if is_loading(self._settings.path, directory):
                return TableComparison(name, skipped="it is being loaded")
            return TableComparison(
                name,
                skipped="its current table is not as of this: a merge of what waits in its "
                "history failed, or a load of it has just ended. The job's log says more. Verify "
                "again",
            )
        if not tables.durable_lsn(CURRENT, directory):
            return self._without_current(name, directory, snapshot, tables)
        at_source = snapshot.tables.get(name)
        if at_source is None:
            outcome = TableComparison(name, lake_rows=pin.current(directory).count())
            outcome.more = bool(outcome.lake_rows)
            outcome.notes.append("the source has no such table")
            return outcome
        rows = pin.current(directory)
        if shown_tables.shown_tables(self._settings.path).softly(name):
            # Those that are gone are in the lake only.
            rows = rows.where(F.col(DELETED_AT).isNull()).drop(DELETED_AT)
        in_lake = set(rows.columns)
        masked = at_source.plan.hashed | {made.name for made in at_source.plan.made}
        at = {
            plan.name: plan.column.name
            for plan in at_source.plan.columns
            if plan.name not in masked
        }
        # Under the source's names, as they are shown: the lake's of a column that is named like one
        # of its own has an underscore more.
        shown = {name: readable(column) for name, column in at.items()}
        frame = rows.select(*(F.col(quoted(n)).alias(shown[n]) for n in rows.columns if n in at))
        unreadable = checksums.unsupported(frame.schema)
        columns = {shown[n]: at[n] for n in rows.columns if n in at and shown[n] not in unreadable}
        stored_key = tables.key(directory) or ()
        if masked.intersection(stored_key):
            # What tells rows is a hash: nothing can be said to the source in its own words.
            return self._masked(TableComparison(name), rows, at_source, snapshot, stored_key)
        key = [shown.get(name, name) for name in stored_key]
        lost = [name for name in key if name not in columns]
        if lost:
            raise LakeError(
                f"rows of {name} are told by {lost[0]!r} in the lake, which can't be compared",
                hint=f"The key was changed at the source. Load the table anew: {load_anew(name)}.",
                relation=name,
                column=lost[0],
            )
        outcome = compare(
            snapshot.connection,
            frame,
            (at_source.plan.descriptor.schema, at_source.plan.descriptor.name),
            columns,
            key,
            limit=self._settings.limit,
            is_partitioned=at_source.partitions is not None,
        )
        for what, missing in (
            (
                "in the source only, until the table's next change",
                [shown[n] for n in at if n not in in_lake],
            ),
            (
                "in the lake only, until the table's next change",
                [n for n in rows.columns if n not in at and n not in masked],
            ),
            ("of a type that can't be compared", unreadable),
        ):
            if missing:
                outcome.notes.append(f"columns {what}: {', '.join(missing)}")
        if masked:
            self._masked(outcome, rows, at_source, snapshot, stored_key)
        return outcome

    def _without_current(
        self, name: str, directory: str, snapshot: SourceSnapshot, tables: LakeTables
    ) -> TableComparison:
        """Say why a table has no current table, and whether it should have one."""
        history = tables.schema(HISTORY, directory)
        at_source = snapshot.tables.get(name)
        if at_source is None:
            return TableComparison(
                name, skipped="the lake has only its history, and the source has no such table"
            )
        if history is None or OLD_KEY not in history.names:
            return TableComparison(
                name,
                skipped="the lake has only its history, which does not say which rows changes are "
                "of: it had no primary key and no replica identity",
            )
        descriptor = at_source.plan.descriptor
        count = sql.SQL("SELECT count(*) FROM {}").format(
            sql.Identifier(descriptor.schema, descriptor.name)
        )
        row = snapshot.connection.execute(count).fetchone()
        outcome = TableComparison(name, source_rows=0 if row is None else row[0])
        outcome.more = bool(outcome.source_rows)
        outcome.notes.append(
            f"its current table is gone from the lake. Load it anew: {load_anew(name)}"
        )
        return outcome

    def _masked(
        self,
        outcome: TableComparison,
        rows: DataFrame,
        at_source: CopiedTable,
        snapshot: SourceSnapshot,
        key: Sequence[str],
    ) -> TableComparison:
        """Compare what the source can't say by itself: masked columns, and which partition rows are
        in, with the key or, without one, with all columns. Add what differs to *outcome*.

        The source's rows are read as a load reads them, so that nothing of a value is shown to it
        or by it.
        """
        whole = lake_schema(at_source.schema)
        masked = at_source.plan.hashed | {made.name for made in at_source.plan.made}
        is_whole = not key or bool(masked.intersection(key))
        names = [
            n
            for n in at_source.columns
            if n in rows.columns and (is_whole or n in masked or n in key)
        ]
        missing = sorted(masked.difference(rows.columns))
        if missing:
            outcome.notes.append(
                f"columns in the source only, until the table's next change: {', '.join(missing)}"
            )
        columns = pa.schema([whole.field(name) for name in names])
        schema = from_arrow_schema(columns, prefer_timestamp_ntz=True)
        blocks = max(1, at_source.blocks)
        step = RANGE_BYTES // BLOCK_BYTES
        ranges = [(first, min(first + step, blocks)) for first in range(0, blocks, step)]
        copy = CopyRanges(
            self._source, snapshot, at_source, to_arrow_schema(schema, timezone="UTC"), ranges
        )
        numbers = self._spark.range(0, len(ranges), 1, len(ranges))
        there = checksums.lake_texts(numbers.mapInArrow(copy, schema), names, key)
        here = checksums.lake_texts(rows.select(*map(quoted, names)), names, key)
        source, lake = checksums.lake_buckets(there), checksums.lake_buckets(here)
        if is_whole:
            outcome.source_rows = sum(bucket.rows for bucket in source.values())
            outcome.lake_rows = sum(bucket.rows for bucket in lake.values())
        if source == lake:
            return outcome
        limit = self._settings.limit
        for left, right, side in ((there, here, "source"), (here, there, "lake")):
            texts = left.select(checksums.KEY, checksums.ROW)
            only = texts.exceptAll(right.select(checksums.KEY, checksums.ROW))
            for row in only.limit(limit).collect():
                told = tuple(values_of(row[0])) if key else ()
                outcome.differences.append(Difference(told, only=side))
        outcome.more = True
        outcome.notes.append(f"compared as they are masked: {', '.join(sorted(masked))}")
        return outcome
