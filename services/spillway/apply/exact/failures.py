"""Errors of one row, with what an operator needs: the table, the key, the LSN, and what may be done
about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.apply.changes import UNCHANGED
from spillway.errors import ApplyConflict, TargetRowRefused
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    import psycopg

    from spillway.apply.changes import Change, TransactionHead
    from spillway.apply.conflicts.conflict import Conflict
    from spillway.apply.tables.matched import MatchedTable


def conflict_error(conflict: Conflict) -> ApplyConflict:
    """A conflict whose resolution is error."""
    table = f"{conflict.schema}.{conflict.table}"
    lsn = Lsn(conflict.lsn)
    return ApplyConflict(
        f"{conflict.message()} in transaction {conflict.xid}, which commits at {lsn} on the source:"
        f" {conflict.detail()}",
        hint="Make the target's row agree, and it goes on by itself. Or choose a resolution: "
        f'"conflicts": {{"tables": {{"{table}": {{"{conflict.kind.value}": "…"}}}}}}. Or set such '
        'rows aside: "dead_letter": true. Or pass over the whole transaction: '
        f'"skip_lsn": "{lsn}".',
        table=table,
        kind=conflict.kind.value,
        lsn=str(lsn),
        xid=conflict.xid,
        conflict=conflict.as_json(),
    )


def row_refused(
    error: psycopg.Error, table: MatchedTable, change: Change, number: int, head: TransactionHead
) -> TargetRowRefused:
    """A row that the target refuses: an error of SQLSTATE class 22 or 23."""
    name = f"{table.schema}.{table.name}"
    lsn = Lsn(head.commit_lsn)
    diagnosis = error.diag
    said = diagnosis.message_primary or str(error)
    if diagnosis.message_detail:
        said += f" ({diagnosis.message_detail})"
    key = _key(table, change)
    return TargetRowRefused(
        f"the target refuses a row of {name}{f', {key}' if key else ''}: {said} (SQLSTATE "
        f"{error.sqlstate}); change {number} of transaction {head.xid}, which commits at {lsn} on "
        "the source",
        hint="Mend what refuses it on the target, and it goes on by itself. Or set such rows "
        f'aside: "dead_letter": true. Or pass over the whole transaction: "skip_lsn": "{lsn}".',
        table=name,
        key=key,
        lsn=str(lsn),
        xid=head.xid,
        sqlstate=error.sqlstate or "",
    )


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
