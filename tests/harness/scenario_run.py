"""Runs a scenario: its statements, in one session or two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from harness.cluster import Database


def run(database: Database, steps: Sequence[str]) -> None:
    """Run the statements of a scenario, ``2> …`` in a second session."""
    with database.connect() as first, database.connect() as second:
        for step in steps:
            run_step(second if step.startswith("2> ") else first, step)


def run_step(connection: Connection[Any], step: str) -> None:
    """Run one statement; a COPY gets 3,000 rows."""
    if step.startswith("COPY "):
        with connection.cursor().copy(f"{step} FROM STDIN") as copy:
            for i in range(3000):
                copy.write_row((i, f"copied {i}", None))
    else:
        connection.execute(step.removeprefix("2> "))
