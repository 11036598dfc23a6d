"""Many databases with slots, of which one is busy: the CPU that the service takes, beside that
database alone.

Both are measured in two ways. *Live*: one client commits at a fixed rate, for some seconds.
*Backlog*: the service slept while transactions were written, and the CPU is from its waking until
every database has passed them. An idle database makes a checkpoint after so many bytes of WAL, and
the fifty stand apart: so backlogs are repeated until each has come to one, and their mean is told
beside the median, which leaves out how many fall into a run.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench import latency
from bench.machine import cpu_seconds
from bench.postgresql import PLUGINS
from bench.ranges import call
from bench.service import bench_source
from bench.source import flushed_lsn, wait_until
from spillway.pg.lsn import Lsn
from spillway.sessions.settings import SessionSettings

if TYPE_CHECKING:
    from bench.scenarios import Scene

_PLUGIN: Final = "pgoutput"
_RATE: Final = 500
_IDLE: Final = 49
#: A small scale is for those who look whether it runs.
_IDLE_SMALL: Final = 3
_SMALL: Final = 0.05
_CHECKPOINT_INTERVAL_S: Final = SessionSettings().checkpoint_interval_s
_CHECKPOINT_BYTES: Final = SessionSettings().checkpoint_bytes
#: which of a way's figures the ratio is of: all checkpoints of a backlog count, once each
_TOLD: Final = {"live": "median", "backlog": "mean"}
#: However little WAL the transactions make.
_BACKLOGS_MAX: Final = 12


def many_databases(scene: Scene) -> dict[str, Any]:
    """CPU of the service with one database, and with fifty of which one is busy."""
    on, service = scene.on, scene.service
    idle = _IDLE_SMALL if scene.scale < _SMALL else _IDLE
    seconds, transactions = (
        max(1.0, min(20.0, 40 * scene.scale)),
        max(200, int(400_000 * scene.scale)),
    )
    figures: dict[str, Any] = {
        "rate": _RATE, "seconds": seconds, "transactions": transactions, "databases": idle + 1,
        "cpu_s": {},
    }  # fmt: skip
    with bench_source(service, on.bench, {}), service.awake():
        slots = service.create_slots(on.bench, _PLUGIN, 1)
        _measure(scene, figures, "one", slots, seconds, transactions)
        for number in range(idle):
            database = on.cluster.create_database(f"idle_{number}")
            slots.append(f"idle_{number}")
            service.call(
                "POST",
                "/slots",
                json={
                    "slot_name": slots[-1], "source": "bench", "database": database.name,
                    "plugin": _PLUGIN, "options": PLUGINS[_PLUGIN][1],
                },
            )  # fmt: skip
        _measure(scene, figures, "many", slots, seconds, transactions)
    for number in range(idle):
        on.cluster.drop_database(f"idle_{number}")
    figures["ratio"] = {
        how: round(cpu["many"][_TOLD[how]] / cpu["one"][_TOLD[how]], 2)
        for how, cpu in figures["cpu_s"].items()
    }
    scene.say(f"   {idle + 1} databases to one: {figures['ratio']}")
    return figures


def _measure(
    scene: Scene,
    figures: dict[str, Any],
    who: str,
    slots: list[str],
    seconds: float,
    transactions: int,
) -> None:
    on, service = scene.on, scene.service

    def wait_passed() -> None:
        lsn = flushed_lsn(on.bench)
        for slot in slots:
            service.wait_decoded(slot, lsn)

    # Caches are warm, and what the slots' creation left is done: the first checkpoint of each
    # database, which comes with the first WAL after its interval.
    time.sleep(_CHECKPOINT_INTERVAL_S + 1)
    call(on.bench, "pgbench", 50)
    wait_passed()
    time.sleep(1)
    runs: dict[str, list[float]] = {"live": [], "backlog": []}
    for _ in range(scene.repeats):
        cpu_s = cpu_seconds(service.pid)
        latency.commit_at_rate(on.bench, _RATE, seconds)
        runs["live"].append(cpu_seconds(service.pid) - cpu_s)
        wait_passed()
    written = 0
    while is_backlog_due(scene.repeats, len(runs["backlog"]), written, scene.scale):
        with service.asleep():
            began = flushed_lsn(on.bench)
            call(on.bench, "pgbench", transactions)
            end = flushed_lsn(on.bench)
        written += end - began
        cpu_s = cpu_seconds(service.pid)
        # Asked seldom: each answer costs CPU, too.
        wait_until(partial(_all_passed, scene, end), f"decoding up to {end}", 600, every_s=0.5)
        runs["backlog"].append(cpu_seconds(service.pid) - cpu_s)
    for how, values in runs.items():
        of = figures["cpu_s"].setdefault(how, {})
        median, mean = statistics.median(values), statistics.mean(values)
        of[who] = {"median": median, "mean": mean, "runs": values}
        scene.say(f"   {who}, {how}: {median:.2f} s, mean {mean:.3f} of {len(values)}")


def is_backlog_due(repeats: int, made: int, written: int, scale: float) -> bool:
    """Say whether one more is to be measured, after *made* with *written* bytes of WAL."""
    if made < repeats:
        return True
    return scale >= _SMALL and written < _CHECKPOINT_BYTES and made < _BACKLOGS_MAX


def _all_passed(scene: Scene, lsn: Lsn) -> bool:
    (source,) = scene.service.call("GET", "/sources")["sources"]
    return all(Lsn.parse(session["decoded_lsn"] or "0/0") >= lsn for session in source["sessions"])
