"""Keeps a lake's tables registered in a catalog.

::

    <lake>/current, history ─▶ Registration.keep ─▶ the catalog: entries made, changed, removed
                                        └─▶ _spillway/registered.json: what it has, what is amiss

A table is registered when it is made, or its load is done; its entry follows its columns, and goes
when the table's directory is gone. The state file tells what was done, so a catalog is asked only
where something changed, and a job that starts again asks nothing. While a job runs,
:mod:`spillway.lake.job.registration_watch` sees to it.

Bound: a line a table; of the logs, the columns of :data:`_TABLES_MAX` tables.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import (
    InvalidRequest,
    LakeError,
    LakeTableConflict,
    SpillwayError,
    UnsupportedFeature,
)
from spillway.lake.catalogs.contract import Entry, hive_type, place_of
from spillway.lake.catalogs.glue import GlueCatalog
from spillway.lake.catalogs.hive import HiveCatalog
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import table_of
from spillway.lake.state.loads import is_loading
from spillway.lake.tables.delta import log
from spillway.lake.tables.plain_changes import NotDirect
from spillway.storage.place import ObjectPath, replace_json, spark_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from spillway.lake.catalogs.contract import Catalog
    from spillway.lake.tables.delta.log import Action
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

GLUE: Final = "glue"
_THRIFT: Final = "thrift://"
_FORMAT_VERSION: Final = 1
_TABLES_MAX: Final = 1000
#: A catalog that fails so often in a row is not asked further in a round.
_FAILURES_MAX: Final = 3


def check_address(address: str, table_format: str) -> None:
    """Check that this is a catalog that can be asked, for tables of a format.

    Raises:
        InvalidRequest: it is none.
    """
    if table_format != "delta":
        raise InvalidRequest(
            f"tables of format {table_format} can't be registered",
            hint="Iceberg tables are in a catalog anyhow (--iceberg-catalog); Delta's can be.",
        )
    each = address.split(",")
    if address != GLUE and not all(part.startswith(_THRIFT) and part != _THRIFT for part in each):
        raise InvalidRequest(
            f"{address!r} is no catalog",
            hint="thrift://host:9083, a Hive metastore's address, or glue.",
        )


def check_place(address: str, path: LakePath) -> None:
    """Check that the catalog can have tables of a lake at *path*.

    Raises:
        UnsupportedFeature: it can't.
    """
    if isinstance(path, ObjectPath) and path.scheme != "s3":
        raise UnsupportedFeature(
            f"tables of a lake at {path} can't be registered in {address}",
            hint="Leave --register-in out: of object storage, tables on S3 can be registered.",
        )


def needs_spark(address: str) -> bool:
    """Say whether the catalog is asked through Spark's JVM."""
    return address != GLUE


@dataclass(slots=True)
class Registered:
    """A table's line in the state file."""

    database: str
    name: str
    location: str
    #: what the catalog was told last; None: it has not been told
    columns: list[tuple[str, str]] | None = None
    #: what is amiss; "": nothing is
    trouble: str = ""

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(slots=True)
class _Columns(log.Snapshot):
    """A version of which only the columns are kept."""

    def add(self, actions: Iterable[Action]) -> None:
        """Take up the actions of one commit."""
        kept = (each for each in actions if "metaData" in each or "protocol" in each)
        log.Snapshot.add(self, kept)


@dataclass(slots=True)
class Round:
    """What a round did: tables as ``kind/schema.table``, and where they are in the catalog."""

    made: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


