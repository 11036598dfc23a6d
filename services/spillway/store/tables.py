"""The tables as a new database gets them: what all of ``migrations`` come to, without Alembic.

A change here needs a migration beside it (``migrations/versions``) and the change in ``schema``; tests compare the three. Migrations
must leave the database usable by the previous release: add columns with defaults, drop nothing in use.

An LSN is unsigned in PostgreSQL and ``bigint`` is not. It is stored as a number all the same, so that
SQL can compare and order it; positions of 2**63 (8 EiB of WAL) and above are refused, not wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spillway.store.database import Connection

#: The newest of ``migrations/versions``: a database that is there needs no migration.
REVISION: Final = "0002"

# Names of constraints are those that ``schema`` makes, so that migrations can refer to them. A name in PostgreSQL is 63 bytes, which is
# at most 63 characters. A lease's times are those of the database's clock, in milliseconds since 1970: clocks of different
# machines are never compared. Its row stays when it is released, so that its token never repeats.
_TABLES: Final = (
    """
CREATE TABLE sources (
    name VARCHAR(63) NOT NULL,
    dsn TEXT NOT NULL,
    system_id VARCHAR(20) NOT NULL,
    server_version_num INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    wal_segment_size INTEGER NOT NULL,
    slot_name VARCHAR(63) NOT NULL,
    state VARCHAR(32) NOT NULL,
    error TEXT,
    error_code VARCHAR(64),
    hint TEXT,
    created_at {moment} NOT NULL,
    capture JSON DEFAULT '{{}}' NOT NULL,
    CONSTRAINT pk_sources PRIMARY KEY (name)
)""",
    """
CREATE TABLE slots (
    slot_name VARCHAR(63) NOT NULL,
    source VARCHAR(63) NOT NULL,
    "database" VARCHAR(63) NOT NULL,
    datoid BIGINT NOT NULL,
    plugin VARCHAR(63) NOT NULL,
    slot_type VARCHAR(16) NOT NULL,
    "temporary" BOOLEAN DEFAULT false NOT NULL,
    catalog_xmin BIGINT,
    restart_lsn BIGINT,
    confirmed_flush_lsn BIGINT,
    two_phase BOOLEAN DEFAULT false NOT NULL,
    two_phase_at BIGINT,
    inactive_since {moment},
    conflicting BOOLEAN DEFAULT false NOT NULL,
    invalidation_reason VARCHAR(64),
    failover BOOLEAN DEFAULT false NOT NULL,
    synced BOOLEAN DEFAULT false NOT NULL,
    options JSON NOT NULL,
    created_at {moment} NOT NULL,
    CONSTRAINT pk_slots PRIMARY KEY (slot_name),
    CONSTRAINT fk_slots_source_sources FOREIGN KEY(source) REFERENCES sources (name) ON DELETE RESTRICT
)""",
    "CREATE INDEX ix_slots_source ON slots (source)",
    """
CREATE TABLE leases (
    resource VARCHAR(200) NOT NULL,
    holder VARCHAR(200) NOT NULL,
    token BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (resource)
)""",
    """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)""",
)


def revisions(connection: Connection) -> list[str]:
    """Give what is written of the schema; nothing of a new database."""
    found = connection.row(connection.backend.has_table, name="alembic_version")
    if found is None or not found["n"]:
        return []
    return [
        row["version_num"] for row in connection.rows("SELECT version_num FROM alembic_version")
    ]


def create(connection: Connection) -> list[str]:
    """Make the tables of a new database, unless somebody else just has; give what is written of the schema then.

    Like a migration, in one transaction under one lock, so that any number of processes may start at once.
    """
    connection.backend.lock_schema(connection.raw)
    if not revisions(connection):
        for statement in _TABLES:
            connection.run(statement.format(moment=connection.backend.moment_type))
        connection.run("INSERT INTO alembic_version VALUES (:revision)", revision=REVISION)
    return revisions(connection)
