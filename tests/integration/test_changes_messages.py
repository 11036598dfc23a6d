"""Logical messages among the changes that are looked for, beside PostgreSQL's own pgoutput and
test_decoding: what they say, where, and in which order.
"""

from __future__ import annotations

import io
import json
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pyarrow as pa
import pytest

from harness.service import Service, service_in_process
from harness.tiers import deep
from spillway.v1 import changes_pb2 as pb
from spillway.v1 import changes_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Cluster, Database

LARGE = "x" * 300_000
WORKLOAD = (
    "SELECT pg_logical_emit_message(false, 'outside', 'at once')",
    # In its transaction's place, among rows; told at once in its midst; a savepoint takes back what
    # is transactional alone.
    (
        "BEGIN; INSERT INTO t VALUES (1, 'a');"
        "SELECT pg_logical_emit_message(true, 'audit', 'größer');"
        "UPDATE t SET v = 'b'; SELECT pg_logical_emit_message(false, 'outside', 'within');"
        "SAVEPOINT s; SELECT pg_logical_emit_message(true, 'audit', 'taken back');"
        "SELECT pg_logical_emit_message(false, 'audit', 'not taken back'); ROLLBACK TO s;"
        "SAVEPOINT r; SELECT pg_logical_emit_message(true, 'audit', 'of a subtransaction');"
        r"RELEASE r; SELECT pg_logical_emit_message(true, 'bytes', '\xff00fe'::bytea);"
        "DELETE FROM t; COMMIT"
    ),
    (
        "BEGIN; SELECT pg_logical_emit_message(true, 'audit', 'rolled back');"
        "SELECT pg_logical_emit_message(false, 'outside', 'of who rolled back'); ROLLBACK"
    ),
    "SELECT pg_logical_emit_message(true, '', '')",
    r"SELECT pg_logical_emit_message(true, 'zéro', '\x61000a62'::bytea)",
    f"SELECT pg_logical_emit_message(true, 'large', '{LARGE}')",
    "INSERT INTO t VALUES (2, 'the last')",
)


class Told(NamedTuple):
    transactional: bool
    lsn: str
    prefix: str
    content: bytes


@pytest.fixture(params=[deep(14), 18], ids=["pg14", "pg18"])
def stage(
    request: pytest.FixtureRequest, fresh_cluster: Callable[..., Cluster], tmp_path: Path
) -> Iterator[tuple[Service, Database]]:
    cluster = fresh_cluster(request.param, wal_level="logical")
    database = cluster.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    for plugin in ("pgoutput", "test_decoding"):
        database.execute(f"SELECT pg_create_logical_replication_slot('{plugin}', '{plugin}')")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(database.dsn)
        service.create_slot("s", "shop")
        for statements in WORKLOAD:
            database.execute(statements)
        service.wait_decoded("s", database)
        yield service, database
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def ask(service: Service, **query: Any) -> dict[str, Any]:
    query = {"source": "main", "database": "shop", **query}
    answer: dict[str, Any] = service.call("GET", "/changes", params=query)
    return answer


def told(change: dict[str, Any]) -> Told:
    message = change["message"]
    content = message["content"]
    if content is None:
        raw = bytes.fromhex(message["content_hex"].removeprefix("\\x"))
    else:
        assert message["content_hex"] is None
        raw = content.encode()
    return Told(message["transactional"], change["lsn"], message["prefix"], raw)


