"""What decoding costs grows with the WAL, not with its square: work counted, at n and at 2n, and
the server's lines.

Work is the calls that Python makes while it decodes: all that is not compiled. Loops in the kernels
do not show here; that they do not grow was measured (docs/explanation/performance.md).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from harness.cluster import Database

N = 500

TABLES = "CREATE TABLE t (id int PRIMARY KEY, note text); CREATE TABLE u (id int, note text)"


def _subtransactions(database: Database, body: str, count: int) -> None:
    database.execute(
        f"DO $$BEGIN FOR i IN 1..{count} LOOP BEGIN {body}"
        " EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END$$"
    )


def _one_row_changed_in_each_subtransaction(database: Database, count: int) -> None:
    """Each changes a row of pg_attribute again and the table then, half of them roll back."""
    _subtransactions(
        database,
        "ALTER TABLE u ALTER note SET STATISTICS 10; INSERT INTO u VALUES (i, 'x');"
        "IF i % 2 = 0 THEN RAISE EXCEPTION 'x'; END IF;",
        count,
    )


def _tables_made_in_subtransactions(database: Database, count: int) -> None:
    _subtransactions(
        database,
        "EXECUTE format('CREATE TEMP TABLE m%s (id int)', i % 50);"
        "EXECUTE format('DROP TABLE m%s', i % 50); INSERT INTO u VALUES (i, 'x');",
        count,
    )


def _commits_during_a_long_transaction(database: Database, count: int) -> None:
    with database.connect(autocommit=False) as long, database.connect() as short:
        long.execute("INSERT INTO u VALUES (0, 'long')")
        for i in range(count):
            short.execute(f"ALTER TABLE t ALTER note SET STATISTICS {i % 100}")  # type: ignore[call-overload]
            if i % 10 == 0:
                long.execute("INSERT INTO u VALUES (1, 'again')")
        long.commit()


def _nested_savepoints(database: Database, count: int) -> None:
    """Twenty deep, each with a change before, within and after, a third rolled back."""
    with database.connect(autocommit=False) as connection:
        for _ in range(max(1, count // 20)):
            for i in range(20):
                connection.execute(f"SAVEPOINT s{i}; INSERT INTO u VALUES ({i}, 'in')")  # type: ignore[call-overload]
                if i % 5 == 0:
                    connection.execute("ALTER TABLE u ALTER note SET STATISTICS 10")
            for i in reversed(range(20)):
                how = "ROLLBACK TO" if i % 3 == 0 else "RELEASE"
                connection.execute(f"{how} s{i}; INSERT INTO u VALUES ({i}, 'out')")  # type: ignore[call-overload]
        connection.commit()


@pytest.mark.parametrize(
    "work",
    [
        _one_row_changed_in_each_subtransaction,
        _tables_made_in_subtransactions,
        _commits_during_a_long_transaction,
        _nested_savepoints,
    ],
    ids=lambda work: work.__name__.lstrip("_"),
)
def test_twice_as_much_costs_twice_as_much(
    pg15: Database, tmp_path: Path, work: Callable[[Database, int], None]
) -> None:
    pg15.execute(TABLES)
    session = DecodingSession(pg15, tmp_path)
    session.decode()
    calls = []
    for count in (N, 2 * N):
        work(pg15, count)
        calls.append(_calls(session.decode))
    assert calls[1] < 2.1 * calls[0]
    session.assert_equal_to_server()
    session.close()


def _calls(function: Callable[[], object]) -> int:
    """Count the calls that *function* leads to."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls
