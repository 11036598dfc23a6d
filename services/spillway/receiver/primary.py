"""Short questions to the primary: where its WAL ends, what it writes, which databases it has, what
it keeps for us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from psycopg.conninfo import make_conninfo

from spillway.errors import DatabaseRenamed, UnknownDatabase, WalLevelNotLogical
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.conninfo import parse_dsn
from spillway.pg.lsn import Lsn
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from typing import Any


def with_database(dsn: str, database: str) -> str:
    """Return *dsn* with another database in it."""
    parameters: dict[str, Any] = {**parse_dsn(dsn), "dbname": database}
    return make_conninfo("", **parameters)


def wal_flush_lsn(dsn: str) -> Lsn:
    """Ask where the primary's flushed WAL ends; what committed before is before that.

    Raises:
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        row = connection.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def check_wal_level(dsn: str) -> None:
    """Check that the primary writes what decoding needs, now.

    Raises:
        WalLevelNotLogical: it does not.
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        row = connection.execute("SELECT pg_catalog.current_setting('wal_level')").fetchone()
    if row is None or row[0] != "logical":
        raise WalLevelNotLogical(
            f"the source's wal_level is {row[0] if row else 'unknown'}",
            hint="ALTER SYSTEM SET wal_level = 'logical'; then restart the server. Decoding begins "
            "anew by itself then, and slots that missed something are invalidated.",
        )


class SourceDatabase(NamedTuple):
    """A database of the cluster."""

    name: str
    oid: int
    #: PostgreSQL's name of its encoding, UTF8 for one
    encoding: str


def find_database(dsn: str, name: str) -> SourceDatabase:
    """Look *name* up, through any database of the cluster.

    Raises:
        UnknownDatabase: the cluster has none of that name.
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        row = connection.execute(
            "SELECT oid::bigint, pg_catalog.pg_encoding_to_char(encoding)::text"
            " FROM pg_catalog.pg_database WHERE datname = %s AND datallowconn",
            [name],
        ).fetchone()
    if row is None:
        raise UnknownDatabase(
            f'database "{name}" does not exist or does not allow connections',
            hint="Name a database of the source's cluster; psql -l lists them.",
            database=name,
        )
    return SourceDatabase(name, int(row[0]), row[1])


def has_database(dsn: str, name: str) -> bool:
    """Say whether the cluster has *name*, whoever may connect to it.

    Raises:
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        query = "SELECT FROM pg_catalog.pg_database WHERE datname = %s"
        return connection.execute(query, [name]).fetchone() is not None


def database_names(dsn: str) -> dict[int, str]:
    """Return the names that the cluster's databases have now, by their OIDs.

    Raises:
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        rows = connection.execute("SELECT oid::bigint, datname::text FROM pg_catalog.pg_database")
        return {int(oid): name for oid, name in rows}


def database_renamed(name: str, now: str) -> DatabaseRenamed:
    """Make the error of a database that is decoded as *name*, which the server calls *now*."""
    back = f"ALTER DATABASE {quote_identifier(now)} RENAME TO {quote_identifier(name)};"
    return DatabaseRenamed(
        f'database "{name}", which is decoded by that name, is called "{now}" on the source now',
        hint=f"Give it its name back, after another name for the database that has it now, if one "
        f"has: {back} Or read its slots to their ends and drop them all: then databases are "
        "decoded by the names that they have.",
        database=name,
        renamed_to=now,
    )


def check_database_name(dsn: str, name: str, oid: int) -> None:
    """Check that the server's database with *oid* is called *name*, if it is there.

    Raises:
        DatabaseRenamed: it is called otherwise.
        SourceError: the server can't be asked.
    """
    if (now := database_names(dsn).get(oid, name)) != name:
        raise database_renamed(name, now)


class KeptByPrimary(NamedTuple):
    """What the primary keeps for a physical slot; ages in transactions, None where the slot holds
    nothing back.
    """

    wal_bytes: int
    xmin_age: int | None
    catalog_xmin_age: int | None
    logical_slots: int


def kept_by_primary(dsn: str, slot_name: str) -> KeptByPrimary:
    """Ask what the primary keeps for the physical slot *slot_name*; nothing, if it has none.

    Raises:
        SourceError: it can't be asked.
    """
    with source_session(dsn) as connection:
        row = connection.execute(
            "SELECT coalesce(greatest(0, pg_current_wal_flush_lsn() - max(restart_lsn) FILTER "
            "(WHERE ours)), 0)::bigint, max(age(xmin)) FILTER (WHERE ours), max(age(catalog_xmin)) "
            "FILTER (WHERE ours), count(*) FILTER (WHERE slot_type = 'logical')"
            " FROM (SELECT *, slot_name = %s AS ours FROM pg_replication_slots) AS slots",
            [slot_name],
        ).fetchone()
    assert row is not None
    return KeptByPrimary(*row)
