"""What a lake job tells Prometheus: how fresh its tables are, what it wrote, where its time goes.

The job is a process of its own, so it has an endpoint of its own (``lake run --metrics-port``)
beside the service's; the same Prometheus scrapes both, and the label ``slot`` joins their series.

Freshness is the question that readers of a lake have: *how old is what I see?* As long as something
is decoded that the lake doesn't have, that is the time since the newest commit that it has; else it
is 0, however long ago that commit was. What an earlier run wrote was committed before it was made
durable: until the first batch with changes it is the time since then, which is less. Beside it
stands, as a histogram, how long each batch's oldest change took from its commit at the source until
the batch was durable. Both compare the source's clock with this machine's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from spillway.errors import InvalidRequest
from spillway.lake.shape.kinds import CURRENT

if TYPE_CHECKING:
    from datetime import datetime

    from spillway.lake.batch.materialize import BatchReport
    from spillway.lake.tables.figures import TableFigures
    from spillway.lake.tables.maintenance import TableUpkeep

_SECONDS: Final = (0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


@dataclass(slots=True)
class _Place:
    """Where a slot's lake is, of what is known."""

    lsn: int = 0
    decoded_lsn: int = 0
    #: of the newest change that the lake has, seconds since the epoch
    commit_time: float = 0.0
    #: whether it is that of a commit; else it is later
    is_commit_time_exact: bool = False
    #: of the oldest change that a table's history has and current has not, by table
    waiting: dict[str, float] = field(default_factory=dict)
    #: the same, of tables that are set aside or being loaded
    behind: dict[str, float] = field(default_factory=dict)


