"""Where a statement speaks of slots: what is replaced, and what only looks like it."""

from __future__ import annotations

import pytest

from spillway.walsender.failures import WireError
from spillway.walsender.messages import message
from spillway.walsender.sql.conditions import Known
from spillway.walsender.sql.statements import may_speak_of_slots, rewrite
from spillway.walsender.sql.tokens import tokens_of

UNTOUCHED = [
    "SELECT 'FROM pg_replication_slots'",
    "SELECT 1 -- FROM pg_replication_slots",
    "SELECT /* FROM /* pg_replication_slots */ */ 1 FROM t",
    "SELECT $$ FROM pg_replication_slots $$, $x$ FROM pg_stat_replication $$ $x$",
    "SELECT E'\\' FROM pg_replication_slots'",
    "SELECT pg_replication_slots FROM t",
    "SELECT * FROM mine.pg_replication_slots",
    'SELECT * FROM "PG_REPLICATION_SLOTS"',
    "WITH pg_replication_slots AS (SELECT 1) SELECT * FROM pg_replication_slots",
    "CREATE VIEW v AS SELECT * FROM pg_replication_slots",
    "DROP TABLE pg_replication_slots",
    "SELECT * FROM mine.pg_stat_replication_slots",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "SELECT 'no end, pg_replication_slots",
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_untouched(text: str) -> None:
    assert may_speak_of_slots(text.encode())
    assert rewrite(text, 18) is None


@pytest.mark.parametrize(
    ("text", "around"),
    [
        ("SELECT * FROM pg_replication_slots", ("SELECT * FROM ", " AS pg_replication_slots")),
        ("select * from PG_CATALOG.Pg_Replication_Slots s;", ("select * from ", " s;")),
        (
            "SELECT * FROM a, pg_replication_slots AS r (x) WHERE y",
            ("SELECT * FROM a, ", " AS r (x) WHERE y"),
        ),
        (
            "SELECT * FROM (a JOIN pg_replication_slots ON true)",
            ("SELECT * FROM (a JOIN ", " AS pg_replication_slots ON true)"),
        ),
        (
            "SELECT (SELECT count(*) FROM pg_replication_slots), 2",
            ("SELECT (SELECT count(*) FROM ", " AS pg_replication_slots), 2"),
        ),
        (
            "DELETE FROM t USING pg_replication_slots s WHERE true",
            ("DELETE FROM t USING ", " s WHERE true"),
        ),
        ("TABLE pg_replication_slots", ("SELECT * FROM ", " AS pg_replication_slots")),
        (
            "COPY (TABLE pg_replication_slots) TO STDOUT",
            ("COPY (SELECT * FROM ", " AS pg_replication_slots) TO STDOUT"),
        ),
    ],
)  # fmt: skip
def test_replaced(text: str, around: tuple[str, str]) -> None:
    statement = rewrite(text, 18)
    assert statement is not None
    before, after = around
    assert statement.text.startswith(before + "(SELECT slot_name, plugin, ")
    assert statement.text.endswith(")" + after)


def test_columns_are_of_the_major() -> None:
    def columns(major: int) -> str:
        statement = rewrite("SELECT * FROM pg_replication_slots", major)
        assert statement is not None
        return statement.text[: statement.text.index(" FROM pg_catalog")]

    assert columns(14) == columns(15)
    assert columns(14).endswith("two_phase")
    assert columns(16).endswith("two_phase, conflicting")
    assert "two_phase, inactive_since, conflicting, invalidation_reason" in columns(17)
    assert "two_phase, two_phase_at, inactive_since" in columns(18)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT pg_drop_replication_slot(lower('A'))",
        # They would be run whether or not.
        "SELECT pg_drop_replication_slot('a') WHERE now() < '2020-01-01'",
        "SELECT pg_drop_replication_slot('a') FROM t",
        "SELECT pg_drop_replication_slot('a') FROM pg_replication_slots LIMIT 0",
        "SELECT CASE WHEN true THEN pg_drop_replication_slot('a') END",
        "SELECT coalesce(1, (SELECT 1 FROM pg_logical_slot_get_changes('a', NULL, NULL)))",
        "SELECT * FROM pg_logical_slot_get_changes('a', NULL, NULL) WHERE pg_is_in_recovery()",
        "SELECT lsn FROM pg_create_logical_replication_slot('a', 'b') WHERE EXISTS (TABLE t)",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE xmin = '1'",
        "SELECT pg_drop_replication_slot(plugin) FROM pg_replication_slots",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots LIMIT 1",
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE xmin = '1'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE state = 'streaming'",
        "SELECT * FROM pg_logical_slot_get_changes('a', NULL, NULL) WITH ORDINALITY",
        "SELECT * FROM ROWS FROM (pg_get_replication_slots())",
        "SELECT * FROM pg_logical_slot_get_changes('a', NULL, NULL, VARIADIC $1)",
        "SELECT pg_drop_replication_slot('a'), pg_drop_replication_slot('b')",
        "SELECT 1; SELECT pg_drop_replication_slot('a')",
        "PREPARE p AS SELECT * FROM pg_replication_slots",
        # They would be run, and then the source knows no such column.
        "SELECT (pg_create_logical_replication_slot('a', 'pgoutput')).lsn",
        "SELECT ((pg_logical_slot_get_changes('a', NULL, NULL)).data)",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(WireError) as refused:
        rewrite(text, 18)
    assert refused.value.sqlstate == "0A000"
    assert refused.value.hint


def test_calls() -> None:
    statement = rewrite("SELECT * FROM pg_replication_slot_advance($1, '0/1'::pg_lsn)", 18)
    assert statement is not None
    assert statement.call is not None
    assert [(value.text, value.parameter) for value in statement.call.arguments] == [
        (None, 1),
        ("0/1", 0),
    ]
    assert statement.parameters == 1
    rows = (
        "SELECT pg_drop_replication_slot(r.slot_name)"
        " FROM pg_replication_slots r WHERE r.slot_name = $1"
    )
    of_rows = rewrite(rows, 18)
    assert of_rows is not None
    assert of_rows.call is not None
    assert [value.column for value in of_rows.call.arguments] == ["slot_name"]
    assert of_rows.parameters == 1


def _chosen(where: str, parameter: str) -> list[str]:
    """The slots that a call is run for, of two."""
    text = f"SELECT pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s WHERE {where}"
    statement = rewrite(text, 18)
    assert statement is not None
    call = statement.call
    assert call is not None
    assert call.of_rows
    rows: list[dict[str, object]] = [
        {"slot_name": "a_1", "plugin": "pgoutput", "database": "d", "active": False}
        | {"active_pid": None},
        {"slot_name": "b", "plugin": None, "database": "e", "active": True, "active_pid": 7},
    ]
    known = Known(rows, "d", lambda value, _: parameter if value.parameter else value.text)
    return [str(row["slot_name"]) for row in rows if call.condition(known.at(row))]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("slot_name = 'b'", ["b"]),
        ("'b'::name = s.slot_name AND active;", ["b"]),
        ("slot_name = $1 AND NOT active", ["a_1"]),
        ("slot_name IN ('b', $1)", ["a_1", "b"]),
        ("slot_name NOT IN ('b', NULL)", []),
        ("plugin <> 'x'", ["a_1"]),
        ("plugin IS NULL OR database = current_database()", ["a_1", "b"]),
        ("active_pid IS NOT NULL AND active IS TRUE", ["b"]),
        (r"slot_name LIKE 'a\_%'", ["a_1"]),
        ("slot_name NOT LIKE '_'", ["a_1"]),
        ("active_pid = 7 AND active = true", ["b"]),
        ("NOT (active OR slot_name = 'c')", ["a_1"]),
        ("EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = 'c')", []),
        ("slot_name = NULL", []),
    ],
)
def test_what_a_call_is_run_for(where: str, expected: list[str]) -> None:
    assert _chosen(where, "a_1") == expected


