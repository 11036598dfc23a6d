"""Events of DDL: what a transaction has done to tables, in pgoutput and arrow, exactly where it
happened; nothing for who does not ask.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.decoding_session import DecodingSession
from harness.tiers import deep, majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Cluster, Database

_OPTIONS = {"proto_version": "1", "spillway.all_tables": "on", "spillway.ddl": "on"}
_REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "ddl-events.md"


@pytest.fixture(params=majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}")
def database(request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]) -> Any:
    cluster = session_cluster(request.param)
    name = f"ddl_{request.node.name[5:25].replace('[', '_')}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


class _Decoded:
    """What of a database's transactions pgoutput has, a list of messages each: letters, and events
    as they are.
    """

    def __init__(self, database: Database, directory: Path, **more: Any) -> None:
        self._session = DecodingSession(
            database, directory, plugin="pgoutput", options=_OPTIONS, **more
        )
        self._taken = 0

    def transactions(self) -> list[list[Any]]:
        lines = self._session.decode()
        found: list[list[Any]] = []
        for line in lines[self._taken :]:
            data = bytes.fromhex(line.data[2:])
            letter = data[:1].decode()
            if letter == "B":
                found.append([])
            elif letter == "M":
                assert data[1] == 1
                prefix, _, rest = data[10:].partition(b"\0")
                assert prefix == b"spillway.ddl"
                found[-1].append(json.loads(rest[4:]))
            elif letter in "IUDT":
                found[-1].append(letter)
        self._taken = len(lines)
        return found

    def events(self) -> list[dict[str, Any]]:
        return [one for found in self.transactions() for one in found if isinstance(one, dict)]

    def close(self) -> None:
        self._session.close()


def _changes(event: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Kinds of changes, with the column or names they are about."""
    return [
        (one["change"], *(one[of] for of in ("column", "from", "to") if of in one))
        for one in event["changes"]
    ]


