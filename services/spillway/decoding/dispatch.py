"""Which records mean what to logical decoding: every resource manager, every info code, 14 to 18.

Like PostgreSQL's decode.c, this only dispatches. The reorder kernel reads the table made here, one
byte for each (resource manager, info code), and handles the hot records itself; others stop it and
go to the decoder's handlers. What is ignored is listed too, so that a code which is not listed
means WAL that we do not know: that raises, with the LSN, rather than lose something.

Two things happen to records whatever the table says (see ``_kernels/reorder/buffer.pyx``): a record
of a tracked catalog goes to the mirror, and a record with an xid gives its transaction an entry,
except those with an action named ``*_XACT``.

Source: src/backend/replication/logical/decode.c; rmgrlist.h for resource managers without an
rm_decode
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from spillway.pg import rmgr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.pg.versions import WalVersion

#: Size of the table: 256 resource managers, 16 info codes each.
TABLE_SIZE: Final = 256 * 16
_ALL_INFO: Final = tuple(range(0x00, 0x100, 0x10))


class Action(IntEnum):
    """What is done with a record; the numbers are the kernel's."""

    #: never written by a version that we know
    UNKNOWN = 0
    #: nothing but what happens to every record
    IGNORE = 1
    #: like IGNORE, but the xid gets no entry
    IGNORE_XACT = 2
    #: stop, a handler of the decoder takes it
    PYTHON = 3
    #: like PYTHON, but the xid gets no entry: a transaction without one has nothing to decode
    PYTHON_XACT = 4
    INSERT = 5
    MULTI_INSERT = 6
    UPDATE = 7
    DELETE = 8
    CONFIRM = 9
    TRUNCATE = 10
    #: only marks the transaction, as one with a base snapshot and catalog changes
    INPLACE = 11
    #: these two only mark the transaction as one with catalog changes
    NEW_CID = 12
    INVALIDATIONS = 13
    MESSAGE = 14


#: Resource managers of indexes, caches and the like: nothing in them concerns decoding.
_WITHOUT_DECODING: Final = (
    rmgr.RM_CLOG_ID,
    rmgr.RM_TBLSPC_ID,
    rmgr.RM_BTREE_ID,
    rmgr.RM_HASH_ID,
    rmgr.RM_GIN_ID,
    rmgr.RM_GIST_ID,
    rmgr.RM_SEQ_ID,
    rmgr.RM_SPGIST_ID,
    rmgr.RM_BRIN_ID,
    rmgr.RM_COMMIT_TS_ID,
    rmgr.RM_REPLORIGIN_ID,
    rmgr.RM_GENERIC_ID,
)

_XLOG: Final = {
    # a bootstrap begins at the last one's redo point
    rmgr.XLOG_CHECKPOINT_SHUTDOWN: Action.PYTHON,
    rmgr.XLOG_CHECKPOINT_ONLINE: Action.PYTHON,
    rmgr.XLOG_NOOP: Action.IGNORE,
    rmgr.XLOG_NEXTOID: Action.IGNORE,
    rmgr.XLOG_SWITCH: Action.IGNORE,
    rmgr.XLOG_BACKUP_END: Action.IGNORE,
    # wal_level may have been lowered
    rmgr.XLOG_PARAMETER_CHANGE: Action.PYTHON,
    rmgr.XLOG_RESTORE_POINT: Action.IGNORE,
    rmgr.XLOG_FPW_CHANGE: Action.IGNORE,
    rmgr.XLOG_END_OF_RECOVERY: Action.IGNORE,
    # images of catalog pages go to the mirror because their relfile is tracked
    rmgr.XLOG_FPI_FOR_HINT: Action.IGNORE,
    rmgr.XLOG_FPI: Action.IGNORE,
    rmgr.XLOG_OVERWRITE_CONTRECORD: Action.IGNORE,
}

_XACT: Final = {
    rmgr.XLOG_XACT_COMMIT: Action.PYTHON_XACT,
    rmgr.XLOG_XACT_PREPARE: Action.PYTHON_XACT,
    rmgr.XLOG_XACT_ABORT: Action.PYTHON_XACT,
    rmgr.XLOG_XACT_COMMIT_PREPARED: Action.PYTHON_XACT,
    rmgr.XLOG_XACT_ABORT_PREPARED: Action.PYTHON_XACT,
    # subtransactions are known from block id 252 of their first record
    rmgr.XLOG_XACT_ASSIGNMENT: Action.IGNORE_XACT,
    rmgr.XLOG_XACT_INVALIDATIONS: Action.INVALIDATIONS,
}

_SMGR: Final = {
    # another database may be rewriting a shared catalog
    rmgr.XLOG_SMGR_CREATE: Action.PYTHON,
    rmgr.XLOG_SMGR_TRUNCATE: Action.PYTHON,
}

