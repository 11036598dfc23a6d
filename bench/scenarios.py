"""What is no throughput: latency, the primary's CPU for each slot, WAL pinned, the cost of a peek,
start-up.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import latency
from bench.apply import apply
from bench.databases import many_databases
from bench.grpc_client import grpc_clients
from bench.lake import lake
from bench.lake_compared import lake_compared
from bench.lake_load import lake_load
from bench.lake_tables import lake_tables
from bench.lake_updates import lake_updates
from bench.machine import tree_cpu_seconds
from bench.postgresql import (
    base_slot,
    create_base_slots,
    drop_slots,
    recvlogical_command,
    slot_copies,
)
from bench.ranges import call, copy_rows
from bench.results import POSTGRESQL, SPILLWAY
from bench.service import bench_source, restart_seconds
from bench.source import flushed_lsn, wait_until
from bench.start import start
from bench.wire import PG_PORT
from spillway.collector import GATHER_S
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.ranges import Databases
    from bench.service import SleepingService

_PLUGIN: Final = "pgoutput"
_RATE: Final = 1000
_MANY: Final = 8
_PEEKS: Final = 20


@dataclass(frozen=True)
class Scene:
    """What a scenario has to work with."""

    on: Databases
    service: SleepingService
    scale: float
    repeats: int
    say: Callable[[str], None]


def commit_to_delivery(scene: Scene) -> dict[str, Any]:
    """Latency from commit to delivery, at 1,000 transactions a second, both sides at the same time:
    the primary's walsender beside our gRPC, and then beside our port, with pg_recvlogical on both.

    Twenty seconds each, at a scale of less than a half fewer. One of our consumers at a time: on
    few cores each further one waits for the others.
    """
    figures: dict[str, Any] = {}
    for side in (SPILLWAY, PG_PORT):
        create_base_slots(scene.on.bench, [_PLUGIN])
        figures[side] = _both_sides(scene, side)
        drop_slots(scene.on.bench)
        for name in (POSTGRESQL, side):
            scene.say(f"   {name}: {figures[side][name]['quantiles_ms']} ms")
    return figures


def _both_sides(scene: Scene, side: str) -> dict[str, Any]:
    """Latencies of the walsender and of *side*, and the rate that was reached."""
    on, service = scene.on, scene.service
    with (
        bench_source(service, on.bench, {}),
        service.awake(),
        slot_copies(on.bench, _PLUGIN, 1) as (copy,),
        ExitStack() as stack,
    ):
        (slot,) = service.create_slots(on.bench, _PLUGIN, 1)
        command = recvlogical_command(on.bench.dsn, copy, _PLUGIN, "--file=-")
        theirs = latency.Consumer("pipe", *command)
        stack.callback(theirs.close)
        if side == PG_PORT:
            command = recvlogical_command(service.pg_dsn(on.bench), slot, _PLUGIN, "--file=-")
            ours = latency.Consumer("pipe", *command)
        else:
            ours = latency.Consumer("grpc", service.grpc_target, slot)
        stack.callback(ours.close)
        # Both have begun to stream, and wait; what the source before this one has left behind is
        # cleared away (spillway.collector).
        time.sleep(GATHER_S + 2)
        number, reached = latency.commit_at_rate(
            on.bench, _RATE, min(20.0, max(1.0, 40 * scene.scale))
        )
        return {
            "rate": round(reached),
            POSTGRESQL: latency.summary(theirs.latencies_us(), number),
            side: latency.summary(ours.latencies_us(), number),
        }


def primary_cpu(scene: Scene) -> dict[str, Any]:
    """CPU of all processes of the primary during a load, with 0, 1 and 8 slots of each side
    followed.
    """
    transactions = max(200, int(20_000 * scene.scale))
    figures: dict[str, Any] = {"transactions": transactions, "cpu_s": {}}
    create_base_slots(scene.on.bench, [_PLUGIN])

    def measure(name: str, followed: Callable[[], Any]) -> None:
        runs = []
        for _ in range(scene.repeats):
            with followed() as wait_followed:
                cpu_s = tree_cpu_seconds(scene.on.cluster.pid)
                call(scene.on.bench, "pgbench", transactions)
                wait_followed(flushed_lsn(scene.on.bench))
                runs.append(tree_cpu_seconds(scene.on.cluster.pid) - cpu_s)
        figures["cpu_s"][name] = {"median": statistics.median(runs), "runs": runs}
        scene.say(f"   {name}: {statistics.median(runs):.2f} s")

    measure("no slot", lambda: _followed_by_nobody(scene))
    for number in (1, _MANY):
        measure(f"PostgreSQL x {number}", lambda n=number: _followed_by_recvlogical(scene, n))  # type: ignore[misc]
    with bench_source(scene.service, scene.on.bench, {}), scene.service.awake():
        slots = scene.service.create_slots(scene.on.bench, _PLUGIN, _MANY)
        for number in (1, _MANY):
            measure(
                f"Spillway x {number}",
                lambda n=number: _followed_by_grpc(scene, slots[:n]),  # type: ignore[misc]
            )
    drop_slots(scene.on.bench)
    alone = figures["cpu_s"]["no slot"]["median"]
    for side in ("PostgreSQL", "Spillway"):
        one, many = (figures["cpu_s"][f"{side} x {n}"]["median"] for n in (1, _MANY))
        figures[side] = {"first_slot_s": one - alone, "each_more_s": (many - one) / (_MANY - 1)}
    return figures


def operation(scene: Scene) -> dict[str, Any]:
    """WAL that a consumer who stopped pins on the primary; what a peek costs; start-up after a
    crash.
    """
    on, service = scene.on, scene.service
    create_base_slots(on.bench, [_PLUGIN])
    figures: dict[str, Any] = {}
    with bench_source(service, on.bench, {}), service.awake():
        (slot,) = service.create_slots(on.bench, _PLUGIN, 1)
        call(on.bench, "pgbench", 50)
        service.wait_decoded(slot, flushed_lsn(on.bench))
        small_ms = _peek_ms(service, slot)
        begin = flushed_lsn(on.bench)
        copy_rows(on.bench, max(4, int(200 * scene.scale)), 1)
        end = flushed_lsn(on.bench)
        service.wait_decoded(slot, end)
        figures["wal_mb"] = round((end - begin) / 1e6, 1)
        # It says once a second how far it is.
        wait_until(
            lambda: _pinned(on, "slot_type = 'physical'") < end - begin, "the receiver's word"
        )
        time.sleep(2)
        figures["pinned_mb"] = {
            "PostgreSQL": round(_pinned(on, f"slot_name = '{base_slot(_PLUGIN)}'") / 1e6, 2),
            "Spillway": round(_pinned(on, "slot_type = 'physical'") / 1e6, 2),
        }
        figures["peek_ms"] = {"small": small_ms, "large": _peek_ms(service, slot)}
        call(on.bench, "pgbench", 50)
        restarts = [
            restart_seconds(service, slot, flushed_lsn(on.bench)) for _ in range(scene.repeats)
        ]
        figures["restart_s"] = {
            name: {"median": statistics.median(runs), "runs": runs}
            for name, runs in zip(("ready", "decoding"), zip(*restarts, strict=True), strict=True)
        }
    drop_slots(on.bench)
    scene.say(f"   pinned MB: {figures['pinned_mb']}, of {figures['wal_mb']} written")
    scene.say(
        f"   peek ms: {figures['peek_ms']}; restart s: "
        f"{figures['restart_s']['decoding']['median']:.2f}"
    )
    return figures


#: name, as --only takes it → what measures it
SCENARIOS: Final[Mapping[str, Callable[[Scene], dict[str, Any]]]] = {
    "latency": commit_to_delivery,
    "primary": primary_cpu,
    "operation": operation,
    "databases": many_databases,
    "start": start,
    "lake": lake,
    "lake_compared": lake_compared,
    "lake_load": lake_load,
    "lake_tables": lake_tables,
    "lake_updates": lake_updates,
    "apply": apply,
}


@contextmanager
def _followed_by_nobody(scene: Scene) -> Iterator[Callable[[Lsn], None]]:  # noqa: ARG001 - one of three
    yield lambda _lsn: None


@contextmanager
def _followed_by_recvlogical(scene: Scene, number: int) -> Iterator[Callable[[Lsn], None]]:
    database = scene.on.bench
    with slot_copies(database, _PLUGIN, number) as names:
        clients = [
            subprocess.Popen(
                recvlogical_command(database.dsn, name, _PLUGIN, "--file=/dev/null"),
                stdin=subprocess.DEVNULL,
            )
            for name in names
        ]
        try:
            yield _sent_to(scene, number)
        finally:
            for client in clients:
                client.terminate()
            for client in clients:
                client.wait()


@contextmanager
def _followed_by_grpc(scene: Scene, slots: list[str]) -> Iterator[Callable[[Lsn], None]]:
    with grpc_clients(scene.service.grpc_target, slots, 0) as clients:
        for client in clients:
            client.begin()
        yield _sent_to(scene, 1)


def _sent_to(scene: Scene, walsenders: int) -> Callable[[Lsn], None]:
    """Wait until all of them stream; return what waits until all have sent everything before an
    LSN.
    """
    connection = scene.on.bench.connect()

    def behind(lsn: Lsn) -> bool:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sent_lsn >= "
            "%s::pg_lsn",
            [str(lsn)],
        ).fetchone()
        assert row is not None
        return bool(row[0] < walsenders)

    wait_until(lambda: not behind(Lsn(0)), "walsenders stream")

    def wait(lsn: Lsn) -> None:
        with connection:
            wait_until(lambda: not behind(lsn), f"walsenders have sent {lsn}")

    return wait


def _pinned(on: Databases, which: str) -> int:
    return int(
        on.bench.value(
            f"SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE {which}"
        )
    )


def _peek_ms(service: SleepingService, slot: str) -> float:
    """Return the milliseconds of peeking at the first transaction over REST."""
    runs = []
    for _ in range(_PEEKS):
        started_s = time.perf_counter()
        service.call("GET", f"/slots/{slot}/peek", params={"upto_nchanges": 1})
        runs.append(time.perf_counter() - started_s)
    return round(statistics.median(runs) * 1000, 2)
