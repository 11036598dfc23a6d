"""Resource managers and the info codes of their records, named as PostgreSQL names them.

``rmid`` says whose record it is, ``info & 0xF0`` which of that resource manager's. These ids and
codes are the same in PostgreSQL 14 to 18; where the *meaning* of a code moved (heap2's 0x10 to
0x30), or a code exists from some version on only, ``pg/versions.py`` says so.

Source: src/include/access/rmgrlist.h, heapam_xlog.h, xact.h, xlog.h (catalog/pg_control.h),
storage/standbydefs.h, catalog/storage_xlog.h, utils/relmapper.h, access/multixact.h,
replication/message.h, replication/origin.h
"""

from __future__ import annotations

from typing import Final

RM_XLOG_ID: Final = 0
RM_XACT_ID: Final = 1
RM_SMGR_ID: Final = 2
RM_CLOG_ID: Final = 3
RM_DBASE_ID: Final = 4
RM_TBLSPC_ID: Final = 5
RM_MULTIXACT_ID: Final = 6
RM_RELMAP_ID: Final = 7
RM_STANDBY_ID: Final = 8
RM_HEAP2_ID: Final = 9
RM_HEAP_ID: Final = 10
RM_BTREE_ID: Final = 11
RM_HASH_ID: Final = 12
RM_GIN_ID: Final = 13
RM_GIST_ID: Final = 14
RM_SEQ_ID: Final = 15
RM_SPGIST_ID: Final = 16
RM_BRIN_ID: Final = 17
RM_COMMIT_TS_ID: Final = 18
RM_REPLORIGIN_ID: Final = 19
RM_GENERIC_ID: Final = 20
RM_LOGICALMSG_ID: Final = 21

#: Built-in resource managers by id, under the names that pg_waldump prints.
RMGR_NAMES: Final = (
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
)
RM_MAX_BUILTIN_ID: Final = len(RMGR_NAMES) - 1
#: Ids from here on belong to extensions (custom resource managers, PostgreSQL 15+).
RM_MIN_CUSTOM_ID: Final = 128

#: xl_info bits that WAL insertion keeps for itself.
XLR_INFO_MASK: Final = 0x0F
#: xl_info bits that belong to the resource manager.
XLR_RMGR_INFO_MASK: Final = 0xF0
XLR_SPECIAL_REL_UPDATE: Final = 0x01
XLR_CHECK_CONSISTENCY: Final = 0x02

# RM_XLOG_ID
XLOG_CHECKPOINT_SHUTDOWN: Final = 0x00
XLOG_CHECKPOINT_ONLINE: Final = 0x10
XLOG_NOOP: Final = 0x20
XLOG_NEXTOID: Final = 0x30
XLOG_SWITCH: Final = 0x40
XLOG_BACKUP_END: Final = 0x50
XLOG_PARAMETER_CHANGE: Final = 0x60
XLOG_RESTORE_POINT: Final = 0x70
XLOG_FPW_CHANGE: Final = 0x80
XLOG_END_OF_RECOVERY: Final = 0x90
XLOG_FPI_FOR_HINT: Final = 0xA0
XLOG_FPI: Final = 0xB0
XLOG_OVERWRITE_CONTRECORD: Final = 0xD0
#: PostgreSQL 17+
XLOG_CHECKPOINT_REDO: Final = 0xE0

# RM_XACT_ID: three bits of opcode, and one that says xl_xact_xinfo follows.
XLOG_XACT_COMMIT: Final = 0x00
XLOG_XACT_PREPARE: Final = 0x10
XLOG_XACT_ABORT: Final = 0x20
XLOG_XACT_COMMIT_PREPARED: Final = 0x30
XLOG_XACT_ABORT_PREPARED: Final = 0x40
XLOG_XACT_ASSIGNMENT: Final = 0x50
XLOG_XACT_INVALIDATIONS: Final = 0x60
XLOG_XACT_OPMASK: Final = 0x70
XLOG_XACT_HAS_INFO: Final = 0x80

# xl_xact_xinfo.xinfo, in the order in which their parts follow (gid and origin come last).
XACT_XINFO_HAS_DBINFO: Final = 1 << 0
XACT_XINFO_HAS_SUBXACTS: Final = 1 << 1
XACT_XINFO_HAS_RELFILELOCATORS: Final = 1 << 2
XACT_XINFO_HAS_INVALS: Final = 1 << 3
XACT_XINFO_HAS_TWOPHASE: Final = 1 << 4
XACT_XINFO_HAS_ORIGIN: Final = 1 << 5
XACT_XINFO_HAS_AE_LOCKS: Final = 1 << 6
XACT_XINFO_HAS_GID: Final = 1 << 7
#: PostgreSQL 15+; stands between the relfilelocators and the invalidations
XACT_XINFO_HAS_DROPPED_STATS: Final = 1 << 8

# RM_SMGR_ID
XLOG_SMGR_CREATE: Final = 0x10
XLOG_SMGR_TRUNCATE: Final = 0x20

# RM_DBASE_ID. 14 has one CREATE, at 0x00; 15 split it and moved DROP, see pg/versions.py.

# RM_MULTIXACT_ID
XLOG_MULTIXACT_ZERO_OFF_PAGE: Final = 0x00
XLOG_MULTIXACT_ZERO_MEM_PAGE: Final = 0x10
XLOG_MULTIXACT_CREATE_ID: Final = 0x20
XLOG_MULTIXACT_TRUNCATE_ID: Final = 0x30

