# cython: language_level=3, boundscheck=False, wraparound=False
"""Tuples of the mirrored catalogs, and redo of the records that change them most.

A :class:`TupleStorage` is the main fork of one relfilenode (``catalog/tuple_store.py``): pages of
tuples by offset, and indexes that hold every tuple which is not known to be dead. What is known of
a tuple's transactions is stamped into it, as hint bits do, and needs no status table afterwards:

- ``xmin_pending``: its xmin has not finished; else, unless ``dead``, it committed.
- ``deleter``: the unfinished xid that deleted or replaced it, 0 for none. A locker is no deleter; a
  multixact's updater is.
- ``dead``: xmin aborted or a deleter committed. Never revoked; kept until the page forgets it,
  because later images hold it again and a compressed update may refer to its bytes.

:class:`CatalogRedo` takes INSERT, MULTI_INSERT, DELETE, UPDATE and INPLACE as a command writes
them, without a call of Python: a transaction that makes and drops a table has forty of them. It
decides *before* it changes anything whether a record is plain: no page image, a page that is known,
bytes that hold the keys, no multixact, no rewrite of a catalog under way. Whatever isn't plain is
left to ``catalog/redo.py``, which knows all rules, and which this agrees with.

A tuple that comes this way keeps its bytes only. Its row is made of them when somebody looks at it,
and of most nobody ever does: keys are read from the bytes, too, where they have a fixed place.

Source: heap_xlog_insert and its siblings, src/backend/access/heap/heapam_xlog.c;
src/include/access/heapam_xlog.h
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spillway._kernels.wal.record_batch cimport (
    BKPBLOCK_HAS_IMAGE,
    BKPBLOCK_WILL_INIT,
    RecordBatch,
    WalBlockRef,
    WalRecord,
    load_u16,
    load_u32,
)

from spillway.errors import CorruptWal

cdef enum:
    RM_HEAP2_ID = 9
    RM_HEAP_ID = 10
    HEAP_INSERT = 0x00
    HEAP_DELETE = 0x10
    HEAP_UPDATE = 0x20
    HEAP_HOT_UPDATE = 0x40
    HEAP2_MULTI_INSERT = 0x50
    HEAP_INPLACE = 0x70
    HEAP_OPMASK = 0x70
    HEAP_INIT_PAGE = 0x80
    UPDATE_PREFIX_FROM_OLD = 0x20
    UPDATE_SUFFIX_FROM_OLD = 0x40
    # Of infobits_set: multixact, lock only, exclusive and key share lock.
    INFOBITS_XMAX = 0x0F
    # Of t_infomask: what infobits_set replaces, and xmax is not valid.
    XMAX_BITS = 0x1CD0
    XMAX_INVALID = 0x0800
    HAS_NULL = 0x0001
    NATTS_MASK = 0x07FF
    TUPLE_HEADER_SIZE = 23
    HEADER_BYTES = 5
    MULTI_HEADER_BYTES = 7
    OFFSET_MAX = 2047
    # MaxHeapTuplesPerPage is 291.
    TUPLES_MAX = 512


cdef class CatalogTuple:
    """A tuple of a catalog; see the module for what its states mean."""

    def __init__(self, storage, tid, *, xmin, row, xmax=0, infomask2=0, infomask=0, hoff=0,
                 bytes data=None):
        self.storage = storage
        self.tid = tid
        self.xmin = xmin
        self.xmax = xmax
        self.infomask2 = infomask2
        self.infomask = infomask
        self.hoff = hoff
        self.data = data
        self._row = row

    @property
    def ctid(self):
        """Block and offset."""
        return self.tid >> 16, self.tid & 0xFFFF

    @property
    def row(self):
        """The values of the columns that are read; None when nobody asks for them any more."""
        if self._is_packed:
            try:
                self._row = self.storage.layout.row(self.infomask2, self.infomask, self.hoff,
                                                    self.data)
            except ValueError as error:
                name = self.storage.catalog.name
                raise CorruptWal(
                    f"tuple {self.ctid} of {name} contradicts itself: {error}",
                    hint="The WAL is damaged, or of a server that is not PostgreSQL's own.",
                    relation=name, ctids=[list(self.ctid)]) from error
            self._is_packed = False
        return self._row

    @row.setter
    def row(self, value):
        self._row = value
        self._is_packed = False

    cpdef bint visible(self, object own_xids):
        """Say whether a transaction with *own_xids* sees this tuple now, among what is
        committed.
        """
        if self.dead or (self.xmin_pending and self.xmin not in own_xids):
            return False
        return self.deleter == 0 or self.deleter not in own_xids

    cpdef forget_row(self):
        """Free what nobody asks a dead tuple for; its bytes stay. Stand-ins are found by rows, of
        dead tuples too.
        """
        if self.data is not None and not (<TupleStorage?> self.storage).unplaced:
            self._row = None
            self._is_packed = False

    def __repr__(self):
        return (
            f"<{self.storage.layout.catalog.name} {self.ctid} xmin={self.xmin} xmax={self.xmax}"
            f"{' pending' if self.xmin_pending else ''}{' dead' if self.dead else ''}"
            f"{f' deleter={self.deleter}' if self.deleter else ''} {self.row}>"
        )


cdef class Page:
    """What is known of one block."""

    def __init__(self, lsn=0, *, physical=True):
        self.lsn = lsn
        self.physical = physical
        self._tuples = {}

    @property
    def tuples(self):
        """The tuples by their offsets."""
        return self.unpacked()

    cdef dict unpacked(self):
        unpack = self.unpack
        if unpack is not None:
            self.unpack = None
            unpack()
        return self._tuples


cdef class TupleStorage:
    """Pages of tuples, and indexes to find them by."""

    def __init__(self, catalog_oid, columns, skips_zero, places, rewrite):
        """Make it empty.

        Args:
            catalog_oid: of whose rows they are.
            columns: for each index the place of its key in a row.
            skips_zero: for each index whether a key of 0 stands for none.
            places: for each index (offset among a tuple's attributes, attribute's place) of its
                key, an oid; None where it has no fixed one.
            rewrite: the same of pg_class.relrewrite; None in other catalogs.
        """
        cdef int i
        if not len(columns) == len(skips_zero) == len(places) <= INDEXES_MAX:
            raise ValueError("a catalog has at most 8 indexes, and each a column and a place")
        self.pages = {}
        self.stand_ins = {}
        self.indexes = [{} for _ in columns]
        self._catalog_oid = catalog_oid
        self._count = len(columns)
        for i in range(self._count):
            self._columns[i] = columns[i]
            self._skips_zero[i] = skips_zero[i]
            self._key_at[i], self._key_attribute[i] = (-1, 0) if places[i] is None else places[i]
        self._rewrite_at, self._rewrite_attribute = (-1, 0) if rewrite is None else rewrite

    cdef object _key(self, CatalogTuple tup, int number):
        if tup._is_packed:
            return load_u32(<const uint8_t *> PyBytes_AS_STRING(tup.data) + tup.hoff
                            - TUPLE_HEADER_SIZE
                            + self._key_at[number])
        return tup._row[self._columns[number]]

    cdef bint _is_plain(self, const uint8_t *data, Py_ssize_t size, uint16_t infomask2,
                        uint16_t infomask, uint8_t hoff) noexcept nogil:
        """Say whether a tuple from byte 23 on holds its keys where they are expected, and is of no
        rewrite.
        """
        cdef int i, attribute, at
        cdef int natts = infomask2 & NATTS_MASK
        cdef Py_ssize_t start = <Py_ssize_t> hoff - TUPLE_HEADER_SIZE
        if start < 0 or start > size or ((infomask & HAS_NULL) and (natts + 7) // 8 > start):
            return False
        for i in range(self._count + 1):
            if i < self._count:
                at, attribute = self._key_at[i], self._key_attribute[i]
                if at < 0:
                    return False
            elif self._rewrite_at < 0:
                break
            else:
                at, attribute = self._rewrite_at, self._rewrite_attribute
            if attribute >= natts or start + at + 4 > size:
                return False
            if (infomask & HAS_NULL) and not (data[attribute >> 3] >> (attribute & 7)) & 1:
                return False
        return self._rewrite_at < 0 or load_u32(data + start + self._rewrite_at) == 0

    cpdef index(self, CatalogTuple tup):
        """Enter *tup*, which must not be dead, into every index, unless nobody can see it; safe to
        repeat.
        """
        cdef int i
        cdef dict index
        cdef PyObject *held
        if tup.deleter != 0 and tup.xmin_pending:
            return
        for i in range(self._count):
            key = self._key(tup, i)
            if self._skips_zero[i] and not key:
                continue
            index = <dict> self.indexes[i]
            held = PyDict_GetItemWithError(index, key)
            if held == NULL:
                index[key] = tup
            elif type(<object> held) is dict:
                (<dict> held)[tup.tid] = tup
            elif (<CatalogTuple?> <object> held).tid != tup.tid:
                index[key] = {(<CatalogTuple> held).tid: <object> held, tup.tid: tup}
            elif <object> held is not tup:
                index[key] = tup

    cpdef unindex(self, CatalogTuple tup):
        """Take *tup* out of every index; harmless when it is in none."""
        cdef int i
        cdef dict index
        cdef PyObject *held
        for i in range(self._count):
            index = <dict> self.indexes[i]
            key = self._key(tup, i)
            held = PyDict_GetItemWithError(index, key)
            if held == NULL:
                continue
            if <object> held is tup:
                del index[key]
            elif type(<object> held) is dict and (<dict> held).get(tup.tid) is tup:
                del (<dict> held)[tup.tid]
                if not <dict> held:
                    del index[key]

    def indexed(self, int number, key):
        """Return the tuples with *key* in an index, those of packed pages excepted."""
        held = (<dict?> self.indexes[number]).get(key)
        if held is None:
            return ()
        return list((<dict> held).values()) if type(held) is dict else (held,)

    cpdef touch(self, CatalogTuple tup):
        """Note that a tuple's state has changed: its page is not as it was written last."""
        page = self.pages.get(tup.tid >> 16)
        if page is not None:
            (<Page?> page).packed = None

    def depended(self, CatalogTuple tup not None, dict dependents not None, whole_catalog):
        """Return those keys of *dependents*, (catalog, index, key) each, that *tup* has."""
        cdef list found = []
        self.add_depended(tup, dependents, whole_catalog, found)
        return found

    cdef int add_depended(self, CatalogTuple tup, dict dependents, whole_catalog,
                          list found) except -1:
        cdef int i
        if not dependents:
            return 0
        for i in range(self._count):
            key = (self._catalog_oid, i, self._key(tup, i))
            if key in dependents:
                found.append(key)
        key = (self._catalog_oid, whole_catalog, None)
        if key in dependents:
            found.append(key)
        return 0


