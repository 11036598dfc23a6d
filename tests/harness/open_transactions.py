"""Transactions of all kinds that are left open while others go by."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection

    from harness.cluster import Database

BIG = "INSERT INTO big SELECT g, repeat('x', 100) FROM generate_series({0}, {0} + 1999) g"
#: Transactions that stay open while much goes by; {0} makes names of the server's own the test's.
OPEN = {
    "plain": ["INSERT INTO big VALUES (-1, 'plain')", BIG.format(10000)],
    "subtransactions": [
        "SAVEPOINT a",
        "INSERT INTO big VALUES (-2, 'kept')",
        "SAVEPOINT b",
        BIG.format(20000),
        "ROLLBACK TO b",
        "SAVEPOINT c",
        "INSERT INTO big VALUES (-3, 'kept, too')",
        "RELEASE a",
        BIG.format(30000),
    ],
    "catalog": [
        "CREATE TABLE own (id int, v text)",
        "INSERT INTO own VALUES (1, 'before')",
        "ALTER TABLE own ADD w int DEFAULT 7",
        "INSERT INTO own VALUES (2, 'after')",
        "SAVEPOINT a",
        "ALTER TABLE own RENAME v TO renamed",
        "INSERT INTO own VALUES (3, 'rolled back')",
        "ROLLBACK TO a",
        "INSERT INTO own VALUES (4, 'as before')",
        "TRUNCATE own",
        "INSERT INTO own SELECT g FROM generate_series(1, 500) g",
    ],
    "toast": [
        "CREATE TABLE wide (id int PRIMARY KEY, v text)",
        "ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT g, repeat('abc', 9000) FROM generate_series(1, 9) g",
        "UPDATE wide SET id = id + 100",
        "INSERT INTO wide VALUES (1, 'new') ON CONFLICT (id) DO UPDATE SET v = 'old'",
        "INSERT INTO wide VALUES (1, repeat('x', 9000)) ON CONFLICT (id) DO UPDATE SET v = 'old'",
    ],
    "message": ["SELECT pg_logical_emit_message(true, 'in', repeat('m', 30000))"],
}


def leave_open(database: Database, gid: str) -> dict[str, Connection[Any]]:
    """Run each of OPEN in a connection of its own, statement by statement in turn, with commits in
    between.

    The plain one is prepared then, as *gid*.
    """
    database.execute("CREATE TABLE big (id int, v text); CREATE TABLE beside (id int)")
    connections = {name: database.connect(autocommit=False) for name in OPEN}
    for row in itertools.zip_longest(*([(name, s) for s in OPEN[name]] for name in OPEN)):
        for step in filter(None, row):
            connections[step[0]].execute(step[1])
        database.execute("INSERT INTO beside SELECT generate_series(1, 50)")
    connections["plain"].execute(f"PREPARE TRANSACTION '{gid}'")
    return connections


def end(database: Database, connections: dict[str, Connection[Any]], gid: str) -> None:
    """Write once more in each that was left open, and commit all."""
    for name, connection in connections.items():
        if name != "plain":
            connection.execute("INSERT INTO big VALUES (-9, 'at the end')")
        connection.commit()
        connection.close()
    database.execute(f"COMMIT PREPARED '{gid}'")
