"""Lake tables as plain Parquet files: needs no jars, and shows what a table format is for.

::

    history/<table>/end_lsn=<decimal, 20 digits>/part-*.parquet    one directory a batch, or an
                                                                   initial load
    history/<table>/_table.json                                    slot, schema, and where it
                                                                   begins, if it was loaded
    current/<table>/v-<decimal, 20 digits>/part-*.parquet          a whole copy of the table as of
                                                                   an LSN
    current/<table>/_table.json                                    slot, schema, key, which copy
                                                                   counts, the first LSN

A batch is written into a directory that readers don't see, a new one at each try, synced, and
renamed into place: the rename is the commit, and the LSN in the name is what it goes up to. The
current table is written whole for each batch (Parquet files don't change), and one atomic
replacement of ``_table.json`` moves readers to the new copy; the one before it stays for readers
that are at work, older ones go.

Honest limits: a batch costs as much as the table is large; readers must follow ``_table.json``
(:func:`current_path`); the rename is atomic on a POSIX file system only, not on object storage. Use
Delta for anything but small tables.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spillway.errors import LakeError, LakeTableConflict
from spillway.failpoints import failpoint
from spillway.lake.shape.columns import spark_schema
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import NetEffect, copies_field, quoted
from spillway.lake.shape.payload import merge_schemas
from spillway.lake.shape.type_changes import widest
from spillway.lake.tables.contract import MULTISET, Batch, check_same_key
from spillway.lake.tables.joined_merge import merged_copies, merged_rows
from spillway.pg.lsn import Lsn
from spillway.storage.durable_files import put_in_place, sync_files_in
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spillway.lake.shape.columns import Followed
    from spillway.lake.shape.partition import Partition

_DESCRIPTION: Final = "_table.json"
_BATCH: Final = "end_lsn="
#: In a directory of history that no batch wrote, but an initial load (:class:`ParquetLoadTables`).
LOAD_MARK: Final = "_load.json"
_COPY: Final = "v-"


def current_path(lake: Path, name: str) -> Path:
    """Return the directory that holds the table's rows now."""
    table = lake / CURRENT / name
    return table / str(json.loads((table / _DESCRIPTION).read_text())["copy"])


def copy_at(table: Path, lsn: int) -> Path | None:
    """Return the newest copy of a current table that is not after *lsn*; None: there was no table
    then.

    Raises:
        LakeError: the copy of then was removed; only the last two stay.
    """
    if not (table / _DESCRIPTION).exists():
        return None
    newest = json.loads((table / _DESCRIPTION).read_text())
    if newest["lsn"] <= lsn:
        return table / str(newest["copy"])
    if newest["since"] > lsn:
        return None
    copies = {
        int(copy.name.removeprefix(_COPY)): copy
        for copy in table.glob(f"{_COPY}*")
        if copy.name.removeprefix(_COPY).isdecimal()
    }
    before = max((at for at in copies if at <= lsn), default=None)
    if before is None:
        raise LakeError(
            f"{table} has no copy of {Lsn(lsn)} any more",
            hint="Without a table format the last two copies stay. Use --format delta for time "
            "travel.",
            relation=table.name,
            lsn=str(Lsn(lsn)),
        )
    return copies[before]


def read_batches(
    spark: SparkSession, table: Path, start_lsn: int, upto_lsn: int | None = None
) -> DataFrame | None:
    """Return a history table's batches that go beyond *start_lsn*; None: there was no such table at
    *upto_lsn*.
    """
    if not (table / _DESCRIPTION).exists():
        return None
    schema = _spark_schema(json.loads((table / _DESCRIPTION).read_text()))
    batches = {int(b.name.removeprefix(_BATCH)): str(b) for b in sorted(table.glob(f"{_BATCH}*"))}
    if upto_lsn is not None and not any(end <= upto_lsn for end in batches):
        return None
    wanted = [batch for end, batch in batches.items() if end >= start_lsn]
    if not wanted:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*wanted)


