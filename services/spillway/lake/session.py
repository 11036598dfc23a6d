"""The Spark session that lake jobs run in: offline, small, quiet.

One process, local mode: driver and executors share a JVM, and Spark starts a Python worker per
core. Settings that are not Spark's own defaults have their reason beside them.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import util
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from spillway.errors import SparkMissing
from spillway.installation import how_to_install
from spillway.lake import jars
from spillway.storage.object_stores import KINDS, azure_account, azure_emulator, s3_region
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spillway.storage.place import LakePath


class RunsSpark(Protocol):
    """What a command's settings say about Spark."""

    @property
    def path(self) -> LakePath | None: ...
    @property
    def master(self) -> str: ...
    @property
    def driver_memory(self) -> str: ...
    @property
    def jars(self) -> Path | None: ...
    @property
    def conf(self) -> Mapping[str, str]: ...


_LOCAL_SETTINGS: Final = {
    # A laptop's host name may resolve to nothing that Spark can bind to. Executors of a cluster
    # must find the driver.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """:class:`RunsSpark` alone."""

    master: str
    driver_memory: str
    jars: Path | None
    #: where the lake is, if there is one: object storage takes jars and settings of its own
    path: LakePath | None = None
    #: further settings of Spark's, which were checked
    conf: Mapping[str, str] = field(default_factory=dict)


_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A micro-batch is megabytes: two hundred partitions of it would be two hundred task starts.
    "spark.sql.shuffle.partitions": "2",
    # Adaptive execution plans after each stage, which doubles the jobs of a small batch and gains
    # two partitions nothing.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # mapInArrow's batches; the default of 10,000 rows is the slow end (see lake.source).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.streaming.metricsEnabled": "false",
    # Between triggers Spark looks for new data this often.
    "spark.sql.streaming.pollingDelay": "200ms",
    "spark.cleaner.periodicGC.interval": "10min",
}

_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta reads its own log as a Spark job of 50 partitions, at each commit.
    "spark.databricks.delta.snapshotPartitions": "1",
    # MERGE copies its source aside, lest it give other rows when read twice; ours is an aggregate
    # of committed files.
    "spark.databricks.delta.merge.materializeSource": "none",
}


_S3_SETTINGS: Final = {
    # The other kinds read ahead for scans of gigabytes, on threads of their own.
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
}


def object_storage_settings(lake: ObjectPath) -> dict[str, str]:
    """Return what tells Spark where objects are; the keys it takes from the environment itself.

    Delta's commits by Spark look whether their version is there and then write it: right while one
    process writes, which :mod:`spillway.lake.lease` sees to. On S3 (S3SingleDriverLogStore) Hadoop
    could make a conditional PUT of such a write, but only for callers that ask for it, which Delta
    does not; in Azure (AzureLogStore) the commit is a rename, which only accounts with a
    hierarchical namespace have in one step. Each lists all of the table's log: Delta's way of
    listing only its end (``delta.enableFastS3AListFrom``) calls what this Hadoop has not.

    Raises:
        InvalidRequest: the environment does not say where the lake is.
    """
    return _azure_settings() if lake.scheme == "az" else _s3_settings()


def _s3_settings() -> dict[str, str]:
    settings = {**_S3_SETTINGS, "spark.hadoop.fs.s3a.endpoint.region": s3_region()}
    at = KINDS["s3"].endpoint()
    if at is not None:
        settings["spark.hadoop.fs.s3a.endpoint"] = at
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        secure = "false" if at.startswith("http://") else "true"
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = secure
    return settings


