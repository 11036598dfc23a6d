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

from sqlalchemy import insert

from harness.fake_engine import FakeEngine
from harness.fake_service import FakeService
from spillway.caller import GRPC, POSTGRESQL, REST
from spillway.pg.lsn import Lsn
from spillway.receiver.table_sizes import TableSize
from spillway.service.model import (
    ColumnValue,
    Consumer,
    DatabaseSession,
    Decoding,
    FoundChange,
    Position,
    PrimaryCost,
    SlotInfo,
    SourceInfo,
    TableInfo,
)
from spillway.store.rows import (
    AlertChannelRow,
    AlertMessageRow,
    AlertRuleRow,
    EventRow,
    SchemaChangeRow,
)
from spillway.store.schema import SCHEMA_CHANGES, SOURCES
from spillway.subscriber.model import LastBatch, SubscriptionSpec, TableState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

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

    async def rewind(self, slot_name: str, lsn: Lsn) -> SlotInfo:
        self._idle_slot(slot_name)
        self.change_slot(slot_name, confirmed_flush_lsn=lsn)
        return self.slots[slot_name]

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
    engine.found = list(_changes())
    service.run(_subscribe(service))
    service.run(_remember(service))


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
    # Of one nobody knows it.
    for number, name in enumerate(("customers", "invoices", "order_items", "orders", "products")):
        size = TableSize(7 ** (2 * number + 4), None if number == 1 else 5 ** (2 * number + 2))
        engine.sizes[f"public.{name}"] = size


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
        last_batch=LastBatch(
            BEGAN + timedelta(days=3), 2.8, 48_211, 3, Lsn(END - 1900 * MB), Lsn(END - 1800 * MB)
        ),
        table_states=tuple(
            TableState(f"public.{name}", "ready", changes=number * 410_455)
            for number, name in enumerate(("customers", "invoices", "orders", "visits"), 3)
        ),
    )
    await service.subscriptions.create(
        SubscriptionSpec(name="invoices", source="billing", database="billing", target=lake)
    )
    service.subscriptions.change("invoices", lag_bytes=4 * KB, rows=90_112, pid=4712)


def _changes() -> Iterator[FoundChange]:
    """A row's life, the newest first."""

    def column(name: str, type_: str, old: str | None, new: str | None) -> ColumnValue:
        old_is = "none" if old is None else "value"
        new_is = "none" if new is None else "value"
        changed = old != new if old is not None and new is not None else None
        return ColumnValue(name, type_, name == "id", old_is, new_is, old, new, changed)

    rows: tuple[tuple[str, dict[str, str] | None, dict[str, str] | None], ...] = (
        ("delete", {"id": "42", "status": "lost", "total": "19.90", "note": "ring twice"}, None),
        (
            "update",
            {"id": "42", "status": "paid", "total": "19.90", "note": "ring twice"},
            {"id": "42", "status": "lost", "total": "19.90", "note": "ring twice"},
        ),
        ("insert", None, {"id": "42", "status": "paid", "total": "19.90", "note": "ring twice"}),
    )
    types = {"id": "bigint", "status": "text", "total": "numeric(10,2)", "note": "text"}
    for number, (operation, old, new) in enumerate(rows):
        at = Lsn(END - (number + 1) * 4096)
        yield FoundChange(
            operation,
            "public",
            "orders",
            16391,
            at,
            at,
            Lsn(at + 48),
            771_300 - number,
            BEGAN + timedelta(days=3, hours=-number),
            None,
            tuple(column(name, types[name], (old or {}).get(name), (new or {}).get(name))
                  for name in types),
            Position(int(at), int(at), 16391, 0),
        )  # fmt: skip


async def _remember(service: FakeService) -> None:
    """Put into the metadata store what happened, once."""
    metadata = service.metadata
    if await metadata.alerts.channels():
        return
    hook = {"url": "https://ops.example/hooks/spillway"}
    await metadata.alerts.put_channel(AlertChannelRow(name="ops", kind="webhook", config=hook))
    mail = {"host": "smtp.example", "port": 587, "from": "a@b.example", "to": ["c@d.example"]}
    await metadata.alerts.put_channel(
        AlertChannelRow(name="night", kind="email", config=mail, enabled=False)
    )
    await metadata.alerts.put_rule(
        AlertRuleRow(name="everything", hold_s=60, limits={"lag_s": 300}, channels=["ops"])
    )
    await metadata.alerts.add_message(
        AlertMessageRow(
            message_id="1", alert_id=None, rule="", channel="ops", reason="test", state="sent",
            document={"alert": {"title": "This is a test"}}, attempts=1,
        )
    )  # fmt: skip
    who = {"address": "10.4.2.8", "client": "curl/8.5.0", "protocol": REST, "user": None}
    await metadata.events.add([
        EventRow(kind="started", title="The service started", at=BEGAN),
        EventRow(kind="action", title="Slot audit was created", source="shop", slot="audit",
                 caller=who, at=BEGAN + timedelta(hours=1)),
        EventRow(kind="problem", severity="warn", title="Subscription warehouse is 31 min behind",
                 detail="What was committed since then is not in its target.", source="shop",
                 subscription="warehouse", at=BEGAN + timedelta(days=3)),
        EventRow(kind="resolved", severity="ok", title="Slot search lags by 2.1 GB", source="shop",
                 slot="search", at=BEGAN + timedelta(days=3, hours=2)),
        EventRow(kind="problem", severity="bad", title="Source legacy receives no WAL",
                 detail="Connection refused", source="legacy",
                 at=BEGAN + timedelta(days=3, hours=3)),
    ])  # fmt: skip
    column = {"name": "vat_id", "type": "text", "not_null": False, "identity": None,
              "generated": None, "missing": None, "has_default": False}  # fmt: skip
    added = {"change": "add_column", "column": "vat_id", "definition": column}
    dropped = {"change": "drop_column", "column": "city"}
    at: dict[str, Any] = {"source": "shop", "database": "shop", "number": 0, "xid": 771_299}
    rows = [
        SchemaChangeRow(
            **at, commit_lsn=Lsn(END - 9000), committed_at=BEGAN + timedelta(days=2),
            kind="create_table", table_name="public.visits",
            document={"changes": [], "columns": [{"name": "at", "type": "timestamptz"}]},
        ),
        SchemaChangeRow(
            **at, commit_lsn=Lsn(END - 8000), committed_at=BEGAN + timedelta(days=3),
            kind="alter_table", table_name="public.customers",
            document={"changes": [added, dropped]},
            outcomes={"warehouse": {"outcome": "followed", "at": None, "detail": "",
                                    "was_paused": False}},
        ),
    ]  # fmt: skip
    columns = [column.name for column in SCHEMA_CHANGES.c if column.name != "id"]
    values = [{name: getattr(row, name) for name in columns} for row in rows]
    source = {"name": "shop", "dsn": "", "system_id": "7", "server_version_num": 180004,
              "timeline": 1, "wal_segment_size": 1 << 24, "slot_name": "s", "state": "streaming",
              "created_at": BEGAN}  # fmt: skip

    def write(connection: Connection) -> None:
        connection.execute(insert(SOURCES), source)
        connection.execute(insert(SCHEMA_CHANGES), values)

    await metadata.schema_changes._database.write(write)


def shown() -> FakeService:
    """Make the service, not yet filled; ``with shown() as service: fill(service)``."""
    return FakeService(engine=ShownEngine(), pages=True)


if __name__ == "__main__":
    with shown() as running:
        fill(running)
        print(f"http://127.0.0.1:{running.http_port}/", flush=True)
        threading.Event().wait()
