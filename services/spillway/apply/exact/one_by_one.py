"""One change, with everything that may be in its way: found, judged, resolved, written.

Slow, and only for changes that did not go the quick way. Each is written within a savepoint, so
that an attempt that fails (somebody else wrote a row of that key just now; a value that a
constraint refuses) can be taken back alone. ::

    insert ─▶ ON CONFLICT DO NOTHING ─▶ written? ─▶ done
                    │ no
                    ▼
              rows with its keys ─▶ insert_exists, multiple_unique_conflicts ─▶ resolution

    update ─▶ find and lock ─▶ there? no ─▶ update_missing ─▶ resolution
                    ▼
              another's origin? ─▶ update_origin_differs ─▶ resolution
                    ▼
              rows with its new keys? ─▶ update_exists, … ─▶ resolution ─▶ write by ctid

    delete ─▶ find and lock ─▶ delete_missing, delete_origin_differs ─▶ resolution ─▶ by ctid

A worker of PostgreSQL looks at no foreign key and at no constraint that is DEFERRABLE, and has the
target's triggers rest. Where the role may not have that, what the source's statement did to several
rows at once, or its transaction did before its end, comes row by row: two rows that swap a key, a
row before the one that it refers to. So what a row alone violates waits for the end of the
transaction, if it may. What still is violated then is looked for by writing the transaction once
more, with that constraint checked at once.

Source: apply_handle_insert_internal, apply_handle_update_internal, apply_handle_delete_internal
(src/backend/replication/logical/worker.c), CheckAndReportConflict
(src/backend/executor/execReplication.c)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.changes import UNCHANGED, Change
from spillway.apply.conflicts.conflict import Conflict, LocalRow, Row
from spillway.apply.conflicts.kinds import ConflictKind, Resolution
from spillway.apply.exact.failures import conflict_error, row_refused, table_refused
from spillway.apply.exact.own_tables import write_dead_letter
from spillway.apply.exact.raw import raw
from spillway.apply.exact.rows import FoundRow, TableRows, names_of
from spillway.apply.target.failures import may_be_of_a_table
from spillway.errors import SpillwayError, UnsupportedFeature
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.timestamps import moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.apply.changes import TransactionHead
    from spillway.apply.conflicts.rules import ConflictRules
    from spillway.apply.exact.dead_rows import DeadRows

    Connection = psycopg.Connection[Any]

#: Somebody else may write a row of the same key again and again; then it is an error.
_ATTEMPTS: Final = 5
_UNIQUE_VIOLATION: Final = "23505"
#: Foreign keys, keys, exclusion constraints and constraint triggers that are DEFERRABLE. It leaves
#: out the others, which by a name that they share with one would be an error.
_DEFER: Final = b"SET CONSTRAINTS ALL DEFERRED"
_LONG_AGO: Final = datetime(1, 1, 1, tzinfo=UTC)

_CONSTRAINT_TRIGGERS: Final = b"""
SELECT DISTINCT pg_catalog.format('%I.%I', n.nspname, c.conname)
  FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace
 WHERE c.contype = 't' AND c.condeferrable ORDER BY 1
"""


class _Stop(Exception):
    """A conflict whose resolution is error."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict.message())
        self.conflict = conflict


