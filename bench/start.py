"""Starting with much that is known: a catalog of 20,000 tables, and a source of 41 databases with
slots.

Each is on a server and a service of its own, so that nothing else is in the catalogs or the
process. A *first slot* reads the catalog from the server: once when the tables have just been made,
and once on a server that had time since (its catalogs were vacuumed, and a checkpoint came). A
*restart* is after SIGKILL, timed from exec: until ``/readyz`` says that every database is decoded
as far as before, and until a client that was waiting for that has the change which was not
confirmed before the kill. CPU and peak memory are the whole process's up to then.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.grpc_client import grpc_clients
from bench.machine import cpu_seconds, memory_bytes, reset_peak
from bench.postgresql import PLUGINS
from bench.ranges import PUBLICATION
from bench.service import SleepingService
from bench.source import flushed_lsn
from harness.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scenarios import Scene
    from harness.cluster import Database
    from spillway.pg.lsn import Lsn

_PLUGIN: Final = "pgoutput"
_TABLES: Final = 20_000
_DATABASES: Final = 41
#: A small scale is for those who look whether it runs.
_TABLES_SMALL: Final = 40
_DATABASES_SMALL: Final = 3
_SMALL: Final = 0.05
#: tables of one transaction: a lock each
_TABLES_AT_ONCE: Final = 500


def start(scene: Scene) -> dict[str, Any]:
    """First slot and restart with 20,000 tables, and restart with 41 databases.

    At a scale of less than 0.05 with few of either.
    """
    small = scene.scale < _SMALL
    tables, databases = (_TABLES_SMALL, _DATABASES_SMALL) if small else (_TABLES, _DATABASES)
    return {
        "tables": {"number": tables, **_many_tables(scene, tables)},
        "databases": {"number": databases, **_many_databases(scene, databases)},
    }


def _many_tables(scene: Scene, number: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with _stage(scene) as (cluster, service):
        database = _Slotted(service, cluster.create_database("bench"))
        with database.of.connect() as connection:
            for first in range(0, number, _TABLES_AT_ONCE):
                connection.execute(
                    "".join(
                        (
                            f"CREATE TABLE t{n} (id int PRIMARY KEY, at timestamptz, amount "
                            "numeric, note text);"
                        )
                        for n in range(first, min(first + _TABLES_AT_ONCE, number))
                    )
                )
        figures["first_slot_just_made"] = _first_slot(database)
        service.drop_source()
        _age(database.of)
        figures["first_slot"] = _first_slot(database)
        for name in ("first_slot_just_made", "first_slot"):
            scene.say(f"   {number} tables, {name.replace('_', ' ')}: {_said(figures[name])}")
        figures["restart"] = _restarts(scene, service, database)
    scene.say(f"   {number} tables, restart: {_said(figures['restart'])}")
    return figures


def _many_databases(scene: Scene, number: int) -> dict[str, Any]:
    with _stage(scene) as (cluster, service):
        slotted = [_Slotted(service, cluster.create_database(f"bench_{n}")) for n in range(number)]
        # One that they all begin behind.
        cluster.execute("CHECKPOINT")
        service.create_source(slotted[0].of, {})
        for each in slotted:
            each.create_slot()
        figures = _restarts(scene, service, slotted[0], slotted)
    scene.say(f"   {number} databases, restart: {_said(figures)}")
    return {"restart": figures}


@contextmanager
def _stage(scene: Scene) -> Iterator[tuple[Cluster, SleepingService]]:
    """Have a server and a service, awake."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-"))
        cluster = stack.enter_context(
            Cluster(
                scene.on.cluster.major, shared_buffers="256MB", max_wal_size="4GB",
                max_locks_per_transaction=256,
            )
        )  # fmt: skip
        service = stack.enter_context(SleepingService(Path(scratch)))
        stack.enter_context(service.awake())
        yield cluster, service


class _Slotted:
    """A database with a table to insert into, and its slot."""

    def __init__(self, service: SleepingService, of: Database) -> None:
        self.of = of
        self.service = service
        of.execute("CREATE TABLE inserted (id int)")
        of.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE inserted")

    @property
    def slot(self) -> str:
        return f"{_PLUGIN}_{self.of.name}"

    def create_slot(self) -> None:
        self.service.call(
            "POST",
            "/slots",
            json={
                "slot_name": self.slot, "source": "bench", "database": self.of.name,
                "plugin": _PLUGIN, "options": PLUGINS[_PLUGIN][1],
            },
        )  # fmt: skip

    def insert(self) -> Lsn:
        """Commit a change; return where WAL ends then."""
        self.of.execute("INSERT INTO inserted VALUES (1)")
        return flushed_lsn(self.of)


def _age(database: Database) -> None:
    """Do to a database whose tables were just made what time does: its catalogs' rows have been
    read, and are checkpointed.
    """
    catalogs = database.query(
        "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class"
        " WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'"
    )
    database.execute(f"VACUUM {catalogs[0][0]}")
    database.execute("CHECKPOINT")


def _first_slot(database: _Slotted) -> dict[str, Any]:
    service = database.service
    cpu_s, started_s = cpu_seconds(service.pid), time.monotonic()
    reset_peak(service.pid)
    service.create_source(database.of, {})
    database.create_slot()
    return _runs(
        [
            {
                "seconds": time.monotonic() - started_s,
                "cpu_s": cpu_seconds(service.pid) - cpu_s,
                "peak_mb": memory_bytes(service.pid, "VmHWM") / 2**20,
            }
        ]
    )


def _restarts(
    scene: Scene,
    service: SleepingService,
    change_of: _Slotted,
    others: list[_Slotted] | None = None,
) -> dict[str, Any]:
    runs = []
    for _ in range(scene.repeats):
        end = change_of.insert()
        for each in others or [change_of]:
            service.wait_decoded(each.slot, end)
        service.kill()
        with grpc_clients(service.grpc_target, [change_of.slot], end) as (client,):
            started_s = time.monotonic()
            service.start()
            ready_s, ready_cpu_s = time.monotonic() - started_s, cpu_seconds(service.pid)
            client.begin()
            delivered = client.result()
            runs.append(
                {
                    "ready_s": ready_s,
                    "ready_cpu_s": ready_cpu_s,
                    "delivered_s": delivered["ended_s"] - started_s,
                    "cpu_s": cpu_seconds(service.pid),
                    "peak_mb": memory_bytes(service.pid, "VmHWM") / 2**20,
                }
            )
    return _runs(runs)


def _runs(runs: list[dict[str, float]]) -> dict[str, Any]:
    medians = {what: round(statistics.median(run[what] for run in runs), 3) for what in runs[0]}
    return {"median": medians, "runs": runs}


def _said(figures: dict[str, Any]) -> str:
    return ", ".join(f"{what} {value:.2f}" for what, value in figures["median"].items())
