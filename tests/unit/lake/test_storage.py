"""Small files of a lake, in a directory and in a bucket of a real S3 server."""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.azure_store import CONTAINER, KEY, azure_store
from harness.object_store import BUCKET, object_store
from harness.tiers import deep
from spillway.errors import InvalidRequest, LakeError, LakeTableConflict, LeaseLost, NotReady
from spillway.lake import lease
from spillway.lake.session import object_storage_settings
from spillway.lake.state import boundaries, commit_points, job_record, position
from spillway.lake.state.boundaries import Limits
from spillway.lake.state.job_record import JobRecord
from spillway.lake.state.loads import (
    LoadState,
    Stage,
    forget_state,
    load_state,
    loading_lock,
    loading_tables,
    store_state,
    table_lock,
)
from spillway.lake.state.position import LakePosition
from spillway.lake.tables.delta.tables import last_transaction
from spillway.storage import lease as storage_lease
from spillway.storage import object_stores
from spillway.storage.place import (
    ObjectPath,
    StorageChanged,
    lake_path,
    replace_json,
    replace_text,
    spark_address,
    storage_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.storage.place import LakePath

POSITION = LakePosition("slot", "source", "shop", "delta", "0/100")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with object_store() as environment:
        yield environment


@pytest.fixture(scope="module")
def az() -> Iterator[dict[str, str]]:
    with azure_store() as environment:
        yield environment


@pytest.fixture(params=["s3", deep("az")])
def bucket(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ObjectPath:
    return in_store(request.param, monkeypatch, request)


@pytest.fixture(params=["directory", "s3", deep("az")])
def place(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> LakePath:
    if request.param == "directory":
        return tmp_path
    return in_store(request.param, monkeypatch, request)


def in_store(
    scheme: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> ObjectPath:
    for name, value in request.getfixturevalue(scheme).items():
        monkeypatch.setenv(name, value)
    assert BUCKET == CONTAINER
    name = re.sub(r"\W", "-", request.node.name)
    return ObjectPath(BUCKET, f"{name}/lake", scheme)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("_LEASE_S", 1.0),
        ("_MARGIN_S", 0.3),
        ("_BEAT_S", 0.2),
        ("_WATCH_S", 0.05),
    ):
        monkeypatch.setattr(storage_lease, name, seconds)


def test_small_files(place: LakePath) -> None:
    folder = place / "some" / "folder"
    assert not folder.is_dir()
    folder.mkdir(parents=True)
    for name in ("b.json", "a.json", "c.txt"):
        replace_text(folder / name, f"this is {name}")
    replace_json(folder / "a.json", {"a": "ä"})
    assert folder.is_dir()
    assert folder.exists()
    assert (folder / "b.json").exists()
    assert not (folder / "b.json").is_dir()
    assert not (folder / "b").exists()
    assert (folder / "a.json").read_text() == '{"a": "\\u00e4"}'
    assert sorted(each.name for each in folder.iterdir()) == ["a.json", "b.json", "c.txt"]
    assert sorted(each.stem for each in folder.glob("*.json")) == ["a", "b"]
    assert [each.name for each in place.iterdir()] == ["some"]
    assert (folder / "a.json").parent == folder
    (folder / "b.json").unlink()
    (folder / "b.json").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (folder / "b.json").unlink()
    with pytest.raises(FileNotFoundError):
        (folder / "b.json").read_text()


def test_what_a_lake_says_of_itself(place: LakePath) -> None:
    assert position.load(place) is None
    with position.locked(place):
        position.store(place, POSITION)
        position.store(place, POSITION)
    assert position.load(place) == POSITION
    record = JobRecord("s3://bucket/checkpoint", ["shop.orders"], 7)
    job_record.store(place, record)
    assert job_record.load(place) == record

    for lsn in (0x100, 0x200, 0x200, 0x300):
        commit_points.publish(place, lsn, 1, 5, [])
    assert [point.lsn for point in commit_points.points(place)] == ["0/300", "0/200", "0/100"]
    assert commit_points.at(place, 0x2FF).lsn == "0/200"

    store_state(place, "shop.orders", LoadState("shop.orders"))
    store_state(place, "shop.items", LoadState("shop.items", Stage.DONE))
    assert load_state(place, "shop.lines") is None
    assert loading_tables(place) == ["shop.orders"]
    forget_state(place, "shop.orders")
    assert loading_tables(place) == []


def test_one_job_and_one_load_a_lake(place: LakePath, quick: None) -> None:
    assert not position.is_locked(place)
    with position.locked(place):
        assert position.is_locked(place)
        with pytest.raises(LakeTableConflict), position.locked(place):
            pass
        conflict = pytest.raises(LakeTableConflict)
        with loading_lock(place), table_lock(place, "shop.orders"), conflict, loading_lock(place):
            pass
    assert not position.is_locked(place)
    with position.locked(place):
        pass


def test_a_load_of_another_process_waits_for_no_job(bucket: ObjectPath, quick: None) -> None:
    with loading_lock(bucket):
        lease.check(bucket)
        assert position.is_locked(bucket)
    assert not position.is_locked(bucket)


def test_where_a_batch_is_to_end(place: LakePath) -> None:
    limits = Limits(boundaries.folder(place))
    assert limits.end_of_batch(0, 100) == 100
    with boundaries.request(place, 50), boundaries.request(place, 70):
        assert boundaries.is_asked(place, 50)
        assert limits.end_of_batch(0, 100) == 50
        assert limits.end_of_batch(50, 100) == 70
        assert limits.end_of_batch(70, 100) == 100
    assert not boundaries.is_asked(place, 50)
    assert limits.end_of_batch(0, 100) == 100


def test_a_job_is_held(place: LakePath, quick: None) -> None:
    """By several, beside the job that has the lake; and asked for an end before it goes on."""
    limits = Limits(boundaries.folder(place))
    with position.locked(place), boundaries.hold(place):
        assert limits.end_of_batch(20, 100) == 20
        with boundaries.hold(place), boundaries.request(place, 50):
            assert limits.end_of_batch(20, 100) == 20
            # It ends there anyway.
            assert limits.end_of_batch(20, 100, is_last=True) == 50
        assert limits.end_of_batch(20, 100) == 20
    assert limits.end_of_batch(20, 100) == 100


def test_who_died_holds_no_job(bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = boundaries.folder(bucket)
    dead, living = folder / "hold-dead", folder / "hold-living"
    for file in (dead, living):
        replace_text(file, '{"owner": "somebody", "beat": 0}')
    limits = Limits(folder)
    assert limits.end_of_batch(20, 100) == 20
    replace_text(living, '{"owner": "somebody", "beat": 1}')
    clock = storage_lease._now() + storage_lease._LEASE_S + 1
    monkeypatch.setattr(storage_lease, "_now", lambda: clock)
    assert limits.end_of_batch(20, 100) == 20
    assert [*folder.iterdir()] == [living]
    living.unlink()
    assert limits.end_of_batch(20, 100) == 100


def test_who_could_not_hold_the_job_is_told(
    bucket: ObjectPath, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotReady, match="could not be held"), boundaries.hold(bucket):
        monkeypatch.setattr(storage_lease, "_LEASE_S", -1.0)
    assert not list(boundaries.folder(bucket).iterdir())


def test_transactions_of_a_log(place: LakePath) -> None:
    log = place / "_delta_log"
    log.mkdir(parents=True)
    for version in range(40):
        text = f'{{"txn":{{"appId":"a","version":{version + 1000}}}}}\n{{"commitInfo":{{}}}}\n'
        replace_text(log / f"{version:020d}.json", text)
    replace_text(log / f"{30:020d}.checkpoint.parquet", "")
    assert last_transaction(log, "a") == 1039
    replace_text(log / "_last_checkpoint", '{"version":30}')
    replace_text(log / f"{40:020d}.json", '{"commitInfo":{}}\n')
    assert last_transaction(log, "a") == 1039
    assert last_transaction(log, "b") is None


def test_addresses(tmp_path: Path) -> None:
    there = lake_path("s3://bucket/some/lake/")
    assert there == lake_path("s3a://bucket/some/lake") == ObjectPath("bucket", "some/lake")
    assert str(there / "x") == "s3://bucket/some/lake/x"
    assert spark_address(there) == "s3a://bucket/some/lake"
    assert lake_path("az://container/lake/") == ObjectPath("container", "lake", "az")
    assert str(ObjectPath("container", "lake", "az") / "x") == "az://container/lake/x"
    assert lake_path(there) is there
    assert lake_path(str(tmp_path)) == tmp_path
    assert spark_address(tmp_path) == str(tmp_path)
    for address in (
        "s3://bucket",
        "s3://bucket/",
        "s3:///lake",
        "gs://bucket/lake",
        "s3:/bucket/lake",
    ):
        with pytest.raises(InvalidRequest):
            lake_path(address)


def test_secrets_are_no_options(bucket: ObjectPath) -> None:
    given = {**(storage_options(bucket) or {}), **object_storage_settings(bucket)}
    assert given
    for secret in (os.environ.get("AWS_SECRET_ACCESS_KEY"), KEY):
        assert secret not in given.values()


def test_a_conditional_replacement(bucket: ObjectPath) -> None:
    file = bucket / "file"
    first = file.replace_if(None, "1")
    with pytest.raises(StorageChanged):
        file.replace_if(None, "2")
    second = file.replace_if(first, "2")
    with pytest.raises(StorageChanged):
        file.replace_if(first, "3")
    assert file.read_with_tag() == (b"2", second)
    file.unlink()
    with pytest.raises(StorageChanged):
        file.replace_if(second, "3")


def test_parquet_is_read_in_pieces(bucket: ObjectPath, tmp_path: Path) -> None:
    local = tmp_path / "file.parquet"
    rows = pa.table({"a": list(range(100_000)), "b": [str(i) for i in range(100_000)]})
    pq.write_table(rows, local, row_group_size=30_000)
    file = bucket / "file.parquet"
    obstore.put(file._store, file.key, local.read_bytes())
    with pq.ParquetFile(file.open_reader()) as parquet:
        assert parquet.metadata.num_row_groups == 4
        assert parquet.read().equals(rows)
    with file.open_reader() as opened:
        assert opened.seek(-4, os.SEEK_END) == local.stat().st_size - 4
        assert opened.read(10) == b"PAR1"
        assert opened.read(10) == b""
    with pytest.raises(FileNotFoundError):
        (bucket / "nothing").open_reader()


def test_what_the_store_refuses(bucket: ObjectPath) -> None:
    with pytest.raises(LakeError, match=bucket.store.no_bucket) as raised:
        (ObjectPath("another", "lake", bucket.scheme) / "file").replace_text("x")
    assert "\n" not in raised.value.message
    assert raised.value.hint == bucket.store.hint


@pytest.mark.long
def test_a_wrong_key_is_told(az: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in az.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"x" * 32).decode())
    object_stores._opened.cache_clear()
    file = ObjectPath(CONTAINER, "wrong/file", "az")
    try:
        for attempt in (lambda: file.replace_text("x"), file.read_text, file.is_dir, file.size):
            with pytest.raises(LakeError, match=r"Authorization|403") as raised:
                attempt()
            assert "\n" not in raised.value.message
            assert "AZURE_STORAGE_ACCOUNT_KEY" in raised.value.hint
    finally:
        object_stores._opened.cache_clear()


def test_an_identity_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Hadoop is told without a key: it takes tokens, and looks at the environment itself."""
    lake = ObjectPath("lakes", "shop", "az")
    for name in ("STORAGE_ACCOUNT_KEY", "STORAGE_ENDPOINT", "CLIENT_ID", "CLIENT_SECRET"):
        monkeypatch.delenv(f"AZURE_{name}", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    prefix = "spark.hadoop.fs.azure.account.oauth"
    told = object_storage_settings(lake)
    assert told[f"{prefix}.provider.type"].endswith(".MsiTokenProvider")
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "not a secret")
    told = object_storage_settings(lake)
    assert told[f"{prefix}.provider.type"].endswith(".ClientCredsTokenProvider")
    assert "/tenant/" in told[f"{prefix}2.client.endpoint"]
    assert told[f"{prefix}2.client.secret"] == "${env.AZURE_CLIENT_SECRET}"
    assert spark_address(lake) == "abfss://lakes@shop.dfs.core.windows.net/shop"


def test_the_position_does_not_go_back(bucket: ObjectPath, quick: None) -> None:
    with pytest.raises(LeaseLost):
        position.store(bucket, POSITION)
    with position.locked(bucket):
        position.store(bucket, LakePosition("slot", "source", "shop", "delta", "0/200"))
        with pytest.raises(LeaseLost):
            position.store(bucket, POSITION)


def test_a_lease_is_kept_while_its_holder_lives(bucket: ObjectPath, quick: None) -> None:
    file = bucket / "_spillway" / "lease.json"
    with position.locked(bucket):
        newcomer = storage_lease.Lease(file)
        with pytest.raises(storage_lease.LeaseTaken, match=r"process \d+ of .*, since 20"):
            newcomer.acquire()
        lease.check(bucket)
        assert '"beat": 0' not in file.read_text()


def test_a_lease_of_a_dead_holder_runs_out(bucket: ObjectPath, quick: None) -> None:
    file = bucket / "_spillway" / "lease.json"
    file.replace_text('{"owner": "x", "host": "elsewhere", "pid": 7, "since": "2026", "beat": 3}')
    assert lease.holder(bucket) == "process 7 of elsewhere, since 2026"
    with position.locked(bucket):
        lease.check(bucket)
        position.store(bucket, POSITION)


def test_a_holder_that_was_replaced_stops(bucket: ObjectPath, quick: None) -> None:
    file = bucket / "_spillway" / "lease.json"
    with position.locked(bucket):
        file.replace_text(
            '{"owner": "x", "host": "elsewhere", "pid": 7, "since": "2026", "beat": 3}'
        )
        held = lease._held[bucket]
        held._thread.join()
        with pytest.raises(LeaseLost):
            lease.check(bucket)
        with pytest.raises(LeaseLost):
            position.store(bucket, POSITION)
    # It is the other one's still.
    assert lease.holder(bucket) == "process 7 of elsewhere, since 2026"


def test_a_holder_that_was_stopped_for_long_stops(
    bucket: ObjectPath, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with position.locked(bucket):
        now = storage_lease._now()
        monkeypatch.setattr(storage_lease, "_now", lambda: now + 10.0)
        monkeypatch.setattr(lease._held[bucket], "_written", now)
        monkeypatch.setattr(lease._held[bucket], "_write", lambda: True)
        with pytest.raises(LeaseLost):
            lease.check(bucket)


def test_a_lease_that_another_process_has_is_a_conflict(bucket: ObjectPath, quick: None) -> None:
    other = storage_lease.Lease(bucket / "_spillway" / "lease.json")
    other.acquire()
    try:
        with (
            pytest.raises(LakeTableConflict, match=r"at work on the lake at \w+://.*: process \d+"),
            position.locked(bucket),
        ):
            pytest.fail("two jobs at work")
    finally:
        other.release()
    with position.locked(bucket):
        lease.check(bucket)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_lease_that_is_damaged_is_told(bucket: ObjectPath, quick: None, text: str) -> None:
    file = bucket / "_spillway" / "lease.json"
    file.replace_text(text)
    with (
        pytest.raises(LakeTableConflict, match="can't be read") as caught,
        position.locked(bucket),
    ):
        pytest.fail("at work without a lease")
    assert "Remove it" in caught.value.hint
    with pytest.raises(LakeTableConflict, match="can't be read") as asked:
        position.is_locked(bucket)
    assert asked.value.hint == caught.value.hint
    file.unlink()
    assert not position.is_locked(bucket)
    with position.locked(bucket):
        assert position.is_locked(bucket)
        lease.check(bucket)
