"""A way back for one database whose decoding has stopped, with the others untouched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.remedies import command, remedy, statements
from harness.service import service_in_process
from spillway.cli.program import main
from spillway.decoding.decoder import Decoder
from spillway.errors import CatalogAuditFailed, DecodingError
from spillway.pg.lsn import Lsn
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import ClusterFactory
    from harness.cluster import Database
    from harness.service import Service

OPTIONS = {"skip-empty-xacts": "1"}


def restart_as_told(service: Service, hint: str, database: str) -> None:
    """Run the command of a hint that begins to decode a database anew."""
    words = command(hint, "source restart", SOURCE="main", DATABASE=database)
    assert words == ["source", "restart", "main", database]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
        assert main(words) == 0


def wait_until(condition: Callable[[], bool], what: Callable[[], Any] = lambda: "") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def session_of(service: Service, database: str) -> dict[str, Any]:
    (source,) = service.call("GET", "/sources")["sources"]
    found: dict[str, Any] = {s["database"]: s for s in source["sessions"]}[database]
    return found


def rows(service: Service, slot: str) -> list[str]:
    return [data for _, _, data in service.peek(slot) if data.startswith("table")]


def begin(service: Service, *databases: Database) -> None:
    """A slot that has read everything and one that has not, of each."""
    service.create_source(databases[0].dsn)
    for database in databases:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name in ("unread", "read"):
            service.create_slot(f"{database.name}_{name}", database.name, options=OPTIONS)
        database.execute("INSERT INTO t VALUES (1)")
        service.wait_decoded(f"{database.name}_read", database)
        assert len(service.get(f"{database.name}_read")) == 3


def reason(service: Service, slot: str) -> str | None:
    found: str | None = service.slot(slot)["invalidation_reason"]
    return found


def check_new_slot(service: Service, database: Database) -> None:
    # What failed is said until decoding is past it.
    wait_until(lambda: session_of(service, database.name)["error_code"] is None)
    service.create_slot("again", database.name, options=OPTIONS)
    number = database.value("SELECT coalesce(max(id), 0) + 1 FROM t")
    database.execute(f"INSERT INTO t VALUES ({number})")
    service.wait_decoded("again", database)
    assert rows(service, "again") == [f"table public.t: INSERT: id[integer]:{number}"]
    service.drop_slot("again")


@pytest.mark.follows_hint("wal_level_not_logical")
def test_wal_level_lowered_and_set_back(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(15)
    shop, idle = cluster.create_database("shop"), cluster.create_database("idle")
    with service_in_process(tmp_path / "data") as service:
        begin(service, shop, idle)
        cluster.restart(wal_level="replica")
        shop.execute("INSERT INTO t VALUES (2)")
        wait_until(
            lambda: session_of(service, "shop")["error_code"] == "wal_level_not_logical",
            lambda: service.call("GET", "/sources"),
        )
        (sql,) = statements(remedy(session_of(service, "shop"), "wal_level_not_logical"))
        # What was decoded before is served meanwhile.
        assert len(rows(service, "shop_unread")) == 1
        del cluster.settings["wal_level"]
        cluster.execute(sql)
        cluster.restart()
        assert cluster.value("SHOW wal_level") == "logical"
        mended_s = time.monotonic()
        shop.execute("INSERT INTO t VALUES (3)")
        wait_until(lambda: session_of(service, "shop")["error_code"] is None)
        assert time.monotonic() - mended_s < 15
        for name in ("shop_unread", "shop_read"):
            wait_until(lambda name=name: reason(service, name) is not None)  # type: ignore[misc]
            assert reason(service, name) == "wal_level_insufficient"
        check_new_slot(service, shop)
        # Nothing was committed there meanwhile: nothing is lost.
        wait_until(lambda: session_of(service, "idle")["snapshot_state"] == "consistent")
        idle.execute("INSERT INTO t VALUES (3)")
        service.wait_decoded("idle_read", idle)
        assert reason(service, "idle_read") is None
        assert len(rows(service, "idle_read")) == 1
        assert len(rows(service, "idle_unread")) == 2


@pytest.mark.long
@pytest.mark.follows_hint(
    "catalog_audit_failed", "decoding_error", "slot_invalidated", "database_dropped", "corrupt_wal"
)
def test_what_can_not_be_decoded(
    fresh_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fresh_cluster(18, wal_segment_size_mb=1)
    shop, other = cluster.create_database("shop"), cluster.create_database("other")
    with service_in_process(tmp_path / "data") as service:
        begin(service, shop, other)
        problem = service.problem("POST", "/sources/main/databases/shop/restart")
        assert (problem["code"], problem["status"]) == ("conflict", 409)
        problem = service.problem("POST", "/sources/main/databases/nowhere/restart")
        assert problem["code"] == "unknown_database"

        # A record on which the decoder of one database fails.
        oid, process = shop.oid, Decoder.process
        failures: tuple[type[DecodingError], ...] = (CatalogAuditFailed, DecodingError)
        for number, kind in enumerate(failures):
            bad = Lsn.parse(cluster.value("SELECT pg_current_wal_lsn()::text"))

            def failing(
                self: Decoder,
                batch: Any,
                start: int = 0,
                *,
                bad: int = bad,
                kind: type[DecodingError] = kind,
            ) -> None:
                here = self.position <= bad < batch.header(len(batch) - 1)[1]
                if self._database_oid == oid and here:
                    raise kind("it went wrong", hint="Report it.", lsn=str(Lsn(bad)))
                process(self, batch, start)

            monkeypatch.setattr(Decoder, "process", failing)
            shop.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            other.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            wait_until(lambda kind=kind: session_of(service, "shop")["error_code"] == kind.code)  # type: ignore[misc]
            restart_as_told(service, remedy(session_of(service, "shop"), kind.code), "shop")
            wait_until(lambda: reason(service, "shop_read") == "wal_removed")
            assert reason(service, "shop_unread") == "wal_removed"
            check_new_slot(service, shop)
            service.wait_decoded("other_read", other)
            assert [len(rows(service, f"other_{name}")) for name in ("unread", "read")] == [
                number + 2,
                number + 1,
            ]
            hint = remedy(service.problem("GET", "/slots/shop_read/peek"), "slot_invalidated")
            assert "Drop it and create it again" in hint
            for name in ("shop_read", "shop_unread"):
                service.drop_slot(name)
                service.create_slot(name, "shop", options=OPTIONS)
            assert rows(service, "shop_read") == []
        for name in ("shop_read", "shop_unread"):
            service.drop_slot(name)

        # A database that is dropped and made again is another one.
        monkeypatch.undo()
        service.create_slot("shop_before", "shop", options=OPTIONS)
        cluster.drop_database("shop")
        wait_until(lambda: session_of(service, "shop")["error_code"] == "database_dropped")
        problem = service.problem("POST", "/sources/main/databases/shop/restart")
        assert problem["code"] == "unknown_database"
        shop = cluster.create_database("shop")
        shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
        restart_as_told(service, remedy(session_of(service, "shop"), "database_dropped"), "shop")
        wait_until(lambda: reason(service, "shop_before") == "database_dropped")
        check_new_slot(service, shop)
        service.drop_slot("shop_before")

        # A transaction that this damages is nobody's any more: the server sends what its disk
        # returns.
        service.create_slot("shop_before", "shop", options=OPTIONS)
        service.create_slot("shop_read", "shop", options=OPTIONS)
    cluster.query("SELECT pg_switch_wal()")
    name = cluster.value("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
    shop.execute("INSERT INTO t SELECT generate_series(1000, 1500)")
    other.execute("INSERT INTO t VALUES (5)")
    # A walsender takes WAL from memory as long as it is there.
    cluster.restart()
    path = Path(cluster.value("SHOW data_directory")) / "pg_wal" / name
    wal = bytearray(path.read_bytes())
    wal[20_000] ^= 0x40
    path.write_bytes(wal)
    with service_in_process(tmp_path / "data") as service:
        wait_until(lambda: session_of(service, "shop")["error_code"] == "corrupt_wal")
        wait_until(lambda: session_of(service, "other")["error_code"] == "corrupt_wal")
        for database in ("shop", "other"):
            restart_as_told(service, remedy(session_of(service, database), "corrupt_wal"), database)
        wait_until(lambda: reason(service, "shop_before") == "wal_removed")
        wait_until(lambda: reason(service, "shop_read") == "wal_removed")
        check_new_slot(service, shop)


@pytest.mark.follows_hint("wal_removed")
def test_wal_that_the_primary_removed(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(
        18,
        wal_segment_size_mb=1,
        max_wal_size="4MB",
        min_wal_size="2MB",
        wal_keep_size=0,
        max_slot_wal_keep_size="1MB",
    )
    shop = cluster.create_database("shop")
    shop.execute("CHECKPOINT")
    settings = EngineSettings(wal_store_max_bytes=64 << 20)
    with service_in_process(tmp_path / "data", engine=settings) as service:
        begin(service, shop)
    for _ in range(4):
        shop.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        shop.query("SELECT pg_switch_wal()")
        shop.execute("CHECKPOINT")
    status = "SELECT wal_status FROM pg_replication_slots"
    wait_until(lambda: cluster.value(status) == "lost")
    with service_in_process(tmp_path / "data", engine=settings) as service:

        def source() -> dict[str, Any]:
            (found,) = service.call("GET", "/sources")["sources"]
            return dict(found)

        wait_until(lambda: source()["error_code"] == "wal_removed")
        hint = remedy(source(), "wal_removed")
        # What was decoded is served until then.
        assert len(rows(service, "shop_unread")) == 1
        restart_as_told(service, hint, "shop")
        wait_until(lambda: reason(service, "shop_unread") == "wal_removed")
        wait_until(lambda: reason(service, "shop_read") == "wal_removed")
        check_new_slot(service, shop)
        assert source()["state"] == "streaming"
