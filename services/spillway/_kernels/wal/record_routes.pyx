# cython: language_level=3, boundscheck=False, wraparound=False
"""Whom the records of a batch concern: an index by database, made once, for all sessions that go
through the batch.

A server's WAL has the records of all its databases. What a session does with those of another one
is nothing, as long as they are only that: changes in that database's own storage. So a batch has a
chain of the records of each database, and one of those that are everyone's; a session goes along
its own and everyone's, and does not touch what lies between.

Everyone's (database 0) is whatever does not plainly concern one database alone:

- what has no block and does not say, and what touches shared catalogs;
- a subtransaction's first record, which bears its top-level xid, and records that make a
  transaction one with catalog changes (NEW_CID, INVALIDATIONS, in place): when it commits, the
  transactions of *all* databases get a new snapshot in PostgreSQL, which shows in where the parts
  of streamed ones end;
- ends of transactions that are not plain (``parse_end``), or prepared.

Nobody's is a new page of the commit log or of commit timestamps, which comes every 32,768 xids and
would wake every session.

Plain ends of transactions are listed once more, of all databases: a session needs those of others
only as long as it has transactions in progress, which one of them might end. A plain commit says
whose it is, and is in that database's chain, too.

Whether a session must be told of a batch at once, because something may be delivered by it, is
known here, too: what commits in its database, its messages, and whatever else of its own there is;
of everyone's, ends that are not plain.

Source: DecodeCommit, DecodeInsert and their kin, src/backend/replication/logical/decode.c;
SnapBuildCommitTxn and SnapBuildDistributeNewCatalogSnapshot, snapbuild.c; ParseCommitRecord,
src/backend/access/rmgrdesc/xactdesc.c
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport malloc, realloc

from spillway._kernels.wal.record_batch cimport (RecordBatch, Route, WalBlockRef, WalRecord,
                                                 load_u32, load_u64)

cdef enum:
    RM_XACT_ID = 1
    RM_SMGR_ID = 2
    RM_CLOG_ID = 3
    RM_HEAP2_ID = 9
    RM_HEAP_ID = 10
    RM_COMMIT_TS_ID = 18
    RM_LOGICALMSG_ID = 21
    # Operations, without the highest bit of info.
    OPMASK = 0x70
    SMGR_CREATE = 0x10
    SMGR_TRUNCATE = 0x20
    HEAP_TRUNCATE = 0x30
    HEAP_INPLACE = 0x70
    HEAP2_NEW_CID = 0x70
    # Where main data has the database, and how much of it there must be.
    SMGR_CREATE_DATABASE = 4
    SMGR_TRUNCATE_DATABASE = 8
    OID_BYTES = 4
    # Of the record's info and xl_xact_xinfo.
    XACT_COMMIT = 0x00
    XACT_PREPARE = 0x10
    XACT_ABORT = 0x20
    XACT_COMMIT_PREPARED = 0x30
    XACT_ABORT_PREPARED = 0x40
    XACT_HAS_INFO = 0x80
    HAS_DBINFO = 0x01
    HAS_SUBXACTS = 0x02
    HAS_AE_LOCKS = 0x40
    # What only the server's own replay cares for: apply feedback, relcache file, forced sync.
    # AE_LOCKS has no part.
    COMPLETION_BITS = 0xE0000000
    PLAIN_XINFO = HAS_DBINFO | HAS_SUBXACTS | HAS_AE_LOCKS | COMPLETION_BITS
    # A record's parts: time and xinfo; database and tablespace; a count.
    TIME_BYTES = 8
    XINFO_BYTES = 4
    DBINFO_BYTES = 8
    COUNT_BYTES = 4
    ROUTES_FIRST = 4
    # Records of more databases than that are everyone's.
    ROUTES_MAX = 256


cdef bint parse_end(const WalRecord *record, EndRecord *end) noexcept nogil:
    """Parse the plain commit or abort record of an ordinary transaction; False for any other."""
    cdef const uint8_t *at = record.main_data
    cdef size_t left = record.main_len
    cdef uint32_t xinfo = 0
    if record.info & OPMASK != XACT_COMMIT and record.info & OPMASK != XACT_ABORT:
        return False
    if record.origin != 0 or record.xid == 0 or left < TIME_BYTES:
        return False
    end.time = <int64_t> load_u64(at)
    end.database = 0
    end.subxact_count = 0
    at += TIME_BYTES
    left -= TIME_BYTES
    if record.info & XACT_HAS_INFO:
        if left < XINFO_BYTES:
            return False
        xinfo = load_u32(at)
        at += XINFO_BYTES
        left -= XINFO_BYTES
    if xinfo & ~(<uint32_t> PLAIN_XINFO):
        return False
    if xinfo & HAS_DBINFO:
        if left < DBINFO_BYTES:
            return False
        end.database = load_u32(at)
        at += DBINFO_BYTES
        left -= DBINFO_BYTES
    if xinfo & HAS_SUBXACTS:
        if left < COUNT_BYTES:
            return False
        end.subxact_count = load_u32(at)
        end.subxacts = at + COUNT_BYTES
        if end.subxact_count > (left - COUNT_BYTES) // 4:
            return False
    return True


cdef inline uint32_t _oid_at(const WalRecord *record, uint32_t offset) noexcept nogil:
    return load_u32(record.main_data + offset) if record.main_len >= offset + OID_BYTES else 0


cdef uint32_t database_of(RecordBatch batch, const WalRecord *record) noexcept nogil:
    """Return the one database that the record, which ends no transaction, concerns; 0 when it may
    concern others.
    """
    cdef const WalBlockRef *blocks
    cdef uint8_t op = record.info & OPMASK
    cdef uint32_t i
    if record.top_xid != 0:
        return 0
    if (record.rmid == RM_HEAP_ID and op == HEAP_INPLACE or record.rmid == RM_HEAP2_ID
            and op == HEAP2_NEW_CID):
        return 0
    if record.block_count > 0:
        blocks = &batch.blocks[record.first_block]
        for i in range(1, record.block_count):
            if blocks[i].db != blocks[0].db:
                return 0
        return blocks[0].db
    if record.rmid == RM_LOGICALMSG_ID or record.rmid == RM_HEAP_ID and op == HEAP_TRUNCATE:
        return _oid_at(record, 0)
    if record.rmid == RM_SMGR_ID and op == SMGR_CREATE:
        return _oid_at(record, SMGR_CREATE_DATABASE)
    if record.rmid == RM_SMGR_ID and op == SMGR_TRUNCATE:
        return _oid_at(record, SMGR_TRUNCATE_DATABASE)
    return 0


cdef inline bint _is_nobodys(const WalRecord *record) noexcept nogil:
    """Say whether the record concerns no decoding: not even a transaction's beginning is in it."""
    return (record.rmid == RM_CLOG_ID or record.rmid == RM_COMMIT_TS_ID) and (
        record.xid == 0 and record.top_xid == 0 and record.block_count == 0)


