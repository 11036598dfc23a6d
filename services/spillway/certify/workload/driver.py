"""The driver: which session does what next, until so many statements are done.

One thread drives all sessions, one statement at a time, so that a seed gives the same statements in
the same order as far as PostgreSQL lets it: background processes, lock timeouts and sizes of pages
may differ. A statement that has to wait for another session fails after lock_timeout, since nobody
could end its wait.

What a crash leaves is the driver's to deal with too: :meth:`Workload.reconnect`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.certify.workload import ddl, dml, maintenance, objects, transactions
from spillway.certify.workload.scene import Scene, Shared, choose
from spillway.certify.workload.session import Session, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway.certify.workload.scene import Kind
    from spillway.certify.workload.session import Outcome

SESSIONS: Final = 4
#: A transaction block of this many statements ends.
_AGE_MAX: Final = 40
_ATTEMPTS_MAX: Final = 6

#: Tables that special kinds of statements need, and the first schemas.
SETUP: Final = (
    "CREATE SCHEMA w_0",
    "CREATE SCHEMA w_a",
    "CREATE TABLE w_0.shared (id int PRIMARY KEY, n int) WITH (fillfactor = 50)",
    "INSERT INTO w_0.shared SELECT g, 0 FROM generate_series(1, 4) g",
    "CREATE TABLE w_0.moved (id bigint, v text, late bool)",
    "CREATE TABLE w_0.notes (n bigint GENERATED ALWAYS AS IDENTITY, what text)",
    "CREATE FUNCTION w_0.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " INSERT INTO w_0.notes (what) VALUES (TG_OP || ' ' || TG_NAME); RETURN NULL; END $$",
    "CREATE TABLE w_0.spec (id bigint, v text, big text)",
    # Asked for the key of the row that w_.conflict names, it first only counts (the look for
    # conflicts before the row is inserted), then, when the row is there and its index entry is
    # made, inserts a rival.
    "CREATE FUNCTION w_0.rival(k bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN"
    " IF current_setting('w_.conflict', true) = k::text THEN PERFORM set_config('w_.conflict', "
    "'once ' || k, false); ELSIF current_setting('w_.conflict', true) = 'once ' || k THEN PERFORM "
    "set_config('w_.conflict', '', false); INSERT INTO w_0.spec VALUES (k, 'rival', NULL); END IF; "
    "RETURN k; END $$",
    "CREATE FUNCTION w_0.spec_key(k bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS"
    " $$ BEGIN RETURN w_0.rival(k); END $$",
    "CREATE UNIQUE INDEX spec_key ON w_0.spec (w_0.spec_key(id))",
)


class Step(NamedTuple):
    """What was executed."""

    session: int
    statement: Statement
    outcome: Outcome


class Workload:
    """A workload on one database; :meth:`step` until done, then :meth:`finish`."""

    def __init__(
        self,
        conninfo: str,
        seed: int,
        *,
        major: int,
        superuser: bool,
        cluster_prefix: str,
        log: Callable[[int, Statement], None],
        lock_timeout_ms: int = 10,
        unlogged: bool = True,
    ) -> None:
        """Make the sessions; :meth:`setup` connects them.

        Args:
            conninfo: of the database; schemas whose names begin with ``w_`` are the workload's.
            seed: determines everything that follows.
            major: the server's.
            superuser: whether statements that only superusers may execute are among them.
            cluster_prefix: for names of prepared transactions and origins; must be a name of its
                own.
            log: hears of every statement before it is executed, with its session's number.
            lock_timeout_ms: how long a statement waits for another session.
            unlogged: whether there are unlogged tables. Not where the server is to crash: of tables
                that change between logged and unlogged, PostgreSQL's recovery may find files that
                it means to create.
        """
        self.random: Final = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self._shared = Shared(cluster_prefix, major, superuser, unlogged)
        self._shared.sessions.extend(
            Session(
                number,
                conninfo,
                log,
                lock_timeout_ms=lock_timeout_ms,
                synchronous_commit=number != SESSIONS - 1,
            )
            for number in range(SESSIONS)
        )
        #: Set to False, tables and other objects stay as they are from then on; origins too, which
        #: are the cluster's.
        self.changes_schema = True
        self.steps = 0
        self.failures: dict[str, int] = {}
        self._planned: dict[int, list[Statement]] = {}

    def setup(self) -> None:
        """Connect, and make what special statements need.

        Raises:
            SourceUnreachable: there is no server.
        """
        for session in self._shared.sessions:
            session.connect()
        first = self._shared.sessions[0]
        for sql in SETUP:
            self._execute(first, Statement(sql))

    def reconnect(self) -> None:
        """Go on after the server has ended all sessions: their transactions are gone, prepared ones
        are not.

        Raises:
            SourceUnreachable: there is no server.
        """
        self._planned.clear()
        for session in self._shared.sessions:
            session.connect()

    def step(self) -> Step:
        """Execute one statement."""
        session = self._next_session()
        planned = self._planned.get(session.number)
        if not planned:
            planned = self._planned[session.number] = self._plan(session)
        outcome = self._execute(session, statement := planned.pop(0))
        if outcome.sqlstate:
            planned.clear()
        return Step(session.number, statement, outcome)

    def finish(self) -> None:
        """End every transaction and every prepared one, remove origins, close the sessions."""
        for session in self._shared.sessions:
            if session.connected and not session.idle:
                self._execute(session, Statement("ROLLBACK" if session.failed else "COMMIT"))
        session = self._shared.sessions[0]
        for number, gid in enumerate(sorted(self._shared.prepared)):
            word = "COMMIT" if number % 2 else "ROLLBACK"
            self._execute(session, Statement(f"{word} PREPARED '{gid}'"))
        for other in self._shared.sessions[1:]:
            other.close()
        for name in self._shared.origins:
            self._execute(session, Statement(f"SELECT pg_replication_origin_drop('{name}')"))
        session.close()

    # -- decisions

    def _next_session(self) -> Session:
        sessions = self._shared.sessions
        for session in sessions:
            if session.exclusive:
                return session
        busy = [session for session in sessions if self._planned.get(session.number)]
        if busy and self.random.random() < 0.7:
            return self.random.choice(busy)
        return self.random.choices(sessions, [4, 3, 2, 2])[0]

    def _plan(self, session: Session) -> list[Statement]:
        scene = Scene(self.random, session, self._shared)
        if session.failed:
            if session.savepoints and self.random.random() < 0.75:
                place = self.random.randrange(len(session.savepoints))
                del session.savepoints[place + 1 :]
                session.forget_view()
                return [Statement(f"ROLLBACK TO SAVEPOINT {session.savepoints[place]}")]
            return [Statement("ROLLBACK")]
        for _ in range(_ATTEMPTS_MAX):
            made = self._kind(session)(scene)
            if made:
                return [s if isinstance(s, Statement) else Statement(s) for s in made]
        return [Statement("SELECT pg_current_xact_id()")]

    def _kind(self, session: Session) -> Kind:
        rng = self.random
        roll = rng.random()
        if not self.changes_schema:
            return self._kind_of_rows(session, roll)
        if session.idle:
            if roll < 0.45:
                return transactions.begin
            if roll < 0.70:
                return choose(rng, dml.KINDS)
            if roll < 0.82:
                return choose(rng, ddl.KINDS)
            if roll < 0.86:
                return choose(rng, objects.KINDS)
            if roll < 0.92:
                return choose(rng, maintenance.ALONE)
            if roll < 0.93:
                return choose(rng, maintenance.ANYWHERE)
            return transactions.finish_prepared if roll < 0.98 else transactions.origin
        if session.age > _AGE_MAX or roll < (0.5 if session.exclusive else 0.10):
            return choose(rng, transactions.ENDS)
        if roll < 0.20:
            return transactions.savepoint
        if roll < 0.72:
            return choose(rng, dml.KINDS)
        if roll < 0.91:
            return choose(rng, ddl.KINDS)
        if roll < 0.985:
            return choose(rng, objects.KINDS)
        return choose(rng, maintenance.ANYWHERE)

    def _kind_of_rows(self, session: Session, roll: float) -> Kind:
        rng = self.random
        if session.idle:
            if roll < 0.45:
                return transactions.begin
            return transactions.finish_prepared if roll > 0.9 else choose(rng, dml.KINDS_OF_ROWS)
        if session.age > _AGE_MAX or roll < (0.5 if session.exclusive else 0.12):
            return choose(rng, transactions.ENDS)
        return transactions.savepoint if roll < 0.22 else choose(rng, dml.KINDS_OF_ROWS)

    # -- execution

    def _execute(self, session: Session, statement: Statement) -> Outcome:
        locked, changed_catalog = dict(session.locked), session.changed_catalog
        outcome = session.execute(statement)
        self.steps += 1
        sql = statement.sql
        if outcome.sqlstate:
            self.failures[outcome.sqlstate] = self.failures.get(outcome.sqlstate, 0) + 1
            if session.idle:
                session.forget_view()
            return outcome
        verb = outcome.tag.split(" ", 1)[0]
        if verb == "PREPARE":
            self._shared.prepared[sql.split("'")[1]] = locked
            session.forget_view()
        elif outcome.tag.endswith("PREPARED"):
            self._shared.prepared.pop(sql.split("'")[1], None)
            self._forget_views()
        elif verb in ("CREATE", "ALTER", "DROP", "SELECT", "DO", "REFRESH") and (
            verb != "SELECT" or " INTO " in sql
        ):
            session.changed_catalog = True
            session.forget_view()
            if session.idle:
                self._forget_views()
        elif verb in ("COMMIT", "ROLLBACK"):
            if verb == "COMMIT" and changed_catalog:
                self._forget_views()
            elif changed_catalog:
                session.forget_view()
        return outcome

    def _forget_views(self) -> None:
        for session in self._shared.sessions:
            session.forget_view()


def replay(sessions: Sequence[Session], statements: Sequence[tuple[int, Statement]]) -> None:
    """Execute logged statements again."""
    for number, statement in statements:
        sessions[number].execute(statement)
