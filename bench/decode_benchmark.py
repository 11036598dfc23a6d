"""Decoding against PostgreSQL's own, on the same WAL, in one run: ``make bench``.

PostgreSQL's side is ``pg_logical_slot_peek_changes`` with test_decoding (or its binary sister with pgoutput), counted
inside the server so that no network is in it: the least that decoding there can cost. Ours is the same work in this
process: WAL files to records, catalog, reorder buffer, the plugin's output. Both sides must make the same number of
messages and bytes, or there is nothing to compare and the benchmark fails.

Runs alternate; figures are medians, CPU seconds (the backend's, this process's) beside wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from harness.cluster import Cluster, Database
from harness.oracle import create_slot
from spillway._kernels.message_buffer import MessageBuffer
from spillway._kernels.walker import Walker
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.decoding.decoder import Decoder
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from workloads import Workload, prepare, workloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway._kernels.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction
    from spillway.plugins.interface import OutputPlugin

#: plugin → the function that peeks with it, and options
_PLUGINS = {
    "test_decoding": ("pg_logical_slot_peek_changes", {"skip-empty-xacts": "1"}),
    "pgoutput": (
        "pg_logical_slot_peek_binary_changes",
        {"proto_version": "1", "publication_names": "bench"},
    ),
}
_READ_BYTES = 1 << 20
_TAKE_BYTES = 1 << 20


@dataclass(frozen=True)
class Run:
    """One side, once."""

    wall_s: float
    cpu_s: float
    lines: int
    payload_bytes: int


@dataclass(frozen=True)
class Outcome:
    """One workload, both sides, medians."""

    workload: str
    rows: int
    transactions: int
    wal_mb: float
    postgresql_wall_s: float
    postgresql_cpu_s: float
    spillway_wall_s: float
    spillway_cpu_s: float

    @property
    def wall_ratio(self) -> float:
        return self.postgresql_wall_s / self.spillway_wall_s

    @property
    def cpu_ratio(self) -> float:
        return self.postgresql_cpu_s / self.spillway_cpu_s


class EncodingSink:
    """Encodes each transaction as it comes and counts what comes out."""

    def __init__(self, plugin: OutputPlugin) -> None:
        self._plugin = plugin
        self._out = MessageBuffer(_TAKE_BYTES)
        self.lines = 0
        self.payload_bytes = 0

    def consistent(self, lsn: int) -> None:
        pass

    def progress(self, decoded_lsn: int) -> None:
        pass

    def transaction(self, transaction: Transaction) -> None:
        header = transaction.header
        if not header.is_ordinary:
            return
        self._plugin.begin(header, self._out)
        for chunk in transaction.chunks():
            self._plugin.changes(header, chunk, transaction.relations, self._out)
            if self._out.nbytes >= _TAKE_BYTES:
                self.take()
        self._plugin.commit(header, self._out)
        if self._out.nbytes >= _TAKE_BYTES:
            self.take()

    def transactions(self, run: TransactionRun) -> None:
        while not run.exhausted:
            self._plugin.transactions(run, self._out, _TAKE_BYTES)
            if self._out.nbytes >= _TAKE_BYTES:
                self.take()

    def take(self) -> None:
        batch = self._out.take()
        self.lines += batch.count
        self.payload_bytes += len(batch.payload)


class Bench:
    """A server with a database, and decoding beside it."""

    def __init__(self, cluster: Cluster, database: Database, spill_dir: Path, plugin: str) -> None:
        self.plugin = plugin
        self.function, self.options = _PLUGINS[plugin]
        self.cluster = cluster
        self.database = database
        self.spill_dir = spill_dir
        self.version_num = int(database.value("SHOW server_version_num"))
        self.version = version_of_server(self.version_num)

    def measure(self, workload: Workload, repeats: int) -> Outcome:
        """Write *workload* and decode it by both sides in turn."""
        self.cluster.execute("CHECKPOINT")
        slot = create_slot(self.database, "bench", self.plugin)
        state = self._decoding_state()
        begin = self._wal_lsn()
        workload.run(self.database)
        end = self._wal_lsn()
        theirs, ours = [], []
        for _ in range(repeats):
            theirs.append(self._postgresql(end))
            ours.append(self._spillway(state, begin, end))
        slot.drop()
        for run in ours:
            if (run.lines, run.payload_bytes) != (theirs[0].lines, theirs[0].payload_bytes):
                sys.exit(
                    f"{workload.name}: PostgreSQL printed {theirs[0].lines} lines of {theirs[0].payload_bytes} bytes, "
                    f"Spillway {run.lines} of {run.payload_bytes}"
                )
        return Outcome(
            workload=workload.name,
            rows=workload.rows,
            transactions=workload.transactions,
            wal_mb=round((end - begin) / 1e6, 1),
            postgresql_wall_s=statistics.median(run.wall_s for run in theirs),
            postgresql_cpu_s=statistics.median(run.cpu_s for run in theirs),
            spillway_wall_s=statistics.median(run.wall_s for run in ours),
            spillway_cpu_s=statistics.median(run.cpu_s for run in ours),
        )

    def _postgresql(self, end: Lsn) -> Run:
        options = ", ".join(f"'{key}', '{value}'" for key, value in self.options.items())
        with self.database.connect() as connection:
            pid = connection.info.backend_pid
            cpu, started = _cpu_seconds(pid), time.monotonic()
            row = connection.execute(
                "SELECT count(*), sum(octet_length(data))"  # type: ignore[arg-type]
                f" FROM {self.function}('bench', '{end}', NULL, {options})"
            ).fetchone()
            assert row is not None
            return Run(time.monotonic() - started, _cpu_seconds(pid) - cpu, row[0], int(row[1]))

    def _spillway(self, state: bytes, begin: Lsn, end: Lsn) -> Run:
        context = PluginContext("bench", self.database.name, self.version_num)
        sink = EncodingSink(create_plugin(self.plugin, self.options, context))
        decoder = Decoder.restore(
            state, self.version, sink, spill_dir=self.spill_dir, start_decoding_at=begin
        )
        try:
            cpu, started = time.process_time(), time.monotonic()
            self._decode(decoder, end)
            sink.take()
            return Run(
                time.monotonic() - started,
                time.process_time() - cpu,
                sink.lines,
                sink.payload_bytes,
            )
        finally:
            decoder.close()

    def _decoding_state(self) -> bytes:
        """Bootstrap the catalog, decode up to a consistent point of now and serialise."""
        bootstrap = bootstrap_sql(self.database.dsn)
        context = PluginContext("bench", self.database.name, self.version_num)
        decoder = Decoder(
            self.version,
            self.database.oid,
            bootstrap.mirror,
            EncodingSink(create_plugin(self.plugin, self.options, context)),
            spill_dir=self.spill_dir,
            start=bootstrap.redo_lsn,
        )
        try:
            self.cluster.execute("CHECKPOINT")
            self._decode(decoder, self._wal_lsn())
            if decoder.snapshot_state != SnapshotState.CONSISTENT:
                sys.exit("decoding is not consistent on an idle server")
            return decoder.serialize()
        finally:
            decoder.close()

    def _decode(self, decoder: Decoder, end: Lsn) -> None:
        lsn = decoder.position
        walker = Walker(self.version, lsn, self.cluster.wal_segment_size)
        for data in self._wal(lsn, end):
            walker.feed(lsn, data)
            lsn += len(data)
            while (batch := walker.next_batch(8192)) is not None:
                decoder.process(batch)

    def _wal(self, start: int, end: int) -> Iterator[bytes]:
        size = self.cluster.wal_segment_size
        while start < end:
            number, offset = divmod(start, size)
            per_xlogid = (1 << 32) // size
            name = f"00000001{number // per_xlogid:08X}{number % per_xlogid:08X}"
            with (self.cluster.wal_directory / name).open("rb", buffering=0) as segment:
                segment.seek(offset)
                while start < end and offset < size:
                    data = segment.read(min(_READ_BYTES, size - offset, end - start))
                    yield data
                    offset += len(data)
                    start += len(data)

    def _wal_lsn(self) -> Lsn:
        """Where WAL ends, everything before it being in the files."""
        with self.database.connect() as connection:
            # A transaction that is forced to disk takes what is before it along.
            connection.execute("SET synchronous_commit = on")
            connection.execute("SELECT txid_current()")
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def _print(console: Console, outcomes: list[Outcome], major: int, plugin: str) -> None:
    table = Table(
        title=f"Decoding and {plugin} output, PostgreSQL {major} in the server against Spillway",
        title_justify="left",
    )
    table.add_column("WAL range")
    for heading in (
        "WAL",
        "rows",
        "PostgreSQL rows/s",
        "CPU s",
        "Spillway rows/s",
        "CPU s",
        "wall",
        "CPU",
    ):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.workload,
            f"{outcome.wal_mb:,.0f} MB",
            f"{outcome.rows:,}",
            f"{outcome.rows / outcome.postgresql_wall_s:,.0f}",
            f"{outcome.postgresql_cpu_s:.2f}",
            f"{outcome.rows / outcome.spillway_wall_s:,.0f}",
            f"{outcome.spillway_cpu_s:.2f}",
            f"{outcome.wall_ratio:.1f} x",
            f"{outcome.cpu_ratio:.1f} x",
        )
    console.print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgresql", type=int, default=15, choices=range(14, 19))
    parser.add_argument("--plugin", default="test_decoding", choices=_PLUGINS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the workloads")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    chosen = parser.parse_args()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(_machine())
    with (
        Cluster(chosen.postgresql, shared_buffers="512MB", max_wal_size="16GB") as cluster,
        tempfile.TemporaryDirectory(prefix="spillway-bench-") as spill,
    ):
        database = cluster.create_database("bench")
        prepare(database)
        bench = Bench(cluster, database, Path(spill), chosen.plugin)
        outcomes = []
        for workload in workloads(chosen.scale):
            console.print(f"  {workload.name} …")
            outcomes.append(bench.measure(workload, chosen.repeats))
    _print(console, outcomes, chosen.postgresql, chosen.plugin)
    if chosen.json:
        figures = {"machine": _machine(), "outcomes": [asdict(outcome) for outcome in outcomes]}
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