cdef bint route_records(RecordBatch batch) noexcept nogil:
    """Make the index of a batch that is complete; False when memory is out."""
    cdef const WalRecord *record
    cdef EndRecord end
    cdef Route *route
    cdef uint32_t *following
    cdef uint32_t *ends
    cdef uint32_t count = <uint32_t> batch.count
    cdef uint32_t i, database, ends_room = 0
    cdef uint8_t op
    # Of the database met last.
    cdef Py_ssize_t last = 0
    following = <uint32_t *> malloc((<size_t> count + 1) * sizeof(uint32_t))
    if following is NULL:
        return False
    batch.following = following
    if not _add_route(batch, 0):
        return False
    for i in range(count):
        record = &batch.records[i]
        following[i] = count
        if _is_nobodys(record):
            continue
        if record.rmid == RM_XACT_ID:
            op = record.info & OPMASK
            database = 0
            if parse_end(record, &end):
                if batch.end_count == ends_room:
                    ends_room = ends_room * 2 if ends_room > 0 else 16
                    ends = <uint32_t *> realloc(batch.ends, <size_t> ends_room * sizeof(uint32_t))
                    if ends is NULL:
                        return False
                    batch.ends = ends
                batch.ends[batch.end_count] = i
                batch.end_count += 1
                database = end.database
                if database == 0:
                    continue
            elif op <= XACT_ABORT_PREPARED:
                batch.is_urgent = True
        else:
            database = database_of(batch, record)
        if batch.routes[last].database != database:
            last = _find_route(batch, database)
            if last < 0:
                return False
        route = &batch.routes[last]
        if route.first == count:
            route.first = i
        else:
            following[route.last] = i
        route.last = i
    return True


cdef Py_ssize_t _find_route(RecordBatch batch, uint32_t database) noexcept nogil:
    """Return which route is that of *database*, a new one if need be; -1 when memory is out."""
    cdef Py_ssize_t i
    for i in range(batch.route_count):
        if batch.routes[i].database == database:
            return i
    if batch.route_count == ROUTES_MAX:
        return 0
    return batch.route_count - 1 if _add_route(batch, database) else -1


cdef bint _add_route(RecordBatch batch, uint32_t database) noexcept nogil:
    cdef Route *routes
    cdef Py_ssize_t room = batch.route_count
    if room & (room - 1) == 0 and (room == 0 or room >= ROUTES_FIRST):
        # At every power of two.
        room = room * 2 if room > 0 else ROUTES_FIRST
        routes = <Route *> realloc(batch.routes, <size_t> room * sizeof(Route))
        if routes is NULL:
            return False
        batch.routes = routes
    batch.routes[batch.route_count].database = database
    batch.routes[batch.route_count].first = <uint32_t> batch.count
    batch.routes[batch.route_count].last = 0
    batch.route_count += 1
    return True