class ParquetTables:
    """See :class:`spillway.lake.tables.contract.LakeTables`."""

    def __init__(self, spark: SparkSession, path: Path, slot_name: str) -> None:
        self._spark = spark
        self._path = path
        self._slot_name = slot_name

    def together(self) -> AbstractContextManager[bool]:
        return nullcontext(False)

    def durable_lsn(self, kind: str, name: str) -> int:
        description = self._description(kind, name)
        if description is None:
            return 0
        if description["slot"] != self._slot_name:
            raise LakeTableConflict(
                f"{self._path / kind / name} was not made for slot {self._slot_name}",
                hint="Use a path of its own for each slot, or move that table away.",
                relation=name,
            )
        if kind == CURRENT:
            return int(description["lsn"])
        batches = sorted((self._path / kind / name).glob(f"{_BATCH}*"), reverse=True)
        newest = next((batch for batch in batches if not (batch / LOAD_MARK).exists()), None)
        begins = int(description.get("begins", 0))
        return begins if newest is None else max(begins, int(newest.name.removeprefix(_BATCH)))

    def schema(self, kind: str, name: str) -> pa.Schema | None:
        description = self._description(kind, name)
        return (
            None
            if description is None
            else to_arrow_schema(_spark_schema(description), timezone="UTC")
        )

    def partitions(self, kind: str, name: str) -> tuple[Partition, ...] | None:
        return None if self._description(kind, name) is None else ()

    def widest(self, stored: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
        return widest(stored, incoming)

    def append_history(self, name: str, rows: DataFrame, batch: Batch, kind: str = HISTORY) -> None:
        table = self._path / kind / name
        table.mkdir(parents=True, exist_ok=True)
        self._widen(name, to_arrow_schema(rows.schema, timezone="UTC"), kind=kind)
        if self.durable_lsn(kind, name) < batch.end_lsn:
            self._write(rows, table, f"{_BATCH}{batch.end_lsn:020d}")

    def append_plain(self, name: str, rows: pa.Table, batch: Batch, kind: str = HISTORY) -> bool:
        table = self._path / kind / name
        table.mkdir(parents=True, exist_ok=True)
        self._widen(name, rows.schema, kind=kind)
        if self.durable_lsn(kind, name) < batch.end_lsn:
            self._place(table, f"{_BATCH}{batch.end_lsn:020d}", partial(_write_here, rows))
        return True

    def _widen(self, name: str, incoming: pa.Schema, begins: int = 0, kind: str = HISTORY) -> None:
        """Make history's schema have *incoming*'s columns, before their rows: a column that no file
        has reads as null.

        A new table has nothing before *begins*.
        """
        stored = self.schema(kind, name)
        merged = incoming if stored is None else merge_schemas(stored, incoming, name)
        if merged != stored:
            before = self._description(kind, name) or {"begins": begins}
            schema = from_arrow_schema(merged, prefer_timestamp_ntz=True)
            self._describe(kind, name, schema, {"begins": before.get("begins", 0)})

    def history(self, name: str, start_lsn: int, end_lsn: int, kind: str = HISTORY) -> DataFrame:
        batches = read_batches(self._spark, self._path / kind / name, start_lsn)
        assert batches is not None  # the job appends before it reads
        commit = F.col("_commit_lsn")
        return batches.where((commit >= start_lsn) & (commit < end_lsn))

    def columns_plain(self, *_: object) -> pa.Table | None:
        """Leave it to :meth:`history`."""
        return None

    def changes_plain(
        self,
        name: str,  # noqa: ARG002 - the contract's
        start_lsn: int,  # noqa: ARG002
        end_lsn: int,  # noqa: ARG002
        columns: pa.Schema,  # noqa: ARG002
    ) -> pa.Table | None:
        return None

    def current(self, name: str) -> DataFrame | None:
        description = self._description(CURRENT, name)
        if description is None:
            return None
        where = self._path / CURRENT / name / str(description["copy"])
        return self._spark.read.schema(_spark_schema(description)).parquet(str(where))

    def key(self, name: str) -> tuple[str, ...] | None:
        description = self._description(CURRENT, name)
        return None if description is None else tuple(description["key"])

    @property
    def takes_special(self) -> bool:
        return False

    def merge_plain(self, *_: object) -> bool:
        """Leave it to :meth:`apply`: the table is written whole in any case."""
        return False

    def apply(
        self, name: str, effect: NetEffect, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        table = self._path / CURRENT / name
        table.mkdir(parents=True, exist_ok=True)
        wanted = columns
        if key == MULTISET:
            wanted = wanted.append(copies_field(columns.names))
        stored, current = self.schema(CURRENT, name), self.current(name)
        if stored is not None:
            check_same_key(name, self.key(name) or MULTISET, key)
        schema = spark_schema(wanted)
        if current is None:
            current = self._spark.createDataFrame([], schema)
        current = current.select(*map(quoted, schema.names))
        merge = merged_copies if key == MULTISET else merged_rows
        rows = merge(current, effect, schema, tuple(columns.names), key)
        self._replace(
            name, rows, schema, f"{_COPY}{batch.end_lsn:020d}", lsn=batch.end_lsn, key=key
        )

    def reshape(self, name: str, followed: Followed) -> None:
        before = self._description(CURRENT, name)
        assert before is not None  # it was read to follow the source
        self._replace(
            name,
            followed.frame,
            followed.frame.schema,
            # Still as of the same LSN: a name of its own beside it.
            f"{before['copy']}r",
            lsn=before["lsn"],
            key=before["key"] if followed.key is None else followed.key,
        )

    def _replace(
        self,
        name: str,
        rows: DataFrame,
        schema: StructType,
        copy: str,
        *,
        lsn: int,
        key: Iterable[str],
    ) -> None:
        """Write the current table whole and move readers to it."""
        table = self._path / CURRENT / name
        numbered_rows = rows.select(
            *(F.col(quoted(f.name)).alias(f.name, metadata=f.metadata) for f in schema.fields)
        )
        self._write(numbered_rows, table, copy)
        failpoint("lake.before_merge")
        before = self._description(CURRENT, name) or {}
        facts = {"copy": copy, "lsn": lsn, "since": before.get("since", lsn), "key": list(key)}
        self._describe(CURRENT, name, schema, facts)
        for old in table.glob(f"{_COPY}*"):
            if old.name not in {copy, before.get("copy")}:
                shutil.rmtree(old)

    def _write(self, rows: DataFrame, table: Path, name: str) -> None:
        """Write *rows* as the directory *name*, which appears whole or not at all."""
        self._place(table, name, lambda directory: rows.write.parquet(str(directory)))

    def _place(self, table: Path, name: str, write: Callable[[Path], None]) -> None:
        """Have *write* make a directory, which becomes *name* in one step."""
        # A copy that was renamed but not pointed to is left by a crash, and is written again.
        if (table / name / LOAD_MARK).exists():
            raise LakeTableConflict(
                f"{table / name} has loaded rows, and a batch ends at the same byte",
                hint="Give --max-bytes-per-batch as a multiple of 8: no record of WAL ends "
                "elsewhere.",
            )
        if (table / name).exists():
            shutil.rmtree(table / name)
        # The JVM of a driver that was killed may be at work yet, on the same batch: what it writes
        # is in a directory that nobody renames any more, not in ours.
        for leftover in table.glob(f".{_kind_of(name)}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        made = table / f".{name}.{uuid.uuid4().hex}"
        write(made)
        sync_files_in(made)
        put_in_place(made, table / name)

    def _describe(self, kind: str, name: str, schema: StructType, facts: dict[str, Any]) -> None:
        description = {"slot": self._slot_name, "schema": schema.jsonValue(), **facts}
        replace_json(self._path / kind / name / _DESCRIPTION, description)

    def _description(self, kind: str, name: str) -> dict[str, Any] | None:
        path = self._path / kind / name / _DESCRIPTION
        if not path.exists():
            return None
        description: dict[str, Any] = json.loads(path.read_text())
        return description


def _write_here(rows: pa.Table, directory: Path) -> None:
    directory.mkdir()
    pq.write_table(rows, directory / "part-0.parquet", store_schema=False)


def _kind_of(directory: str) -> str:
    """Return what the directory's name begins with, before its number."""
    found = re.match(r"\D+", directory)
    assert found is not None
    return found[0]


def _spark_schema(description: dict[str, Any]) -> StructType:
    return StructType.fromJson(description["schema"])
