"""A Delta table's log, read and appended to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.lake.delta_log import DeltaLog, UnreadableLog, added_files

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
    }
)


def first_commit(**changed: Any) -> list[dict[str, Any]]:
    metadata = {
        "id": "x",
        "schemaString": _SCHEMA,
        "partitionColumns": [],
        "configuration": {"spillway.slot": "shop"},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return [{"metaData": metadata | changed}, {"protocol": protocol | changed.get("protocol", {})}]


def write_commit(table: Path, version: int, actions: list[dict[str, Any]]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{version:020d}.json").write_text(text)


def add(path: str, **stats: Any) -> dict[str, Any]:
    return {"add": {"path": path, "size": 5, "stats": json.dumps(stats), "partitionValues": {}}}


def test_files_are_what_was_added_and_not_removed(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, [*first_commit(), add("a%20b.parquet", numRecords=3)])
    log = DeltaLog(tmp_path)
    log.update()
    assert log.version == 0
    assert log.files["a%20b.parquet"].path == tmp_path / "a b.parquet"
    assert log.files["a%20b.parquet"].rows == 3
    write_commit(tmp_path, 1, [{"remove": {"path": "a%20b.parquet"}}, add("c.parquet")])
    log.update()
    assert (log.version, [*log.files]) == (1, ["c.parquet"])


def test_one_of_two_commits_is_first(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, first_commit())
    one, other = DeltaLog(tmp_path), DeltaLog(tmp_path)
    one.update()
    other.update()
    transaction = {"txn": {"appId": "spillway/shop", "version": 77}}
    assert one.commit([transaction, add("one.parquet")])
    assert not other.commit([add("other.parquet")])
    assert (other.version, [*other.files]) == (0, [])
    other.update()
    assert other.transactions == {"spillway/shop": (77, 1)}
    assert [file.name for file in added_files(other, 1)] == ["one.parquet"]
    assert other.commit([add("other.parquet")])
    one.update()
    assert [*one.files] == ["one.parquet", "other.parquet"]
    # Nothing is left beside the commits.
    assert sorted(path.name for path in (tmp_path / "_delta_log").iterdir()) == [
        f"{version:020d}.json" for version in range(3)
    ]


def test_a_table_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for version in range(3):
        write_commit(table, version, [*first_commit(), add(f"{version}.parquet")])
    log = DeltaLog(table)
    log.update()
    table.rename(tmp_path / "away")
    write_commit(table, 0, [*first_commit(), add("new.parquet")])
    log.update()
    assert (log.version, [*log.files]) == (0, ["new.parquet"])


def test_a_cleaned_up_log_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    write_commit(tmp_path, 8, [add("8.parquet")])
    actions = [
        *first_commit(),
        {"txn": {"appId": "spillway/shop", "version": 70}},
        add("0.parquet", numRecords=2),
    ]
    types = pa.schema(
        [
            ("metaData", pa.struct([
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", pa.map_(pa.string(), pa.string())),
            ])),
            ("protocol", pa.struct([
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("writerFeatures", pa.list_(pa.string())),
            ])),
            ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
            ("add", pa.struct([("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())])),
        ]
    )  # fmt: skip
    log_folder = tmp_path / "_delta_log"
    checkpoint = pa.Table.from_pylist(actions, schema=types)
    pq.write_table(checkpoint, log_folder / f"{7:020d}.checkpoint.parquet")
    (log_folder / "_last_checkpoint").write_text(json.dumps({"version": 7, "size": 4}))
    log = DeltaLog(tmp_path)
    log.update()
    assert (log.version, [*log.files]) == (8, ["0.parquet", "8.parquet"])
    assert log.transactions == {"spillway/shop": (70, None)}
    assert log.metadata["configuration"] == {"spillway.slot": "shop"}
    assert log.unsupported() is None

    (log_folder / "_last_checkpoint").write_text(json.dumps({"version": 7, "parts": 2}))
    with pytest.raises(UnreadableLog):
        DeltaLog(tmp_path).update()


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({}, None),
        ({"configuration": {"delta.checkpointInterval": "10"}}, None),
        ({"configuration": {"delta.enableChangeDataFeed": "true"}}, "property"),
        ({"partitionColumns": ["id"]}, "partitions"),
        ({"protocol": {"minWriterVersion": 3}}, "writer version 3"),
        ({"protocol": {"minWriterVersion": 7, "writerFeatures": ["timestampNtz"]}}, None),
        (
            {"protocol": {"minWriterVersion": 7, "writerFeatures": ["rowTracking"]}},
            "table features rowTracking",
        ),
        ({"schemaString": _SCHEMA.replace('"metadata": {}', '"metadata": {"delta.x": 1}')}, "id"),
    ],
)
def test_what_asks_more_of_a_writer_is_left_alone(
    tmp_path: Path, changed: dict[str, Any], because: str | None
) -> None:
    write_commit(tmp_path, 0, first_commit(**changed))
    log = DeltaLog(tmp_path)
    log.update()
    found = log.unsupported()
    assert found is None if because is None else because in (found or "")


def test_deletion_vectors_and_files_elsewhere_are_left_alone(tmp_path: Path) -> None:
    vector = add("a.parquet")
    vector["add"]["deletionVector"] = {"storageType": "u"}
    write_commit(tmp_path, 0, [*first_commit(), vector])
    log = DeltaLog(tmp_path)
    log.update()
    assert log.unsupported() == "deletion vectors"
    write_commit(tmp_path, 1, [add("file:/elsewhere/a.parquet")])
    with pytest.raises(UnreadableLog):
        log.update()
