"""The Python client on a real service and a real server: what PostgreSQL's own answers say is what
a loop is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import re
import secrets
import socket
import sqlite3
import threading
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
import pytest

from harness.refusing_relay import RefusingRelay
from spillway.cli.program import main
from spillway_client import (
    UNCHANGED,
    AsyncPosition,
    AsyncSlot,
    Changes,
    ConversionFailed,
    InvalidUse,
    Lsn,
    PgText,
    Position,
    PositionConflict,
    Progress,
    Slot,
    SlotActive,
    SlotAhead,
    Tls,
    Transaction,
    TransactionTooLarge,
    Unauthenticated,
    Unavailable,
    UnknownSlot,
    WrongPlugin,
    exported_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from harness.cluster import Database
    from harness.service import Service

TOKEN = "the client's token"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "python-client.md"


class Stage:
    """A schema, a publication of its tables and a slot, by one name."""

    def __init__(self, service: Service, database: Database, plugin: str, **more: Any) -> None:
        self.service, self.database = service, database
        self.name = f"s{secrets.token_hex(4)}"
        self.sql(f"CREATE SCHEMA {self.name}")
        self.sql(f"CREATE PUBLICATION {self.name} FOR TABLES IN SCHEMA {self.name}")
        service.create_slot(self.name, database.name, plugin, **more)

    def sql(self, statement: str) -> None:
        with self.database.connect() as connection:
            connection.execute(f"SET search_path = {self.name}, public")
            connection.execute(statement)

    def slot(self, **more: Any) -> Slot:
        return Slot(self.service.grpc_address, self.name, **self.arguments(**more))

    def arguments(self, **more: Any) -> dict[str, Any]:
        """What the slot is made with; it ends where the source is now, unless *more* says
        otherwise.
        """
        given = {"token": TOKEN, "publications": [self.name], "confirm_seconds": 0.05, **more}
        if "upto_lsn" not in given:
            given["upto_lsn"] = self.now()
        if self.service.slot(self.name)["plugin"] == "arrow":
            del given["publications"]
        return given

    def now(self) -> str:
        return self.service.wait_decoded(self.name, self.database)

    def confirmed(self) -> Lsn:
        return Lsn(self.service.slot(self.name)["confirmed_flush_lsn"])


@pytest.fixture
def stage(service: Service, database: Database) -> Callable[..., Stage]:
    def make(plugin: str = "pgoutput", **more: Any) -> Stage:
        return Stage(service, database, plugin, **more)

    return make


def test_a_transaction(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2))")
    it.sql("CREATE TABLE log (line text)")
    it.sql("ALTER TABLE log REPLICA IDENTITY FULL")
    with it.database.connect() as connection, connection.transaction():
        connection.execute(f"SET LOCAL search_path = {it.name}")
        connection.execute("INSERT INTO item VALUES (1, 'a', 1.50), (2, NULL, NULL)")
        connection.execute("UPDATE item SET name = 'b' WHERE id = 1")
        connection.execute("UPDATE item SET id = 3 WHERE id = 2")
        connection.execute("DELETE FROM item WHERE id = 1")
        connection.execute("INSERT INTO log VALUES ('x')")
        connection.execute("UPDATE log SET line = 'y'")
        connection.execute("TRUNCATE item, log RESTART IDENTITY CASCADE")
        xid = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    with it.slot() as slot:
        (tx,) = list(slot)
    assert xid == (tx.xid,)
    assert tx.commit_lsn < tx.end_lsn
    assert abs(tx.commit_time - dt.datetime.now(dt.UTC)).total_seconds() < 3600
    assert (tx.kind, tx.origin, len(tx.changes)) == ("commit", None, 9)
    seen = [(c.kind, c.table, c.old, c.new) for c in tx.changes]
    assert seen == [
        ("insert", "item", None, {"id": 1, "name": "a", "price": Decimal("1.50")}),
        ("insert", "item", None, {"id": 2, "name": None, "price": None}),
        ("update", "item", None, {"id": 1, "name": "b", "price": Decimal("1.50")}),
        ("update", "item", {"id": 2}, {"id": 3, "name": None, "price": None}),
        ("delete", "item", {"id": 1}, None),
        ("insert", "log", None, {"line": "x"}),
        ("update", "log", {"line": "x"}, {"line": "y"}),
        ("truncate", "item", None, None),
        ("truncate", "log", None, None),
    ]
    assert [tx.changes[at] for at in range(9)] == list(tx.changes) == tx.changes[:]
    assert (tx.changes[-1].cascade, tx.changes[-1].restart_identity) == (True, True)
    relation = tx.changes[0].relation
    assert relation is not None
    assert (relation.schema, relation.key, relation.replica_identity) == (it.name, ("id",), "d")
    assert [(c.name, c.type_oid, c.type_name) for c in relation.columns] == [
        ("id", 23, "int4"),
        ("name", 25, "text"),
        ("price", 1700, "numeric"),
    ]


#: what psycopg reads as the client does: column type → values as PostgreSQL's input takes them
SAME: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "int2": ["-32768", "7"],
    "int4": ["2147483647"],
    "int8": ["-9223372036854775808"],
    "oid": ["4294967295"],
    "float4": ["0.1", "3.4028235e38", "1e-45", "Infinity", "-0"],
    "float8": ["0.1", "5e-324", "1.7976931348623157e308", "-Infinity", "123456789012345680"],
    "numeric": ["0", "-0.00", "12345678901234567890.12345678901234567890", "Infinity", "1e100"],
    "numeric(10,2)": ["1.5"],
    "text": ["", "NULL", "ü\n\t'\"\\x", "𝄞"],
    "varchar(5)": ["ab"],
    "char(5)": ["ab"],
    "name": ["n"],
    '"char"': ["c"],
    "bytea": ["", "\\x00ff5c", "\\\\x"],
    "uuid": ["00000000-0000-0000-0000-00000000000a"],
    "json": ['{"a": [1, 2.5, null, "x"]}', "[]", "3"],
    "jsonb": ['{"b": {"c": true}}', '"s"', "null"],
    "date": ["2026-11-23", "0001-01-01", "9999-12-31"],
    "time": ["00:00:00", "23:59:59.999999", "12:30:00.5"],
    "timetz": ["12:30:00+05:30", "12:30:00.25-08"],
    "timestamp": ["2026-11-23 05:06:07.000008", "0001-01-01 00:00:00"],
    "timestamptz": ["2026-11-23 05:06:07+00", "1800-01-01 00:00:00.5+00"],
    "int4[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"],
    "text[]": ['{a,"b c","NULL",NULL,"","\\"","\\\\","x,y","{}",é}'],
    "numeric[]": ["{1.50,NaN}"],
    "bool[]": ["{t,f}"],
    "float8[]": ["{0.1,-Infinity}"],
    "bytea[]": ['{"\\\\x00ff",NULL}'],
    "date[]": ["{2026-11-23}"],
    "timestamptz[]": ['{"2026-11-23 05:06:07+00"}'],
    "uuid[]": ["{00000000-0000-0000-0000-00000000000a}"],
    "jsonb[]": ['{"{\\"a\\": [1]}","null"}'],
    "positive": ["7"],
    "positives": ["{7,8}"],
}
#: what the client gives as PostgreSQL's text
TEXT: dict[str, list[str]] = {
    "interval": ["1 mon 2 days 03:04:05.5"],
    "money": ["1.25"],
    "inet": ["10.0.0.1/8"],
    "xml": ["<a/>"],
    "int4range": ["[1,5)"],
    "mood": ["happy"],
    "mood[]": ["{happy}"],
    "pair": ["(1,x)"],
    "point": ["(1,2)"],
    "box[]": ["{(3,4),(1,2);(7,8),(5,6)}"],
    "interval[]": ["{1 day}"],
}
#: what its Python type has no room for
NO_ROOM: dict[str, list[str]] = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"],
    "timestamp": ["infinity", "0044-03-15 01:02:03 BC"],
    "timestamptz": ["-infinity", "20000-01-01 00:00:00+00"],
    "time": ["24:00:00"],
}


def test_values_are_those_of_a_select(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TYPE mood AS ENUM ('happy')")
    it.sql("CREATE TYPE pair AS (a int, b text)")
    it.sql("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    it.sql("CREATE DOMAIN positives AS int[]")
    columns = [(t, v, False) for cases in (SAME,) for t, vs in cases.items() for v in vs]
    columns += [(t, v, True) for cases in (TEXT, NO_ROOM) for t, vs in cases.items() for v in vs]
    it.sql(f"CREATE TABLE v ({', '.join(f'c{i} {t}' for i, (t, _, _) in enumerate(columns))})")
    with it.database.connect() as connection:
        connection.execute(f"SET search_path = {it.name}")
        marks = ", ".join(f"%s::{t}" for t, _, _ in columns)
        connection.execute(f"INSERT INTO v VALUES ({marks})", [v for _, v, _ in columns])
    with it.slot() as slot:
        (tx,) = list(slot)
    new = tx.changes[0].new
    assert new is not None
    with it.database.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        as_text = ", ".join(f"c{i}::text" for i in range(len(columns)))
        texts = connection.execute(f"SELECT {as_text} FROM {it.name}.v").fetchone()
        assert texts is not None
        for i, ((type_, value, is_text), text) in enumerate(zip(columns, texts, strict=True)):
            ours = new[f"c{i}"]
            what = (type_, value, ours)
            if is_text:
                wanted: Any = [text[2:-2]] if type_ == "interval[]" else text
                if type_ == "box[]":
                    wanted = text[1:-1].split(";")
                assert ours == wanted, what
                assert isinstance(ours, PgText) == (value in NO_ROOM.get(type_, ())), what
            else:
                row = connection.execute(f"SELECT c{i} FROM {it.name}.v").fetchone()
                assert row is not None
                theirs = row[0]
                assert repr(ours) == repr(_comparable(theirs)), what
                assert type(ours) is type(_comparable(theirs)), what


def test_what_has_no_room_in_an_array_is_text_there(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (days date[])")
    it.sql("INSERT INTO t VALUES ('{2026-11-23,infinity,NULL}')")
    with it.slot() as slot:
        (tx,) = list(slot)
    new = tx.changes[0].new
    assert new == {"days": [dt.date(2026, 11, 23), "infinity", None]}
    assert isinstance(new["days"][1], PgText)


def _comparable(value: Any) -> Any:
    """psycopg gives timestamptz in a zone by name, the client by offset."""
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def test_a_large_value_that_did_not_change(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int PRIMARY KEY, big text, n int)")
    it.sql("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    it.sql("INSERT INTO t VALUES (1, repeat('x', 9000), 1)")
    it.sql("UPDATE t SET n = NULL")
    with it.slot() as slot:
        _, tx = list(slot)
    new = tx.changes[0].new
    assert new == {"id": 1, "big": UNCHANGED, "n": None}
    assert new["big"] is UNCHANGED
    with pytest.raises(TypeError, match="UNCHANGED"):
        bool(new["big"])


def test_a_large_transaction_takes_bounded_memory(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int, filler text)")
    with it.database.connect() as connection, connection.transaction():
        connection.execute(f"SET LOCAL search_path = {it.name}")
        connection.execute(
            "INSERT INTO t SELECT i, repeat('x', 300) FROM generate_series(1, 3000) i"
        )
        connection.execute("ALTER TABLE t ADD COLUMN late int DEFAULT 7")
        connection.execute("INSERT INTO t VALUES (3001, 'y', 8)")
    with it.slot(buffer_bytes=64 << 10, queue_bytes=1, confirm_seconds=0.05) as slot:
        (tx,) = list(slot)
    changes = tx.changes
    assert isinstance(changes, Changes)
    assert changes.is_spilled
    assert changes.nbytes > 900_000
    assert changes.memory_bytes < 200_000
    assert [c.new["id"] for c in changes if c.new] == list(range(1, 3002))
    # As of each change: the table had two columns, then three.
    assert [list(changes[at].new or ()) for at in (0, 2999, 3000, -1)] == [
        ["id", "filler"],
        ["id", "filler"],
        ["id", "filler", "late"],
        ["id", "filler", "late"],
    ]
    with it.slot(max_transaction_bytes=500_000, start_lsn=0) as slot:
        assert list(slot) == []  # it was confirmed
    it.service.call("POST", f"/slots/{it.name}/rewind", json={"lsn": str(tx.commit_lsn)})
    with (
        it.slot(max_transaction_bytes=500_000) as slot,
        pytest.raises(TransactionTooLarge) as refused,
    ):
        list(slot)
    assert "max_transaction_bytes" in refused.value.hint
    with it.slot(max_transaction_bytes=None) as slot:
        assert [len(tx.changes) for tx in slot] == [3001]


def test_a_loop_that_is_left_begins_again_with_what_it_left(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    for value in range(5):
        it.sql(f"INSERT INTO t VALUES ({value})")

    def number(tx: Transaction) -> int:
        assert tx.changes[0].new is not None
        found: int = tx.changes[0].new["id"]
        return found

    def leave_at(slot: Slot, last: int) -> None:
        for tx in slot:
            assert number(tx) in (1, 2)
            if number(tx) == last:
                raise RuntimeError("left")

    upto = it.now()
    with it.slot(upto_lsn=upto) as slot:
        for tx in slot:
            if number(tx) == 1:
                break
        with pytest.raises(RuntimeError, match="left"):
            leave_at(slot, 2)
        for tx in slot:
            assert number(tx) == 2
            slot.confirm(tx)
            break
        assert [number(tx) for tx in slot] == [3, 4]
        assert list(slot) == []
    # All of it was confirmed at close.
    assert it.confirmed() >= Lsn(upto)


def test_a_loop_that_could_not_begin_again_skips_nothing(
    stage: Callable[..., Stage], service: Service
) -> None:
    """What waited behind the transaction that was left is not given in its place."""
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    for value in range(4):
        it.sql(f"INSERT INTO t VALUES ({value})")
    with RefusingRelay(service.grpc_port) as relay:
        arguments = it.arguments(retry_seconds=0.2)
        with Slot(f"127.0.0.1:{relay.port}", it.name, **arguments) as slot:
            next(loop := iter(slot))
            left = next(loop)
            relay.refuse()
            for _ in range(2):
                with pytest.raises(Unavailable):
                    next(iter(slot))
        assert it.confirmed() < left.end_lsn


async def test_a_loop_of_asyncio_that_could_not_begin_again_skips_nothing(
    stage: Callable[..., Stage], service: Service
) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    for value in range(4):
        it.sql(f"INSERT INTO t VALUES ({value})")
    with RefusingRelay(service.grpc_port) as relay:
        arguments = it.arguments(retry_seconds=0.2)
        async with AsyncSlot(f"127.0.0.1:{relay.port}", it.name, **arguments) as slot:
            await anext(loop := aiter(slot))
            left = await anext(loop)
            relay.refuse()
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await anext(aiter(slot))
            # Nor one that was cancelled.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(aiter(slot))
            with pytest.raises(Unavailable):
                await anext(aiter(slot))
        assert await asyncio.to_thread(it.confirmed) < left.end_lsn


def test_a_slot_that_is_closed_beside_its_loop_ends_it(stage: Callable[..., Stage]) -> None:
    """It waited for ever."""
    it = stage()
    ended: list[BaseException] = []

    def follow(slot: Slot) -> None:
        try:
            for _ in slot:
                pass
        except BaseException as error:  # noqa: BLE001 - looked at below
            ended.append(error)

    with it.slot(upto_lsn=None) as slot:
        loop = threading.Thread(target=follow, args=(slot,), daemon=True)
        loop.start()
        _wait(lambda: slot.handled_lsn > 0)
    loop.join(20)
    assert [type(error) for error in ended] == [InvalidUse]


async def test_a_slot_that_is_closed_beside_its_task_ends_it(stage: Callable[..., Stage]) -> None:
    it = stage()

    async def follow(slot: AsyncSlot) -> None:
        async for _ in slot:
            pass

    arguments = it.arguments(upto_lsn=None)
    async with AsyncSlot(it.service.grpc_address, it.name, **arguments) as slot:
        loop = asyncio.create_task(follow(slot))
        await asyncio.to_thread(_wait, lambda: slot.handled_lsn > 0)
    with pytest.raises(InvalidUse, match="was closed"):
        await asyncio.wait_for(loop, 20)


def test_feedback_by_hand(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    for number in range(4):
        it.sql(f"INSERT INTO t VALUES ({number})")
    before = it.confirmed()
    upto = it.now()
    with it.slot(feedback="manual", upto_lsn=upto) as slot:
        given = list(slot)
        assert len(given) == 4
        assert slot.handled_lsn < given[0].end_lsn
        slot.confirm(given[1])
        with pytest.raises(InvalidUse, match="can't be confirmed"):
            slot.confirm(Lsn(upto) + 1_000_000)
    assert before < it.confirmed() == given[1].end_lsn
    with it.slot(feedback="manual", upto_lsn=upto) as slot:
        again = list(slot)
        assert [tx.end_lsn for tx in again] == [tx.end_lsn for tx in given[2:]]
        slot.confirm(again[-1])
    # Nothing is behind the last one: with it, all up to the end is handled.
    assert it.confirmed() >= Lsn(upto)


def test_an_idle_slot_moves_on_and_a_slow_body_keeps_it(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    it.sql("INSERT INTO t VALUES (1)")
    with it.slot(upto_lsn=None) as slot:
        loop = iter(slot)
        first = next(loop)
        it.sql("INSERT INTO t VALUES (2)")
        second = next(loop)
        # While the body works on the second, the first is confirmed.
        _wait(lambda: it.confirmed() >= first.end_lsn)
        assert it.confirmed() < second.end_lsn
        with pytest.raises(SlotActive) as refused, it.slot(upto_lsn=None):
            pass
        assert refused.value.code == "slot_active"
        other = it.database.value("SELECT pg_switch_wal()::text") and it.now()
        waiter = threading.Thread(target=lambda: next(loop, None))
        waiter.start()
        _wait(lambda: slot.handled_lsn >= Lsn(other))
        it.sql("INSERT INTO t VALUES (3)")
        waiter.join(60)
        assert not waiter.is_alive()
    assert it.confirmed() >= Lsn(other)


def _wait(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come about in a minute")


def test_the_origin_of_a_transaction(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    with it.database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create(%s)", [it.name])
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", [it.name])
        connection.execute(f"INSERT INTO {it.name}.t VALUES (1)")
    it.sql("INSERT INTO t VALUES (2)")
    upto = it.now()
    with it.slot(upto_lsn=upto, feedback="manual") as slot:
        assert [tx.origin for tx in slot] == [it.name, None]
    with it.slot(upto_lsn=upto, options={"origin": "none"}) as slot:
        assert [[c.new for c in tx.changes] for tx in slot] == [[{"id": 2}]]
    it.sql(f"SELECT pg_replication_origin_drop('{it.name}')")


def test_messages_and_prepared_transactions(stage: Callable[..., Stage]) -> None:
    it = stage(two_phase=True)
    it.sql("CREATE TABLE t (id int)")
    it.sql("SELECT pg_logical_emit_message(false, 'plain', 'at once')")
    with it.database.connect(autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO {it.name}.t VALUES (1)")
        connection.execute("SELECT pg_logical_emit_message(true, 'inner', 'with it')")
        connection.execute(f"PREPARE TRANSACTION '{it.name}'")
        connection.execute(f"COMMIT PREPARED '{it.name}'")
    with it.slot(messages=True) as slot:
        message, prepared, committed = list(slot)
    (first,) = message.changes
    assert (message.kind, first.kind, first.prefix, first.content, first.is_transactional) == (
        "message", "message", "plain", b"at once", False,
    )  # fmt: skip
    assert (prepared.kind, prepared.gid) == ("prepare", it.name)
    assert [c.kind for c in prepared.changes] == ["insert", "message"]
    assert prepared.changes[1].is_transactional
    assert (committed.kind, committed.gid, len(committed.changes)) == (
        "commit_prepared", it.name, 0,
    )  # fmt: skip
    assert committed.xid == prepared.xid
    with it.slot(messages=True) as slot:
        assert list(slot) == []


def test_prepared_transactions_that_the_program_asks_for(stage: Callable[..., Stage]) -> None:
    """An option of the program's is as one of the slot's, also where it needs a newer protocol."""
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    with it.slot(options={"two_phase": "on"}) as slot:
        assert list(slot) == []
    it.sql(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{it.name}'")
    with it.slot(options={"two_phase": "on"}) as slot:
        assert [(tx.kind, tx.gid) for tx in slot] == [("prepare", it.name)]
    it.sql(f"ROLLBACK PREPARED '{it.name}'")
    with it.slot(options={"two_phase": "on"}) as slot:
        assert [(tx.kind, tx.gid) for tx in slot] == [("rollback_prepared", it.name)]
    with pytest.raises(InvalidUse, match="the option datestyle is not the user's"):
        it.slot(options={"datestyle": "German"})


def test_converters_of_the_users_own(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TYPE mood AS ENUM ('happy')")
    it.sql("CREATE TABLE t (m mood, j jsonb)")
    it.sql("INSERT INTO t VALUES ('happy', '{\"a\": 0.10}')")
    exact = {
        f"{it.name}.mood": str.upper,
        "jsonb": lambda text: json.loads(text, parse_float=Decimal),
    }
    failing: dict[str | int, Callable[[str], Any]] = {"jsonb": lambda text: 1 / 0}
    with it.slot(converters=failing) as slot, pytest.raises(ConversionFailed) as refused:
        list(next(iter(slot)).changes)
    assert refused.value.details["column"] == "j"
    with it.slot(converters=exact) as slot:
        (tx,) = list(slot)
    assert tx.changes[0].new == {"m": "HAPPY", "j": {"a": Decimal("0.10")}}


def test_refusals_say_what_to_do(stage: Callable[..., Stage], service: Service) -> None:
    it = stage()
    with pytest.raises(UnknownSlot), Slot(service.grpc_address, "nobody", token=TOKEN):
        pass
    with pytest.raises(Unauthenticated), Slot(service.grpc_address, it.name, token="wrong"):
        pass
    with pytest.raises(Unavailable) as unreachable, Slot("127.0.0.1:1", it.name):
        pass
    assert unreachable.value.is_transient
    with pytest.raises(InvalidUse, match="names no publication") as refused:
        it.slot(publications=None).open()
    assert "publications=" in refused.value.hint
    other = stage("test_decoding")
    with pytest.raises(WrongPlugin):
        other.slot().open()
    with it.slot() as slot, pytest.raises(WrongPlugin):
        next(slot.batches())
    with pytest.raises(InvalidUse):
        iter(it.slot()).__next__()
    with pytest.raises(InvalidUse):
        it.slot(options={"binary": "on"})


async def test_of_several_addresses_the_one_that_answers_is_opened(
    stage: Callable[..., Stage], service: Service
) -> None:
    """Where one service stands by for another, either may be the one that works."""
    it = stage()
    both, neither = ["127.0.0.1:1", service.grpc_address], ["127.0.0.1:1", "127.0.0.1:2"]
    arguments = await asyncio.to_thread(it.arguments)
    with Slot(both, it.name, **arguments) as slot:
        assert list(slot) == []
    async with AsyncSlot(both, it.name, **arguments) as others:
        assert [tx async for tx in others] == []
    with pytest.raises(Unavailable):
        Slot(neither, it.name, **arguments).open()
    with pytest.raises(Unavailable):
        await AsyncSlot(neither, it.name, **arguments).open()
    # What a service that works answers counts.
    with pytest.raises(UnknownSlot):
        Slot(both, "nobody", token=TOKEN).open()
    with Slot(both[::-1], it.name, **arguments), pytest.raises(SlotActive):
        Slot(both, it.name, **arguments).open()


def test_a_slot_that_somebody_moved(
    stage: Callable[..., Stage], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of SlotAhead mends it."""
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    it.sql("INSERT INTO t VALUES (1)")
    with it.slot(feedback="manual") as slot:
        (tx,) = list(slot)
    stored = tx.commit_lsn
    it.service.call("POST", f"/slots/{it.name}/advance", json={"upto_lsn": it.now()})
    with pytest.raises(SlotAhead) as refused:
        it.slot(start_lsn=stored).open()
    command = re.search(r"`spillway (slot rewind [^`]+)`", refused.value.hint)
    assert command is not None
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
    monkeypatch.setenv("SPILLWAY_TOKEN", TOKEN)
    assert main(command[1].split()) == 0
    with it.slot(start_lsn=stored) as slot:
        assert [again.end_lsn for again in slot] == [tx.end_lsn]


