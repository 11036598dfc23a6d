"""What a lake needs done from time to time: small files made one, old versions and old history
given up.

::

    every --maintenance-interval, between batches' commits, a table at a time
        history    compact      DELETE what is older than --history-retention      VACUUM
        current    compact, or cluster (clustering)                                VACUUM
        ddl        compact                                                         VACUUM
        quarantine compact      DELETE, with that option, what history has by now  VACUUM
    first of all: consistent LSNs older than --retention are forgotten (commit_points)

**Retention** is how far back readers may pin a lake. The points go before the files do: an LSN that
can be pinned can be read, for as long as its reader takes less than the retention. Files that a
batch is just writing are younger than any retention, so VACUUM needs no lock.

**Compaction** rewrites files below a quarter of what it makes of them, so a row of history is
rewritten a few times in its life, not at each round. It changes no rows, which Delta knows: an
append beside it is no conflict. A MERGE beside it would be, so a current table is held meanwhile;
its small files are few, as the direct merge joins them as they come. One that is merged by position
is folded instead (:mod:`spillway.lake.tables.positions`), and held only for that commit.

**Old history** is rows whose commit is older than ``--history-retention``. Whatever the current
table has not taken up yet stays, and so does a table that is being loaded. Of a table that came
back from quarantine all that was set aside is in its history, in order: who doesn't want history
for ever doesn't want it twice. Events of DDL stay: they are few, and say which columns old changes
have.

Nothing here is needed for correctness: a round that fails is told of and comes again, and being
killed in it costs nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.errors import InvalidRequest
from spillway.lake import lease
from spillway.lake.shape.kinds import CURRENT, DDL, HISTORY
from spillway.lake.shape.net_effect import quoted
from spillway.lake.state import commit_points
from spillway.lake.state.loads import is_loading, merge_lock, table_lock
from spillway.lake.state.quarantine import QUARANTINE, quarantined
from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.worker_failures.errors import typed_error
from spillway.storage.place import ObjectPath, replace_json, spark_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from spillway.lake.tables.contract import LakeTables
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

RETENTION_MIN: Final = timedelta(hours=1)
_FILE_BYTES: Final = 256 << 20
_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(_FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(_FILE_BYTES // 4),
    # VACUUM lists directories with so many tasks, and the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # It refuses less than a week, lest it removes what a slow writer is at; an hour is no batch's
    # length either.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is kept, and how often the rest is removed."""

    #: how far back readers may pin
    retention: timedelta = timedelta(days=7)
    #: how long changes stay in history; None: for ever
    history_retention: timedelta | None = None
    #: between two rounds of a job; None: it has none
    interval: timedelta | None = timedelta(hours=1)

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            InvalidRequest: a retention is shorter than a batch may be.
        """
        for name, value in (
            ("retention", self.retention),
            ("history-retention", self.history_retention),
        ):
            if value is not None and value < RETENTION_MIN:
                raise InvalidRequest(
                    f"--{name} is less than an hour, and a batch or a reader may take longer",
                    hint=f"--{name} 7d, for one.",
                )


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """What was done with one table."""

    kind: str
    table: str
    files_before: int
    files: int
    size_bytes: int
    #: rows that were older than the retention of history
    rows_removed: int
    seconds: float

    def __str__(self) -> str:
        removed = f", {self.rows_removed} old changes removed" if self.rows_removed else ""
        return (
            f"maintained {self.kind} of {self.table}: {self.files_before} files are {self.files}, "
            f"{self.size_bytes / 1e6:.1f} MB{removed}, {self.seconds:.1f} s"
        )


class _Foldable(Protocol):
    """Tables of a format that has merges by position."""

    def fold(self, name: str, held: Callable[[], AbstractContextManager[Any]]) -> bool: ...


@dataclass(slots=True)
class Round:
    """What a round did."""

    points_forgotten: int = 0
    tables: list[TableUpkeep] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def maintain(
    spark: SparkSession,
    path: LakePath,
    table_format: str,
    tables: LakeTables,
    upkeep: Upkeep,
    *,
    tell: Callable[[TableUpkeep], None] = lambda _: None,
    stopping: threading.Event | None = None,
    now: datetime | None = None,
) -> Round:
    """Do one round; the caller is the lake's job, or has its lock.

    Args:
        spark: a session; settings of the round are its own.
        path: the lake.
        table_format: the lake's; tables of plain Parquet have no versions, files or rows that could
            go.
        tables: the lake's.
        upkeep: what to keep.
        tell: called with each table's outcome.
        stopping: ends the round after the table at hand when set.
        now: the time; of this machine unless given.

    Raises:
        InvalidRequest: history of Parquet tables can't be cut.
    """
    now = now or datetime.now(UTC)
    if table_format == "parquet" and upkeep.history_retention is not None:
        raise InvalidRequest(
            "the history of a lake of plain Parquet files is kept whole",
            hint="Leave --history-retention out, or use --format delta or iceberg.",
        )
    done = Round(commit_points.forget(path, now - upkeep.retention))
    if table_format != "parquet":
        session = spark.newSession()
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        maintained = _maintained if table_format == "delta" else _maintained_iceberg
        kinds = (HISTORY, CURRENT, *((DDL, QUARANTINE) if table_format == "delta" else ()))
        for kind in kinds:
            folder = path / kind
            names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
            for name in names:
                if stopping is not None and stopping.is_set():
                    return done
                try:
                    if tables.schema(kind, name) is None:
                        # Files of a load that are no table yet.
                        continue
                    table = maintained(session, path, tables, kind, name, upkeep, now)
                except Exception as error:  # noqa: BLE001 - the next round does it
                    typed = typed_error(
                        error, what="Spark failed", hint="The next round tries again."
                    )
                    done.failures[f"{kind}/{name}"] = typed.message
                    _log.warning("%s of %s is not maintained: %s", kind, name, typed.message)
                    continue
                done.tables.append(table)
                tell(table)
    _store_time(path, now)
    return done


def _maintained(
    spark: SparkSession,
    path: LakePath,
    tables: LakeTables,
    kind: str,
    name: str,
    upkeep: Upkeep,
    now: datetime,
) -> TableUpkeep:
    from spillway.lake.tables.delta.clustering import cluster, columns_due  # noqa: PLC0415 - delta-rs: Delta's
    from spillway.lake.tables.delta.tables import DeltaTables  # noqa: PLC0415 - as above

    assert isinstance(tables, DeltaTables)  # of this format

    began = time.monotonic()
    lease.check(path)
    table = f"delta.{quoted(spark_address(path / kind / name))}"
    before, _ = _detail(spark, table)
    folded = kind == CURRENT and _folded(path, tables, name)
    with _alone(path, kind, name):
        if kind != CURRENT or not is_loading(path, name):
            clusters = columns_due(path, tables, name) if kind == CURRENT else ()
            if clusters:
                cluster(spark, path, name, clusters)
            elif not folded:
                spark.sql(f"OPTIMIZE {table}").collect()
    removed = 0
    if kind == HISTORY and upkeep.history_retention is not None and not is_loading(path, name):
        removed = _cut(spark, table, tables, name, now - upkeep.history_retention)
    # Asked first: what is set aside later is behind history's LSN.
    if (
        kind == QUARANTINE
        and upkeep.history_retention is not None
        and name not in quarantined(path)
    ):
        removed = _delete(spark, table, f"_commit_lsn < {tables.durable_lsn(HISTORY, name)}")
    hours = int(upkeep.retention.total_seconds() // 3600)
    # Its entries in the log are Spark's commits, which on object storage a merge by delta-rs must
    # not meet.
    with _alone(path, kind, name) if isinstance(path, ObjectPath) else nullcontext():
        lease.check(path)
        spark.sql(f"VACUUM {table} RETAIN {hours} HOURS").collect()
    files, size = _detail(spark, table)
    return TableUpkeep(kind, name, before, files, size, removed, time.monotonic() - began)


@contextmanager
def _alone(path: LakePath, kind: str, name: str) -> Iterator[None]:
    """Keep batches, merges and loads from a current table."""
    if kind != CURRENT:
        yield
        return
    with merge_lock(path, name), table_lock(path, name):
        yield


def _folded(path: LakePath, tables: _Foldable, name: str) -> bool:
    """Compact a current table that is merged by position, beside its batches; return whether it is
    one.
    """

    @contextmanager
    def held() -> Iterator[None]:
        with _alone(path, CURRENT, name):
            if is_loading(path, name):
                raise NotDirect("the table is being loaded")
            lease.check(path)
            yield

    return not is_loading(path, name) and tables.fold(name, held)


def _maintained_iceberg(
    _spark: SparkSession,
    path: LakePath,
    tables: LakeTables,
    kind: str,
    name: str,
    upkeep: Upkeep,
    now: datetime,
) -> TableUpkeep:
    from spillway.lake.tables.iceberg.tables import IcebergTables  # noqa: PLC0415 - imports PyIceberg
    from spillway.lake.tables.iceberg.upkeep import IcebergUpkeep  # noqa: PLC0415 - as above

    began = time.monotonic()
    lease.check(path)
    assert isinstance(tables, IcebergTables)  # of this format
    table = IcebergUpkeep(tables, kind, name)
    before, _ = table.size()
    folded = kind == CURRENT and _folded(path, tables, name)
    with _alone(path, kind, name):
        if kind == HISTORY or not (folded or is_loading(path, name)):
            table.compact()
    removed = 0
    if kind == HISTORY and upkeep.history_retention is not None and not is_loading(path, name):
        removed = table.cut(now - upkeep.history_retention, _taken_up(tables, name))
    # Expiring is a commit, too, which a merge must not meet.
    with _alone(path, kind, name):
        table.expire(now - upkeep.retention)
    files, size = table.size()
    return TableUpkeep(kind, name, before, files, size, removed, time.monotonic() - began)


def _taken_up(tables: LakeTables, name: str) -> int:
    """Return the LSN up to which a history's changes are not to be read from it any more."""
    upto = tables.durable_lsn(HISTORY, name)
    if tables.current(name) is not None:
        upto = min(upto, tables.durable_lsn(CURRENT, name))
    return upto


