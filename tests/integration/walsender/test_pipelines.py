"""Calls on slots in pipelines of psycopg3, as on a server: what fails has the rest skipped."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg

from harness.pg_port import create_user, dsn_of, serving

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

MAKE = "SELECT lsn IS NULL FROM pg_create_logical_replication_slot(%s, 'test_decoding')"
DROP = "SELECT pg_drop_replication_slot(%s)"
COUNT = "SELECT count(*) FROM pg_replication_slots WHERE slot_name IN (%s, 'other')"
#: Statements of one pipeline, and None for a Sync among them.
PIPELINES: list[list[str | None]] = [
    [MAKE, COUNT, DROP, COUNT],
    [MAKE, "SELECT 1 / (%s = '')::int", DROP],
    [COUNT, DROP, MAKE],
    ["SELECT 1 / (%s = '')::int", MAKE],
    ["SELECT 1 / (%s = '')::int", None, MAKE, COUNT, None, DROP],
    [MAKE, None, DROP, DROP, None, COUNT, MAKE],
    [COUNT, DROP, None, COUNT],
]


def _done(session: psycopg.Connection[tuple[object, ...]], statements: list[str | None]) -> object:
    cursors = []
    # The first error of a batch is raised at its end.
    with contextlib.suppress(psycopg.Error), session.pipeline() as pipeline:
        for statement in statements:
            if statement is None:
                with contextlib.suppress(psycopg.Error):
                    pipeline.sync()
            else:
                cursors.append(session.cursor())
                with contextlib.suppress(psycopg.Error):
                    cursors[-1].execute(statement.encode(), ["s"])
    seen = []
    for cursor in cursors:
        result = cursor.pgresult
        seen.append(None if result is None else (result.status, result.get_value(0, 0)))
    left = session.execute(COUNT.encode(), ["s"]).fetchone()
    return seen, left


def test_they_are_run_where_a_server_runs_them(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, run_sql=True, manage_slots=True)
        found = []
        for conninfo in (pg15.dsn, dsn_of(service, "both", pg15.name)):
            with psycopg.connect(conninfo, autocommit=True) as session:
                found.append([_done(session, statements) for statements in PIPELINES])
                with contextlib.suppress(psycopg.Error):
                    session.execute(DROP.encode(), ["s"])
        assert found[1] == found[0]


SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE "
#: Batches with a mistake; the statements that are changed stand before and behind it.
MISTAKEN: list[list[str]] = [
    [SLOTS + "active", SLOTS + "slot_name = 'ä' AND nobody"],
    [SLOTS + "nobody", SLOTS + "active"],
    ["SELECT 1", SLOTS + "active AND nobody"],
    [SLOTS + "active", "SELECT nobody"],
    [SLOTS + "active", SLOTS + "true", SLOTS + "active AND temporary AND nobody", SLOTS + "true"],
]


def _place(session: psycopg.Connection[tuple[object, ...]], statements: list[str]) -> object:
    try:
        with session.pipeline():
            # Not waited for: all of them are one batch.
            for statement in statements:
                session.cursor().execute(statement.encode())
    except psycopg.Error as error:
        return error.diag.statement_position
    return None


def test_a_mistake_in_a_batch_is_shown_where_it_is(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, run_sql=True)
        found = []
        for conninfo in (pg15.dsn, dsn_of(service, "both", pg15.name)):
            with psycopg.connect(conninfo, autocommit=True) as session:
                found.append([_place(session, statements) for statements in MISTAKEN])
        assert found[1] == found[0]
        assert all(found[0])