def test_arrays_of_options() -> None:
    call = "SELECT * FROM pg_logical_slot_peek_changes('a', NULL, NULL, VARIADIC {})"
    for array in ("ARRAY['x', 'y']", "ARRAY['x', 'y']::text[]", "'{x,y}'", "'{x, y}'::text[]"):
        statement = rewrite(call.format(array), 18)
        assert statement is not None
        assert statement.call is not None
        assert [value.text for value in statement.call.arguments[3:]] == ["x", "y"]
    empty = rewrite(call.format("'{}'"), 18)
    assert empty is not None
    assert empty.call is not None
    assert len(empty.call.arguments) == 3


def test_too_few_arguments_are_the_sources_to_refuse() -> None:
    for text in ("pg_drop_replication_slot()", "pg_create_logical_replication_slot('a')"):
        assert rewrite(f"SELECT {text}", 18) is None


def test_backslashes_in_strings() -> None:
    """Where standard_conforming_strings is off, a plain string has them as E'' has."""
    text = r"SELECT 'a\' FROM pg_replication_slots --', '"
    conforming, other = rewrite(text, 18), rewrite(text, 18, is_conforming=False)
    assert conforming is not None
    assert other is None
    hidden = r"SELECT 'it\'s', * FROM pg_replication_slots"
    assert rewrite(hidden, 18) is None
    assert rewrite(hidden, 18, is_conforming=False) is not None
    call = rewrite("SELECT pg_drop_replication_slot('a')", 18, is_conforming=False)
    assert call is not None
    assert call.call is not None
    assert call.call.arguments[0].text == "a"


def test_tokens_keep_positions() -> None:
    text = 'SELECT \xe4."B""b", $1::x, U&\'x\' || $t$ \' $t$ -- end'
    tokens = tokens_of(text)
    assert tokens is not None
    assert [text[token.start : token.end] for token in tokens] == [
        "SELECT", "\xe4", ".", '"B""b"', ",", "$1", "::", "x", ",", "U&'x'", "|", "|", "$t$ ' $t$",
    ]  # fmt: skip


def test_places() -> None:
    """Each character of what was written is found again, whatever is in front of it."""
    text = "SELECT 'é', a FROM pg_replication_slots s, pg_catalog.pg_stat_replication WHERE é"
    written = text.encode().decode("latin-1")
    statement = rewrite(written, 18)
    assert statement is not None
    changed = statement.with_json("'{}'").encode("latin-1").decode()
    places = statement.places("'{}'", "utf-8")
    for what in ("SELECT", "é", ", a", " s,", "WHERE", "WHERE é"):
        at = changed.rindex(what) if what.startswith("WHERE") else changed.index(what)
        own = text.rindex(what) if what.startswith("WHERE") else text.index(what)
        assert places.written(at + 1) == own + 1, what
    # Within what stands for a relation it is the relation's name; and the end is the end.
    assert places.written(changed.index("(") + 5) == text.index("pg_replication_slots") + 1
    assert places.written(len(changed) + 1) == len(text) + 1
    frame = message(b"E", b"SERROR\0P%d\0Mwrong\0\0" % (len(changed)))
    assert places.in_error(frame) == message(b"E", b"SERROR\0P%d\0Mwrong\0\0" % len(text))
    other = message(b"E", b"SERROR\0Mwrong\0\0")
    assert places.in_error(other) is other
