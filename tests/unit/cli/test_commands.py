"""The commands, against REST over the engine in memory."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.fake_engine import FIRST_LSN
from harness.fake_service import FakeService
from harness.subscription_stage import table
from spillway.cli import main
from spillway.cli import source as source_commands
from spillway.cli.output import print_changes

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_slots(service: FakeService, run: Run) -> None:
    code, out, _ = run(
        "slot", "create", "s2", "--source", "shop", "--database", "shop",
        "--option", "include-xids=0", "-o", "skip-empty-xacts", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["options"] == {"include-xids": "0", "skip-empty-xacts": ""}
    assert [s["slot_name"] for s in json.loads(run("slot", "list", "--json")[1])] == ["s1", "s2"]
    table = run("slot", "list")[1]
    assert "s2" in table
    assert str(FIRST_LSN) in table
    shown = run("slot", "show", "s2")[1]
    assert "confirmed_flush_lsn" in shown
    assert "include-xids=0" in shown
    assert run("slot", "drop", "s2")[0] == 0
    assert set(service.engine.slots) == {"s1"}


def test_a_snapshot(service: FakeService, run: Run) -> None:
    made = run("slot", "create", "s2", "--source", "shop", "--database", "shop", "--snapshot")[1]
    held = service.engine.snapshots["s2"]
    assert held.snapshot_name in made
    assert "held_until" in made
    shown = json.loads(run("slot", "snapshot", "s2", "--show", "--json")[1])
    assert shown["snapshot_name"] == held.snapshot_name
    taken = json.loads(run("slot", "snapshot", "s2", "--json")[1])
    assert taken["snapshot_name"] == service.engine.snapshots["s2"].snapshot_name
    assert run("slot", "snapshot", "s2", "--release") == (0, "", "")
    status, _, err = run("slot", "snapshot", "s2", "--show")
    assert status == 1
    assert "hint: Take one: `spillway slot snapshot s2`." in err


def test_peek_and_get(service: FakeService, run: Run) -> None:
    transaction = service.engine.commit("shop", "BEGIN 7", "table [x]: \u00fc", "COMMIT 7", xid=7)
    lines = "".join(f"{c.lsn}\t7\t{c.data}\n" for c in transaction.changes)
    assert run("slot", "peek", "s1") == (0, lines, "")
    assert run("slot", "peek", "s1", "--upto-lsn", str(transaction.final_lsn)) == (0, "", "")
    assert run("slot", "peek", "s1", "-o", "include-xids=0", "--upto-nchanges", "1")[1] == lines
    assert service.engine.options_seen[-1] == {"include-xids": "0"}
    assert len(json.loads(run("slot", "get", "s1", "--json")[1])) == 3
    assert run("slot", "get", "s1") == (0, "", "")


def test_what_is_not_utf8_is_printed_as_it_is(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    print_changes(
        [{"lsn": "0/1", "xid": 7, "data": "a\N{REPLACEMENT CHARACTER}", "data_hex": "\\x61ff"}]
    )
    print_changes([{"lsn": "0/2", "xid": 8, "data": "ü"}])
    assert capfdbinary.readouterr().out == b"0/1\t7\ta\xff\n0/2\t8\t" + "ü\n".encode()


def test_peek_says_on_stderr_that_decoding_has_stopped(service: FakeService, run: Run) -> None:
    service.engine.commit("shop", "a", xid=7)
    service.engine.stop_decoding("shop")
    code, out, err = run("slot", "peek", "s1")
    assert (code, out.count("\n")) == (0, 1)
    assert "decoding is stopped at" in err
    assert "corrupt_wal" in err
    assert "hint: Look at the file." in err
    assert "state=stopped" in run("slot", "show", "s1")[1]


def test_ending_a_session(service: FakeService, run: Run) -> None:
    code, _, err = run("slot", "end-session", "s1")
    assert (code, "no_consumer" in err) == (1, True)


def test_positions(service: FakeService, run: Run) -> None:
    end = service.engine.commit("shop", "a").end_lsn
    assert str(end) in run("slot", "advance", "s1", str(end))[1]
    assert str(FIRST_LSN) in run("slot", "rewind", "s1", str(FIRST_LSN))[1]
    assert run("slot", "copy", "s1", "s3")[0] == 0
    assert "total_txns" in run("slot", "stats", "s3")[1]


def test_options_of_a_slot_change(service: FakeService, run: Run) -> None:
    altered = run("slot", "alter", "s1", "-o", "include-xids=0", "--json")
    assert json.loads(altered[1])["options"] == {"include-xids": "0"}
    assert run("slot", "alter", "s1")[0] == 1
    assert run("slot", "alter", "s1", "-o", "include-xids=0", "--no-options")[0] == 1
    assert service.engine.slots["s1"].options == {"include-xids": "0"}
    assert json.loads(run("slot", "alter", "s1", "--no-options", "--json")[1])["options"] == {}


def test_a_database_is_restarted(service: FakeService, run: Run) -> None:
    assert "conflict" in run("source", "restart", "shop", "shop")[2]
    assert "unknown_database" in run("source", "restart", "shop", "nowhere")[2]
    info = service.engine.sources["shop"]
    stopped = dataclasses.replace(info.sessions[0], error="x", error_code="decoding_error")
    service.engine.sources["shop"] = dataclasses.replace(info, sessions=(stopped,))
    code, out, _ = run("source", "restart", "shop", "shop", "--json")
    assert (code, json.loads(out)["sessions"][0]["error_code"]) == (0, None)


def test_sources(service: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"host=db password=secret\n")))
    code, out, _ = run("source", "add", "books", "-")
    assert code == 0
    assert "password=****" in out
    assert "secret" not in out
    assert "shop consistent 0/1000000" in run("source", "list")[1]
    assert json.loads(run("source", "show", "books", "--json")[1])["name"] == "books"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"host=new password=secret\n")))
    code, out, _ = run("source", "alter", "books", "-", "--json")
    assert (code, json.loads(out)["dsn"]) == (0, "host=new password=****")
    filtered = ("--origin", "none", "--table", "a.b", "--table", "c.*")
    code, out, _ = run("source", "add", "some", "host=db", *filtered, "--json")
    capture = {"origin": "none", "tables": ["a.b", "c.*"], "publications": []}
    assert (code, json.loads(out)["capture"]) == (0, capture)
    assert run("source", "drop", "some")[0] == 0
    assert run("source", "drop", "books")[0] == 0
    assert [s["name"] for s in json.loads(run("source", "list", "--json")[1])] == ["shop"]


def test_tables_of_a_source(
    service: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_commands, "_TABLES_A_PAGE", 2)
    service.engine.tables["shop", "shop"] = [table(f"public.t{n}") for n in range(5)]
    shown = json.loads(run("source", "tables", "shop", "--database", "shop", "--json")[1])
    assert [t["name"] for t in shown] == [f"t{n}" for n in range(5)]
    assert "public.t4" in run("source", "tables", "shop", "--database", "shop")[1]


def test_a_lakes_layout(service: FakeService, run: Run) -> None:
    code, out, _ = run(
        "subscription", "create", "a", "--source", "shop", "--database", "shop", "--lake",
        "/srv/lake",
        "--partition-history", "day", "--partition-by", "s.orders=day(at), "
            "region", "--partition-by", "s.b=x",
        "--cluster-by", "s.orders=id", "-j", "retention=7d", "--json",
        "--conf", "spark.local.dir=/a=b", "--conf", "spark.task.cpus=1",
    )  # fmt: skip
    lake = {
        "kind": "lake",
        "format": "delta",
        "path": "/srv/lake",
        "retention": "7d",
        "partition_history": "day",
        "partition_by": {"s.orders": ["day(at)", "region"], "s.b": ["x"]},
        "cluster_by": {"s.orders": ["id"]},
        "conf": {"spark.local.dir": "/a=b", "spark.task.cpus": "1"},
    }
    assert (code, json.loads(out)["target"]) == (0, lake)
    # Of what is by table only what is named changes.
    altered = run(
        "subscription",
        "alter",
        "a",
        "--cluster-by",
        "s.b=y,z",
        "--cluster-by",
        "s.orders=",
        "--json",
    )
    lake["cluster_by"] = {"s.orders": [], "s.b": ["y", "z"]}
    assert json.loads(altered[1])["target"] == lake
    again = run("subscription", "alter", "a", "--cluster-by", "s.b=y", "--cluster-by", "s.b=z")
    assert again[0] == 1
    assert "named before" in again[2]
    for bad, said in (
        ("spark.master=local", "give --master"),
        ("spark.x.password=p", "seen by all users"),
        ("spark.task.cpus", "is not NAME=VALUE"),
    ):
        refused = run("subscription", "alter", "a", "--conf", bad)
        assert refused[0] == 1
        assert said in refused[2]
    iceberg = run(
        "subscription", "create", "b", "--source", "shop", "--database", "shop", "--lake", "/srv/b",
        "--format", "iceberg",
        "--iceberg-catalog", "prod", "--iceberg-prefix", "shop_", "--json",
    )  # fmt: skip
    target = json.loads(iceberg[1])["target"]
    assert (target["iceberg_catalog"], target["iceberg_prefix"]) == ("prod", "shop_")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("slot", "show", "none"), "unknown_slot", 'replication slot "none" does not exist'),
        (("slot", "show", "a/b"), "not_found", ""),
        (
            ("slot", "create", "B", "--source", "shop", "--database", "d"),
            "invalid_slot_name",
            "hint: ",
        ),
        (("slot", "advance", "s1", "nonsense"), "invalid_lsn", "hint: An LSN is"),
        (("slot", "peek", "s1", "-o", "=1"), "invalid_option", "has no name"),
        (("slot", "peek", "s1", "-o", "a=1", "-o", "a=2"), "invalid_option", "more than once"),
        (("slot", "peek", "s1", "-o", "nonsense=1"), "invalid_option", "is unknown"),
        (("source", "drop", "shop"), "conflict", "still has slots"),
    ],
)
def test_errors(
    service: FakeService, run: Run, arguments: tuple[str, ...], code: str, says: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert f"code: {code}\n" in err
    assert says in err
    assert "Traceback" not in err


def test_usage(run: Run) -> None:
    assert run("slot", "nonsense")[0] == 2
    assert run("slot", "create")[0] == 2
    assert run("slot", "peek", "x", "--upto-nchanges", "-1")[0] == 2
    assert run("--version")[:2] == (0, "spillway 0.1.0\n")
    assert "recv" in run("--help")[1]


def test_no_service(run: Run, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{unused_tcp_port}")
    status, _, err = run("slot", "list")
    assert status == 1
    assert "can't be reached: Connection refused\n" in err
    assert "code: not_ready" in err
    for url in ("nonsense", "http://[", "ftp://127.0.0.1"):
        monkeypatch.setenv("SPILLWAY_URL", url)
        assert run("slot", "list")[0] == 1
    monkeypatch.setenv("SPILLWAY_HTTP_PORT", "x")
    assert "SPILLWAY_HTTP_PORT" in run("slot", "list")[2]


def test_token(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeService(token="s3cret-tök") as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        assert run("slot", "list")[0] == 0
        monkeypatch.setenv("SPILLWAY_TOKEN", "wrong")
        assert "code: unauthenticated" in run("slot", "list")[2]


def test_output_that_nobody_reads(service: FakeService) -> None:
    service.engine.commit("shop", *("x" * 1000 for _ in range(2000)))
    command = f"{sys.executable} -m spillway.cli slot peek s1 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("x\n")
    assert "Traceback" not in done.stderr


def test_client_commands_load_nothing_heavy() -> None:
    code = (
        "import sys, spillway.cli; "
        "print([m for m in ('grpc', 'sqlalchemy', 'fastapi', 'pyspark', 'pyarrow', 'psycopg') if m "
        "in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