_MULTIXACT: Final = {
    rmgr.XLOG_MULTIXACT_ZERO_OFF_PAGE: Action.IGNORE,
    rmgr.XLOG_MULTIXACT_ZERO_MEM_PAGE: Action.IGNORE,
    # a catalog row's xmax may be one
    rmgr.XLOG_MULTIXACT_CREATE_ID: Action.PYTHON,
    rmgr.XLOG_MULTIXACT_TRUNCATE_ID: Action.IGNORE,
}

_RELMAP: Final = {rmgr.XLOG_RELMAP_UPDATE: Action.PYTHON}

_STANDBY: Final = {
    rmgr.XLOG_STANDBY_LOCK: Action.IGNORE,
    rmgr.XLOG_RUNNING_XACTS: Action.PYTHON,
    rmgr.XLOG_INVALIDATIONS: Action.IGNORE,
}

_HEAP2: Final = {
    rmgr.XLOG_HEAP2_REWRITE: Action.IGNORE,
    # prune, vacuum and freeze under their names of before and from 17 on
    rmgr.XLOG_HEAP2_PRUNE: Action.IGNORE,
    rmgr.XLOG_HEAP2_VACUUM: Action.IGNORE,
    rmgr.XLOG_HEAP2_FREEZE_PAGE: Action.IGNORE,
    rmgr.XLOG_HEAP2_VISIBLE: Action.IGNORE,
    rmgr.XLOG_HEAP2_MULTI_INSERT: Action.MULTI_INSERT,
    rmgr.XLOG_HEAP2_LOCK_UPDATED: Action.IGNORE,
    rmgr.XLOG_HEAP2_NEW_CID: Action.NEW_CID,
}

_HEAP: Final = {
    rmgr.XLOG_HEAP_INSERT: Action.INSERT,
    rmgr.XLOG_HEAP_DELETE: Action.DELETE,
    rmgr.XLOG_HEAP_UPDATE: Action.UPDATE,
    rmgr.XLOG_HEAP_TRUNCATE: Action.TRUNCATE,
    rmgr.XLOG_HEAP_HOT_UPDATE: Action.UPDATE,
    rmgr.XLOG_HEAP_CONFIRM: Action.CONFIRM,
    rmgr.XLOG_HEAP_LOCK: Action.IGNORE,
}

_LOGICALMSG: Final = {rmgr.XLOG_LOGICAL_MESSAGE: Action.MESSAGE}


def _entries(version: WalVersion) -> Iterator[tuple[int, int, Action]]:
    """Yield (rmid, info, action) of everything that *version* can write."""
    for rmid in _WITHOUT_DECODING:
        for info in _ALL_INFO:
            yield rmid, info, Action.IGNORE
    if version.custom_rmgrs:
        # An extension's records: table storage of its own can't be decoded without its code.
        for rmid in range(rmgr.RM_MIN_CUSTOM_ID, 256):
            for info in _ALL_INFO:
                yield rmid, info, Action.IGNORE
    for rmid, table in (
        (rmgr.RM_XLOG_ID, _XLOG),
        (rmgr.RM_SMGR_ID, _SMGR),
        (rmgr.RM_MULTIXACT_ID, _MULTIXACT),
        (rmgr.RM_RELMAP_ID, _RELMAP),
        (rmgr.RM_STANDBY_ID, _STANDBY),
        (rmgr.RM_LOGICALMSG_ID, _LOGICALMSG),
    ):
        for info, action in table.items():
            yield rmid, info, action
    # the decoded database may move to another tablespace, or go
    yield rmgr.RM_DBASE_ID, version.dbase_create_file_copy, Action.PYTHON
    yield rmgr.RM_DBASE_ID, version.dbase_drop, Action.PYTHON
    if version.dbase_create_wal_log is not None:
        yield rmgr.RM_DBASE_ID, version.dbase_create_wal_log, Action.IGNORE
    if version.checkpoint_redo:
        yield rmgr.RM_XLOG_ID, rmgr.XLOG_CHECKPOINT_REDO, Action.IGNORE
    inplace = Action.INPLACE if version.inplace_marks_transaction else Action.IGNORE
    # The highest bit is a flag beside the code: extra info follows, the page is initialised.
    for rmid, table, flag in (
        (rmgr.RM_XACT_ID, _XACT, rmgr.XLOG_XACT_HAS_INFO),
        (rmgr.RM_HEAP2_ID, _HEAP2, rmgr.XLOG_HEAP_INIT_PAGE),
        (rmgr.RM_HEAP_ID, _HEAP | {rmgr.XLOG_HEAP_INPLACE: inplace}, rmgr.XLOG_HEAP_INIT_PAGE),
    ):
        for info, action in table.items():
            yield rmid, info, action
            yield rmid, info | flag, action


def action_table(version: WalVersion) -> bytes:
    """Return the kernel's table for *version*: ``table[rmid * 16 + info // 16]`` is an
    :class:`Action`.
    """
    table = bytearray(TABLE_SIZE)
    for rmid, info, action in _entries(version):
        table[rmid * 16 + info // 16] = action
    return bytes(table)
