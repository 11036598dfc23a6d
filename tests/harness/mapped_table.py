"""A Delta table with column mapping, written by hand: no library without a JVM makes one."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

_TYPES = {pa.int64(): "long", pa.string(): "string"}


def write_mapped(table: Path, rows: pa.Table) -> None:
    """Make the table at *table*, whose files call columns ``col-0`` and so on."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    physical = [f"col-{number}" for number in range(rows.num_columns)]
    fields: list[dict[str, Any]] = [
        {
            "name": field.name,
            "type": _TYPES[field.type],
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": physical[number - 1],
            },
        }
        for number, field in enumerate(rows.schema, start=1)
    ]
    ids = [{b"PARQUET:field_id": str(number).encode()} for number in range(1, len(fields) + 1)]
    stored = pa.schema(
        pa.field(name, field.type, metadata=its)
        for name, field, its in zip(physical, rows.schema, ids, strict=True)
    )
    file = table / "part-0.parquet"
    pq.write_table(rows.rename_columns(physical).cast(stored), file)
    configuration = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": str(len(fields)),
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": configuration,
            }
        },
        {
            "add": {
                "path": file.name,
                "partitionValues": {},
                "size": file.stat().st_size,
                "modificationTime": 0,
                "dataChange": True,
            }
        },
    ]
    (log / f"{0:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
