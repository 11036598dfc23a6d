"""Groups, written by few statements in one transaction of the target.

::

    group ─▶ steps ─▶ BEGIN, statements in a pipeline (COPY between them) ─▶ counts as expected?
                                                             │ yes              │ no, or refused
                                                             ▼                  ▼
                                                    position, COMMIT      ROLLBACK: False

This is optimistic: it assumes that the target's rows are as the source's changes expect them, and
looks whether that was so. Each statement says how many rows it wrote. A row that is missing, one
that is there already, one that was written under another origin (where the target keeps commit
timestamps), or a constraint that refuses one: then all is rolled back, and the group is to be
written change by change by the exact writer, which finds out which row it was and what that is
called. What is committed is what PostgreSQL's worker would have left. docs/explanation/apply.md
says why.

A transaction that is larger than a group comes in pieces, which one open transaction takes one
after the other. When a piece does not fit, those before it are rolled back, too, and can't be given
again: the caller has to have them from the stream again.
"""

from __future__ import annotations

import select
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg import pq

from spillway._kernels.apply.netting import steps
from spillway.apply.grouped import statements
from spillway.apply.target.failures import from_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway._kernels.apply.change_group import ChangeGroup
    from spillway.apply.changes import SourceRelation, Step, StepPlan, TransactionHead
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.tables.target_tables import TargetTables
    from spillway.apply.target.session import TargetSession

#: Rows from which inserts are a COPY: it takes two round trips more than a statement in a pipeline.
COPY_FROM: Final = 200
#: Statements that stay prepared; a few for each table that is written to.
_PREPARED_MAX: Final = 2000
#: Times that a group is tried again after a deadlock or a serialization failure.
_ATTEMPTS: Final = 3
#: SQLSTATEs, or classes of them, that are no matter of rows: connections, resources, operators,
#: the system, rights, a server that takes no writes.
_NOT_OF_ROWS: Final = ("08", "53", "57", "58", "XX", "25006")
#: … and that may not come again.
_PASSING: Final = frozenset({"40001", "40P01", "55P03"})
_SAVEPOINT: Final = "spillway_group"
_NOT_BY_KEY: Final = "its changes can't be told by key, or a table takes rows one by one"


#: What becomes of each table's changes.
Plans: TypeAlias = "dict[SourceRelation, tuple[MatchedTable, StepPlan]]"


def is_of_rows(error: psycopg.Error) -> bool:
    """Say whether what the target refused may be a matter of the rows that it has."""
    return error.sqlstate is not None and not error.sqlstate.startswith(_NOT_OF_ROWS)


