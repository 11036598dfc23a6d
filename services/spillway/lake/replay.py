"""``spillway lake replay``: an archive of WAL becomes lake tables, decoded by all of a cluster's
cores.

::

    archive ──light pass (driver)──▶ plan: stretches, a decoder's state at each cut
        │ a task a stretch
        ├─▶ mapInArrow: decode ──▶ transactions and pieces of transactions, as kernels have them
        │        shuffle: each to the part where its transaction commits; sort by commit LSN
        └─▶ mapInArrow: put together, encode ──▶ envelopes ──▶ Materializer: tables as `lake run`'s

Decoding is a sort: records come in the order in which they were written, transactions are wanted in
the order in which they committed. A server, and `spillway serve`, sort in a reorder buffer as WAL
comes; here a shuffle does it, so that many processes may decode at once. The light pass leaves each
stretch what it needs to begin in the middle (:mod:`spillway.replay.plan`).

The envelopes are those of a slot with the plugin `arrow`, and what makes tables of them is the
streaming job's own :class:`~spillway.lake.batch.materialize.Materializer`: history, current, each
commit with its LSN, the lake's position. So a replay that is repeated does nothing, one that was
killed goes on, and `spillway lake run` goes on where a replay ended.

Memory: on executors a decoder each (:mod:`spillway.replay.parse`, :mod:`spillway.replay.assemble`),
its rows sorted by Spark, which spills. Disk: the changes of the range twice, in the shuffle and as
cached envelopes.
"""

from __future__ import annotations

import shutil
import time
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spillway.consumer.slot import SlotPosition
from spillway.errors import InvalidRequest, LakeBehindSlot, LakeError
from spillway.lake.session import session_for
from spillway.lake.shape.payload import ENVELOPE
from spillway.lake.state import position, shown_tables
from spillway.lake.tables.formats import check_format, lake_tables
from spillway.lake.tables.iceberg import catalog as iceberg_catalog
from spillway.lake.tables.iceberg.catalog import CatalogChoice
from spillway.lake.worker_failures.errors import typed_error
from spillway.pg.lsn import Lsn
from spillway.plugins import refused_values
from spillway.plugins.masks import with_secret
from spillway.replay import pieces
from spillway.replay.assemble import Encoding, messages
from spillway.replay.parse import parse_stretch
from spillway.replay.plan import STRETCH_BYTES_DEFAULT, Beginning, Plan, Stretch, make_plan
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spillway.lake.batch.materialize import BatchReport
    from spillway.storage.place import LakePath

#: An Arrow batch between the JVM and Python; rows are megabytes here, and the bound by rows would
#: hold thousands of them.
_ARROW_BATCH_BYTES: Final = "33554432"
_BATCH_BYTES_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What ``spillway lake replay`` is told."""

    archive: Path
    path: LakePath
    #: where the catalog comes from: one of these two
    state: Path | None = None
    data_directory: Path | None = None
    #: what commits in [from_lsn, to_lsn); None: from where the lake is (or decoding can begin), to
    #: the archive's end
    from_lsn: Lsn | None = None
    to_lsn: Lsn | None = None
    #: whose lake it is, as the service knows them; a lake that is there says so itself
    slot: str = ""
    source: str = ""
    database: str = ""
    #: of the plugin `arrow`, as the slot has them
    options: dict[str, str] = field(default_factory=dict)
    table_format: str = "delta"
    #: of Iceberg tables: see :class:`spillway.lake.job.run.JobSettings`
    iceberg_catalog: str | None = None
    iceberg_prefix: str = ""
    iceberg_location: str = "lake"
    #: ``schema.table`` names; empty: all
    tables: tuple[str, ...] = ()
    stretch_bytes: int = STRETCH_BYTES_DEFAULT
    #: a directory that all workers see, for the decoders' states at the cuts; None: below the lake
    scratch: Path | None = None
    master: str = "local[*]"
    driver_memory: str = "2g"
    #: further settings of Spark's
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: Path | None = None

    @property
    def catalog_choice(self) -> CatalogChoice:
        return CatalogChoice(self.iceberg_catalog, self.iceberg_prefix, self.iceberg_location)


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What a replay did."""

    from_lsn: Lsn
    to_lsn: Lsn
    stretches: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    plan_seconds: float = 0.0
    seconds: float = 0.0


