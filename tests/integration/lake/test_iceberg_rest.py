"""Lakes of Iceberg tables in a real REST catalog: what its readers see of a batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config
from requests import ConnectionError as ConnectionLost
from requests import Session

from harness.arrow_slot import Table, delete, insert, truncate, update
from harness.iceberg_rest import rest_catalog
from harness.lake import Lake
from spillway.errors import LakeTableConflict
from spillway.lake.read import Lake as Reader
from spillway.lake.tables.formats import lake_tables
from spillway.lake.tables.iceberg.catalog import CatalogChoice, choose
from spillway.lake.tables.maintenance import Upkeep, maintain
from spillway.storage.place import stored_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
ORDERS = Table("orders", {"id": pa.int64(), "total": pa.int64()})
NAMES = ("history_public.items", "history_public.orders", "current_public.items",
         "current_public.orders")  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("catalog")) as address:
        yield address


@pytest.fixture
def catalog(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have it by the name of "shared"; it is empty afterwards."""
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__URI", address)
    # Its configuration is read when the library is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    yield
    there = reader(address)
    for namespace in there.list_namespaces():
        for table in there.list_tables(namespace):
            there.drop_table(table)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, catalog: None) -> Lake:
    lake = Lake(spark, tmp_path, "iceberg")
    choose(lake.path, CatalogChoice("shared"))
    return lake


def reader(address: str) -> RestCatalog:
    """Return the catalog as somebody else has it."""
    catalog = load_catalog("reader", type="rest", uri=address)
    assert isinstance(catalog, RestCatalog)
    return catalog


def ids(address: str, name: str) -> list[int]:
    rows = reader(address).load_table(name).scan().to_arrow()
    return sorted(rows.column("id").to_pylist())


def snapshots(address: str) -> dict[str, int]:
    """Return how many snapshots each table has; of one that isn't there, none."""
    catalog = reader(address)
    return {
        name: len(catalog.load_table(name).snapshots()) if catalog.table_exists(name) else 0
        for name in NAMES
    }


class Posts:
    """What this process sends to the catalog; *then* is done with each commit of several tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.urls: list[str] = []
        self.then: Callable[[Callable[[], Any]], Any] = lambda send: send()
        post = Session.post

        def noted(session: Session, url: str, *given: Any, **named: Any) -> Any:
            self.urls.append(url)

            def send() -> Any:
                return post(session, url, *given, **named)

            return self.then(send) if url.endswith("/transactions/commit") else send()

        monkeypatch.setattr(Session, "post", noted)

    def commits(self) -> list[str]:
        """Return the commits since the last call: of a table by its name, of several by "all"."""
        found = [url.rpartition("/")[2] for url in self.urls]
        self.urls.clear()
        return [{"commit": "all"}.get(n, n) for n in found if n in {"commit", "items", "orders"}]


def watch(posts: Posts, address: str) -> list[dict[str, int]]:
    """Return a list that gets what others see before the next commit of several tables, and after
    it.
    """
    seen: list[dict[str, int]] = []

    def watched(send: Callable[[], Any]) -> Any:
        seen.append(snapshots(address))
        answer = send()
        seen.append(snapshots(address))
        return answer

    posts.then = watched
    return seen


def test_a_batch_is_one_commit(lake: Lake, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = Posts(monkeypatch)
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ORDERS, id=1, total=1))
    lake.batch()
    assert posts.commits() == ["all"]
    assert [ids(address, name) for name in NAMES] == [[1]] * 4

    seen = watch(posts, address)
    lake.slot.commit(
        insert(ITEMS, id=2, name="b"), update(ITEMS, {"id": 1, "name": "c"}),
        insert(ORDERS, id=2, total=2), delete(ORDERS, id=1),
    )  # fmt: skip
    lake.batch()
    assert posts.commits() == ["all"]
    assert seen == [dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES, 2)]
    found = reader(address).load_table("current_public.items").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == [(1, "c"), (2, "b")]
    assert ids(address, "current_public.orders") == [2]


@pytest.mark.long
@pytest.mark.parametrize("merge", ["copy", "position"])
def test_several_commits_of_a_table(
    lake: Lake, address: str, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    """ALTER TABLE and TRUNCATE are in it, and what a merge by position marks."""
    monkeypatch.setattr("spillway.lake.tables.positions.SMALL_TABLE_BYTES", 0)
    posts = Posts(monkeypatch)
    lake.slot.commit(
        *(insert(ITEMS, id=n, name="a") for n in (1, 2)), insert(ORDERS, id=1, total=1)
    )
    lake.run(merge=merge)
    posts.commits()
    seen = watch(posts, address)
    lake.slot.commit(delete(ITEMS, id=2), update(ORDERS, {"id": 1, "total": 2}))
    lake.run(merge=merge)
    deletes = reader(address).load_table("current_public.items").inspect.delete_files()
    assert len(deletes) == (1 if merge == "position" else 0)
    wider = ITEMS.with_columns(price=pa.int64())
    lake.slot.commit(
        insert(wider, id=2, name="b", price=7),
        update(wider, {"id": 1, "name": "c", "price": 8}),
        truncate(ORDERS),
        insert(ORDERS, id=2, total=2),
    )
    lake.run(merge=merge)
    assert posts.commits() == ["all"] * 2
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        assert all(before[name] < after[name] for name in NAMES)
    found = reader(address).load_table("current_public.items").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["name"], row["price"]) for row in found) == [
        (1, "c", 8), (2, "b", 7),
    ]  # fmt: skip
    assert ids(address, "current_public.orders") == [2]
    pin = Reader(lake.spark, lake.path).at()
    assert [row["id"] for row in pin.current("public.orders").collect()] == [2]


def test_nobody_knows_whether_it_is_there(
    lake: Lake, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the catalog has done a commit, or before it."""
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ORDERS, id=1, total=1))
    lake.batch()
    posts = Posts(monkeypatch)
    for number, does in enumerate((True, False), 2):

        def broken(send: Callable[[], Any], does: bool = does) -> Any:
            posts.then = lambda send: send()
            if does:
                send()
            raise ConnectionLost("gone")

        posts.then = broken
        lake.slot.commit(insert(ITEMS, id=number, name="b"), update(ORDERS, {"id": 1, "total": 2}))
        lake.batch()
        assert posts.commits() == (["all"] if does else ["all", "all"])
        assert [ids(address, name) for name in NAMES] == [
            [*range(1, number + 1)], [1] * number, [*range(1, number + 1)], [1],
        ]  # fmt: skip
        assert snapshots(address) == dict.fromkeys(NAMES, number)
        assert lake.reports[-1].changes == {"public.items": 1, "public.orders": 1}