def test_every_kind_of_change_is_told(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE before (id int PRIMARY KEY)")
    decoded = _Decoded(database, tmp_path)

    def after(statement: str) -> dict[str, Any]:
        database.execute(statement)
        (event,) = decoded.events()
        assert event["version"] == 1
        assert event["commit_lsn"]
        assert event["commit_time"]
        assert event["xid"]
        return event

    try:
        event = after('CREATE TABLE t (id int PRIMARY KEY, v varchar(10) COLLATE "C" NOT NULL)')
        assert (event["kind"], event["schema"], event["table"]) == ("create_table", "public", "t")
        assert event["before"] is None
        assert [column["name"] for column in event["after"]["columns"]] == ["id", "v"]
        assert event["after"]["primary_key"] == ["id"]
        assert event["after"]["columns"][1] == {
            "attnum": 2, "name": "v", "type": "character varying(10)", "type_oid": 1043,
            "typmod": 14, "not_null": True, "has_default": False, "missing": None,
            "generated": None, "identity": None,
            "collation": {"schema": "pg_catalog", "name": "C"},
        }  # fmt: skip
        oid = event["oid"]

        for statement, expected in (
            ("ALTER TABLE t ADD COLUMN a int NOT NULL DEFAULT 7", [("add_column", "a")]),
            ("ALTER TABLE t ALTER a SET DEFAULT 8", [("set_default", "a")]),
            ("ALTER TABLE t ALTER a DROP DEFAULT", [("drop_default", "a")]),
            ("ALTER TABLE t ALTER a DROP NOT NULL", [("drop_not_null", "a")]),
            ("ALTER TABLE t ALTER a SET NOT NULL", [("set_not_null", "a")]),
            ("ALTER TABLE t ALTER a TYPE bigint", [("alter_type", "a", "integer", "bigint")]),
            ("ALTER TABLE t RENAME a TO b", [("rename_column", "a", "b")]),
            ("ALTER TABLE t RENAME id TO ident", [("rename_column", "id", "ident")]),
            (
                "ALTER TABLE t ALTER b ADD GENERATED ALWAYS AS IDENTITY",
                [("identity", "b", None, "always")],
            ),
            ("ALTER TABLE t DROP COLUMN b", [("drop_column", "b")]),
            ("ALTER TABLE t REPLICA IDENTITY FULL", [("replica_identity", "default", "full")]),
            ("ALTER TABLE t DROP CONSTRAINT t_pkey", None),
            ("ALTER TABLE t RENAME TO u", [("rename_table", "t", "u")]),
            ("CREATE SCHEMA r; ALTER TABLE u SET SCHEMA r", [("set_schema", "public", "r")]),
            ("ALTER SCHEMA r RENAME TO s", [("set_schema", "r", "s")]),
        ):
            event = after(statement)
            assert event["kind"] == "alter_table"
            assert event["oid"] == oid
            if expected is not None:
                assert _changes(event) == expected, statement
            if "ADD COLUMN a" in statement:
                definition = event["changes"][0]["definition"]
                assert definition["missing"] == "7"
                assert definition["has_default"] is True
                assert event["rewritten"] is False
        event = after("DROP TABLE s.u")
        assert (event["kind"], event["schema"], event["table"]) == ("drop_table", "s", "u")
        assert event["after"] is None
        # One that was there before the mirror was, and a column whose rows differ.
        event = after("ALTER TABLE before ADD COLUMN r float8 DEFAULT random()")
        assert event["rewritten"] is True
        assert event["changes"][0]["definition"]["missing"] is None

        event = after("CREATE TABLE p (id int, v text) PARTITION BY RANGE (id)")
        assert event["after"]["partitioned"] is True
        event = after("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
        assert event["after"]["parent"]["table"] == "p"
        p = {name: event["after"]["parent"][name] for name in ("oid", "schema", "table")}
        assert event["after"]["ancestors"] == [p]
        (event,) = [after("ALTER TABLE p DETACH PARTITION p1")]
        assert [kind for kind, *_ in _changes(event)] == ["detach_partition"]
        assert (event["before"]["ancestors"], event["after"]["ancestors"]) == ([p], [])
        event = after("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)")
        assert [kind for kind, *_ in _changes(event)] == ["attach_partition"]
        assert (event["before"]["ancestors"], event["after"]["ancestors"]) == ([], [p])
        # The root is last, also where nothing has come or gone.
        event = after(
            "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)"
        )
        p2 = {"oid": event["oid"], "schema": "public", "table": "p2"}
        after("CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (20)")
        event = after("ALTER TABLE p21 ALTER v SET DEFAULT 'x'")
        assert event["before"]["ancestors"] == event["after"]["ancestors"] == [p2, p]
        event = after("DROP TABLE p21")
        assert event["before"]["ancestors"] == [p2, p]
        after("DROP TABLE p2")
        event = after("CREATE TABLE p2 PARTITION OF p DEFAULT PARTITION BY LIST (v)")
        event = after("CREATE TABLE p3 PARTITION OF p2 DEFAULT")
        # What older rows have is known of the partitions alone.
        database.execute(
            "ALTER TABLE p ADD COLUMN w int DEFAULT 3; ALTER TABLE p ALTER w SET DEFAULT 4"
        )
        events = {event["table"]: event["changes"][0]["definition"] for event in decoded.events()}
        assert events.keys() == {"p", "p1", "p2", "p3"}
        assert {column["missing"] for column in events.values()} == {"3"}
    finally:
        decoded.close()


def test_events_stand_where_the_tables_changed(pg18: Database, tmp_path: Path) -> None:
    database = pg18
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)")
    decoded = _Decoded(database, tmp_path)

    def told(*statements: str) -> list[Any]:
        with database.connect() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement)
        (found,) = decoded.transactions()
        return [one if isinstance(one, str) else _changes(one) or one["kind"] for one in found]

    try:
        add_a, add_b = [("add_column", "a")], [("add_column", "b")]
        assert told(
            "INSERT INTO t VALUES (1)", "ALTER TABLE t ADD a int", "INSERT INTO t VALUES (2, 2)",
            "UPDATE t SET a = 3", "ALTER TABLE t ADD b int, ALTER a TYPE bigint",
            "INSERT INTO other VALUES (1)", "DELETE FROM t WHERE id = 1",
            "ALTER TABLE t RENAME b TO c",
        ) == [
            "I", add_a, "I", "U", "U", [("alter_type", "a", "integer", "bigint"), *add_b], "I", "D",
            [("rename_column", "b", "c")],
        ]  # fmt: skip
        assert told("CREATE TABLE made AS SELECT generate_series(1, 2) AS id") == [
            "create_table", "I", "I",
        ]  # fmt: skip
        # What comes to nothing: made and dropped, temporary, rolled back, unlogged.
        assert told(
            "CREATE TABLE gone (id int)", "DROP TABLE gone", "CREATE TEMP TABLE mine (id int)",
            "INSERT INTO mine VALUES (1)", "CREATE UNLOGGED TABLE quick (id int)",
            "SAVEPOINT s", "ALTER TABLE t ADD d int", "INSERT INTO t (id, d) VALUES (3, 3)",
            "ROLLBACK TO s", "INSERT INTO t VALUES (4)", "CREATE INDEX ON t (a)",
            "COMMENT ON TABLE t IS 'same'", "ALTER TABLE t ALTER a SET STATISTICS 10",
        ) == ["I"]  # fmt: skip
        # The event went with the row of a subtransaction that is rolled back: it comes again.
        assert told(
            "ALTER TABLE t ADD e int", "SAVEPOINT s", "INSERT INTO t (id, e) VALUES (5, 5)",
            "ALTER TABLE t ADD f int", "INSERT INTO t (id, f) VALUES (6, 5)", "ROLLBACK TO s",
            "INSERT INTO t (id, e) VALUES (7, 5)", "SAVEPOINT s", "ALTER TABLE t ADD g int",
            "INSERT INTO t (id, g) VALUES (8, 5)", "RELEASE s", "ALTER TABLE t DROP e",
        ) == [
            [("add_column", "e")], "I", [("add_column", "g")], "I", [("drop_column", "e")],
        ]  # fmt: skip
        assert told("TRUNCATE t", "ALTER TABLE t ADD h int", "TRUNCATE t") == [
            "T", [("add_column", "h")], "T",
        ]  # fmt: skip
    finally:
        decoded.close()


