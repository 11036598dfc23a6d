"""Rows that the driver has, committed without Spark: in all formats, and what a process remembers
of Delta tables.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from harness.object_store import BUCKET, object_store
from spillway.errors import LakeTableConflict, LeaseLost
from spillway.lake import lease
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import CHANGE_COLUMNS
from spillway.lake.tables import positions
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.delta import known_logs, log, open_tables, small_merge
from spillway.lake.tables.delta import tables as delta_tables
from spillway.lake.tables.delta.data_files import write_rows
from spillway.lake.tables.delta.merge import open_table
from spillway.lake.tables.delta.tables import DeltaTables
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.iceberg.tables import IcebergTables
from spillway.lake.tables.parquet import tables as parquet_tables
from spillway.lake.tables.parquet.tables import ParquetTables
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.storage.place import LakePath

#: A type of each kind that the lake has, and two values.
_VALUES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "small": (pa.int16(), -5, 7),
    "real": (pa.float32(), 1.5, -2.25),
    "flag": (pa.bool_(), True, False),
    "text": (pa.string(), "é" * 50, ""),
    "bytes": (pa.binary(), b"\x00\xff", b""),
    "day": (pa.date32(), date(1, 1, 1), date(2026, 2, 3)),
    "at": (pa.timestamp("us", tz="UTC"), datetime(1500, 3, 1, tzinfo=UTC), None),
    "there": (pa.timestamp("us"), datetime(2026, 3, 1, 1, 2, 3, 4), None),  # noqa: DTZ001 - without a zone
    "money": (pa.decimal128(12, 2), Decimal("-1.23"), Decimal("99999.00")),
    "digits": (pa.decimal128(38, 10), Decimal("1234567890123456789012345678.0123456789"), None),
    "tags": (pa.list_(pa.field("element", pa.string())), ["a", None], []),
    "pair": (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}, None),
}
COLUMNS = pa.schema([("id", pa.int64()), *((name, v[0]) for name, v in _VALUES.items())])
OLD = pa.field("_old_key", pa.struct([("id", pa.int64())]))
NAME = "public.t"


def row(id_: int, which: int) -> dict[str, Any]:
    return {"id": id_} | {name: v[1 + which] for name, v in _VALUES.items()}


def changes(
    commit_lsn: int, *rows: tuple[str, dict[str, Any]], columns: pa.Schema = COLUMNS
) -> pa.Table:
    made = []
    for seq, (op, values) in enumerate(rows):
        at = datetime(2026, 1, 1, tzinfo=UTC)
        made.append(
            {"_op": op, "_lsn": 1, "_commit_lsn": commit_lsn, "_commit_end_lsn": commit_lsn + 8}
            | {"_xid": 700, "_seq": seq, "_commit_time": at}
            | ({"_old_key": values} if op == "D" else values)
        )
    return pa.Table.from_pylist(made, schema=pa.schema([*CHANGE_COLUMNS, OLD, *columns]))


def batch(start: int, end: int) -> Batch:
    return Batch("shop", start, end, 0)


def delta(path: LakePath) -> DeltaTables:
    return DeltaTables(None, path, "shop")  # type: ignore[arg-type] # Spark is not asked


def iceberg(path: Path) -> IcebergTables:
    session: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None))
    return IcebergTables(session, path, "shop")


def rows_of(table: DeltaTable) -> list[dict[str, Any]]:
    found: pa.Table = table.to_pyarrow_table()
    return sorted(found.to_pylist(), key=lambda r: int(r.get("id") or r["_old_key"]["id"]))


def fill(tables: Any, start: int, end: int, rows: pa.Table, columns: pa.Schema = COLUMNS) -> None:
    """Do what a batch does."""
    assert tables.append_plain(NAME, rows, batch(start, end))
    begun = tables.durable_lsn(CURRENT, NAME)
    assert tables.merge_plain(NAME, begun, columns, ("id",), batch(start, end), rows)
    assert tables.durable_lsn(HISTORY, NAME) == tables.durable_lsn(CURRENT, NAME) == end


def three_batches(tables: Any) -> None:
    fill(tables, 0, 100, changes(50, ("I", row(1, 0)), ("I", row(2, 0)), ("D", {"id": 9})))
    fill(tables, 100, 200, changes(150, ("U", row(1, 1)), ("D", {"id": 2}), ("I", row(3, 0))))
    # What came and went is a commit all the same.
    fill(tables, 200, 300, changes(250, ("I", row(4, 0)), ("D", {"id": 4})))


def test_delta(tmp_path: Path) -> None:
    tables = delta(tmp_path)
    three_batches(tables)
    # A batch that comes again is in the tables.
    again = changes(250, ("I", row(4, 0)), ("D", {"id": 4}))
    assert tables.append_plain(NAME, again, batch(200, 300))

    # Another process sees the same.
    other = delta(tmp_path)
    assert other.durable_lsn(HISTORY, NAME) == other.durable_lsn(CURRENT, NAME) == 300
    assert other.key(NAME) == ("id",)
    schema = other.schema(CURRENT, NAME)
    assert schema is not None
    assert schema.names == COLUMNS.names
    history = DeltaTable(tmp_path / HISTORY / NAME)
    assert [r["_op"] for r in rows_of(history)].count("D") == 3
    assert len(rows_of(history)) == 8
    current = DeltaTable(tmp_path / CURRENT / NAME)
    assert rows_of(current) == [row(1, 1), row(3, 0)]
    assert history.metadata().configuration == {"spillway.slot": "shop"}
    said = json.loads(history.history(1)[0]["userMetadata"])["spillway"]
    assert said["end_lsn"] == "0/12C"


def test_delta_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = ObjectPath(BUCKET, "company/lake")
    with object_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(LeaseLost):
            delta(lake).append_plain(NAME, changes(50, ("I", row(1, 0))), batch(0, 100))
        with lease.held(lake):
            tables = delta(lake)
            three_batches(tables)
            current = open_table(lake / CURRENT / NAME)
            assert rows_of(current) == [row(1, 1), row(3, 0)]
            # Another one's commit is seen, and that the table was made anew.
            open_table(lake / CURRENT / NAME).delete("id = 3")
            fill(tables, 300, 400, changes(350, ("I", row(5, 0))))
            assert rows_of(open_table(lake / CURRENT / NAME)) == [row(1, 1), row(5, 0)]
            for path, _ in (lake / HISTORY / NAME).objects():
                path.unlink()
            assert tables.durable_lsn(HISTORY, NAME) == 0
            assert tables.append_plain(NAME, changes(450, ("I", row(6, 0))), batch(400, 500))
            assert len(rows_of(open_table(lake / HISTORY / NAME))) == 1


def test_iceberg(tmp_path: Path) -> None:
    tables = iceberg(tmp_path)
    three_batches(tables)
    assert tables.append_plain(NAME, changes(250, ("I", row(4, 0))), batch(200, 300))
    history = tables.existing(HISTORY, NAME)
    assert len(history.scan().to_arrow()) == 8
    found = tables.existing(CURRENT, NAME).scan().to_arrow().sort_by("id")
    # Large types are the library's choice.
    assert found.cast(COLUMNS).to_pylist() == [row(1, 1), row(3, 0)]
    assert snapshots.durable_lsn(history.metadata, "shop") == 300


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("kind", [DeltaTables, IcebergTables])
def test_a_history_that_is_ahead_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, by_position: bool
) -> None:
    """What a killed job left between the two comes with the next batch, which has it in history
    alone.
    """
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    session: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None))
    tables = kind(session, tmp_path, "shop", by_position=by_position)
    fill(tables, 0, 100, changes(50, ("I", row(1, 0)), ("I", row(2, 0)), ("I", row(3, 0))))
    files = set((tmp_path / CURRENT / NAME).glob("**/*.parquet"))
    assert tables.append_plain(
        NAME, changes(150, ("U", row(1, 1)), ("D", {"id": 2})), batch(0, 200)
    )
    assert tables.append_plain(
        NAME, changes(250, ("U", row(1, 0)), ("I", row(4, 0))), batch(0, 300)
    )
    ahead = batch(100, 300)
    assert tables.merge_plain(NAME, 100, COLUMNS, ("id",), ahead)
    assert tables.durable_lsn(CURRENT, NAME) == 300
    if kind is DeltaTables:
        found = log.load(tmp_path / CURRENT / NAME)
        stays = {tmp_path / CURRENT / NAME / name for name in found.files} & files
    else:
        table = tables.existing(CURRENT, NAME)
        data, _ = snapshots.live_files(table, table.current_snapshot())
        stays = {Path(file.file_path) for file in data} & files
    assert bool(stays) == by_position
    assert tables.position_table(NAME).has_marks() == by_position
    current = current_rows(tables, tmp_path)
    assert [each["id"] for each in current] == [1, 3, 4]
    assert current[0]["text"] == row(1, 0)["text"]


def current_rows(tables: Any, path: Path) -> list[dict[str, Any]]:
    if isinstance(tables, DeltaTables):
        table = DeltaTable(str(path / CURRENT / NAME))
        rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    else:
        rows = tables.existing(CURRENT, NAME).scan().to_arrow()
    return sorted(rows.to_pylist(), key=lambda each: int(each["id"]))


def test_parquet(tmp_path: Path) -> None:
    tables = ParquetTables(None, tmp_path, "shop")  # type: ignore[arg-type] # Spark is not asked
    rows = changes(50, ("I", row(1, 0)), ("D", {"id": 2}))
    for _ in range(2):
        assert tables.append_plain(NAME, rows, batch(0, 100))
    assert tables.durable_lsn(HISTORY, NAME) == 100
    (file,) = (tmp_path / HISTORY / NAME).glob("end_lsn=*/*.parquet")
    assert pq.read_table(file).cast(rows.schema).equals(rows)
    # Its current tables are written whole, which is Spark's.
    assert not tables.merge_plain(NAME, 0, COLUMNS, ("id",), batch(0, 100), rows)


def test_a_late_writer_in_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM of a killed driver goes on with the batch that the next driver writes, too: what it
    writes late is not among the rows.
    """
    tables = ParquetTables(None, tmp_path, "shop")  # type: ignore[arg-type] # Spark is not asked
    rows = changes(50, ("I", row(1, 0)), ("D", {"id": 2}))
    left: list[Path] = []

    def killed(written: pa.Table, directory: Path) -> None:
        left.append(directory)
        directory.mkdir()
        raise KeyboardInterrupt

    def beside_it(written: pa.Table, directory: Path) -> None:
        directory.mkdir()
        pq.write_table(written, directory / "part-0.parquet")
        left[0].mkdir(exist_ok=True)
        pq.write_table(written, left[0] / "part-1.parquet")

    monkeypatch.setattr(parquet_tables, "_write_here", killed)
    with pytest.raises(KeyboardInterrupt):
        tables.append_plain(NAME, rows, batch(0, 100))
    monkeypatch.setattr(parquet_tables, "_write_here", beside_it)
    assert tables.append_plain(NAME, rows, batch(0, 100))
    (file,) = (tmp_path / HISTORY / NAME).glob("end_lsn=*/*.parquet")
    assert pq.read_table(file).num_rows == 2
    # What it left goes with the next batch.
    assert left[0].exists()
    monkeypatch.undo()
    assert tables.append_plain(NAME, rows, batch(100, 200))
    assert sorted(each.name for each in (tmp_path / HISTORY / NAME).iterdir()) == [
        "_table.json",
        f"end_lsn={100:020d}",
        f"end_lsn={200:020d}",
    ]


