"""A slot in a directory: what the lake's client sees of a service, without the service.

A test commits transactions of its own choosing; each becomes the messages that the `arrow` plugin
would make of it. Spark's Python workers and a job in a subprocess open the same directory through
the data source's option ``client``.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from spillway.consumer.slot import SlotPosition
from spillway.errors import LsnNotRetained, UnknownSlot
from spillway.pg.lsn import Lsn
from spillway.plugins.refused_values import METADATA_KEY

CLIENT = "harness.arrow_slot:open_client"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A source table: its columns' Arrow types, and how its rows are identified."""

    name: str
    columns: Mapping[str, pa.DataType]
    primary_key: tuple[str, ...] = ("id",)
    replica_identity: str = "d"
    schema: str = "public"
    #: 0: one that follows from its name
    oid: int = 0
    primary_key_deferrable: bool = False
    #: attribute numbers of columns whose place does not say it, and what rows before ADD COLUMN
    #: show
    attnums: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identity_columns(self) -> tuple[str, ...]:
        if self.replica_identity == "f":
            return tuple(self.columns)
        return () if self.replica_identity == "n" else self.primary_key

    def with_columns(self, **columns: pa.DataType) -> Table:
        return replace(self, columns=dict(self.columns) | columns)._numbered(self)

    def with_default(self, name: str, missing: str) -> Table:
        return replace(self, missing=dict(self.missing) | {name: missing})

    def without_column(self, name: str) -> Table:
        left = {n: t for n, t in self.columns.items() if n != name}
        return replace(self, columns=left)._numbered(self)

    def renamed_column(self, name: str, to: str) -> Table:
        columns = {to if n == name else n: t for n, t in self.columns.items()}
        attnums = {to if n == name else n: a for n, a in self.numbers.items()}
        return replace(self, columns=columns, attnums=attnums)

    @property
    def numbers(self) -> dict[str, int]:
        """The columns' attribute numbers, and those of dropped ones under their names."""
        return dict(self.attnums) or {n: i for i, n in enumerate(self.columns, 1)}

    def _numbered(self, before: Table) -> Table:
        numbers = before.numbers
        taken = max(numbers.values(), default=0)
        for name in self.columns:
            if name not in before.columns:
                taken += 1
                # A dropped column's number stays taken under a name that no column has.
                if name in numbers:
                    numbers[f"{name} dropped {taken}"] = numbers[name]
                numbers[name] = taken
        return replace(self, attnums=numbers)

    def arrow_schema(self) -> pa.Schema:
        fields = [
            pa.field("_op", pa.string()),
            pa.field("_lsn", pa.uint64()),
            pa.field("_commit_lsn", pa.uint64()),
            pa.field("_commit_end_lsn", pa.uint64()),
            pa.field("_xid", pa.uint32()),
            pa.field("_seq", pa.uint64()),
            pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
            pa.field("_unchanged_toast", pa.list_(pa.string())),
        ]
        if self.identity_columns:
            old = pa.struct([pa.field(c, self.columns[c]) for c in self.identity_columns])
            fields.append(pa.field("_old_key", old))
        for name, type_ in self.columns.items():
            described: dict[str, Any] = {"name": name, "attnum": self.numbers[name]}
            if name in self.missing:
                described["missing"] = self.missing[name]
            metadata = {"spillway.column": json.dumps(described)}
            fields.append(pa.field(name, type_, metadata=metadata))
        relation = {
            "schema": self.schema,
            "table": self.name,
            "oid": self.oid or 16384 + zlib.crc32(self.qualified.encode()) % 100_000,
            "primary_key": list(self.primary_key),
            "identity_columns": list(self.identity_columns),
            "replica_identity": self.replica_identity,
            "attributes": max(self.numbers.values()),
        }
        if self.primary_key_deferrable:
            relation["primary_key_deferrable"] = True
        return pa.schema(fields, metadata={"spillway.relation": json.dumps(relation)})


@dataclass(frozen=True)
class Change:
    table: Table
    op: str
    new: Row = field(default_factory=dict)
    old: Row | None = None
    unchanged: Sequence[str] = ()
    #: columns that are null because the plugin has no form for their values, and these
    refused: Mapping[str, str] = field(default_factory=dict)


def refusing(change: Change, **refused: str) -> Change:
    return replace(change, refused=refused)


def insert(table: Table, **new: Any) -> Change:
    return Change(table, "I", new)


def update(table: Table, new: Row, old: Row | None = None, unchanged: Sequence[str] = ()) -> Change:
    return Change(table, "U", new, old, unchanged)


def delete(table: Table, **old: Any) -> Change:
    return Change(table, "D", {}, old)


def truncate(table: Table) -> Change:
    return Change(table, "T")


