"""The offline bootstrap: catalogs from a copy of a data directory, without a server.

The directory is a base backup, a file system snapshot, or that of a server that is stopped or has
crashed. Everything that recovery would begin with is there: from its checkpoint's redo point R on
WAL brings the rest, and the mirror is exact once WAL reaches the newest page that was copied.

Why it is hard: nothing tells where anything is, for that stands in the catalogs that are to be
read. So:

1. pg_control or backup_label: R and the checkpoint's next xid (``control_file``).
2. pg_attribute of template1 has one layout a major, which ``pg/versions`` knows; pg_filenode.map
   says where it is. It describes pg_database, which says where the database is, and in which
   encoding.
3. The database's own pg_attribute describes its catalogs, its pg_class says where they are.

A page that was copied while it was written may be torn; its first record in WAL has its image,
since backups force full_page_writes.

Source: src/backend/access/transam/{xlog,multixact}.c; src/backend/catalog/catalog.c
(GetDatabasePath)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway._kernels.catalog import heap
from spillway.catalog.bootstrap import Bootstrap
from spillway.catalog.control_file import ControlFile, read_backup_label, read_control_file
from spillway.catalog.database_facts import DatabaseFacts
from spillway.catalog.heaps import CatalogHeaps
from spillway.catalog.layout import (
    GLOBAL_TABLESPACE,
    PG_CLASS,
    CatalogLayout,
    PhysicalColumn,
    TrackedCatalog,
    catalogs_of,
)
from spillway.catalog.mirror import CatalogMirror
from spillway.catalog.page import HEAP_XMIN_FROZEN, HEAP_XMIN_INVALID, PAGE_SIZE
from spillway.catalog.raw_storage import Transactions, admit, judge, read_storage
from spillway.catalog.relation_map import parse_map_file
from spillway.catalog.tuple_store import Storage
from spillway.errors import SourceError, SystemIdMismatch, UnknownDatabase
from spillway.pg.encoding import server_encoding, server_encoding_name
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from spillway.catalog.descriptor_registry import DescriptorRegistry
    from spillway.pg.versions import WalVersion
    from spillway.wal.reader import WalDirectory

_PG_ATTRIBUTE_OID: Final = 1249
_TEMPLATE1: Final = "base/1"
_DEFAULT_TABLESPACE: Final = 1663
_SEGMENT_SIZE: Final = 1 << 30

# pg_multixact: 4-byte offsets; members in groups of four, 4 bytes of states and then 4 xids.
_SLRU_SEGMENT_PAGES: Final = 32
_OFFSETS_PER_PAGE: Final = PAGE_SIZE // 4
_GROUP_SIZE: Final = 20
_GROUPS_PER_PAGE: Final = PAGE_SIZE // _GROUP_SIZE
_MEMBERS_PER_GROUP: Final = 4
#: MultiXactStatusNoKeyUpdate: this one and what is above update
_STATUS_UPDATES: Final = 4
_MULTIXACTS: Final = 1 << 32


class PgDatabase(NamedTuple):
    """pg_database."""

    oid: int
    datname: str
    encoding: int
    dattablespace: int


_PG_DATABASE: Final = TrackedCatalog(1262, "pg_database", PgDatabase, ())


def bootstrap_files(
    data_directory: Path,
    database: str,
    wal: WalDirectory,
    *,
    registry: DescriptorRegistry | None = None,
) -> Bootstrap:
    """Read the catalogs of *database* from *data_directory*; *wal* is of the same cluster.

    The result is as ``bootstrap_sql``'s. The server must not run. Nothing is written.

    Raises:
        SourceError: the directory is none of a server, its server runs, or a file of it is damaged.
        SystemIdMismatch: *wal* is of another cluster.
        UnknownDatabase: there is no such database.
        UnsupportedWal: the major is not supported.
        WalGap: *wal* has not the checkpoint that a backup began with.
    """
    files = _DirectoryFiles(data_directory)
    version = _version(files)
    files.check_stopped()
    control = read_control_file(files)
    if control.system_id != wal.system_id:
        raise SystemIdMismatch(
            f"{data_directory} is of cluster {control.system_id}, the WAL in {wal.path} of "
            f"{wal.system_id}",
            hint="Give WAL and data directory of the same cluster.",
        )
    begin = read_backup_label(files, wal) or control
    try:
        return _Reader(files, version, control, begin).read(database, registry)
    except ValueError as error:
        raise SourceError(
            f"a catalog's file in {data_directory} contradicts itself: {error}",
            hint="The copy is damaged; PostgreSQL could not use it either. Copy it again.",
        ) from error


class _DirectoryFiles:
    """A data directory; see :class:`~spillway.catalog.raw_storage.ServerFiles`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str, offset: int, size: int) -> bytes:
        try:
            with (self.root / path).open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise SourceError(
                f"{self.root / path} can't be read: {error.strerror}",
                hint="Run the command as a user who may read the data directory.",
            ) from error

    def pages(self, path: str) -> dict[int, bytes]:
        pages: dict[int, bytes] = {}
        segment = 0
        while content := self.read(f"{path}.{segment}" if segment else path, 0, _SEGMENT_SIZE):
            first = segment * (_SEGMENT_SIZE // PAGE_SIZE)
            for at in range(0, len(content) - PAGE_SIZE + 1, PAGE_SIZE):
                pages[first + at // PAGE_SIZE] = content[at : at + PAGE_SIZE]
            if len(content) < _SEGMENT_SIZE:
                break
            segment += 1
        return pages

    def check_stopped(self) -> None:
        """Raise SourceError when a server works in the directory."""
        lines = self.read("postmaster.pid", 0, 1 << 12).split()
        if not lines or not lines[0].isdigit():
            return
        try:
            os.kill(int(lines[0]), 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass
        raise SourceError(
            f"a server runs in {self.root}: its files change while they are read",
            hint="Give a base backup or a stopped server's directory, or the server's own --dsn.",
            pid=int(lines[0]),
        )


def _version(files: _DirectoryFiles) -> WalVersion:
    major = files.read("PG_VERSION", 0, 64).strip()
    if not major.isdigit():
        raise SourceError(
            f"{files.root} is no data directory of PostgreSQL: it has no PG_VERSION",
            hint="Give the directory that holds PG_VERSION, base and global.",
        )
    return version_of_server(int(major) * 10000)


class _Reader:
    """One bootstrap."""

    def __init__(
        self,
        files: _DirectoryFiles,
        version: WalVersion,
        control: ControlFile,
        begin: ControlFile,
    ) -> None:
        self._files = files
        self._version = version
        self._control = control
        self._begin = begin
        self._transactions = Transactions(files, begin.checkpoint)

    def read(self, database: str, registry: DescriptorRegistry | None) -> Bootstrap:
        row = self._find_database(database)
        directory = self._database_directory(row)
        codec = server_encoding(server_encoding_name(row.encoding))
        facts = DatabaseFacts(
            self._version.major, row.oid, row.dattablespace, codec.codec, codec.errors
        )
        catalogs = catalogs_of(facts.major)
        columns = self._columns(directory, {catalog.oid for catalog in catalogs})
        layouts = {
            c.oid: CatalogLayout(c, columns[c.oid], facts.encoding, facts.encoding_errors)
            for c in catalogs
        }
        checkpoint = self._begin.checkpoint
        heaps = CatalogHeaps(facts, layouts, horizon=checkpoint.next_xid & 0xFFFFFFFF)
        relation_map = self._map(directory)
        heaps.locations.relation_map = relation_map
        for oid, (locator, path) in self._locations(
            directory, layouts, relation_map, facts
        ).items():
            storage = heaps.locations.add(locator, oid, complete=True)
            heaps.locations.current[oid] = storage
            tuples = read_storage(self._files, path, storage, torn_pages=True)
            admit(heaps, tuples, self._transactions, self._updater)
        newest = max(
            page.lsn for s in heaps.locations.storages.values() for page in s.pages.values()
        )
        consistent_lsn = max(newest, int(checkpoint.redo_lsn))
        return Bootstrap(
            mirror=CatalogMirror(heaps, consistent_lsn=consistent_lsn, registry=registry),
            redo_lsn=checkpoint.redo_lsn,
            consistent_lsn=Lsn(consistent_lsn),
            timeline_id=checkpoint.timeline_id,
            system_id=self._control.system_id,
            server_version=self._version.major * 10000,
            snapshot_xmin=checkpoint.oldest_active_xid or checkpoint.next_xid,
            snapshot_xmax=checkpoint.next_xid,
        )

    # ---- where things are

    def _find_database(self, name: str) -> PgDatabase:
        columns = self._columns(_TEMPLATE1, {_PG_DATABASE.oid})
        layout = CatalogLayout(_PG_DATABASE, columns[_PG_DATABASE.oid], "utf-8", "surrogateescape")
        path = f"global/{self._map('global')[_PG_DATABASE.oid]}"
        rows: list[PgDatabase] = self._visible(path, layout)
        for row in rows:
            if row.datname == name:
                return row
        raise UnknownDatabase(
            f'the cluster has no database "{name}"',
            hint=f"It has {', '.join(sorted(row.datname for row in rows))}; one that was created "
            "after the copy's checkpoint is in WAL only.",
            database=name,
        )

    def _database_directory(self, row: PgDatabase) -> str:
        if row.dattablespace == _DEFAULT_TABLESPACE:
            return f"base/{row.oid}"
        version = f"PG_{self._version.major}_{self._control.catalog_version}"
        return f"pg_tblspc/{row.dattablespace}/{version}/{row.oid}"

    def _map(self, directory: str) -> dict[int, int]:
        content = self._files.read(f"{directory}/pg_filenode.map", 0, PAGE_SIZE)
        if not content:
            raise SourceError(
                f"{self._files.root / directory}/pg_filenode.map is not there",
                hint="The copy lacks a database's directory, or a tablespace's: copy it as a "
                "whole.",
            )
        return parse_map_file(content, self._version)

    def _columns(
        self, directory: str, relations: Collection[int]
    ) -> dict[int, list[PhysicalColumn]]:
        """Read how *relations* are laid out from the pg_attribute in *directory*."""
        kinds = {
            "attrelid": heap.OID, "attname": heap.NAME, "atttypid": heap.OID, "attlen": heap.INT2,
            "attnum": heap.INT2, "attalign": heap.CHAR,
        }  # fmt: skip
        deformer = heap.Deformer(
            [
                (size, align, kinds.get(name, heap.SKIP))
                for name, size, align in self._version.pg_attribute
            ],
            "utf-8",
            "surrogateescape",
        )
        found: dict[int, dict[int, PhysicalColumn]] = {oid: {} for oid in relations}
        path = f"{directory}/{self._map(directory)[_PG_ATTRIBUTE_OID]}"
        for page in self._files.pages(path).values():
            for _, _, _, infomask2, infomask, hoff, data in heap.parse_page(page):
                if infomask & HEAP_XMIN_FROZEN == HEAP_XMIN_INVALID:
                    continue
                relation, name, type_oid, length, number, align = deformer.deform(
                    infomask2, infomask, hoff, data
                )
                if relation in found and number > 0:
                    found[relation][number] = PhysicalColumn(name, type_oid, length, align)
        for oid, columns in found.items():
            if sorted(columns) != list(range(1, len(columns) + 1)) or not columns:
                raise ValueError(f"pg_attribute lacks columns of catalog {oid}")
        return {oid: [columns[n] for n in sorted(columns)] for oid, columns in found.items()}

    def _locations(
        self,
        directory: str,
        layouts: dict[int, CatalogLayout],
        relation_map: dict[int, int],
        facts: DatabaseFacts,
    ) -> dict[int, tuple[RelFileLocator, str]]:
        """Return the locator and the path of each catalog."""
        path = f"{directory}/{relation_map[PG_CLASS.oid]}"
        rows = self._visible(path, layouts[PG_CLASS.oid])
        locations: dict[int, tuple[RelFileLocator, str]] = {}
        for row in rows:
            if row.relrewrite in layouts:
                raise SourceError(
                    f"a VACUUM FULL or CLUSTER of the catalog {row.relrewrite} ran when the "
                    "directory was copied",
                    hint="Give another copy.",
                )
            if row.oid not in layouts:
                continue
            if row.reltablespace == GLOBAL_TABLESPACE:
                number = row.relfilenode or self._map("global")[row.oid]
                locator = RelFileLocator(GLOBAL_TABLESPACE, 0, number)
                locations[row.oid] = locator, f"global/{number}"
            else:
                number = row.relfilenode or relation_map[row.oid]
                locator = RelFileLocator(facts.default_tablespace, facts.database_oid, number)
                locations[row.oid] = locator, f"{directory}/{number}"
        if missing := layouts.keys() - locations.keys():
            raise ValueError(f"pg_class lacks the catalogs {sorted(missing)}")
        return locations

    def _visible(self, path: str, layout: CatalogLayout) -> list[Any]:
        """Return the rows of a catalog that are there as far as files tell, WAL aside."""
        storage = Storage(layout, RelFileLocator(0, 0, 0), complete=True)
        rows = []
        for tup in read_storage(self._files, path, storage, torn_pages=True):
            judge(tup, self._transactions, self._updater)
            if not tup.dead and not tup.xmin_pending:
                rows.append(tup.row)
        return rows

    # ---- multixacts

    def _updater(self, multixact: int) -> int:
        """The member of a multixact that updates, 0 without one or when it is not on disk."""
        begin, end = self._offset(multixact), self._offset((multixact + 1) % _MULTIXACTS or 1)
        for member in range(begin, end if begin and end > begin else begin):
            group, within = divmod(member, _MEMBERS_PER_GROUP)
            page, at = divmod(group, _GROUPS_PER_PAGE)
            content = self._slru("pg_multixact/members", page, at * _GROUP_SIZE, _GROUP_SIZE)
            if len(content) == _GROUP_SIZE and content[within] >= _STATUS_UPDATES:
                return int.from_bytes(content[4 + 4 * within : 8 + 4 * within], "little")
        return 0

    def _offset(self, multixact: int) -> int:
        if multixact == self._begin.next_multixact:
            return self._begin.next_multixact_offset
        page, at = divmod(multixact, _OFFSETS_PER_PAGE)
        return int.from_bytes(self._slru("pg_multixact/offsets", page, 4 * at, 4), "little")

    def _slru(self, directory: str, page: int, at: int, size: int) -> bytes:
        segment, within = divmod(page, _SLRU_SEGMENT_PAGES)
        return self._files.read(f"{directory}/{segment:04X}", within * PAGE_SIZE + at, size)