def test_what_delta_leaves_to_spark(tmp_path: Path) -> None:
    tables = delta(tmp_path)
    fill(tables, 0, 100, changes(50, ("I", row(1, 0))))
    wider = pa.schema([*COLUMNS, ("more", pa.string())])
    rows = changes(150, ("I", row(2, 0)), columns=wider)
    assert not tables.append_plain(NAME, rows, batch(100, 200))
    assert tables.durable_lsn(HISTORY, NAME) == 100
    odd = pa.schema([("id", pa.int64()), ("a b", pa.string())])
    rows = changes(150, ("I", {"id": 1, "a b": "c"}), columns=odd)
    assert not tables.append_plain("public.odd", rows, batch(100, 200))
    assert not (tmp_path / HISTORY / "public.odd").exists()
    # Changes of history that nobody has at hand make no table.
    assert not tables.merge_plain("public.other", 0, COLUMNS, ("id",), batch(0, 100))


def test_a_table_of_another_slot(tmp_path: Path) -> None:
    fill(delta(tmp_path), 0, 100, changes(50, ("I", row(1, 0))))
    other = DeltaTables(None, tmp_path, "other")  # type: ignore[arg-type] # Spark is not asked
    with pytest.raises(LakeTableConflict, match="was not made for slot other"):
        other.durable_lsn(HISTORY, NAME)


