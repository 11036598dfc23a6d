"""``spillway lake load``: load tables, beside a running job or without one.

What a load needs is put together here: the lock that makes it the only one, the checks that slot,
source and lake belong together, the Spark session, the tables of the lake's format.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from spillway.consumer.connect import DEFAULT_ADDRESS, connect, exports_of, identity_of
from spillway.consumer.snapshots import Source
from spillway.errors import InvalidRequest, LakeTableConflict
from spillway.lake.session import session_for
from spillway.lake.shape.payload import directory_of
from spillway.lake.state import position, shown_tables, source_history
from spillway.lake.state.loads import (
    RANGE_BYTES,
    directories_named,
    is_to_load,
    loading_lock,
)
from spillway.lake.state.shown_tables import ShownTables
from spillway.lake.tables import layout
from spillway.lake.tables.contract import check_name
from spillway.lake.tables.formats import load_tables
from spillway.lake.tables.layout import Layout
from spillway.plugins.masks import with_secret
from spillway.receiver.checks import check_source
from spillway.receiver.table_privileges import check_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spillway.consumer.slot import SlotPosition
    from spillway.lake.load.initial_load import InitialLoad
    from spillway.storage.place import LakePath

ENVIRONMENT: Final = "SPILLWAY_LAKE_SOURCE_DSN"


class LoadsFrom(Protocol):
    """What of a job's settings a load needs, too."""

    @property
    def slot(self) -> str: ...
    @property
    def path(self) -> LakePath: ...
    @property
    def table_format(self) -> str: ...
    @property
    def source_dsn(self) -> str: ...
    def options(self) -> dict[str, str]:
        """Return the client's."""
        ...


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What ``spillway lake load`` is told."""

    slot: str
    path: LakePath
    source_dsn: str = field(repr=False)
    #: ``schema.table`` names; empty: all that were not loaded yet
    tables: tuple[str, ...] = ()
    #: what is asked for of partitions and clusters
    layout: Layout = field(default_factory=Layout)
    #: load what was loaded before anew
    resync: bool = False
    #: of a lake that isn't there yet
    table_format: str = "delta"
    grpc: str = DEFAULT_ADDRESS
    #: empty: SPILLWAY_TOKEN
    token: str = field(default="", repr=False)
    master: str = "local[*]"
    driver_memory: str = "2g"
    #: what is asked for of partitioned tables and masks
    shown: ShownTables = field(default_factory=ShownTables)
    #: further settings of Spark's
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: Path | None = None
    range_bytes: int = RANGE_BYTES
    #: further options of the client
    source_options: dict[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """Return the client's options."""
        options = {"slot": self.slot, "grpc": self.grpc, **self.source_options}
        if self.token:
            options["token"] = self.token
        return options


def run_load(
    settings: LoadSettings,
    report: Callable[[object], None],
    *,
    stopping: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Load tables and return how many.

    Raises:
        SpillwayError: any kind; tables that are done stay done. That of one table's own comes when
            all others are.
    """
    with position.file_errors(settings.path):
        return _run_load(settings, report, stopping or threading.Event(), spark)


def _run_load(
    settings: LoadSettings,
    report: Callable[[object], None],
    stopping: threading.Event,
    spark: SparkSession | None,
) -> int:
    with closing(connect(settings.options())) as client:
        slot = client.position(settings.slot)
        source = identity_of(client, slot.source)
    found = position.load(settings.path)
    if found is None:
        with position.locked(settings.path):
            found = position.check(settings.path, settings.table_format, slot, has_checkpoint=False)
    elif (found.slot, found.source, found.database) != (slot.slot_name, slot.source, slot.database):
        raise LakeTableConflict(
            f"the lake at {settings.path} is of slot {found.slot} of source {found.source}",
            hint="Name that slot, or another lake.",
            slot=slot.slot_name,
        )
    source_history.check(settings.path, found, slot, source)
    shown_tables.settle(settings.path, settings.shown)
    check_load(settings, settings.tables, missing_only=False, resync=settings.resync)

    def made_anew(table: str) -> bool:
        return settings.resync and (not settings.tables or table in settings.tables)

    with (
        session_for(settings, found.table_format, spark) as session,
        prepared(
            settings, session, slot, stopping, report,
            table_format=found.table_format, range_bytes=settings.range_bytes,
        ) as load,
    ):  # fmt: skip
        layout.settle(
            settings.path, found.table_format, settings.layout, load.tables, loaded_anew=made_anew
        )
        chosen = load.choose(settings.tables, missing_only=False, resync=settings.resync)
        for failed in load.run(chosen):
            raise failed.error
        return len(chosen)


def check_load(
    settings: LoadsFrom, tables: Sequence[str], *, missing_only: bool, resync: bool = False
) -> None:
    """Find what stands in a load's way while no Spark was started for it.

    Args:
        settings: whose DSN, and which lake.
        tables: those that are to be loaded; all when it is empty.
        missing_only: as of :meth:`~spillway.lake.load.initial_load.InitialLoad.choose`.
        resync: the same.

    Raises:
        InvalidRequest: there is no DSN.
        SourceError: the server, or what the role may, is not fit for it; the hint is what mends it.
        LakeError: there is no table of a name, or there are two.
    """
    if not settings.source_dsn:
        raise InvalidRequest(
            "an initial load reads from the source, and its DSN is not given",
            hint=f"Set {ENVIRONMENT}; its role needs REPLICATION and SELECT on the tables.",
        )
    check_source(settings.source_dsn)
    path = settings.path.absolute()
    source = Source(settings.source_dsn, with_secret(shown_tables.plugin_options(path)))
    found = source.tables(tables)
    if tables and not missing_only:
        for table in found:
            check_name(table.name, directories_named(path, table.name, found))
    names = [
        name
        for table in found
        if is_to_load(
            path,
            directory_of(*table.shown),
            missing_only=missing_only,
            resync=resync or bool(tables),
        )
        for name in table.copied_names
    ]
    check_readable(settings.source_dsn, names)


@contextmanager
def prepared(
    settings: LoadsFrom,
    spark: SparkSession,
    slot: SlotPosition,
    stopping: threading.Event,
    report: Callable[[object], None],
    *,
    table_format: str = "",
    range_bytes: int = RANGE_BYTES,
) -> Iterator[InitialLoad]:
    """Yield a load of the lake, which is the only one meanwhile; :func:`check_load` comes before
    it.

    Raises:
        SourceError: the server refuses.
        LakeTableConflict: the lake is being loaded.
    """
    from spillway.lake.load.initial_load import InitialLoad  # noqa: PLC0415 - imports PySpark

    path = settings.path.absolute()
    tables = load_tables(table_format or settings.table_format, spark, path, settings.slot)
    with loading_lock(path):
        exports = exports_of(settings.options(), slot.slot_name)
        with closing(connect(settings.options())) as client:
            identity = identity_of(client, slot.source)
        shown = {**slot.options, **with_secret(shown_tables.plugin_options(path))}
        source = Source(settings.source_dsn, shown, exports, identity=identity)
        yield InitialLoad(
            spark, tables, path, source, slot, stopping, report, range_bytes=range_bytes
        )
