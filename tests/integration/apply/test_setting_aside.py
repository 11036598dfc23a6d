"""``table_errors: set_aside``: a table that can't be written to leaves the others alone, and is the
source's again when what its hint says was done.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text, n int);
CREATE TABLE u (id int PRIMARY KEY, v text);
"""


_TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE 'not on my watch'; END$$;
CREATE TRIGGER no BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION no();
ALTER TABLE t ENABLE ALWAYS TRIGGER no
"""


@pytest.fixture
def pair(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[SubscribedPair]:
    with subscribed_pair(checklist_cluster, apply_service.service()) as there:
        there.both(_TABLES)
        there.source.execute("INSERT INTO t VALUES (1, 'one', 1); INSERT INTO u VALUES (1, 'one')")
        yield there


def _aside(pair: SubscribedPair, table: str = "public.t") -> str:
    """Wait until a table is set aside; return what is said of it."""
    found: list[str] = []

    def is_there() -> bool:
        states = {one["table"]: one for one in pair.view()["table_states"]}
        found[:] = [states[table]["reason"]] if (states[table]["reason"] or "") else []
        return bool(found)

    wait_until(f"{table} is set aside", is_there, pair.told)
    assert "the table is set aside, and the others go on" in found[0]
    return found[0]


def _goes_on(pair: SubscribedPair, key: int) -> None:
    """Insist that the other table gets what is written, also in one transaction with this one."""
    pair.transaction(
        f"UPDATE t SET v = 'later' WHERE id = {key}", f"INSERT INTO u VALUES ({key}, 'beside')"
    )
    pair.catch_up()
    rows = "SELECT id, v FROM u ORDER BY 1"
    assert pair.target.query(rows) == pair.source.query(rows)


def _follow(pair: SubscribedPair, said: str) -> None:
    """Do what the hint says, on the target."""
    for statement in re.findall(r"\b(?:ALTER|GRANT|CREATE|TRUNCATE) [^;]*;", said):
        pair.target.execute(statement)


def _verify(pair: SubscribedPair) -> tuple[int, str]:
    """Compare as a user does; return the command's code, and what it says."""
    service = pair.service
    done = subprocess.run(
        [sys.executable, "-m", "spillway.cli", "subscription", "verify", pair.name],
        env={
            **os.environ,
            "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
            "SPILLWAY_GRPC": service.grpc_address,
            "SPILLWAY_APPLY_SOURCE_DSN": pair.source.dsn,
            "SPILLWAY_APPLY_TARGET_DSN": pair.target.dsn,
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, f"{done.stdout}\n{done.stderr}"


def _is_whole(pair: SubscribedPair) -> None:
    """Wait until the table is copied; insist that it is the source's, then and later."""

    def is_ready() -> bool:
        states = {one["table"]: one for one in pair.view()["table_states"]}
        one = states["public.t"]
        return one["sync_state"] in ("s", "r") and not one["reason"]

    wait_until("the table is whole again", is_ready, pair.told)
    pair.source.execute("UPDATE t SET v = v || '!'")
    pair.catch_up()
    for table in ("t", "u"):
        rows = f"SELECT * FROM {table} ORDER BY 1"
        assert pair.target.query(rows) == pair.source.query(rows), table


@pytest.mark.long
@pytest.mark.parametrize("exact", ["auto", deep("always")])
def test_a_column_that_is_missing(pair: SubscribedPair, exact: str) -> None:
    pair.create(table_errors="set_aside", exact=exact)
    pair.source.execute("ALTER TABLE t ADD w int")
    pair.transaction("INSERT INTO u VALUES (2, 'with')", "INSERT INTO t VALUES (2, 'two', 2, 2)")
    said = _aside(pair)
    assert 'ADD COLUMN "w" integer;' in said
    _goes_on(pair, 3)
    assert pair.view()["state"] == "streaming"
    # What it has stays until it is emptied, and the trouble is over.
    assert pair.target.query("SELECT id, v FROM t") == [(1, "one")]
    # It is set aside for who begins anew, too.
    pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    _goes_on(pair, 4)
    assert "ADD COLUMN" in _aside(pair)
    _follow(pair, said)
    _is_whole(pair)


def test_a_row_that_is_refused(pair: SubscribedPair) -> None:
    pair.create(table_errors="set_aside")
    pair.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (n < 10)")
    pair.transaction("INSERT INTO u VALUES (2, 'with')", "INSERT INTO t VALUES (2, 'two', 20)")
    said = _aside(pair)
    assert "small" in said
    _goes_on(pair, 3)
    # Emptied too early it is copied, and says what the copy meets.
    pair.target.execute("TRUNCATE t")
    wait_until(
        "the copy fails",
        lambda: "copying" in (_reason(pair) or ""),
        pair.told,
    )
    _goes_on(pair, 4)
    pair.target.execute("ALTER TABLE t DROP CONSTRAINT small")
    _is_whole(pair)


@pytest.fixture
def role(pair: SubscribedPair) -> Iterator[str]:
    """A role that may do with the target's database what it likes, but owns no table of it."""
    name, target = f"writer_{pair.name}", pair.target
    target.execute(
        f"CREATE ROLE {name} LOGIN; GRANT ALL ON DATABASE {target.name} TO {name};"
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO {name};"
        f"GRANT ALL ON SCHEMA public TO {name}; GRANT ALL ON t, u TO {name}"
    )
    yield name
    pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    target.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


@pytest.mark.long
@pytest.mark.parametrize("lost", ["ALL", deep("INSERT"), deep("SELECT, TRUNCATE")])
def test_a_right_that_was_taken(pair: SubscribedPair, role: str, lost: str) -> None:
    """Also the one to look whether the table is empty: tables that are added are copied all the
    same.
    """
    pair.create(table_errors="set_aside", dsn=pair.target.cluster.dsn(pair.target.name, role))
    pair.target.execute(f"REVOKE {lost} ON t FROM {role}")
    pair.transaction(
        "INSERT INTO u VALUES (2, 'with')",
        "INSERT INTO t VALUES (2, 'two', 2)",
        "UPDATE t SET n = 3 WHERE id = 1",
    )
    said = _aside(pair)
    assert "permission denied for table t" in said
    _goes_on(pair, 3)
    pair.both("CREATE TABLE added (id int PRIMARY KEY)")
    pair.source.execute("INSERT INTO added SELECT generate_series(1, 9)")
    pair.service.call("POST", f"/subscriptions/{pair.name}/refresh")
    wait_until(
        "the table that was added is the stream's",
        lambda: (
            {one["table"]: one["sync_state"] for one in pair.view()["table_states"]}.get(
                "public.added"
            )
            == "r"
        ),
        pair.told,
    )
    assert pair.target.value("SELECT count(*) FROM added") == 9
    assert "permission denied for table t" in (_reason(pair) or "")
    assert pair.view()["state"] == "streaming"
    code, told = _verify(pair)
    assert code == 1, told
    assert "public.t: not compared, " in told
    assert "permission denied for table t" in told
    assert "the table is set aside, and the others go on" in told
    assert "public.u: equal" in told
    pair.target.execute(f"GRANT ALL ON t TO {role}; TRUNCATE t")
    _is_whole(pair)
    code, told = _verify(pair)
    assert code == 0, told


def _reason(pair: SubscribedPair) -> str | None:
    states = {one["table"]: one for one in pair.view()["table_states"]}
    reason: str | None = states["public.t"]["reason"]
    return reason


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "change", "mend"),
    [
        ("DROP TABLE t", "INSERT INTO t VALUES (2, 'two', 2)", _TABLES.split(";", maxsplit=1)[0]),
        (
            _TRIGGER,
            "UPDATE t SET v = 'x'",
            "DROP TRIGGER no ON t; TRUNCATE t",
        ),
        ("INSERT INTO t VALUES (2, 'mine', 0)", "INSERT INTO t VALUES (2, 'two', 2)", "TRUNCATE t"),
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "UPDATE t SET v = 'x'",
            "ALTER TABLE t ADD PRIMARY KEY (id); TRUNCATE t",
        ),
        (
            "ALTER TABLE t ALTER v TYPE int USING 0",
            "INSERT INTO t VALUES (2, 'two', 2)",
            "ALTER TABLE t ALTER v TYPE text; TRUNCATE t",
        ),
    ],
    ids=["missing", "trigger", "conflict", "no key", "type"],
)
def test_other_troubles(pair: SubscribedPair, before: str, change: str, mend: str) -> None:
    pair.create(table_errors="set_aside")
    pair.target.execute(before)
    pair.transaction("INSERT INTO u VALUES (2, 'with')", change)
    if before.startswith("DROP"):
        # It is as empty as can be: its copy is tried, and says what it lacks.
        wait_until("it says so", lambda: bool(_reason(pair)), pair.told)
    else:
        _aside(pair)
    _goes_on(pair, 3)
    pair.target.execute(mend)
    _is_whole(pair)


