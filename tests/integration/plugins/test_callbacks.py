"""Output plugins of other packages: the how-to's example, every callback, and what happens when one
fails.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.installed_package import installed
from harness.service import Service, service_in_process
from spillway.errors import PluginFailed
from spillway.pg.lsn import Lsn
from spillway.plugins.registry import ENTRY_POINT_GROUP
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "write-an-output-plugin.md"

#: Says everything that it is given, and fails where an option says so.
RECORDER = """
import json

from spillway.plugins.callbacks import UNCHANGED_TOAST, CallbackPlugin

calls = []


def plain(row):
    return row and {k: "(unchanged)" if v is UNCHANGED_TOAST else v for k, v in row.items()}


class Recorder(CallbackPlugin):
    def startup(self, options):
        calls.append("startup")
        self.fail = options.get("fail")
        self.only_local = options.get("origin") == "none"
        if self.fail == "startup":
            raise ValueError("as told")

    def shutdown(self):
        calls.append("shutdown")
        if self.fail == "shutdown":
            raise ValueError("as told")

    def say(self, callback, **what):
        if self.fail == callback:
            raise ValueError("as told")
        self.write(json.dumps({"callback": callback, **what}))

    def filter_by_origin(self, origin_id, origin_name):
        return self.only_local and origin_id != 0

    def begin(self, txn):
        self.say("begin", xid=txn.xid)

    def change(self, txn, relation, change):
        self.say("change", table=relation.name, action=change.action, new=plain(change.new),
                 old=plain(change.old), key=change.old_is_key)

    def truncate(self, txn, relations, truncation):
        self.say("truncate", tables=[r.name for r in relations], cascade=truncation.cascade,
                 restart=truncation.restart_seqs)

    def message(self, txn, message):
        self.say("message", prefix=message.prefix, content=message.content.hex(),
                 transactional=message.transactional)

    def commit(self, txn):
        self.say("commit", xid=txn.xid)
"""


def example() -> tuple[str, dict[str, str]]:
    """The how-to's module and its entry points."""
    blocks = dict(
        reversed(re.findall(r"^```(\w+)\n(.*?)^```", HOW_TO.read_text(), re.DOTALL | re.MULTILINE))
    )
    project = tomllib.loads(blocks["toml"])["project"]
    return blocks["python"], project["entry-points"][ENTRY_POINT_GROUP]


@pytest.fixture
def service(tmp_path: Path, pg: Database) -> Iterator[Service]:
    with service_in_process(tmp_path / "data") as running:
        running.create_source(pg.dsn)
        yield running
        for slot in running.call("GET", "/slots")["slots"]:
            running.drop_slot(slot["slot_name"])
        running.call("DELETE", "/sources/main")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[list[str]]:
    """Install the recorder; the calls of startup and shutdown."""
    with installed(
        tmp_path / "site",
        "recorder",
        {"recorder_plugin": RECORDER},
        {
            ENTRY_POINT_GROUP: {
                "recorder": "recorder_plugin:Recorder",
                "broken": "recorder_plugin:x",
            }
        },
    ):
        from recorder_plugin import calls

        yield calls


def said(messages: list[tuple[str, int, str]]) -> list[dict[str, object]]:
    return [json.loads(data) for _, _, data in messages]


def streamed(service: Service, slot: str, end: str, **options: str) -> list[tuple[str, int, str]]:
    """What a peeking gRPC stream gives up to *end*."""
    with open_stream(
        service.grpc_address, slot, upto_lsn=Lsn.parse(end), options=options, peek=True
    ) as stream:
        return [
            (str(Lsn(lsn)), xid, bytes(data).decode())
            for batch in stream
            for lsn, xid, data in batch.messages()
        ]


