"""The session on the target: the position in the commit, with an origin and without; what is
durable; who is kept out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest

from spillway.apply.target.connection import connect_target
from spillway.apply.target.session import TargetPlan, TargetSession
from spillway.errors import (
    TargetAuthFailed,
    TargetInUse,
    TargetNotPrepared,
    TargetReadOnly,
    TargetUnavailable,
)
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database


@dataclass(frozen=True)
class Position:
    end_lsn: int
    commit_time: int = 845_000_000_123_456


@pytest.fixture(params=["origin", "row"])
def plan(request: pytest.FixtureRequest, pg: Database) -> Iterator[TargetPlan]:
    """A subscription of a role that may use origins, and of one that may not."""
    pg.execute("CREATE TABLE filled (id int PRIMARY KEY)")
    role = f"{request.param}_{pg.name}"
    pg.execute(f"CREATE ROLE {role} LOGIN {'SUPERUSER' if request.param == 'origin' else ''}")
    pg.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    pg.execute(f"GRANT CREATE ON DATABASE {pg.name} TO {role}")
    identity = pg.name.encode().hex().ljust(8, "0")[-12:]
    yield TargetPlan(f"s_{request.param}", identity, f"{pg.dsn} user={role}")
    for (origin,) in pg.query(
        "SELECT roname FROM pg_replication_origin WHERE roname LIKE %s",
        [f"spillway_s_{request.param}_{identity[:8]}%"],
    ):
        pg.execute("SELECT pg_replication_origin_drop(%s)", [origin])
    pg.execute(f"DROP OWNED BY {role} CASCADE")
    pg.execute(f"DROP ROLE {role}")


def _write(session: TargetSession, value: int) -> None:
    session.begin()
    session.connection.execute("INSERT INTO public.filled VALUES (%s)", [value])


def test_the_position_is_there_if_and_only_if_the_rows_are(plan: TargetPlan, pg: Database) -> None:
    with TargetSession(plan) as session:
        assert session.uses_origin is plan.subscription.endswith("origin")
        assert session.position == Lsn(0)
        _write(session, 1)
        session.commit(Position(0x100))
        _write(session, 2)
        session.commit(Position(0x200))
        _write(session, 3)
        session.rollback()
        assert session.flush() == Lsn(0x200)
        # Killed in the middle of a transaction, whose commit would have moved it.
        _write(session, 4)
    with TargetSession(plan) as session:
        assert session.position == Lsn(0x200)
        assert pg.query("SELECT id FROM filled ORDER BY 1") == [(1,), (2,)]


def test_a_commit_that_fails_leaves_no_position(plan: TargetPlan, pg: Database) -> None:
    pg.execute("CREATE TABLE late (id int)")
    pg.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN IF NEW.id = 1 THEN RAISE EXCEPTION 'no'; END IF; RETURN NULL; END$$"
    )
    pg.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    pg.execute("ALTER TABLE late ENABLE ALWAYS TRIGGER refuse")
    pg.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC")
    with TargetSession(plan) as session:
        session.begin()
        session.connection.execute("INSERT INTO public.late VALUES (1)")
        with pytest.raises(psycopg.errors.RaiseException):
            session.commit(Position(0x300))
        session.rollback()
        # A commit without a position of its own must not bring that one.
        session.begin()
        session.connection.execute("INSERT INTO public.late VALUES (2)")
        session.connection.execute("COMMIT")
    with TargetSession(plan) as session:
        assert session.position == Lsn(0)


def test_what_is_flushed_is_known(plan: TargetPlan) -> None:
    with TargetSession(plan) as session:
        assert session.flushed() == Lsn(0)
        _write(session, 1)
        session.commit(Position(0x100))
        # What the target does not keep is not confirmed either.
        session.passed(0x180)
        assert session.awaits_flush
        assert (session.position, session.recorded) == (0x180, 0x100)
        assert session.flush() == Lsn(0x100)
        assert not session.awaits_flush
        session.passed(0x200)
        assert session.flushed() == Lsn(0x100)
        session.record(Position(0x200))
        assert session.recorded == session.flush() == Lsn(0x200)


def test_a_commit_that_does_not_ask_for_its_place_has_one_at_the_next_look(
    plan: TargetPlan, pg: Database
) -> None:
    with pg.connect() as there:
        there.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        there.execute("SELECT pg_reload_conf()")
    try:
        with TargetSession(plan) as session:
            for value in (1, 2):
                _write(session, value)
                session.connection.execute("COMMIT")
                session.committed(Position(0x100 * value))
            assert session.awaits_flush
            assert session.flushed() == Lsn(0)
            # One that tells its place gives it to those before.
            _write(session, 3)
            end = session.commit(Position(0x300))
            _write(session, 4)
            session.connection.execute("COMMIT")
            session.committed(Position(0x400))
            assert session.flushed() == Lsn(0)
            pg.execute("SET synchronous_commit = on; CREATE TABLE flushes_all ()")
            assert Lsn.parse(pg.value("SELECT pg_current_wal_flush_lsn()::text")) >= end
            assert session.flushed() == Lsn(0x400)
            assert not session.awaits_flush
            _write(session, 5)
            session.connection.execute("COMMIT")
            session.committed(Position(0x500))
            assert session.flush() == Lsn(0x500)
            assert not session.awaits_flush
    finally:
        pg.execute("ALTER SYSTEM RESET wal_writer_delay")
        pg.execute("SELECT pg_reload_conf()")


def test_what_is_said_to_be_flushed_is_in_the_files(plan: TargetPlan, pg: Database) -> None:
    with pg.connect() as there:
        # Nobody else is to write it meanwhile.
        there.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        there.execute("SELECT pg_reload_conf()")
    try:
        with TargetSession(plan) as session:
            for value in range(1, 9):
                _write(session, value)
                end = session.commit(Position(0x100 * value))
                assert session.flush() == Lsn(0x100 * value)
                assert Lsn.parse(pg.value("SELECT pg_current_wal_flush_lsn()::text")) >= end
    finally:
        pg.execute("ALTER SYSTEM RESET wal_writer_delay")
        pg.execute("SELECT pg_reload_conf()")


def test_prepared_transactions_have_their_positions(plan: TargetPlan, pg: Database) -> None:
    with TargetSession(plan) as session:
        _write(session, 1)
        session.prepare(Position(0x100), "it's one")
        _write(session, 2)
        session.commit(Position(0x200))
        session.flush()
    with TargetSession(plan) as session:
        assert session.position == Lsn(0x200)
        session.finish_prepared(Position(0x300), "it's one", commit=True)
        session.flush()
    with TargetSession(plan) as session:
        assert session.position == Lsn(0x300)
    assert pg.query("SELECT id FROM filled ORDER BY 1") == [(1,), (2,)]


def test_a_second_program_is_kept_out(plan: TargetPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spillway.apply.target.session._LOCK_WAIT_S", 0.0)
    with TargetSession(plan) as first:
        with pytest.raises(TargetInUse, match="another program applies") as refused:
            TargetSession(plan)
        # Its remedy mends it.
        statement = refused.value.hint.partition("at once by ")[2]
        first.connection.execute("SET application_name = 'first'")
        with psycopg.connect(plan.dsn, autocommit=True) as other:
            other.execute(statement.encode())
        monkeypatch.undo()
        TargetSession(plan).close()


def test_the_state_of_another_subscription_is_not_taken(plan: TargetPlan, pg: Database) -> None:
    TargetSession(plan).close()
    another = TargetPlan(plan.subscription, f"f{plan.identity[1:]}", plan.dsn)
    with pytest.raises(TargetInUse, match="position of another") as refused:
        TargetSession(another)
    statements = refused.value.hint.partition("database: ")[2]
    with psycopg.connect(plan.dsn, autocommit=True) as other:
        other.execute(statements.encode())
    TargetSession(another).close()
    pg.execute(
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = %s",
        [another.origin],
    )


def test_an_owner_prepares_what_the_role_may_not(pg15: Database) -> None:
    pg15.execute("CREATE ROLE poor LOGIN")
    try:
        plan = TargetPlan("s", "0123456789", f"{pg15.dsn} user=poor")
        with pytest.raises(TargetNotPrepared) as refused:
            TargetSession(plan)
        for statement in refused.value.hint.partition("database: ")[2].split("; "):
            pg15.execute(statement)
        with TargetSession(plan) as session:
            session.record(Position(0x100))
        with TargetSession(plan) as session:
            assert session.position == Lsn(0x100)
    finally:
        pg15.execute("DROP OWNED BY poor")
        pg15.execute("DROP ROLE poor")


def test_failures_are_typed(pg15: Database) -> None:
    def open_with(more: str) -> None:
        TargetSession(TargetPlan("s", "0123456789", f"{pg15.dsn} {more}"))

    with pytest.raises(TargetUnavailable):
        open_with("port=1")
    with pytest.raises(TargetUnavailable, match="does not exist"):
        open_with("dbname=nothing")
    with pytest.raises(TargetAuthFailed):
        open_with("user=nobody_here password=secret")
    with pytest.raises(TargetReadOnly):
        open_with("options='-c default_transaction_read_only=on'")


def test_a_machine_that_is_gone_keeps_its_session_for_a_minute(pg: Database) -> None:
    """The server looks for it: who takes over waits for its lock. As the socket has it, not as the
    setting says it.
    """
    with connect_target(pg.dsn, "spillway") as session:
        asked = session.execute(
            "SELECT name, setting::int FROM pg_settings WHERE name LIKE 'tcp\\_%' ORDER BY name"
        ).fetchall()
    assert asked == [
        ("tcp_keepalives_count", 3),
        ("tcp_keepalives_idle", 30),
        ("tcp_keepalives_interval", 10),
        ("tcp_user_timeout", 60_000),
    ]