class Registration:
    """A lake's entries in one catalog; for one thread."""

    def __init__(
        self, path: LakePath, address: str, prefix: str = "", spark: SparkSession | None = None
    ) -> None:
        self._path = path.absolute()
        self._address, self._prefix = address, prefix
        self._spark = spark
        self._catalog: Catalog | None = None
        self._tables = _load(path, address, prefix)
        self._logs: OrderedDict[str, _Columns] = OrderedDict()
        self._failures = 0

    def keep(self, only: Iterable[str] | None = None, *, again: bool = False) -> Round:
        """Register what is missing, follow changed columns, remove entries of tables that are gone.

        Args:
            only: ``schema.table`` names that may have changed; all are looked at when None.
            again: tell the catalog of each table, also of those that it was told of before.
        """
        done, before = Round(), _as_json(self._tables)
        self._failures = 0
        wanted = None if only is None else set(only)
        there: set[str] = set()
        for kind in (CURRENT, HISTORY):
            for directory in self._directories(kind):
                there.add(key := f"{kind}/{directory}")
                known = self._tables.get(key)
                if (
                    not again
                    and wanted is not None
                    and ".".join(table_of(directory)) not in wanted
                    and known is not None
                    and known.columns is not None
                ):
                    continue
                if kind == CURRENT and is_loading(self._path, directory):
                    continue
                if self._failures < _FAILURES_MAX:
                    self._keep_one(key, done, again=again)
        for key in sorted(self._tables.keys() - there):
            self._remove_one(key, done)
        self._store(before)
        return done

    def remove(self) -> Round:
        """Remove all entries that were made."""
        done, before = Round(), _as_json(self._tables)
        self._failures = 0
        for key in sorted(self._tables):
            self._remove_one(key, done)
        self._store(before)
        return done

    def _keep_one(self, key: str, done: Round, *, again: bool) -> None:
        kind, _, directory = key.partition("/")
        columns = self._columns(key)
        if columns is None:
            # A directory whose table's first commit is not there yet.
            return
        database, name = place_of(kind, directory, self._prefix)
        location = self._location(self._path / kind / directory)
        table = self._tables.setdefault(key, Registered(database, name, location))
        if not again and table.columns == columns and not table.trouble:
            return
        try:
            self._opened().put(Entry(database, name, location, columns, str(self._path)))
        except Exception as error:  # noqa: BLE001 - no batch is to end for it
            self._failed(key, error, done)
            return
        self._failures = 0
        (done.made if table.columns is None else done.changed)[key] = str(table)
        table.columns, table.trouble = columns, ""

    def _remove_one(self, key: str, done: Round) -> None:
        table = self._tables[key]
        if self._failures >= _FAILURES_MAX:
            return
        try:
            # What was never made is another's.
            if table.columns is not None:
                self._opened().remove(Entry(table.database, table.name, table.location))
        except Exception as error:  # noqa: BLE001 - no batch is to end for it
            self._failed(key, error, done)
            return
        done.removed[key] = str(table)
        del self._tables[key]

    def _failed(self, key: str, error: Exception, done: Round) -> None:
        self._tables[key].trouble = done.troubles[key] = said(error)
        # Of a name that another has the catalog did answer.
        if not isinstance(error, LakeTableConflict):
            self._failures += 1

    def _opened(self) -> Catalog:
        if self._catalog is None:
            if self._address == GLUE:
                self._catalog = GlueCatalog()
            else:
                assert self._spark is not None  # see needs_spark
                self._catalog = HiveCatalog(self._address, self._spark)
        return self._catalog

    def _location(self, table: LakePath) -> str:
        if isinstance(table, ObjectPath):
            return str(table) if self._address == GLUE else spark_address(table)
        return table.as_uri()

    def _directories(self, kind: str) -> list[str]:
        folder = self._path / kind
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []

    def _columns(self, key: str) -> list[tuple[str, str]] | None:
        kind, _, directory = key.partition("/")
        table, before = self._path / kind / directory, self._logs.pop(key, None)
        try:
            found = log.load(table, _Columns()) if before is None else log.refresh(table, before)
        except NotDirect:
            return None
        assert isinstance(found, _Columns)  # it was given
        self._logs[key] = found
        while len(self._logs) > _TABLES_MAX:
            self._logs.popitem(last=False)
        return [(each["name"], hive_type(each["type"])) for each in found.fields]

    def _store(self, before: dict[str, Any]) -> None:
        after = _as_json(self._tables)
        if after == before:
            return
        (self._path / "_spillway").mkdir(parents=True, exist_ok=True)
        value = {
            "version": _FORMAT_VERSION,
            "catalog": self._address,
            "prefix": self._prefix,
            "tables": after,
        }
        replace_json(_file(self._path), value)


def registered(path: LakePath) -> dict[str, Registered]:
    """Return what the state file says of tables, by ``kind/directory``.

    Raises:
        LakeTableConflict: the file is none of this release.
    """
    return _tables_of(_stored(path))


def where_registered(path: LakePath) -> tuple[str, str] | None:
    """Return the catalog's address and the prefix that were used last; None: none was."""
    stored = _stored(path)
    return (stored["catalog"], stored["prefix"]) if stored else None


def _load(path: LakePath, address: str, prefix: str) -> dict[str, Registered]:
    stored = _stored(path)
    # Another catalog has been told of nothing.
    there = (stored.get("catalog"), stored.get("prefix")) == (address, prefix)
    return _tables_of(stored) if there else {}


def _tables_of(stored: dict[str, Any]) -> dict[str, Registered]:
    found: dict[str, Registered] = {}
    for key, value in stored.get("tables", {}).items():
        columns = value["columns"]
        told = None if columns is None else [(name, type_) for name, type_ in columns]
        found[key] = Registered(
            value["database"], value["name"], value["location"], told, value["trouble"]
        )
    return found


def _as_json(tables: dict[str, Registered]) -> dict[str, Any]:
    return {key: asdict(table) for key, table in tables.items()}


def _stored(path: LakePath) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(_file(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LakeError(f"{_file(path)} can't be read: {error}", hint="Remove it.") from error
    if value.get("version") != _FORMAT_VERSION:
        raise LakeTableConflict(
            f"{_file(path)} is of another release", hint="Use the release that wrote it."
        )
    return value


def _file(path: LakePath) -> LakePath:
    return path / "_spillway" / "registered.json"


def said(error: Exception) -> str:
    """Return what went wrong, in a line."""
    if isinstance(error, SpillwayError):
        return f"{error}"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
