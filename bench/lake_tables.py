"""What a batch in Delta Lake costs by how many tables it has changes of: one row in each.

Three batches a number of tables: the first, which makes their lake tables; one that inserts a row
into each, and one that updates one. And a change of one table in a job that follows. The job is a
process of its own, as in :mod:`bench.lake`, warmed up on other tables.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.lake import LakeJob
from bench.service import bench_source
from bench.source import flushed_lsn

if TYPE_CHECKING:
    from bench.scenarios import Scene

#: Numbers of tables; below this scale it is only tried.
COUNTS: Final = (60, 500)
_TRIED: Final = (2, 5)
_SCALE: Final = 0.1
_WARM_UPS: Final = 3
#: Statements that one call sends: each takes its table's lock until the end.
_AT_ONCE: Final = 50


def lake_tables(scene: Scene) -> dict[str, Any]:
    """Seconds of a batch in Delta Lake that changes one row in each of many tables."""
    figures: dict[str, Any] = {}
    for count in _TRIED if scene.scale < _SCALE else COUNTS:
        figures[str(count)] = _measure(scene, count)
        scene.say(f"   {count} tables: {figures[str(count)]}")
    return figures


def _measure(scene: Scene, count: int) -> dict[str, Any]:
    database, service = scene.on.bench, scene.service
    tables = [f"lake_of_many_{n}" for n in range(count)]

    def each(statement: str, names: list[str]) -> None:
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            database.execute("; ".join(statement.format(table=name) for name in some))

    columns = "(id int PRIMARY KEY, note text, at timestamptz, amount numeric(12, 2))"
    warm = ["lake_of_many_warm"]
    each(f"CREATE TABLE {{table}} {columns}", [*tables, *warm])
    figures: dict[str, Any] = {}
    with (
        bench_source(service, database, {}),
        service.awake(),
        tempfile.TemporaryDirectory(prefix="spillway-bench-lake-") as directory,
    ):
        slot = {"slot_name": "lake", "source": "bench", "database": database.name}
        service.call("POST", "/slots", json={**slot, "plugin": "arrow"})
        with LakeJob(service.grpc_target, "lake", Path(directory)) as job:

            def run(statement: str, names: list[str]) -> dict[str, Any]:
                each(statement, names)
                service.wait_decoded("lake", flushed_lsn(database))
                return job.run()

            insert = "INSERT INTO {{table}} VALUES ({id}, 'a note', now(), 1.25)"
            update = "UPDATE {table} SET note = note || '.' WHERE id = 1"
            for n in range(_WARM_UPS):
                run(insert.format(id=n), warm)
                run(update, warm)
            for name, statement in (
                ("first", insert.format(id=1)),
                ("inserts", insert.format(id=2)),
                ("updates", update),
            ):
                figures[name] = run(statement, tables)
            figures["one"] = _one(scene, job, update.format(table=tables[0]))
    each("DROP TABLE {table}", [*tables, *warm])
    return figures


def _one(scene: Scene, job: LakeJob, statement: str) -> dict[str, Any]:
    """Change one table once a second while the job follows; return how old changes were when they
    were durable, seconds.
    """
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(1.0):
            scene.on.bench.execute(statement)

    writer = threading.Thread(target=write, name="spillway-bench-one")
    writer.start()
    try:
        answer = job.follow(6.0 if scene.scale < _SCALE else 20.0)
    finally:
        stop.set()
        writer.join()
    ages = [oldest_s for _, _, oldest_s in answer["followed"]]
    return {
        "batches": len(ages),
        "median_s": round(statistics.median(ages), 2),
        "longest_s": round(max(ages), 2),
        "cpu_s": answer["cpu_s"],
    }