def test_the_how_to(tmp_path: Path, service: Service, pg: Database) -> None:
    source, entries = example()
    assert len(source.splitlines()) < 45
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text, big text); CREATE TABLE other (id int)")
    pg.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    with installed(
        tmp_path / "site", "json-lines", {"json_lines": source}, {ENTRY_POINT_GROUP: entries}
    ):
        (plugin,) = entries
        problem = service.problem(
            "POST",
            "/slots",
            json={
                "slot_name": "s", "source": "main", "database": pg.name, "plugin": plugin,
                "options": {"x": "y"},
            },
        )  # fmt: skip
        assert problem["code"] == "invalid_option"
        service.create_slot("s", pg.name, plugin, options={"tables": "public.t"})
        pg.execute("INSERT INTO t VALUES (1, 'a', repeat('b', 9000)), (2, NULL, '')")
        pg.execute("INSERT INTO other VALUES (1)")
        pg.execute("UPDATE t SET v = 'c' WHERE id = 1; DELETE FROM t WHERE id = 2; TRUNCATE t")
        end = service.wait_decoded("s", pg)
        peeked = service.peek("s")
        assert streamed(service, "s", end) == peeked
        lines = [line for line in said(peeked) if "commit" not in line]
        assert [{k: v for k, v in line.items() if k != "lsn"} for line in lines] == [
            {"table": "public.t", "action": "insert",
             "new": {"id": "1", "v": "a", "big": "b" * 9000}},
            {"table": "public.t", "action": "insert", "new": {"id": "2", "v": None, "big": ""}},
            {"table": "public.t", "action": "update", "new": {"id": "1", "v": "c"}},
            {"table": "public.t", "action": "delete", "old": {"id": "2"}},
            {"table": "public.t", "action": "truncate"},
        ]  # fmt: skip
        assert sum("commit" in line for line in said(peeked)) == 3
        assert service.get("s") == peeked
        assert service.peek("s") == []


def test_every_callback_at_the_place_that_postgresql_gives_it(
    service: Service, pg: Database, recorder: list[str]
) -> None:
    pg.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, gone int); ALTER TABLE t DROP gone;"
        "CREATE TABLE whole (id int, v numeric[]); ALTER TABLE whole REPLICA IDENTITY FULL"
    )
    service.create_slot("ours", pg.name, "recorder")
    service.create_slot("lines", pg.name)
    # To check the options, and to ask whether it streams.
    assert recorder == ["startup", "shutdown"] * 2
    recorder.clear()
    pg.execute("INSERT INTO t VALUES (1, 'é'), (2, 'b')")
    pg.execute("UPDATE t SET id = 3 WHERE id = 1; DELETE FROM t WHERE id = 3")
    pg.execute("INSERT INTO whole VALUES (1, '{1.50,NULL}'); UPDATE whole SET v = NULL")
    pg.query(
        "SELECT pg_logical_emit_message(false, 'p', 'x'), pg_logical_emit_message(true, 'q', 'y')"
    )
    pg.execute("TRUNCATE t, whole RESTART IDENTITY CASCADE")
    end = service.wait_decoded("ours", pg)
    peeked = service.peek("ours")
    assert [m[:2] for m in peeked] == [m[:2] for m in service.peek("lines")]
    assert streamed(service, "ours", end) == peeked
    assert recorder == ["startup", "shutdown"] * 2
    lines = said(peeked)
    assert [line["callback"] for line in lines if line["callback"] not in {"begin", "commit"}] == [
        *["change"] * 6, "message", "message", "truncate",
    ]  # fmt: skip
    changes = [line for line in lines if line["callback"] == "change"]
    assert [(c["action"], c["new"], c["old"], c["key"]) for c in changes] == [
        ("insert", {"id": "1", "v": "é"}, None, False),
        ("insert", {"id": "2", "v": "b"}, None, False),
        ("update", {"id": "3", "v": "é"}, {"id": "1"}, True),
        ("delete", None, {"id": "3"}, True),
        ("insert", {"id": "1", "v": "{1.50,NULL}"}, None, False),
        ("update", {"id": "1", "v": None}, {"id": "1", "v": "{1.50,NULL}"}, False),
    ]
    messages = [line for line in lines if line["callback"] == "message"]
    assert [(m["prefix"], m["content"], m["transactional"]) for m in messages] == [
        ("p", "78", False),
        ("q", "79", True),
    ]
    truncations = [line for line in lines if line["callback"] == "truncate"]
    assert [(t["tables"], t["cascade"], t["restart"]) for t in truncations] == [
        (["t", "whole"], True, True)
    ]