def run_replay(
    settings: ReplaySettings,
    *,
    tell: Callable[[str], None] = lambda _: None,
    spark: SparkSession | None = None,
) -> ReplaySummary:
    """Decode the range and make the lake hold it; return what was done.

    Args:
        settings: see :class:`ReplaySettings`.
        tell: called with lines about the progress.
        spark: a session to use; else one is started, and stopped at the end.

    Raises:
        SpillwayError: any kind; the lake is as it was, or has all of it.
    """
    check_format(settings.table_format, settings.path)
    iceberg_catalog.check_choice(settings.table_format, settings.path, settings.catalog_choice)
    on_machine = settings.master.startswith("local")
    if isinstance(settings.path, ObjectPath) and settings.scratch is None and not on_machine:
        raise InvalidRequest(
            f"workers of {settings.master} read decoders' states from files, and {settings.path} "
            "is on object storage",
            hint="Name a directory that driver and workers share: --scratch DIR.",
        )
    if settings.stretch_bytes < 1:
        raise InvalidRequest("a stretch has at least one byte", hint="--stretch-bytes 67108864")
    settings.path.mkdir(parents=True, exist_ok=True)
    with position.locked(settings.path):
        return _Replay(settings, tell, spark).run()


class _Replay:
    """One replay, from start to end."""

    def __init__(
        self, settings: ReplaySettings, tell: Callable[[str], None], spark: SparkSession | None
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._spark = spark
        self._lake = position.load(settings.path)

    def run(self) -> ReplaySummary:
        settings = self._settings
        began = time.monotonic()
        from_lsn = self._begin_lsn()
        if from_lsn is not None and settings.to_lsn is not None and from_lsn >= settings.to_lsn:
            self._tell(f"the lake has everything before {Lsn(from_lsn)}: nothing to do")
            return ReplaySummary(Lsn(from_lsn), Lsn(from_lsn))
        identity = self._identity()
        with self._scratch() as scratch:
            plan = make_plan(
                settings.archive.absolute(),
                Beginning(settings.state, settings.data_directory, identity[2]),
                scratch,
                from_lsn=from_lsn,
                to_lsn=settings.to_lsn,
                stretch_bytes=settings.stretch_bytes,
            )
            planned = time.monotonic() - began
            self._tell(
                f"{plan.wal_bytes >> 20} MiB of WAL looked through in {planned:.1f} s; to decode: "
                f"{len(plan.stretches)} stretches, commits from {Lsn(plan.from_lsn)} to "
                f"{Lsn(plan.to_lsn)}"
            )
            changes = self._decode(plan, identity) if plan.from_lsn < plan.to_lsn else {}
        return ReplaySummary(
            Lsn(plan.from_lsn),
            Lsn(plan.to_lsn),
            len(plan.stretches),
            changes,
            planned,
            time.monotonic() - began,
        )

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Yield an empty directory, which goes afterwards; one below the lake that was left by a
        kill goes now.
        """
        path, named = self._settings.path, self._settings.scratch
        if named is not None or isinstance(path, ObjectPath):
            with TemporaryDirectory(prefix="spillway-replay-", dir=named) as made:
                yield Path(made).absolute()
            return
        below = path.absolute() / "_spillway" / "replay"
        shutil.rmtree(below, ignore_errors=True)
        below.mkdir(parents=True)
        try:
            yield below
        finally:
            shutil.rmtree(below, ignore_errors=True)

    def _begin_lsn(self) -> int | None:
        """Return from where on changes are wanted; None: from where decoding can begin.

        Raises:
            LakeBehindSlot: there would be a gap.
        """
        wanted = self._settings.from_lsn
        if self._lake is None:
            return wanted
        if wanted is not None and wanted > self._lake.lsn_value:
            raise LakeBehindSlot(
                f"the replay is to begin at {wanted}, and the lake at {self._settings.path} has "
                f"everything before {self._lake.lsn} only",
                hint="Replay from there on, or into a lake of its own.",
                slot=self._lake.slot,
                lsn=self._lake.lsn,
            )
        return self._lake.lsn_value

    def _identity(self) -> tuple[str, str, str]:
        """Return slot, source and database that the lake is of."""
        settings = self._settings
        names = (settings.slot, settings.source, settings.database)
        if self._lake is not None:
            stored = (self._lake.slot, self._lake.source, self._lake.database)
            return tuple(n or s for n, s in zip(names, stored, strict=True))  # type: ignore[return-value]
        if not all(names):
            raise InvalidRequest(
                "a new lake must be told whose it is",
                hint="Give --slot, --source and --database as the service has them, so that `lake "
                "run` can go on.",
            )
        return names

    def _decode(self, plan: Plan, identity: tuple[str, str, str]) -> dict[str, int]:
        """Have Spark decode the plan's stretches, and write the tables."""
        from spillway.lake.batch.materialize import Materializer  # noqa: PLC0415 - imports PySpark

        settings = self._settings
        slot, source, database = identity
        options = {
            **settings.options,
            refused_values.OPTION: refused_values.MARK,
            **with_secret(shown_tables.plugin_options(settings.path)),
        }
        encoding = Encoding(
            slot, database, plan.database_oid, plan.major, plan.encoding, options=options
        )
        # Before Spark starts: an option that the plugin does not know.
        encoding.plugin_made().shutdown()
        lake = position.check(
            settings.path,
            settings.table_format,
            SlotPosition(slot, encoding.plugin, source, database, plan.from_lsn, plan.to_lsn),
            has_checkpoint=False,
        )
        if settings.table_format == "iceberg":
            iceberg_catalog.choose(settings.path, settings.catalog_choice)
        reports: list[BatchReport] = []
        try:
            with (
                session_for(settings, settings.table_format, self._spark) as spark,
                _large_rows(spark),
            ):
                materializer = Materializer(
                    lake_tables(settings.table_format, spark, settings.path, slot),
                    _NoSlot(),
                    settings.path,
                    lake,
                    only=settings.tables,
                    report=reports.append,
                )
                envelopes = envelopes_of(spark, settings.archive.absolute(), plan, encoding)
                materializer.process(envelopes, 0)
        except Exception as error:
            raise typed_error(
                error,
                what="the Spark job failed",
                hint="Mend that and run the replay again; the lake is unharmed.",
            ) from error
        for line in reports[-1].quarantined if reports else ():
            self._tell(line)
        return {name: count for report in reports for name, count in report.changes.items()}


@contextmanager
def _large_rows(spark: SparkSession) -> Iterator[None]:
    """Have Spark bound its Arrow batches by bytes in the block."""
    before = spark.conf.get(_BATCH_BYTES_SETTING)
    spark.conf.set(_BATCH_BYTES_SETTING, _ARROW_BATCH_BYTES)
    try:
        yield
    finally:
        spark.conf.set(_BATCH_BYTES_SETTING, before or "-1")


def envelopes_of(spark: SparkSession, archive: Path, plan: Plan, encoding: Encoding) -> DataFrame:
    """Return the envelopes of all that commits in the plan's range."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - an extra

    count = len(plan.stretches)
    parts = sum(stretch.has_commits for stretch in plan.stretches)
    rows = spark.range(0, count, 1, count).mapInArrow(
        ParseStretches(archive, plan.stretches), from_arrow_schema(pieces.SCHEMA)
    )
    first = next(stretch.number for stretch in plan.stretches if stretch.has_commits)
    return (
        rows.repartitionById(parts, (rows.part - first).cast("int"))
        .sortWithinPartitions(*pieces.ORDER)
        .mapInArrow(AssembleParts(plan.stretches, encoding), from_arrow_schema(ENVELOPE))
    )


class ParseStretches:
    """The function given to mapInArrow: numbers of stretches in, rows of pieces out. Pickled to
    executors.
    """

    def __init__(self, archive: Path, stretches: tuple[Stretch, ...]) -> None:
        self._archive = archive
        self._stretches = stretches
        with_commits = [stretch for stretch in stretches if stretch.has_commits]
        self._starts = [stretch.range_start for stretch in with_commits]
        self._numbers = [stretch.number for stretch in with_commits]

    def _part_of(self, final_lsn: int) -> int:
        return self._numbers[bisect_right(self._starts, final_lsn) - 1]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from parse_stretch(self._archive, self._stretches[number], self._part_of)


class AssembleParts:
    """The function given to mapInArrow: sorted rows of pieces in, envelopes out. Pickled to
    executors.
    """

    def __init__(self, stretches: tuple[Stretch, ...], encoding: Encoding) -> None:
        self._ranges = {s.number: (s.range_start, s.range_end) for s in stretches}
        self._encoding = encoding

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spillway.lake.source.data_source import envelopes  # noqa: PLC0415 - imports PySpark

        for part, rows in groupby(pieces.rows(batches), lambda row: row.part):
            start, end = self._ranges[part]
            bodies = messages(rows, self._encoding, start, end)
            yield from envelopes(bodies, start, end, ENVELOPE)


class _NoSlot:
    """The slot of a replay: nobody is told how far the lake is, who runs the job later finds it
    there.
    """

    def position(self, slot_name: str) -> SlotPosition:
        raise LakeError(f"a replay asks no service about slot {slot_name}")

    def read(
        self,
        slot_name: str,
        start_lsn: int,
        upto_lsn: int,
        *,
        options: Mapping[str, str] = MappingProxyType({}),  # noqa: ARG002 - the protocol's signature
    ) -> Iterator[bytes]:
        raise LakeError(f"a replay reads nothing of slot {slot_name}, {start_lsn} to {upto_lsn}")

    def advance(self, slot_name: str, upto_lsn: int) -> int:  # noqa: ARG002 - the protocol's signature
        return upto_lsn

    def close(self) -> None:
        """Do nothing."""
