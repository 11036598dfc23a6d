"""Roles and replication origins: rows whose place is not known, and rewrites from another
database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.catalog_replay import CatalogReplay, assert_equals_server
from harness.tiers import majors_by_tier
from spillway.catalog import shared_catalogs
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.layout import PG_AUTHID, PG_REPLICATION_ORIGIN
from spillway.catalog.serialization import deserialize, serialize
from spillway.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from spillway.catalog.mirror import CatalogMirror
    from spillway.wal.record import Record

MAJORS = [14, 15, 16, 17, 18]
all_majors = pytest.mark.parametrize(
    "pg", majors_by_tier(MAJORS), indirect=True, ids=[f"pg{m}" for m in MAJORS]
)


class RestartingReplay(CatalogReplay):
    """Serialises the mirror whenever it holds something that it can't tell the meaning of yet."""

    restarts = 0

    def feed(self, record: Record) -> None:
        super().feed(record)
        if any(u.records for u in self.mirror.heaps.locations.unidentified.values()):
            self.mirror = deserialize(serialize(self.mirror))
            self.restarts += 1


@pytest.fixture
def elsewhere(pg: Database) -> Iterator[Database]:
    """Another database of the cluster; roles and origins are cleared away with it."""
    database = pg.cluster.create_database(f"{pg.name}_elsewhere")
    try:
        yield database
    finally:
        pg.cluster.drop_database(database.name)
        pg.query("SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin")
        for (name,) in pg.query(
            r"SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384 AND rolname NOT LIKE "
            r"'pg\_%'"
        ):
            pg.execute(f"DROP ROLE {name}")


def run(database: Database, script: str) -> None:
    with database.connect() as connection:
        for statement in script.split(";"):
            connection.execute(statement)


def names(mirror: CatalogMirror) -> set[tuple[int, str]]:
    return {(row.oid, row.rolname) for row in mirror.visible_rows().whole(PG_AUTHID)}


@all_majors
def test_a_rewrite_elsewhere_is_followed_over_restarts(pg: Database, elsewhere: Database) -> None:
    replay = RestartingReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    tracked = len(replay.mirror.tracked)
    run(elsewhere, "CREATE ROLE early; ALTER ROLE early VALID UNTIL '2030-01-01'")
    for number in range(2):
        # Pages that were written by the rewrite are changed without an image.
        run(
            elsewhere,
            f"VACUUM FULL pg_authid; ALTER ROLE early CONNECTION LIMIT {number}; CREATE ROLE "
            f"r{number}; ALTER ROLE early RENAME TO late; ALTER ROLE late RENAME TO early",
        )
        replay.run()
        assert not replay.mirror.heaps.locations.unidentified
        assert len(replay.mirror.tracked) == tracked
        assert_equals_server(replay.mirror, pg)
    assert replay.restarts > 1
    restarts = replay.restarts
    run(
        elsewhere,
        "VACUUM FULL pg_authid; REINDEX TABLE pg_authid; VACUUM FULL pg_replication_origin; DROP "
        "ROLE r0",
    )
    replay.run()
    assert replay.restarts > restarts
    assert len(replay.mirror.tracked) == tracked
    assert_equals_server(replay.mirror, pg)


@all_majors
def test_a_rewrite_whose_beginning_was_not_seen(
    pg: Database, elsewhere: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    monkeypatch.setattr(shared_catalogs, "note_creation", lambda *_: None)
    run(elsewhere, "CREATE ROLE one; CREATE ROLE two; CREATE ROLE three")
    run(elsewhere, "SELECT pg_replication_origin_create(n) FROM unnest('{a,b,c}'::text[]) n")
    for number in range(2):
        run(elsewhere, "VACUUM FULL pg_authid; VACUUM FULL pg_replication_origin; CHECKPOINT")
        replay.run()
        assert replay.mirror.heaps.locations.current[PG_AUTHID.oid].unplaced
        assert_equals_server(replay.mirror, pg)
        run(elsewhere, "BEGIN; ALTER ROLE two RENAME TO other; DROP ROLE three; ROLLBACK")
        run(pg, f"ALTER ROLE one CONNECTION LIMIT {number}; ALTER ROLE two RENAME TO new")
        run(pg, "ALTER ROLE new RENAME TO two; DROP ROLE three; CREATE ROLE three")
        run(pg, "SELECT pg_replication_origin_drop('b')")
        run(pg, "SELECT pg_replication_origin_create('b')")
        replay.run()
        replay.mirror = deserialize(serialize(replay.mirror))
        expected = set(pg.query("SELECT oid::int8, rolname FROM pg_roles"))
        assert names(replay.mirror) == expected
        origins = {
            (row.roident, row.roname)
            for row in replay.mirror.visible_rows().whole(PG_REPLICATION_ORIGIN)
        }
        assert origins == set(pg.query("SELECT roident::int, roname FROM pg_replication_origin"))


@all_majors
def test_names_by_a_role_that_may_not_read_them(pg: Database, elsewhere: Database) -> None:
    pg.execute("CREATE ROLE watcher LOGIN REPLICATION")
    run(elsewhere, "CREATE ROLE kept; CREATE ROLE changed; CREATE ROLE dropped; CHECKPOINT")
    # Between the redo point and the bootstrap's snapshot.
    run(elsewhere, "CREATE ROLE between; ALTER ROLE changed RENAME TO once; CREATE ROLE brief")
    run(elsewhere, "DROP ROLE brief; BEGIN; DROP ROLE kept; ROLLBACK")
    with elsewhere.connect() as holder:
        # In progress in the snapshot.
        holder.execute("BEGIN")
        holder.execute("CREATE ROLE pending")
        holder.execute("ALTER ROLE dropped RENAME TO renamed")
        begun = bootstrap_sql(f"{pg.dsn} user=watcher")
        assert begun.mirror.heaps.locations.current[PG_AUTHID.oid].stand_ins
        replay = CatalogReplay(begun, pg.cluster)
        holder.execute("COMMIT")

    def expect() -> None:
        replay.run()
        assert names(replay.mirror) == set(pg.query("SELECT oid::int8, rolname FROM pg_roles"))
        replay.mirror = deserialize(serialize(replay.mirror))

    expect()
    run(elsewhere, "ALTER ROLE renamed RENAME TO dropped; ALTER ROLE once VALID UNTIL 'infinity'")
    expect()
    run(
        pg, "DROP ROLE dropped; ALTER ROLE between RENAME TO since; CHECKPOINT; CREATE ROLE dropped"
    )
    expect()
    run(
        pg,
        "BEGIN; SAVEPOINT a; ALTER ROLE kept RENAME TO wrong; SAVEPOINT b; DROP ROLE since; "
        "ROLLBACK TO a; ALTER ROLE kept CONNECTION LIMIT 1; SAVEPOINT c; ALTER ROLE kept RENAME TO "
        "right; ROLLBACK TO c; ALTER ROLE once RENAME TO twice; COMMIT",
    )
    expect()
    run(elsewhere, "VACUUM FREEZE pg_authid; ALTER ROLE twice RENAME TO thrice; DROP ROLE pending")
    expect()
    run(pg, "VACUUM FULL pg_authid; DROP ROLE thrice; DROP ROLE kept")
    expect()
    assert_equals_server(replay.mirror, pg)


def test_a_state_of_an_older_format_is_refused(pg18: Database) -> None:
    state = bytearray(serialize(bootstrap_sql(pg18.dsn).mirror))
    state[8] -= 1
    with pytest.raises(StorageError, match="format"):
        deserialize(bytes(state))
