"""Databases in SQL_ASCII, which take statements of any bytes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.cluster import Database

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def in_sql_ascii(beside: Database, *statements: bytes) -> Iterator[Database]:
    """Have a database in SQL_ASCII in the cluster of *beside*; *statements* are run there first."""
    name = f"{beside.name[:50]}_bytes"
    beside.cluster.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0"
        " LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    made = Database(beside.cluster, name)
    try:
        write_bytes(made, *statements)
        yield made
    finally:
        beside.cluster.drop_database(name)


def write_bytes(database: Database, *statements: bytes) -> None:
    """Run statements whose bytes are the database's own."""
    with database.connect() as connection:
        for statement in (b"SET client_encoding = SQL_ASCII", *statements):
            result = connection.pgconn.exec_(statement)
            assert not result.error_message, (statement, result.error_message)
