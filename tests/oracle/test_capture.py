"""A source's capture filter: what is left of PostgreSQL's output, and that the rest never costs
anything.
"""

from __future__ import annotations

import secrets

import pytest

from harness.decoding_session import DecodingSession
from harness.oracle import create_slot
from harness.service import service_in_process
from harness.tiers import majors_by_tier
from oracle.test_origins import SCRIPT as ORIGINS
from spillway.decoding.capture import CaptureFilter

TABLES = """
CREATE TABLE kept (id int PRIMARY KEY, v text);
CREATE TABLE other (id int PRIMARY KEY, v text);
CREATE SCHEMA s;
CREATE TABLE s.kept (id int PRIMARY KEY, v text);
CREATE TABLE s.root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE root_1 PARTITION OF s.root FOR VALUES FROM (0) TO (100);
CREATE TABLE lone (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE lone_1 PARTITION OF lone FOR VALUES FROM (0) TO (100);
"""
#: One command a line.
WORKLOAD = """
BEGIN
INSERT INTO kept SELECT g, repeat(md5(g::text), 300) FROM generate_series(1, 3) g
INSERT INTO other SELECT g, string_agg(md5((g * i)::text), '') \
FROM generate_series(1, 3) g, generate_series(1, 300) i GROUP BY g
INSERT INTO kept SELECT g, string_agg(md5((g * i)::text), '') \
FROM generate_series(4, 6) g, generate_series(1, 300) i GROUP BY g
SAVEPOINT a
UPDATE other SET v = v || 'x'
INSERT INTO s.kept VALUES (1, 'by its schema'), (2, 'by its schema')
INSERT INTO s.root VALUES (1, 'by its ancestor')
INSERT INTO lone VALUES (1, 'not at all')
ROLLBACK TO a
DELETE FROM other WHERE id = 1
DELETE FROM kept WHERE id = 1
COMMIT
INSERT INTO other VALUES (10, 'alone')
INSERT INTO other VALUES (10, 'speculative') ON CONFLICT DO NOTHING
INSERT INTO kept VALUES (10, 'speculative') ON CONFLICT (id) DO UPDATE SET v = 'again'
INSERT INTO other VALUES (11, 'speculative') ON CONFLICT (id) DO NOTHING
INSERT INTO s.root VALUES (1, 'by its ancestor'), (2, 'by its ancestor')
INSERT INTO lone VALUES (1, 'not at all')
BEGIN
ALTER TABLE other ADD COLUMN w int DEFAULT 7
INSERT INTO other VALUES (20, 'changed', 1)
ALTER TABLE kept ADD COLUMN w int DEFAULT 7
INSERT INTO kept VALUES (20, 'changed', 1)
COMMIT
TRUNCATE other
TRUNCATE kept
ALTER TABLE other RENAME TO later
INSERT INTO later VALUES (30, 'under another name')
ALTER TABLE kept RENAME TO former
INSERT INTO former VALUES (31, 'under another name')
ALTER TABLE later RENAME TO kept
UPDATE kept SET v = string_agg \
FROM (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i) x
"""


def _execute(database, script):
    with database.connect() as connection:
        for line in script.strip().splitlines():
            connection.execute(line.replace("{0}", database.name))


def _is_captured(line):
    return not line.data.startswith(
        ("table public.other", "table public.lone", "table public.later", "table public.former")
    )


@pytest.fixture(params=majors_by_tier([15, 18]), ids=lambda major: f"pg{major}")
def database(request, session_cluster):
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"capture_{secrets.token_hex(4)}")
    yield database
    cluster.drop_database(database.name)


def test_tables_equal_the_server_without_the_others(database, tmp_path, monkeypatch):
    database.execute(TABLES)
    capture = CaptureFilter.parse({"tables": ["public.kept", "s.*"]})
    session = DecodingSession(database, tmp_path, capture=capture)
    peek = type(session.slot).peek
    monkeypatch.setattr(
        type(session.slot), "peek", lambda *args: [*filter(_is_captured, peek(*args))]
    )
    _execute(database, WORKLOAD)
    lines = session.assert_equal_to_server()
    tables = {line.data.split(":")[0] for line in lines if line.data.startswith("table")}
    assert tables == {"table public.kept", "table public.root_1"}
    session.close()


def test_a_filtered_copy_is_never_buffered(database, tmp_path):
    database.execute(TABLES)
    capture = CaptureFilter.parse({"tables": ["public.kept"]})
    session = DecodingSession(database, tmp_path, capture=capture, work_mem_bytes=64 << 10)
    session.decode()
    before = session.decoder.stats
    held = []
    with database.connect() as connection:
        connection.execute("BEGIN")
        with connection.cursor().copy("COPY other FROM STDIN") as copy:
            for number in range(20_000):
                copy.write_row((number, f"{number} " * 40))
        connection.execute(
            "UPDATE other SET v = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, "
            "300) i) WHERE id < 200"
        )
        session.decode(batch_hook=lambda s: held.append(s.decoder.memory_bytes))
        connection.execute("COMMIT")
    session.decode()
    after = session.decoder.stats
    assert max(held) < 16 << 10
    # What decode() makes and drops to flush WAL tells of its tables, nothing else does.
    assert after.total_bytes - before.total_bytes < 1000
    assert after.spill_bytes == 0
    session.close()


