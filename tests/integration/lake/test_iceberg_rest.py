"""Lakes of Iceberg tables in a real REST catalog: what its readers see of a batch, and what becomes
of one whose job is killed around its commit.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config
from requests import ConnectionError as ConnectionLost
from requests import Session

from harness.arrow_slot import Table, delete, insert, truncate, update
from harness.catalog_relay import relay_to
from harness.iceberg_rest import rest_catalog
from harness.killed_driver import driven, run_killed
from harness.lake import Lake
from harness.service import service_in_process
from spillway.errors import LakeTableConflict
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake as Reader
from spillway.lake.tables.formats import lake_tables
from spillway.lake.tables.iceberg.catalog import CatalogChoice, choose
from spillway.lake.tables.maintenance import Upkeep, maintain
from spillway.lake.verify.run import VerifySettings, verify
from spillway.pg.lsn import Lsn
from spillway.storage.place import stored_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.catalog_relay import Relay
    from harness.cluster import Database

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


@pytest.mark.long
@pytest.mark.parametrize("merge", ["copy", "position"])
def test_loaded_beside_commits_of_all(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    catalog: None,
    address: str,
    merge: Literal["copy", "position"],
) -> None:
    """A load makes commits of its own, to a table of which the job's batches are commits of all."""
    monkeypatch.setattr("spillway.lake.tables.positions.SMALL_TABLE_BYTES", 0)
    pg15.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text);"
        "INSERT INTO items SELECT g, repeat(g::text, 40) FROM generate_series(1, 3000) g;"
        "CREATE TABLE orders (id serial PRIMARY KEY, item int, total int)"
    )
    lake = tmp_path / "lake"
    stop = threading.Event()

    def write() -> None:
        with pg15.connect() as connection:
            for number in itertools.count(1):
                connection.execute(f"INSERT INTO orders (item, total) VALUES ({number % 9}, 1)")
                connection.execute(
                    f"UPDATE orders SET total = total + 1 WHERE item = {number % 7};"
                    f"UPDATE items SET name = 'new {number}' WHERE id % 500 = {number % 500};"
                    f"DELETE FROM items WHERE id = {7 * number};"
                    f"INSERT INTO items VALUES ({number + 5000}, 'more')"
                )
                if stop.wait(0.05):
                    return

    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=lake, checkpoint=tmp_path / "checkpoint", table_format="iceberg",
            iceberg_catalog="shared", merge=merge, grpc=service.grpc_address, source_dsn=pg15.dsn,
            tables=("public.items", "public.orders"),
        )  # fmt: skip
        loading = LoadSettings(
            slot="s", path=lake, source_dsn=pg15.dsn, tables=("public.items",),
            table_format="iceberg", grpc=service.grpc_address, range_bytes=8192,
        )  # fmt: skip
        always = replace(settings, trigger="continuous", interval_s=0.1)
        with ThreadPoolExecutor(2) as threads:
            writer = threads.submit(write)
            job = threads.submit(run_job, always, spark=spark, stop=stop)
            try:
                while not (lake / "history" / "public.orders").exists():
                    assert not job.done(), job.exception()
                    time.sleep(0.1)
                assert run_load(loading, lambda _: None, spark=spark) == 1
                assert run_load(replace(loading, resync=True), lambda _: None, spark=spark) == 1
            finally:
                stop.set()
            writer.result()
            job.result()
        service.wait_decoded("s", pg15)
        run_job(settings, spark=spark)
        checking = VerifySettings(path=lake, source_dsn=pg15.dsn, grpc=service.grpc_address)
        outcome = verify(checking, spark=spark)
        assert [str(table) for table in outcome.tables if not table.equal] == []
        assert len(outcome.tables) == 2
        changes = [
            (row["_commit_lsn"], row["_seq"])
            for row in _rows(address, "history_public.items")
            if row["_op"] != "R"
        ]
        assert len(set(changes)) == len(changes) > 0
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


