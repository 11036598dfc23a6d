"""Which columns of a Parquet file get a dictionary: seen in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from spillway.lake.tables.delta.data_files import DataFile
from spillway.lake.tables.dictionaries import with_dictionary

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 10_000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "state": pa.array(["new", "paid"] * (ROWS // 2)),
        "empty": pa.nulls(ROWS, pa.string()),
        "words": pa.array([["a", "b"]] * ROWS),
        "pair": pa.array([{"a": 1, "deep": [{"b": "x"}]}] * ROWS),
    }
)


def test_values_that_come_again_have_one(tmp_path: Path) -> None:
    with DataFile(tmp_path, TABLE.schema, ("id",), {}) as file:
        file.write(TABLE)
        name = file.close()["path"]
    group = pq.read_metadata(tmp_path / name).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    has = {each.path_in_schema for each in columns if "RLE_DICTIONARY" in each.encodings}
    assert has == {"state", "empty", "words.list.element", "pair.a", "pair.deep.list.element.b"}
    assert set(with_dictionary(TABLE)) == has
    assert pq.read_table(tmp_path / name) == TABLE


def test_a_file_without_rows_is_one(tmp_path: Path) -> None:
    with DataFile(tmp_path, TABLE.schema, (), {}) as file:
        name = file.close()["path"]
    assert pq.read_table(tmp_path / name).schema.names == TABLE.schema.names