class LakeMetrics:
    """One process's metrics, of all the slots that it keeps lakes of. Safe to use from several
    threads.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()
        self._batches = Counter(
            "spillway_lake_batches", "Batches made durable.", ("slot",), registry=registry
        )
        self._changes = Counter(
            "spillway_lake_changes",
            "Changes that were new to a table's history.",
            ("slot", "table"),
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "spillway_lake_batch_seconds",
            "From a batch's first job to the confirmed slot.",
            ("slot",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._delay = Histogram(
            "spillway_lake_commit_to_lake_seconds",
            "From the commit of a batch's oldest change at the source until the lake has it.",
            ("slot",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._phases = Counter(
            "spillway_lake_phase_seconds",
            "Where Spark's triggers spend their time, by Spark's names.",
            ("slot", "phase"),
            registry=registry,
        )
        self._failures = Counter(
            "spillway_lake_failures", "Runs that ended with an error.", ("slot",), registry=registry
        )
        self._freshness = Gauge(
            "spillway_lake_freshness_seconds",
            "Age of the newest commit in the lake while newer ones are decoded, else 0.",
            ("slot",),
            registry=registry,
        )
        self._lsn = Gauge(
            "spillway_lake_lsn",
            "Everything before it is in the lake.",
            ("slot",),
            registry=registry,
        )
        self._files = Gauge(
            "spillway_lake_table_files",
            "Files of a table's newest version: of current as it was just now, of others as their "
            "last maintenance found them.",
            ("slot", "kind", "table"),
            registry=registry,
        )
        self._bytes = Gauge(
            "spillway_lake_table_bytes",
            "Bytes of those files.",
            ("slot", "kind", "table"),
            registry=registry,
        )
        self._rows = Gauge(
            "spillway_lake_table_rows",
            "Rows of a current table, as they are stored.",
            ("slot", "table"),
            registry=registry,
        )
        self._deleted = Gauge(
            "spillway_lake_table_deleted_rows",
            "Rows in a current table's files that are marked as gone.",
            ("slot", "table"),
            registry=registry,
        )
        self._rewritten = Counter(
            "spillway_lake_table_rewritten_bytes",
            "Bytes of a current table's files that commits have replaced.",
            ("slot", "table"),
            registry=registry,
        )
        self._table_freshness = Gauge(
            "spillway_lake_table_freshness_seconds",
            "Age of the newest commit of which a current table has everything while newer ones are "
            "decoded or wait for it, else 0.",
            ("slot", "table"),
            registry=registry,
        )
        self._lag = Gauge(
            "spillway_lake_lag_bytes",
            "WAL that is decoded and not in the lake.",
            ("slot",),
            registry=registry,
        )

    def begun(self, slot: str, lsn: int, decoded_lsn: int, as_of: datetime) -> None:
        """Note where a slot's lake is when its run begins; it has nothing that was committed later
        than *as_of*.
        """
        with self._lock:
            place = self._places.setdefault(slot, _Place())
            place.lsn, place.decoded_lsn = lsn, max(place.decoded_lsn, decoded_lsn)
            # Another run's newest commit is not known, and one that never gets to its first batch,
            # however often it is begun, must not be told as fresh.
            place.commit_time = place.commit_time or as_of.timestamp()
        self._freshness.labels(slot).set_function(lambda: self.freshness(slot))
        self._lag.labels(slot).set_function(lambda: max(0, place.decoded_lsn - place.lsn))
        self._lsn.labels(slot).set_function(lambda: place.lsn)
        self._failures.labels(slot)

    def batch(self, slot: str, report: BatchReport) -> None:
        """Note a batch that is durable."""
        with self._lock:
            place = self._places.setdefault(slot, _Place())
            place.lsn = max(place.lsn, int(report.end_lsn))
            place.decoded_lsn = max(place.decoded_lsn, place.lsn)
            if report.newest_commit is not None:
                committed = report.newest_commit.timestamp()
                known = place.commit_time if place.is_commit_time_exact else 0.0
                place.commit_time = max(known, committed)
                place.is_commit_time_exact = True
            # Who is not among them any more was given what it lacked.
            place.behind = {
                table: since
                for table, at in report.behind.items()
                if (since := place.behind.get(table) or (at and at.timestamp()))
            }
        for table in report.behind:
            self._tell_freshness(slot, table)
        self._batches.labels(slot).inc()
        for table, count in report.changes.items():
            self._changes.labels(slot, table).inc(count)
            self._tell_freshness(slot, table)
        self._batch_seconds.labels(slot).observe(report.seconds)
        if (delay := report.delay_s) is not None:
            self._delay.labels(slot).observe(delay)

    def decoded(self, slot: str, lsn: int) -> None:
        """Note how far the slot is decoded."""
        with self._lock:
            place = self._places.setdefault(slot, _Place())
            place.decoded_lsn = max(place.decoded_lsn, lsn)

    def phases(self, slot: str, milliseconds: dict[str, int]) -> None:
        """Add what one trigger's phases took."""
        for phase, spent in milliseconds.items():
            self._phases.labels(slot, phase).inc(spent / 1000)

    def maintained(self, slot: str, table: TableUpkeep) -> None:
        """Note what a table is after its maintenance."""
        self._files.labels(slot, table.kind, table.table).set(table.files)
        self._bytes.labels(slot, table.kind, table.table).set(table.size_bytes)

    def figures(self, slot: str, table: str, found: TableFigures) -> None:
        """Note what a current table is like."""
        self._files.labels(slot, CURRENT, table).set(found.files)
        self._bytes.labels(slot, CURRENT, table).set(found.size_bytes)
        # What is not known has no series.
        if found.rows is not None:
            self._rows.labels(slot, table).set(found.rows)
        if found.deleted_rows is not None:
            self._deleted.labels(slot, table).set(found.deleted_rows)
        self._rewritten.labels(slot, table).inc(found.rewritten_bytes)

    def waits(self, slot: str, table: str, since: datetime | None) -> None:
        """Note since when, by the source's clock, a current table lacks what its history has; None:
        it has all.
        """
        with self._lock:
            waiting = self._places.setdefault(slot, _Place()).waiting
            if since is None:
                waiting.pop(table, None)
            else:
                waiting[table] = since.timestamp()
        self._tell_freshness(slot, table)

    def behind(self, slot: str, table: str, since: datetime) -> None:
        """Note that a current table lacks what came since then, as it is set aside, until a batch
        says otherwise.
        """
        with self._lock:
            self._places.setdefault(slot, _Place()).behind[table] = since.timestamp()
        self._tell_freshness(slot, table)

    def loaded(self, slot: str, table: str) -> None:
        """Note that a table was loaded: its current state is the job's again."""
        with self._lock:
            self._places.setdefault(slot, _Place()).behind.pop(table, None)

    def _tell_freshness(self, slot: str, table: str) -> None:
        self._table_freshness.labels(slot, table).set_function(
            lambda: self.table_freshness(slot, table)
        )

    def table_freshness(self, slot: str, table: str) -> float:
        """Return the age, in seconds, of the newest commit of which a current table has all, while
        it lacks newer ones; else 0.
        """
        with self._lock:
            place = self._places[slot]
            lacks = [at[table] for at in (place.waiting, place.behind) if table in at]
        return max(0.0, time.time() - min(lacks)) if lacks else self.freshness(slot)

    def failed(self, slot: str) -> None:
        """Note that a run ended with an error."""
        self._failures.labels(slot).inc()

    def freshness(self, slot: str) -> float:
        """Return the age, in seconds, of the newest commit in the lake; 0 if nothing newer is
        decoded.
        """
        with self._lock:
            place = self._places[slot]
            if place.decoded_lsn <= place.lsn or not place.commit_time:
                return 0.0
            return max(0.0, time.time() - place.commit_time)


class MetricsServer:
    """``/metrics`` of one process, on a thread of its own; a context manager."""

    def __init__(self, metrics: LakeMetrics, port: int, host: str = "127.0.0.1") -> None:
        """Listen; port 0 takes a free one.

        Raises:
            InvalidRequest: the port is taken, or the address is not this machine's.
        """
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise InvalidRequest(
                f"metrics can't be served on {host}:{port}: {error.strerror}",
                hint="Choose another port, or 0 for a free one.",
            ) from error
        self.port: int = self._server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
