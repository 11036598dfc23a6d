"""Text and send format of every type equal what the server's own functions give for the same
bytes.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness import heap_rows
from harness.tiers import majors_by_tier
from harness.type_values import CASES, SETUP, TEMPORAL, cases
from spillway._kernels.values.datum import deform_change
from spillway._kernels.values.send.output import datum_send
from spillway._kernels.values.text.output import datum_text
from spillway.decoding import change_format
from spillway.pg.text_settings import TextSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database


@pytest.fixture(params=majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}")
def any_pg(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[Database]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"types_{secrets.token_hex(4)}")
    yield database
    cluster.drop_database(database.name)


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


def test_arrays_of_every_type_equal_the_servers(any_pg: Database) -> None:
    """Of one dimension, of two with nulls and bounds of their own, and empty."""
    with heap_rows.session(any_pg) as session:
        session.execute(SETUP)
        settings, _ = TextSettings.from_options({}, int(session.value("SHOW server_version_num")))
        number = 0
        for type_name, values in cases(settings.server_version_num).items():
            if not values or type_name.endswith("]"):
                continue
            number += 1
            delimiter = ";" if type_name == "box" else ","
            some = [
                '"' + str(v).replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values[:20]
            ]
            pairs = delimiter.join(f"{{{v}{delimiter}NULL}}" for v in some)
            session.execute(f"CREATE TABLE a{number} (id int, v {type_name}[])")
            session.execute(
                f"INSERT INTO a{number} VALUES (0, %s), (1, %s)",
                [f"{{{delimiter.join(some)}}}", f"[-3:{len(some) - 4}][7:8]={{{pairs}}}"],
            )
            session.execute(f"INSERT INTO a{number} VALUES (2, '{{}}'), (3, '{{NULL}}')")
            assert_equal_texts(session, f"a{number}", f"{type_name}[]", settings)
            assert_equal_bytes(session, f"a{number}", f"{type_name}[]", settings)


def test_values_that_only_the_server_makes(any_pg: Database) -> None:
    """Node trees and statistics: types without an input function, which a query may copy."""
    with heap_rows.session(any_pg) as session:
        settings, _ = TextSettings.from_options({}, int(session.value("SHOW server_version_num")))
        session.execute(
            "CREATE TABLE s (a int DEFAULT 42, b int, c int, d text);"
            "INSERT INTO s SELECT i, i % 7, i % 14, 'v' || i % 5 FROM generate_series(1, 1000) i;"
            "CREATE STATISTICS st (ndistinct, dependencies, mcv) ON b, c, d FROM s; ANALYZE s;"
        )
        for column, catalog in {
            "stxdndistinct": "pg_statistic_ext_data",
            "stxddependencies": "pg_statistic_ext_data",
            "stxdmcv": "pg_statistic_ext_data",
            "adbin": "pg_attrdef",
        }.items():
            session.execute(
                f"CREATE TABLE {column} AS SELECT 1 AS id, {column} AS v FROM {catalog}"
            )
            assert_equal_texts(session, column, column, settings)
            assert_equal_bytes(session, column, column, settings)


def test_send_format_equals_the_servers(any_pg: Database) -> None:
    with heap_rows.session(any_pg) as session:
        session.execute(SETUP)
        # So that its send function can be called by name.
        session.execute("CREATE CAST (refcursor AS text) WITHOUT FUNCTION AS IMPLICIT")
        settings, _ = TextSettings.from_options({}, int(session.value("SHOW server_version_num")))
        for number, (type_name, values) in enumerate(cases(settings.server_version_num).items()):
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
        "SELECT CASE WHEN typsend <> 0 THEN typsend::regproc::text END FROM pg_type t JOIN "
        "pg_attribute a ON t.oid = atttypid WHERE attrelid = %s::regclass AND attname = 'v'",
        [table],
    )[0]
    descriptor = heap_rows.relation_descriptor(session, table)
    toast = heap_rows.toast_values(session, descriptor)
    rows = heap_rows.sections(session, table)
    query = f"SELECT {{}}, format('%s', v) FROM {table} ORDER BY id"
    try:
        expected = session.query(query.format("NULL" if function is None else f"{function}(v)"))
    except psycopg.errors.UndefinedFunction as error:
        assert "no binary output function available" in str(error)  # noqa: PT017
        # An array of a type without a send function: the server can't send it, we send its text.
        expected = session.query(query.format("NULL"))
    for section, (sent, text) in zip(rows, expected, strict=True):
        change = heap_rows.build_change(change_format.INSERT, new=section, toast=toast)
        new, _ = deform_change(descriptor, change)
        assert new is not None
        assert isinstance(new[1], bytes)
        ours = datum_send(descriptor.columns[1], descriptor.types, settings, new[1])
        assert ours == sent, f"{type_name}: {text!r}"
