"""What a target's trouble is called, and that what is said to mend it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.remedies import remedy, statements
from harness.tiers import deep
from spillway.apply.target import facts
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.session import TargetPlan, TargetSession
from spillway.errors import (
    TargetAuthFailed,
    TargetConnectionsExhausted,
    TargetInUse,
    TargetNotPermitted,
    TargetNotPrepared,
    TargetOriginsExhausted,
    TargetReadOnly,
    TargetUnsupported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import ClusterFactory
    from harness.cluster import Database


@dataclass(frozen=True)
class Position:
    end_lsn: int = 0x100
    commit_time: int = 0


@pytest.fixture
def role(pg18: Database) -> Iterator[str]:
    """A role that may make the schema."""
    name = f"role_{pg18.name[-8:]}"
    pg18.execute(f"CREATE ROLE {name} LOGIN")
    pg18.execute(f"GRANT CREATE ON DATABASE {pg18.name} TO {name}")
    yield name
    pg18.execute(
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin"
        " WHERE roname LIKE 'spillway_s_01234567%'"
    )
    pg18.execute(f"DROP OWNED BY {name} CASCADE")
    pg18.execute(f"DROP ROLE {name}")


def _plan(database: Database, user: str, name: str = "s") -> TargetPlan:
    return TargetPlan(name, "0123456789", f"{database.dsn} user={user}")


@pytest.mark.follows_hint("target_auth_failed")
def test_a_role_that_does_not_exist(pg18: Database, role: str) -> None:
    with pytest.raises(TargetAuthFailed) as refused:
        TargetSession(_plan(pg18, "nobody_here"))
    assert "user" in remedy(refused.value, "target_auth_failed")
    TargetSession(_plan(pg18, role)).close()


@pytest.mark.follows_hint("target_read_only")
def test_transactions_are_read_only(pg18: Database, role: str) -> None:
    pg18.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    with pytest.raises(TargetReadOnly) as refused:
        TargetSession(_plan(pg18, role))
    assert "RESET default_transaction_read_only" in remedy(refused.value, "target_read_only")
    pg18.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
    TargetSession(_plan(pg18, role)).close()


@pytest.mark.follows_hint("target_connections_exhausted")
def test_all_connections_are_taken(pg18: Database, role: str) -> None:
    pg18.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    with TargetSession(_plan(pg18, role)):
        with pytest.raises(TargetConnectionsExhausted) as refused:
            TargetSession(_plan(pg18, role, "other"))
        for sql in statements(remedy(refused.value, "target_connections_exhausted")):
            pg18.execute(sql)
        TargetSession(_plan(pg18, role, "other")).close()


@pytest.mark.follows_hint("target_not_prepared")
def test_the_schema_may_not_be_made(pg18: Database, role: str) -> None:
    pg18.execute(f"REVOKE CREATE ON DATABASE {pg18.name} FROM {role}")
    with pytest.raises(TargetNotPrepared) as refused:
        TargetSession(_plan(pg18, role))
    hint = remedy(refused.value, "target_not_prepared")
    for statement in hint.partition("database: ")[2].split("; "):
        pg18.execute(statement)
    TargetSession(_plan(pg18, role)).close()


@pytest.mark.follows_hint("target_in_use")
def test_another_subscription_had_the_name(pg18: Database, role: str) -> None:
    TargetSession(_plan(pg18, role)).close()
    again = TargetPlan("s", "9876543210", f"{pg18.dsn} user={role}")
    with pytest.raises(TargetInUse) as refused:
        TargetSession(again)
    pg18.execute(remedy(refused.value, "target_in_use").partition("database: ")[2])
    TargetSession(again).close()


@pytest.mark.follows_hint("target_not_permitted")
def test_a_right_was_taken_away(pg18: Database, role: str) -> None:
    pg18.execute(f"ALTER ROLE {role} SUPERUSER")
    TargetSession(_plan(pg18, role)).close()
    pg18.execute(f"ALTER ROLE {role} NOSUPERUSER")
    with pytest.raises(TargetNotPermitted, match="replication origin") as refused:
        TargetSession(_plan(pg18, role))
    for statement in statements(remedy(refused.value, "target_not_permitted")):
        pg18.execute(statement)
    with TargetSession(_plan(pg18, role)) as session:
        assert session.uses_origin


@pytest.mark.follows_hint("target_origins_exhausted")
@pytest.mark.parametrize(
    ("major", "setting"),
    [deep(14, "max_replication_slots"), (18, "max_active_replication_origins")],
)
def test_no_room_for_one_more_origin(
    fresh_cluster: ClusterFactory, major: int, setting: str
) -> None:
    def room(origins: int) -> dict[str, Any]:
        return {setting: origins}

    cluster = fresh_cluster(major, **room(1))
    database = cluster.create_database("target")
    # Of a subscription that is gone: its progress is kept until it is dropped.
    database.execute("SELECT pg_replication_origin_create('old')")
    database.execute("SELECT pg_replication_origin_advance('old', '0/100')")
    plan = _plan(database, "postgres")
    with pytest.raises(TargetOriginsExhausted, match="spillway_s_") as refused:
        TargetSession(plan)
    hint = remedy(refused.value, "target_origins_exhausted")
    names, drop = (one for one in statements(hint) if one.startswith("SELECT"))
    assert database.query(names) == [("old",)]
    database.execute(drop.replace("NAME", "old"))
    with TargetSession(plan) as session:
        assert session.uses_origin

    cluster.restart(**room(0))
    with pytest.raises(TargetOriginsExhausted) as refused:
        TargetSession(plan)
    assert f"Raise {setting}" in remedy(refused.value, "target_origins_exhausted")
    cluster.restart(**room(2))
    with TargetSession(plan) as session:
        assert session.uses_origin


@pytest.mark.follows_hint("target_unsupported")
def test_an_old_major(pg18: Database, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MAJOR_MIN", 19)
    with pytest.raises(TargetUnsupported) as refused:
        TargetSession(_plan(pg18, role))
    assert "19 and later" in remedy(refused.value, "target_unsupported")
    monkeypatch.undo()
    TargetSession(_plan(pg18, role)).close()


@pytest.mark.parametrize(
    ("state", "code"),
    [
        pytest.param(
            "53100", "target_disk_full", marks=pytest.mark.follows_hint("target_disk_full")
        ),
        pytest.param(
            "40001", "target_serialization", marks=pytest.mark.follows_hint("target_serialization")
        ),
    ],
)
def test_what_passes(pg18: Database, role: str, state: str, code: str) -> None:
    """Such as the server says it, of a trigger that says it in its place."""
    pg18.execute("CREATE TABLE t (id int)")
    pg18.execute(f"GRANT ALL ON t TO {role}")
    pg18.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END$$"
    )
    pg18.execute("CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    told = {"target_disk_full": "tried again", "target_serialization": "tried again"}[code]
    with TargetSession(_plan(pg18, role)) as session:
        session.begin()
        with pytest.raises(psycopg.Error) as refused:
            session.connection.execute("INSERT INTO public.t VALUES (1)")
        assert told in remedy(from_postgres(refused.value, "a change"), code)
        session.rollback()
        pg18.execute("DROP TRIGGER refuse ON t")
        session.begin()
        session.connection.execute("INSERT INTO public.t VALUES (1)")
        session.commit(Position())
    assert pg18.value("SELECT count(*) FROM t") == 1
