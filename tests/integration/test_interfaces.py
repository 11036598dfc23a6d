"""REST, gRPC and the commands on the real engine, with metadata in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from harness.service import Service, service_in_process
from spillway.cli import main
from spillway.errors import SlotActive, Unauthenticated, UnknownSlot
from spillway.pg.lsn import Lsn
from spillway.stream.client import get_slot, open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database

TOKEN = "t0ken"


@pytest.fixture
def table(pg18: Database) -> Database:
    pg18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return pg18


@pytest.fixture
def service(
    tmp_path: Path, table: Database, metadata_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    with service_in_process(tmp_path / "data", metadata_url=metadata_url, token=TOKEN) as running:
        point_commands_at(running, monkeypatch)
        running.create_source(table.dsn)
        yield running
        remove_everything(running)


def point_commands_at(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
    monkeypatch.setenv("SPILLWAY_GRPC", service.grpc_address)
    monkeypatch.setenv("SPILLWAY_TOKEN", TOKEN)


def remove_everything(service: Service) -> None:
    for slot in service.call("GET", "/slots")["slots"]:
        service.drop_slot(slot["slot_name"])
    service.call("DELETE", "/sources/main")


def test_stream_gives_what_peek_shows(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    table.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i")
    table.execute("UPDATE t SET v = 'y' WHERE id <= 10")
    end = Lsn.parse(service.wait_decoded("s", table))
    peeked = service.peek("s")
    with open_stream(
        service.grpc_address, "s", upto_lsn=end, token=TOKEN, batch_bytes=65536
    ) as stream:
        assert service.slot("s")["active"]
        streamed = []
        for batch in stream:
            assert len(batch.payload) < 2 << 20, "a batch ends after one chunk of changes"
            streamed += [(str(Lsn(lsn)), xid, data.decode()) for lsn, xid, data in batch.messages()]
            stream.confirm(batch.confirm_lsn)
    assert streamed == peeked
    assert len(streamed) == 20000 + 10 + 4
    assert service.peek("s") == []
    assert not service.slot("s")["active"]


def test_a_stream_follows_what_is_committed(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    with open_stream(service.grpc_address, "s", token=TOKEN) as stream:
        with pytest.raises(SlotActive):
            open_stream(service.grpc_address, "s", token=TOKEN)
        assert service.problem("POST", "/slots/s/get", json={})["code"] == "slot_active"
        for number in range(3):
            table.execute("INSERT INTO t VALUES (%s, 'a')", [number])
            texts: list[str] = []
            while not any(text.startswith("COMMIT") for text in texts):
                texts += [data.decode() for _, _, data in next(stream).messages()]
            assert texts[1] == f"table public.t: INSERT: id[integer]:{number} v[text]:'a'"
    deadline = time.monotonic() + 5
    while service.slot("s")["active"]:
        assert time.monotonic() < deadline
    assert len(service.get("s")) == 9, "nothing was confirmed"


def test_refusals_over_grpc(service: Service, table: Database) -> None:
    with pytest.raises(Unauthenticated):
        open_stream(service.grpc_address, "s")
    with pytest.raises(UnknownSlot):
        open_stream(service.grpc_address, "s", token=TOKEN)
    with pytest.raises(UnknownSlot):
        get_slot(service.grpc_address, "s", token=TOKEN)


def test_commands(
    service: Service, table: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slot", "create", "s", "--source", "main", "--database", table.name]) == 0
    table.execute("INSERT INTO t VALUES (1, 'a')")
    end = service.wait_decoded("s", table)
    capsys.readouterr()
    assert main(["slot", "peek", "s", "-o", "include-xids=0"]) == 0
    shown = [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["BEGIN", "table public.t: INSERT: id[integer]:1 v[text]:'a'", "COMMIT"]
    file = tmp_path / "received"
    arguments = ["recv", "-S", "s", "-f", str(file), "-E", end, "-o", "include-xids=0"]
    assert main(arguments) == 0
    assert file.read_text().splitlines() == shown
    assert main(["slot", "get", "s"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["slot", "drop", "s"]) == 0
    assert main(["slot", "show", "s"]) == 1
    assert "code: unknown_slot" in capsys.readouterr().err


def test_positions_outlive_the_service(
    tmp_path: Path, table: Database, metadata_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_in_process(tmp_path / "data", metadata_url=metadata_url, token=TOKEN) as service:
        service.create_source(table.dsn)
        service.create_slot("s", table.name, options={"include-xids": "0"})
        table.execute("INSERT INTO t VALUES (1, 'a')")
        end = Lsn.parse(service.wait_decoded("s", table))
        with open_stream(service.grpc_address, "s", upto_lsn=end, token=TOKEN) as stream:
            for batch in stream:
                stream.confirm(batch.confirm_lsn)
        before = service.slot("s")
        table.execute("INSERT INTO t VALUES (2, 'b')")
    with service_in_process(tmp_path / "data", metadata_url=metadata_url, token=TOKEN) as service:
        after = service.slot("s")
        for column in ("confirmed_flush_lsn", "options", "plugin", "created_at", "datoid"):
            assert after[column] == before[column], column
        service.wait_decoded("s", table)
        assert [data for _, _, data in service.get("s")] == [
            "BEGIN",
            "table public.t: INSERT: id[integer]:2 v[text]:'b'",
            "COMMIT",
        ]
        remove_everything(service)


def test_many_streams_of_one_database(service: Service, table: Database) -> None:
    names = [f"s{number}" for number in range(4)]
    for name in names:
        service.create_slot(name, table.name)
    table.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 5000) i")
    end = Lsn.parse(service.wait_decoded("s0", table))
    counts: dict[str, int] = {}

    def consume(name: str) -> None:
        with open_stream(service.grpc_address, name, upto_lsn=end, token=TOKEN) as stream:
            counts[name] = sum(batch.count for batch in stream)

    threads = [threading.Thread(target=consume, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == dict.fromkeys(names, 5002)
