"""``spillway lake run``: keep lake tables in step with a slot.

The loop is Spark's: a streaming query over the data source
(:mod:`spillway.lake.source.data_source`), whose batches
:class:`spillway.lake.batch.materialize.Materializer` makes durable. This module checks that slot,
lake and checkpoint belong together, starts the query, waits, and ends it: by itself with
``available-now``, on SIGTERM or SIGINT with ``continuous``, in both cases between two batches.
Being killed at any instant is allowed too; it only costs the batch at hand, which is done again.

Rows that were in a table before the slot was created are not in the slot. With ``initial_load``,
tables that the lake doesn't have are loaded from the source
(:mod:`spillway.lake.load.initial_load`): before the query with ``available-now``, beside it with
``continuous``. So are tables that somebody wants anew (:mod:`spillway.lake.job.table_loads`).
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from spillway.consumer.connect import DEFAULT_ADDRESS, connect, handed_on, identity_of
from spillway.errors import (
    LakeError,
    NotReady,
    SpillwayError,
    UnsupportedFeature,
)
from spillway.lake.batch.schema_policy import OnSchemaChange
from spillway.lake.catalogs import registration
from spillway.lake.job.decoded_watch import decoded_told
from spillway.lake.job.registration_watch import RegistrationWatch
from spillway.lake.job.table_figures import FigureWatch
from spillway.lake.job.table_loads import Ending, table_loads
from spillway.lake.load import run as initial_load_run
from spillway.lake.session import session_for
from spillway.lake.state import (
    boundaries,
    column_names,
    commit_points,
    job_record,
    position,
    shown_tables,
    source_history,
)
from spillway.lake.state.job_record import JobRecord
from spillway.lake.state.loads import failed_loads
from spillway.lake.state.quarantine import QUARANTINE, quarantined
from spillway.lake.state.shown_tables import ShownTables
from spillway.lake.tables import layout, maintenance
from spillway.lake.tables.formats import check_format, lake_tables
from spillway.lake.tables.iceberg import catalog as iceberg_catalog
from spillway.lake.tables.iceberg.catalog import CatalogChoice
from spillway.lake.tables.layout import Layout
from spillway.lake.tables.maintenance import Upkeep
from spillway.lake.worker_failures.errors import typed_error
from spillway.lake.worker_failures.late import Patience
from spillway.pg.lsn import Lsn
from spillway.plugins import refused_values
from spillway.storage.file_errors import NO_SPACE
from spillway.storage.place import ObjectPath, spark_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spillway.consumer.slot import SlotClient
    from spillway.lake.batch.materialize import BatchReport
    from spillway.lake.batch.pace import Pace
    from spillway.lake.job.status_file import LakeStatusFile
    from spillway.lake.job.table_watch import TableWatch
    from spillway.lake.metrics import LakeMetrics
    from spillway.lake.tables.contract import LakeTables
    from spillway.lake.tables.figures import TableFigures
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

#: Also bounds how late a signal is noticed.
_POLL_S: Final = 0.5
#: A batch is let finish this long after a stop was asked for; then it is cut, which a restart
#: mends.
_STOP_TIMEOUT_S: Final = 60.0
#: What Spark says of a query whose source does not answer yet, and of one that has ended.
_NOT_AT_WORK: Final = ("Initializing", "Terminated", "Stopped")


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What ``spillway lake run`` is told."""

    slot: str
    path: LakePath
    checkpoint: LakePath
    table_format: Literal["delta", "iceberg", "parquet"] = "delta"
    #: of Iceberg tables: the catalog, as PyIceberg's configuration names it; None: the lake's own,
    #: or the one that it is in
    iceberg_catalog: str | None = None
    #: before each of its namespaces
    iceberg_prefix: str = ""
    #: lake, catalog: who says where their files lie
    iceberg_location: str = "lake"
    #: of Delta tables: the catalog that they are registered in; None: none is told
    register_in: str | None = None
    #: before each of its databases' names
    register_prefix: str = ""
    #: available-now: take what is decoded at the start, then end; continuous: go on until a signal
    trigger: Literal["available-now", "continuous"] = "available-now"
    #: continuous: the least time between the starts of two batches
    interval_s: float = 1.0
    grpc: str = DEFAULT_ADDRESS
    #: empty: SPILLWAY_TOKEN
    token: str = ""
    #: ``schema.table`` names; empty: all
    tables: tuple[str, ...] = ()
    #: available-now: wait until this is decoded before the end is fixed
    until_lsn: Lsn | None = None
    max_bytes_per_batch: int = 256 << 20
    #: safe, source: see :mod:`spillway.lake.state.column_names`; None: as it was
    column_names: str | None = None
    #: see :mod:`spillway.lake.batch.schema_policy`
    on_schema_change: Literal["evolve", "pause", "quarantine"] = "evolve"
    #: seconds between merges of current tables, by ``schema.table`` or all: see
    #: :mod:`spillway.lake.batch.pace`
    merge_intervals: Mapping[str, float] = field(default_factory=dict)
    #: of Delta and Iceberg tables: see :mod:`spillway.lake.tables.positions`
    merge: Literal["copy", "position"] = "copy"
    master: str = "local[*]"
    driver_memory: str = "2g"
    #: further settings of Spark's
    conf: Mapping[str, str] = field(default_factory=dict)
    #: None: :func:`spillway.lake.jars.default_folder`
    jars: Path | None = None
    #: what commits before it and is not in the lake is given up
    skip_to: Lsn | None = None
    #: load the tables that the lake doesn't have
    initial_load: bool = False
    #: the database that the slot decodes, for loads
    source_dsn: str = field(default="", repr=False)
    #: what is kept of old versions and old history, and when the rest is removed
    upkeep: Upkeep = field(default_factory=Upkeep)
    #: what is asked for of partitions and clusters; what was asked for before stays
    layout: Layout = field(default_factory=Layout)
    #: what is asked for of partitioned tables and masks; what was asked for before stays
    shown: ShownTables = field(default_factory=ShownTables)
    #: further options of the data source
    source_options: dict[str, str] = field(default_factory=dict)

    @property
    def catalog_choice(self) -> CatalogChoice:
        return CatalogChoice(self.iceberg_catalog, self.iceberg_prefix, self.iceberg_location)

    def options(self) -> dict[str, str]:
        """Return the data source's options. The token is not among them when the environment has
        it.
        """
        options = {
            "slot": self.slot,
            "grpc": self.grpc,
            "max_bytes_per_batch": str(self.max_bytes_per_batch),
            **handed_on(),
            **self.source_options,
        }
        if self.tables:
            options["tables"] = json.dumps(self.tables)
        options.setdefault("boundaries", str(boundaries.folder(self.path.absolute())))
        if self.token:
            options["token"] = self.token
        return options