@dataclass(slots=True)
class OneByOne:
    """Writes changes one by one, in the transaction that is open.

    Attributes:
        met: conflicts that were met and resolved, of this transaction, in their order.
        refused: the conflict that ended it, if one did.
        dead_letters: rows that went to the dead letters, of this transaction.
        at_once: constraints, as SQL has them, that do not wait in this transaction.
        may_skip: the transaction can be passed over by moving the slot.
        may_set_aside: a table may be set aside by an option, and none is yet.
    """

    connection: Connection
    subscription: str
    rules: ConflictRules
    has_dead_letters: bool = False
    #: sees rows that are gone; None: nobody looks
    dead_rows: DeadRows | None = None
    #: the target's constraints and triggers take effect in this session
    has_constraints: bool = False
    met: list[Conflict] = field(default_factory=list)
    refused: Conflict | None = None
    dead_letters: int = 0
    at_once: list[str] = field(default_factory=list)
    may_skip: bool = True
    may_set_aside: bool = True

    @property
    def refusals(self) -> tuple[type[psycopg.Error], ...]:
        """What a row is refused with, or only for now."""
        if self.has_constraints:
            return psycopg.DataError, psycopg.IntegrityError, psycopg.errors.RaiseException
        return psycopg.DataError, psycopg.IntegrityError

    def check_at_once(self) -> None:
        """Have what is to be checked at once not wait, from the transaction's beginning on.

        Raises:
            psycopg.Error: the target did not answer.
        """
        for name in self.at_once:
            raw(self.connection, f"SET CONSTRAINTS {name} IMMEDIATE".encode())

    def may_have_refused(self, error: psycopg.Error) -> list[str]:
        """Return the constraints that may have refused a transaction's end, as SQL has them: the
        one that the error names, or each constraint trigger, whose errors are its function's.

        Raises:
            psycopg.Error: the target did not answer.
        """
        schema, name = error.diag.schema_name, error.diag.constraint_name
        if schema and name:
            return [f"{quote_identifier(schema)}.{quote_identifier(name)}"]
        return [str(one) for (one,) in raw(self.connection, _CONSTRAINT_TRIGGERS).fetchall()]

    def write(self, rows: TableRows, change: Change, number: int, head: TransactionHead) -> None:
        """Write one insert, update or delete, or do what the rules say instead.

        Raises:
            ApplyConflict: a conflict whose resolution is error.
            TargetRefused: the target refuses the row.
            TargetIdentityInsufficient: nothing says which row is meant.
            psycopg.Error: any other error of the target.
        """
        one = _Writing(self, rows, change, number, head)
        waits = False
        raw(self.connection, b"SAVEPOINT spillway_row")
        for attempt in range(1, _ATTEMPTS + 1):
            one.met = []
            try:
                if waits:
                    raw(self.connection, _DEFER)
                    self.check_at_once()
                one.write()
            except _Stop as stop:
                self._take_back()
                self.refused = stop.conflict
                if not self.has_dead_letters:
                    raise conflict_error(
                        stop.conflict, self.subscription, head,
                        may_skip=self.may_skip, may_set_aside=self.may_set_aside,
                    ) from None  # fmt: skip
                self._dead_letter(one, stop.conflict.sqlstate, stop.conflict.message())
                self.met.append(stop.conflict)
            except self.refusals as error:
                self._take_back()
                state = error.sqlstate or ""
                again = attempt < _ATTEMPTS
                if again and self._may_pass_later(error) and not waits:
                    waits = True
                    continue
                if state == _UNIQUE_VIOLATION and again:
                    continue
                if isinstance(error, psycopg.errors.RaiseException):
                    raise self._refused(error, rows, head) from error
                if not self.has_dead_letters:
                    raise row_refused(
                        error, rows.statements.table, change, number, head, self.subscription,
                        may_skip=self.may_skip, may_set_aside=self.may_set_aside,
                    ) from error  # fmt: skip
                self._dead_letter(one, state, str(error.diag.message_primary or error))
            except psycopg.Error as error:
                if not may_be_of_a_table(error):
                    raise
                raise self._refused(error, rows, head) from error
            else:
                self.met += one.met
            break
        raw(self.connection, b"RELEASE SAVEPOINT spillway_row")

    def _refused(
        self, error: psycopg.Error, rows: TableRows, head: TransactionHead
    ) -> SpillwayError:
        return table_refused(error, rows.statements.table, head, self.connection.info.dsn)

    def _may_pass_later(self, error: psycopg.Error) -> bool:
        """Say whether it may be a constraint, or a trigger in the way of one, that can wait."""
        return self.has_constraints and not isinstance(error, psycopg.DataError)

    def _take_back(self) -> None:
        raw(self.connection, b"ROLLBACK TO SAVEPOINT spillway_row")

    def _dead_letter(self, one: _Writing, sqlstate: str, message: str) -> None:
        write_dead_letter(
            self.connection, self.subscription, one.rows.statements.table, one.change, one.head,
            one.number, sqlstate, message,
        )  # fmt: skip
        self.dead_letters += 1


