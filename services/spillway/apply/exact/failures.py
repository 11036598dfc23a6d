"""Errors of one row, with what an operator needs: the table, the key, the LSN, and what may be done
about it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spillway.apply.changes import UNCHANGED
from spillway.apply.conflicts.kinds import ALLOWED, Resolution
from spillway.apply.target.failures import from_postgres
from spillway.errors import ApplyConflict, TargetRefused, TargetRowRefused
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.lsn import Lsn

_FOREIGN_KEY_VIOLATION = "23503"

if TYPE_CHECKING:
    import psycopg

    from spillway.apply.changes import Change, TransactionHead
    from spillway.apply.conflicts.conflict import Conflict
    from spillway.apply.tables.matched import MatchedTable
    from spillway.errors import SpillwayError


def conflict_error(
    conflict: Conflict,
    subscription: str,
    head: TransactionHead,
    *,
    may_skip: bool = True,
    may_set_aside: bool = True,
) -> ApplyConflict:
    """A conflict whose resolution is error; *may_skip*, *may_set_aside* as :func:`row_refused`."""
    ways = _remedies(subscription, head, may_skip=may_skip, may_set_aside=may_set_aside)
    table = f"{conflict.schema}.{conflict.table}"
    others = [one.value for one in ALLOWED[conflict.kind] if one != Resolution.ERROR]
    rules = json.dumps({"tables": {table: {conflict.kind.value: others[0]}}})
    more = f" (or {', '.join(others[1:])})" if others[1:] else ""
    return ApplyConflict(
        f"{conflict.message()} in transaction {conflict.xid}, which commits at "
        f"{Lsn(conflict.lsn)} on the source: {conflict.detail()}",
        hint="Make the target's row agree, and it goes on by itself. Or choose a resolution: "
        f"spillway subscription alter {subscription} --target-option 'conflicts={rules}'{more}."
        f" {ways}",
        table=table,
        kind=conflict.kind.value,
        lsn=str(Lsn(conflict.lsn)),
        xid=conflict.xid,
        conflict=conflict.as_json(),
    )


def row_refused(
    error: psycopg.Error,
    table: MatchedTable,
    change: Change,
    number: int,
    head: TransactionHead,
    subscription: str,
    *,
    may_skip: bool = True,
    may_set_aside: bool = True,
) -> TargetRowRefused:
    """A row that the target refuses: an error of SQLSTATE class 22 or 23.

    Args:
        error: the target's.
        table: that the row is of.
        change: which it is.
        number: its place in the transaction.
        head: the transaction.
        subscription: its name.
        may_skip: the transaction can be passed over by moving the slot.
        may_set_aside: ``table_errors=set_aside`` would help, and is not there yet.
    """
    ways = _remedies(subscription, head, may_skip=may_skip, may_set_aside=may_set_aside)
    name = f"{table.schema}.{table.name}"
    lsn = Lsn(head.commit_lsn)
    diagnosis = error.diag
    key = _key(table, change)
    waits = ""
    if error.sqlstate == _FOREIGN_KEY_VIOLATION and diagnosis.constraint_name:
        names = [
            quote_identifier(str(one))
            for one in (diagnosis.schema_name, diagnosis.table_name, diagnosis.constraint_name)
        ]
        waits = (
            "Let the foreign key wait for the end of the source's transaction, on the target: "
            f"ALTER TABLE {names[0]}.{names[1]} ALTER CONSTRAINT {names[2]} DEFERRABLE; "
        )
    return TargetRowRefused(
        f"the target refuses a row of {name}{f', {key}' if key else ''}: {_said(error)} (SQLSTATE "
        f"{error.sqlstate}); change {number} of transaction {head.xid}, which commits at {lsn} on "
        "the source",
        hint=f"{waits}Mend what refuses it on the target, and it goes on by itself. {ways}",
        table=name,
        key=key,
        lsn=str(lsn),
        xid=head.xid,
        sqlstate=error.sqlstate or "",
    )


def table_refused(
    error: psycopg.Error, table: MatchedTable, head: TransactionHead, dsn: str
) -> SpillwayError:
    """What a change of *table* failed with that is no row's: a right, a trigger's function.

    Args:
        error: the target's.
        table: that the change is of.
        head: of its transaction.
        dsn: of the target.
    """
    name = f"{table.schema}.{table.name}"
    failed = from_postgres(
        error,
        f"a change of {name} can't be applied, in transaction {head.xid}, which commits at "
        f"{Lsn(head.commit_lsn)} on the source",
        dsn,
    )
    failed.details["relation"] = name
    return failed


def truncate_refused(
    error: psycopg.Error,
    tables: list[str],
    keys: list[str],
    head: TransactionHead,
    subscription: str,
) -> TargetRefused:
    """A TRUNCATE that the target refuses: PostgreSQL's worker doesn't cascade, either.

    Args:
        error: the target's.
        tables: that it is of.
        keys: SQL that drops the foreign keys which other tables refer to these by.
        head: the transaction.
        subscription: its name.
    """
    lsn = Lsn(head.commit_lsn)
    mends = (
        "Other tables of the target refer to these, whether they have rows or not. Drop these "
        f"foreign keys there, and it goes on by itself: {' '.join(keys)} "
        if keys
        else "Mend what is in the way there, and it goes on by itself. "
    )
    return TargetRefused(
        f"the target refuses to truncate {', '.join(tables)}: {_said(error)} (SQLSTATE "
        f"{error.sqlstate}); in transaction {head.xid}, which commits at {lsn} on the source",
        hint=f"{mends}Or {_passing_over(subscription, head)}",
        tables=tables,
        lsn=str(lsn),
        xid=head.xid,
        sqlstate=error.sqlstate or "",
    )


def end_refused(
    error: psycopg.Error,
    head: TransactionHead,
    subscription: str,
    *,
    is_whole: bool,
    may_set_aside: bool = True,
) -> TargetRowRefused:
    """A transaction that the target refuses at its end: no row of it was refused by itself.

    Args:
        error: the target's, of SQLSTATE class 23.
        head: the transaction.
        subscription: its name.
        is_whole: it can be written once more, to find the row.
        may_set_aside: as :func:`row_refused`.
    """
    lsn = Lsn(head.commit_lsn)
    remedies = (
        _remedies(subscription, head, may_skip=True, may_set_aside=may_set_aside)
        if is_whole
        else f"Or {_passing_over(subscription, head)}"
    )
    return _refused_at_the_end(
        error,
        f"the target refuses the end of transaction {head.xid}, which commits at {lsn} on the "
        "source",
        remedies,
        lsn=str(lsn),
        xid=head.xid,
    )


def catching_up_refused(error: psycopg.Error, tables: str, subscription: str) -> TargetRowRefused:
    """What tables lacked, as one transaction that the target refuses at its end.

    Args:
        error: the target's, of SQLSTATE class 23.
        tables: what catches up.
        subscription: its name.
    """
    return _refused_at_the_end(
        error,
        f"the target refuses what {tables} lacked, at the end",
        f"Or {_setting_aside(subscription)}",
    )


def _refused_at_the_end(
    error: psycopg.Error, what: str, remedies: str, **details: Any
) -> TargetRowRefused:
    diagnosis = error.diag
    table = f"{diagnosis.schema_name}.{diagnosis.table_name}" if diagnosis.table_name else ""
    return TargetRowRefused(
        f"{what}{f', by a constraint of {table}' if table else ''}: {_said(error)} (SQLSTATE "
        f"{error.sqlstate})",
        hint=f"Mend what refuses it on the target, and it goes on by itself. {remedies}",
        table=table,
        sqlstate=error.sqlstate or "",
        constraint=diagnosis.constraint_name or "",
        **details,
    )


def _said(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return f"{text} ({error.diag.message_detail})" if error.diag.message_detail else text


def skip_command(subscription: str, head: TransactionHead) -> str:
    """What passes over a transaction, and all that commits before it and is not written yet: that
    is nothing, for the one that failed.
    """
    # Of a transaction that comes in pieces the end is not known yet; one byte is far enough.
    return f"spillway subscription skip {subscription} {Lsn(head.end_lsn or head.commit_lsn + 1)}"


def _remedies(
    subscription: str, head: TransactionHead, *, may_skip: bool, may_set_aside: bool
) -> str:
    ways = f"Or {_setting_aside(subscription)}"
    if not may_skip:
        return ways
    if may_set_aside:
        ways += (
            f" Or have the other tables go on: spillway subscription alter {subscription} "
            "--target-option table_errors=set_aside."
        )
    return f"{ways} Or {_passing_over(subscription, head)}"


def _setting_aside(subscription: str) -> str:
    return (
        "set such rows aside in spillway.dead_letter on the target: spillway subscription alter "
        f"{subscription} --target-option dead_letter=true."
    )


def _passing_over(subscription: str, head: TransactionHead) -> str:
    return f"pass over the whole transaction: {skip_command(subscription, head)}"


def _key(table: MatchedTable, change: Change) -> str:
    values = change.new if change.old is None else change.old
    if values is None:
        return ""
    pairs = zip(table.columns, values, table.relation.columns, strict=True)
    shown = [
        f"{column.name} = {value.decode(errors='replace') if isinstance(value, bytes) else 'NULL'}"
        for column, value, source in pairs
        if source.is_key and value is not UNCHANGED
    ]
    return ", ".join(shown)