def test_events_are_what_a_stored_position_moves_by(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    it.sql("INSERT INTO t VALUES (1)")
    with it.slot(start_lsn=0, upto_lsn=None) as slot:
        events = slot.events()
        first = next(events)
        assert isinstance(first, Transaction)
        elsewhere = it.database.value("SELECT pg_switch_wal()::text") and it.now()
        moved = next(e for e in events if e.end_lsn >= Lsn(elsewhere))
        assert isinstance(moved, Progress)
        assert list(moved.changes) == []
        # Not handled yet: the loop did not come back.
        assert slot.handled_lsn < moved.end_lsn
    with it.slot(start_lsn=moved.end_lsn) as slot:
        assert list(slot) == []


def test_batches_of_arrow(stage: Callable[..., Stage]) -> None:
    it = stage("arrow")
    it.sql("CREATE TABLE a (id int PRIMARY KEY, v numeric(6,2))")
    it.sql("CREATE TABLE b (t text)")
    for number in range(3):
        it.sql(f"INSERT INTO a VALUES ({number}, 1.25); INSERT INTO b VALUES ('{number}')")
    upto = it.now()
    with it.slot(upto_lsn=upto) as slot:
        ours = [b for b in slot.batches() if b.schema == it.name]
    rows = {
        table: [r for b in ours if b.table == table for r in b.record_batch.to_pylist()]
        for table in ("a", "b")
    }
    assert [(r["_op"], r["id"], r["v"]) for r in rows["a"]] == [
        ("I", number, Decimal("1.25")) for number in range(3)
    ]
    assert [r["t"] for r in rows["b"]] == ["0", "1", "2"]
    assert next(b for b in ours if b.table == "a").primary_key == ("id",)
    assert it.confirmed() >= Lsn(upto)


async def test_asyncio(stage: Callable[..., Stage]) -> None:
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    for number in range(4):
        it.sql(f"INSERT INTO t VALUES ({number})")
    upto = it.now()
    arguments = it.arguments(upto_lsn=upto)
    address = it.service.grpc_address
    async with AsyncSlot(address, it.name, **arguments) as slot:
        async for tx in slot:
            if tx.changes[0].new == {"id": 1}:
                break
        with pytest.raises(SlotActive):
            await AsyncSlot(address, it.name, **arguments).open()
        seen = [tx.changes[0].new async for tx in slot]
    assert seen == [{"id": 1}, {"id": 2}, {"id": 3}]
    confirmed = await asyncio.to_thread(it.confirmed)
    assert confirmed >= Lsn(upto)
    async with AsyncSlot(address, it.name, **{**arguments, "upto_lsn": None}) as slot:
        await asyncio.to_thread(it.sql, "INSERT INTO t VALUES (9)")
        async for event in slot.events():
            if isinstance(event, Transaction):
                assert event.changes[0].new == {"id": 9}
                slot.confirm(event)
                break
    assert await asyncio.to_thread(it.confirmed) >= event.end_lsn
    with pytest.raises(UnknownSlot):
        await AsyncSlot(address, "nobody", token=TOKEN).open()
    with pytest.raises(Unavailable):
        await AsyncSlot("127.0.0.1:1", "nobody").open()


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_a_position_in_the_users_own_transaction(
    stage: Callable[..., Stage], driver: ModuleType
) -> None:
    """What fails in the middle leaves neither work nor position, and of two consumers
    one is told.
    """
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    it.sql(f"CREATE SCHEMA target_{it.name}")
    it.sql(f"CREATE TABLE target_{it.name}.copy (id int)")
    for number in range(4):
        it.sql(f"INSERT INTO t VALUES ({number})")
    upto = it.now()
    table = f"target_{it.name}.spillway_position"
    position, rival = Position(it.name, table=table), Position(it.name, table=table)

    def work(connection: Any, tx: Transaction, divisor: int = 1) -> None:
        with connection.cursor() as cursor:
            for change in tx.changes:
                assert change.new is not None
                cursor.execute(f"INSERT INTO target_{it.name}.copy VALUES (%s)", [change.new["id"]])
            cursor.execute("SELECT 1 / %s", [divisor])

    with (
        closing(driver.connect(it.database.dsn)) as ours,
        closing(driver.connect(it.database.dsn)) as theirs,
    ):
        assert rival.load(theirs) == 0
        with it.slot(start_lsn=position.load(ours), upto_lsn=upto) as slot:
            loop = iter(slot)
            with position.transaction(ours, tx := next(loop)):
                work(ours, tx)
            failed = next(loop)
            with pytest.raises(driver.DataError), position.transaction(ours, failed):
                work(ours, failed, divisor=0)
            with pytest.raises(InvalidUse, match="is not known"), position.transaction(ours, tx):
                pass
        with pytest.raises(PositionConflict), rival.transaction(theirs, failed):
            work(theirs, failed)
        with it.slot(start_lsn=position.load(ours), upto_lsn=upto) as slot:
            for tx in slot:
                with position.transaction(ours, tx):
                    work(ours, tx)
        with pytest.raises(PositionConflict, match="is done"), position.transaction(ours, failed):
            pass
        assert rival.load(theirs) == tx.end_lsn
        with ours.cursor() as cursor:
            cursor.execute(f"SELECT id FROM target_{it.name}.copy ORDER BY 1")
            rows = cursor.fetchall()
        assert rows == [(0,), (1,), (2,), (3,)]
        ours.rollback()
        ours.autocommit = True
        with pytest.raises(InvalidUse, match="autocommit"):
            position.load(ours)


def test_a_slot_that_was_closed_is_opened_again_at_once(stage: Callable[..., Stage]) -> None:
    """Its stream ends a moment later in the service."""
    it = stage()
    for _ in range(20):
        with it.slot(upto_lsn=None):
            pass


async def _swallow(position: AsyncPosition, connection: psycopg.AsyncConnection) -> None:
    async with position.transaction(connection, Progress(Lsn(200))):
        with contextlib.suppress(psycopg.DataError):
            await connection.execute("SELECT 1 / 0")


async def test_a_position_in_the_users_own_async_transaction(pg15: Database) -> None:
    table = "spillway_position"
    async with (
        await psycopg.AsyncConnection.connect(pg15.dsn) as ours,
        await psycopg.AsyncConnection.connect(pg15.dsn) as theirs,
    ):
        position, rival = AsyncPosition("s", table=table), AsyncPosition("s", table=table)
        assert await position.load(ours) == 0
        assert await rival.load(theirs) == 0
        async with position.transaction(ours, Progress(Lsn(100))):
            await ours.execute("CREATE TABLE work (n int)")
        with pytest.raises(psycopg.DataError):
            async with position.transaction(ours, Progress(Lsn(200))):
                await ours.execute("INSERT INTO work VALUES (1 / 0)")
        with pytest.raises(InvalidUse, match="is not known"):
            print(position.lsn)
        with pytest.raises(PositionConflict):
            async with rival.transaction(theirs, Progress(Lsn(300))):
                pass
        assert await position.load(ours) == 100
        found = await ours.execute("SELECT n FROM work")
        assert await found.fetchall() == []
        # A COMMIT that commits nothing raises nothing by itself.
        with pytest.raises(psycopg.InternalError):
            await _swallow(position, ours)
        ours.row_factory = cast("Any", psycopg.rows.dict_row)
        assert await position.load(ours) == 100
        with pytest.raises(InvalidUse, match="block ended"):
            async with position.transaction(ours, Progress(Lsn(200))):
                await ours.rollback()
        assert await position.load(ours) == 100


def test_the_service_shows_who_has_the_slot(stage: Callable[..., Stage]) -> None:
    it = stage()
    with it.slot(upto_lsn=None):
        consumer = it.service.slot(it.name)["consumer"]
    assert consumer["client"].startswith("spillway-client/")


def test_a_copy_and_what_follows_it(stage: Callable[..., Stage]) -> None:
    """What the snapshot has and what the loop gives are the table, while a transaction is open all
    the time.
    """
    it = stage()
    address, database = it.service.grpc_address, it.database
    table = f"{it.name}.copied"
    it.sql(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)")
    with database.connect(autocommit=False) as open_all_along, database.connect() as source:
        open_all_along.execute(f"INSERT INTO {table} VALUES (2)")
        with exported_snapshot(address, it.name, token=TOKEN) as snapshot:
            assert snapshot.method == "paired"
            source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            source.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
        assert source.execute("SELECT pg_current_snapshot()::text").fetchone() == (
            snapshot.contents,
        )
        it.sql(f"INSERT INTO {table} VALUES (3)")
        open_all_along.commit()
        assert source.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]
    with it.slot(start_lsn=snapshot.lsn) as slot:
        assert [change.new["id"] for tx in slot for change in tx.changes if change.new] == [3, 2]
    with pytest.raises(UnknownSlot), exported_snapshot(address, "none", token=TOKEN):
        pass


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_a_commit_that_commits_nothing_moves_no_position(
    stage: Callable[..., Stage], driver: ModuleType
) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and no driver raises then.
    A block that ended the transaction itself has left the position where it was, too.
    """
    it = stage()
    it.sql("CREATE TABLE t (id int)")
    it.sql("INSERT INTO t VALUES (1)")
    table = f"target_{it.name}.spillway_position"
    it.sql(f"CREATE SCHEMA target_{it.name}")
    position = Position(it.name, table=table)
    with closing(driver.connect(it.database.dsn)) as ours:
        with it.slot(start_lsn=position.load(ours)) as slot:
            tx = next(iter(slot))
            with (
                pytest.raises(driver.InternalError),
                position.transaction(ours, tx),
                contextlib.suppress(driver.DataError),
            ):
                ours.cursor().execute("SELECT 1 / 0")
            assert position.load(ours) == 0
            with pytest.raises(InvalidUse, match="block ended"), position.transaction(ours, tx):
                ours.rollback()
        assert it.confirmed() < tx.end_lsn
        assert position.load(ours) == 0


def test_a_position_whatever_the_users_rows_are_made_into(pg15: Database, tmp_path: Path) -> None:
    """Row factories and cursors of the user's own don't concern the position."""

    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    def sqlite(factory: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "positions")
        connection.row_factory = factory
        return connection

    dsn, extras = pg15.dsn, psycopg2.extras
    for name, connect in {
        "dict": lambda: psycopg.connect(dsn, row_factory=psycopg.rows.dict_row),
        "class": lambda: psycopg.connect(dsn, row_factory=psycopg.rows.class_row(Tls)),
        "scalar": lambda: psycopg.connect(dsn, row_factory=psycopg.rows.scalar_row),
        "real dict": lambda: psycopg2.connect(dsn, cursor_factory=extras.RealDictCursor),
        "named": lambda: psycopg2.connect(dsn, cursor_factory=extras.NamedTupleCursor),
        "sqlite3.Row": lambda: sqlite(sqlite3.Row),
        "sqlite3 dict": lambda: sqlite(as_dict),
    }.items():
        position = Position(name)
        with closing(connect()) as connection:
            assert position.load(connection) == 0
            with position.transaction(connection, Progress(Lsn(100))):
                pass
            assert position.load(connection) == 100


@pytest.fixture
def nobodys_address() -> Iterator[str]:
    """Where nobody listens, and nobody will."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_several_addresses(stage: Callable[..., Stage], nobodys_address: str) -> None:
    """Each is tried, also by who begins while one service stands in for the other."""
    it = stage()
    it.sql("CREATE TABLE t (i int)")
    it.sql("INSERT INTO t VALUES (1)")
    both = [nobodys_address, it.service.grpc_address]
    for addresses in (both, both[::-1]):
        with exported_snapshot(addresses, it.name, token=TOKEN) as snapshot:
            assert snapshot.lsn
        with Slot(addresses, it.name, **it.arguments(feedback="manual")) as slot:
            assert [len(tx.changes) for tx in slot] == [1]
    # What a service says is not asked of the next, and of many that are away one is named.
    for addresses in (both, both[::-1]):
        with pytest.raises(UnknownSlot), exported_snapshot(addresses, "none", token=TOKEN):
            pass
        with pytest.raises(UnknownSlot):
            Slot(addresses, "none", token=TOKEN).open()
    with (
        pytest.raises(Unavailable, match="can't be reached"),
        exported_snapshot([nobodys_address] * 2, it.name, token=TOKEN),
    ):
        pass
    with pytest.raises(Unavailable, match="can't be reached"):
        Slot([nobodys_address] * 2, it.name, token=TOKEN).open()
    with pytest.raises(InvalidUse, match="needs an address"), exported_snapshot([], it.name):
        pass


async def test_several_addresses_of_asyncio(
    stage: Callable[..., Stage], nobodys_address: str
) -> None:
    it = stage()
    it.sql("CREATE TABLE t (i int)")
    it.sql("INSERT INTO t VALUES (1)")
    addresses = [nobodys_address, it.service.grpc_address]
    async with AsyncSlot(addresses, it.name, **it.arguments()) as slot:
        assert [len(tx.changes) async for tx in slot] == [1]
    with pytest.raises(Unavailable, match="can't be reached"):
        await AsyncSlot([nobodys_address] * 2, it.name, token=TOKEN).open()
