"""Names of replication origins as of each point, on all majors; their catalog is shared by all
databases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.catalog_replay import CatalogReplay, assert_equals_server
from harness.tiers import majors_by_tier
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.catalog.serialization import deserialize, serialize

if TYPE_CHECKING:
    from harness.cluster import Database

MAJORS = [14, 15, 16, 17, 18]


@pytest.mark.parametrize("raw", [False, True], ids=["sql", "raw"])
@pytest.mark.parametrize(
    "pg", majors_by_tier(MAJORS), indirect=True, ids=[f"pg{m}" for m in MAJORS]
)
def test_names_follow_the_catalog(pg: Database, raw: bool) -> None:
    def create(name: str, where: Database | None = None) -> int:
        query = "SELECT pg_replication_origin_create(%s)::int8"
        return int((where or pg).value(query, [f"{pg.name} {name}"]))

    def drop(name: str) -> None:
        pg.query("SELECT pg_replication_origin_drop(%s)", [f"{pg.name} {name}"])

    first = create("first")
    replay = CatalogReplay((bootstrap_raw if raw else bootstrap_sql)(pg.dsn), pg.cluster)
    elsewhere = pg.cluster.create_database(f"{pg.name}_elsewhere")
    try:
        second = create("second")
        third = create("third", elsewhere)

        def names() -> list[str]:
            replay.run()
            ids = (first, second, third)
            return [replay.mirror.origin_name(i).removeprefix(pg.name).strip() for i in ids]

        assert names() == ["first", "second", "third"]
        assert replay.mirror.origin_name(0) == replay.mirror.origin_name(60000) == ""
        drop("second")
        assert names() == ["first", "", "third"]
        replay.mirror = deserialize(serialize(replay.mirror))
        pg.execute("VACUUM FULL pg_replication_origin")
        assert names() == ["first", "", "third"]
        assert_equals_server(replay.mirror, pg)
        # In another database: there is no row in our pg_class that says so.
        elsewhere.execute("VACUUM FULL pg_replication_origin")
        assert names() == ["first", "", "third"]
        drop("third")
        assert create("second") in (second, third)
        assert "second" in names()
    finally:
        pg.cluster.drop_database(elsewhere.name)
        for (name,) in pg.query("SELECT roname FROM pg_replication_origin"):
            if name.startswith(f"{pg.name} "):
                pg.query("SELECT pg_replication_origin_drop(%s)", [name])