@dataclass(slots=True)
class _Writing:
    """One attempt to write one change."""

    by: OneByOne
    rows: TableRows
    change: Change
    number: int
    head: TransactionHead
    met: list[Conflict] = field(default_factory=list)

    def write(self) -> None:
        if self.change.kind == "I":
            assert self.change.new is not None
            self._insert(self.change.new)
            return
        self.rows.statements.table.updatable_or_raise()
        if self.change.kind == "U":
            self._update()
        else:
            self._delete()

    # -- insert -------------------------------------------------------------------------------

    def _insert(self, new: Sequence[Any]) -> None:
        statements = self.rows.statements
        if not self.rows.facts.has_deferrable:
            text, values = statements.insert(new)
            if raw(self.by.connection, text, values, prepare=True).rowcount:
                return
        remote = self.rows.completed(names_of(statements, new))
        in_the_way = self.rows.in_the_way(remote, None)
        if not in_the_way:
            # A trigger passed it over, or what refuses it is no unique index that is known here.
            # Then it is the server that says so.
            text, values = statements.insert(new, plain=True)
            raw(self.by.connection, text, values, prepare=True)
            return
        resolution = self._resolve_exists(ConflictKind.INSERT_EXISTS, in_the_way, remote)
        if resolution == Resolution.APPLY_REMOTE:
            kept, *others = _places(in_the_way)
            for place in others:
                self._delete_at(place)
            self._update_at(kept, new, range(len(new)))

    # -- update -------------------------------------------------------------------------------

    def _update(self) -> None:
        change = self.change
        assert change.new is not None
        found = self.rows.find(change)
        if found is None:
            self._missing()
            return
        positions: Sequence[int] = range(len(change.new))
        if found.is_of_another:
            resolution = self._resolve(
                ConflictKind.UPDATE_ORIGIN_DIFFERS, [found], self._remote(change.new)
            )
            if resolution == Resolution.KEEP_LOCAL:
                return
            if resolution == Resolution.MERGE:
                positions = self._changed()
        elif self.rows.statements.table.merges:
            # What it holds of another origin may be from a merge before.
            positions = self._changed()
        positions = [i for i in positions if change.new[i] is not UNCHANGED]
        self._write_over(found, change.new, positions)

    def _write_over(self, found: FoundRow, new: Sequence[Any], positions: Sequence[int]) -> None:
        columns = self.rows.statements.table.columns
        becomes = dict(found.local.row)
        becomes |= {columns[i].name: new[i] for i in positions}
        if any(one.is_generated for one in self.rows.facts.columns):
            becomes = self.rows.completed(becomes)
        in_the_way = self.rows.in_the_way(becomes, found)
        if in_the_way:
            resolution = self._resolve_exists(ConflictKind.UPDATE_EXISTS, in_the_way, becomes)
            if resolution == Resolution.KEEP_LOCAL:
                return
            for place in _places(in_the_way):
                self._delete_at(place)
        self._update_at(found, new, positions)

    def _missing(self) -> None:
        change = self.change
        assert change.new is not None
        dead_rows = self.by.dead_rows
        gone = None if dead_rows is None else dead_rows.deleted(self.rows, change)
        kind = ConflictKind.UPDATE_MISSING if gone is None else ConflictKind.UPDATE_DELETED
        new = list(change.new)
        if change.old is not None and not change.old_is_key:
            new = [
                old if one is UNCHANGED else one for one, old in zip(new, change.old, strict=True)
            ]
        wished = self._wished(kind)
        why = ""
        if wished == Resolution.LAST_UPDATE_WINS and gone is not None:
            why = wished.value
            is_later = moment(self.head.commit_time) > (gone.committed_at or _LONG_AGO)
            wished = Resolution.APPLY_REMOTE if is_later else Resolution.SKIP
        if wished == Resolution.APPLY_REMOTE and UNCHANGED in new:
            wished, why = Resolution.SKIP, "the source did not send values that it did not change"
        self._meet(kind, wished, () if gone is None else (gone,), self._remote(change.new), why)
        if wished == Resolution.APPLY_REMOTE:
            self._insert(new)

    def _changed(self) -> list[int]:
        """Which values the source changed."""
        change = self.change
        assert change.new is not None
        if change.old is None or change.old_is_key:
            relation = self.rows.statements.table.relation
            raise UnsupportedFeature(
                f'"{relation.schema}.{relation.name}" can\'t be merged column by column: the '
                "source does not send what its rows were before",
                hint=f'On the source: ALTER TABLE "{relation.schema}"."{relation.name}" REPLICA '
                "IDENTITY FULL. It counts for what is written after that; for what was written "
                "before, choose another resolution of update_origin_differs for the table.",
            )
        pairs = zip(change.old, change.new, strict=True)
        return [i for i, (old, new) in enumerate(pairs) if old != new]

    # -- delete -------------------------------------------------------------------------------

    def _delete(self) -> None:
        found = self.rows.find(self.change)
        if found is None:
            self._meet(ConflictKind.DELETE_MISSING, self._wished(ConflictKind.DELETE_MISSING))
            return
        if found.is_of_another:
            resolution = self._resolve(ConflictKind.DELETE_ORIGIN_DIFFERS, [found], None)
            if resolution == Resolution.KEEP_LOCAL:
                return
        self._delete_at(found)

    # -- conflicts ----------------------------------------------------------------------------

    def _wished(self, kind: ConflictKind) -> Resolution:
        table = self.rows.statements.table
        return self.by.rules.of(f"{table.schema}.{table.name}", kind)

    def _resolve_exists(
        self, kind: ConflictKind, in_the_way: list[FoundRow], remote: Row
    ) -> Resolution:
        if len({one.local.unique_index for one in in_the_way}) > 1:
            kind = ConflictKind.MULTIPLE_UNIQUE_CONFLICTS
        return self._resolve(kind, in_the_way, remote)

    def _resolve(self, kind: ConflictKind, met: list[FoundRow], remote: Row | None) -> Resolution:
        """Say what becomes of the rows that were met, and write that down: one of error (raised),
        apply_remote, keep_local and merge.
        """
        wished = self._wished(kind)
        why = ""
        if wished == Resolution.LAST_UPDATE_WINS:
            why = wished.value
            # What the source sent: columns of the target's own have no say.
            new = self.change.new
            sent = None if remote is None or new is None else self._remote(new)
            wished = self._last([one.local for one in met], sent)
        # PostgreSQL tells one row of each index.
        told: dict[str, LocalRow] = {}
        for one in met:
            told.setdefault(one.local.unique_index, one.local)
        self._meet(kind, wished, tuple(told.values()), remote, why)
        return wished

    def _last(self, local: list[LocalRow], remote: Row | None) -> Resolution:
        """Whose row was committed last; a row whose time isn't kept is older than any."""
        theirs = moment(self.head.commit_time)
        ours = max(one.committed_at or _LONG_AGO for one in local)
        if theirs != ours:
            return Resolution.APPLY_REMOTE if theirs > ours else Resolution.KEEP_LOCAL
        if remote is None:
            return Resolution.APPLY_REMOTE
        of_columns = [name for name in remote if name in local[0].row]
        greater = max(_comparable(one.row, of_columns) for one in local)
        remote_wins = _comparable(remote, of_columns) >= greater
        return Resolution.APPLY_REMOTE if remote_wins else Resolution.KEEP_LOCAL

    def _meet(
        self,
        kind: ConflictKind,
        resolution: Resolution,
        local: tuple[LocalRow, ...] = (),
        remote: Row | None = None,
        why: str = "",
    ) -> None:
        table = self.rows.statements.table
        identity: Row | None = None
        if self.change.kind != "I":
            search = self.rows.statements.search_values(self.change)
            identity = self._whole(names_of(self.rows.statements, search))
        conflict = Conflict(
            kind=kind,
            resolution=resolution,
            schema=table.schema,
            table=table.name,
            local=local,
            remote=None if remote is None else self._whole(remote),
            identity=identity,
            identity_columns=tuple(one.column.name for one in table.key)
            if table.find == "key"
            else (),
            origin=self.head.origin[0] if self.head.origin else "",
            committed_at=moment(self.head.commit_time),
            lsn=self.head.commit_lsn,
            xid=self.head.xid,
            number=self.number,
            why=why,
        )
        if resolution == Resolution.ERROR:
            raise _Stop(conflict)
        self.met.append(conflict)

    def _remote(self, new: Sequence[Any]) -> Row:
        return names_of(self.rows.statements, new)

    def _whole(self, row: Row) -> Row:
        """A row of all of the table's columns, in its order; NULL for what was not sent."""
        return {one.name: row.get(one.name) for one in self.rows.facts.columns}

    # -- by ctid ------------------------------------------------------------------------------

    def _delete_at(self, place: FoundRow) -> None:
        text = (
            f"DELETE FROM {self.rows.statements.table.only}"  # noqa: S608 - quoted
            " WHERE tableoid = $1::oid AND ctid = $2::tid"
        )
        raw(self.by.connection, text.encode(), [place.tableoid, place.ctid], prepare=True)

    def _update_at(self, place: FoundRow, new: Sequence[Any], positions: Sequence[int]) -> None:
        """Set columns of a row that is locked; one that SQL can't set by writing the row anew."""
        table = self.rows.statements.table
        columns = table.columns
        always = [i for i in positions if columns[i].identity == "a"]
        positions = [i for i in positions if i not in always]
        where: list[bytes | None] = [place.tableoid, place.ctid]
        if any(place.local.row[columns[i].name] != new[i] for i in always):
            self._write_anew(place, {columns[i].name: new[i] for i in (*positions, *always)})
            return
        if not positions:
            return
        assigned = ", ".join(f"{columns[i].quoted} = ${n + 3}" for n, i in enumerate(positions))
        text = f"UPDATE {table.only} SET {assigned} WHERE tableoid = $1::oid AND ctid = $2::tid"  # noqa: S608 - quoted
        raw(self.by.connection, text.encode(), where + [new[i] for i in positions], prepare=True)

    def _write_anew(self, place: FoundRow, sets: Row) -> None:
        table = self.rows.statements.table
        kept = [one for one in self.rows.facts.columns if not one.is_generated]
        values: list[bytes | None] = [place.tableoid, place.ctid]
        made: list[str] = []
        for one in kept:
            if one.name in sets:
                values.append(sets[one.name])
                made.append(f"${len(values)}::{one.type_name}")
            else:
                made.append(one.quoted)
        text = (
            f"WITH gone AS (DELETE FROM {table.only} WHERE tableoid = $1::oid AND ctid = $2::tid"  # noqa: S608 - quoted
            f" RETURNING *) INSERT INTO {table.quoted} ({', '.join(one.quoted for one in kept)})"
            f" OVERRIDING SYSTEM VALUE SELECT {', '.join(made)} FROM gone"
        )
        raw(self.by.connection, text.encode(), values)


def _places(rows: list[FoundRow]) -> list[FoundRow]:
    """Rows without those that several indexes have."""
    return list({(one.tableoid, one.ctid): one for one in rows}.values())


def _comparable(row: Row, columns: list[str]) -> list[tuple[bool, bytes]]:
    return [(row[name] is not None, row[name] or b"") for name in columns]
