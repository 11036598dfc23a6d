"""A database that gets another name on the source: its slots go on, and no other database is taken
for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.remedies import remedy, statements
from harness.service import service_in_process

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database
    from harness.service import Service


def _rows(service: Service, slot: str, database: Database) -> list[str]:
    """What a slot tells of inserts, once all is decoded."""
    service.wait_decoded(slot, database)
    return [data for _, _, data in service.get(slot) if "INSERT" in data]


def _swap(cluster: Cluster, *names: str) -> None:
    """Give the databases each other's name: the first becomes *former*, the next the first…"""
    for name, now in zip(names, ("former", *names), strict=False):
        cluster.execute(f"ALTER DATABASE {name} RENAME TO {now}")


def _named(cluster: Cluster) -> tuple[Database, Database]:
    """Two databases: the one that is *shop* first has a table of that name, the other *next*."""
    shop, new = cluster.create_database("shop"), cluster.create_database("next")
    shop.execute("CREATE TABLE old (i int)")
    new.execute("CREATE TABLE new (i int)")
    return shop, new


@pytest.mark.follows_hint("database_renamed")
def test_its_name_is_anothers(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    """What is asked for by the name is never another database's: it is refused as long as slots
    need what is decoded by it, also after a restart.
    """
    cluster = fresh_cluster(18)
    shop, _ = _named(cluster)
    body = {"slot_name": "refused", "source": "main", "database": "shop", "plugin": "test_decoding"}
    with service_in_process(tmp_path) as service:
        service.create_source(cluster.dsn())
        service.create_slot("kept", "shop")
        shop.execute("INSERT INTO old VALUES (1)")
        _swap(cluster, "shop", "next")
        shop.execute("INSERT INTO new VALUES (2)")
        for named in ("shop", "former"):
            problem = service.problem("POST", "/slots", json={**body, "database": named})
            assert (problem["code"], problem["status"]) == ("database_renamed", 409)
        assert service.problem("POST", "/slots/kept/snapshot")["code"] == "database_renamed"
    with service_in_process(tmp_path) as service:
        cluster.execute("INSERT INTO old VALUES (3)", dbname="former")
        expected = [f"table public.old: INSERT: i[integer]:{i}" for i in (1, 3)]
        assert _rows(service, "kept", shop) == expected
        # The slot's copy is of the slot's database.
        service.call("POST", "/slots/kept/copy", json={"slot_name": "copied"})
        service.drop_slot("copied")
        problem = service.problem("POST", "/slots", json=body)
        cluster.execute("ALTER DATABASE shop RENAME TO next")
        for statement in statements(remedy(problem, "database_renamed")):
            cluster.execute(statement)
        service.create_slot("refused", "shop")
        shop.execute("INSERT INTO old VALUES (4)")
        for slot in ("kept", "refused"):
            assert _rows(service, slot, shop) == ["table public.old: INSERT: i[integer]:4"]


def test_its_slots_are_dropped(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    """Then each name is the database's that has it, though the service knew it as another's."""
    cluster = fresh_cluster(18)
    shop, _ = _named(cluster)
    with service_in_process(tmp_path) as service:
        service.create_source(cluster.dsn())
        service.create_slot("kept", "shop")
        _swap(cluster, "shop", "next")
        service.drop_slot("kept")
        service.create_slot("of_new", "shop")
        service.create_slot("of_old", "former")
        shop.execute("INSERT INTO new VALUES (1)")
        cluster.execute("INSERT INTO old VALUES (2)", dbname="former")
        assert _rows(service, "of_new", shop) == ["table public.new: INSERT: i[integer]:1"]
        assert _rows(service, "of_old", shop) == ["table public.old: INSERT: i[integer]:2"]
    with service_in_process(tmp_path) as service:
        shop.execute("INSERT INTO new VALUES (3)")
        assert _rows(service, "of_new", shop) == ["table public.new: INSERT: i[integer]:3"]
        assert _rows(service, "of_old", shop) == []