@dataclass(slots=True)
class JobSummary:
    """What a run did."""

    #: where the lake stands
    lsn: Lsn
    batches: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    #: tables that are set aside, and why
    quarantined: tuple[str, ...] = ()
    #: tables whose load failed, and why
    not_loaded: tuple[str, ...] = ()
    #: tables at their own pace whose merge failed, and why
    not_merged: tuple[str, ...] = ()

    def add(self, report: BatchReport) -> None:
        self.batches += 1
        for name, count in report.changes.items():
            self.changes[name] = self.changes.get(name, 0) + count
        self.lsn = report.end_lsn


def run_job(
    settings: JobSettings,
    *,
    on_batch: Callable[[BatchReport], None] | None = None,
    on_load: Callable[[object], None] | None = None,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    metrics: LakeMetrics | None = None,
    status: LakeStatusFile | None = None,
) -> JobSummary:
    """Run the job to its end and return what it did.

    Args:
        settings: see :class:`JobSettings`.
        on_batch: called after each batch; logs a line when None.
        on_load: called with each step of an initial load, and each table's maintenance, to be shown
            as text; logs a line when None.
        stop: ends the run when set. When None and called on the main thread, SIGTERM and SIGINT do.
        spark: a session to use; else one is started, and stopped at the end.
        metrics: told of every batch.
        status: told when the job follows its slot.

    Raises:
        SpillwayError: any kind; what was confirmed before stays true.
    """
    check_settings(settings)
    with position.locked(settings.path), closing(connect(settings.options())) as client:
        slot = client.position(settings.slot)
        if settings.skip_to is not None:
            position.skip(settings.path, slot, settings.skip_to)
        has_checkpoint = (settings.checkpoint / "offsets").is_dir() and any(
            entry.name.isdecimal() for entry in (settings.checkpoint / "offsets").iterdir()
        )
        lake = position.check(
            settings.path, settings.table_format, slot, has_checkpoint=has_checkpoint
        )
        source_history.settle(settings.path, lake, slot, identity_of(client, slot.source))
        boundaries.forget(settings.path, lake.lsn_value)
        column_names.settle(settings.path, settings.column_names)
        shown_tables.settle(settings.path, settings.shown)
        if settings.table_format == "iceberg":
            iceberg_catalog.choose(settings.path, settings.catalog_choice)
        job_record.store(
            settings.path,
            JobRecord(
                str(settings.checkpoint.absolute()),
                list(settings.tables),
                settings.max_bytes_per_batch,
                settings.on_schema_change,
                settings.merge,
            ),
        )
        if settings.initial_load:
            initial_load_run.check_load(settings, settings.tables, missing_only=True)
        if settings.until_lsn is not None:
            _wait_until_decoded(client, settings.slot, settings.until_lsn)
        with (
            session_for(
                settings, settings.table_format, spark, short=settings.trigger == "available-now"
            ) as session,
            stop_event(stop) as asked_to_stop,
            ExitStack() as held,
        ):
            # That a load of this one fails ends no other run.
            stopping = Ending(asked_to_stop)
            if settings.layout:
                tables = _tables(settings, session)
                layout.settle(settings.path, settings.table_format, settings.layout, tables)
            watches = _watches(settings, session, metrics, status)
            for watch in watches:
                held.enter_context(watch)
            on_batch = _watched(watches, on_batch or _log_batch)
            on_load = _watched(watches, _told_when_loaded(settings, metrics, on_load or _log_load))
            merged = _watched(watches, _log_load)
            tables = _tables(settings, session)
            pace = held.enter_context(
                _pace(settings, tables, lake.lsn_value, merged, metrics, status)
            )
            run = _Run(
                settings, session, client, lake, on_batch, stopping, metrics, status, pace, tables
            )
            if metrics is not None:
                as_of = commit_points.newest_published_at(settings.path) or datetime.now(UTC)
                metrics.begun(settings.slot, lake.lsn_value, slot.decoded_lsn, as_of)
                for directory, aside in quarantined(settings.path).items():
                    # What is set aside of it, if anything is, was committed later or about then.
                    if tables.durable_lsn(QUARANTINE, directory) > aside.lsn_value:
                        since = datetime.fromisoformat(aside.since)
                        metrics.behind(settings.slot, aside.table, since)
                held.enter_context(_listening(session, metrics, settings.slot))
                held.enter_context(
                    decoded_told(client, metrics, settings.slot, settings.interval_s)
                )
            if settings.trigger == "continuous" or settings.source_dsn:
                loading = held.enter_context(
                    table_loads(settings, session, slot, stopping, on_load)
                )
                if settings.trigger == "available-now":
                    loading()
                else:
                    held.enter_context(_beside(loading, stopping))
            if status is not None:
                status.loads(settings.path)
            upkeep = partial(_upkeep, settings, session, on_load, metrics)
            if settings.trigger == "continuous":
                held.enter_context(maintenance.beside(upkeep, settings.path, settings.upkeep))
                return run.run()
            summary = run.run()
            if not stopping.is_set():
                summary.not_merged = tuple(run.settle())
            if not stopping.is_set() and maintenance.due(settings.path, settings.upkeep):
                upkeep(stopping)
            return summary


