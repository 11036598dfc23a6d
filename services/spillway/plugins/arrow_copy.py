"""A table as the ``arrow`` plugin would show its rows, read with COPY instead of from WAL.

A consumer that loads a table and then follows its changes must get the same type and the same value
for a row whichever way it came. So both ways share the plan (:mod:`~spillway.plugins.arrow_schema`)
and the column builders: what has an Arrow type is copied in PostgreSQL's binary form and goes
through the plugin's own kernels; what the plugin prints is printed by the server itself, whose
output functions are the plugin's model, under the slot's settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from psycopg import sql

from spillway.pg.byte_session import Name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway._kernels.encoders.arrow.copy import CopiedRows
    from spillway.pg.text_settings import TextSettings
    from spillway.plugins.arrow_schema import ColumnPlan, TablePlan

#: What printed names of objects are relative to, as in the plugin (``object_names``).
_SEARCH_PATH: Final = "pg_catalog, public"
#: Settings of the copying session, beside those that the slot has; one that the server doesn't know
#: is left out.
_SESSION: Final = {
    "search_path": _SEARCH_PATH,
    # A policy that hides rows from the role must be an error, not a smaller table.
    "row_security": "off",
    "quote_all_identifiers": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # Who describes tables goes on behind an error, by a savepoint.
    "exit_on_error": "off",
}


def session_settings(settings: TextSettings) -> dict[str, str]:
    """Return what to set in a session whose COPY shall print as a slot with *settings* does."""
    return {
        **_SESSION,
        "TimeZone": settings.time_zone,
        "bytea_output": settings.bytea_output,
        "extra_float_digits": str(settings.extra_float_digits),
        "DateStyle": f"{settings.date_style}, {settings.date_order}",
        "IntervalStyle": settings.interval_style,
    }


def copy_statement(plan: TablePlan, first_block: int, end_block: int | None) -> sql.Composed:
    """Return the COPY of a table's rows in blocks [*first_block*, *end_block*); without an end: all
    the rest.

    What :class:`~spillway._kernels.encoders.arrow.copy.CopiedRows` reads: ctid, then the plan's
    columns. A TID range scan reads these blocks and no others.
    """
    fields = sql.SQL(", ").join([sql.SQL("ctid"), *map(_field, plan.columns)])
    table = Name(plan.descriptor.schema, plan.descriptor.name)
    where = sql.SQL("ctid >= {}").format(sql.Literal(f"({first_block},0)"))
    if end_block is not None:
        where += sql.SQL(" AND ctid < {}").format(sql.Literal(f"({end_block},0)"))
    return sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT (FORMAT binary)").format(
        fields, table, where
    )


def _field(column: ColumnPlan) -> sql.Composable:
    name = Name(column.column.name)
    if column.kind != "printed":
        return name
    # A cast to text is not the output function for every type (inet, "char"); format() is. It makes
    # '' of null, and a composite of nulls, which IS NULL, is none.
    return sql.SQL(
        "CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {0}) END"
    ).format(name)


def take_columns(
    rows: CopiedRows, columns: Sequence[ColumnPlan]
) -> tuple[pa.Array, list[pa.Array]]:
    """Return the rows' ctids, as int64 that sort as they do, and their columns; then forget the
    rows.
    """
    length = rows.rows
    places = pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(rows.places())])
    arrays = []
    for i, column in enumerate(columns):
        null_count, buffers = rows.column_buffers(i)
        held = [None if b is None else pa.py_buffer(b) for b in buffers]
        arrays.append(pa.Array.from_buffers(column.type, length, held, null_count))
    rows.clear()
    return places, arrays


def take_shown(rows: CopiedRows, plan: TablePlan) -> tuple[pa.Array, list[pa.Array]]:
    """Return the same as the plan shows them, with the columns that it makes."""
    places, arrays = take_columns(rows, plan.columns)
    shown = [plan.finished(c, values) for c, values in zip(plan.columns, arrays, strict=True)]
    return places, [*shown, *(made.array(len(places)) for made in plan.made)]