def test_origins_are_filtered_by_transaction(
    service: Service, pg: Database, recorder: list[str]
) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    service.create_slot("s", pg.name, "recorder", options={"origin": "none"})
    origin = f"node_{pg.name}"
    pg.query("SELECT pg_replication_origin_create(%s)", [origin])
    try:
        with pg.connect() as connection:
            connection.execute("SELECT pg_replication_origin_session_setup(%s)", [origin])
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute("SELECT pg_replication_origin_session_reset()")
            connection.execute("INSERT INTO t VALUES (2)")
        service.wait_decoded("s", pg)
    finally:
        pg.query("SELECT pg_replication_origin_drop(%s)", [origin])
    lines = said(service.peek("s"))
    assert [line["new"] for line in lines if line["callback"] == "change"] == [{"id": "2"}]
    # The catalog's own changes make transactions of it too: of the origin's creation, of its
    # removal.
    every = said(service.peek("s", {"origin": "any"}))
    assert [line["new"] for line in every if line["callback"] == "change"] == [
        {"id": "1"},
        {"id": "2"},
    ]


@pytest.mark.parametrize("callback", ["begin", "change", "truncate", "message", "commit"])
def test_what_fails_is_named_and_confirms_nothing(
    service: Service, pg: Database, recorder: list[str], callback: str
) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    service.create_slot("s", pg.name, "recorder")
    before = service.slot("s")["confirmed_flush_lsn"]
    with pg.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("SELECT pg_logical_emit_message(true, 'q', 'y')")
        connection.execute("TRUNCATE t")
        connection.commit()
    end = service.wait_decoded("s", pg)
    recorder.clear()
    problem = service.problem("POST", "/slots/s/get", json={"options": {"fail": callback}})
    assert problem["code"] == "plugin_failed"
    details = problem["details"]
    assert (details["plugin"], details["callback"], details["slot"]) == ("recorder", callback, "s")
    assert "as told" in problem["detail"]
    assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", details["lsn"])
    assert "recorder_plugin.py:" in details["raised_at"]
    with pytest.raises(PluginFailed, match="as told") as failed:
        streamed(service, "s", end, fail=callback)
    assert failed.value.details["lsn"] == details["lsn"]
    assert recorder == ["startup", "shutdown"] * 2
    slot = service.slot("s")
    assert (slot["confirmed_flush_lsn"], slot["active"]) == (before, False)
    # The slot is none the worse for it.
    assert len(service.get("s")) == 5


def test_a_failing_startup_and_shutdown(
    service: Service, pg: Database, recorder: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    body = {"slot_name": "s", "source": "main", "database": pg.name, "plugin": "recorder"}
    problem = service.problem("POST", "/slots", json={**body, "options": {"fail": "startup"}})
    assert (problem["code"], problem["details"]["callback"]) == ("plugin_failed", "startup")
    assert recorder == ["startup", "shutdown"]
    assert service.problem("POST", "/slots", json={**body, "plugin": "broken"})["code"] == (
        "plugin_failed"
    )
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    service.create_slot("s", pg.name, "recorder")
    pg.execute("INSERT INTO t VALUES (1)")
    service.wait_decoded("s", pg)
    assert len(service.get("s", options={"fail": "shutdown"})) == 3
    assert "failed in callback shutdown" in caplog.text
    # A reader that can't even be placed shuts its plugin down too.
    recorder.clear()
    service.problem("POST", "/slots/s/get", json={"upto_nchanges": -1})
    assert recorder.count("startup") == recorder.count("shutdown")