def _watches(
    settings: JobSettings,
    session: SparkSession,
    metrics: LakeMetrics | None,
    status: LakeStatusFile | None,
) -> list[TableWatch]:
    """Return what looks after the tables beside the batches."""
    watches: list[TableWatch] = []
    if metrics is not None or status is not None:
        watches.append(_figures(settings, metrics, status))
    if (address := settings.register_in) is not None:
        prefix = settings.register_prefix
        watches.append(RegistrationWatch(settings.path, address, prefix, session))
    return watches


def _figures(
    settings: JobSettings, metrics: LakeMetrics | None, status: LakeStatusFile | None
) -> FigureWatch:
    """Return what looks at the tables, and tells."""

    def tell(name: str, found: TableFigures) -> None:
        if metrics is not None:
            metrics.figures(settings.slot, name, found)
        if status is not None:
            status.figures(name, found)

    return FigureWatch(settings.path, settings.table_format, tell)


def _pace(
    settings: JobSettings,
    tables: LakeTables,
    lsn: int,
    tell: Callable[[object], None],
    metrics: LakeMetrics | None,
    status: LakeStatusFile | None,
) -> Pace:
    """Return what merges tables at their own pace, and tells."""
    from spillway.lake.batch.pace import Pace  # noqa: PLC0415 - imports PySpark

    def waits(name: str, since: datetime | None) -> None:
        if metrics is not None:
            metrics.waits(settings.slot, name, since)
        if status is not None:
            status.waits(name, since)

    return Pace(
        tables,
        settings.path,
        settings.slot,
        lsn,
        settings.merge_intervals,
        tell=tell,
        waits=waits,
    )


