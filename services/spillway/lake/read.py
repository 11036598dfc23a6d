"""Reading a lake: all tables as of one commit LSN.

::

    from spillway.lake.read import Lake

    lake = Lake(spark, "/data/lake")
    now = lake.at()                                # the newest LSN at which all tables agree
    now.current("shop.orders").groupBy("status").count().show()
    then = lake.at("0/4947BB0")                    # time travel: the newest such LSN that is not
                                                   after this one
    then.history("shop.orders").where("_op = 'D'").show()
    now.create_views()                             # SELECT … FROM shop_orders JOIN shop_customers …

Whoever opens two Delta tables by their paths may see a transaction in one and not yet in the other,
as the job commits them one after the other. A :class:`Pin` takes each table's version from the
table's own commits: the newest that is not after the pinned LSN
(:mod:`spillway.lake.state.commit_points` says why that is consistent). It stays what it is while
the job goes on, as long as the tables keep that version: Delta until VACUUM removes its files,
Iceberg until its snapshot is expired, Parquet for the last two batches.

Needs Spark and the lake's files, neither the service nor the source; reads only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.errors import LakeError
from spillway.lake.shape.changes import EVENTS
from spillway.lake.shape.columns import stored_copies
from spillway.lake.shape.kinds import CURRENT, DDL, HISTORY
from spillway.lake.shape.net_effect import own, quoted
from spillway.lake.shape.payload import CHANGE_COLUMNS, OLD_KEY
from spillway.lake.shape.versions import versions
from spillway.lake.state import commit_points, position
from spillway.lake.state.quarantine import AS_JSON, QUARANTINE, AsJson
from spillway.lake.tables import partitions
from spillway.lake.tables.delta.tables import application_of, version_at
from spillway.lake.tables.iceberg.catalog import LakeCatalog
from spillway.lake.tables.parquet.tables import copy_at, read_batches
from spillway.pg.lsn import Lsn
from spillway.storage.place import ObjectPath, lake_path, spark_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spillway.lake.state.commit_points import CommitPoint
    from spillway.storage.place import LakePath


class Lake:
    """A lake at *path*, read with *spark*; see the module."""

    def __init__(self, spark: SparkSession, path: str | LakePath) -> None:
        """Open it.

        Raises:
            LakeError: there is no lake at *path*.
        """
        self.spark = spark
        self.path = lake_path(path).absolute()
        self.position = position.existing(self.path)
        self._catalog: LakeCatalog | None = None

    def catalog(self) -> LakeCatalog:
        """Return the catalog of a lake of Iceberg tables."""
        if self._catalog is None:
            self._catalog = LakeCatalog(self.path)
        return self._catalog

    def points(self) -> Iterator[CommitPoint]:
        """Yield the LSNs at which all tables agree, the newest first."""
        return commit_points.points(self.path)

    def at(self, lsn: Lsn | str | None = None, *, tables: Sequence[str] = ()) -> Pin:
        """Return the lake as of the newest consistent LSN that is not after *lsn*, at which all of
        *tables* were up to date: where tables are merged at their own pace, some may not be at the
        newest of all.

        Raises:
            LakeError: there is none.
            InvalidLsn: *lsn* is none.
        """
        wanted = Lsn.parse(lsn) if isinstance(lsn, str) else lsn
        return Pin(self, commit_points.at(self.path, wanted, tables))


class Pin:
    """All tables of a lake as of one LSN."""

    def __init__(self, lake: Lake, point: CommitPoint) -> None:
        self._lake = lake
        self.point = point
        self.lsn = Lsn(point.lsn_value)

    def tables(self, kind: str = CURRENT) -> list[str]:
        """Return the tables that the lake had then, as ``schema.table``."""
        folder = self._lake.path / kind
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        loading = self.point.loading if kind == CURRENT else ()
        return [n for n in names if n not in loading and self._frame(kind, n) is not None]

    def current(self, name: str) -> DataFrame:
        """Return a table's rows; one that counts copies gives a row so often as there are copies of
        it.

        Raises:
            LakeError: there was no such table, or its version of then is gone.
        """
        frame = partitions.removed(self._wanted(CURRENT, name))
        counted = stored_copies(frame.schema)
        if counted is None:
            return frame
        kept = [column for column in frame.columns if column != counted]
        each = F.explode(F.sequence(F.lit(1), F.col(counted)))
        return frame.select(
            *(F.col(quoted(c)).alias(own(c)) for c in kept), each.alias("_copy")
        ).select(*(F.col(quoted(own(c))).alias(c) for c in kept))

    def history(self, name: str) -> DataFrame:
        """Return a table's changes up to the LSN, in no order (``_commit_lsn``, ``_seq`` give it).

        Raises:
            LakeError: as :meth:`current`.
        """
        return self._wanted(HISTORY, name).where(F.col("_commit_lsn") < int(self.lsn))

    def versions(self, name: str, key: Sequence[str]) -> DataFrame:
        """Return the versions of a table's rows up to the LSN, each with ``_valid_from`` and
        ``_valid_to`` (:mod:`spillway.lake.shape.versions`); *key* is what tells its rows.

        Raises:
            LakeError: as :meth:`current`.
        """
        events = self.history(name)
        columns = [c for c in events.columns if c not in {*CHANGE_COLUMNS.names, OLD_KEY}]
        return versions(events, columns, key)

    def ddl(self) -> DataFrame:
        """Return what changed in the tables' shapes up to the LSN
        (:mod:`spillway.lake.shape.changes`), in no order.
        """
        return self._pinned(DDL, EVENTS)

    def quarantine(self, name: str) -> DataFrame:
        """Return the changes of a table that was set aside up to the LSN, in no order; columns in
        ``_row``, as JSON.

        Raises:
            LakeError: it never was.
        """
        rows = self._pinned(QUARANTINE, name).select("payload")
        decoded = rows.mapInArrow(AsJson(), from_arrow_schema(AS_JSON))
        return decoded.where(F.col("_commit_lsn") < int(self.lsn))

    def _pinned(self, kind: str, name: str) -> DataFrame:
        frame = self._frame(kind, name)
        if frame is None:
            raise LakeError(
                f"the lake at {self._lake.path} had no table {kind}/{name} at {self.lsn}",
                relation=name,
            )
        return frame.where(F.col("_commit_lsn") < int(self.lsn))

    def create_views(self, prefix: str = "") -> list[str]:
        """Make a temporary view of each current table, ``<prefix><schema>_<table>``; return their
        names.
        """
        views = []
        for name in self.tables():
            view = prefix + re.sub(r"\W", "_", name)
            self.current(name).createOrReplaceTempView(view)
            views.append(view)
        return views

    def _wanted(self, kind: str, name: str) -> DataFrame:
        if kind == CURRENT and name in self.point.loading:
            raise LakeError(
                f"{name} was being loaded at {self.lsn}, in quarantine, or waiting for a merge at "
                "its own pace: its current table was not as of then",
                hint=f"Pin with lake.at(tables=[{name!r}]), a later LSN when the load is done, or "
                "read its history; `lake run` says what is in quarantine.",
                relation=name,
            )
        frame = self._frame(kind, name)
        if frame is None:
            raise LakeError(
                f"the lake at {self._lake.path} had no {kind} table {name} at {self.lsn}",
                hint=f"It had {', '.join(self.tables(kind)) or 'none'}.",
                relation=name,
            )
        return frame

    def _frame(self, kind: str, name: str) -> DataFrame | None:
        lake = self._lake
        folder = lake.path / kind / name
        if lake.position.table_format == "delta":
            version = version_at(folder, application_of(lake.position.slot), self.lsn)
            if version is None:
                return None
            reader = lake.spark.read.format("delta").option("versionAsOf", version)
            return reader.load(spark_address(folder))
        if lake.position.table_format == "iceberg":
            from spillway.lake.tables.iceberg.tables import read_at  # noqa: PLC0415 - imports PyIceberg

            slot = lake.position.slot
            return read_at(lake.spark, lake.catalog(), slot, kind, name, self.lsn)
        assert not isinstance(folder, ObjectPath)  # plain Parquet is of directories
        if kind != CURRENT:
            return read_batches(lake.spark, folder, 0, self.lsn)
        copy = copy_at(folder, self.lsn)
        return None if copy is None else lake.spark.read.parquet(str(copy))
