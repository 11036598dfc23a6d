"""``spillway apply run`` ends soon at SIGTERM while the target keeps it waiting, and nothing is
lost or there twice when the next one has gone on.
"""

from __future__ import annotations

import os
import secrets
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from harness.postgresql_subscription import wait_until
from harness.refusing_relay import RefusingRelay
from harness.table_sync import Ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess
    from harness.table_sync import ApplyProgram

_WAITING: Final = """
SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname = current_database()
   AND application_name LIKE 'spillway subscription %' AND wait_event_type = 'Lock'
"""
#: in a function of a trigger, for which no lock_timeout is
_SLEEPING: Final = _WAITING.replace("wait_event_type = 'Lock'", "wait_event = 'PgSleep'")
_PID: Final = _WAITING.replace("count(*)", "min(pid)")
_MANY: Final = "INSERT INTO {} SELECT n, repeat('x', 100) FROM generate_series(1, {}) n"
_SESSIONS: Final = """
SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname = current_database()
   AND application_name LIKE 'spillway subscription %'
"""


class Stage:
    """A source and a target that have tables t and u, without a key, and a program between."""

    def __init__(self, service: ServeProcess, cluster: Cluster, name: str) -> None:
        self._service = service.service()
        self._name = name
        self.source = cluster.create_database(f"{name}_source")
        self.target = cluster.create_database(f"{name}_target")
        for database in (self.source, self.target):
            database.execute("CREATE TABLE t (id int, v text); CREATE TABLE u (id int, v text)")
        self.source.execute("CREATE PUBLICATION p FOR ALL TABLES")
        self._service.create_source(self.source.dsn, name=name)

    def ends(self, target_dsn: str = "", **slot: bool) -> Ends:
        """The subscription, with a slot of its own."""
        made = Ends.make(
            self._service, self.source, self.target, ("p",), self._name, self._name, **slot
        )
        return replace(made, target_dsn=target_dsn or made.target_dsn)

    def waits(self, program: ApplyProgram, how: str = _WAITING, many: int = 1) -> None:
        wait_until("the target has it wait", lambda: self.target.value(how) == many, program.told)

    def streams(self, program: ApplyProgram) -> None:
        """Begin, and return when tables are the stream's."""
        program.begin()
        states = "SELECT string_agg(DISTINCT state, '') FROM spillway.tables"
        wait_until("it streams", lambda: self.target.value(states) == "r", program.told)

    def goes_on(self, program: ApplyProgram) -> None:
        """Have the next program bring everything, and nothing twice."""
        program.begin()
        self.source.execute("INSERT INTO u VALUES (-1, 'last')")
        last = "SELECT count(*) FROM u WHERE id = -1"
        wait_until("it has gone on", lambda: self.target.value(last) == 1, program.told)
        for table in ("t", "u"):
            rows = f"SELECT id, v FROM {table} ORDER BY 1, 2"
            assert self.target.query(rows) == self.source.query(rows)

    def has_no_session(self) -> None:
        """Wait until the target has seen that the program is gone."""
        wait_until("its sessions are gone", lambda: self.target.value(_SESSIONS) == 0)

    def close(self) -> None:
        self._service.drop_slot(self._name)
        self._service.call("DELETE", f"/sources/{self._name}")
        for database in (self.source, self.target):
            database.cluster.drop_database(database.name)


@pytest.fixture
def stage(
    session_cluster: Callable[[int], Cluster], apply_service: ServeProcess
) -> Iterator[Stage]:
    made = Stage(apply_service, session_cluster(18), f"stopped_{secrets.token_hex(3)}")
    yield made
    made.close()


def test_its_session_waits_for_a_lock(stage: Stage) -> None:
    with stage.ends().program() as program:
        stage.streams(program)
        stage.source.execute("INSERT INTO u VALUES (1, 'before')")
        wait_until("u is there", lambda: stage.target.value("SELECT count(*) FROM u") == 1)
        with stage.target.connect() as blocker:
            blocker.execute("BEGIN; LOCK TABLE t IN SHARE MODE")
            stage.source.execute("INSERT INTO t VALUES (1, 'waits')")
            stage.waits(program)
            program.end()
            assert stage.target.value(_WAITING) == 0
        status = program.status()
        # What was committed is told of.
        assert (status["tables"]["public.u"]["changes"], status["error"]) == (1, None)
        stage.goes_on(program)


@pytest.mark.long
def test_change_by_change_by_sigint(stage: Stage) -> None:
    with stage.ends().program(exact="always", dead_letter=True) as program:
        stage.streams(program)
        with stage.target.connect() as blocker:
            blocker.execute("BEGIN; LOCK TABLE t IN SHARE MODE")
            stage.source.execute("INSERT INTO t VALUES (1, 'waits'); INSERT INTO u VALUES (1, '')")
            stage.waits(program)
            program.end(signal.SIGINT)
        stage.goes_on(program)
    assert stage.target.value("SELECT count(*) FROM spillway.dead_letter") == 0