def _told_when_loaded(
    settings: JobSettings, metrics: LakeMetrics | None, tell: Callable[[object], None]
) -> Callable[[object], None]:
    """Return *tell*, of which *metrics* hear which tables were loaded."""
    from spillway.lake.load.initial_load import LoadProgress  # noqa: PLC0415 - imports PySpark

    def told(news: object) -> None:
        if metrics is not None and isinstance(news, LoadProgress) and news.done:
            metrics.loaded(settings.slot, news.table)
        tell(news)

    return told


def _watched(watches: Sequence[TableWatch], tell: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return *tell*, of which *watches* hear which tables changed."""
    from spillway.lake.batch.materialize import BatchReport  # noqa: PLC0415 - imports PySpark

    def told(news: object) -> None:
        tell(news)
        changed: Iterable[str] = ()
        if isinstance(news, BatchReport):
            changed = news.changes
        elif (table := getattr(news, "table", None)) is not None:
            changed = (table,)
        for watch in watches:
            watch.changed(changed)

    return told


def _upkeep(
    settings: JobSettings,
    spark: SparkSession,
    tell: Callable[[object], None],
    metrics: LakeMetrics | None,
    stopping: threading.Event,
) -> maintenance.Round:
    """Do a round of maintenance, and tell of it."""

    def done(table: maintenance.TableUpkeep) -> None:
        tell(table)
        if metrics is not None:
            metrics.maintained(settings.slot, table)

    tables = _tables(settings, spark)
    return maintenance.maintain(
        spark,
        settings.path.absolute(),
        settings.table_format,
        tables,
        settings.upkeep,
        tell=done,
        stopping=stopping,
    )


def _tables(settings: JobSettings, spark: SparkSession) -> LakeTables:
    return lake_tables(
        settings.table_format, spark, settings.path, settings.slot, merge=settings.merge
    )


def check_options(settings: JobSettings) -> None:
    """Refuse what can't be together.

    Raises:
        SpillwayError: of the format, the catalog or the checkpoint.
    """
    check_format(settings.table_format, settings.path)
    if settings.merge == "position" and settings.table_format == "parquet":
        raise UnsupportedFeature(
            "a lake of plain Parquet files can't be merged by position: nothing marks a row there",
            hint="Leave --merge out, or use --format delta or iceberg.",
        )
    if settings.register_in is not None:
        registration.check_address(settings.register_in, settings.table_format)
        registration.check_place(settings.register_in, settings.path)
    iceberg_catalog.check_choice(settings.table_format, settings.path, settings.catalog_choice)
    if isinstance(settings.checkpoint, ObjectPath) and not isinstance(settings.path, ObjectPath):
        raise UnsupportedFeature(
            f"the checkpoint {settings.checkpoint} is on object storage and the lake is not",
            hint="Name a directory of this machine, or none.",
        )


def check_settings(settings: JobSettings) -> None:
    """Refuse what can't be, and make the directories; costs no JVM.

    Raises:
        SpillwayError: as of :func:`check_options`; LakeError when a directory can't be made,
            DiskFull where there is no space for it.
    """
    check_options(settings)
    for path in (settings.path, settings.checkpoint):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise position.file_error(error, path) from error
            raise LakeError(
                f"the directory {path} can't be made: {error.strerror}",
                hint="Name one that the job's user may write, or make it.",
            ) from error


def _wait_until_decoded(
    client: SlotClient, slot_name: str, lsn: Lsn, timeout_s: float = 120.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while (decoded := client.position(slot_name).decoded_lsn) < lsn:
        if time.monotonic() > deadline:
            raise NotReady(
                f"slot {slot_name} is decoded up to {Lsn(decoded)}, not {lsn}, after "
                f"{timeout_s:.0f} s",
                hint="Is the source still connected? GET /v1/sources/NAME says.",
                slot=slot_name,
            )
        time.sleep(0.1)


class _Run:
    """One streaming query, from start to end."""

    def __init__(
        self,
        settings: JobSettings,
        spark: SparkSession,
        client: SlotClient,
        lake: position.LakePosition,
        on_batch: Callable[[BatchReport], None],
        stopping: threading.Event,
        metrics: LakeMetrics | None,
        status: LakeStatusFile | None,
        pace: Pace,
        tables: LakeTables,
    ) -> None:
        from spillway.lake.batch.materialize import Materializer  # noqa: PLC0415 - imports PySpark

        self._settings = settings
        self._spark = spark
        self._client = client
        self._on_batch = on_batch
        self._stopping = stopping
        self._metrics = metrics
        self._status = status
        self._summary = JobSummary(lsn=Lsn(lake.lsn_value))
        self._failure: BaseException | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._pace = pace
        self._materializer = Materializer(
            tables,
            client,
            settings.path,
            lake,
            only=settings.tables,
            on_schema_change=OnSchemaChange(settings.on_schema_change),
            report=self._reported,
            pace=pace,
        )

    def settle(self) -> list[str]:
        """Merge what waits at its own pace; return what could not be."""
        return self._pace.settle(self._summary.lsn)

    def run(self) -> JobSummary:
        settings = self._settings
        # One table's value must not stop all tables: the plan sets that table aside.
        of_plugin = {
            refused_values.OPTION: refused_values.MARK,
            **shown_tables.plugin_options(settings.path),
        }
        options = {**settings.options(), "plugin_options": json.dumps(of_plugin)}
        frame = self._spark.readStream.format("spillway").options(**options).load()
        writer = frame.writeStream.foreachBatch(self._batch).queryName(_query_name(settings.slot))
        writer = writer.option("checkpointLocation", spark_address(settings.checkpoint))
        if settings.trigger == "available-now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(
                processingTime=f"{round(settings.interval_s * 1000)} milliseconds"
            )
        patience, batches = Patience(self._stopping), 0
        while True:
            try:
                query = writer.start()
            except Exception as error:
                raise self._typed(error) from error
            try:
                ended = self._wait(query)
            finally:
                if query.isActive:
                    query.stop()
            if ended is None:
                break
            if self._summary.batches > batches:
                batches = self._summary.batches
                patience.got_on()
            if not patience.waited(self._failure or ended):
                raise self._typed(ended) from ended
            self._failure = None
            if self._stopping.is_set():
                break
        self._summary.quarantined = tuple(map(str, quarantined(settings.path).values()))
        self._summary.not_loaded = tuple(failed_loads(settings.path).values())
        return self._summary

    def _wait(self, query: StreamingQuery) -> Exception | None:
        """Wait until the query ends, and return what ended it; None when that was asked for, or all
        is done.
        """
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - an extra

        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # whole seconds is what the stub says
                if self._stopping.is_set():
                    self._idle.wait(_STOP_TIMEOUT_S)
                    query.stop()
                    break
                self._note_begun(query)
        except StreamingQueryException as error:
            if self._stopping.is_set() and self._failure is None:
                return None
            return error
        return None

    def _note_begun(self, query: StreamingQuery) -> None:
        """Tell once that the query has found its place in the slot: what ends it before that is a
        start that failed.
        """
        if (
            self._status is not None
            and not self._status.has_begun
            and not query.status["message"].startswith(_NOT_AT_WORK)
        ):
            self._status.begun()

    def _typed(self, error: Exception) -> SpillwayError:
        """Return what really went wrong: Spark carries Python's exceptions as text."""
        if isinstance(self._failure, SpillwayError):
            return self._failure
        try:
            self._client.position(self._settings.slot)
        except SpillwayError as reason:
            return reason
        return typed_error(
            self._failure or error,
            what="the Spark job failed",
            hint="What was confirmed is durable; run the job again to go on from there.",
            slot=self._settings.slot,
        )

    def _batch(self, envelopes: DataFrame, batch_id: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self._idle.clear()
        try:
            self._materializer.process(envelopes, batch_id)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._idle.set()

    def _reported(self, report: BatchReport) -> None:
        self._summary.add(report)
        if self._metrics is not None:
            self._metrics.batch(self._settings.slot, report)
        self._on_batch(report)


def _query_name(slot_name: str) -> str:
    return f"spillway-lake-{slot_name}"


@contextmanager
def _listening(spark: SparkSession, metrics: LakeMetrics, slot_name: str) -> Iterator[None]:
    """Have Spark tell *metrics* of the slot's query in the block."""
    from spillway.lake.listener import SlotQueryListener  # noqa: PLC0415 - imports PySpark

    listener = SlotQueryListener(metrics, {_query_name(slot_name): slot_name})
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


@contextmanager
def _beside(work: Callable[[], None], stopping: threading.Event) -> Iterator[None]:
    """Do *work* on a thread while the block runs; if it fails, stop the block and raise."""
    failure: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised below, on the main thread
            failure.append(error)
            stopping.set()

    thread = threading.Thread(target=run, name="spillway-lake-load")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    if failure:
        raise failure[0]


class _Stopped(Exception):
    """Ends a query whose next batch was already planned when the stop was asked for."""


def _log_load(step: object) -> None:
    _log.info("%s", step)


def _log_batch(report: BatchReport) -> None:
    _log.info("%s", report)


@contextmanager
def stop_event(stop: threading.Event | None) -> Iterator[threading.Event]:
    """Yield the event that ends a run, set by SIGTERM and SIGINT where that is possible."""
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stop or threading.Event()
        return
    event = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: event.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
