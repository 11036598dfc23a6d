"""Delta tables as an initial load writes them: see
:class:`spillway.lake.tables.load_contract.LoadTables`.

Who copies a range writes a file of it for each table
(:class:`~spillway.lake.tables.delta.data_files.DataFile`), and the driver commits by
:mod:`spillway.lake.tables.delta.log`. Left to Spark are tables with column mapping and with
features that ask more of who commits to them, a current table with partitions, of copies, or one
that is there with other columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spillway.errors import LakeTableConflict
from spillway.lake import lease
from spillway.lake.shape.columns import spark_schema
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import quoted
from spillway.lake.shape.payload import CHANGE_COLUMNS
from spillway.lake.tables import layout, partitions
from spillway.lake.tables.contract import MULTISET, Batch
from spillway.lake.tables.delta import log
from spillway.lake.tables.delta.data_files import DataFile, file_path, plain
from spillway.lake.tables.delta.positions import FEATURE
from spillway.lake.tables.delta.tables import KEY_PROPERTY, DeltaTables
from spillway.lake.tables.load_contract import NO_BATCH, LoadFiles, in_shape
from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.tables.positions import Lost
from spillway.pg.lsn import Lsn
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spillway.lake.shape.partition import Partition
    from spillway.lake.tables.load_contract import FileLoads
    from spillway.storage.place import LakePath

#: Table features that ask nothing of who adds files, or removes them all.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz", "typeWidening", FEATURE})
#: How often a chunk is committed anew because another commit was first: the job's, beside the load.
_ATTEMPTS: Final = 20
_TIME: Final = "_commit_time"


@dataclass(frozen=True, slots=True)
class DeltaRowFiles:
    """See :class:`spillway.lake.tables.load_contract.RowFiles`."""

    table: LakePath
    columns: pa.Schema
    key: tuple[str, ...]
    #: the partition's columns as the log has their values
    partition: Mapping[str, str | None]

    def writer(self) -> DeltaRowWriter:
        if not isinstance(self.table, ObjectPath):
            # A current table is made when all of its files are there.
            self.table.mkdir(parents=True, exist_ok=True)
        return DeltaRowWriter(self)


class DeltaRowWriter:
    """See :class:`spillway.lake.tables.load_contract.RowWriter`. One file, or none of no rows."""

    def __init__(self, of: DeltaRowFiles) -> None:
        self._file = DataFile(of.table, of.columns, of.key, of.partition)

    def write(self, rows: pa.Table) -> None:
        self._file.write(rows)

    def close(self) -> list[str]:
        if not self._file.rows:
            self._file.remove()
            return []
        return [json.dumps(self._file.close(), separators=(",", ":"))]

    def remove(self) -> None:
        self._file.remove()


class DeltaLoadTables(DeltaTables):
    """See :class:`spillway.lake.tables.load_contract.LoadTables`. A chunk's mark is its number, as
    version of the load's own application id.
    """

    @property
    def by_files(self) -> FileLoads:
        return self

    def prepare_history(self, name: str, schema: StructType, lsn: int) -> None:
        def attempt() -> Callable[[], None]:
            return self._begin_directly(name, schema, lsn)

        if self._directly(HISTORY, name, attempt):
            return
        empty = self._spark.createDataFrame([], schema)
        if not self._exists(HISTORY, name):
            self._create(HISTORY, name, schema, {})
        if self.durable_lsn(HISTORY, name) == 0:
            self._append(HISTORY, name, empty, Batch(self._slot_name, lsn, lsn, NO_BATCH))
            return
        self._widen(HISTORY, name, schema)
        self._allow_timestamps(HISTORY, name, schema)
        if set(schema.names) - set(self._frame(HISTORY, name).schema.names):
            writer = self._to_append(HISTORY, name, empty).option("mergeSchema", "true")
            writer.save(self._location(HISTORY, name))

    def _begin_directly(self, name: str, schema: StructType, lsn: int) -> Callable[[], None]:
        """Make the history, or see that it has *schema*'s columns; returns and raises as
        :meth:`_append_directly`.
        """
        path = self._path / HISTORY / name
        if self._exists(HISTORY, name):
            head = self._checked_head(path)
        else:
            head = self._create_directly(HISTORY, name, schema, {})
        wanted = partitions.with_fields(schema, partitions.made_with(head.fields))
        if log.described(head.fields) != log.described(wanted.jsonValue()["fields"]):
            raise NotDirect("the table's columns change")
        if self._application not in head.transactions:
            lease.check(self._path)
            self._commit(path, head, "WRITE", Batch(self._slot_name, lsn, lsn, NO_BATCH), ())
        return lambda: None

    def loaded_chunks(self, name: str, lsn: int) -> int:
        if not self._exists(HISTORY, name):
            return 0
        try:
            return log.load(self._path / HISTORY / name).transactions.get(self._load(lsn), -1) + 1
        except (NotDirect, OSError):
            found = self._snapshot(HISTORY, name).transactions().get(self._load(lsn))
            return int(found.get()) + 1 if found.isDefined() else 0

    def append_loaded(self, name: str, rows: DataFrame, lsn: int, chunk: int) -> None:
        lease.check(self._path)
        writer = self._to_append(HISTORY, name, rows)
        writer = writer.option("txnAppId", self._load(lsn)).option("txnVersion", chunk)
        writer = writer.option("userMetadata", self._about_chunk(lsn, chunk))
        writer.save(self._location(HISTORY, name))

    def load_files(
        self, name: str, current: pa.Schema | None, key: tuple[str, ...], taken_at_us: int
    ) -> LoadFiles | None:
        history = self.schema(HISTORY, name)
        assert history is not None  # prepared
        path = self._path / HISTORY / name
        try:
            found = log.load(path)
            log.check_known(found, _FEATURES)
            made = partitions.made_with(found.fields)
            stored = from_arrow_schema(history, prefer_timestamp_ntz=True)
            wanted = partitions.with_fields(stored, made).jsonValue()["fields"]
            partition = _partition_of(made, taken_at_us)
        except (NotDirect, OSError):
            return None
        if log.described(found.fields) != log.described(wanted):
            return None
        files = DeltaRowFiles(path, plain(history), (), partition)
        if current is None:
            return LoadFiles(files, None)
        return LoadFiles(files, self._current_files(name, current, key))

    def _current_files(
        self, name: str, columns: pa.Schema, key: tuple[str, ...]
    ) -> DeltaRowFiles | None:
        if key == MULTISET or layout.load(self._path).partitions(CURRENT, name):
            return None
        path = self._path / CURRENT / name
        try:
            if self._exists(CURRENT, name):
                self._replaceable(log.load(path), columns, key)
        except (NotDirect, OSError):
            return None
        stored = to_arrow_schema(spark_schema(columns), timezone="UTC")
        return DeltaRowFiles(path, plain(stored), key, {})

    def _replaceable(self, found: log.Snapshot, columns: pa.Schema, key: tuple[str, ...]) -> None:
        """See to it that all files of a current table may go for others, and nothing else changes.

        Raises:
            NotDirect: it isn't so.
        """
        log.check_known(found, _FEATURES)
        if found.configuration.get("delta.appendOnly", "false") != "false":
            raise NotDirect("nothing is removed from the table")
        if self._checked_shape(found.fields, found.configuration, columns, key):
            raise NotDirect("the table has partitions")

    def append_files(self, name: str, files: Sequence[str], lsn: int, chunk: int) -> None:
        path = self._path / HISTORY / name
        for _ in range(_ATTEMPTS):
            try:
                found = log.load(path)
                log.check_known(found, _FEATURES)
            except NotDirect as error:
                raise self._conflict(HISTORY, name, error) from error
            if found.transactions.get(self._load(lsn), -1) >= chunk:
                return
            lease.check(self._path)
            actions = [
                log.transaction(self._load(lsn), chunk),
                log.commit_info("WRITE", self._about_chunk(lsn, chunk)),
                *({"add": json.loads(file)} for file in files),
            ]
            try:
                log.commit(path, found, actions)
            except Lost as error:
                reason = error
            else:
                return
        raise self._conflict(HISTORY, name, reason)

    def replace_current_files(
        self,
        name: str,
        files: Sequence[str],
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
    ) -> bool:
        added = [json.loads(file) for file in files]

        def attempt() -> Callable[[], None]:
            path = self._path / CURRENT / name
            # A VACUUM of the same hours takes what no commit names.
            if not all(file_path(path, file).is_file() for file in added):
                raise NotDirect("files of the load are gone")
            if not self._exists(CURRENT, name):
                properties = {KEY_PROPERTY: json.dumps(key)}
                self._create_directly(CURRENT, name, spark_schema(columns), properties)
            found = log.load(path)
            self._replaceable(found, columns, key)
            lease.check(self._path)
            about = {"slot": self._slot_name, "load": str(Lsn(batch.end_lsn))}
            actions = [
                log.transaction(self._application, batch.end_lsn),
                log.commit_info("WRITE", json.dumps({"spillway": about})),
                *(log.removal(file, data_change=True) for file in found.files.values()),
                *({"add": file} for file in added),
            ]
            log.commit(path, found, actions)
            # What delta-rs has open is older now.
            self._forget(path)
            return lambda: None

        return self._directly(CURRENT, name, attempt)

    def _about_chunk(self, lsn: int, chunk: int) -> str:
        about = {"slot": self._slot_name, "load": str(Lsn(lsn)), "chunk": chunk}
        return json.dumps({"spillway": about})

    def _conflict(self, kind: str, name: str, reason: object) -> LakeTableConflict:
        return LakeTableConflict(
            f"{kind} table {name} can't be committed to: {reason}",
            hint="Something else writes to it: run the load again when that is done.",
            relation=name,
        )

    def seal_loaded(self, name: str, lsn: int) -> None:
        """Do nothing: history shows each chunk from its commit on."""

    def drop_loaded(self, name: str, lsn: int) -> None:
        lease.check(self._path)
        if self._exists(HISTORY, name):
            table = f"delta.{quoted(self._location(HISTORY, name))}"
            self._spark.sql(f"DELETE FROM {table} WHERE _op = 'R' AND _commit_lsn = {lsn - 1}")  # noqa: S608 - quoted

    def replace_current(
        self, name: str, rows: DataFrame, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        lease.check(self._path)
        rows = in_shape(rows, columns, key)
        if not self._exists(CURRENT, name):
            self._create(CURRENT, name, rows.schema, {KEY_PROPERTY: json.dumps(key)})
        elif self.key(name) != key:
            self._set_key(name, key)
        self._allow_timestamps(CURRENT, name, rows.schema)
        # Written whole, it has what partitions are asked for now, whatever it was made with.
        made = layout.load(self._path).partitions(CURRENT, name)
        rows = partitions.added(rows, made)
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer = writer.partitionBy(*partitions.names(made))
        writer = writer.option("txnAppId", self._application).option("txnVersion", batch.end_lsn)
        about = {"slot": self._slot_name, "load": str(Lsn(batch.end_lsn))}
        writer = writer.option("userMetadata", json.dumps({"spillway": about}))
        writer.save(self._location(CURRENT, name))

    def _load(self, lsn: int) -> str:
        return f"{self._application}/load/{Lsn(lsn)}"


def _partition_of(made: Sequence[Partition], taken_at_us: int) -> dict[str, str | None]:
    """Return the one partition of a history that rows read at *taken_at_us* are in.

    Raises:
        NotDirect: it is made of other columns.
    """
    if any(each.column != _TIME for each in made):
        raise NotDirect("a history with partitions of its columns")
    at = pa.table({_TIME: pa.array([taken_at_us], CHANGE_COLUMNS.field(_TIME).type)})
    (row,) = partitions.added_to_arrow(at, made).to_pylist()
    return {name: partitions.partition_text(row[name]) for name in partitions.names(made)}
