"""Hints of what a user asks for, followed: each refused request, put right as its hint says,
succeeds.

One service and one database for all of them. What needs faults of its own is followed where that
fault is tested; which test follows which code: ``grep -rn follows_hint tests``.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.commands import parse_command
from harness.remedies import command, remedy
from harness.service import service_in_process
from spillway.cli.program import main
from spillway.errors import Conflict, SessionEnded, SpillwayError, StorageError
from spillway.service import engine
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database
    from harness.service import Service


@pytest.fixture(scope="module")
def database(session_cluster: Callable[[int], Cluster]) -> Iterator[Database]:
    cluster = session_cluster(18)
    made = cluster.create_database(f"remedies_{secrets.token_hex(4)}")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    yield made
    cluster.drop_database(made.name)


@pytest.fixture(scope="module")
def running(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service_in_process(tmp_path_factory.mktemp("remedies")) as service:
        service.create_source(database.dsn)
        service.create_slot("s", database.name)
        database.execute("INSERT INTO t VALUES (1, 'a')")
        database.execute("INSERT INTO t VALUES (2, 'b')")
        service.wait_decoded("s", database)
        yield service
        for slot in service.call("GET", "/slots")["slots"]:
            service.drop_slot(slot["slot_name"])
        service.call("DELETE", "/sources/main")


@pytest.fixture
def service(running: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The service, with commands that speak to it."""
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{running.http_port}")
    monkeypatch.setenv("SPILLWAY_GRPC", running.grpc_address)
    return running


def slot_body(of: Database, **changed: Any) -> dict[str, Any]:
    return {
        "slot_name": "made",
        "source": "main",
        "database": of.name,
        "plugin": "test_decoding",
        **changed,
    }


def names_in(hint: str, after: str) -> list[str]:
    """The names that a hint lists behind *after*."""
    return re.findall(r"[\w-]+", hint.partition(after)[2].partition(".")[0].replace(" and ", ", "))


@pytest.mark.follows_hint("invalid_request", "invalid_lsn", "lsn_not_retained", "advance_backward")
def test_positions(service: Service, database: Database) -> None:
    hint = remedy(
        service.problem("GET", "/slots/s/stats", params={"bogus": "1"}), "invalid_request"
    )
    assert "takes no query parameters" in hint
    service.call("GET", "/slots/s/stats")

    hint = remedy(
        service.problem("GET", "/slots/s/peek", params={"upto_lsn": "zzz"}), "invalid_lsn"
    )
    example = re.search(r"[0-9A-F]+/[0-9A-F]+", hint)
    assert example is not None
    assert service.peek("s", upto_lsn=example[0]) == []

    service.call("POST", "/slots", json=slot_body(database, slot_name="moved"))
    hint = remedy(
        service.problem("POST", "/slots/moved/rewind", json={"lsn": "0/1"}), "lsn_not_retained"
    )
    first, last = re.findall(r"[0-9A-F]+/[0-9A-F]+", hint)
    for lsn in (last, first):
        service.call("POST", "/slots/moved/rewind", json={"lsn": lsn})

    service.call("POST", "/slots/moved/advance", json={"upto_lsn": last})
    assert service.peek("moved") == []
    back = service.problem("POST", "/slots/moved/advance", json={"upto_lsn": first})
    hint = remedy(back, "advance_backward")
    verb = re.search(r"(\w+) goes back", hint)
    assert verb is not None
    assert main(["slot", verb[1], "moved", first]) == 0
    assert len(service.peek("moved")) >= 6
    service.drop_slot("moved")