@pytest.mark.long
@pytest.mark.parametrize("commit_order", ["source", "relaxed"])
def test_its_lanes_wait(stage: Stage, commit_order: str) -> None:
    """Each group is written by a connection of its own, and both wait."""
    with stage.ends().program(commit_order=commit_order) as program:
        stage.streams(program)
        with stage.target.connect() as blocker:
            blocker.execute("BEGIN; LOCK TABLE t, u IN SHARE MODE")
            for table in ("t", "u"):
                stage.source.execute(_MANY.format(table, 15_000))
            stage.waits(program, many=2)
            program.end()
        stage.goes_on(program)


@pytest.mark.long
def test_one_in_progress_waits_in_a_trigger(stage: Stage) -> None:
    stage.target.execute(
        "CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_catalog.pg_sleep(3600); RETURN NEW; END';"
        "CREATE TRIGGER sleeps BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION sleeps();"
        "ALTER TABLE t ENABLE ALWAYS TRIGGER sleeps"
    )
    with stage.ends().program("--streaming") as program:
        stage.streams(program)
        with stage.source.connect(autocommit=False) as writer:
            writer.execute(_MANY.format("t", 3000).encode())
            # A commit has the server's WAL written up to there.
            stage.source.execute("INSERT INTO u VALUES (1, '')")
            stage.waits(program, _SLEEPING)
        # It has ended, and the worker waits for that trigger, too.
        program.end()
        assert stage.target.value(_SLEEPING) == 0
        stage.target.execute("DROP TRIGGER sleeps ON t")
        stage.goes_on(program)


@pytest.mark.long
@pytest.mark.parametrize("streaming", [False, True])
def test_a_prepare_waits(stage: Stage, streaming: bool) -> None:
    """A constraint that is deferred speaks when the transaction is prepared, and waits there."""
    stage.target.execute(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(7); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION waits();"
        "ALTER TABLE t ENABLE ALWAYS TRIGGER waits"
    )
    prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    more = ("--two-phase", *(["--streaming"] if streaming else []))
    with stage.ends(two_phase=True).program(*more) as program:
        stage.streams(program)
        with stage.target.connect() as blocker, stage.source.connect() as writer:
            blocker.execute("SELECT pg_advisory_lock(7)")
            writer.execute("BEGIN")
            writer.execute(_MANY.format("t", 3000).encode())
            writer.execute("PREPARE TRANSACTION 'theirs'")
            stage.waits(program)
            program.end()
        assert stage.target.value(prepared) == 0
        program.begin()
        wait_until("it is prepared", lambda: stage.target.value(prepared) == 1, program.told)
        program.end()
        stage.source.execute("COMMIT PREPARED 'theirs'")
        stage.goes_on(program)
    assert stage.target.value(prepared) == 0


@pytest.mark.long
def test_the_request_to_cancel_does_not_arrive(stage: Stage) -> None:
    with RefusingRelay(stage.target.cluster.port) as relay:
        dsn = f"{stage.target.dsn} port={relay.port}"
        ends = stage.ends(dsn)
        with ends.program() as program:
            stage.streams(program)
            with stage.target.connect() as blocker:
                blocker.execute("BEGIN; LOCK TABLE t IN SHARE MODE")
                stage.source.execute("INSERT INTO t VALUES (1, 'waits')")
                stage.waits(program)
                relay.refuse()
                program.end()
                # The target looks now and then whether its client is there.
                stage.has_no_session()
    with replace(ends, target_dsn=stage.target.dsn).program() as program:
        stage.goes_on(program)


@pytest.mark.long
def test_the_target_stands_still(stage: Stage) -> None:
    """Its backend hears nothing; once it goes on, it does what it had been sent, or not."""
    with stage.ends().program() as program:
        stage.streams(program)
        with stage.target.connect() as blocker:
            blocker.execute("BEGIN; LOCK TABLE t IN SHARE MODE")
            stage.source.execute("INSERT INTO t VALUES (1, 'waits')")
            stage.waits(program)
            backend = int(stage.target.value(_PID))
            os.kill(backend, signal.SIGSTOP)
            try:
                program.end()
                assert stage.target.value(_SESSIONS) == 1
            finally:
                os.kill(backend, signal.SIGCONT)
        stage.goes_on(program)


@pytest.mark.long
def test_another_program_has_it(stage: Stage) -> None:
    ends = stage.ends()
    with ends.program() as program:
        with stage.target.connect() as another:
            another.execute("SELECT pg_advisory_lock(%s::int, %s::int)", ends.plan.lock)
            program.begin()
            wait_until("it waits", lambda: stage.target.value(_SESSIONS) == 1, program.told)
            program.end()
        stage.goes_on(program)
