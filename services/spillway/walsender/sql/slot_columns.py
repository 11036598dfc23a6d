"""The columns of what is replaced in statements, by the source's major, and the SQL that has them.

Names and types are those of the source's own views, so that ``SELECT *`` gives the same on both
sides, and joins, casts and ``row_to_json`` work as they do there. All that is named in the SQL has
its schema: the client's search_path is its own.

Source: system_views.sql, pg_proc.dat of each major
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: What a text has where the JSON value belongs; no text has it by itself.
PLACE: Final = "\0"
#: name, type, first major, last major
_SLOTS: Final = (
    ("slot_name", "name", 14, 99),
    ("plugin", "name", 14, 99),
    ("slot_type", "text", 14, 99),
    ("datoid", "oid", 14, 99),
    ("database", "name", 14, 99),
    ("temporary", "bool", 14, 99),
    ("active", "bool", 14, 99),
    ("active_pid", "int4", 14, 99),
    ("xmin", "xid", 14, 99),
    ("catalog_xmin", "xid", 14, 99),
    ("restart_lsn", "pg_lsn", 14, 99),
    ("confirmed_flush_lsn", "pg_lsn", 14, 99),
    ("wal_status", "text", 14, 99),
    ("safe_wal_size", "int8", 14, 99),
    ("two_phase", "bool", 14, 99),
    ("two_phase_at", "pg_lsn", 18, 99),
    ("inactive_since", "timestamptz", 17, 99),
    ("conflicting", "bool", 16, 99),
    ("invalidation_reason", "text", 17, 99),
    ("failover", "bool", 17, 99),
    ("synced", "bool", 17, 99),
)
_STREAMS: Final = tuple(
    (name, kind, 14, 99)
    for name, kind in (
        ("pid", "int4"), ("usesysid", "oid"), ("usename", "name"), ("application_name", "text"),
        ("client_addr", "inet"), ("client_hostname", "text"), ("client_port", "int4"),
        ("backend_start", "timestamptz"), ("backend_xmin", "xid"), ("state", "text"),
        ("sent_lsn", "pg_lsn"), ("write_lsn", "pg_lsn"), ("flush_lsn", "pg_lsn"),
        ("replay_lsn", "pg_lsn"), ("write_lag", "interval"), ("flush_lag", "interval"),
        ("replay_lag", "interval"), ("sync_priority", "int4"), ("sync_state", "text"),
        ("reply_time", "timestamptz"),
    )
)  # fmt: skip
_STATS: Final = (
    ("slot_name", "text", 14, 99),
    *(
        (f"{what}_{amount}", "int8", 14, 99)
        for what, amounts in (
            ("spill", ("txns", "count", "bytes")),
            ("stream", ("txns", "count", "bytes")),
            ("total", ("txns", "bytes")),
        )
        for amount in amounts
    ),
    ("stats_reset", "timestamptz", 14, 99),
)
#: The function has no name of the database.
_SLOTS_OF_FUNCTION: Final = tuple(column for column in _SLOTS if str(column[0]) != "database")

RELATIONS: Final = frozenset(
    {"pg_replication_slots", "pg_stat_replication", "pg_stat_replication_slots"}
)
RELATION_FUNCTIONS: Final = frozenset({"pg_get_replication_slots"})
_OF_RELATION: Final = {
    "pg_replication_slots": ("slots", _SLOTS, "pg_replication_slots"),
    "pg_get_replication_slots": ("slots", _SLOTS_OF_FUNCTION, "pg_get_replication_slots()"),
    "pg_stat_replication": ("streams", _STREAMS, "pg_stat_replication"),
    "pg_stat_replication_slots": ("stats", _STATS, "pg_stat_replication_slots"),
}
#: What a statement with the relation's rows of our slots' statistics has in it.
STATS_MARK: Final = "'stats')"
#: Slots of the source that are the service's own, by which it streams WAL, are left out; so are
#: those that have the name of one of ours, as from before a client moved here.
_NOT_OURS: Final = (
    " WHERE NOT pg_catalog.starts_with(CAST(theirs.slot_name AS pg_catalog.text), 'spillway_')"
    " AND theirs.slot_name OPERATOR(pg_catalog.<>) ALL (SELECT ours.slot_name FROM "
)


class Function(NamedTuple):
    """A function that does something to slots."""

    names: tuple[str, ...]
    #: of the arguments; the last one's goes for all that follow
    types: tuple[str, ...]
    #: name and type; none: void
    columns: tuple[tuple[str, str], ...]
    #: how many arguments it has at least
    least: int = 1


_CREATED: Final = (("slot_name", "name"), ("lsn", "pg_lsn"))
_CHANGES: Final = Function(
    ("slot_name", "upto_lsn", "upto_nchanges", "options"),
    ("pg_catalog.name", "pg_catalog.pg_lsn", "pg_catalog.int4", "pg_catalog.text"),
    (("lsn", "pg_lsn"), ("xid", "xid"), ("data", "text")),
    3,
)
_BINARY_CHANGES: Final = _CHANGES._replace(
    columns=(("lsn", "pg_lsn"), ("xid", "xid"), ("data", "bytea"))
)
FUNCTIONS: Final = {
    "pg_create_logical_replication_slot": Function(
        ("slot_name", "plugin", "temporary", "twophase", "failover"),
        ("pg_catalog.name", "pg_catalog.name", "pg_catalog.bool"),
        _CREATED,
        2,
    ),
    # A number that is a backend's is the source's to end.
    "pg_terminate_backend": Function(
        ("pid", "timeout"), ("pg_catalog.int4", "pg_catalog.int8"), (("ended", "bool"),)
    ),
    "pg_drop_replication_slot": Function(("slot_name",), ("pg_catalog.name",), ()),
    "pg_replication_slot_advance": Function(
        ("slot_name", "upto_lsn"),
        ("pg_catalog.name", "pg_catalog.pg_lsn"),
        (("slot_name", "name"), ("end_lsn", "pg_lsn")),
        2,
    ),
    "pg_copy_logical_replication_slot": Function(
        ("src_slot_name", "dst_slot_name", "temporary", "plugin"),
        ("pg_catalog.name", "pg_catalog.name", "pg_catalog.bool", "pg_catalog.name"),
        _CREATED,
        2,
    ),
    "pg_logical_slot_get_changes": _CHANGES,
    "pg_logical_slot_peek_changes": _CHANGES,
    "pg_logical_slot_get_binary_changes": _BINARY_CHANGES,
    "pg_logical_slot_peek_binary_changes": _BINARY_CHANGES,
}
#: Those that return any number of rows, and no NULL for a NULL.
SET_FUNCTIONS: Final = frozenset(name for name in FUNCTIONS if name.startswith("pg_logical_slot_"))


def relation_text(name: str, major: int) -> str:
    """Return the sub-select that stands for a relation."""
    rows, all_columns, theirs = _OF_RELATION[name]
    columns = [
        (column, kind) for column, kind, first, last in all_columns if first <= major <= last
    ]
    names = ", ".join(column for column, _ in columns)
    condition = "" if rows == "streams" else _NOT_OURS + _records(rows, columns) + ") "
    return (
        f"(SELECT {names} FROM {_records(rows, columns)} "  # noqa: S608 - names of ours
        f"UNION ALL SELECT {names} FROM pg_catalog.{theirs} AS theirs{condition})"
    )


def result_text(function: str, casts: str, *, is_relation: bool, is_of_column: bool = False) -> str:
    """Return what stands for a function's call: what it has returned, which the JSON value has.

    *casts* are its arguments, which are written once more, for parameters must keep their types.
    With *is_of_column* the argument is a column, and the source's own rows are for the source.
    """
    columns = list(FUNCTIONS[function].columns)
    if function == "pg_terminate_backend":
        return (
            "(SELECT CASE WHEN pid OPERATOR(pg_catalog.=) ANY (SELECT result.ended FROM "  # noqa: S608
            f"{_records('result', [('ended', 'int4')], 'result')}) THEN true ELSE "
            f"pg_catalog.pg_terminate_backend(pid) END AS {function} FROM (SELECT {casts}) AS "
            "arguments(pid))"
        )
    arguments = f"(SELECT {casts}) AS arguments"
    if not columns:
        void = "pg_catalog.void_in('')"
        if is_of_column:
            void = (
                "CASE WHEN argument OPERATOR(pg_catalog.=) ANY (SELECT ours.slot_name FROM "  # noqa: S608
                f"{_records('slots', [('slot_name', 'name')])}) THEN {void} ELSE "
                f"pg_catalog.{function}(argument) END"
            )
        # As of a strict function: NULL of NULL.
        void = f"CASE WHEN argument IS NOT NULL THEN {void} END"
        return f"(SELECT {void} AS {function} FROM {arguments}(argument))"  # noqa: S608 - names of ours
    is_set = function in SET_FUNCTIONS
    if is_relation:
        names = ", ".join(f"result.{column}" for column, _ in columns)
        records = _records("result", columns, "result")
        # One that returns no set has a row, be it of nulls.
        joined = f", {records}" if is_set else f" LEFT JOIN {records} ON true"
        return f"(SELECT {names} FROM {arguments}{joined})"  # noqa: S608 - names of ours
    rows = f"(SELECT {function} FROM {arguments}, {_records('result', columns, function)})"  # noqa: S608 - names of ours
    return f"pg_catalog.unnest(ARRAY{rows})" if is_set else rows


def _records(rows: str, columns: list[tuple[str, str]], alias: str = "ours") -> str:
    typed = ", ".join(f"{column} pg_catalog.{kind}" for column, kind in columns)
    value = f"pg_catalog.json_extract_path(CAST({PLACE} AS pg_catalog.json), '{rows}')"
    return f"pg_catalog.json_to_recordset({value}) AS {alias}({typed})"
