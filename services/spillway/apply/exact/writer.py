"""Transactions, written change by change: each source transaction in one of the target's.

A transaction is cut into chunks. A chunk's statements are sent in one go (pipeline mode), each as
if nothing were in its way. What the server answers tells whether that was so: one row was met, and
no other origin had written it. If it was not, the chunk is taken back and written again by
:mod:`spillway.apply.exact.one_by_one`, which tells conflicts and resolves them. ::

    BEGIN ─▶ chunk 1 ─▶ SAVEPOINT ─▶ chunk 2 ─▶ SAVEPOINT ─▶ chunk 3 ─▶ … ─▶ position, COMMIT
                │ something in its way        │ something in its way
                ▼                             ▼
         ROLLBACK, BEGIN, one by one    ROLLBACK TO, one by one

What a constraint refuses that waited for the end is no row's that is known then. With dead letters
such a transaction is rolled back and written once more, one by one, and that constraint is checked
with each row.

So a transaction of one chunk has no savepoint, and never more than a chunk is in memory, however
large the transaction is: a group that holds a piece of one is written as it comes, and its
transaction stays open until its end arrives.

What is passed over: tables that ``should_apply`` refuses, and logical messages but for events of
DDL (:mod:`spillway.apply.schema`). TRUNCATE takes the tables that are applied, with RESTART
IDENTITY, and never cascades further than the source said, as with PostgreSQL's worker.

Source: apply_handle_begin, apply_handle_commit, apply_handle_truncate
(src/backend/replication/logical/worker.c)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import psycopg

from spillway.apply.conflicts.rules import ConflictRules
from spillway.apply.exact import facts
from spillway.apply.exact.failures import end_refused, truncate_refused
from spillway.apply.exact.one_by_one import OneByOne
from spillway.apply.exact.origins import Origins
from spillway.apply.exact.own_tables import write_conflicts
from spillway.apply.exact.raw import cells, prepare_session, raw
from spillway.apply.exact.rows import TableRows
from spillway.apply.exact.statements import TableStatements
from spillway.apply.exact.two_phase import PreparedTransactions
from spillway.apply.schema.changes import PREFIX as DDL_PREFIX
from spillway.apply.target.failures import from_postgres, may_be_of_a_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from spillway.apply.changes import Change, SourceRelation, TransactionHead
    from spillway.apply.conflicts.log import ConflictLog
    from spillway.apply.exact.dead_rows import DeadRows
    from spillway.apply.schema.changes import OwnSchemaChanges, SchemaChanges
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.tables.target_tables import TargetTables
    from spillway.apply.target.session import TargetSession

#: One chunk's bounds: what is in flight, and what is done again when something is in its way.
CHUNK_CHANGES: Final = 128
_CHUNK_BYTES: Final = 1 << 20

#: SQL that drops the foreign keys by which tables refer to some that are not among these.
#: Foreign keys of others, to what is truncated or a partition of it, which may have its own.
_REFERRING: Final = """
WITH truncated AS (
    SELECT oid FROM pg_catalog.unnest(%s::oid[]) t (oid)
    UNION SELECT p.relid FROM pg_catalog.unnest(%s::oid[]) t (oid),
                 LATERAL pg_catalog.pg_partition_tree(t.oid) p
)
SELECT pg_catalog.format('ALTER TABLE %%s DROP CONSTRAINT %%I;', conrelid::regclass, conname)
  FROM pg_catalog.pg_constraint
 WHERE contype = 'f' AND conparentid = 0 AND confrelid IN (TABLE truncated)
   AND conrelid NOT IN (TABLE truncated)
 ORDER BY 1
