"""A merge without Spark is killed before its commit, and done again; others commit in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spillway.lake import delta_tables
from spillway.lake.columns import spark_schema
from spillway.lake.delta_log import DeltaLog
from spillway.lake.delta_tables import DeltaTables
from spillway.lake.direct_merge import Rewrite, read_rows, rewrite, write_file
from spillway.lake.tables import Batch

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
_OLD_KEY = pa.struct([("id", pa.int64())])
_HISTORY = pa.schema(
    [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_seq", pa.int64()),
        ("_old_key", _OLD_KEY),
        *_COLUMNS,
    ]
)
_BATCH = Batch("shop", 100, 200, 1)
_KILLED = """
import sys
from pathlib import Path
import pyarrow as pa
from spillway.lake.delta_tables import DeltaTables
from spillway.lake.tables import Batch

columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
tables = DeltaTables(None, Path(sys.argv[1]), "shop")
tables.merge_plain("items", 100, columns, ("id",), Batch("shop", 100, 200, 1))
"""


def commit(table: Path, lsn: int, rows: pa.Table) -> None:
    """Append *rows* to a table, which is made when it isn't there."""
    log_folder = table / "_delta_log"
    if not log_folder.exists():
        log_folder.mkdir(parents=True)
        schema = spark_schema(rows.schema).jsonValue()
        metadata = {
            "schemaString": json.dumps(schema),
            "partitionColumns": [],
            "configuration": {"spillway.slot": "shop", "spillway.key": '["id"]'},
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        lines = (json.dumps(action) for action in ({"metaData": metadata}, {"protocol": protocol}))
        (log_folder / f"{0:020d}.json").write_text("\n".join(lines))
    log = DeltaLog(table)
    log.update()
    transaction = {"txn": {"appId": "spillway/shop", "version": lsn}}
    assert log.commit([transaction, write_file(table, rows)])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake whose history has the batch, and whose current table is at its start."""
    before = [{"id": id_, "name": "before"} for id_ in (1, 2, 3)]
    inserts = [{"_op": "I", "_commit_lsn": 50, "_seq": n, **row} for n, row in enumerate(before)]
    commit(tmp_path / "history/items", 100, pa.Table.from_pylist(inserts, schema=_HISTORY))
    commit(tmp_path / "current/items", 100, pa.Table.from_pylist(before, schema=_COLUMNS))
    changes = [
        {"_op": "U", "_commit_lsn": 120, "_seq": 0, "id": 1, "name": "after"},
        {"_op": "U", "_commit_lsn": 120, "_seq": 1, "_old_key": {"id": 2}, "id": 20, "name": "m"},
        {"_op": "D", "_commit_lsn": 130, "_seq": 0, "_old_key": {"id": 3}},
        {"_op": "I", "_commit_lsn": 140, "_seq": 0, "id": 4, "name": "new"},
    ]
    commit(tmp_path / "history/items", 200, pa.Table.from_pylist(changes, schema=_HISTORY))
    return tmp_path


def current(lake: Path) -> dict[int, str]:
    log = DeltaLog(lake / "current/items")
    log.update()
    tables = [read_rows(file, _COLUMNS) for file in log.files.values()]
    rows = pa.concat_tables(tables).sort_by("id").to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


_BEFORE = {1: "before", 2: "before", 3: "before"}
_AFTER = {1: "after", 4: "new", 20: "m"}


def merge(lake: Path) -> bool:
    tables = DeltaTables(None, lake, "shop")  # type: ignore[arg-type] # Spark is not asked
    return tables.merge_plain("items", 100, _COLUMNS, ("id",), _BATCH)


def test_killed_before_the_commit(lake: Path) -> None:
    files = len([*(lake / "current/items").glob("*.parquet")])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(lake)],
        env=os.environ | {"SPILLWAY_FAILPOINTS": "lake.before_merge=kill"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert len([*(lake / "current/items").glob("*.parquet")]) > files, "files were written"
    assert current(lake) == _BEFORE
    assert merge(lake)
    assert current(lake) == _AFTER
    # A batch that is in the table already is not merged once more.
    assert not merge(lake)
    assert current(lake) == _AFTER


def test_another_commit_comes_first(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake / "current/items"
    calls = 0

    def raced(*given: object) -> Rewrite:
        nonlocal calls
        calls += 1
        done = rewrite(*given)  # type: ignore[arg-type]
        if calls == 1:
            other = DeltaLog(table)
            other.update()
            (file,) = other.files.values()
            moved = write_file(table, read_rows(file, _COLUMNS))
            assert other.commit([{"remove": {"path": file.name}}, moved])
            file.path.unlink()
        return done

    monkeypatch.setattr(delta_tables, "rewrite", raced)
    assert merge(lake)
    assert calls == 2
    assert current(lake) == _AFTER


def test_what_is_not_historys_last_commit_is_left_to_spark(lake: Path) -> None:
    row = {"_op": "I", "_commit_lsn": 250, "_seq": 0, "id": 5, "name": "later"}
    commit(lake / "history/items", 300, pa.Table.from_pylist([row], schema=_HISTORY))
    assert not merge(lake)
    assert current(lake) == _BEFORE