@pytest.mark.long
def test_ddl_meanwhile(pair: SubscribedPair) -> None:
    """What comes for a table that is set aside waits, and is done before its copy."""
    pair.create(table_errors="set_aside", on_schema_change="apply")
    pair.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (n < 10)")
    pair.source.execute("INSERT INTO t VALUES (2, 'two', 20)")
    _aside(pair)
    pair.source.execute("ALTER TABLE t ADD w int DEFAULT 7; ALTER TABLE u ADD w int DEFAULT 8")
    _goes_on(pair, 3)
    pair.target.execute("ALTER TABLE t DROP CONSTRAINT small; TRUNCATE t")
    _is_whole(pair)
    pair.check_equal("t", "u")


@pytest.mark.long
def test_ddl_that_is_a_pause(pair: SubscribedPair) -> None:
    """Where DDL would pause the subscription, its table alone waits."""
    pair.create(table_errors="set_aside", on_schema_change="pause")
    pair.source.execute("ALTER TABLE t ADD w int")
    pair.source.execute("INSERT INTO t VALUES (2, 'two', 2, 2)")
    said = _aside(pair)
    _goes_on(pair, 3)
    assert pair.view()["enabled"]
    pair.target.execute('ALTER TABLE t ADD COLUMN "w" integer; TRUNCATE t')
    assert "ADD COLUMN" in said
    _is_whole(pair)