"""
_PREPARED: Final = "b"
_COMMIT_PREPARED: Final = "K"
_ROLLBACK_PREPARED: Final = "r"


class ExactGroup(Protocol):
    """What the writer asks of a group of transactions, in commit order."""

    @property
    def is_piece(self) -> bool:
        """Whether its transaction goes on in the next group."""

    def heads(self) -> list[TransactionHead]:
        """The transactions."""

    def changes(self, transaction: int) -> Iterator[Change]:
        """Changes of one of them, in their order."""


@dataclass(frozen=True, slots=True)
class ExactOptions:
    """What a subscription wishes.

    Attributes:
        rules: what becomes of conflicts.
        conflicts_table: write them into ``spillway.conflicts`` on the target, too.
        dead_letter: write rows that the target refuses into ``spillway.dead_letter`` and go on.
        may_skip: errors name the command that passes over a transaction. A table that catches up
            reads what the slot was moved over long ago.
        may_set_aside: errors name the option that has the other tables go on: not where it is on
            already, or where no copy could bring a table back.
    """

    rules: ConflictRules = field(default_factory=ConflictRules)
    conflicts_table: bool = False
    dead_letter: bool = False
    may_skip: bool = True
    may_set_aside: bool = True


class _Statement(NamedTuple):
    text: bytes
    values: Sequence[bytes | None]
    #: the row that it writes is told by the origin that wrote it before
    tells_origin: bool
    #: it writes one row, or something is in its way; None if it says nothing
    rows: int | None


class _RefusedAtTheEndError(Exception):
    """What a constraint refuses that waited for the end of the transaction."""

    def __init__(self, error: psycopg.IntegrityError, head: TransactionHead) -> None:
        super().__init__(str(error))
        self.error = error
        self.head = head
        #: the transaction did not come in pieces: it can be written again
        self.is_whole = False


class ExactWriter:
    """Writes groups into the target, exactly.

    Attributes:
        dead_letters: rows in the dead letters, of this run.
    """

    def __init__(
        self,
        session: TargetSession,
        tables: TargetTables,
        options: ExactOptions,
        log: ConflictLog,
        should_apply: Callable[[SourceRelation, int], bool] | None = None,
        schema_changes: SchemaChanges | OwnSchemaChanges | None = None,
        dead_rows: DeadRows | None = None,
        may_prepare: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make a writer.

        Args:
            session: where it writes; nobody else uses it meanwhile.
            tables: the target's tables, which know the Relation messages of every group.
            options: see there.
            log: hears of conflicts before their transaction is committed.
            should_apply: of a table and the LSN of a commit, whether its changes are written.
            schema_changes: takes events of DDL, at their place; without it they are passed over.
            dead_rows: tells rows that somebody else deleted; without it nobody does.
            may_prepare: whether what is prepared on the source is prepared on the target, too; else
                it is passed by, and written whole when it is committed.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._session = session
        self._connection = session.connection
        self._tables = tables
        self._options = options
        self._log = log
        self._should_apply = should_apply
        self._schema_changes = schema_changes
        self._may_prepare = may_prepare
        prepare_session(self._connection)
        own = session.plan.origin if session.uses_origin else None
        self._origins = Origins(self._connection, session.major, own)
        self._prepared = PreparedTransactions(session)
        self._rows: dict[int, tuple[MatchedTable, TableRows]] = {}
        #: what tables knew, of those that were written as they had been before
        self._newest: dict[int, SourceRelation] = {}
        #: the transaction that goes on in the next group
        self._within: TransactionHead | None = None
        #: whether the open transaction is passed over; what has been written of it; its changes
        self._is_there = False
        self._chunks = 0
        self._number = 0
        self._one_by_one = OneByOne(
            self._connection, session.subscription, options.rules, options.dead_letter, dead_rows,
            has_constraints=not session.may_replicate_role, may_skip=options.may_skip,
            may_set_aside=options.may_set_aside,
        )  # fmt: skip
        self.dead_letters = 0

    def forget_tables(self) -> None:
        """Ask the target for its indexes again: its tables may have changed."""
        self._rows.clear()

    def forget_passed(self, head: TransactionHead) -> None:
        """Forget of a transaction that it was passed by when it was prepared: *head*, which commits
        it, was written whole.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._prepared.forget_passed(head)

    def write(self, group: ExactGroup) -> None:
        """Write a group. What it ends is committed, with its position; what it does not end stays
        open, and the next group must go on with it.

        After an error nothing is open, and what was not committed has to come again.

        Raises:
            ApplyConflict: a conflict whose resolution is error.
            TargetRowRefused: the target refuses a row.
            TargetTableMissing, TargetTableMismatch, TargetIdentityInsufficient: of a table.
            TargetError: anything else that the target says.
        """
        heads = group.heads()
        try:
            for i, head in enumerate(heads):
                if group.is_piece or self._within is not None:
                    self._transaction(head, group.changes(i), ends=not group.is_piece)
                else:
                    self._whole(head, partial(group.changes, i))
            self._tables.learn(self._newest.values())
            self._newest.clear()
        except _RefusedAtTheEndError as refused:
            self._give_up()
            raise end_refused(
                refused.error, refused.head, self._session.subscription,
                is_whole=refused.is_whole, may_set_aside=self._options.may_set_aside,
            ) from refused.error  # fmt: skip
        except psycopg.Error as error:
            self._give_up()
            raise from_postgres(error, "a change can't be applied", self._session.dsn) from error
        except BaseException:
            self._give_up()
            raise

    def write_into(self, head: TransactionHead, changes: Iterable[Change]) -> None:
        """Write a transaction's changes into the target's transaction that is open, whose beginning
        and end are the caller's: several may go into one.

        Raises:
            TargetError: as :meth:`write`; the transaction is to be rolled back.
            psycopg.Error: the target refused, or did not answer.
        """
        self._reset()
        self._chunks = 1
        self._write_chunks(head, changes)
        self._write_down()

    def write_whole_into(
        self,
        head: TransactionHead,
        changes: Callable[[], Iterable[Change]],
        constraints: Sequence[str],
    ) -> None:
        """Write a transaction that is all there as :meth:`write_into`, and check *constraints*, as
        SQL has them, at its end; if one refuses that, it is written once more, and they are checked
        with each row.

        It is not :meth:`_whole`'s second try: that one has the target's transaction for itself,
        learns at its COMMIT that it is refused, and begins it anew. Here others went before in the
        same, so that the end is a SET CONSTRAINTS whose constraints must be known, and what is
        undone goes to a savepoint.

        Raises:
            TargetError: as :meth:`write_into`.
            psycopg.Error: as :meth:`write_into`.
        """
        at_once = self._one_by_one.at_once
        check = f"SET CONSTRAINTS {', '.join(constraints)} IMMEDIATE".encode()
        raw(self._connection, b"SAVEPOINT spillway_transaction")
        try:
            self.write_into(head, changes())
            raw(self._connection, check)
        except psycopg.IntegrityError:
            raw(self._connection, b"ROLLBACK TO SAVEPOINT spillway_transaction")
            at_once += constraints
            self._one_by_one.check_at_once()
            self.write_into(head, changes())
        finally:
            at_once.clear()
        raw(self._connection, b"SET CONSTRAINTS ALL DEFERRED")
        raw(self._connection, b"RELEASE SAVEPOINT spillway_transaction")

    def may_have_refused(self, error: psycopg.Error) -> list[str]:
        """Return the constraints that may have refused a transaction's end, as SQL has them, when
        it is over.

        Raises:
            psycopg.Error: the target did not answer.
        """
        return self._one_by_one.may_have_refused(error)

    def write_as_expected(self, head: TransactionHead, changes: Sequence[Change]) -> bool:
        """Write at most :data:`CHUNK_CHANGES` changes into the target's transaction that is open,
        if nothing is in the way of any; else return False: the transaction is to be rolled back.

        Raises:
            TargetError: of a table.
            psycopg.Error: the target refused for a reason that is no row's, or did not answer.
        """
        chunk = [(0, change) for change in changes if self._is_applied(change, head)]
        if not chunk:
            return True
        statements = self._statements(head, chunk)
        return statements is not None and self._run(statements)

    # -- transactions -------------------------------------------------------------------------

    def _whole(self, head: TransactionHead, changes: Callable[[], Iterator[Change]]) -> None:
        """Write a transaction that is all there, more than once if only its end is refused."""
        at_once = self._one_by_one.at_once
        try:
            while True:
                try:
                    self._transaction(head, changes(), ends=True)
                except _RefusedAtTheEndError as refused:
                    refused.is_whole = True
                    if not self._options.dead_letter:
                        raise
                    self._give_up()
                    names = self._one_by_one.may_have_refused(refused.error)
                    if set(names) <= set(at_once):
                        raise
                    at_once += names
                else:
                    return
        finally:
            at_once.clear()

    def _transaction(self, head: TransactionHead, changes: Iterator[Change], *, ends: bool) -> None:
        if head.kind in (_COMMIT_PREPARED, _ROLLBACK_PREPARED):
            self._prepared.finish(head)
            return
        if self._within is None:
            self._begin(head)
        if not self._is_there:
            self._write_chunks(head, changes)
        self._within = None if ends else head
        if ends:
            self._end(head)

    def _begin(self, head: TransactionHead) -> None:
        self._reset()
        # It may have been prepared before this program ended, or lost its connection.
        is_prepared = head.kind == _PREPARED
        self._is_there = is_prepared and self._prepared.is_there(head)
        self._session.begin()
        if is_prepared and not self._is_there and not self._may_prepare():
            self._prepared.pass_by(head)
            self._is_there = True
        self._one_by_one.check_at_once()

    def _end(self, head: TransactionHead) -> None:
        session = self._session
        self._write_down()
        if self._schema_changes is not None and not self._is_there:
            self._schema_changes.end()
        try:
            if head.kind == _PREPARED and not self._is_there:
                self._prepared.prepare(head)
            else:
                session.commit(head)
        except psycopg.IntegrityError as error:
            raise _RefusedAtTheEndError(error, head) from error
        self.dead_letters += self._one_by_one.dead_letters
        self._reset()

    def _reset(self) -> None:
        self._is_there = False
        self._chunks = self._number = 0
        self._one_by_one.met = []
        self._one_by_one.refused = None
        self._one_by_one.dead_letters = 0

    def _write_down(self) -> None:
        """Have the conflicts of the open transaction written down, before it is committed."""
        met = self._one_by_one.met
        if met and self._options.conflicts_table:
            write_conflicts(self._connection, self._session.subscription, met)
        self._log.record(met)

    def _give_up(self) -> None:
        """Roll back; a conflict that is an error is written down all the same."""
        self._within = None
        refused = self._one_by_one.refused
        self._reset()
        if refused is not None:
            self._log.record([refused])
        if not self._connection.closed:
            self._session.rollback()
            if self._schema_changes is not None:
                self._tables.forget()
                self._rows.clear()
                self._schema_changes.rolled_back()

    # -- chunks -------------------------------------------------------------------------------

    def _write_chunks(self, head: TransactionHead, changes: Iterable[Change]) -> None:
        chunk: list[tuple[int, Change]] = []
        size = 0
        for change in changes:
            self._number += 1
            if change.kind == "M":
                if chunk and self._is_schema_change(change):
                    self._write_chunk(head, chunk)
                    chunk, size = [], 0
                self._meet(change, head)
                continue
            if renamed := self._renamed(change, head):
                if chunk:
                    self._write_chunk(head, chunk)
                    chunk, size = [], 0
                self._meet_names(renamed, head)
            if not self._is_applied(change, head):
                continue
            chunk.append((self._number, change))
            size += _size(change)
            if len(chunk) >= CHUNK_CHANGES or size >= _CHUNK_BYTES:
                self._write_chunk(head, chunk)
                chunk, size = [], 0
        if chunk:
            self._write_chunk(head, chunk)

    def _is_schema_change(self, change: Change) -> bool:
        message = change.message
        return self._schema_changes is not None and message is not None and message[0] == DDL_PREFIX

    def _meet(self, change: Change, head: TransactionHead) -> None:
        """Hand an event of DDL on; what it does to the target stays when a chunk is taken back."""
        if not self._is_schema_change(change):
            return
        assert self._schema_changes is not None
        assert change.message is not None
        self._chunks += 1
        if self._schema_changes.meet(head, change.message[1]):
            self._tables.forget()
            self._rows.clear()

    def _renamed(
        self, change: Change, head: TransactionHead
    ) -> list[tuple[SourceRelation, tuple[str, str]]]:
        """Return the tables of a change that are known by another name yet, and that."""
        changes = self._schema_changes
        if changes is None:
            return []
        relations = change.truncated if change.relation is None else (change.relation,)
        return [
            (relation, old)
            for relation in relations
            if (old := changes.find_renamed(relation, head.commit_lsn)) is not None
        ]

    def _meet_names(
        self, renamed: list[tuple[SourceRelation, tuple[str, str]]], head: TransactionHead
    ) -> None:
        assert self._schema_changes is not None
        self._chunks += 1
        for relation, old in renamed:
            self._schema_changes.meet_name(relation, old, head)
        self._tables.forget()
        self._rows.clear()

    def _is_applied(self, change: Change, head: TransactionHead) -> bool:
        # Of a TRUNCATE each table is asked for by itself; a logical message has none.
        if change.relation is None:
            return change.kind == "T"
        return self._is_table_applied(change.relation, head)

    def _is_table_applied(self, relation: SourceRelation, head: TransactionHead) -> bool:
        return self._should_apply is None or self._should_apply(relation, head.commit_lsn)

    def _write_chunk(self, head: TransactionHead, chunk: list[tuple[int, Change]]) -> None:
        statements = None if self._one_by_one.at_once else self._statements(head, chunk)
        is_first = self._chunks == 0
        self._chunks += 1
        if statements is not None:
            if not is_first:
                raw(self._connection, b"SAVEPOINT spillway_chunk")
            if self._run(statements):
                if not is_first:
                    raw(self._connection, b"RELEASE SAVEPOINT spillway_chunk")
                return
            if is_first:
                self._session.rollback()
                self._session.begin()
            else:
                raw(self._connection, b"ROLLBACK TO SAVEPOINT spillway_chunk")
        for number, change in chunk:
            if change.kind == "T":
                truncate = self._truncate(change, head)
                if truncate is not None:
                    self._truncate_alone(truncate, change, head)
            else:
                self._one_by_one.write(self._rows_of(change), change, number, head)

    def _statements(
        self, head: TransactionHead, chunk: list[tuple[int, Change]]
    ) -> list[_Statement] | None:
        """The chunk's statements as if nothing were in their way; None if one can't be told."""
        found: list[_Statement] = []
        for _, change in chunk:
            if change.kind == "T":
                statement = self._truncate(change, head)
                if statement is not None:
                    found.append(statement)
                continue
            statements = self._rows_of(change).statements
            if change.kind == "I":
                assert change.new is not None
                found.append(_Statement(*statements.insert(change.new), False, 1))
                continue
            statements.table.updatable_or_raise()
            if change.kind == "D":
                found.append(_Statement(*statements.delete(change), statements.tells_origins, 1))
                continue
            update = statements.update(change)
            if update is None:
                return None
            found.append(_Statement(*update, statements.tells_origins, 1))
        return found

    def _run(self, statements: list[_Statement]) -> bool:
        """Run them; False if something was in the way of one, and all have to be taken back."""
        try:
            with self._connection.pipeline():
                cursors = [
                    raw(self._connection, one.text, one.values, prepare=True) for one in statements
                ]
            return all(
                one.rows is None or self._is_expected(one, cursor)
                for one, cursor in zip(statements, cursors, strict=True)
            )
        except self._one_by_one.refusals:
            return False
        except psycopg.errors.FeatureNotSupported:
            if all(one.rows is not None for one in statements):
                raise
            # A TRUNCATE, by itself, says what is in its way.
            return False
        except psycopg.Error as error:
            if not may_be_of_a_table(error):
                raise
            # One by one it is known whose it is.
            return False

    def _truncate_alone(self, truncate: _Statement, change: Change, head: TransactionHead) -> None:
        raw(self._connection, b"SAVEPOINT spillway_truncate")
        try:
            raw(self._connection, truncate.text)
        except psycopg.errors.FeatureNotSupported as error:
            raw(self._connection, b"ROLLBACK TO SAVEPOINT spillway_truncate")
            tables = [
                self._table(relation)
                for relation in change.truncated
                if self._is_table_applied(relation, head)
            ]
            oids = [table.oid for table in tables]
            keys = self._connection.execute(_REFERRING, [oids, oids]).fetchall()
            raise truncate_refused(
                error,
                [f"{table.schema}.{table.name}" for table in tables],
                [sql for (sql,) in keys],
                head,
                self._session.subscription,
            ) from error
        raw(self._connection, b"RELEASE SAVEPOINT spillway_truncate")

    def _is_expected(self, statement: _Statement, cursor: psycopg.RawCursor[Any]) -> bool:
        if cursor.rowcount != statement.rows:
            return False
        if not statement.tells_origin:
            return True
        # NULL: the target does not know any more, or this transaction wrote it.
        (number,) = cells(cursor, 0)
        return number is None or self._origins.is_ours(int(number))

    def _truncate(self, change: Change, head: TransactionHead) -> _Statement | None:
        names = [
            self._table(relation).only
            for relation in change.truncated
            if self._is_table_applied(relation, head)
        ]
        if not names:
            return None
        identity = " RESTART IDENTITY" if change.restart_identity else ""
        return _Statement(f"TRUNCATE {', '.join(names)}{identity}".encode(), (), False, None)

    def _rows_of(self, change: Change) -> TableRows:
        assert change.relation is not None
        table = self._table(change.relation)
        known = self._rows.get(change.relation.relation_id)
        if known is None or known[0] is not table:
            asked = facts.ask(self._connection, table.oid, self._session.major)
            statements = TableStatements(table, asked, tells_origins=self._origins.are_known)
            rows = TableRows(self._connection, statements, asked, self._origins)
            known = self._rows[change.relation.relation_id] = table, rows
        return known[1]

    def _table(self, relation: SourceRelation) -> MatchedTable:
        """The target's table, matched with what the source's was when a change happened."""
        tables = self._tables
        try:
            newest = tables.relation(relation.relation_id)
        except KeyError:
            newest = None
        if newest != relation:
            if newest is not None:
                self._newest.setdefault(relation.relation_id, newest)
            tables.learn([relation])
        return tables.table(self._connection, relation.relation_id)


def _size(change: Change) -> int:
    values = (*(change.old or ()), *(change.new or ()))
    return sum(len(value) for value in values if isinstance(value, bytes))