def test_others_commit_first(lake: Lake, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that loses is written again on what is there; one that always does goes table by
    table.
    """
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ORDERS, id=1, total=1))
    lake.batch()
    posts = Posts(monkeypatch)
    others: list[object] = []

    def late(send: Callable[[], Any]) -> Any:
        if len(others) < most:
            own = list(posts.urls)
            table = reader(address).load_table("current_public.orders")
            table.append(pa.table({"id": pa.array([-len(others) - 1]), "total": pa.array([0])}))
            others.append(table)
            posts.urls[:] = own
        return send()

    posts.then = late
    for most, wanted in ((1, ["all"] * 2), (4, ["all"] * 3 + ["items"] * 2 + ["orders"] * 2)):
        added = most + 10
        lake.slot.commit(insert(ITEMS, id=added, name="b"), insert(ORDERS, id=added, total=3))
        lake.batch()
        assert sorted(posts.commits()) == wanted
    assert ids(address, "history_public.orders") == [1, 11, 14]
    assert ids(address, "current_public.orders") == [-4, -3, -2, -1, 1, 11, 14]
    assert ids(address, "current_public.items") == [1, 11, 14]


def test_a_catalog_without_it(
    lake: Lake, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that doesn't list the endpoint isn't asked; one that lists nothing is asked once."""
    posts = Posts(monkeypatch)
    fetch = RestCatalog._fetch_config

    def without(catalog: RestCatalog) -> None:
        fetch(catalog)
        catalog._supported_endpoints = {
            each for each in catalog._supported_endpoints if "transactions" not in each.path
        }

    monkeypatch.setattr(RestCatalog, "_fetch_config", without)
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ORDERS, id=1, total=1))
    lake.batch()
    assert sorted(posts.commits()) == ["items", "items", "orders", "orders"]
    assert "doesn't list it among its endpoints" in caplog.text
    assert [ids(address, name) for name in NAMES] == [[1]] * 4


def test_a_catalog_that_places_tables(
    spark: SparkSession, tmp_path: Path, address: str, catalog: None
) -> None:
    """Tables lie where the catalog puts them, and are listed, read and maintained as others are."""
    own = Lake(spark, tmp_path / "own", "iceberg")
    choose(own.path, CatalogChoice("shared", "own_", "catalog"))
    own.slot.commit(insert(ITEMS, id=1, name="a"), insert(ORDERS, id=1, total=1))
    own.batch()
    own.slot.commit(insert(ITEMS, id=2, name="b"), update(ITEMS, {"id": 1, "name": "c"}))
    own.batch()
    table = reader(address).load_table("own_current_public.items")
    place = stored_path(table.location())
    assert not str(place).startswith(str(own.path))
    assert (own.path / "current" / "public.items" / "place").read_text() == str(place)
    assert not list((own.path / "current").glob("**/*.parquet"))
    assert ids(address, "own_current_public.items") == [1, 2]
    pin = Reader(spark, own.path).at()
    assert pin.tables() == ["public.items", "public.orders"]
    assert sorted(row["name"] for row in pin.current("public.items").collect()) == ["b", "c"]
    tables = lake_tables("iceberg", spark, own.path, own.slot.slot_name)
    later = datetime.now(UTC) + timedelta(days=30)
    done = maintain(spark, own.path, "iceberg", tables, Upkeep(), now=later)
    assert done.failures == {}
    assert len(done.tables) == 4
    assert len(reader(address).load_table("own_history_public.items").inspect.files()) == 1
    # Another lake that says the same names is refused, not mixed up with this one.
    other = Lake(spark, tmp_path / "other", "iceberg")
    choose(other.path, CatalogChoice("shared", "own_", "catalog"))
    other.slot.commit(insert(ITEMS, id=9, name="z"))
    with pytest.raises(LakeTableConflict, match=f"for {own.path}, and this lake is at"):
        other.batch()
    assert ids(address, "own_current_public.items") == [1, 2]