class GroupedWriter:
    """Writes plain groups into the target.

    Attributes:
        statements: how many were sent, of this run; what transactions and positions need not
            counted.
        declined: groups that were left to be written change by change.
        why_declined: of the last of these, in words.
        copy_from: see there.
    """

    def __init__(
        self,
        session: TargetSession,
        tables: TargetTables,
        should_apply: Callable[[SourceRelation, int], bool] | None = None,
        *,
        copy_from: int = COPY_FROM,
    ) -> None:
        """Make a writer.

        Args:
            session: where it writes; nobody else uses it meanwhile.
            tables: the target's tables, which know the Relation messages of every group.
            should_apply: of a table and the LSN of a commit, whether its changes are written; once
                they are, those of every later commit are, too.
            copy_from: rows from which inserts are a COPY; 0 for never.
        """
        self._session = session
        self._connection = session.connection
        self._pgconn = session.connection.pgconn
        self._tables = tables
        self._should_apply = should_apply
        self.copy_from = copy_from
        #: names of what is prepared
        self._prepared: dict[bytes, bytes] = {}
        self._names = 0
        #: … of the statement that is in every commit
        self._position = b""
        #: a plan for each table, by the source's relation id, with what it was made for
        self._plans: dict[int, tuple[MatchedTable, StepPlan]] = {}
        #: statements of steps, with the table that they were made for
        self._queries: dict[tuple[object, ...], tuple[MatchedTable, bytes | None]] = {}
        #: whether the group goes on with the transaction that pieces before it have begun
        self._goes_on = False
        self._origins = self._own_origins()
        self.statements = 0
        self.declined = 0
        self.why_declined = ""

    def write(self, group: ChangeGroup) -> bool:
        """Write a group, or a piece; return False, with nothing of it left, for one that has to be
        written change by change. What it ends is committed, with its position.

        After False and after an error nothing is open.

        Raises:
            TargetError: of the target, and no matter of the group's rows.
            TargetTableMissing, TargetColumnsMissing, TargetTableUnusable: of a table that the group
                changes.
        """
        head = group.last
        if head is None:
            return True
        # Who rolled back in between, as the stream broke off, has taken the pieces back, too.
        self._goes_on = self._session.in_transaction
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    return self._written(group, head)
                except psycopg.Error as error:
                    if error.sqlstate not in _PASSING or self._goes_on or attempt + 1 == _ATTEMPTS:
                        raise
                    self.give_up()
        except psycopg.Error as error:
            self.give_up()
            state = error.sqlstate
            if is_of_rows(error) and state not in _PASSING:
                return self._decline(" ".join(str(error).split()))
            raise from_postgres(
                error, "a group of transactions can't be applied", self._session.dsn
            ) from error
        except BaseException:
            self.give_up()
            raise
        raise AssertionError

    def write_into(self, group: ChangeGroup) -> bool:
        """Write a group, or a piece, into the target's transaction that is open, whose beginning
        and end are the caller's; return False, with nothing of the group left, for one that has to
        be written change by change.

        Raises:
            psycopg.Error: of the target, and no matter of the group's rows: the transaction is to
                be rolled back.
            TargetTableMissing, TargetColumnsMissing, TargetTableUnusable: as :meth:`write`.
        """
        if group.last is None:
            return True
        self._goes_on = True
        tables = self.plans(group)
        made = None if tables is None else steps(group, {r: p for r, (_, p) in tables.items()})
        if tables is None or made is None:
            return self._decline(_NOT_BY_KEY)
        if not made:
            return True
        self._session.savepoint(_SAVEPOINT)
        try:
            self._connection.execute(statements.PLANNER_SQL)
            mismatch = self._write(made, tables)
        except psycopg.Error as error:
            if not is_of_rows(error) or error.sqlstate in _PASSING:
                raise
            mismatch = " ".join(str(error).split())
        if not mismatch:
            self._session.release(_SAVEPOINT)
            return True
        self._session.roll_back_to(_SAVEPOINT)
        self._forget_unprepared()
        self.look_for_origins()
        return self._decline(mismatch)

    def attempt(self, made: Sequence[Step], tables: Plans) -> str:
        """Write steps into a transaction that is begun for them, and leave it open; return what is
        not as expected, "" if all is.

        Raises:
            psycopg.Error: the target's; the transaction has failed.
        """
        self._goes_on = False
        return self._write(made, tables)

    def look_for_origins(self) -> None:
        """Look anew whose rows are ours: a session that has copied a table since, or writes beside
        this one, has an origin of its own.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._origins = self._own_origins()
        self._queries.clear()

    # -- one attempt --------------------------------------------------------------------------

    def _written(self, group: ChangeGroup, head: TransactionHead) -> bool:
        tables = self.plans(group)
        made = None if tables is None else steps(group, {r: p for r, (_, p) in tables.items()})
        if tables is None or made is None:
            self.give_up()
            return self._decline(_NOT_BY_KEY)
        if not (group.is_piece or self._goes_on) and _only_inserts(made, tables):
            if made:
                self._insert_and_commit(made, tables, head)
            else:
                self._session.passed(head.end_lsn)
            return True
        mismatch = self._write(made, tables)
        if mismatch:
            self.give_up()
            self.look_for_origins()
            return self._decline(mismatch)
        if not group.is_piece:
            if made or self._goes_on:
                self._session.commit(head)
            else:
                self._session.passed(head.end_lsn)
        return True

    def _insert_and_commit(
        self, made: Sequence[Step], tables: Plans, head: TransactionHead
    ) -> None:
        """Write new rows and commit, in one round trip: an INSERT writes all of its rows or fails,
        and behind what failed nothing is done. So nobody needs to look before the commit.

        What is sent up to a Sync is one transaction, without BEGIN and COMMIT.
        """
        position = self._position or self._keep_position()
        pipeline = _Pipeline(self._pgconn)
        # Rows that are new are looked for nowhere: the planner may do as it likes.
        for step in made:
            self._add(pipeline, step, tables)
        pipeline.execute(position, self._session.position_values(head), (1, 1))
        try:
            pipeline.run()
        except psycopg.Error:
            # It is rolled back by now, if the connection is there.
            if self._pgconn.status == pq.ConnStatus.OK:
                self._forget_unprepared()
            raise
        self._session.committed(head)

    def plans(self, group: ChangeGroup) -> Plans | None:
        """What to do with each table; None when one can't be written so. Tables that are not to be
        written are left out.
        """
        found: Plans = {}
        if not group.is_plain:
            return None
        touched = group.touched()
        if len({one.relation.relation_id for one in touched}) != len(touched):
            # Announced anew within the group: what the target is matched with is the newer one.
            return None
        heads: list[TransactionHead] = []
        for one in touched:
            relation = one.relation
            since: int | None = 0
            if self._should_apply is not None:
                heads = heads or group.heads()
                since = self._since(relation, heads)
            if since is None:
                continue
            self._tables.learn([relation])
            table = self._tables.table(self._connection, relation.relation_id)
            others = one.updates or one.deletes
            if not (table.groupable if others else table.groupable_inserts) or table.fires:
                return None
            found[relation] = self._plan(table, since)
        return found

    def _plan(self, table: MatchedTable, since: int) -> tuple[MatchedTable, StepPlan]:
        """Return a table's plan; the last one if nothing differs."""
        known = self._plans.get(table.relation.relation_id)
        if known is not None and known[0] is table:
            plan = known[1]
            if plan.since == since and plan.copy_from == self.copy_from:
                return known
        made = table, statements.plan(table, copy_from=self.copy_from, since=since)
        self._plans[table.relation.relation_id] = made
        return made

    def _since(self, relation: SourceRelation, heads: Sequence[TransactionHead]) -> int | None:
        """The first commit of the group that counts for a table; None if none does."""
        assert self._should_apply is not None
        if self._should_apply(relation, heads[0].commit_lsn):
            return 0
        low, high = 1, len(heads)
        while low < high:
            middle = (low + high) // 2
            if self._should_apply(relation, heads[middle].commit_lsn):
                high = middle
            else:
                low = middle + 1
        return heads[low].commit_lsn if low < len(heads) else None

    def _write(
        self,
        made: Sequence[Step],
        tables: Plans,
    ) -> str:
        """Write steps into an open transaction, which is begun if there is none; return what is not
        as expected, "" if all is.
        """
        pipeline = self._begun() if made and not self._goes_on else _Pipeline(self._pgconn)
        expected: list[tuple[int, Step]] = []
        for step in made:
            if step.kind == "truncate":
                if step.truncated:
                    names = {relation: tables[relation][0] for relation in step.truncated}
                    pipeline.add(statements.truncate_sql(step, names))
                    self.statements += 1
                continue
            if step.kind == "copy":
                mismatch = self._mismatch(pipeline, expected) or self._copy(step, tables)
                expected.clear()
                if mismatch:
                    return mismatch
                continue
            place = self._add(pipeline, step, tables)
            if place is None:
                # What was not sent is not in the way of a ROLLBACK.
                return f"{_what(step)} sets a column that is generated always"
            expected.append((place, step))
        return self._mismatch(pipeline, expected)

    def _begun(self) -> _Pipeline:
        pipeline = _Pipeline(self._pgconn)
        pipeline.add(b"BEGIN")
        pipeline.execute(self._name(statements.PLANNER_SQL, pipeline), (), ())
        return pipeline

    def _add(self, pipeline: _Pipeline, step: Step, tables: Plans) -> int | None:
        """Add a step's statement; return its place among the results, None if it can't be said in
        one.
        """
        query = self._query(step, tables)
        if query is None:
            return None
        self.statements += 1
        return pipeline.execute(self._name(query, pipeline), step.params, step.formats)

    def _query(self, step: Step, tables: Plans) -> bytes | None:
        """Return a step's statement; see :func:`.statements.sql`."""
        assert step.relation is not None
        table = tables[step.relation][0]
        key = table.oid, step.kind, step.columns, step.formats if step.kind == "copy" else ()
        known = self._queries.get(key)
        if known is None or known[0] is not table:
            if len(self._queries) >= _PREPARED_MAX:
                self._queries.clear()
            known = table, statements.sql(table, step, self._origins)
            self._queries[key] = known
        return known[1]

    def _mismatch(self, pipeline: _Pipeline, expected: Sequence[tuple[int, Step]]) -> str:
        """Have the pipeline done, and compare; return what differs."""
        results = pipeline.run()
        for index, step in expected:
            result = results[index]
            if step.kind == "absent":
                if result.ntuples:
                    return f"{_what(step)} found a row"
            elif (result.command_tuples or 0) != step.rows:
                return f"{_what(step)} wrote {result.command_tuples}"
        return ""

    def _copy(self, step: Step, tables: Plans) -> str:
        query = self._query(step, tables)
        assert query is not None
        self.statements += 1
        with self._connection.cursor() as cursor:
            with cursor.copy(query) as copy:
                copy.write(step.params[0])
            if cursor.rowcount == step.rows:
                return ""
            return f"{_what(step)} wrote {cursor.rowcount}"

    def _keep_position(self) -> bytes:
        """Prepare the statement that is in every commit, for good, and outside of what may fail,
        behind which nothing is prepared; return its name.
        """
        self._names += 1
        self._position = b"spillway_%d" % self._names
        pipeline = _Pipeline(self._pgconn)
        pipeline.prepare(self._position, self._session.position_query())
        pipeline.run()
        return self._position

    def _name(self, query: bytes, pipeline: _Pipeline) -> bytes:
        """Return what a statement is prepared as, and prepare it if it is not; the one that was
        prepared first goes when there are too many.
        """
        if (known := self._prepared.get(query)) is not None:
            return known
        if len(self._prepared) >= _PREPARED_MAX:
            oldest = next(iter(self._prepared))
            pipeline.add(b"DEALLOCATE " + self._prepared.pop(oldest))
        self._names += 1
        name = b"spillway_%d" % self._names
        pipeline.prepare(name, query)
        self._prepared[query] = name
        return name

    def _decline(self, why: str) -> bool:
        self.declined += 1
        self.why_declined = why
        return False

    # -- giving up ----------------------------------------------------------------------------

    def give_up(self) -> None:
        """Roll back, if the connection is there."""
        if self._connection.broken or self._pgconn.status != pq.ConnStatus.OK:
            return
        in_transaction = self._session.in_transaction
        self._session.rollback()
        if in_transaction:
            self._forget_unprepared()

    def _forget_unprepared(self) -> None:
        """Ask which statements are prepared: what was to be behind one that failed is not."""
        there = {
            name
            for (name,) in self._connection.execute(
                "SELECT name::text FROM pg_catalog.pg_prepared_statements"
            ).fetchall()
        }
        self._prepared = {
            query: name for query, name in self._prepared.items() if name.decode() in there
        }

    def _own_origins(self) -> tuple[int, ...]:
        """The replication origins of which one must have written a row that is expected; none when
        the target does not keep that.
        """
        session = self._session
        if not session.facts.has_commit_times or session.major < _MAJOR_OF_ROW_ORIGINS:
            return ()
        if not session.uses_origin:
            return (0,)
        # Those of sessions that copied tables, and of those that apply beside this one, begin so.
        own = session.plan.origin
        rows: Any = self._connection.execute(
            "SELECT roident::int8 FROM pg_catalog.pg_replication_origin WHERE roname = %s"
            " OR pg_catalog.starts_with(roname, %s) ORDER BY 1",
            [own, f"{own}_"],
        ).fetchall()
        return tuple(int(number) for (number,) in rows)