def _cut(spark: SparkSession, table: str, tables: LakeTables, name: str, before: datetime) -> int:
    """Delete a history's changes that were committed before *before*; return how many."""
    upto = _taken_up(tables, name)
    return _delete(
        spark, table, f"_commit_time < timestamp'{before.isoformat()}' AND _commit_lsn < {upto}"
    )


def _delete(spark: SparkSession, table: str, old: str) -> int:
    """Delete a table's rows that are *old*; return how many."""
    if spark.sql(f"SELECT 1 FROM {table} WHERE {old} LIMIT 1").isEmpty():  # noqa: S608 - quoted
        return 0
    (row,) = spark.sql(f"DELETE FROM {table} WHERE {old}").collect()  # noqa: S608 - quoted
    return int(row[0])


def _detail(spark: SparkSession, table: str) -> tuple[int, int]:
    """Return how many files a table has, and their bytes."""
    (row,) = spark.sql(f"DESCRIBE DETAIL {table}").select("numFiles", "sizeInBytes").collect()
    return int(row[0]), int(row[1])


def last_round(path: LakePath) -> datetime | None:
    """Return when the last round ended well; None: never, or it can't be read."""
    try:
        stored: dict[str, Any] = json.loads(_file(path).read_text("utf-8"))
        return datetime.fromisoformat(stored["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def due(path: LakePath, upkeep: Upkeep, now: datetime | None = None) -> bool:
    """Say whether a round is to be done: the interval is counted from the first time that this is
    asked.
    """
    if upkeep.interval is None:
        return False
    now = now or datetime.now(UTC)
    last = last_round(path)
    if last is None:
        _store_time(path, now)
        return False
    return now - last >= upkeep.interval


def _store_time(path: LakePath, now: datetime) -> None:
    replace_json(_file(path), {"at": now.isoformat()})


def _file(path: LakePath) -> LakePath:
    return path / "_spillway" / "maintenance.json"


@contextmanager
def beside(
    one_round: Callable[[threading.Event], Round], path: LakePath, upkeep: Upkeep
) -> Iterator[None]:
    """Do rounds on a thread, as they are due, while the block runs; the table at hand is finished
    at its end.
    """
    if upkeep.interval is None:
        yield
        return
    stopping = threading.Event()

    def work() -> None:
        while not stopping.wait(_POLL_S):
            if due(path, upkeep):
                try:
                    one_round(stopping)
                except Exception as error:  # noqa: BLE001 - the job is not to end for it
                    _log.warning("maintenance of %s failed: %s", path, error)
                    _store_time(path, datetime.now(UTC))

    thread = threading.Thread(target=work, name="spillway-lake-maintenance")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