def test_another_one_commits_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = delta(tmp_path)
    fill(tables, 0, 100, changes(50, ("I", row(1, 0))))
    # Maintenance, which says nothing of an LSN.
    DeltaTable(tmp_path / CURRENT / NAME).delete("id = 99 or id = 1")
    assert tables.durable_lsn(CURRENT, NAME) == 100
    fill(tables, 100, 200, changes(150, ("I", row(2, 0))))
    assert rows_of(DeltaTable(tmp_path / CURRENT / NAME)) == [row(2, 0)]

    # Just before ours: it is begun anew.
    times = 0

    def late(*args: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            DeltaTable(tmp_path / HISTORY / NAME).optimize.compact()
        return write_rows(*args)

    monkeypatch.setattr(delta_tables, "write_rows", late)
    fill(tables, 200, 300, changes(250, ("I", row(3, 0))))
    assert len(rows_of(DeltaTable(tmp_path / HISTORY / NAME))) == 3
    assert times == 2


def test_commits_that_are_never_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = delta(tmp_path)
    fill(tables, 0, 100, changes(50, ("I", row(1, 0))))

    def refused(*_: object) -> None:
        raise FileExistsError("another one")

    monkeypatch.setattr(log, "put_new_text", refused)
    assert not tables.append_plain(NAME, changes(150, ("I", row(2, 0))), batch(100, 200))


@pytest.mark.parametrize("commits", [1, 3])
def test_a_table_that_is_made_anew_while_it_is_open(tmp_path: Path, commits: int) -> None:
    """The log of a table that was moved away goes on nowhere: neither behind the new one's, nor in
    its place.
    """
    tables = delta(tmp_path)
    for n in range(2):
        fill(tables, 100 * n, 100 * (n + 1), changes(100 * n + 50, ("I", row(n, 0))))
    for kind in (HISTORY, CURRENT):
        shutil.move(tmp_path / kind / NAME, tmp_path / f"{kind}-away")
    assert tables.durable_lsn(HISTORY, NAME) == 0
    other = delta(tmp_path)
    for n in range(2, 2 + commits):
        fill(other, 100 * n, 100 * (n + 1), changes(100 * n + 50, ("I", row(n, 0))))
    end = 100 * (2 + commits)
    assert tables.durable_lsn(HISTORY, NAME) == end
    fill(tables, end, end + 100, changes(end + 50, ("I", row(50, 0))))
    current = DeltaTable(tmp_path / CURRENT / NAME)
    assert [r["id"] for r in rows_of(current)] == [*range(2, 2 + commits), 50]
    assert current.version() == commits + 1


def test_killed_while_a_table_is_made(tmp_path: Path) -> None:
    tables = delta(tmp_path)
    # The directory alone, and a table without a commit of ours.
    (tmp_path / HISTORY / NAME / "_delta_log").mkdir(parents=True)
    assert tables.durable_lsn(HISTORY, NAME) == 0
    assert tables.schema(HISTORY, NAME) is None
    assert delta(tmp_path).append_plain(NAME, changes(50, ("I", row(1, 0))), batch(0, 100))
    current = tmp_path / CURRENT / NAME
    DeltaTable.create(
        current,
        COLUMNS,
        configuration={"spillway.slot": "shop", "spillway.key": '["id"]'},
        raise_if_key_not_exists=False,
    )
    tables = delta(tmp_path)
    rows = changes(50, ("I", row(1, 0)))
    assert tables.merge_plain(NAME, 0, COLUMNS, ("id",), batch(0, 100), rows)
    assert rows_of(DeltaTable(current)) == [row(1, 0)]


def test_what_is_committed_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = delta(tmp_path)
    synced: set[int] = set()
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    for n in range(102):
        rows = changes(100 * n + 50, ("I", row(n, 0)))
        assert tables.append_plain(NAME, rows, batch(100 * n, 100 * (n + 1)))
    table = tmp_path / HISTORY / NAME
    written = {path for path in table.rglob("*") if path.is_file()}
    assert any(path.name.endswith(".checkpoint.parquet") for path in written)
    folders = {tmp_path, tmp_path / HISTORY, table, table / "_delta_log"}
    assert {path.stat().st_ino for path in written | folders} <= synced
    # Another process begins at the checkpoint, and at none of the table's many files.
    other = delta(tmp_path)
    assert other.durable_lsn(HISTORY, NAME) == 10_200
    head = other._logs.newest(table)
    assert (head.version, head.many, head.files) == (102, True, {})
    assert head.checkpoint == 99


def test_bounds_of_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_logs, "_TABLES_MAX", 2)
    # All but the first batch are delta-rs'.
    monkeypatch.setattr(small_merge, "SMALL_BYTES", -1)
    monkeypatch.setattr(open_tables, "_TABLES_MAX", 2)
    tables = delta(tmp_path)
    names = [f"public.t{n}" for n in range(4)]

    def lsns(kind: str) -> Sequence[int]:
        return [tables.durable_lsn(kind, name) for name in names]

    def batches(end: int) -> None:
        for name in names:
            rows, of = changes(end - 50, ("I", row(end, 0))), batch(end - 100, end)
            assert tables.append_plain(name, rows, of)
            assert tables.merge_plain(name, end - 100, COLUMNS, ("id",), of, rows)

    for end in (100, 200, 300):
        batches(end)
        assert lsns(HISTORY) == lsns(CURRENT) == [end] * 4
    assert len(tables._logs._known) == 2
    held = tables._tables
    assert len(held._open) == 2
    monkeypatch.setattr(open_tables, "_TABLES_MAX", 100)
    monkeypatch.setattr(open_tables, "_FILES_MAX", 5)
    batches(400)
    assert held._files == sum(each.files for each in held._open.values()) <= 5
    assert len(held._open) < 4