def test_a_schema_that_is_renamed_takes_its_tables_along(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE SCHEMA one; CREATE TABLE one.a (id int); CREATE TABLE one.b (id int)")
    database.execute("CREATE TABLE elsewhere (id int); CREATE UNLOGGED TABLE one.c (id int)")
    decoded = _Decoded(database, tmp_path)

    def told() -> list[Any]:
        return [
            (one["table"], _changes(one)) if isinstance(one, dict) else one
            for found in decoded.transactions()
            for one in found
        ]

    try:
        with database.connect() as connection, connection.transaction():
            for statement in (
                "INSERT INTO one.a VALUES (1)",
                "ALTER SCHEMA one RENAME TO two",
                "INSERT INTO elsewhere VALUES (2)",
                "SAVEPOINT s",
                "ALTER SCHEMA two RENAME TO three",
                "INSERT INTO three.a VALUES (3)",
                "ROLLBACK TO s",
                "INSERT INTO two.a VALUES (4)",
            ):
                connection.execute(statement)
        moved = [("a", [("set_schema", "one", "two")]), ("b", [("set_schema", "one", "two")])]
        found = told()
        at = [found.index(one) for one in moved]
        assert sorted(at) == at or sorted(at) == at[::-1]
        rows = [n for n, one in enumerate(found) if isinstance(one, str)]
        assert len(rows) == 3, found
        assert rows[0] < min(at) <= max(at) < rows[1]
        assert len(found) == 5
        # There and back again is nothing.
        with database.connect() as connection, connection.transaction():
            connection.execute("ALTER SCHEMA two RENAME TO one")
            connection.execute("ALTER SCHEMA one RENAME TO two")
        database.execute("CREATE SCHEMA empty; ALTER SCHEMA empty RENAME TO other")
        assert told() == []
    finally:
        decoded.close()


def test_only_who_asks_is_told_and_arrow_cuts_its_batches(pg18: Database, tmp_path: Path) -> None:
    database = pg18
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    silent = DecodingSession(database, tmp_path / "silent", options={"include-xids": "0"})
    arrow = DecodingSession(
        database, tmp_path / "arrow", plugin="arrow", options={"ddl": "on"}, slot=silent.slot
    )
    try:
        with database.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute("ALTER TABLE t ADD v text DEFAULT 'x'")
            connection.execute("INSERT INTO t VALUES (2)")
        silent.assert_equal_to_server()
        tables = [
            pa.ipc.open_stream(bytes.fromhex(line.data[2:])).read_all() for line in arrow.decode()
        ]
        tables = [table for table in tables if table.num_rows]
        kinds = [(table.schema.metadata or {}).get(b"spillway.message") for table in tables]
        assert kinds == [None, b"ddl", None]
        (event,) = tables[1].to_pylist()
        said = json.loads(event["event"])
        assert _changes(said) == [("add_column", "v")]
        assert said["changes"][0]["definition"]["missing"] == "x"
        assert event["_xid"] == said["xid"] == tables[0].to_pylist()[0]["_xid"]
        assert event["_commit_lsn"] == tables[2].to_pylist()[0]["_commit_lsn"]
        assert tables[2].to_pylist()[0]["v"] == "x"
    finally:
        arrow.close()
        silent.close()


def test_the_sample_of_the_reference_is_what_comes(pg18: Database, tmp_path: Path) -> None:
    page = _REFERENCE.read_text()
    sample = json.loads(page.partition("```json\n")[2].partition("```")[0])
    pg18.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    decoded = _Decoded(pg18, tmp_path)
    try:
        pg18.execute("ALTER TABLE orders ADD COLUMN paid boolean NOT NULL DEFAULT false")
        (event,) = decoded.events()
        assert list(event) == list(sample)
        told = ("oid", "xid", "commit_lsn", "commit_time")
        assert event | {name: sample[name] for name in told} == sample
    finally:
        decoded.close()


def _names_and_letters(session: DecodingSession) -> list[str]:
    """What the transaction with rows has: of RELATION the schema, of other messages the letter."""
    found: list[list[str]] = []
    for line in session.decode():
        data = bytes.fromhex(line.data[2:])
        if data[:1] == b"B":
            found.append([])
        found[-1].append(data[5:].split(b"\0")[0].decode() if data[:1] == b"R" else chr(data[0]))
    # 14 sends empty ones, too.
    (with_rows,) = (one for one in found if "I" in one)
    return with_rows


@pytest.mark.parametrize("major", [15, *map(deep, (14, 16, 17, 18))])
def test_a_table_is_announced_by_its_new_schema(
    major: int, session_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """Without events a schema's new name is not announced up to 15, as PostgreSQL does. With them
    it is; and an event of another table announces nothing.
    """
    cluster = session_cluster(major)
    database = cluster.create_database(f"ddl_anew_{major}")
    without = {"proto_version": "1", "publication_names": "p"}
    options = {"without": without, "with": without | {"spillway.ddl": "on"}}
    sessions = []
    try:
        database.execute(
            "CREATE SCHEMA one; CREATE TABLE one.t (id int PRIMARY KEY);"
            "CREATE TABLE one.parted (id int PRIMARY KEY) PARTITION BY LIST (id);"
            "CREATE TABLE part PARTITION OF one.parted DEFAULT; CREATE TABLE other (id int);"
            "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)"
        )
        for name, asked in options.items():
            (tmp_path / name).mkdir()
            sessions.append(
                DecodingSession(database, tmp_path / name, plugin="pgoutput", options=asked)
            )
        with database.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO one.t VALUES (1); INSERT INTO one.parted VALUES (1)")
            connection.execute("ALTER TABLE other ADD v int; INSERT INTO one.t VALUES (2)")
            connection.execute("ALTER SCHEMA one RENAME TO two")
            connection.execute("INSERT INTO two.t VALUES (3); INSERT INTO two.parted VALUES (3)")
        not_told, told = map(_names_and_letters, sessions)
    finally:
        for session in sessions:
            session.close()
        cluster.drop_database(database.name)
    # With the partitioned table, as which it is published, the partition is announced.
    before = ["B", "one", "I", "one", "public", "I"]
    assert told == [*before, "M", "I", "M", "M", "two", "I", "two", "public", "I", "C"]
    named = [["two"], ["two", "public"]] if major >= 16 else [[], []]
    assert not_told == [*before, "I", *named[0], "I", *named[1], "I", "C"]
