"""Files of loaded rows, committed without Spark: Delta and Iceberg."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import CHANGE_COLUMNS
from spillway.lake.tables import layout
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.delta import log
from spillway.lake.tables.delta.load_tables import DeltaLoadTables
from spillway.lake.tables.iceberg.load_tables import IcebergLoadTables
from spillway.lake.tables.load_contract import NO_BATCH

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.lake.tables.load_contract import LoadFiles

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
SCHEMA = pa.schema([*CHANGE_COLUMNS, *COLUMNS])
NAME, KEY, LSN, TAKEN_AT = "public.t", ("id",), 1000, 1_760_000_000_000_000


def delta(path: Path) -> DeltaLoadTables:
    return DeltaLoadTables(None, path, "shop")  # type: ignore[arg-type] # Spark is not asked


def iceberg(path: Path) -> IcebergLoadTables:
    session: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None))
    return IcebergLoadTables(session, path, "shop")


Tables = DeltaLoadTables | IcebergLoadTables


@pytest.fixture(params=[delta, iceberg], ids=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    made: Tables = request.param(tmp_path)
    return made


def prepared(tables: Tables, key: tuple[str, ...] = KEY) -> LoadFiles:
    tables.prepare_history(NAME, from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True), LSN)
    files = tables.load_files(NAME, COLUMNS, key, TAKEN_AT)
    assert files is not None
    # As it comes to executors.
    copy: LoadFiles = pickle.loads(pickle.dumps(files))
    return copy


def written(files: LoadFiles, *ids: int) -> tuple[list[str], list[str]]:
    rows = [{"id": id_, "name": f"n{id_}", "_op": "R", "_commit_lsn": LSN - 1} for id_ in ids]
    told = []
    for each in (files.history, files.current):
        assert each is not None
        writer = each.writer()
        writer.write(pa.Table.from_pylist(rows, schema=each.columns))
        told.append(writer.close())
    return told[0], told[1]


def ids(tables: Tables, path: Path, kind: str) -> list[int]:
    if isinstance(tables, DeltaLoadTables):
        found = DeltaTable(str(path / kind / NAME)).to_pyarrow_table()
    else:
        found = tables.existing(kind, NAME).scan().to_arrow()
    return sorted(found.column("id").to_pylist())


def replaced(tables: Tables, files: list[str], lsn: int = LSN) -> bool:
    batch = Batch("shop", lsn, lsn, NO_BATCH)
    return tables.replace_current_files(NAME, files, COLUMNS, KEY, batch)


def test_chunks_then_current(tables: Tables, tmp_path: Path) -> None:
    files = prepared(tables)
    assert tables.durable_lsn(HISTORY, NAME) == LSN
    assert tables.loaded_chunks(NAME, LSN) == 0
    of_current: list[str] = []
    for chunk, some in enumerate(([1, 2], [3], [])):
        history, current = written(files, *some)
        assert bool(history) == bool(some), "of no rows there is no file"
        tables.append_files(NAME, history, LSN, chunk)
        # Once more, as after a failure that came late: nothing is there twice.
        tables.append_files(NAME, history, LSN, chunk)
        assert tables.loaded_chunks(NAME, LSN) == chunk + 1
        of_current += current
    assert ids(tables, tmp_path, HISTORY) == [1, 2, 3]
    assert tables.schema(CURRENT, NAME) is None, "it is no table before all of it is there"
    assert replaced(tables, of_current)
    assert ids(tables, tmp_path, CURRENT) == [1, 2, 3]
    assert tables.durable_lsn(CURRENT, NAME) == LSN
    assert tables.key(NAME) == KEY
    # Loaded anew, by another process: what was there goes.
    again = type(tables)
    other = delta(tmp_path) if again is DeltaLoadTables else iceberg(tmp_path)
    files = prepared(other)
    history, current = written(files, 3, 4)
    other.append_files(NAME, history, LSN + 500, 0)
    assert replaced(other, current, LSN + 500)
    assert ids(other, tmp_path, CURRENT) == [3, 4]
    assert tables.durable_lsn(CURRENT, NAME) == LSN + 500
    assert tables.loaded_chunks(NAME, LSN) == 3


def test_files_that_somebody_removed(tables: Tables, tmp_path: Path) -> None:
    files = prepared(tables)
    history, current = written(files, 1)
    tables.append_files(NAME, history, LSN, 0)
    (left,) = (tmp_path / CURRENT / NAME).glob("**/*.parquet")
    left.unlink()
    assert not replaced(tables, current)
    assert tables.durable_lsn(CURRENT, NAME) == 0


def test_what_is_left_to_spark(tables: Tables) -> None:
    files = prepared(tables, ())
    assert files.current is None, "copies are counted"
    history, current = written(prepared(tables), 1)
    tables.append_files(NAME, history, LSN, 0)
    assert replaced(tables, current)
    other = pa.schema([*COLUMNS, ("more", pa.int32())])
    for columns, key in ((other, KEY), (COLUMNS, ("name",))):
        found = tables.load_files(NAME, columns, key, TAKEN_AT)
        assert found is not None
        assert found.current is None
        batch = Batch("shop", LSN, LSN + 1, NO_BATCH)
        assert not tables.replace_current_files(NAME, current, columns, key, batch)


def test_partitions(tmp_path: Path) -> None:
    tables = delta(tmp_path)
    asked = layout.parse("month", [f"{NAME}=day"], ())
    layout.settle(tmp_path, "delta", asked, tables, loaded_anew=lambda _: False)
    tables.prepare_history(NAME, from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True), LSN)
    files = tables.load_files(NAME, COLUMNS, KEY, TAKEN_AT)
    assert files is not None
    assert files.current is None, "rows are sorted into partitions by Spark"
    writer = files.history.writer()
    writer.write(pa.Table.from_pylist([{"id": 1}], schema=files.history.columns))
    tables.append_files(NAME, writer.close(), LSN, 0)
    (file,) = log.load(tmp_path / HISTORY / NAME).files.values()
    assert file["partitionValues"] == {"_by_commit_time": "2025-10-01"}
    (row,) = DeltaTable(str(tmp_path / HISTORY / NAME)).to_pyarrow_table().to_pylist()
    assert (row["id"], str(row["_by_commit_time"])) == (1, "2025-10-01")
