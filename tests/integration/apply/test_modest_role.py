"""A target on which the role may do nothing but write its tables: no superuser, no right to let
triggers and foreign keys rest, none on origins. So they take effect, and rows arrive all the same.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.side_by_side import SideBySide

_TABLES = """
CREATE TABLE z_parent (id int PRIMARY KEY, v text);
CREATE TABLE a_child (id int PRIMARY KEY,
    parent int NOT NULL REFERENCES z_parent ON DELETE CASCADE);
CREATE TABLE grandchild (id int PRIMARY KEY, child int REFERENCES a_child DEFERRABLE);
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree);
CREATE TABLE ring_a (id int PRIMARY KEY, b int);
CREATE TABLE ring_b (id int PRIMARY KEY, a int REFERENCES ring_a DEFERRABLE INITIALLY DEFERRED);
ALTER TABLE ring_a ADD FOREIGN KEY (b) REFERENCES ring_b DEFERRABLE INITIALLY DEFERRED;
CREATE TABLE identified (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
CREATE TABLE heard (id int PRIMARY KEY, v text);
CREATE TABLE many (id int PRIMARY KEY, v text);
"""
_ROWS = """
INSERT INTO z_parent SELECT n, 'p' FROM generate_series(1, 50) n;
INSERT INTO a_child SELECT n, n % 50 + 1 FROM generate_series(1, 100) n;
INSERT INTO grandchild SELECT n, n FROM generate_series(1, 100) n;
INSERT INTO tree SELECT n, nullif(n / 2, 0) FROM generate_series(1, 100) n;
INSERT INTO identified (v) VALUES ('x'), ('y');
INSERT INTO heard VALUES (1, 'x');
INSERT INTO many SELECT n, 'x' FROM generate_series(1, 1000) n
"""
_CHANGES = """
BEGIN; INSERT INTO z_parent VALUES (100, 'new'); INSERT INTO a_child VALUES (200, 100);
INSERT INTO grandchild VALUES (200, 200); COMMIT;
INSERT INTO tree VALUES (101, 100), (102, 101);
DELETE FROM tree WHERE id IN (101, 102);
UPDATE identified SET v = 'z' WHERE id = 1; DELETE FROM identified WHERE id = 2;
UPDATE heard SET v = 'w';
BEGIN; INSERT INTO ring_a VALUES (1, 1); INSERT INTO ring_b VALUES (1, 1); COMMIT;
BEGIN; UPDATE ring_b SET id = 2; UPDATE ring_a SET b = 2; COMMIT;
DELETE FROM grandchild WHERE child IN (SELECT id FROM a_child WHERE parent = 7);
DELETE FROM z_parent WHERE id = 7;
UPDATE many SET v = v || id; DELETE FROM many WHERE id % 3 = 0;
TRUNCATE grandchild;
INSERT INTO many VALUES (0, 'last')
"""
_NAMES = (
    "z_parent", "a_child", "grandchild", "tree", "ring_a", "ring_b", "identified", "heard", "many",
)  # fmt: skip


@pytest.fixture
def target(sides: SideBySide) -> Iterator[Database]:
    """A database of a role's that owns nothing but it."""
    role = f"modest_{secrets.token_hex(3)}"
    sides.cluster.execute(f"CREATE ROLE {role} LOGIN")
    database = sides.cluster.create_database(role)
    database.execute(f"ALTER DATABASE {role} OWNER TO {role}; ALTER SCHEMA public OWNER TO {role}")
    yield database
    sides.cluster.drop_database(role)
    sides.cluster.execute(f"DROP ROLE {role}")


def test_its_creation_says_what_the_role_may_not(sides: SideBySide, target: Database) -> None:
    """REST's answer and the command's; whoever asks later is told how it is, not that again."""
    source, service = sides.source, sides.service
    role = target.name
    source.execute("CREATE TABLE told (id int PRIMARY KEY); CREATE PUBLICATION told FOR TABLE told")
    with target.connect(user=role) as owner:
        owner.execute(
            "CREATE TABLE told (id int PRIMARY KEY);"
            "CREATE FUNCTION hear_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
            "CREATE TRIGGER hears_it BEFORE INSERT ON told FOR EACH ROW EXECUTE FUNCTION hear_it()"
        )
    body: dict[str, Any] = {
        "name": "told", "source": sides.source_name, "database": source.name,
        "publications": ["told"], "enabled": False, "copy_data": False,
        "target": {"kind": "postgres", "dsn": sides.cluster.dsn(target.name, role)},
    }  # fmt: skip
    try:
        notes = service.call("POST", "/subscriptions", json=body)["notes"]
        assert [one for one in notes if "hears_it" in one and "session_replication_role" in one]
        assert [one for one in notes if "replication origin" in one]
        assert service.call("GET", "/subscriptions/told")["notes"] == []
        service.call("DELETE", "/subscriptions/told")
        made = subprocess.run(
            [
                sys.executable, "-m", "spillway.cli", "subscription", "create", "told",
                "--source", sides.source_name, "--database", source.name, "--publication", "told",
                "--disabled", "--no-copy-data", "--target-dsn", "-",
            ],
            input=body["target"]["dsn"], capture_output=True, text=True, check=False,
            env=os.environ | {"SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}"},
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        for one in notes:
            assert one in made.stdout
    finally:
        service.http.delete("/v1/subscriptions/told")
        source.execute("DROP PUBLICATION told; DROP TABLE told")


@pytest.mark.long
def test_rows_arrive(sides: SideBySide, target: Database) -> None:
    source, service = sides.source, sides.service
    role = target.name
    source.execute(_TABLES)
    with target.connect(user=role) as owner:
        owner.execute(_TABLES.encode())
        owner.execute(
            "CREATE TABLE log (what text, id int);"
            "CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO public.log VALUES (TG_OP, NEW.id); RETURN NEW; END $$;"
            "CREATE TRIGGER hears AFTER INSERT OR UPDATE ON heard FOR EACH ROW"
            " EXECUTE FUNCTION hear()"
        )
    source.execute(_ROWS)
    source.execute(f"CREATE PUBLICATION modest FOR TABLE {', '.join(_NAMES)}")
    body: dict[str, Any] = {
        "name": "modest", "source": sides.source_name, "database": source.name,
        "publications": ["modest"],
        "target": {"kind": "postgres", "dsn": sides.cluster.dsn(target.name, role)},
    }  # fmt: skip
    service.call("POST", "/subscriptions", json=body)

    def told() -> str:
        log = service.call("GET", "/subscriptions/modest/log")["lines"]
        return "\n".join([str(service.call("GET", "/subscriptions/modest")), *log[-40:]])

    def is_refused() -> bool:
        error = service.call("GET", "/subscriptions/modest")["error"]
        refused[:] = [error["hint"]] if error else []
        return bool(error)

    refused: list[str] = []
    try:
        wait_until(
            "all is copied",
            lambda: service.call("GET", "/subscriptions/modest")["state"] == "streaming",
            told,
        )
        source.execute(_CHANGES)
        # A statement of the source's deletes both; row by row the first is still referred to.
        wait_until("a foreign key refuses it", is_refused, told)
        (statement,) = re.findall(r"ALTER TABLE .*? DEFERRABLE;", refused[0])
        with target.connect(user=role) as owner:
            owner.execute(statement.encode())
        wait_until(
            "the last row is there", lambda: bool(target.query("SELECT FROM many WHERE id = 0")),
            told,
        )  # fmt: skip
        for table in _NAMES:
            query = f"SELECT * FROM {table} ORDER BY 1"
            assert target.query(query) == source.query(query), table
        # A trigger of the target fires, as nobody may let it rest.
        assert target.query("SELECT * FROM log ORDER BY 1") == [("INSERT", 1), ("UPDATE", 1)]
    finally:
        service.call("DELETE", "/subscriptions/modest")
