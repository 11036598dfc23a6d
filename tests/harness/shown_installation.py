"""An installation to look at: three sources, a dozen slots, something wrong with some of them, and
always the same, so that a picture of a page can be compared with the last one.

What it is made of is values in the fake engine; the pages over it are the real ones. ::

    python -m harness.shown_installation     # serves them until it is ended
"""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from harness.fake_engine import FakeEngine
from harness.fake_service import FakeService
from spillway.caller import GRPC, POSTGRESQL, REST
from spillway.pg.lsn import Lsn
from spillway.service.model import (
    Consumer,
    DatabaseSession,
    Decoding,
    PrimaryCost,
    SlotInfo,
    SourceInfo,
    TableInfo,
)
from spillway.subscriber.model import SubscriptionSpec, TableState

if TYPE_CHECKING:
    from collections.abc import Iterator

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
#: so that what is told in days reads the same while a test runs
BEGAN = datetime.now(UTC) - timedelta(days=4, minutes=30)
END = Lsn.parse("1A/4C80F2A8")


class ShownEngine(FakeEngine):
    """Its slots are as they were put, lag and all."""

    def __init__(self) -> None:
        super().__init__()
        self.lags: dict[str, float | None] = {}
        self.costs: dict[str, PrimaryCost] = {}

    async def list_slots(self) -> list[SlotInfo]:
        return list(self.slots.values())

    async def get_slot(self, slot_name: str) -> SlotInfo:
        return self._slot(slot_name)

    async def lag_seconds(self, slot_name: str) -> float | None:
        return self.lags.get(slot_name, 0.0)

    async def primary_cost(self, name: str) -> PrimaryCost:
        return self.costs[name]


def fill(service: FakeService) -> None:
    """Put everything into *service*, whose engine is a :class:`ShownEngine`, in place of what a
    test has made of it.
    """
    engine = service.engine
    assert isinstance(engine, ShownEngine)
    for kept in (engine.sources, engine.slots, engine.tables, engine.lags, engine.costs):
        kept.clear()
    service.subscriptions.subscriptions.clear()
    _add_sources(engine)
    for slot in _slots():
        engine.slots[slot["slot_name"]] = _slot(engine, **slot)
    for name, lag in (("search", 2.0), ("warehouse", 1860.0), ("audit", 26 * 3600.0)):
        engine.lags[name] = lag
    engine.lags["ledger"] = None
    service.run(_subscribe(service))


def _session(database: str, decoded: int, **more: Any) -> DatabaseSession:
    return DatabaseSession(
        database,
        16384,
        "consistent",
        Lsn(decoded),
        Lsn(decoded - 40 * MB),
        **{
            "state": "running",
            "since": BEGAN,
            "current": True,
            "log_start_lsn": Lsn(decoded - 5 * GB),
            **more,
        },
    )


def _add_sources(engine: ShownEngine) -> None:
    def add(name: str, *sessions: DatabaseSession, **more: Any) -> SourceInfo:
        engine.sources[name] = dataclasses.replace(
            engine.add_source(name),
            dsn=f"host={name}.db.example dbname={sessions[0].database} user=spillway",
            received_lsn=END,
            flushed_lsn=END,
            sessions=sessions,
            since=BEGAN,
            **more,
        )
        engine.costs[name] = PrimaryCost(96 * KB, None, None, 0)
        return engine.sources[name]

    add("shop", _session("shop", END - 24), _session("crm", END - 24))
    add("billing", _session("billing", END - 420 * MB), server_version_num=160010)
    add(
        "legacy",
        _session("erp", END - 24, state="starting", current=False),
        server_version_num=140019,
        state="failed",
        error='connection to server at "legacy.db.example" (10.4.0.9), port 5432 failed: '
        "Connection refused",
        hint="Is the server running on that host, and does it accept TCP/IP connections?",
    )
    engine.tables["shop", "shop"] = [
        TableInfo("public", name, "table", (), "default", ("id",), ("id",), (), (), True, ())
        for name in ("customers", "invoices", "order_items", "orders", "products", "visits")
    ]