class ArrowSlot:
    """The slot's directory, written by the test."""

    def __init__(
        self, directory: Path, slot_name: str = "shop", start_lsn: int = 0x1000000
    ) -> None:
        self.directory = directory
        self.slot_name = slot_name
        directory.mkdir(parents=True, exist_ok=True)
        self._xid = 700
        self._lsn = start_lsn
        self._write(
            slot_name=slot_name,
            plugin="arrow",
            source="shop",
            database="shop",
            confirmed_flush_lsn=start_lsn,
            decoded_lsn=start_lsn,
            invalidation_reason="",
        )

    @property
    def options(self) -> dict[str, str]:
        return {"client": CLIENT, "directory": str(self.directory)}

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory / "slot.json").read_text())
        return state

    def set(self, **state: Any) -> None:
        self._write(**self.state | state)

    def commit(self, *changes: Change, gap: int = 0) -> int:
        """Commit a transaction; return the end of its commit record. *gap* is WAL of others before
        it.
        """
        self._xid += 1
        self._lsn += gap
        lsns = []
        for _ in changes:
            lsns.append(self._lsn)
            self._lsn += 64
        commit_lsn, end_lsn = self._lsn, self._lsn + 48
        self._lsn = end_lsn
        runs: list[tuple[pa.Schema, list[dict[str, Any]], list[dict[str, Any]]]] = []
        for seq, (change, lsn) in enumerate(zip(changes, lsns, strict=True)):
            schema = change.table.arrow_schema()
            if not runs or not runs[-1][0].equals(schema, check_metadata=True):
                runs.append((schema, [], []))
            rows, refused = runs[-1][1:]
            refused += [
                {
                    "column": column, "row": len(rows), "lsn": str(Lsn(lsn)),
                    "commit_lsn": str(Lsn(commit_lsn)), "value": value,
                    "reason": f"{value} is none in Arrow", "hint": "Set the slot's option.",
                }
                for column, value in change.refused.items()
            ]  # fmt: skip
            row = {
                "_op": change.op,
                "_lsn": lsn,
                "_commit_lsn": commit_lsn,
                "_commit_end_lsn": end_lsn,
                "_xid": self._xid,
                "_seq": seq,
                "_commit_time": datetime(2026, 1, 1, tzinfo=UTC),
                "_unchanged_toast": list(change.unchanged) or None,
                **change.new,
            }
            if change.table.identity_columns:
                row["_old_key"] = change.old
            rows.append(row)
        bodies = [
            _stream(pa.RecordBatch.from_pylist(rows, schema=_marked(schema, refused)))
            for schema, rows, refused in runs
        ]
        self.add(commit_lsn, end_lsn, bodies)
        return end_lsn

    def add(self, commit_lsn: int, end_lsn: int, bodies: Sequence[bytes]) -> None:
        """Put ready-made messages of one transaction into the slot."""
        for number, body in enumerate(bodies):
            (self.directory / f"{commit_lsn:016x}-{number:08x}.arrow").write_bytes(body)
        self._lsn = end_lsn
        self.set(decoded_lsn=end_lsn)

    def _write(self, **state: Any) -> None:
        beside = self.directory / f"slot.json.{os.getpid()}"
        beside.write_text(json.dumps(state))
        beside.replace(self.directory / "slot.json")


def _marked(schema: pa.Schema, refused: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the schema of a message with refused values."""
    if not refused:
        return schema
    told = json.dumps({"count": len(refused), "values": refused})
    return schema.with_metadata({**schema.metadata, METADATA_KEY: told})


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


class DirectoryClient:
    """:class:`spillway.consumer.slot.SlotClient` on such a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def position(self, slot_name: str) -> SlotPosition:
        state = json.loads((self._directory / "slot.json").read_text())
        if state["slot_name"] != slot_name:
            raise UnknownSlot(f"slot {slot_name} does not exist", slot=slot_name)
        return SlotPosition(**state)

    def read(
        self,
        slot_name: str,
        start_lsn: int,
        upto_lsn: int,
        *,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[bytes]:
        position = self.position(slot_name)
        if upto_lsn > position.decoded_lsn:
            raise LsnNotRetained("not decoded yet")
        start = max(start_lsn, position.confirmed_flush_lsn)
        for path in sorted(self._directory.glob("*.arrow")):
            if start <= int(path.stem.partition("-")[0], 16) < upto_lsn:
                yield path.read_bytes()

    def advance(self, slot_name: str, upto_lsn: int) -> int:
        state = json.loads((self._directory / "slot.json").read_text())
        state["confirmed_flush_lsn"] = max(upto_lsn, state["confirmed_flush_lsn"])
        with (self._directory / "advances").open("a") as log:
            log.write(f"{upto_lsn}\n")
        beside = self._directory / f"slot.json.{os.getpid()}"
        beside.write_text(json.dumps(state))
        beside.replace(self._directory / "slot.json")
        return int(state["confirmed_flush_lsn"])

    def close(self) -> None:
        pass


def open_client(options: Mapping[str, str]) -> DirectoryClient:
    return DirectoryClient(Path(options["directory"]))
