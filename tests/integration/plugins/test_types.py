"""Text and send format of every type equal what the server's own functions give for the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from harness import heap_rows
from harness.type_values import CASES, SETUP, TEMPORAL
from spillway._kernels.datum import deform_change
from spillway._kernels.send_output import datum_send
from spillway._kernels.text_output import datum_text
from spillway.decoding import change_format
from spillway.pg.text_settings import TextSettings

if TYPE_CHECKING:
    from harness.cluster import Database


@pytest.mark.parametrize(
    "settings",
    [{}, {"TimeZone": "America/St_Johns", "bytea_output": "escape", "extra_float_digits": "0"}],
    ids=["default", "other"],
)
def test_text_equals_the_servers(pg: Database, settings: dict[str, str]) -> None:
    with heap_rows.session(pg) as session:
        session.execute(SETUP)
        parsed, _ = TextSettings.from_options(
            settings, int(session.value("SHOW server_version_num"))
        )
        for number, (type_name, values) in enumerate(CASES.items()):
            session.execute(f"CREATE TABLE t{number} (id int, v {type_name})")
            session.execute("SET extra_float_digits = 1")
            with session.connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO t{number} VALUES (%s, %s)",
                    [(i, str(v)) for i, v in enumerate(values)],
                )
            for name, value in {"TimeZone": "UTC", **settings}.items():
                session.execute(f"SET {name} = '{value}'")
            assert_equal_texts(session, f"t{number}", type_name, parsed)


@pytest.mark.parametrize(
    ("zone", "styles"),
    [
        ("UTC", ["ISO, DMY", "Postgres"]),
        ("Europe/Berlin", ["SQL, MDY", "SQL, DMY", "SQL, YMD", "German", "German, MDY"]),
        ("america/ST_johns", ["Postgres, MDY", "Postgres, DMY", "Postgres, YMD", "euro, sql"]),
        ("Asia/Kolkata", ["US, postgresql", '"iso"', "YMD", "default"]),
        ("America/Sao_Paulo", ["SQL"]),
    ],
)
def test_date_and_interval_styles_equal_the_servers(
    pg: Database, zone: str, styles: list[str]
) -> None:
    with heap_rows.session(pg) as session:
        session.execute(SETUP)
        version = int(session.value("SHOW server_version_num"))
        for number, (type_name, values) in enumerate(TEMPORAL.items()):
            session.execute(f"CREATE TABLE t{number} (id int, v {type_name})")
            with session.connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO t{number} VALUES (%s, %s)",
                    [(i, str(v)) for i, v in enumerate(values)],
                )
        session.execute(f"SET TimeZone = '{zone}'")
        intervals = ["postgres", "postgres_verbose", "sql_standard", "ISO_8601"]
        for number, style in enumerate(styles):
            # What is not said of a DateStyle stays as it was.
            session.execute("RESET DateStyle")
            session.execute(f"SET DateStyle = {style}")
            interval = intervals[number % 4]
            session.execute(f"SET IntervalStyle = {interval}")
            parsed, rest = TextSettings.from_options(
                {"TimeZone": zone, "datestyle": style, "IntervalStyle": interval}, version
            )
            assert not rest
            for table, type_name in enumerate(TEMPORAL):
                assert_equal_texts(session, f"t{table}", f"{type_name} in {style}", parsed)


def assert_equal_texts(
    session: heap_rows.Session, table: str, type_name: str, settings: TextSettings
) -> None:
    expected = [row[0] for row in session.query(f"SELECT format('%s', v) FROM {table} ORDER BY id")]
    descriptor = heap_rows.relation_descriptor(session, table)
    toast = heap_rows.toast_values(session, descriptor)
    for section, text in zip(heap_rows.sections(session, table), expected, strict=True):
        change = heap_rows.build_change(change_format.INSERT, new=section, toast=toast)
        new, _ = deform_change(descriptor, change)
        assert new is not None
        assert isinstance(new[1], bytes)
        printed = datum_text(descriptor.columns[1], descriptor.types, settings, new[1])
        assert printed.decode() == text, f"{type_name}: {text!r}"


def test_send_format_equals_the_servers(pg: Database) -> None:
    with heap_rows.session(pg) as session:
        session.execute(SETUP)
        settings, _ = TextSettings.from_options({}, int(session.value("SHOW server_version_num")))
        for number, (type_name, values) in enumerate(CASES.items()):
            session.execute(f"CREATE TABLE b{number} (id int, v {type_name})")
            with session.connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO b{number} VALUES (%s, %s)",
                    [(i, str(v)) for i, v in enumerate(values)],
                )
            assert_equal_bytes(session, f"b{number}", type_name, settings)


def assert_equal_bytes(
    session: heap_rows.Session, table: str, type_name: str, settings: TextSettings
) -> None:
    (function,) = session.query(
        "SELECT CASE WHEN typsend <> 0 THEN typsend::regproc::text END FROM pg_type t JOIN pg_attribute a"
        " ON t.oid = atttypid WHERE attrelid = %s::regclass AND attname = 'v'",
        [table],
    )[0]
    descriptor = heap_rows.relation_descriptor(session, table)
    toast = heap_rows.toast_values(session, descriptor)
    rows = heap_rows.sections(session, table)
    query = f"SELECT {{}}, format('%s', v) FROM {table} ORDER BY id"
    try:
        expected = session.query(query.format("NULL" if function is None else f"{function}(v)"))
    except psycopg.errors.UndefinedFunction:
        # An array of a type without a send function: the server can't send it, we send its text.
        expected = session.query(query.format("NULL"))
    for section, (sent, text) in zip(rows, expected, strict=True):
        change = heap_rows.build_change(change_format.INSERT, new=section, toast=toast)
        new, _ = deform_change(descriptor, change)
        assert new is not None
        assert isinstance(new[1], bytes)
        ours = datum_send(descriptor.columns[1], descriptor.types, settings, new[1])
        assert ours == sent, f"{type_name}: {text!r}"