# RM_RELMAP_ID
XLOG_RELMAP_UPDATE: Final = 0x00

# RM_STANDBY_ID
XLOG_STANDBY_LOCK: Final = 0x00
XLOG_RUNNING_XACTS: Final = 0x10
XLOG_INVALIDATIONS: Final = 0x20

# RM_HEAP_ID: three bits of opcode, and one that says the page is initialised.
XLOG_HEAP_INSERT: Final = 0x00
XLOG_HEAP_DELETE: Final = 0x10
XLOG_HEAP_UPDATE: Final = 0x20
XLOG_HEAP_TRUNCATE: Final = 0x30
XLOG_HEAP_HOT_UPDATE: Final = 0x40
XLOG_HEAP_CONFIRM: Final = 0x50
XLOG_HEAP_LOCK: Final = 0x60
XLOG_HEAP_INPLACE: Final = 0x70
XLOG_HEAP_OPMASK: Final = 0x70
XLOG_HEAP_INIT_PAGE: Final = 0x80

# RM_HEAP2_ID. 0x10 to 0x30 are prune, vacuum and freeze records of their own up to 16, one family
# of prune records from 17 on: WalVersion.prune_family.
XLOG_HEAP2_REWRITE: Final = 0x00
XLOG_HEAP2_PRUNE: Final = 0x10
XLOG_HEAP2_VACUUM: Final = 0x20
XLOG_HEAP2_FREEZE_PAGE: Final = 0x30
XLOG_HEAP2_PRUNE_ON_ACCESS: Final = 0x10
XLOG_HEAP2_PRUNE_VACUUM_SCAN: Final = 0x20
XLOG_HEAP2_PRUNE_VACUUM_CLEANUP: Final = 0x30
XLOG_HEAP2_VISIBLE: Final = 0x40
XLOG_HEAP2_MULTI_INSERT: Final = 0x50
XLOG_HEAP2_LOCK_UPDATED: Final = 0x60
XLOG_HEAP2_NEW_CID: Final = 0x70

# RM_REPLORIGIN_ID
XLOG_REPLORIGIN_SET: Final = 0x00
XLOG_REPLORIGIN_DROP: Final = 0x10

# RM_LOGICALMSG_ID
XLOG_LOGICAL_MESSAGE: Final = 0x00

# xl_heap_insert.flags, xl_heap_multi_insert.flags
XLH_INSERT_ALL_VISIBLE_CLEARED: Final = 1 << 0
XLH_INSERT_LAST_IN_MULTI: Final = 1 << 1
XLH_INSERT_IS_SPECULATIVE: Final = 1 << 2
XLH_INSERT_CONTAINS_NEW_TUPLE: Final = 1 << 3
XLH_INSERT_ON_TOAST_RELATION: Final = 1 << 4
XLH_INSERT_ALL_FROZEN_SET: Final = 1 << 5

# xl_heap_update.flags
XLH_UPDATE_OLD_ALL_VISIBLE_CLEARED: Final = 1 << 0
XLH_UPDATE_NEW_ALL_VISIBLE_CLEARED: Final = 1 << 1
XLH_UPDATE_CONTAINS_OLD_TUPLE: Final = 1 << 2
XLH_UPDATE_CONTAINS_OLD_KEY: Final = 1 << 3
XLH_UPDATE_CONTAINS_NEW_TUPLE: Final = 1 << 4
XLH_UPDATE_PREFIX_FROM_OLD: Final = 1 << 5
XLH_UPDATE_SUFFIX_FROM_OLD: Final = 1 << 6

# xl_heap_delete.flags
XLH_DELETE_ALL_VISIBLE_CLEARED: Final = 1 << 0
XLH_DELETE_CONTAINS_OLD_TUPLE: Final = 1 << 1
XLH_DELETE_CONTAINS_OLD_KEY: Final = 1 << 2
XLH_DELETE_IS_SUPER: Final = 1 << 3
XLH_DELETE_IS_PARTITION_MOVE: Final = 1 << 4

# xl_heap_truncate.flags
XLH_TRUNCATE_CASCADE: Final = 1 << 0
XLH_TRUNCATE_RESTART_SEQS: Final = 1 << 1

# infobits_set of xl_heap_delete, xl_heap_update, xl_heap_lock, xl_heap_lock_updated
XLHL_XMAX_IS_MULTI: Final = 0x01
XLHL_XMAX_LOCK_ONLY: Final = 0x02
XLHL_XMAX_EXCL_LOCK: Final = 0x04
XLHL_XMAX_KEYSHR_LOCK: Final = 0x08
XLHL_KEYS_UPDATED: Final = 0x10

# xl_smgr_truncate.flags
SMGR_TRUNCATE_HEAP: Final = 0x0001
SMGR_TRUNCATE_VM: Final = 0x0002
SMGR_TRUNCATE_FSM: Final = 0x0004


def rmgr_name(rmid: int) -> str:
    """Return the name that pg_waldump prints for *rmid*: ``custom128`` for an extension's."""
    if rmid <= RM_MAX_BUILTIN_ID:
        return RMGR_NAMES[rmid]
    return f"custom{rmid:03d}" if rmid >= RM_MIN_CUSTOM_ID else f"unknown{rmid:03d}"
