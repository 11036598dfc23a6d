"""How fast the receiver takes WAL in: ``PYTHONPATH=.:tests python -m bench.receive``.

A server writes WAL first; then a receiver with an empty store catches up, with every byte synced.
Three neighbours in its process are tried, because all share the interpreter's lock: none, one that
reads the store as a decoder does, and a Python loop that never lets go of the lock by itself, the
worst there is.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from harness.cluster import Cluster
from harness.reception import SLOT, flush_lsn
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import create_physical_slot, drop_physical_slot
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import WalReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READ_BYTES = 1 << 20


def nobody(_store: WalWriter, _stop: threading.Event) -> None:
    """Leave the receiver alone."""


def reader(store: WalWriter, stop: threading.Event) -> None:
    """Read everything that was received."""
    position = int(store.first_lsn)
    while not stop.is_set():
        if store.reader.wait(position, 0.1):
            position += len(store.reader.read(position, _READ_BYTES))


def spinner(_store: WalWriter, stop: threading.Event) -> None:
    """Keep the interpreter busy."""
    while not stop.is_set():
        pass


@contextmanager
def beside(
    neighbour: Callable[[WalWriter, threading.Event], None], store: WalWriter
) -> Iterator[None]:
    """Run *neighbour* in a thread of its own for the length of a ``with``."""
    stop = threading.Event()
    thread = threading.Thread(target=neighbour, args=(store, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def receive_all(
    cluster: Cluster, start_lsn: int, neighbour: Callable[[WalWriter, threading.Event], None]
) -> tuple[float, float, float]:
    """Catch up from *start_lsn* into an empty store; return megabytes, wall and CPU seconds."""
    facts = check_source(cluster.dsn(), slot_name=SLOT)
    end = flush_lsn(cluster)
    with (
        tempfile.TemporaryDirectory(prefix="spillway-bench-") as directory,
        WalWriter(
            Path(directory),
            system_id=facts.system_id,
            segment_size=facts.wal_segment_size,
            timeline=facts.timeline,
            start_lsn=start_lsn,
        ) as store,
    ):
        receiver = WalReceiver(cluster.dsn(), SLOT, store)
        wall, cpu = time.perf_counter(), time.process_time()
        with beside(neighbour, store):
            receiver.start()
            while store.flushed_lsn < end and receiver.is_alive():
                time.sleep(0.01)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        receiver.stop()
        if receiver.error is not None:
            raise receiver.error
        return (end - store.first_lsn) / 1e6, wall, cpu


def main() -> None:
    """Write WAL, receive it three times, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", type=int, default=18, help="major version")
    parser.add_argument("--rows", type=int, default=500_000, help="rows of about 1 kB")
    arguments = parser.parse_args()
    table = Table("beside the receiver", "MB", "seconds", "MB/s", "CPU seconds of the process")
    with Cluster(arguments.postgres, max_wal_size="16GB", wal_keep_size="16GB") as cluster:
        slot = create_physical_slot(cluster.dsn(), SLOT)
        cluster.execute("CREATE TABLE t (a text)")
        cluster.execute(
            "INSERT INTO t SELECT repeat(md5(i::text), 30) FROM generate_series(1, %s) i",
            [arguments.rows],
        )
        for neighbour in (nobody, reader, spinner):
            megabytes, wall_s, cpu_s = receive_all(cluster, slot.restart_lsn, neighbour)
            speed = f"{megabytes / wall_s:.0f}"
            table.add_row(
                neighbour.__name__, f"{megabytes:.0f}", f"{wall_s:.2f}", speed, f"{cpu_s:.2f}"
            )
        drop_physical_slot(cluster.dsn(), SLOT)
    Console().print(table)


if __name__ == "__main__":
    main()