def _slots() -> Iterator[dict[str, Any]]:
    yield {"slot_name": "search", "plugin": "wal2json", "lag": 48 * KB, "consumer": _stream(
        "debezium-search", "10.4.2.17:51034", POSTGRESQL, user="search")}  # fmt: skip
    yield {"slot_name": "warehouse", "plugin": "arrow", "lag": 1800 * MB, "consumer": _stream(
        None, "127.0.0.1:40122", GRPC, subscription="warehouse")}  # fmt: skip
    yield {"slot_name": "cache", "plugin": "pgoutput", "lag": 0, "consumer": _stream(
        "spillway-python/0.1.0", "10.4.2.31:38118", GRPC)}  # fmt: skip
    yield {"slot_name": "reports", "plugin": "test_decoding", "lag": 512, "consumer": _stream(
        "curl/8.5.0", "10.4.9.2:60012", REST, kind="get")}  # fmt: skip
    yield {"slot_name": "audit", "plugin": "wal2json", "lag": 3 * GB,
           "inactive_since": BEGAN + timedelta(days=2)}  # fmt: skip
    yield {"slot_name": "crm_sync", "plugin": "pgoutput", "lag": 0, "database": "crm",
           "consumer": _stream("pglogical", "10.4.2.40:42200", POSTGRESQL, user="crm")}  # fmt: skip
    yield {"slot_name": "invoices", "plugin": "pgoutput", "source": "billing", "lag": 4 * KB,
           "database": "billing", "consumer": _stream(None, "127.0.0.1:40124", GRPC,
                                                      subscription="invoices")}  # fmt: skip
    yield {"slot_name": "ledger", "plugin": "arrow", "source": "legacy", "database": "erp",
           "unknown": True}  # fmt: skip


def _stream(
    client: str | None, address: str, protocol: str, *, kind: str = "stream", **more: Any
) -> Consumer:
    return Consumer(
        kind,
        address,
        client,
        more.pop("subscription", None),
        BEGAN + timedelta(hours=3),
        last_feedback_at=BEGAN + timedelta(days=3) if kind == "stream" else None,
        sent_lsn=Lsn(END - 24) if kind == "stream" else None,
        protocol=protocol,
        **more,
    )


def _slot(engine: ShownEngine, *, unknown: bool = False, lag: int = 0, **columns: Any) -> SlotInfo:
    source = columns.setdefault("source", "shop")
    database = columns.setdefault("database", "shop")
    session = next(s for s in engine.sources[source].sessions if s.database == database)
    decoded = int(session.decoded_lsn or 0)
    made = engine.add_slot(columns["slot_name"], source)
    columns = {
        "active": "consumer" in columns,
        "confirmed_flush_lsn": Lsn(decoded - lag),
        "restart_lsn": Lsn(decoded - lag - 60 * MB),
        "decoded_lsn": Lsn(decoded),
        "retained_bytes": lag + 60 * MB,
        "decoding": Decoding("running", Lsn(decoded), BEGAN),
        "created_at": BEGAN,
        "confirmed_at": BEGAN + timedelta(days=3),
        "wal_status": "reserved",
        **columns,
    }
    if unknown:
        columns |= {"decoded_lsn": None, "retained_bytes": None, "wal_status": None}
        columns["decoding"] = Decoding("unknown", None, None)
    return dataclasses.replace(made, **columns)


async def _subscribe(service: FakeService) -> None:
    lake = {"kind": "lake", "format": "delta", "path": "/srv/lake/shop"}
    await service.subscriptions.create(
        SubscriptionSpec(name="warehouse", source="shop", database="shop", target=lake)
    )
    service.subscriptions.change(
        "warehouse",
        lag_bytes=1800 * MB,
        lag_seconds=1860.0,
        rows=41_203_455,
        restarts=2,
        pid=4711,
        table_states=tuple(
            TableState(f"public.{name}", "ready", changes=number * 410_455)
            for number, name in enumerate(("customers", "invoices", "orders", "visits"), 3)
        ),
    )
    await service.subscriptions.create(
        SubscriptionSpec(name="invoices", source="billing", database="billing", target=lake)
    )
    service.subscriptions.change("invoices", lag_bytes=4 * KB, rows=90_112, pid=4712)


def shown() -> FakeService:
    """Make the service, not yet filled; ``with shown() as service: fill(service)``."""
    return FakeService(engine=ShownEngine(), pages=True)


if __name__ == "__main__":
    with shown() as running:
        fill(running)
        print(f"http://127.0.0.1:{running.http_port}/", flush=True)
        threading.Event().wait()