def _only_inserts(made: Sequence[Step], tables: Plans) -> bool:
    """Whether all steps are INSERTs into ordinary tables: a partition's trigger may take a row."""
    return all(
        one.kind == "insert" and one.relation is not None and tables[one.relation][0].kind == "r"
        for one in made
    )


#: pg_xact_commit_timestamp_origin is there from 14 on.
_MAJOR_OF_ROW_ORIGINS: Final = 14


def _what(step: Step) -> str:
    assert step.relation is not None
    return f"{step.kind} of {step.rows} rows of {step.relation.schema}.{step.relation.name}"


class _Pipeline:
    """Statements that are sent without waiting for each other's results."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._commands: list[Callable[[], None]] = []

    def add(self, query: bytes) -> int:
        """Add a statement without parameters; return its place among the results."""
        self._commands.append(partial(self._pgconn.send_query_params, query, None))
        return len(self._commands) - 1

    def prepare(self, name: bytes, query: bytes) -> None:
        self._commands.append(partial(self._pgconn.send_prepare, name, query))

    def execute(self, name: bytes, params: Sequence[bytes], formats: Sequence[int]) -> int:
        """Add a prepared statement; return its place among the results."""
        self._commands.append(
            partial(self._pgconn.send_query_prepared, name, params, param_formats=formats)
        )
        return len(self._commands) - 1

    def run(self) -> list[pq.abc.PGresult]:
        """Send all of it, and return what came of each; then there is nothing in it.

        Raises:
            psycopg.Error: of the first that failed; those behind it were not done.
        """
        if not self._commands:
            return []
        commands, self._commands = self._commands, []
        self._pgconn.enter_pipeline_mode()
        for command in commands:
            command()
        self._pgconn.pipeline_sync()
        found = self._results()
        self._pgconn.exit_pipeline_mode()
        for result in found:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        return found

    def _results(self) -> list[pq.abc.PGresult]:
        """Send what is not sent yet, and take what comes, up to the end."""
        found: list[pq.abc.PGresult] = []
        last: pq.abc.PGresult | None = None
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        while True:
            unsent = self._pgconn.flush()
            poll.modify(self._pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            poll.poll()
            self._pgconn.consume_input()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    if last is None:
                        break
                    found.append(last)
                    last = None
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    return found
                else:
                    last = result
