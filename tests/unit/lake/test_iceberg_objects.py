"""Iceberg tables in a bucket of a real S3 server, without Spark; PyIceberg's own access to the
store is the oracle.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import obstore
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from harness.object_store import BUCKET, object_store
from spillway.errors import InvalidRequest, LakeError, LakeTableConflict, UnsupportedFeature
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import CatalogChoice, LakeCatalog, check_choice, choose
from spillway.lake.tables.iceberg.files import DataFileWriter, StoreFileIO, data_file
from spillway.lake.tables.iceberg.merge import merge
from spillway.lake.tables.iceberg.positions import IcebergPositionTable, Mark
from spillway.lake.tables.iceberg.tables import PROPERTIES, data_directory
from spillway.lake.tables.plain_changes import LastChanges, read_changes
from spillway.lake.tables.positions import Shape
from spillway.storage.place import ObjectPath, stored_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

LAKE = ObjectPath(BUCKET, "company/lake")
ROWS = pa.schema([("id", pa.int64()), ("data", pa.binary())])
#: characters that URLs and paths have a use for; PyIceberg's own access goes astray at a question
#: mark
ODD = "public.a b?c%20d#[e]{f}*"
NAME = "public.a b%20d[e]{f}*"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    with object_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__TYPE", "sql")
        monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__URI", f"sqlite:///{tmp_path}/shared.db")
        # Its configuration is read when the library is imported.
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        yield environment


def named(lake: ObjectPath = LAKE) -> LakeCatalog:
    choose(lake, CatalogChoice("shared", "shop_"))
    return LakeCatalog(lake)


def theirs(store: dict[str, str]) -> Catalog:
    """Return the catalog with PyIceberg's own access to the store."""
    return load_catalog(
        "shared",
        **{
            "s3.endpoint": store["AWS_ENDPOINT_URL_S3"],
            "s3.region": store["AWS_REGION"],
            "s3.access-key-id": store["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": store["AWS_SECRET_ACCESS_KEY"],
        },
    )


def make(catalog: LakeCatalog, schema: pa.Schema, kind: str = "current", name: str = NAME) -> Table:
    properties = {**PROPERTIES, snapshots.SLOT: "s"}
    return catalog.create(kind, name, types.iceberg_schema(schema), properties)


def test_an_object_is_there_when_its_writer_is_closed(
    store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = LAKE / "data" / ODD
    content = random.Random(7).randbytes(21 << 20)
    began = datetime.now(UTC)
    left = path.open_writer()
    with path.open_writer() as file:
        for at in range(0, len(content), 3 << 20):
            file.write(memoryview(content)[at : at + (3 << 20)])
            left.write(b"of a task that was killed" * 400_000)
        assert not path.exists()
        assert file.tell() == len(content)
    assert path.read_bytes() == content
    del left
    with pytest.raises(TypeError), (LAKE / "data" / "cut off").open_writer() as file:
        file.write("no bytes")  # type: ignore[arg-type]
    ((found, written),) = LAKE.objects()
    assert found == path
    assert began - timedelta(seconds=2) < written <= datetime.now(UTC)

    # Small ones are one request, large ones as many as there are reads.
    with path.open_reader(len(content)) as whole:
        assert whole.read() == content
    reads = []
    read_range = ObjectPath.read_range
    monkeypatch.setattr(
        ObjectPath, "read_range", lambda *given: reads.append(given[1:]) or read_range(*given)
    )
    with path.open_reader(1 << 20) as ranges:
        ranges.seek(5)
        assert ranges.read(10) == content[5:15]
        assert ranges.read() == content[15:]
        assert ranges.read() == b""
    assert reads == [(5, 10), (15, len(content) - 15)]


def test_a_table_in_a_bucket(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = named()
    current = make(catalog, ROWS)
    assert current.location() == f"{LAKE}/current/{NAME}"
    writer = DataFileWriter(data_directory(current), types.file_schema(current.schema()))
    data = random.Random(7)
    rows = {"id": range(24), "data": [data.randbytes(1 << 20) for _ in range(24)]}
    for at in range(0, 24, 8):
        writer.write(pa.table({name: list(values[at : at + 8]) for name, values in rows.items()}))
    written = writer.close()
    assert len(written) == 1
    place = stored_path(written[0].path)
    assert isinstance(place, ObjectPath)
    assert obstore.head(LAKE._store, place.key)["size"] == written[0].size
    with current.transaction() as transaction:
        files = [data_file(each, current.schema()) for each in written]
        said = snapshots.mark(Batch("s", 1, 5, 0))
        snapshots.Appending(transaction, current, said, files).commit()

    # A batch of plain changes is merged: history's file is read, the one that is touched, and
    # written anew.
    changes = pa.schema(
        [("_op", pa.string()), ("_commit_lsn", pa.int64()), ("_seq", pa.int64()), *ROWS]
    )
    history = make(catalog, changes, "history")
    writer = DataFileWriter(data_directory(history), types.file_schema(history.schema()))
    new = [("U", 6, 1, 3, b"new"), ("I", 6, 2, 99, b"more")]
    writer.write(
        pa.table(dict(zip(changes.names, zip(*new, strict=True), strict=True)), schema=changes)
    )
    batch = [data_file(each, history.schema()) for each in writer.close()]
    loaded = catalog.load("current", NAME)
    assert loaded is not None
    current = loaded
    monkeypatch.setattr("spillway.lake.tables.iceberg.files._WHOLE_BYTES", 1 << 20)
    changed = read_changes([stored_path(file.file_path) for file in batch], 5, ROWS)
    gone, written = merge(current, changed, ROWS, ("id",))
    with current.transaction() as transaction:
        added = [data_file(each, current.schema()) for each in written]
        snapshots.Replacing(transaction, current, {}, gone, added).commit()

    # Read by Arrow's own client, which the configuration leads to the store.
    there = theirs(store).load_table(("shop_current_public", NAME[7:]))
    wanted = dict(zip(rows["id"], rows["data"], strict=True)) | {3: b"new", 99: b"more"}
    assert {task.file.file_path for task in there.scan().plan_files()} == {w.path for w in written}
    stored = there.scan().to_arrow()
    assert dict(zip(stored["id"].to_pylist(), stored["data"].to_pylist(), strict=True)) == wanted


def test_old_metadata_goes(store: dict[str, str]) -> None:
    table = make(named(), ROWS, name=ODD)
    for n in range(25):
        with table.transaction() as transaction:
            transaction.set_properties({"n": str(n)})
    metadata = [path for path, _ in LAKE.objects() if path.name.endswith("metadata.json")]
    assert len(metadata) == 21
    # After a commit nothing is to fail for it.
    StoreFileIO().delete(f"{LAKE}/not there")
    with pytest.raises(OSError, match="the object store failed"):
        StoreFileIO().delete("s3://no-such-bucket/x")
    file = StoreFileIO().new_output(table.metadata_location)
    assert file.exists()
    assert len(file) == len(stored_path(table.metadata_location).read_bytes())
    with pytest.raises(FileExistsError):
        file.create()
    with pytest.raises(FileNotFoundError):
        StoreFileIO().new_input(f"{LAKE}/not there").open()


def test_a_lake_in_a_bucket_names_its_catalog(store: dict[str, str], tmp_path: Path) -> None:
    for opened in (LakeCatalog, lambda lake: check_choice("iceberg", lake, CatalogChoice())):
        with pytest.raises(InvalidRequest, match="need a catalog that is named") as told:
            opened(LAKE)
        assert "--iceberg-catalog NAME" in told.value.hint
    with pytest.raises(InvalidRequest, match="need a catalog that is named"):
        check_choice("iceberg", LAKE, CatalogChoice(prefix="shop_"))
    check_choice("iceberg", tmp_path, CatalogChoice())
    with pytest.raises(UnsupportedFeature, match="of lakes in Iceberg"):
        check_choice("delta", LAKE, CatalogChoice("shared"))
    make(named(), ROWS)
    check_choice("iceberg", LAKE, CatalogChoice())
    # Another lake, or a copy of this one, doesn't write to this one's tables.
    copied = ObjectPath(BUCKET, "another/lake")
    with pytest.raises(LakeTableConflict, match=r"at s3://lakes/company/lake/current"):
        named(copied).load("current", NAME)
    # A directory's lake has no objects.
    with pytest.raises(LakeError, match="not on object storage"):
        StoreFileIO().new_input(str(tmp_path / "x"))
    assert stored_path("s3a://b/x/y") == ObjectPath("b", "x/y")
    for written in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert stored_path(written) == tmp_path


def test_merged_by_position(store: dict[str, str], tmp_path: Path) -> None:
    catalog = named()
    make(catalog, ROWS)

    def loaded() -> Table:
        found = catalog.load("current", NAME)
        assert found is not None
        return found

    def rows(*ids: int, data: bytes = b"d") -> pa.Table:
        return pa.table([pa.array(ids, pa.int64()), [data] * len(ids)], schema=ROWS)

    model: dict[int, bytes] = {}
    table = IcebergPositionTable(loaded, NAME, tmp_path / "keys", lambda: None)
    for n, ids in enumerate((range(40), range(0, 40, 3), range(20, 60), [5])):
        data = str(n).encode()
        changes = LastChanges(rows(*ids, data=data), pa.array([True] * len(ids)))
        said = {snapshots.SLOT: "s", snapshots.END: f"0/{n + 1}"}
        table.merge(changes, Shape(ROWS, ("id",)), Mark(said, {}))
        model |= dict.fromkeys(ids, data)
    assert snapshots.live_files(loaded(), loaded().current_snapshot())[1]
    for folded in (False, True):
        if folded:
            assert table.fold(Shape(ROWS, ("id",)), nullcontext, 0.0)
            assert not snapshots.live_files(loaded(), loaded().current_snapshot())[1]
        there = theirs(store).load_table(catalog.identifier("current", NAME))
        found = there.scan().to_arrow()
        assert dict(zip(found["id"].to_pylist(), found["data"].to_pylist(), strict=True)) == model
        assert len(found) == len(model)
