"""A user's program that is killed: it keeps a copy of ``log`` by the Python client, exactly once.

``python -m harness.client_consumer ADDRESS SLOT DSN`` runs until it is killed.
"""

from __future__ import annotations

import sys

import psycopg

from spillway_client import Position, Slot


def run(address: str, name: str, dsn: str) -> None:
    position = Position(name)
    with psycopg.connect(dsn) as connection:
        start_lsn = position.load(connection)
        with Slot(address, name, start_lsn=start_lsn, confirm_seconds=0.05) as slot:
            for event in slot.events():
                with position.transaction(connection, event):
                    for change in event.changes:
                        if change.kind == "insert" and change.new is not None:
                            connection.execute(
                                "INSERT INTO copy VALUES (%s, %s, %s)", tuple(change.new.values())
                            )
                        elif change.kind == "delete" and change.old is not None:
                            connection.execute(
                                "DELETE FROM copy WHERE txn = %s AND n = %s",
                                tuple(change.old.values()),
                            )


if __name__ == "__main__":
    run(*sys.argv[1:])
