"""How many rows a second an initial load brings into Delta Lake, beside Spark over JDBC.

One table of ten columns, read by our load into history and current, and by Spark's JDBC source into
one Delta table, in two ranges of its key; each side sleeps while the other has its turn. A first
run of each lets Java compile. Then some small tables, which cost what a table costs. The lake's
own processes, PostgreSQL and, for ours, the service share two cores. Afterwards both current tables
must be the same, row for row.

JDBC's driver is the one that the tests bring (``harness.java_clients``).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict

from bench.child import Child, tell
from bench.machine import cpu_seconds, tree_cpu_seconds
from bench.results import BenchFailed
from bench.service import bench_source
from bench.source import flushed_lsn
from harness.java_clients import PGJDBC, folder
from spillway.lake import jars
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.session import spark_session

if TYPE_CHECKING:
    from bench.scenarios import Scene

#: Rows at scale 1.
_ROWS: Final = 4_000_000
_WARM_UP_ROWS: Final = 200_000
_SMALL_TABLES: Final = 40
_SMALL_ROWS: Final = 1_000
#: below this scale it is only tried
_SCALE: Final = 0.1
_COLUMNS: Final = (
    "(id bigint PRIMARY KEY, customer int, made timestamptz, shipped date, amount numeric(12, 2), "
    "pieces smallint, weight float8, status text, note text, paid boolean)"
)
_ROW: Final = (
    "n, n % 50000, timestamptz '2026-01-01' + n * interval '1 second', date '2026-01-01' + n % 365,"
    " n % 100000 / 100.0, n % 40, n * 0.37, (array['new', 'paid', 'sent', 'back'])[1 + n % 4], "
    "'note number ' || n || ' of a text of about fifty letters', n % 3 = 0"
)
OURS: Final = "Spillway, history and current"
JDBC: Final = "Spark JDBC, current"


def lake_load(scene: Scene) -> dict[str, Any]:
    """Rows a second of an initial load into Delta Lake, and of Spark over JDBC."""
    database, service = scene.on.bench, scene.service
    rows = max(1_000, int(_ROWS * scene.scale))
    small = _SMALL_TABLES if scene.scale >= _SCALE else 3
    sizes = {"load_warm": min(rows, _WARM_UP_ROWS), "load_rows": rows}
    sizes |= {f"load_small_{n}": _SMALL_ROWS for n in range(small)}
    for table, count in sizes.items():
        database.execute(f"CREATE TABLE {table} {_COLUMNS}")
        database.execute(f"INSERT INTO {table} SELECT {_ROW} FROM generate_series(1, {count}) n")
        database.execute(f"ANALYZE {table}")
    conninfo = json.dumps({name: str(v) for name, v in conninfo_to_dict(database.dsn).items()})
    (driver,) = jars.resolve(folder(), (PGJDBC,))
    figures: dict[str, Any] = {"rows": rows, "small_tables": small}
    with ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-")))
        stack.enter_context(bench_source(service, database, {}))
        stack.enter_context(service.awake())
        slot = {"slot_name": "lake", "source": "bench", "database": database.name}
        service.call("POST", "/slots", json={**slot, "plugin": "arrow"})
        service.wait_decoded("lake", flushed_lsn(database))
        ours = stack.enter_context(
            Child("bench.lake_load", service.grpc_target, database.dsn, str(where))
        )

        def loaded(lake: str, *tables: str) -> dict[str, float]:
            wanted = {"lake": lake, "tables": [f"public.{table}" for table in tables]}
            return _timed(scene, ours, json.dumps(wanted))

        with Child(
            "bench.jdbc", conninfo, str(where / "jdbc"), str(driver), "public.load_rows"
        ) as jdbc:
            runs: dict[str, list[dict[str, float]]] = {OURS: [], JDBC: []}
            with jdbc.asleep():
                loaded("warm", "load_warm")
            with ours.asleep():
                jdbc.ask(f"read {rows}")
            for n in range(scene.repeats):
                with jdbc.asleep():
                    runs[OURS].append(loaded(f"lake_{n}", "load_rows"))
                with ours.asleep():
                    runs[JDBC].append(_timed(scene, jdbc, f"read {rows}"))
                scene.say(f"   { ({who: taken[-1] for who, taken in runs.items()}) }")
        _compare(where, scene.repeats - 1)
        figures["small"] = loaded("small", *(table for table in sizes if "small" in table))
        scene.say(f"   {small} small tables: {figures['small']}")
    for who, taken in runs.items():
        seconds = statistics.median(run["seconds"] for run in taken)
        figures[who] = {
            "seconds": seconds,
            "rows_per_s": round(rows / seconds),
            "cpu_s": statistics.median(run["cpu_s"] for run in taken),
            "runs": taken,
        }
    for table in sizes:
        database.execute(f"DROP TABLE {table}")
    return figures


def _timed(scene: Scene, child: Child, question: str) -> dict[str, float]:
    """Ask a child; return the seconds and the CPU seconds that the answer took."""
    began_s, cpu_s = time.monotonic(), _cpu(scene)
    answer = child.ask(question)
    return {
        "seconds": round(time.monotonic() - began_s, 2),
        "cpu_s": round(answer["cpu_s"] + _cpu(scene) - cpu_s, 2),
    }


def _cpu(scene: Scene) -> float:
    return tree_cpu_seconds(scene.on.cluster.pid) + cpu_seconds(scene.service.pid)


def _compare(where: Path, last: int) -> None:
    """See to it that both wrote the same.

    Raises:
        BenchFailed: they differ.
    """
    ours, theirs = (
        DeltaTable(str(path)).to_pyarrow_table()
        for path in (
            where / f"lake_{last}" / "current" / "public.load_rows",
            where / "jdbc" / "current",
        )
    )
    ours, theirs = (
        table.take(pc.sort_indices(table, [("id", "ascending")])) for table in (ours, theirs)
    )
    if not theirs.select(ours.column_names).cast(ours.schema).equals(ours):
        raise BenchFailed(f"the table over JDBC ({len(theirs):,} rows) is not ours ({len(ours):,})")


def _serve(grpc: str, dsn: str, directory: Path) -> None:
    """Load what is asked for; the child's half."""
    spark = spark_session(table_format="delta", master="local[2]")
    for line in sys.stdin:
        asked = json.loads(line)
        settings = LoadSettings(
            slot="lake",
            path=directory / asked["lake"],
            source_dsn=dsn,
            tables=tuple(asked["tables"]),
            grpc=grpc,
        )
        tell({"tables": run_load(settings, lambda _: None, spark=spark)})
    spark.stop()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