def _azure_settings() -> dict[str, str]:
    """Hadoop reads no environment for Azure by itself: its settings name the variables, and it
    looks at them where it needs them.
    """
    account, emulator = azure_account(), azure_emulator()
    # Its other client has no TLS to offer where there is none, and then refuses to begin.
    settings = {
        "networking.library": "JDK_HTTP_URL_CONNECTION",
        "ssl.channel.mode": "Default_JSSE",
    }
    if emulator is not None:
        # It speaks the protocol of blobs alone.
        settings |= {
            "abfs.endpoint": emulator,
            "always.use.https": "false",
            "account.hns.enabled": "false",
            "fns.account.service.type": "BLOB",
            "ingress.service.type": "BLOB",
        }
    if os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"):
        for service in ("blob", "dfs"):
            name = f"account.key.{account}.{service}.core.windows.net"
            settings[name] = "${env.AZURE_STORAGE_ACCOUNT_KEY}"
    else:
        tokens = "org.apache.hadoop.fs.azurebfs.oauth2."
        settings["account.auth.type"] = "OAuth"
        settings["account.oauth.provider.type"] = f"{tokens}MsiTokenProvider"
        if client := os.environ.get("AZURE_CLIENT_ID"):
            settings["account.oauth2.client.id"] = client
        if os.environ.get("AZURE_CLIENT_SECRET"):
            tenant = os.environ.get("AZURE_TENANT_ID", "")
            settings["account.oauth.provider.type"] = f"{tokens}ClientCredsTokenProvider"
            settings["account.oauth2.client.secret"] = "${env.AZURE_CLIENT_SECRET}"
            settings["account.oauth2.client.endpoint"] = (
                f"https://login.microsoftonline.com/{tenant}/oauth2/token"
            )
    return {f"spark.hadoop.fs.azure.{name}": value for name, value in settings.items()}


def spark_session(
    *,
    table_format: str,
    master: str = "local[*]",
    driver_memory: str = "2g",
    jar_folder: Path | None = None,
    short: bool = False,
    lake: LakePath | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Start, or return, this process's Spark session, with the data source `spillway` registered.

    Args:
        table_format: ``delta`` puts Delta Lake on the class path, the others need nothing.
        master: Spark's master URL.
        driver_memory: heap of the JVM; in local mode that is all there is.
        jar_folder: where :mod:`spillway.lake.jars` put the jars; its default when None.
        short: the session ends in a minute or so: the JVM's second compiler would not earn what it
            costs.
        lake: where the lake is; object storage takes jars and settings of its own.
        conf: further settings, which come before those of here.

    Raises:
        SparkMissing: PySpark is not installed.
        JavaMissing: there is no Java runtime.
        JarsMissing: Delta's jars, or those for object storage, are not there, or are not the pinned
            ones.
    """
    if util.find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed", hint=how_to_install("spark"))
    jars.java_command()
    settings = dict(_SETTINGS)
    if master.startswith("local"):
        settings |= _LOCAL_SETTINGS
    wanted: tuple[jars.Jar, ...] = ()
    if table_format == "delta":
        wanted += jars.DELTA
        settings |= _DELTA_SETTINGS
    if isinstance(lake, ObjectPath):
        wanted += jars.OF_STORES[lake.scheme]
        settings |= object_storage_settings(lake)
    if wanted:
        paths = jars.verified(jar_folder or jars.default_folder(), wanted)
        settings["spark.jars"] = ",".join(str(path) for path in paths)
    if short:
        # With one compiler the code cache would be 48 MB: Spark fills it, and spends a fifth of its
        # time on making room.
        settings["spark.driver.extraJavaOptions"] = (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
        )

    # Workers must run this interpreter, or they don't find this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, checked above

    from spillway.lake.source.data_source import SpillwayDataSource  # noqa: PLC0415 - imports PySpark

    # It logs every exception of a callback with its trace; the job raises them, typed.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName("spillway-lake").master(master)
    builder = builder.config("spark.driver.memory", driver_memory)
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # Delta's VACUUM prints, and what a command prints is read by others.
    jvm = spark._jvm  # noqa: SLF001 - nothing else reaches it
    assert jvm is not None  # classic Spark has one
    jvm.java.lang.System.setOut(jvm.java.lang.System.err)
    spark.dataSource.register(SpillwayDataSource)
    return spark


@contextmanager
def session_for(
    settings: RunsSpark, table_format: str, given: SparkSession | None, *, short: bool = False
) -> Iterator[SparkSession]:
    """Yield *given*, or a session of the block's own, which ends with it; see
    :func:`spark_session`.
    """
    if given is not None:
        yield given
        return
    spark = spark_session(
        table_format=table_format,
        master=settings.master,
        driver_memory=settings.driver_memory,
        jar_folder=settings.jars,
        short=short,
        lake=settings.path,
        conf=settings.conf,
    )
    try:
        yield spark
    finally:
        spark.stop()
