"""Data files, schemas and snapshots of Iceberg tables, without Spark; PyIceberg's own scan is the
oracle.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.types import IntegerType, LongType

from spillway.errors import LakeError, LakeTableConflict
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import CatalogChoice, LakeCatalog, choose
from spillway.lake.tables.iceberg.files import DataFileWriter, data_file
from spillway.lake.tables.iceberg.merge import merge, without
from spillway.lake.tables.iceberg.tables import PROPERTIES, data_directory

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

SMALL_LIST = pa.list_(pa.field("element", pa.int16()))
COMPOSITE = pa.struct([pa.field("a", pa.int16()), pa.field("x y", pa.string())])
LAKE = pa.schema(
    [
        ("id", pa.int64()), ("s", pa.int16()), ("t", pa.string()), ("d", pa.date32()),
        ("ts", pa.timestamp("us", tz="UTC")), ("tn", pa.timestamp("us")),
        ("wide", pa.decimal128(38, 10)),
        ("dec", pa.decimal128(10, 2)), ("b", pa.binary()), ("f", pa.float64()), ("r", pa.float32()),
        ("yes", pa.bool_()), ("l", SMALL_LIST), ("st", COMPOSITE), ("we.ird, name", pa.string()),
    ]
)  # fmt: skip
#: before the year 1, after 9999, 38 digits, longer than a bound
ROWS = pa.table(
    {
        "id": [1, 2],
        "s": pa.array([-3, None], pa.int16()),
        "t": ["ä" * 30, None],
        "d": pa.array([-2_000_000, 5_000_000], pa.int32()).cast(pa.date32()),
        "ts": pa.array([-(10**17), 9 * 10**18], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "tn": pa.array([-(10**17), 9 * 10**18], pa.int64()).cast(pa.timestamp("us")),
        "wide": pa.array([Decimal("9" * 28 + "." + "1" * 10), Decimal(-1)], pa.decimal128(38, 10)),
        "dec": pa.array([Decimal("-1.28"), Decimal("0.50")], pa.decimal128(10, 2)),
        "b": [b"\xff" * 20, b"a"],
        "f": [float("nan"), 1.0],
        "r": pa.array([0.1, None], pa.float32()),
        "yes": [True, False],
        "l": pa.array([[1, None], None], SMALL_LIST),
        "st": pa.array([{"a": 1, "x y": "q"}, None], COMPOSITE),
        "we.ird, name": ["a", "b"],
    },
    schema=LAKE,
)


def batch(start: int, end: int) -> Batch:
    return Batch("s", start, end, 0)


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    return LakeCatalog(tmp_path / "lake")


def make(catalog: LakeCatalog, schema: pa.Schema, kind: str = "current") -> Table:
    properties = {**PROPERTIES, snapshots.SLOT: "s"}
    return catalog.create(kind, "public.t", types.iceberg_schema(schema), properties)


def write(table: Table, rows: pa.Table) -> list[DataFile]:
    writer = DataFileWriter(data_directory(table), types.file_schema(table.schema()))
    writer.write(rows)
    return [data_file(each, table.schema()) for each in writer.close()]


def commit(
    catalog: LakeCatalog, table: Table, said: dict[str, str], gone: list[DataFile],
    added: list[DataFile]
) -> Table:  # fmt: skip
    with table.transaction() as transaction:
        if gone:
            snapshots.Replacing(transaction, table, said, gone, added).commit()
        else:
            snapshots.Appending(transaction, table, said, added).commit()
    (namespace, name) = table.name()
    found = catalog.load(namespace.partition("_")[0], f"public.{name}")
    assert found is not None
    return found


def test_values_and_bounds(catalog: LakeCatalog) -> None:
    table = make(catalog, LAKE)
    table = commit(catalog, table, snapshots.mark(batch(1, 16)), [], write(table, ROWS))
    read = table.scan().to_arrow()
    for name in LAKE.names:
        stored = read.column(name).cast(ROWS.column(name).type)
        if name == "f":
            stored, wanted = stored.fill_null(0), ROWS.column(name)
            assert str(stored.to_pylist()) == str(wanted.to_pylist())
        else:
            assert stored.equals(ROWS.column(name)), name
    # Filters leave files out by the bounds: each of these finds its row, or the file that may have
    # it.
    for condition, ids in (
        ("id = 2", [2]), ("s < 0", [1]), ("d > '9000-01-01'", [2]), ("d < '0001-01-02'", [1]),
        ("dec = -1.28", [1]),
        ("wide > 0", [1]), ("yes = false", [2]), ("t > 'ä'", [1]), ("t is null", [2]),
        ("r is null", [2]),
    ):  # fmt: skip
        assert table.scan(row_filter=condition).to_arrow().column("id").to_pylist() == ids, (
            condition
        )
    assert list(table.scan(row_filter="id = 3").plan_files()) == []
    (file,) = snapshots.data_files(table, table.current_snapshot())
    field = table.schema().find_field
    assert field("f").field_id not in file.lower_bounds
    assert field("b").field_id not in file.upper_bounds, "no short bytes are above 0xff…"
    notes = types.noted(table.schema(), types.spark_schema(table.schema(), {}), LAKE, {})
    held = types.lake_schema(table.schema(), types.parsed_notes({types.NOTES: notes}))
    assert held.equals(LAKE)


@pytest.mark.parametrize(
    ("text", "above"),
    [
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 16, "a" * 16),
        # What is next is half a character of UTF-16.
        ("a" * 15 + "\ud7ffb", "a" * 15 + "\ue000"),
        ("a" * 14 + "b\U0010ffff!", "a" * 14 + "c"),
        ("\U0010ffff" * 17, None),
    ],
)
def test_a_bound_above_any_text(catalog: LakeCatalog, text: str, above: str | None) -> None:
    schema = pa.schema([("t", pa.string())])
    table = make(catalog, schema)
    (file,) = write(table, pa.table({"t": [text]}, schema=schema))
    id_ = table.schema().find_field("t").field_id
    assert file.upper_bounds.get(id_) == (None if above is None else above.encode())
    assert file.lower_bounds[id_] == text[:16].encode()


def test_columns_keep_their_ids(catalog: LakeCatalog) -> None:
    table = make(catalog, LAKE)
    table = commit(catalog, table, {}, [], write(table, ROWS))

    def follow(wanted: pa.Schema, **sources: str) -> bool:
        nonlocal table
        with table.transaction() as transaction:
            kept = types.follow_columns(transaction, wanted, sources)
        again = catalog.load("current", "public.t")
        assert again is not None
        table = again
        return kept

    kept = pa.schema(
        [
            ("id", pa.int64()),
            ("d", pa.string()),
            ("t", pa.int32()),
            ("s", pa.int64()),
            ("l", SMALL_LIST),
        ]
    )
    # t goes, d takes no other's place but t's name is a new column's; s becomes wider.
    assert follow(kept, id="id", d="t", s="s", l="l")
    assert table.scan().to_arrow().select(kept.names).to_pylist() == [
        {"id": 1, "d": "ä" * 30, "t": None, "s": -3, "l": [1, None]},
        {"id": 2, "d": None, "t": None, "s": None, "l": None},
    ]
    # Two change names; another type than Iceberg promotes to is another column.
    assert follow(pa.schema([("s", pa.string()), ("d", pa.int64())]), s="d", d="s")
    assert table.scan().to_arrow().to_pylist()[0] == {"s": "ä" * 30, "d": -3}
    assert not follow(pa.schema([("s", pa.string()), ("d", pa.string())]), s="s", d="d")
    assert table.scan().to_arrow().to_pylist()[0] == {"s": "ä" * 30, "d": None}


@pytest.mark.parametrize(
    ("stored", "incoming", "becomes"),
    [
        (pa.int16(), pa.int32(), pa.int32()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int16(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.float64(), pa.int32(), pa.float64()),
        (pa.int32(), pa.float64(), None),
        (pa.int16(), pa.decimal128(12, 2), None),
        (pa.decimal128(8, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(8, 2), pa.decimal128(12, 4), None),
        (pa.string(), pa.int32(), None),
    ],
)
def test_widest(stored: pa.DataType, incoming: pa.DataType, becomes: pa.DataType | None) -> None:
    assert types.widest(stored, incoming) == becomes
    assert types.iceberg_type(pa.int16()) == IntegerType() != LongType()


def test_snapshots_say_what_they_are_of(catalog: LakeCatalog) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = make(catalog, schema)
    assert snapshots.durable_lsn(table.metadata, "s") == 0
    files = []
    for n in range(1, 4):
        added = write(table, pa.table({"id": [n]}))
        files += added
        table = commit(catalog, table, snapshots.mark(batch(n * 10, n * 10 + 8)), [], added)
    assert snapshots.durable_lsn(table.metadata, "s") == 38
    assert snapshots.durable_lsn(table.metadata, "another") == 0
    added_since = snapshots.added_after(table, "s", 18)
    assert added_since is not None
    assert {f.file_path for f in added_since} == {f.file_path for f in files[1:]}
    # Somebody else's compaction says nothing, and is in what was there at the last LSN.
    files = snapshots.data_files(table, table.current_snapshot())
    table = commit(catalog, table, {}, files, write(table, pa.table({"id": [1, 2, 3]})))
    assert snapshots.durable_lsn(table.metadata, "s") == 38
    assert snapshots.added_after(table, "s", 18) is None
    assert snapshots.snapshot_at(table, "s", 40) == table.current_snapshot()
    then = snapshots.snapshot_at(table, "s", 30)
    assert then is not None
    assert len(snapshots.data_files(table, then)) == 2
    assert snapshots.snapshot_at(table, "s", 17) is None
    # Nothing but what lives is carried over.
    for n in range(5):
        gone = snapshots.data_files(table, table.current_snapshot())
        added = write(table, pa.table({"id": [n]}))
        table = commit(catalog, table, snapshots.mark(batch(n + 40, n + 41)), gone, added)
    head = table.current_snapshot()
    assert head is not None
    assert len(head.manifests(table.io)) == 2
    table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in table.metadata.snapshots[:-1]]
    ).commit()
    table = table.refresh()
    with pytest.raises(LakeError, match="does not remember what it was at 0/1E"):
        snapshots.snapshot_at(table, "s", 30)


def test_rows_are_merged_by_key(catalog: LakeCatalog) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.string())])
    changes = pa.schema(
        [("_op", pa.string()), ("_commit_lsn", pa.int64()), ("_seq", pa.int64()), *schema]
    )
    current = make(catalog, schema)
    first = write(current, pa.table({"a": ["k", "k", "l"], "b": [1, 2, 1], "v": ["x", "y", "z"]}))
    second = write(current, pa.table({"a": ["m"], "b": [1], "v": ["w"]}))
    current = commit(catalog, current, {}, [], first + second)
    rows = [("U", 5, 1, "k", 2, "new"), ("I", 5, 2, "n", 7, "n"), ("I", 5, 3, "l", 9, None)]
    table = pa.table(dict(zip(changes.names, zip(*rows, strict=True), strict=True)), schema=changes)
    gone, written = merge(current, table, schema, ("a", "b"))
    assert [file.file_path for file in gone] == [first[0].file_path]
    added = [data_file(each, current.schema()) for each in written]
    current = commit(catalog, current, {}, gone, added)
    assert sorted(map(tuple, (row.values() for row in current.scan().to_arrow().to_pylist())),
                  key=str) == [
        ("k", 1, "x"), ("k", 2, "new"), ("l", 1, "z"), ("l", 9, None), ("m", 1, "w"), ("n", 7, "n"),
    ]  # fmt: skip
    files = snapshots.data_files(current, current.current_snapshot())
    gone, written, removed = without(current, files, lambda rows: pc.equal(rows.column("v"), "w"))
    assert ([f.file_path for f in gone], written, removed) == ([second[0].file_path], [], 1)


def test_a_catalog_is_chosen_once(tmp_path: Path) -> None:
    choose(tmp_path, CatalogChoice("prod", "shop_"))
    choose(tmp_path, CatalogChoice())
    choose(tmp_path, CatalogChoice("prod", "shop_"))
    with pytest.raises(LakeTableConflict, match="in catalog 'prod', prefix 'shop_'"):
        choose(tmp_path, CatalogChoice("prod"))
    with pytest.raises(LakeError, match="PyIceberg's configuration name it"):
        LakeCatalog(tmp_path)
    (tmp_path / "_spillway" / "iceberg.json").write_text("{")
    with pytest.raises(LakeTableConflict, match="can't be read"):
        LakeCatalog(tmp_path)