cdef class CatalogRedo:
    """What of a mirror's redo needs no Python; its dictionaries are the mirror's own."""

    def __init__(self, dict pending not None, dict rewrites not None, dict unidentified not None):
        self._pending = pending
        self._rewrites = rewrites
        self._unidentified = unidentified
        self._storages = []

    def set_storages(self, list storages not None):
        """Say what the tracked locators are, by their numbers; None: always Python's."""
        self._storages = storages

    # ---- records

    cdef bint redo(self, RecordBatch batch, const WalRecord *record, uint32_t number) except -1:
        """Redo a record whose first block of a tracked locator is that of *number*; False: it is
        not plain.
        """
        cdef TupleStorage storage
        cdef const WalBlockRef *block = &batch.blocks[record.first_block]
        cdef uint8_t op = record.info & HEAP_OPMASK
        cdef bint done = False
        if not self.consistent or record.xid == 0 or self._rewrites or self._unidentified:
            return False
        if number >= <uint32_t> len(self._storages) or record.block_count == 0:
            return False
        found = self._storages[number]
        if found is None:
            return False
        storage = <TupleStorage?> found
        if storage.unplaced or storage.stand_ins:
            return False
        if record.rmid == RM_HEAP_ID:
            if op == HEAP_UPDATE or op == HEAP_HOT_UPDATE:
                done = self._update(storage, batch, record)
            elif record.block_count != 1:
                return False
            elif op == HEAP_INSERT:
                done = self._heap_insert(storage, record, block)
            elif op == HEAP_DELETE:
                done = self._delete(storage, record, block)
            elif op == HEAP_INPLACE:
                done = self._inplace(storage, record, block)
        elif record.rmid == RM_HEAP2_ID and op == HEAP2_MULTI_INSERT and record.block_count == 1:
            done = self._multi_insert(storage, record, block)
        if done and record.end_lsn > self.last_lsn:
            self.last_lsn = record.end_lsn
        return done

    cdef Page _page(self, TupleStorage storage, const WalBlockRef *block):
        """Return the page that a record changes without an image; None: not known. A new one is in
        no storage yet.
        """
        if block.fork != 0 or (block.flags & BKPBLOCK_HAS_IMAGE and block.apply_image):
            return None
        page = storage.pages.get(block.block)
        if block.flags & BKPBLOCK_WILL_INIT:
            return Page() if page is None else None
        return page

    cdef set _pending_of(self, object xid):
        found = self._pending.get(xid)
        if found is None:
            found = self._pending[xid] = set()
        return <set?> found

    cdef bint _insert(self, TupleStorage storage, const WalRecord *record, const WalBlockRef *block,
                      const NewTuple *tuples, uint32_t count) except -1:
        cdef uint32_t i
        cdef Page page = self._page(storage, block)
        cdef dict held
        cdef set pending
        cdef const NewTuple *new
        if page is None:
            return False
        if record.end_lsn <= page.lsn:
            return True
        held = page.unpacked()
        for i in range(count):
            new = &tuples[i]
            if (new.offset == 0 or new.offset > OFFSET_MAX or new.offset in held
                    or not storage._is_plain(
                        new.data, new.size, new.infomask2, new.infomask, new.hoff)):
                return False
        _change(storage, page, record, block.block)
        pending = self._pending_of(record.xid)
        for i in range(count):
            new = &tuples[i]
            self._put(storage, page, record, block.block, new,
                      PyBytes_FromStringAndSize(<const char *> new.data, new.size), pending)
        return True

    cdef CatalogTuple _put(self, TupleStorage storage, Page page, const WalRecord *record,
                           uint32_t block, const NewTuple *new, bytes data, set pending):
        """Put a tuple that *record* wrote, and whose keys are where they are expected, into a free
        place.
        """
        cdef CatalogTuple tup = CatalogTuple.__new__(CatalogTuple)
        tup.storage = storage
        tup.tid = <uint64_t> block << 16 | new.offset
        tup.xmin = record.xid
        tup.xmax = 0
        tup.infomask2 = new.infomask2
        tup.infomask = new.infomask
        tup.hoff = new.hoff
        tup.data = data
        tup._is_packed = True
        tup.xmin_pending = True
        page._tuples[new.offset] = tup
        pending.add(tup)
        storage.index(tup)
        return tup

    cdef bint _heap_insert(self, TupleStorage storage, const WalRecord *record,
                           const WalBlockRef *block) except -1:
        cdef NewTuple new
        if record.main_len < 3 or block.data_len < HEADER_BYTES:
            return False
        new.offset = load_u16(record.main_data)
        new.infomask2 = load_u16(block.data)
        new.infomask = load_u16(block.data + 2)
        new.hoff = block.data[4]
        new.data = block.data + HEADER_BYTES
        new.size = block.data_len - HEADER_BYTES
        return self._insert(storage, record, block, &new, 1)

    cdef bint _multi_insert(self, TupleStorage storage, const WalRecord *record,
                            const WalBlockRef *block) except -1:
        cdef NewTuple tuples[TUPLES_MAX]
        cdef uint32_t at = 0, count, i
        if record.main_len < 4:
            return False
        count = load_u16(record.main_data + 2)
        if count > TUPLES_MAX or (not record.info & HEAP_INIT_PAGE
                                  and record.main_len < 4 + 2 * count):
            return False
        for i in range(count):
            at += at & 1
            if at + MULTI_HEADER_BYTES > block.data_len:
                return False
            tuples[i].offset = (
                <uint16_t> (i + 1) if record.info & HEAP_INIT_PAGE
                else load_u16(record.main_data + 4 + 2 * i))
            tuples[i].size = load_u16(block.data + at)
            tuples[i].infomask2 = load_u16(block.data + at + 2)
            tuples[i].infomask = load_u16(block.data + at + 4)
            tuples[i].hoff = block.data[at + 6]
            tuples[i].data = block.data + at + MULTI_HEADER_BYTES
            at += MULTI_HEADER_BYTES + tuples[i].size
            if at > block.data_len:
                return False
        return self._insert(storage, record, block, tuples, count)

    cdef bint _delete(self, TupleStorage storage, const WalRecord *record,
                      const WalBlockRef *block) except -1:
        cdef Page page
        cdef CatalogTuple tup
        if (record.main_len < 8 or load_u32(record.main_data) != record.xid
                or record.main_data[6] & INFOBITS_XMAX):
            return False
        if block.flags & BKPBLOCK_WILL_INIT:
            return False
        page = self._page(storage, block)
        if page is None:
            return False
        if record.end_lsn <= page.lsn:
            return True
        found = page.unpacked().get(load_u16(record.main_data + 4))
        if found is None:
            return False
        tup = <CatalogTuple?> found
        if tup.dead:
            return False
        _change(storage, page, record, block.block)
        self._note_deleter(storage, tup, record, record.xid)
        return True

    cdef int _note_deleter(self, TupleStorage storage, CatalogTuple tup, const WalRecord *record,
                           object xid) except -1:
        """Stamp a live tuple with the record's transaction as the one that deletes it."""
        tup.xmax = xid
        tup.infomask &= <uint16_t> ~XMAX_BITS
        if tup.deleter == record.xid:
            return 0
        if tup.deleter != 0 and not (tup.xmin_pending and tup.xmin == tup.deleter):
            before = self._pending.get(tup.deleter)
            if before is not None:
                (<set?> before).discard(tup)
        tup.deleter = record.xid
        self._pending_of(xid).add(tup)
        if tup.xmin_pending:
            storage.unindex(tup)
        return 0

    cdef bint _inplace(self, TupleStorage storage, const WalRecord *record,
                       const WalBlockRef *block) except -1:
        """Overwrite the attributes of an unfinished transaction's row that nobody has looked at,
        but not its keys.
        """
        cdef Page page
        cdef CatalogTuple tup
        cdef Py_ssize_t bitmap
        cdef bytes data
        cdef uint8_t *out
        cdef int i
        if record.main_len < 2 or block.flags & BKPBLOCK_WILL_INIT:
            return False
        page = self._page(storage, block)
        if page is None or record.end_lsn <= page.lsn:
            return False
        found = page.unpacked().get(load_u16(record.main_data))
        if found is None:
            return False
        tup = <CatalogTuple?> found
        if tup.dead or not tup.xmin_pending or not tup._is_packed:
            return False
        bitmap = tup.hoff - TUPLE_HEADER_SIZE
        if block.data_len != PyBytes_GET_SIZE(tup.data) - bitmap:
            return False
        data = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(tup.data))
        out = <uint8_t *> PyBytes_AS_STRING(data)
        memcpy(out, PyBytes_AS_STRING(tup.data), bitmap)
        memcpy(out + bitmap, block.data, block.data_len)
        if not storage._is_plain(out, PyBytes_GET_SIZE(data), tup.infomask2, tup.infomask,
                                 tup.hoff):
            return False
        for i in range(storage._count):
            if load_u32(out + bitmap + storage._key_at[i]) != storage._key(tup, i):
                return False
        _change(storage, page, record, block.block)
        tup.data = data
        return True

    cdef bint _update(self, TupleStorage storage, RecordBatch batch,
                      const WalRecord *record) except -1:
        cdef const WalBlockRef *block = &batch.blocks[record.first_block]
        cdef const WalBlockRef *old_block = block
        cdef const uint8_t *main = record.main_data
        cdef const uint8_t *old_data
        cdef Page page
        cdef Page old_page
        cdef CatalogTuple old
        cdef CatalogTuple tup
        cdef NewTuple new
        cdef bytes data
        cdef uint8_t *out
        cdef uint32_t prefix = 0, suffix = 0, at = 0, rest, bitmap, attributes
        if record.main_len < 14 or record.block_count > 2 or block.id != 0:
            return False
        if load_u32(main) != record.xid or main[6] & INFOBITS_XMAX:
            return False
        if record.block_count == 2:
            old_block = block + 1
            if old_block.id != 1 or old_block.rel != block.rel:
                return False
            if (old_block.spc != block.spc or old_block.db != block.db
                    or old_block.flags & BKPBLOCK_WILL_INIT):
                return False
        elif block.flags & BKPBLOCK_WILL_INIT:
            return False
        page = self._page(storage, block)
        old_page = page if record.block_count == 1 else self._page(storage, old_block)
        if (page is None or old_page is None or record.end_lsn <= page.lsn
                or record.end_lsn <= old_page.lsn):
            return False
        found = old_page.unpacked().get(load_u16(main + 4))
        if found is None:
            return False
        old = <CatalogTuple?> found
        if old.dead or old.data is None:
            return False
        if main[7] & UPDATE_PREFIX_FROM_OLD:
            if block.data_len < at + 2:
                return False
            prefix = load_u16(block.data + at)
            at += 2
        if main[7] & UPDATE_SUFFIX_FROM_OLD:
            if block.data_len < at + 2:
                return False
            suffix = load_u16(block.data + at)
            at += 2
        if block.data_len < at + HEADER_BYTES:
            return False
        new.offset = load_u16(main + 12)
        new.infomask2 = load_u16(block.data + at)
        new.infomask = load_u16(block.data + at + 2)
        new.hoff = block.data[at + 4]
        at += HEADER_BYTES
        rest = block.data_len - at
        if load_u32(main + 8) != 0 and not new.infomask & XMAX_INVALID:
            return False
        if new.hoff < TUPLE_HEADER_SIZE or old.hoff < TUPLE_HEADER_SIZE:
            return False
        bitmap = new.hoff - TUPLE_HEADER_SIZE
        old_data = <const uint8_t *> PyBytes_AS_STRING(old.data) + old.hoff - TUPLE_HEADER_SIZE
        if PyBytes_GET_SIZE(old.data) < old.hoff - TUPLE_HEADER_SIZE:
            return False
        attributes = <uint32_t> PyBytes_GET_SIZE(old.data) - (old.hoff - TUPLE_HEADER_SIZE)
        if bitmap > rest or prefix > attributes or suffix > attributes:
            return False
        data = PyBytes_FromStringAndSize(NULL, rest + prefix + suffix)
        out = <uint8_t *> PyBytes_AS_STRING(data)
        memcpy(out, block.data + at, bitmap)
        memcpy(out + bitmap, old_data, prefix)
        memcpy(out + bitmap + prefix, block.data + at + bitmap, rest - bitmap)
        memcpy(out + rest + prefix, old_data + attributes - suffix, suffix)
        new.data = out
        new.size = rest + prefix + suffix
        if (new.offset == 0 or new.offset > OFFSET_MAX or new.offset in page.unpacked()
                or not storage._is_plain(
                    new.data, new.size, new.infomask2, new.infomask, new.hoff)):
            return False
        _change(storage, page, record, block.block)
        if old_page is not page:
            _change(storage, old_page, record, old_block.block)
        self._note_deleter(storage, old, record, record.xid)
        tup = self._put(storage, page, record, block.block, &new, data,
                        self._pending_of(record.xid))
        tup.xmax = load_u32(main + 8)
        return True

    # ---- ends of transactions

    def commit(self, tuples, uint32_t xid, dict dependents not None, whole_catalog):
        """Stamp the tuples of *xid*, which committed: others see now what it wrote, and no more
        what it deleted.

        Returns those keys of *dependents* that a row has which appeared or went; None if no row
        did. What came and went in it nobody else has ever seen: it is in no index, and nothing was
        made of it.
        """
        cdef CatalogTuple tup
        cdef TupleStorage storage
        cdef list found = None
        for tup in tuples:
            if tup.dead:
                continue
            storage = <TupleStorage?> tup.storage
            storage.touch(tup)
            if tup.xmin_pending and tup.xmin == xid:
                tup.xmin_pending = False
                if tup.deleter == xid:
                    tup.dead = True
                    tup.deleter = 0
                    tup.forget_row()
                    continue
                if found is None:
                    found = []
                storage.add_depended(tup, dependents, whole_catalog, found)
                if tup.deleter != 0:
                    storage.index(tup)
            elif tup.deleter == xid:
                if found is None:
                    found = []
                storage.add_depended(tup, dependents, whole_catalog, found)
                storage.unindex(tup)
                tup.dead = True
                tup.deleter = 0
                tup.xmin_pending = False
                tup.forget_row()
        return found

    def abort(self, tuples, uint32_t xid):
        """Stamp the tuples of *xid*, which aborted."""
        cdef CatalogTuple tup
        cdef TupleStorage storage
        for tup in tuples:
            if tup.dead:
                continue
            storage = <TupleStorage?> tup.storage
            storage.touch(tup)
            if tup.xmin_pending and tup.xmin == xid:
                storage.unindex(tup)
                tup.xmin_pending = False
                tup.dead = True
                if tup.deleter == xid:
                    tup.deleter = 0
                tup.forget_row()
            elif tup.deleter == xid:
                tup.deleter = 0
                storage.index(tup)

    def concerns(self, dependencies, own_xids, dict current not None):
        """Say whether one of *own_xids* has changed a row that has one of *dependencies*, (catalog,
        index, key) each.

        *current* has the storage of each catalog. What own transactions have written is in no
        packed page.
        """
        cdef CatalogTuple tup
        cdef int number
        for oid, index, key in dependencies:
            number = index
            if number < 0:
                return True
            for tup in (<TupleStorage?> current[oid]).indexed(number, key):
                if (tup.xmin_pending and tup.xmin in own_xids) or (tup.deleter != 0
                                                                   and tup.deleter in own_xids):
                    return True
        return False


cdef int _change(TupleStorage storage, Page page, const WalRecord *record,
                 uint32_t block) except -1:
    """Note that *record* changes a page."""
    if block not in storage.pages:
        storage.pages[block] = page
    page.packed = None
    if page.lsn != 0:
        page.lsn = record.end_lsn
    return 0
