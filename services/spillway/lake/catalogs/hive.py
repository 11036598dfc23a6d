"""A Hive metastore, asked by the client that Spark's own jars bring, in Spark's JVM.

An entry is what Spark makes of ``CREATE TABLE … USING delta LOCATION …``: an external table whose
provider is Delta, without columns, which are in Delta's log. The job's session is not connected to
the metastore, so one that is down hinders nothing but this.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import LakeError
from spillway.lake.catalogs.contract import (
    INPUT_FORMAT,
    MADE_BY,
    OUTPUT_FORMAT,
    PARAMETERS,
    SERDE,
    conflict,
    same_place,
    serde_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from spillway.lake.catalogs.contract import Entry

_SETTINGS: Final = {
    # One try each, of bounded time: who asks tries again.
    "hive.metastore.connect.retries": "1",
    "hive.metastore.failure.retries": "0",
    "hive.metastore.client.socket.timeout": "20s",
}
_PARAMETERS: Final = {
    **PARAMETERS,
    "spark.sql.sources.schema": '{"type":"struct","fields":[]}',
}


class HiveCatalog:
    """See the module, and :class:`spillway.lake.catalogs.contract.Catalog`."""

    def __init__(self, uris: str, spark: SparkSession) -> None:
        self._uris = uris
        self._jvm: Any = spark._jvm  # noqa: SLF001 - nothing else reaches it

    def put(self, entry: Entry) -> None:
        """Make the entry, or let be the one that is there."""
        with self._client() as client:
            if client.tableExists(entry.database, entry.name):
                found = _location(client.getTable(entry.database, entry.name))
                if not same_place(found, entry.location):
                    raise conflict(entry, found)
                return
            if not client.getDatabases(entry.database):
                database = self._api.Database()
                database.setName(entry.database)
                client.createDatabase(database)
            client.createTable(self._table(entry))

    def remove(self, entry: Entry) -> None:
        """Remove the entry, not the table."""
        with self._client() as client:
            if not client.tableExists(entry.database, entry.name):
                return
            found = _location(client.getTable(entry.database, entry.name))
            if same_place(found, entry.location):
                client.dropTable(entry.database, entry.name, False, True)

    @property
    def _api(self) -> Any:
        return self._jvm.org.apache.hadoop.hive.metastore.api

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

        hive = self._jvm.org.apache.hadoop.hive
        try:
            conf = hive.conf.HiveConf()
            for name, value in {**_SETTINGS, "hive.metastore.uris": self._uris}.items():
                conf.set(name, value)
            client = hive.metastore.HiveMetaStoreClient(conf)
            try:
                yield client
            finally:
                client.close()
        except Py4JJavaError as error:
            said = str(error.java_exception.toString()).splitlines()[0]
            raise LakeError(
                f"the metastore {self._uris}: {said}",
                hint="Is it reached from the job's machine, and may the job's user write to it?",
            ) from error

    def _table(self, entry: Entry) -> Any:
        api, columns = self._api, self._jvm.java.util.ArrayList()
        columns.add(api.FieldSchema("col", "array<string>", "from deserializer"))
        serde = api.SerDeInfo()
        serde.setSerializationLib(SERDE)
        serde.setParameters(self._map(serde_parameters(entry)))
        storage = api.StorageDescriptor()
        storage.setCols(columns)
        storage.setLocation(entry.location)
        storage.setInputFormat(INPUT_FORMAT)
        storage.setOutputFormat(OUTPUT_FORMAT)
        storage.setSerdeInfo(serde)
        table = api.Table()
        table.setDbName(entry.database)
        table.setTableName(entry.name)
        table.setTableType("EXTERNAL_TABLE")
        table.setOwner("spillway")
        table.setSd(storage)
        table.setPartitionKeys(self._jvm.java.util.ArrayList())
        table.setParameters(self._map({**_PARAMETERS, MADE_BY: entry.lake}))
        return table

    def _map(self, values: dict[str, str]) -> Any:
        made = self._jvm.java.util.HashMap()
        for name, value in values.items():
            made.put(name, value)
        return made


def _location(table: Any) -> str:
    storage = table.getSd()
    return str(storage.getSerdeInfo().getParameters().get("path") or storage.getLocation())