#: When the job is killed, and how many commits of all tables the next one asks for: its first batch
#: is the killed one's, where that isn't there, and one with what came since is the second.
WHEN = {
    "lake.before_together": 2,  # files are durable, and tables are made; no request
    "the answer is on its way": 1,  # the catalog has done it
    "the request arrives late": 2,  # after the next job's
    "the request arrives between": 2,  # just before the next job's, which is refused
    "lake.after_together": 1,  # it is known, and nothing says so yet
    "lake.before_position": 1,  # the lake's position is the old one
    "lake.before_advance": 1,  # the slot's is
}


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize(
    ("when", "merge"),
    [
        (["the answer is on its way"], "position"),
        ([*WHEN], "position"),
        ([*reversed(WHEN)], "copy"),
    ],
    ids=["one", "all", "copy"],
)
def test_killed_around_the_commit(
    lake: Lake, address: str, monkeypatch: pytest.MonkeyPatch, when: list[str], merge: str
) -> None:
    """Afterwards each table is what the slot says, no snapshot has anything twice, and nothing that
    the killed one left is in the next batch's way.
    """
    monkeypatch.setattr("spillway.lake.tables.positions.SMALL_TABLE_BYTES", 0)
    posts = Posts(monkeypatch)
    history: list[tuple[str, int]] = []
    items: dict[int, str] = {}
    orders: dict[int, int] = {}
    ends: list[int] = []
    table = ITEMS
    with relay_to(address) as relay:
        # Of processes that are started; this one has read its own already.
        monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__URI", relay.address)
        for number, each in enumerate(when):
            base = 10 * number
            if number == 2:
                table = ITEMS.with_columns(price=pa.int64())
            filled = {"price": 5} if number >= 2 else {}
            changes = [insert(table, id=base + i, name="n", **filled) for i in (1, 2, 3)]
            changes.append(insert(ORDERS, id=base + 1, total=1))
            if number:
                # Rows of the batches before, one of which a killed job has written.
                changes += [
                    update(table, {"id": base - 9, "name": "renamed", **filled}),
                    delete(table, id=base - 8),
                    update(table, {"id": base - 5, "name": "moved", **filled}, {"id": base - 7}),
                    update(ORDERS, {"id": base - 9, "total": 2}),
                ]
            ends.append(lake.slot.commit(*changes))
            history += [("I", base + i) for i in (1, 2, 3)]
            items |= dict.fromkeys((base + 1, base + 2, base + 3), "n")
            orders[base + 1] = 1
            if number:
                history += [("U", base - 9), ("D", base - 8), ("U", base - 5)]
                items |= {base - 9: "renamed", base - 5: "moved"}
                del items[base - 8], items[base - 7]
                orders[base - 9] = 2
            confirmed = lake.slot.state["confirmed_flush_lsn"]
            late = _killed(lake, relay, each, merge)
            assert lake.slot.state["confirmed_flush_lsn"] == confirmed, each

            ends.append(
                lake.slot.commit(
                    update(table, {"id": base + 1, "name": "after", **filled}),
                    insert(ORDERS, id=base + 4, total=3),
                )
            )
            history.append(("U", base + 1))
            items[base + 1] = "after"
            orders[base + 4] = 3
            if each.endswith("between"):
                posts.then = _after(late)
            posts.urls.clear()
            lake.run(merge=merge)
            posts.then = lambda send: send()
            assert posts.commits() == ["all"] * WHEN[each], each
            if each.endswith("late"):
                late()

            found = _rows(address, "history_public.items")
            told = [(row["_op"], row["id"] or row["_old_key"]["id"]) for row in found]
            assert told == history, each
            found = _rows(address, "current_public.items")
            assert sorted((row["id"], row["name"]) for row in found) == sorted(items.items()), each
            found = _rows(address, "current_public.orders")
            assert sorted((row["id"], row["total"]) for row in found) == sorted(orders.items())
            assert len(_rows(address, "history_public.orders")) == len(orders) + number
            assert [_ends(address, name) for name in NAMES] == [ends] * 4, each
    later = datetime.now(UTC) + timedelta(days=30)
    tables = lake_tables("iceberg", lake.spark, lake.path, lake.slot.slot_name)
    done = maintain(lake.spark, lake.path, "iceberg", tables, Upkeep(), now=later)
    assert done.failures == {}
    for name in NAMES:
        table_now = reader(address).load_table(name)
        named = set(table_now.inspect.all_files().column("file_path").to_pylist())
        there = {str(path) for path in (stored_path(table_now.location()) / "data").iterdir()}
        assert there == named, f"{name} has files of killed jobs still"


def _after(late: Callable[[], None]) -> Callable[[Callable[[], Any]], Any]:
    """Return what sends a commit once *late* is through, which is once."""
    left = [late]

    def sent(send: Callable[[], Any]) -> Any:
        while left:
            left.pop()()
        return send()

    return sent


def _killed(lake: Lake, relay: Relay, when: str, merge: str) -> Callable[[], None]:
    """Have a job killed; return what lets its request go on that is still on its way."""
    settings = {
        "slot": lake.slot.slot_name,
        "path": str(lake.path),
        "checkpoint": str(lake.checkpoint),
        "table_format": "iceberg",
        "source_options": lake.slot.options,
        "merge": merge,
        "by_position": merge == "position",
    }
    if when.startswith("lake."):
        run_killed(lake.spark, f"{when}=kill", "job", settings)
        return lambda: None
    held = relay.hold("answer" if "answer" in when else "request")
    with driven(lake.spark, "job", settings) as process:
        held.wait()
        process.kill()
        process.wait()
    if held.before == "answer":
        assert held.status == 204
        held.let_go()
    wanted = 204 if when.endswith("between") else 409

    def late() -> None:
        assert held.let_go() == wanted, "of two requests the catalog takes one"

    return late


def _rows(address: str, name: str) -> list[dict[str, Any]]:
    rows = reader(address).load_table(name).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row.get("_commit_lsn", 0), row.get("_seq", 0)))


def _ends(address: str, name: str) -> list[int]:
    """Return up to where each snapshot says that it goes; one that folds files says it again."""
    said = [
        int(Lsn.parse(each.summary["spillway.end-lsn"] or ""))
        for each in reader(address).load_table(name).snapshots()
        if each.summary is not None
    ]
    return list(dict.fromkeys(said))
