"""Where a lake's tables are, and which version of each is as of one LSN: what a reader that is
neither Spark nor of this package must be told to see all tables as of the same commit.

::

    from spillway.lake.pinned_tables import pinned

    found = pinned("/data/lake")                   # the newest LSN at which all tables agree
    found.table("current", "shop.orders").version  # of Delta: VERSION AS OF
    found.table("current", "shop.orders").metadata # of Iceberg: the file, with .snapshot_id

The versions are those that :class:`spillway.lake.read.Pin` takes, and stay readable as long.
Neither a JVM nor the service is asked; reads only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import LakeError, UnsupportedFeature
from spillway.lake.shape.kinds import CURRENT, DDL, HISTORY
from spillway.lake.state import commit_points, position
from spillway.lake.tables.delta.tables import application_of, version_at
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.iceberg.catalog import LakeCatalog
from spillway.pg.lsn import Lsn
from spillway.storage.place import lake_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway.lake.state.position import LakePosition
    from spillway.storage.place import LakePath

_KINDS: Final = (CURRENT, HISTORY, DDL)


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A table as of one LSN."""

    #: current, history or ddl
    kind: str
    #: schema.table; of ddl: events
    name: str
    #: its directory, or ``s3://bucket/key``
    location: str
    #: Delta's version
    version: int | None = None
    #: of Iceberg: the table's name in its catalog, the file of its metadata, and the snapshot
    identifier: str | None = None
    metadata: str | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class PinnedTables:
    """What a lake's tables were at :attr:`lsn`."""

    #: as PostgreSQL prints it, and as the number that ``_commit_lsn`` is compared with
    lsn: str
    lsn_value: int
    table_format: str
    #: in the order of kinds and names; a current table that was not as of the LSN is not among them
    tables: tuple[PinnedTable, ...]
    #: which those are: they were being loaded, set aside, or waited for a merge at their own pace
    left_out: tuple[str, ...]

    def table(self, kind: str, name: str) -> PinnedTable:
        """Return one.

        Raises:
            LakeError: there was none.
        """
        for each in self.tables:
            if (each.kind, each.name) == (kind, name):
                return each
        had = [each.name for each in self.tables if each.kind == kind]
        raise LakeError(
            f"the lake had no {kind} table {name} as of {self.lsn}",
            hint=f"It had {', '.join(had) or 'none'}"
            + (f"; {name} was not as of that LSN." if name in self.left_out else "."),
            relation=name,
        )


def lsns(path: str | LakePath) -> list[str]:
    """Return the LSNs at which all tables of the lake at *path* agree, the newest first.

    Raises:
        LakeError: there is no lake.
    """
    lake = lake_path(path).absolute()
    position.existing(lake)
    return [point.lsn for point in commit_points.points(lake)]


def pinned(
    path: str | LakePath, lsn: Lsn | str | None = None, *, tables: Sequence[str] = ()
) -> PinnedTables:
    """Return the tables of the lake at *path* as of its newest consistent LSN that is not after
    *lsn*, at which all of *tables* were up to date.

    Raises:
        LakeError: there is no lake, no such LSN, or a table doesn't remember what it was then.
        UnsupportedFeature: it has plain Parquet files, which have no versions.
        InvalidLsn: *lsn* is none.
    """
    lake = lake_path(path).absolute()
    known = position.existing(lake)
    if known.table_format == "parquet":
        raise UnsupportedFeature(
            f"the lake at {lake} has plain Parquet files, whose tables have no versions to pin",
            hint="Read it by spillway.lake.read, or keep a lake of --format delta or iceberg.",
        )
    wanted = Lsn.parse(lsn) if isinstance(lsn, str) else lsn
    point = commit_points.at(lake, wanted, tables)
    at = _delta_at(lake, known) if known.table_format == "delta" else _iceberg_at(lake, known)
    found = []
    for kind in _KINDS:
        folder = lake / kind
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        for name in names:
            if kind == CURRENT and name in point.loading:
                continue
            table = at(kind, name, point.lsn_value)
            if table is not None:
                found.append(table)
    return PinnedTables(
        point.lsn, point.lsn_value, known.table_format, tuple(found), tuple(point.loading)
    )


def _delta_at(lake: LakePath, known: LakePosition) -> Callable[[str, str, int], PinnedTable | None]:
    def at(kind: str, name: str, lsn: int) -> PinnedTable | None:
        where = lake / kind / name
        version = version_at(where, application_of(known.slot), lsn)
        return None if version is None else PinnedTable(kind, name, str(where), version)

    return at


def _iceberg_at(
    lake: LakePath, known: LakePosition
) -> Callable[[str, str, int], PinnedTable | None]:
    catalog = LakeCatalog(lake)

    def at(kind: str, name: str, lsn: int) -> PinnedTable | None:
        table = catalog.load(kind, name)
        snapshot = None if table is None else snapshots.snapshot_at(table, known.slot, lsn)
        if table is None or snapshot is None:
            return None
        return PinnedTable(
            kind,
            name,
            table.location(),
            identifier=".".join(table.name()),
            metadata=table.metadata_location,
            snapshot_id=snapshot.snapshot_id,
        )

    return at
