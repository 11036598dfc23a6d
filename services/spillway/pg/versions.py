"""What differs between PostgreSQL's major versions: in WAL and in output, one table each.

Nothing else in Spillway asks for a version number to read WAL. A :class:`WalVersion` is chosen by
the server's version or by a page's magic when a source or a directory is opened, and handed down;
code reads a field that says *what* is different, so that a new major is a new row here and, where
its format is new, the code that a new field asks for.

What plugins and types print is compared with a member of :class:`Since`, which says what came with
which major; rules that came with minor releases have a function each, at the end.
docs/explanation/majors.md lists all of them, with PostgreSQL's function, ours and the test of each.
A test of the architecture forbids comparisons of versions with numbers elsewhere.

Not in the table because 14 to 18 agree: page and record headers, block headers other than image
bits, heap tuple headers, xl_heap_insert/update/delete/multi_insert/lock, xl_running_xacts, SMGR and
multixact records, xl_xact_xinfo bits (but for the one from 15 on), resource manager ids.

Source: src/include/access/{xlog_internal,xlogrecord,heapam_xlog,xact}.h,
src/backend/utils/cache/{relmapper,syscache}.c, src/backend/replication/pgoutput/pgoutput.c of the
release branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spillway.errors import UnsupportedWal
from spillway.pg.rmgr import RM_MAX_BUILTIN_ID, RM_MIN_CUSTOM_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where a magic begins that is at least one of PostgreSQL's.
_MAGIC_HIGH_BYTE: Final = 0xD1


@dataclass(frozen=True, slots=True)
class WalVersion:
    """The WAL format of one PostgreSQL major."""

    major: int
    #: xlp_magic: XLOG_PAGE_MAGIC
    page_magic: int
    #: highest xl_tot_len that the server writes (XLogRecordMaxSize; MaxAllocSize before 16)
    record_size_max: int

    # Block images: bits of bimg_info. BKPIMAGE_HAS_HOLE is 0x01 in all.
    image_apply: int
    image_pglz: int
    image_lz4: int
    image_zstd: int

    #: resource manager ids of extensions may occur (RM_MIN_CUSTOM_ID and up)
    custom_rmgrs: bool

    # Heap2, info 0x10 to 0x30.
    #: one family of XLOG_HEAP2_PRUNE_* records with XLHP_* sub-records, instead of PRUNE, VACUUM
    #: and FREEZE_PAGE records each with a layout of its own
    prune_family: bool
    #: FREEZE_PAGE holds plans (12 bytes: xmax, infomask2, infomask, frzflags, ntuples) and then
    #: offsets; else one 12-byte xl_heap_freeze_tuple (xmax, offset, infomask2, infomask, frzflags)
    #: a tuple
    freeze_plans: bool

    #: an XLOG_HEAP_INPLACE with an xid gives its transaction a base snapshot and catalog changes
    inplace_marks_transaction: bool

    #: size of pg_filenode.map, and of the data of an XLOG_RELMAP_UPDATE
    relmap_file_size: int
    #: entries that it has room for (MAX_MAPPINGS)
    relmap_entries_max: int

    # Commit and abort records.
    #: sizeof(xl_xact_stats_item) of XACT_XINFO_HAS_DROPPED_STATS; 0: the version has no such part
    dropped_stats_item_size: int

    # Database, info codes.
    #: XLOG_DBASE_CREATE before 15
    dbase_create_file_copy: int
    #: None: the version has no XLOG_DBASE_CREATE_WAL_LOG
    dbase_create_wal_log: int | None
    dbase_drop: int

    #: XLOG_CHECKPOINT_REDO records exist
    checkpoint_redo: bool

    # What can't be read from the catalogs, because it takes it to read them.
    #: name, attlen and attalign of pg_attribute's columns up to attalign
    pg_attribute: tuple[tuple[str, int, str], ...]
    # Which invalidation messages have pgoutput announce tables again.
    #: numbers of the system caches (SysCacheIdentifier) that it watches: PUBLICATIONOID,
    #: PUBLICATIONRELMAP and PUBLICATIONNAMESPACEMAP in 15 to 17, NAMESPACEOID from 16 on
    invalidating_caches: frozenset[int]
    #: the catalogs that those caches are of
    invalidating_catalogs: frozenset[int]
    #: caches that pgoutput reads publications through, by number: PUBLICATIONOID, PUBLICATIONRELMAP
    #: and PUBLICATIONNAMESPACEMAP (15 and later), with the catalog of each
    publication_caches: Mapping[int, int]
    #: a relcache message for all relations counts; before 15 it finds no entry
    relcache_reset_counts: bool

    #: ReorderBufferPrepare calls prepare for a transaction of which nothing is replayed, without
    #: begin_prepare; which releases of the major do not, :func:`skips_empty_prepared` says
    announces_empty_prepare: bool

    def knows_rmgr(self, rmid: int) -> bool:
        """Say whether *rmid* can occur in WAL of this version."""
        return rmid <= RM_MAX_BUILTIN_ID or (self.custom_rmgrs and RM_MIN_CUSTOM_ID <= rmid <= 255)


_PG_ATTRIBUTE_BEGIN: Final[tuple[tuple[str, int, str], ...]] = (
    ("attrelid", 4, "i"),
    ("attname", 64, "c"),
    ("atttypid", 4, "i"),
)
_PG_ATTRIBUTE_14: Final = (
    *_PG_ATTRIBUTE_BEGIN, ("attstattarget", 4, "i"), ("attlen", 2, "s"), ("attnum", 2, "s"),
    ("attndims", 4, "i"),
    ("attcacheoff", 4, "i"), ("atttypmod", 4, "i"), ("attbyval", 1, "c"), ("attalign", 1, "c"),
)  # fmt: skip
_PG_ATTRIBUTE_16: Final = (
    *_PG_ATTRIBUTE_BEGIN, ("attlen", 2, "s"), ("attnum", 2, "s"), ("attcacheoff", 4, "i"),
    ("atttypmod", 4, "i"),
    ("attndims", 2, "s"), ("attbyval", 1, "c"), ("attalign", 1, "c"),
)  # fmt: skip
_PG_ATTRIBUTE_18: Final = tuple(column for column in _PG_ATTRIBUTE_16 if column[0] != "attcacheoff")

_MAX_ALLOC_SIZE: Final = 0x3FFFFFFF
_RECORD_SIZE_MAX: Final = 1020 * 1024 * 1024

_PG14: Final = WalVersion(
    major=14,
    page_magic=0xD10D,
    record_size_max=_MAX_ALLOC_SIZE,
    image_apply=0x04,
    image_pglz=0x02,
    image_lz4=0,
    image_zstd=0,
    custom_rmgrs=False,
    prune_family=False,
    freeze_plans=False,
    inplace_marks_transaction=True,
    relmap_file_size=512,
    relmap_entries_max=62,
    dropped_stats_item_size=0,
    dbase_create_file_copy=0x00,
    dbase_create_wal_log=None,
    dbase_drop=0x10,
    checkpoint_redo=False,
    pg_attribute=_PG_ATTRIBUTE_14,
    invalidating_caches=frozenset(),
    invalidating_catalogs=frozenset(),
    publication_caches=MappingProxyType({45: 6104, 47: 6106}),
    relcache_reset_counts=False,
    announces_empty_prepare=False,
)
_PG15: Final = WalVersion(
    major=15,
    page_magic=0xD110,
    record_size_max=_MAX_ALLOC_SIZE,
    image_apply=0x02,
    image_pglz=0x04,
    image_lz4=0x08,
    image_zstd=0x10,
    custom_rmgrs=True,
    prune_family=False,
    freeze_plans=False,
    inplace_marks_transaction=True,
    relmap_file_size=512,
    relmap_entries_max=62,
    dropped_stats_item_size=12,
    dbase_create_file_copy=0x00,
    dbase_create_wal_log=0x10,
    dbase_drop=0x20,
    checkpoint_redo=False,
    pg_attribute=_PG_ATTRIBUTE_14,
    invalidating_caches=frozenset({48, 49, 51}),
    invalidating_catalogs=frozenset({6104, 6106, 6237}),
    publication_caches=MappingProxyType({49: 6104, 51: 6106, 48: 6237}),
    relcache_reset_counts=True,
    announces_empty_prepare=False,
)
_PG16: Final = WalVersion(
    major=16,
    page_magic=0xD113,
    record_size_max=_RECORD_SIZE_MAX,
    image_apply=0x02,
    image_pglz=0x04,
    image_lz4=0x08,
    image_zstd=0x10,
    custom_rmgrs=True,
    prune_family=False,
    freeze_plans=True,
    inplace_marks_transaction=True,
    relmap_file_size=524,
    relmap_entries_max=64,
    dropped_stats_item_size=12,
    dbase_create_file_copy=0x00,
    dbase_create_wal_log=0x10,
    dbase_drop=0x20,
    checkpoint_redo=False,
    pg_attribute=_PG_ATTRIBUTE_16,
    invalidating_caches=frozenset({36, 48, 49, 51}),
    invalidating_catalogs=frozenset({2615, 6104, 6106, 6237}),
    publication_caches=MappingProxyType({49: 6104, 51: 6106, 48: 6237}),
    relcache_reset_counts=True,
    announces_empty_prepare=False,
)
_PG17: Final = WalVersion(
    major=17,
    page_magic=0xD116,
    record_size_max=_RECORD_SIZE_MAX,
    image_apply=0x02,
    image_pglz=0x04,
    image_lz4=0x08,
    image_zstd=0x10,
    custom_rmgrs=True,
    prune_family=True,
    freeze_plans=True,
    inplace_marks_transaction=True,
    relmap_file_size=524,
    relmap_entries_max=64,
    dropped_stats_item_size=12,
    dbase_create_file_copy=0x00,
    dbase_create_wal_log=0x10,
    dbase_drop=0x20,
    checkpoint_redo=True,
    pg_attribute=_PG_ATTRIBUTE_16,
    invalidating_caches=frozenset({36, 48, 49, 51}),
    invalidating_catalogs=frozenset({2615, 6104, 6106, 6237}),
    publication_caches=MappingProxyType({49: 6104, 51: 6106, 48: 6237}),
    relcache_reset_counts=True,
    announces_empty_prepare=False,
)
_PG18: Final = WalVersion(
    major=18,
    page_magic=0xD118,
    record_size_max=_RECORD_SIZE_MAX,
    image_apply=0x02,
    image_pglz=0x04,
    image_lz4=0x08,
    image_zstd=0x10,
    custom_rmgrs=True,
    prune_family=True,
    freeze_plans=True,
    inplace_marks_transaction=False,
    relmap_file_size=524,
    relmap_entries_max=64,
    dropped_stats_item_size=16,
    dbase_create_file_copy=0x00,
    dbase_create_wal_log=0x10,
    dbase_drop=0x20,
    checkpoint_redo=True,
    pg_attribute=_PG_ATTRIBUTE_18,
    invalidating_caches=frozenset({38}),
    invalidating_catalogs=frozenset({2615}),
    publication_caches=MappingProxyType({51: 6104, 53: 6106, 50: 6237}),
    relcache_reset_counts=True,
    announces_empty_prepare=True,
)


class Since(IntEnum):
    """What servers print or accept from which ``server_version_num`` on."""

    # Types.
    #: jsonpath: a number that a path goes on from stands in parentheses
    JSONPATH_NUMBER_IN_PARENTHESES = 150000
    #: "char": a byte that is no character by itself is shown in octal
    CHAR_IN_OCTAL = 150000
    #: aclitem: the privileges SET and ALTER SYSTEM
    PARAMETER_PRIVILEGES = 150000
    #: aclitem: the privilege MAINTAIN
    MAINTAIN_PRIVILEGE = 170000
    #: interval: the extreme values are infinity and -infinity
    INFINITE_INTERVALS = 170000

    # Names.
    #: keywords of the SQL/JSON constructors, and SYSTEM_USER
    SQL_JSON_CONSTRUCTORS = 160000
    #: keywords of the SQL/JSON query functions, and MERGE_ACTION
    SQL_JSON_QUERIES = 170000

    # test_decoding.
    #: a logical message is a change that makes a transaction worth a BEGIN
    MESSAGE_BEGINS_TRANSACTION = 170000

    # wal2json.
    #: a deferrable primary key is one for rd_pkindex, though no replica identity
    DEFERRABLE_PRIMARY_KEY_INDEX = 170000

    # Tables.
    #: a partitioned table's primary key is one before all partitions have theirs, too
    #: (RelationGetIndexList)
    PARTITIONED_PRIMARY_KEY_NOT_VALID_YET = 180000

    # pgoutput.
    #: prepared transactions, protocol 3; proto_version is read with strtoul
    PGOUTPUT_TWO_PHASE = 150000
    #: no BEGIN before there is a change to publish
    PGOUTPUT_SKIPS_EMPTY = 150000
    #: a row that can't be told is left out before its table is announced
    PGOUTPUT_CHECKS_OLD_ROW_FIRST = 150000
    #: a table is announced again when its publications have changed
    PGOUTPUT_FOLLOWS_PUBLICATIONS = 150000
    #: a column list of all columns but dropped and generated ones is as good as none
    PGOUTPUT_LISTS_LIVE_COLUMNS = 160000
    #: origin, streaming = parallel, protocol 4
    PGOUTPUT_ORIGIN_AND_PARALLEL = 160000
    #: proto_version and publication_names are missed before others are looked at
    PGOUTPUT_NAMES_MISSING_OPTIONS = 170000
    #: generated columns can be published
    PGOUTPUT_GENERATED_COLUMNS = 180000
    #: a publication that does not exist is a warning
    PGOUTPUT_MISSING_PUBLICATION_WARNS = 180000


#: The minor releases of August 2026, by major; what the functions below say of them is so in later
#: majors from the start.
_AUGUST_2026: Final = {14: 140024, 15: 150019, 16: 160015, 17: 170011, 18: 180006}
#: As above, of November 2026; seen on 15.20, of which the others are counterparts.
_NOVEMBER_2026: Final = {14: 140025, 15: 150020, 16: 160016, 17: 170012, 18: 180007}


def skips_empty_prepared(server_version_num: int) -> bool:
    """Say whether such a server passes over prepared transactions of which nothing is replayed.

    Before, COMMIT PREPARED and ROLLBACK PREPARED came alone, in 18 behind a PREPARE without its
    BEGIN. Source: ReorderBufferFinishPrepared, ReorderBufferPrepare,
    src/backend/replication/logical/reorderbuffer.c
    """
    return _of_august_2026(server_version_num)


def prints_upper_certainty(server_version_num: int) -> bool:
    """Say whether seg_out goes by the upper bound's own ~; before, it went by the lower one's.

    Source: seg_out, contrib/seg/seg.c
    """
    return _of_august_2026(server_version_num)


def refuses_empty_proto_version(server_version_num: int) -> bool:
    """Say whether such a server refuses a proto_version without a character; before, that was 0 (in
    14 it never was).

    Source: parse_output_parameters, src/backend/replication/pgoutput/pgoutput.c
    """
    since = _NOVEMBER_2026.get(server_version_num // 10000)
    return since is None or server_version_num >= since


def _of_august_2026(server_version_num: int) -> bool:
    since = _AUGUST_2026.get(server_version_num // 10000)
    return since is None or server_version_num >= since


#: Every version that Spillway reads, by major.
WAL_VERSIONS: Final = {v.major: v for v in (_PG14, _PG15, _PG16, _PG17, _PG18)}
_BY_MAGIC: Final = {v.page_magic: v for v in WAL_VERSIONS.values()}
_SUPPORTED: Final = f"Spillway reads WAL of PostgreSQL {min(WAL_VERSIONS)} to {max(WAL_VERSIONS)}."


def release_text(server_version_num: int) -> str:
    """Return a server's version as it shows it: ``18.4``."""
    return f"{server_version_num // 10_000}.{server_version_num % 10_000}"


def version_of_server(server_version_num: int) -> WalVersion:
    """Return the WAL format of a server by its ``server_version_num``, 180004 for one.

    Raises:
        UnsupportedWal: Spillway does not read that major.
    """
    major = server_version_num // 10000
    version = WAL_VERSIONS.get(major)
    if version is None:
        raise UnsupportedWal(
            f"WAL of PostgreSQL {major} is not supported",
            hint=_SUPPORTED,
            lsn="0/0",
            server_version_num=server_version_num,
        )
    return version


def version_of_magic(page_magic: int) -> WalVersion:
    """Return the WAL format that begins its pages with *page_magic*.

    Raises:
        UnsupportedWal: no supported version does; the text tells WAL of another version from what
            is no WAL at all.
    """
    version = _BY_MAGIC.get(page_magic)
    if version is None:
        what = "of an unsupported version" if page_magic >> 8 == _MAGIC_HIGH_BYTE else "no WAL"
        raise UnsupportedWal(
            f"page magic {page_magic:04X} is {what}",
            hint=_SUPPORTED,
            lsn="0/0",
            page_magic=page_magic,
        )
    return version
