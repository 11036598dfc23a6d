"""Current tables clustered: rows that are near each other in some columns are brought into the same
files.

``OPTIMIZE … ZORDER BY`` writes the whole table anew, so it is not for each round of maintenance: a
round clusters a table when more than a quarter of its bytes are in files that came since it was
clustered last, or when it is to be clustered by other columns. What was done is kept beside the
lake; if that file is lost, tables are clustered once more::

    _spillway/clustered/<table>.json   the columns, and the time of the newest file when it was done

The times that the table's log has of its files tell which ones came since; whoever wrote a file put
its time there.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spillway.lake.shape.kinds import CURRENT
from spillway.lake.shape.net_effect import quoted
from spillway.lake.tables import layout
from spillway.storage.place import replace_json, spark_address, storage_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from spillway.lake.tables.contract import LakeTables
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

_NEW_SHARE_MAX: Final = 0.25
#: Delta has statistics of so many columns, and clusters by none that has not.
_INDEXED: Final = 32
_INDEXED_PROPERTY: Final = "delta.dataSkippingNumIndexedCols"


def columns_due(path: LakePath, tables: LakeTables, name: str) -> tuple[str, ...]:
    """Return the columns that a current table is to be clustered by now; none: that it is well as
    it is.
    """
    asked = layout.load(path).clusters(name)
    if not asked:
        return ()
    schema = tables.schema(CURRENT, name)
    there = () if schema is None else tuple(column for column in asked if column in schema.names)
    if there != asked:
        _log.warning(
            "%s is to be clustered by %s, and has only %s", name, ", ".join(asked), ", ".join(there)
        )
    before = _done(path, name)
    if before is None or before[0] != there:
        return there
    times, sizes = _files(path / CURRENT / name)
    new = pc.sum(pc.if_else(pc.greater(times, before[1]), sizes, 0)).as_py() or 0
    return there if new > _NEW_SHARE_MAX * (pc.sum(sizes).as_py() or 0) else ()


def cluster(spark: SparkSession, path: LakePath, name: str, columns: Sequence[str]) -> None:
    """Cluster a current table, which nobody else writes meanwhile."""
    table = f"delta.{quoted(spark_address(path / CURRENT / name))}"
    _have_statistics(spark, table, columns)
    spark.sql(f"OPTIMIZE {table} ZORDER BY ({', '.join(map(quoted, columns))})").collect()
    times, _ = _files(path / CURRENT / name)
    file = _file(path, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_json(file, {"columns": list(columns), "newest": pc.max(times).as_py() or 0})


def _have_statistics(spark: SparkSession, table: str, columns: Sequence[str]) -> None:
    """See to it that Delta keeps statistics of *columns*, wherever in the table they are."""
    names = spark.sql(f"SELECT * FROM {table} LIMIT 0").columns  # noqa: S608 - quoted
    needed = 1 + max(names.index(column) for column in columns)
    if needed <= _INDEXED:
        return
    set_ = spark.sql(f"SHOW TBLPROPERTIES {table}").collect()
    if needed > int(dict(map(tuple, set_)).get(_INDEXED_PROPERTY, _INDEXED)):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{_INDEXED_PROPERTY}' = '{needed}')")


def _files(table: LakePath) -> tuple[pa.Array, pa.Array]:
    """Return the times of a table's files, in milliseconds, and their sizes in bytes."""
    found = DeltaTable(str(table), storage_options=storage_options(table))
    actions = pa.table(found.get_add_actions())
    times = actions.column("modification_time").cast(pa.int64())
    return times.combine_chunks(), actions.column("size_bytes").combine_chunks()


def _done(path: LakePath, name: str) -> tuple[tuple[str, ...], int] | None:
    try:
        value = json.loads(_file(path, name).read_text())
        return tuple(value["columns"]), int(value["newest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(path: LakePath, name: str) -> LakePath:
    return path / "_spillway" / "clustered" / f"{name}.json"