def by_pgoutput(database: Database) -> list[Told]:
    rows = database.query(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('pgoutput', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
    )
    found = []
    for (data,) in rows:
        if data[:1] != b"M":
            continue
        flags, lsn = struct.unpack_from(">BQ", data, 1)
        prefix, _, rest = bytes(data[10:]).partition(b"\0")
        size = int.from_bytes(rest[:4], "big")
        content = rest[4:]
        assert len(content) == size
        place = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
        found.append(Told(flags == 1, place, prefix.decode(), content))
    return found


def by_test_decoding(database: Database) -> list[tuple[str, str]]:
    """Give (lsn, what was done) of each message and each row's change."""
    rows = database.query(
        "SELECT lsn::text, data FROM "
        "pg_logical_slot_peek_binary_changes('test_decoding', NULL, NULL)"
    )
    found = []
    for lsn, told_bytes in rows:
        data = bytes(told_bytes).decode(errors="replace")
        if match := re.match(r"message: transactional: (\d) prefix: (.*), sz: (\d+) ", data):
            found.append((lsn, " ".join(match.groups())))
        elif match := re.match(r"table public.t: (\w+):", data):
            found.append((lsn, match[1].lower()))
    return found


def test_beside_postgresql(stage: tuple[Service, Database]) -> None:
    service, database = stage
    page = ask(service, op="message")
    found = page["changes"]
    expected = by_pgoutput(database)
    assert len(expected) == 10
    assert [told(change) for change in found] == expected
    # Among the rows, in one order with them.
    whole = ask(service)["changes"]
    assert [
        (
            change["lsn"],
            f"{1 if change['message']['transactional'] else 0} {change['message']['prefix']} "
            f"{len(told(change).content)}"
            if change["operation"] == "message"
            else change["operation"],
        )
        for change in whole
    ] == by_test_decoding(database)
    assert [change for change in whole if change["message"] is not None] == found
    for change in found:
        assert (change["schema"], change["table"], change["table_oid"]) == ("", "", 0)
        assert change["columns"] == []
        assert (change["committed_at"] is not None) == change["message"]["transactional"]
    # By pages of any size, in both orders.
    for query in ({}, {"op": "message"}):
        everything = ask(service, **query)["changes"]
        for limit in (1, 2, 3):
            for newest_first in (False, True):
                seen: list[Any] = []
                after: dict[str, str] = {}
                while True:
                    some = ask(service, **query, limit=limit, newest_first=newest_first, **after)
                    seen += some["changes"]
                    if some["next"] is None:
                        break
                    after = {"after": some["next"]}
                assert seen == everything[:: -1 if newest_first else 1]


def test_what_is_asked(stage: tuple[Service, Database]) -> None:
    service, _ = stage
    every = ask(service, op="message")["changes"]
    assert [c for c in every if c["message"]["prefix"] == "outside"] == (
        ask(service, prefix="outside")["changes"]
    )
    assert len(ask(service, prefix="zéro")["changes"]) == 1
    assert len(ask(service, prefix="")["changes"]) == 1
    # A sieve for the prefix lets others through that hold it; what is found has it.
    assert ask(service, prefix="aud")["changes"] == []
    assert ask(service, prefix="at once")["changes"] == []
    audit = next(c for c in every if c["message"]["content"] == "größer")
    mine = ask(service, xid=audit["xid"], from_lsn=audit["commit_lsn"])["changes"]
    assert [c["operation"] for c in mine] == [
        "insert", "message", "update", "message", "message", "delete",
    ]  # fmt: skip
    # What has no time is found without one.
    later = ask(service, since="2001-01-01T00:00:00Z", op="message")["changes"]
    assert later == [c for c in every if c["message"]["transactional"]]
    assert ask(service, until="2001-01-01T00:00:00Z")["changes"] == []
    assert all(c["message"] is None for c in ask(service, table="public.t")["changes"])
    # What cannot be is refused, and its remedy mends it.
    refused = service.http.get(
        "/v1/changes",
        params={"source": "main", "database": "shop", "table": "t", "prefix": "audit"},
    ).json()
    assert refused["code"] == "invalid_request"
    assert refused["hint"].startswith("Leave out the table")
    assert ask(service, prefix="audit")["changes"]
    refused = service.http.get(
        "/v1/changes",
        params={"source": "main", "database": "shop", "op": "insert", "prefix": "audit"},
    ).json()
    assert "ask for the operation message alone" in refused["hint"]
    assert ask(service, prefix="audit", op="message")["changes"]
    # From a message onward: what a plugin prints of it, and of its transaction.
    outside = every[0]
    for change, lines in (
        (outside, ["message: transactional: 0 prefix: outside, sz: 7 content:at once"]),
        (audit, None),
    ):
        shown = service.call(
            "GET", "/changes/print",
            params={
                "source": "main", "database": "shop", "commit_lsn": change["commit_lsn"],
                "options.skip-empty-xacts": "1",
            },
        )  # fmt: skip
        printed = [one["data"] for one in shown["changes"]]
        if lines is not None:
            assert printed == lines
        else:
            assert any("prefix: audit, sz: 8 content:größer" in line for line in printed)
    # A slot that is taken back to one gets it next.
    service.call("POST", "/slots/s/rewind", json={"lsn": outside["commit_lsn"]})
    peeked = service.call("GET", "/slots/s/peek", params={"upto_nchanges": 1})["changes"]
    assert "content:at once" in peeked[0]["data"]


def test_other_forms(stage: tuple[Service, Database], monkeypatch: pytest.MonkeyPatch) -> None:
    service, _ = stage
    expected = [told(change) for change in ask(service, op="message")["changes"]]
    query = {"source": "main", "database": "shop", "op": "message"}
    lines = service.http.get(
        "/v1/changes", params=query, headers={"Accept": "application/x-ndjson"}
    )
    assert [told(json.loads(line)) for line in lines.text.splitlines()] == expected
    accept = {"Accept": "application/vnd.apache.arrow.stream"}
    arrow = service.http.get("/v1/changes", params={**query, "op": []}, headers=accept)
    rows = pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all().to_pylist()
    assert [
        (m["transactional"], m["prefix"], m["content"])
        for row in rows
        if (m := row["message"]) is not None
    ] == [(one.transactional, one.prefix, one.content) for one in expected]
    assert {row["operation"] for row in rows if row["message"] is None} == {
        "insert", "update", "delete",
    }  # fmt: skip
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        stub = changes_pb2_grpc.ChangeServiceStub(channel)
        asked = pb.FindChangesRequest(source="main", database="shop", op=["message"])
        got = [change for part in stub.FindChanges(asked) for change in part.changes]
        assert [(c.message.transactional, c.message.prefix, c.message.content) for c in got] == [
            (one.transactional, one.prefix, one.content) for one in expected
        ]
        assert [c.HasField("committed_at") for c in got] == [one.transactional for one in expected]
        asked.prefix = "outside"
        of_one = [change for part in stub.FindChanges(asked) for change in part.changes]
        assert {c.message.prefix for c in of_one} == {"outside"}
