"""SQL of a step: one statement for many rows, whose values are one array a column.

Rows come out of ``SELECT unnest($1), unnest($2) …``, which goes through all arrays side by side
without keeping rows anywhere, as functions in FROM would. Rows are found by the key's index with
the equality that is the index's own. ::

    UPDATE ONLY public.t AS t SET b = u.v1
      FROM (SELECT unnest($1::integer[]) AS k0, unnest($2::text[]) AS v1) AS u
     WHERE t.a OPERATOR(pg_catalog.=) u.k0

An array of arrays would be flattened, and a composite type's taken apart, and box's array has a
delimiter of its own: such values go as ``text[]`` and are cast where they are used. All others
don't, as a cast is more forgiving than a type's input: to a domain over varchar(5) it cuts what is
longer.

The statements must find each row by the index, however large or new the table is:
:data:`PLANNER_SQL` is set in the transaction before any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway._kernels.apply.forms import FORMS
from spillway.apply.changes import SourceRelation, Step, StepPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.apply.tables.matched import MatchedTable, TargetColumn

_TEXT_OID: Final = 25
#: Its arrays have semicolons between elements, as no other type's of PostgreSQL.
_BOX_OID: Final = 603
_FORMS: Final = {
    16: "bool", 17: "bytea", 20: "int8", 21: "int2", 23: "int4", 25: "text", 114: "text",
    700: "float4", 701: "float8", 1042: "text", 1043: "text", 1082: "date", 1083: "time",
    1114: "timestamp", 1184: "timestamptz", 1700: "numeric", 2950: "uuid", 3802: "jsonb",
}  # fmt: skip
#: Types of which two values that are equal are the same.
_SAME_IF_EQUAL: Final = frozenset({16, 20, 21, 23, 26, 1082, 1114, 1184, 2950})

#: A plan is made once, perhaps when the table was empty.
PLANNER_SQL: Final = (
    b"SELECT pg_catalog.set_config(name, 'off', true) FROM (VALUES ('enable_seqscan'),"
    b" ('enable_hashjoin'), ('enable_mergejoin'), ('enable_material'), ('enable_bitmapscan'),"
    b" ('jit')) AS settings (name)"
)

_ORIGIN_AS_OURS: Final = (
    " AND NOT EXISTS (SELECT FROM pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) AS o"
    " WHERE o.roident::pg_catalog.int8 OPERATOR(pg_catalog.<>)"
    " ALL ('{{{origins}}}'::pg_catalog.int8[]))"
)


def plan(table: MatchedTable, *, copy_from: int, since: int = 0) -> StepPlan:
    """Say how changes of a table become steps.

    Args:
        table: matched, and groupable.
        copy_from: rows from which inserts are a COPY.
        since: transactions that commit before this LSN don't count for it.
    """
    forms = [_form(column) for column in table.columns]
    positions = table.key_positions if table.find == "key" else ()
    return StepPlan(
        relation=table.relation,
        target=table.oid,
        key=positions,
        # Without a key nothing is netted, so nothing is overwritten.
        watched=table.watched if positions else (),
        unset=tuple(
            position for position in positions if table.columns[position].type_oid in _SAME_IF_EQUAL
        ),
        forms=bytes(forms),
        type_oids=tuple(
            _TEXT_OID if _goes_as_text(column) else column.type_oid for column in table.columns
        ),
        copy_from=copy_from,
        copy_binary=FORMS["literal"] not in forms
        and not any(_goes_as_text(column) for column in table.columns),
        since=since,
    )


def _goes_as_text(column: TargetColumn) -> bool:
    return column.is_array or column.type_oid == _BOX_OID


def _element(column: TargetColumn) -> str:
    return "text" if _goes_as_text(column) else column.type_name


def _form(column: TargetColumn) -> int:
    return FORMS["text" if _goes_as_text(column) else _FORMS.get(column.type_oid, "literal")]


def sql(table: MatchedTable, step: Step, origins: Sequence[int]) -> bytes | None:
    """Return a step's statement; None for one that can't be written so.

    Args:
        table: the target's.
        step: of it; any but a truncate.
        origins: rows that were written under another replication origin than these are not
            touched; none: whoever wrote them.
    """
    columns = [table.columns[position] for position in step.columns]
    if step.kind == "copy":
        names = ", ".join(column.quoted for column in columns)
        form = "binary" if step.formats[0] else "text"
        return f"COPY {table.quoted} ({names}) FROM STDIN (FORMAT {form})".encode()
    keys = () if step.kind == "insert" else table.key
    arrays = [(f"k{i}", key.column) for i, key in enumerate(keys)]
    arrays += [(f"v{i}", column) for i, column in enumerate(columns)]
    rows = ", ".join(
        f"pg_catalog.unnest(${n}::{_element(column)}[]) AS {name}"
        for n, (name, column) in enumerate(arrays, 1)
    )
    found = " AND ".join(
        f"t.{key.column.quoted} {key.equals} {_value(f'k{i}', key.column)}"
        for i, key in enumerate(keys)
    )
    values = [_value(f"v{i}", column) for i, column in enumerate(columns)]
    if step.kind == "insert":
        names = ", ".join(column.quoted for column in columns)
        return (
            f"INSERT INTO {table.quoted} ({names}) OVERRIDING SYSTEM VALUE"  # noqa: S608
            f" SELECT {', '.join(values)} FROM (SELECT {rows}) AS u"
        ).encode()
    if step.kind == "absent":
        return (
            f"SELECT FROM {table.only} AS t, (SELECT {rows}) AS u WHERE {found} LIMIT 1"
        ).encode()
    if origins:
        found += _ORIGIN_AS_OURS.format(origins=",".join(map(str, origins)))
    if step.kind == "delete":
        return (
            f"DELETE FROM {table.only} AS t USING (SELECT {rows}) AS u WHERE {found}"  # noqa: S608
        ).encode()
    if any(column.identity == "a" for column in columns):
        return None
    if not columns:
        # There is nothing to set but the key, which is the same; the row must be there all the
        # same.
        columns = [table.key[0].column]
        values = [f"t.{columns[0].quoted}"]
        if columns[0].identity == "a":
            return None
    assigned = ", ".join(
        f"{column.quoted} = {value}" for column, value in zip(columns, values, strict=True)
    )
    return (
        f"UPDATE {table.only} AS t SET {assigned} FROM (SELECT {rows}) AS u WHERE {found}"  # noqa: S608
    ).encode()


def _value(name: str, column: TargetColumn) -> str:
    return f"u.{name}::{column.type_name}" if _goes_as_text(column) else f"u.{name}"


def truncate_sql(step: Step, tables: dict[SourceRelation, MatchedTable]) -> bytes:
    """Return a truncate's statement."""
    names = ", ".join(
        f"ONLY {table.quoted}" if table.kind == "r" else table.quoted
        for table in (tables[relation] for relation in step.truncated)
    )
    restart = "RESTART" if step.restart_identity else "CONTINUE"
    # PostgreSQL's worker never cascades: what else the source truncated is in the list.
    return f"TRUNCATE {names} {restart} IDENTITY RESTRICT".encode()