@pytest.mark.long
@pytest.mark.parametrize(
    "checklist_cluster", [15, 16, 17, 18], indirect=True, ids="pg{}".format
)  # 14's pgoutput knows no two_phase.
def test_what_is_prepared(pair: SubscribedPair) -> None:
    """What was prepared before is finished as it was prepared; what is prepared meanwhile, and
    committed when the table is back, has the table's rows.
    """
    pair.create(table_errors="set_aside", two_phase=True)
    # What is prepared keeps others from altering the table.
    pair.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (n < 10)")
    pair.source.execute("INSERT INTO u VALUES (2, 'streams')")
    pair.catch_up()
    _prepare(pair, "before", 3)
    prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    wait_until("it is prepared there", lambda: pair.target.value(prepared) == 1, pair.told)
    pair.source.execute("INSERT INTO t VALUES (4, 'four', 40)")
    _aside(pair)
    pair.source.execute("COMMIT PREPARED 'before'")
    _goes_on(pair, 5)
    assert pair.target.value(prepared) == 0
    _prepare(pair, "meanwhile", 6)
    pair.catch_up()
    assert pair.target.value(prepared) == 0
    pair.target.execute("ALTER TABLE t DROP CONSTRAINT small; TRUNCATE t")
    _is_whole(pair)
    pair.source.execute("COMMIT PREPARED 'meanwhile'")
    _goes_on(pair, 7)
    _is_whole(pair)
    assert pair.target.query("SELECT gid FROM spillway.prepared WHERE gid LIKE 'passed%'") == []


def _prepare(pair: SubscribedPair, name: str, key: int) -> None:
    with pair.source.connect() as session:
        session.execute(
            f"BEGIN; INSERT INTO u VALUES ({key}, 'p'); INSERT INTO t VALUES ({key}, 'p', 3)"
        )
        session.execute(f"PREPARE TRANSACTION '{name}'")


@pytest.mark.long
def test_killed_as_it_is_set_aside(pair: SubscribedPair) -> None:
    """A table whose trouble is nobody's is no reason to stop, nor is a program that was killed."""
    pair.create(table_errors="set_aside", connections=4)
    pair.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (n < 10)")
    with pair.source.connect() as session:
        for key in range(2, 400):
            session.execute(f"INSERT INTO t VALUES ({key}, 'k', {key % 11})")
            session.execute(f"INSERT INTO u VALUES ({key}, 'k')")
    _aside(pair)
    pair.service.call("POST", f"/subscriptions/{pair.name}/disable")
    pair.service.call("POST", f"/subscriptions/{pair.name}/enable")
    pair.catch_up()
    pair.target.execute("ALTER TABLE t DROP CONSTRAINT small; TRUNCATE t")
    _is_whole(pair)


@pytest.mark.long
def test_without_it_the_subscription_waits(pair: SubscribedPair) -> None:
    pair.create()
    pair.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (n < 10)")
    pair.transaction("INSERT INTO u VALUES (2, 'with')", "INSERT INTO t VALUES (2, 'two', 20)")
    wait_until("it has an error", lambda: pair.view()["error"], pair.told)
    assert pair.target.query("SELECT id FROM u") == [(1,)]
    assert "table_errors" in pair.view()["error"]["hint"]
    pair.target.execute("ALTER TABLE t DROP CONSTRAINT small")
    pair.catch_up()


def test_without_a_copy_nothing_could_bring_a_table_back(pair: SubscribedPair) -> None:
    """So it is refused, at creation and later, and no error says that it would help."""
    body = {
        "name": pair.name, "source": pair.name, "database": pair.source.name,
        "tables": ["public.t"], "copy_data": False,
        "target": {"kind": "postgres", "dsn": pair.target.dsn, "table_errors": "set_aside"},
    }  # fmt: skip
    refused = pair.service.problem("POST", "/subscriptions", json=body)
    assert refused["code"] == "invalid_request"
    assert "dead_letter=true" in refused["hint"]
    pair.target.execute("INSERT INTO t VALUES (1, 'one', 1); INSERT INTO u VALUES (1, 'one')")
    pair.create(copy_data=False)
    target = {**pair.view()["target"], "table_errors": "set_aside"}
    refused = pair.service.problem("PATCH", f"/subscriptions/{pair.name}", json={"target": target})
    assert refused["details"] == {"field": "target.table_errors"}
    pair.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (n < 10)")
    pair.source.execute("INSERT INTO t VALUES (2, 'two', 20)")
    wait_until("it fails", lambda: bool(pair.view()["error"]), pair.told)
    hint = pair.view()["error"]["hint"]
    assert "table_errors" not in hint
    assert "--target-option dead_letter=true" in hint
    target = {**pair.view()["target"], "dead_letter": True}
    pair.service.call("PATCH", f"/subscriptions/{pair.name}", json={"target": target})
    pair.catch_up()
    assert pair.target.value("SELECT count(*) FROM spillway.dead_letter") == 1