def test_a_restart_from_a_serialised_state_keeps_the_filter(database, tmp_path):
    database.execute(TABLES)
    session = DecodingSession(
        database, tmp_path, capture=CaptureFilter.parse({"tables": ["public.kept"]})
    )
    database.execute(
        "INSERT INTO other VALUES (1, 'before'); INSERT INTO kept VALUES (1, 'before')"
    )
    session.decode()
    session.restart(session.decoder.serialize(), session.decoder.position)
    database.execute("INSERT INTO other VALUES (2, 'after'); INSERT INTO kept VALUES (2, 'after')")
    rows = [line.data for line in session.decode() if line.data.startswith("table")]
    assert [row.split("text]:")[1] for row in rows] == ["'before'", "'after'"]
    session.close()


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
def test_origin_none_equals_only_local(database, tmp_path, monkeypatch, two_phase):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (i int)")
    database.query("SELECT pg_replication_origin_create(%s)", [database.name])
    session = DecodingSession(
        database, tmp_path, two_phase=two_phase, capture=CaptureFilter(only_local=True)
    )
    peek = type(session.slot).peek
    monkeypatch.setattr(
        type(session.slot), "peek", lambda self, _: peek(self, {"only-local": "on"})
    )
    _execute(database, ORIGINS)
    lines = [line.data for line in session.assert_equal_to_server()]
    assert any("local" in line for line in lines)
    assert not any("'remote'" in line or "at once" in line for line in lines)
    session.close()
    database.query("SELECT pg_replication_origin_drop(%s)", [database.name])


PUBLICATIONS = """
CREATE PUBLICATION p FOR TABLE kept
CREATE PUBLICATION q FOR TABLE other
INSERT INTO kept VALUES (1, 'published')
INSERT INTO other VALUES (1, 'not yet')
BEGIN
INSERT INTO other SELECT g, string_agg(md5((g * i)::text), '') \
FROM generate_series(2, 4) g, generate_series(1, 300) i GROUP BY g
INSERT INTO kept SELECT g, string_agg(md5((g * i)::text), '') \
FROM generate_series(2, 4) g, generate_series(1, 300) i GROUP BY g
COMMIT
ALTER PUBLICATION p ADD TABLE other, s.root
INSERT INTO other SELECT g, string_agg(md5((g * i)::text), '') \
FROM generate_series(5, 8) g, generate_series(1, 300) i GROUP BY g
INSERT INTO s.root VALUES (1, 'by its ancestor')
INSERT INTO lone VALUES (1, 'not at all')
BEGIN
CREATE TEMP TABLE mine (i int)
INSERT INTO kept VALUES (20, 'with a catalog of its own')
2> ALTER PUBLICATION p DROP TABLE kept
INSERT INTO kept VALUES (21, 'with a catalog of its own')
2> ALTER PUBLICATION p ADD TABLE kept
INSERT INTO kept VALUES (22, 'with a catalog of its own')
COMMIT
ALTER PUBLICATION p SET (publish_via_partition_root = true)
INSERT INTO s.root VALUES (2, 'as its ancestor')
ALTER PUBLICATION p DROP TABLE other
INSERT INTO other VALUES (30, 'not any more')
TRUNCATE kept, other, s.root
"""


def test_publications_equal_pgoutput_and_others_are_refused(database, tmp_path):
    database.execute(TABLES)
    capture = {"origin": "any", "tables": [], "publications": ["p", "r"]}
    options = {"proto_version": "1", "publication_names": "p", "messages": "on"}
    with service_in_process(tmp_path / "data") as service:
        problem = service.problem(
            "POST",
            "/sources",
            json={"name": "x", "dsn": database.dsn, "capture": {**capture, "tables": ["a.b"]}},
        )
        assert problem["code"] == "invalid_capture"
        assert service.create_source(database.dsn, capture=capture)["capture"] == capture
        oracle = create_slot(database, f"o_{secrets.token_hex(4)}", "pgoutput")
        service.create_slot("ours", database.name, "pgoutput", options=options)
        refused = {**options, "publication_names": "p, q"}
        body = {"slot_name": "b", "source": "main", "database": database.name, "plugin": "pgoutput"}
        problem = service.problem("POST", "/slots", json={**body, "options": refused})
        assert (problem["code"], problem["details"]["publications"]) == ("not_captured", ["q"])
        problem = service.problem(
            "POST", "/slots/ours/get", json={"options": {"publication_names": "q"}}
        )
        assert problem["code"] == "not_captured"
        with database.connect() as first, database.connect() as second:
            for line in PUBLICATIONS.strip().splitlines():
                connection = second if line.startswith("2> ") else first
                connection.execute(line.removeprefix("2> "))
        end = service.wait_decoded("ours", database)
        ours = service.peek("ours", upto_lsn=end)
        theirs = oracle.peek_binary(options, upto_lsn=end)
        assert len(ours) > 20
        assert ours == [tuple(line) for line in theirs]
        oracle.drop()
    # A process that starts again has the filter from its metadata.
    with service_in_process(tmp_path / "data") as service:
        assert service.call("GET", "/sources/main")["capture"] == capture
        service.create_slot("text", database.name)
        database.execute("INSERT INTO other VALUES (40, 'x'); INSERT INTO kept VALUES (40, 'x')")
        end = service.wait_decoded("text", database)
        rows = [data for _, _, data in service.peek("text", upto_lsn=end) if "table" in data]
        assert rows == ["table public.kept: INSERT: id[integer]:40 v[text]:'x'"]
        for slot in ("ours", "text"):
            service.drop_slot(slot)
        service.call("DELETE", "/sources/main")
