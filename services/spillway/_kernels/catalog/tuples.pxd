# cython: language_level=3
"""Tuples of mirrored catalogs, and the records that change them as C sees them; tuples.pyx says
more.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from spillway._kernels.wal.record_batch cimport RecordBatch, WalBlockRef, WalRecord

cdef enum:
    INDEXES_MAX = 8


cdef class CatalogTuple:
    cdef public object storage
    # block << 16 | offset
    cdef public uint64_t tid
    cdef public uint32_t xmin
    # Raw xmax, maybe a multixact id; None: came from SQL, nothing known until the page's image.
    cdef public object xmax
    cdef public uint16_t infomask2
    cdef public uint16_t infomask
    cdef public uint8_t hoff
    # The tuple from byte 23 on; None: came from SQL.
    cdef public bytes data
    cdef public bint xmin_pending
    cdef public uint32_t deleter
    cdef public bint dead
    cdef object _row
    # The row has not been asked for yet: it is in ``data``.
    cdef bint _is_packed

    cpdef bint visible(self, object own_xids)
    cpdef forget_row(self)


cdef class Page:
    # End of the last record that is contained; records at or before it are skipped.
    cdef public uint64_t lsn
    # False: rows that SQL showed, without their bytes and without the dead ones.
    cdef public bint physical
    # The page as it was written or read last; None when something has changed since.
    cdef public object packed
    # Makes the tuples of a page that was read and not asked for yet.
    cdef public object unpack
    cdef dict _tuples

    cdef dict unpacked(self)


cdef class TupleStorage:
    cdef public dict pages
    cdef public dict stand_ins
    cdef public bint unplaced
    # For each index: key → the tuple that has it, or tid → tuple where several do.
    cdef public list indexes
    cdef object _catalog_oid
    cdef int _count
    cdef int _columns[INDEXES_MAX]
    cdef bint _skips_zero[INDEXES_MAX]
    # Where in a tuple's attributes a key is, and its place in the null bitmap; -1: only the row
    # says it.
    cdef int _key_at[INDEXES_MAX]
    cdef int _key_attribute[INDEXES_MAX]
    # Where it says that it is of a rewrite, -1: nowhere.
    cdef int _rewrite_at
    cdef int _rewrite_attribute

    cdef object _key(self, CatalogTuple tup, int number)
    cdef bint _is_plain(self, const uint8_t *data, Py_ssize_t size, uint16_t infomask2,
                        uint16_t infomask, uint8_t hoff) noexcept nogil
    cpdef index(self, CatalogTuple tup)
    cpdef unindex(self, CatalogTuple tup)
    cpdef touch(self, CatalogTuple tup)
    cdef int add_depended(self, CatalogTuple tup, dict dependents, whole_catalog,
                          list found) except -1


cdef struct NewTuple:
    const uint8_t *data
    uint32_t size
    uint16_t offset
    uint16_t infomask2
    uint16_t infomask
    uint8_t hoff


cdef class CatalogRedo:
    # End of the last record applied, or position of the last commit or abort.
    cdef public uint64_t last_lsn
    # Whether a record at or after consistent_lsn was seen.
    cdef public bint consistent
    cdef dict _pending
    cdef dict _rewrites
    cdef dict _unidentified
    # The storage of each tracked locator, by its number.
    cdef list _storages

    cdef bint redo(self, RecordBatch batch, const WalRecord *record, uint32_t number) except -1
    cdef Page _page(self, TupleStorage storage, const WalBlockRef *block)
    cdef set _pending_of(self, object xid)
    cdef bint _insert(self, TupleStorage storage, const WalRecord *record, const WalBlockRef *block,
                      const NewTuple *tuples, uint32_t count) except -1
    cdef CatalogTuple _put(self, TupleStorage storage, Page page, const WalRecord *record,
                           uint32_t block, const NewTuple *new, bytes data, set pending)
    cdef bint _heap_insert(self, TupleStorage storage, const WalRecord *record,
                           const WalBlockRef *block) except -1
    cdef bint _multi_insert(self, TupleStorage storage, const WalRecord *record,
                            const WalBlockRef *block) except -1
    cdef bint _delete(self, TupleStorage storage, const WalRecord *record,
                      const WalBlockRef *block) except -1
    cdef bint _inplace(self, TupleStorage storage, const WalRecord *record,
                       const WalBlockRef *block) except -1
    cdef bint _update(self, TupleStorage storage, RecordBatch batch,
                      const WalRecord *record) except -1
    cdef int _note_deleter(self, TupleStorage storage, CatalogTuple tup, const WalRecord *record,
                           object xid) except -1
