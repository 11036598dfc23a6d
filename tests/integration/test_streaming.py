"""Streaming of transactions in progress by a running service: who gets parts, and restarts in the
middle.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process
from spillway.service.settings import EngineSettings
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from harness.cluster import Database
    from harness.service import Service

OPTIONS = {"stream-changes": "on", "include-xids": "off"}
IMMEDIATELY = EngineSettings(stream_bytes=0)
PART = [
    "opening a streamed block for transaction",
    "streaming change for transaction",
    "closing a streamed block for transaction",
]


@pytest.fixture
def table(pg15: Database) -> Database:
    pg15.execute("CREATE TABLE t (i int)")
    return pg15


def row(number: int) -> str:
    return f"table public.t: INSERT: i[integer]:{number}"


def insert(connection: psycopg.Connection, number: int) -> None:
    connection.execute("INSERT INTO t VALUES (%s)", [number])


def wait(service: Service, database: Database, name: str) -> None:
    # Flushes what an open transaction wrote.
    database.execute("CHECKPOINT")
    service.wait_decoded(name, database)


def texts(service: Service, name: str, how: str = "peek") -> list[str]:
    return [text for _, _, text in getattr(service, how)(name)]


def test_parts_over_restarts(table: Database, tmp_path: Path) -> None:
    with service_in_process(tmp_path / "data", engine=IMMEDIATELY) as service:
        service.create_source(table.dsn)
        service.create_slot("whole", table.name, options={"include-xids": "off"})
        for name in ("parts", "consumed"):
            service.create_slot(name, table.name, options=OPTIONS)
        connection = table.connect(autocommit=False)
        for number in (1, 2):
            insert(connection, number)
        wait(service, table, "parts")
        assert texts(service, "parts") == PART * 2
        assert texts(service, "consumed", "get") == PART * 2
        assert texts(service, "whole") == []
        stats = service.call("GET", "/slots/consumed/stats")
        assert (stats["stream_txns"], stats["stream_count"]) == (1, 2)
        assert stats["stream_bytes"] == sum(map(len, PART * 2))
    with service_in_process(tmp_path / "data", engine=IMMEDIATELY) as service:
        insert(connection, 3)
        wait(service, table, "parts")
        # Parts from before and from after the restart are of one transaction.
        assert texts(service, "parts") == PART * 3
        # It confirmed some parts: then it gets the transaction whole, at its end.
        assert texts(service, "consumed", "get") == []
        connection.commit()
        wait(service, table, "parts")
        assert texts(service, "parts", "get") == [
            *PART * 3, "committing streamed transaction",
        ]  # fmt: skip
        whole = ["BEGIN", row(1), row(2), row(3), "COMMIT"]
        assert texts(service, "consumed", "get") == whole
        assert texts(service, "whole", "get") == whole
        insert(connection, 4)
        connection.execute("SAVEPOINT a")
        insert(connection, 5)
        connection.execute("ROLLBACK TO a")
        wait(service, table, "parts")
        connection.rollback()
        wait(service, table, "parts")
        aborting = "aborting streamed (sub)transaction"
        assert texts(service, "parts", "get") == [*PART * 2, aborting, aborting]
        assert texts(service, "whole", "get") == []
        connection.close()


def test_other_sizes_of_parts_after_a_restart(table: Database, tmp_path: Path) -> None:
    """Parts of two sizes would not fit together: what was in progress is given whole from then
    on.
    """
    connection = table.connect(autocommit=False)
    with service_in_process(tmp_path / "data", engine=IMMEDIATELY) as service:
        service.create_source(table.dsn)
        service.create_slot("s", table.name, options=OPTIONS)
        insert(connection, 1)
        wait(service, table, "s")
        assert texts(service, "s") == PART
    with service_in_process(tmp_path / "data", engine=EngineSettings(stream_bytes=100)) as service:
        for number in range(2, 6):
            insert(connection, number)
        connection.commit()
        wait(service, table, "s")
        aborting = "aborting streamed (sub)transaction"
        whole = ["BEGIN", *map(row, range(1, 6)), "COMMIT"]
        assert texts(service, "s", "get") == [*PART, aborting, *whole]
        for number in range(6, 10):
            insert(connection, number)
        connection.commit()
        wait(service, table, "s")
        got = texts(service, "s", "get")
        assert got[0] == PART[0]
        assert got.count(PART[1]) == 4
        assert got[-1] == "committing streamed transaction"
        connection.close()


def test_a_stream_gets_parts_while_the_transaction_is_open(table: Database, tmp_path: Path) -> None:
    """And what it confirms after a part is before the transaction's end."""
    with service_in_process(tmp_path / "data", engine=IMMEDIATELY) as service:
        service.create_source(table.dsn)
        service.create_slot("s", table.name, options=OPTIONS)
        with table.connect(autocommit=False) as connection:
            insert(connection, 1)
            with open_stream(service.grpc_address, "s") as stream:
                table.execute("CHECKPOINT")
                lines: list[str] = []
                while len(lines) < 3:
                    batch = next(stream)
                    ends = list(itertools.accumulate(batch.lengths))
                    starts = [0, *ends][: len(ends)]
                    payload = bytes(batch.payload)
                    lines += [payload[a:b].decode() for a, b in zip(starts, ends, strict=True)]
                stream.confirm(batch.confirm_lsn)
                assert lines == PART
            connection.commit()
            wait(service, table, "s")
            assert texts(service, "s", "get") == ["BEGIN", row(1), "COMMIT"]
