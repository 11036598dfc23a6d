"""What becomes of the decoded database itself: moved to another tablespace, or dropped.

ALTER DATABASE SET TABLESPACE copies every file of the database, while nobody is connected to it. In
WAL::

    XLOG_DBASE_CREATE_FILE_COPY   the database, from itself, into the new tablespace: the copy is
                                  there
    (commit)                      of a change to pg_database, a shared catalog that is not mirrored
    XLOG_DBASE_DROP               the files in the old tablespace are gone; without an xid

Not a record of the database itself comes between, unless the server crashes there: recovery then
goes on in the new tablespace without the last record, or, if the commit is missing too, in the old
one. So from the copy on storage answers to both names, and the first record that uses one of them,
or the drop, decides.

DROP DATABASE writes XLOG_DBASE_DROP too, inside the transaction that removed the row from
pg_database, so with an xid. Nothing of the database can come after it.

Source: createdb, movedb, dropdb, remove_dbtablespaces in src/backend/commands/dbcommands.c;
dbcommands_xlog.h
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spillway.errors import DatabaseDropped
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from spillway.catalog.heaps import CatalogHeaps
    from spillway.wal.record import Record

#: db_id, tablespace_id, src_db_id, src_tablespace_id
_CREATE_FILE_COPY: Final = struct.Struct("<IIII")
#: db_id, ntablespaces; then as many oids
_DROP: Final = struct.Struct("<Ii")


def redo(heaps: CatalogHeaps, record: Record) -> None:
    """Take a record of the resource manager Database.

    Raises:
        ValueError: the record contradicts itself.
        DatabaseDropped: it drops the decoded database.
    """
    info = record.info & rmgr.XLR_RMGR_INFO_MASK
    if info == heaps.version.dbase_create_file_copy:
        _file_copy(heaps, record.data)
    elif info == heaps.version.dbase_drop:
        _drop(heaps, record)
    # Copied page by page, a new database's catalogs are of no concern to this one.


def _file_copy(heaps: CatalogHeaps, data: bytes) -> None:
    if len(data) < _CREATE_FILE_COPY.size:
        raise ValueError("a record that copies a database is cut short")
    database, tablespace, source, _ = _CREATE_FILE_COPY.unpack_from(data)
    if database == source == heaps.facts.database_oid:
        heaps.locations.copy_to(tablespace)


def _drop(heaps: CatalogHeaps, record: Record) -> None:
    if len(record.data) < _DROP.size:
        raise ValueError("a record that drops a database is cut short")
    database, count = _DROP.unpack_from(record.data)
    if count < 0 or len(record.data) < _DROP.size + 4 * count:
        raise ValueError(f"a record that drops a database names {count} tablespaces")
    if database != heaps.facts.database_oid:
        return
    tablespaces = struct.unpack_from(f"<{count}I", record.data, _DROP.size)
    if record.xid:
        raise DatabaseDropped(
            f"the database with oid {database} was dropped at {Lsn(record.lsn)}",
            hint="Its slots keep what was decoded before; read that, then drop them. A database "
            "that was made again under the same name is another one.",
            lsn=str(Lsn(record.lsn)),
            datoid=database,
        )
    # Files in one of two places are gone: the database is in the other.
    locations = heaps.locations
    for gone, kept in (
        (locations.default_tablespace, locations.copied_to),
        (locations.copied_to, locations.default_tablespace),
    ):
        if gone in tablespaces and locations.copied_to:
            heaps.settle(RelFileLocator(kept, database, 0))
