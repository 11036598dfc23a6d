"""Sequences: where the source's stand is set on the target.

WAL has a sequence's steps ahead of what was handed out, and no slot delivers them. So values are
read and set: at the first copy, at a refresh, and by schedule. A sequence of the target never goes
backward (in its own direction), unless that is asked for: rows that it was used for may be there.

Which sequences: those that columns of the subscription's tables own (serial, identity) or take
their default from; with all tables, every sequence.

Source: copy_sequences (src/backend/replication/logical/sequencesync.c, 19)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from spillway.apply.sync.states import TableName
    from spillway.apply.tables.matching import Rename

    Connection = psycopg.Connection[tuple[Any, ...]]

#: Read by one statement.
_AT_ONCE: Final = 200
_OF_ALL: Final = """
SELECT n.nspname::text, c.relname::text, seqstart, seqincrement, seqmin, seqmax,
       seqcycle, pg_catalog.format_type(seqtypid, NULL)
  FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relpersistence = 'p' AND n.nspname NOT LIKE 'pg\\_%'
 ORDER BY 1, 2
"""
#: a: owned by a column, i: of an identity; n: a default refers to it.
_OF_TABLES: Final = """
WITH tables AS (
    SELECT c.oid FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))
           t(schema_name, table_name)
      JOIN pg_catalog.pg_namespace n ON n.nspname = t.schema_name
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name
), used AS (
    SELECT d.objid AS oid FROM pg_catalog.pg_depend d JOIN tables t ON t.oid = d.refobjid
     WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
       AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype IN ('a', 'i')
     UNION
    SELECT d.refobjid FROM pg_catalog.pg_depend d
      JOIN pg_catalog.pg_attrdef a ON a.oid = d.objid JOIN tables t ON t.oid = a.adrelid
     WHERE d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
       AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
)
SELECT n.nspname::text, c.relname::text, seqstart, seqincrement, seqmin, seqmax,
       seqcycle, pg_catalog.format_type(seqtypid, NULL)
  FROM used JOIN pg_catalog.pg_sequence s ON s.seqrelid = used.oid
  JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class SequenceSync:
    """How a round went."""

    #: names of those that were set
    changed: tuple[str, ...]
    #: names, and why they were not; as the target has them
    failed: dict[str, str]
    #: when it ended, in seconds since 1970
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sequence:
    schema: str
    name: str
    start: int
    increment: int
    minimum: int
    maximum: int
    cycles: bool
    type_name: str

    def differs(self, other: _Sequence) -> str:
        """Name what is defined in another way."""
        names = ("start", "increment", "minimum", "maximum", "cycles", "type_name")
        return ", ".join(
            f"{name} is {getattr(other, name)} and not {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        )


#: Each with its last_value and is_called; None where they may not be read.
SourceSequences = list[tuple[_Sequence, tuple[int, bool] | None]]


def read(connection: Connection, tables: Collection[TableName] | None) -> SourceSequences:
    """Read the source's sequences as they are now.

    Args:
        connection: to the source, in autocommit.
        tables: those of the subscription; None: all sequences.

    Raises:
        psycopg.Error: the source did not answer.
    """
    found = _listed(connection, tables)
    return list(zip(found, _values(connection, found), strict=True))


def write(
    target: Connection, found: SourceSequences, rename: Rename, *, may_go_back: bool = False
) -> SequenceSync:
    """Set the target's sequences.

    Args:
        target: in autocommit.
        found: what :func:`read` returned.
        rename: the name on the target of a (schema, table) of the source; a sequence is looked for
            where its own name leads.
        may_go_back: also set those that are further on the target.

    Raises:
        psycopg.Error: the target did not answer. One sequence's trouble is in the result.
    """
    there = {(one.schema, one.name): one for one in _listed(target, None)}
    changed: list[str] = []
    failed: dict[str, str] = {}
    wanted: list[tuple[_Sequence, tuple[int, bool]]] = []
    for sequence, value in found:
        schema, name = rename(sequence.schema, sequence.name)
        ours = there.get((schema, name))
        if ours is None:
            failed[f"{schema}.{name}"] = "it does not exist on the target"
        elif difference := sequence.differs(ours):
            failed[f"{schema}.{name}"] = f"it is another one there: {difference}"
        elif value is None:
            failed[f"{schema}.{name}"] = "the source's can't be read: GRANT SELECT on it"
        else:
            wanted.append((ours, value))
    now = _values(target, [ours for ours, _ in wanted])
    for (ours, value), present in zip(wanted, now, strict=True):
        if present == value or not (may_go_back or _is_ahead(value, present, ours.increment)):
            continue
        name = f"{ours.schema}.{ours.name}"
        try:
            target.execute(
                "SELECT pg_catalog.setval(%s::text::pg_catalog.regclass, %s::int8, %s::bool)",
                [sql.Identifier(ours.schema, ours.name).as_string(), *value],
            )
        except psycopg.errors.InsufficientPrivilege:
            failed[name] = "GRANT UPDATE on it to the subscription's role"
        except psycopg.Error as error:
            if target.closed:
                raise
            failed[name] = error.diag.message_primary or str(error)
        else:
            changed.append(name)
    return SequenceSync(tuple(changed), failed, time.time())


def _is_ahead(value: tuple[int, bool], present: tuple[int, bool] | None, increment: int) -> bool:
    """Say whether *value* comes after *present*, in the sequence's direction."""
    if present is None:
        return True
    ahead = value[0] - present[0] if increment > 0 else present[0] - value[0]
    return ahead > 0 or (ahead == 0 and value[1] and not present[1])


def _listed(connection: Connection, tables: Collection[TableName] | None) -> list[_Sequence]:
    if tables is None:
        rows = connection.execute(_OF_ALL).fetchall()
    else:
        names = sorted(tables)
        rows = connection.execute(
            _OF_TABLES, [[name[0] for name in names], [name[1] for name in names]]
        ).fetchall()
    return [_Sequence(*row) for row in rows]


def _values(
    connection: Connection, sequences: Sequence[_Sequence]
) -> list[tuple[int, bool] | None]:
    """Return last_value and is_called of each; None of one that may not be read."""
    found: list[tuple[int, bool] | None] = []
    for first in range(0, len(sequences), _AT_ONCE):
        found += _read(connection, sequences[first : first + _AT_ONCE])
    return found


def _read(
    connection: Connection, sequences: Sequence[_Sequence]
) -> Iterable[tuple[int, bool] | None]:
    query = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}::int4, last_value, is_called FROM {}").format(
            i, sql.Identifier(one.schema, one.name)
        )
        for i, one in enumerate(sequences)
    )
    try:
        rows = {row[0]: (row[1], row[2]) for row in connection.execute(query).fetchall()}
    except psycopg.errors.InsufficientPrivilege:
        if len(sequences) == 1:
            return [None]
        return [value for one in sequences for value in _read(connection, [one])]
    return [rows.get(i) for i in range(len(sequences))]