@pytest.mark.follows_hint(
    "invalid_slot_name", "invalid_option", "unknown_plugin", "unknown_database"
)
@pytest.mark.follows_hint("unknown_source", "unknown_slot", "duplicate_name", "not_found")
def test_names(service: Service, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(refused: dict[str, Any], code: str, begin: str, key: str) -> list[str]:
        """Run the command that the hint names, and return the names that it lists."""
        assert main([*command(remedy(refused, code), begin), "--json"]) == 0
        return [one[key] for one in json.loads(capsys.readouterr().out)]

    def create(**changed: Any) -> None:
        service.call("POST", "/slots", json=slot_body(database, **changed))
        service.drop_slot(changed.get("slot_name", "made"))

    def refused(**changed: Any) -> dict[str, Any]:
        return service.problem("POST", "/slots", json=slot_body(database, **changed))

    hint = remedy(refused(slot_name="Not Legal-1"), "invalid_slot_name")
    assert "lower case letters, numbers, and the underscore" in hint
    create(slot_name=re.sub(r"[^a-z0-9_]", "_", "Not Legal-1".lower()))

    hint = remedy(refused(options={"bogus": "1"}), "invalid_option")
    for option in names_in(hint, "test_decoding knows"):
        if option not in ("stream-changes", "include-rewrites"):
            create(options={option: "1"})

    for plugin in names_in(remedy(refused(plugin="nope"), "unknown_plugin"), "Known plugins:"):
        options = {"publication_names": "p", "proto_version": "1"} if plugin == "pgoutput" else {}
        create(plugin=plugin, options=options)

    hint = remedy(refused(database="nope"), "unknown_database")
    assert "psql -l" in hint
    assert database.name in [n for (n,) in database.query("SELECT datname::text FROM pg_database")]
    create()

    (source,) = listed(refused(source="nope"), "unknown_source", "source list", "name")
    create(source=source)

    unknown = service.problem("GET", "/slots/nope")
    (slot,) = listed(unknown, "unknown_slot", "slot list", "slot_name")
    assert service.slot(slot)["slot_name"] == slot

    hint = remedy(refused(slot_name="s"), "duplicate_name")
    assert "Choose another name, or drop that slot first" in hint
    create(slot_name="another")
    service.call("POST", "/slots", json=slot_body(database, slot_name="another"))
    assert refused(slot_name="another")["code"] == "duplicate_name"
    service.drop_slot("another")
    create(slot_name="another")

    nowhere = service.problem("GET", "/slot/s")
    assert "/docs lists what there is" in remedy(nowhere, "not_found")
    listed_there = service.http.get("/openapi.json").json()["paths"]
    assert "openapi.json" in service.http.get("/docs").text
    assert "/v1/slots/{slot_name}" in listed_there
    service.call("GET", "/slots/s")


@pytest.mark.follows_hint("slot_active", "session_ended", "no_consumer")
def test_consumers(
    service: Service, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_stream(service.grpc_address, "s") as stream:
        next(stream)
        hint = remedy(service.problem("POST", "/slots/s/get", json={}), "slot_active")
        # To look beside it.
        with open_stream(service.grpc_address, "s", peek=True) as beside:
            assert next(batch for batch in beside if batch.count).count
        # As somebody at a terminal reads it.
        assert main(["slot", "get", "s"]) == 1
        assert command(remedy(capsys.readouterr().err, "slot_active"), "slot end-session")
        assert main(command(hint, "slot end-session")) == 0
        with pytest.raises(SessionEnded) as ended:
            list(stream)
    # It comes again to who takes the slot next.
    assert "comes again" in remedy(ended.value, "session_ended")
    hint = remedy(service.problem("POST", "/slots/s/end-session"), "no_consumer")
    assert "A new consumer may take it" in hint
    with open_stream(service.grpc_address, "s") as stream:
        assert next(batch for batch in stream if batch.count).count


@pytest.mark.follows_hint("result_too_large")
def test_an_answer_that_is_too_large(
    service: Service, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service.create_slot("large", database.name)
    for number, length in ((10, 1), (11, 50_000), (12, 1)):
        database.execute(f"INSERT INTO t VALUES ({number}, repeat('x', {length}))")
    end = service.wait_decoded("large", database)
    whole = service.peek("large")
    monkeypatch.setattr(engine, "_STEP_BYTES", 1)
    monkeypatch.setattr(engine, "RESULT_BYTES_MAX", 10_000)
    hint = remedy(service.problem("GET", "/slots/large/peek"), "result_too_large")
    assert re.findall(r"upto_\w+", hint) == ["upto_nchanges", "upto_lsn"]
    first = service.peek("large", upto_nchanges=1)
    assert service.peek("large", upto_lsn=first[-1][0]) == first == whole[:3]
    words = [
        *command(hint, "recv"),
        "-S",
        "large",
        "-E",
        end,
        "-f",
        str(tmp_path / "all"),
    ]
    assert main(words) == 0
    assert (tmp_path / "all").read_text().splitlines() == [data for _, _, data in whole]


@pytest.mark.follows_hint("unsupported_feature", "unknown_table", "unknown_publication", "conflict")
@pytest.mark.follows_hint("unknown_subscription")
def test_subscriptions(
    service: Service, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE PUBLICATION remedies FOR TABLE t")
    service.wait_decoded("s", database)
    body = {
        "name": "lake",
        "source": "main",
        "database": database.name,
        "target": {"kind": "lake", "path": str(tmp_path / "lake")},
        "enabled": False,
    }

    def create(**changed: Any) -> None:
        service.call("POST", "/subscriptions", json={**body, **changed})
        service.call("DELETE", "/subscriptions/lake")

    def refused(**changed: Any) -> dict[str, Any]:
        return service.problem("POST", "/subscriptions", json={**body, **changed})

    def asked(hint: str, begin: str) -> Any:
        assert main([*command(hint, begin), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    hint = remedy(refused(streaming="on"), "unsupported_feature")
    given = re.fullmatch(r'Leave streaming out, or give "(\w+)".', hint)
    assert given is not None
    create(streaming=given[1])
    create()
    tables = asked(remedy(refused(tables=["public.nope"]), "unknown_table"), "source tables")
    create(tables=[f"{one['schema']}.{one['name']}" for one in tables])
    hint = remedy(refused(publications=["nope"]), "unknown_publication")
    create(publications=[one["name"] for one in asked(hint, "source publications")])
    # A slot that is there has another plugin.
    hint = remedy(refused(slot="s"), "conflict")
    assert "one that does not exist is made" in hint
    create(slot="one_that_does_not_exist")

    service.call("POST", "/subscriptions", json=body)
    unknown = service.problem("GET", "/subscriptions/nope")
    (found,) = asked(remedy(unknown, "unknown_subscription"), "subscription list")
    service.call("DELETE", f"/subscriptions/{found['name']}")


@pytest.mark.follows_hint("invalid_capture", "invalid_dsn", "not_captured", "conflict")
@pytest.mark.follows_hint("unknown_publication")
def test_a_source(service: Service, pg15: Database, tmp_path: Path) -> None:
    for name in ("a", "b"):
        pg15.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    pg15.execute("CREATE PUBLICATION one FOR TABLE a")
    pg15.execute("CREATE PUBLICATION two FOR TABLE b")

    def add(**changed: Any) -> dict[str, Any]:
        request = {"name": "other", "dsn": pg15.dsn, **changed}
        return service.problem("POST", "/sources", json=request)

    hint = remedy(add(dsn="no such thing"), "invalid_dsn")
    form = re.search(r"postgresql://\S+", hint)
    assert form is not None
    dsn = form[0].replace("user:password@host", "postgres:x@127.0.0.1")
    dsn = dsn.replace("port/database", f"{pg15.cluster.port}/{pg15.name}")
    hint = remedy(add(capture={"tables": ["a"]}), "invalid_capture")
    assert "schema.table" in hint
    service.create_source(dsn, "other", capture={"publications": ["one"]})

    # What is not captured, asked for by a subscription and by a slot.
    body = {
        "name": "lake", "source": "other", "database": pg15.name, "tables": ["public.b"],
        "target": {"kind": "lake", "path": str(tmp_path / "lake")}, "enabled": False,
    }  # fmt: skip
    reads = slot_body(
        pg15, source="other", plugin="pgoutput",
        options={"publication_names": "two", "proto_version": "1"},
    )  # fmt: skip
    service.call("POST", "/slots", json=slot_body(pg15, source="other", slot_name="kept"))
    pg15.execute("INSERT INTO b VALUES (1)")
    service.wait_decoded("kept", pg15)
    hint = remedy(service.problem("POST", "/slots", json=reads), "not_captured")
    assert "drop the source, with its slots, and add it again" in hint
    drop = command(
        remedy(service.problem("POST", "/subscriptions", json=body), "not_captured"), "source drop"
    )
    # It has a slot: that comes first, as is said.
    assert main(drop) == 1
    kept = service.problem("DELETE", "/sources/other")
    assert "Drop them first" in remedy(kept, "conflict")
    for slot in kept["details"]["slots"]:
        service.drop_slot(slot)
    assert main(drop) == 0
    service.create_source(dsn, "other", capture={"publications": ["one", "two"]})
    service.call("POST", "/slots", json=reads)
    service.call("POST", "/subscriptions", json=body)
    pg15.execute("INSERT INTO b VALUES (2)")
    service.wait_decoded("made", pg15)
    assert len(service.peek("made")) == 4
    service.call("DELETE", "/subscriptions/lake")

    # A publication that is not there at this point of WAL: that it is there now does not help.
    published = {"publication_names": "late", "proto_version": "1"}
    service.drop_slot("made")
    service.call("DELETE", "/sources/other")
    service.create_source(dsn, "other")
    service.call("POST", "/slots", json={**reads, "options": published})
    pg15.execute("INSERT INTO b VALUES (3)")
    service.wait_decoded("made", pg15)
    hint = remedy(service.problem("GET", "/slots/made/peek"), "unknown_publication")
    pg15.execute("CREATE PUBLICATION late FOR TABLE b")
    service.wait_decoded("made", pg15)
    assert service.problem("GET", "/slots/made/peek")["code"] == "unknown_publication"
    asks = re.search(r"advance the slot to (\w+\(\))", hint)
    assert asks is not None
    assert main(["slot", "advance", "made", str(pg15.value(f"SELECT {asks[1]}::text"))]) == 0
    pg15.execute("INSERT INTO b VALUES (4)")
    service.wait_decoded("made", pg15)
    assert len(service.peek("made")) == 4
    service.drop_slot("made")
    service.call("DELETE", "/sources/other")


@pytest.mark.follows_hint("storage_error", "conflict")
def test_a_data_directory(tmp_path: Path) -> None:
    def refused(kind: type[SpillwayError], directory: Path) -> str:
        with pytest.raises(kind) as caught, service_in_process(directory):
            pass
        option = re.search(r"--data-dir", remedy(caught.value, kind.code))
        assert option is not None
        given = parse_command(["serve", option[0], str(tmp_path / "own")])
        return str(given["data_dir"])

    (tmp_path / "file").write_text("this is no directory")
    with service_in_process(tmp_path / "taken"):
        own = refused(Conflict, tmp_path / "taken")
    assert own == refused(StorageError, tmp_path / "file")
    with service_in_process(Path(own)) as service:
        assert service.http.get("/readyz").status_code == 200
