# cython: language_level=3, boundscheck=False, wraparound=False
"""Looking through the transaction log: what is in a stretch of it, and the changes that somebody
asks for.

Both go over changes as they lie in the log and read nothing but their headers; no tuple is taken
apart and no object made for a change that is not wanted. A :class:`Survey` says of which relations
a stretch has changes, of its commit times and xids: the log's table of contents is made of that
(``txlog/contents.py``). Logical messages are of no relation, and counted under
:data:`NO_RELATION`. A :class:`Selector` copies the changes that are wanted out of chunks and
runs, into chunks that any encoder takes.

Which relations are wanted is asked of a callable, once for each id and stretch: ids mean something
else in the next one. It may give bytes that a wanted change must hold anywhere in its tuples, such
as a key's: then most changes of a table are passed over at the speed of memory. That is a sieve and
no proof; whoever asked looks at what is left.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from spillway._kernels.reorder.changes cimport (
    DELETE,
    INSERT,
    MESSAGE,
    TRUNCATE,
    UPDATE,
    ChangeHeader,
)
from spillway._kernels.reorder.transaction_run cimport Entry, TransactionRun

from spillway.decoding.transaction import TransactionHeader
from spillway.errors import CorruptTransactionLog

cdef extern from "string.h" nogil:
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)

cdef enum:
    # Relations that are remembered at a time; two with one place are asked for again.
    PLACES = 1024
    UNKNOWN = 0
    WANTED = 1
    UNWANTED = 2
    NO_RELATION_ID = 0

#: bits of a set of operations: insert, update, delete, truncate, message
OPERATION_BITS = {"insert": 1 << INSERT, "update": 1 << UPDATE, "delete": 1 << DELETE,
                  "truncate": 1 << TRUNCATE, "message": 1 << MESSAGE}
#: the relation id that logical messages bear
NO_RELATION = NO_RELATION_ID

cdef struct Place:
    uint32_t relation
    uint8_t state
    uint8_t operations
    uint64_t count
    const char* needle
    size_t needle_size


cdef inline bint read_header(const uint8_t* data, size_t size, size_t offset,
                             ChangeHeader* header) noexcept nogil:
    """Read the header of the change at *offset*; False when it does not fit."""
    if size - offset < sizeof(ChangeHeader):
        return False
    memcpy(header, data + offset, sizeof(ChangeHeader))
    return (header.size >= sizeof(ChangeHeader) and header.size % 8 == 0
            and header.size <= size - offset
            and header.new_size <= header.size - sizeof(ChangeHeader))


cdef uint32_t truncated(const uint8_t* change, const ChangeHeader* header) noexcept nogil:
    """Return how many relations a TRUNCATE has; they are 8 bytes behind the header."""
    cdef uint32_t count = 0
    if header.new_size < 8:
        return 0
    memcpy(&count, change + sizeof(ChangeHeader) + 4, 4)
    return count if <uint64_t>count * 4 <= header.new_size - 8 else 0


cdef uint32_t truncated_relation(const uint8_t* change, uint32_t at) noexcept nogil:
    cdef uint32_t relation
    memcpy(&relation, change + sizeof(ChangeHeader) + 8 + 4 * <size_t>at, 4)
    return relation


def _damaged():
    return CorruptTransactionLog(
        "a change in the transaction log does not fit its chunk",
        hint="Its checksum was right, so it was written so: report this.",
    )


cdef class Survey:
    """What a stretch of the log has. Commit times are microseconds since 2000-01-01.

    Attributes:
        first_lsn, last_lsn: final_lsn of its first and last transaction; 0 without one.
        time_min, time_max: of its commits; without one the least is above the greatest.
        xid_min, xid_max: of its top-level xids, as numbers; as the times.
        transactions: how many, messages outside of transactions among them.
        nbytes: of changes.
    """
    cdef readonly uint64_t first_lsn, last_lsn, transactions, nbytes
    cdef readonly int64_t time_min, time_max
    cdef readonly uint32_t xid_min, xid_max
    cdef dict _seen
    cdef Place _places[PLACES]

    def __cinit__(self):
        self._seen = {}
        memset(self._places, 0, sizeof(self._places))
        self.time_min = INT64_MAX
        self.time_max = INT64_MIN
        self.xid_min = UINT32_MAX
        self.xid_max = 0

    cdef void _note_place(self, uint64_t final_lsn, uint32_t xid) noexcept nogil:
        if self.transactions == 0:
            self.first_lsn = final_lsn
        self.last_lsn = final_lsn
        self.xid_min = min(self.xid_min, xid)
        self.xid_max = max(self.xid_max, xid)
        self.transactions += 1

    cdef void _note(self, uint64_t final_lsn, int64_t commit_time, uint32_t xid) noexcept nogil:
        self._note_place(final_lsn, xid)
        self.time_min = min(self.time_min, commit_time)
        self.time_max = max(self.time_max, commit_time)

    cdef int _count(self, uint32_t relation, uint8_t action) except -1 nogil:
        cdef Place* place = &self._places[relation % PLACES]
        if place.count and place.relation != relation:
            with gil:
                self._keep(place)
        place.relation = relation
        place.operations |= <uint8_t>(1 << action)
        place.count += 1
        return 0

    cdef int _keep(self, Place* place) except -1:
        operations, count = self._seen.get(place.relation, (0, 0))
        self._seen[place.relation] = (operations | place.operations, count + place.count)
        place.operations = 0
        place.count = 0
        return 0

    cdef int _changes(self, const uint8_t* data, size_t size) except -1 nogil:
        cdef size_t offset = 0
        cdef ChangeHeader header
        cdef uint32_t i
        self.nbytes += size
        while offset < size:
            if not read_header(data, size, offset, &header):
                with gil:
                    raise _damaged()
            if header.action == INSERT or header.action == UPDATE or header.action == DELETE:
                self._count(header.relation, header.action)
            elif header.action == TRUNCATE:
                for i in range(truncated(data + offset, &header)):
                    self._count(truncated_relation(data + offset, i), TRUNCATE)
            elif header.action == MESSAGE:
                self._count(NO_RELATION_ID, MESSAGE)
            offset += header.size
        return 0

    def run(self, TransactionRun run not None):
        """Take in every transaction of *run*, which is read thereby.

        Raises:
            CorruptTransactionLog: a change does not fit its chunk.
        """
        cdef Entry entry
        with nogil:
            while run.take(&entry):
                self._note(entry.header.final_lsn, entry.header.commit_time, entry.header.xid)
                self._changes(entry.chunk, entry.chunk_size)

    def transaction(self, header):
        """Take in one that stands alone; its chunks follow."""
        self._note(header.final_lsn, header.commit_time, header.xid)

    def outside(self, header):
        """Take in a message outside of transactions, which has no commit; its chunk follows."""
        self._note_place(header.final_lsn, header.xid)

    def chunk(self, const uint8_t[::1] data not None):
        """Take in a chunk of that one; raises as :meth:`run`."""
        if data.shape[0]:
            with nogil:
                self._changes(&data[0], data.shape[0])

    def take_relations(self):
        """Return what was met of relations since the last call: operations (a set of bits) and
        number of changes, by id.
        """
        cdef size_t i
        for i in range(PLACES):
            if self._places[i].count:
                self._keep(&self._places[i])
        seen, self._seen = self._seen, {}
        return seen


cdef class Selector:
    """Copies out the changes that are wanted.

    Args:
        wanted: called with (relations, relation id): None, or the bytes that a wanted change holds
            (b"": any does); for messages with :data:`NO_RELATION`.
        operations: bits of :data:`OPERATION_BITS`.
        from_lsn, upto_lsn: of transactions' final_lsn, the latter not included.
        from_time, upto_time: of their commits, the latter not included.
        xid: of the transaction; -1 for any.
    """
    cdef object _wanted
    cdef uint32_t _operations
    cdef uint64_t _from_lsn, _upto_lsn
    cdef int64_t _from_time, _upto_time, _xid
    cdef Place _places[PLACES]
    # They hold the needles' memory.
    cdef list _needles
    cdef object _relations

    def __init__(self, wanted, uint32_t operations, *, uint64_t from_lsn, uint64_t upto_lsn,
                 int64_t from_time, int64_t upto_time, int64_t xid):
        self._wanted = wanted
        self._operations = operations
        self._from_lsn = from_lsn
        self._upto_lsn = upto_lsn
        self._from_time = from_time
        self._upto_time = upto_time
        self._xid = xid
        self.begin({})

    def begin(self, relations):
        """Begin with another stretch, in which ids mean what *relations* say."""
        self._relations = relations
        self._needles = []
        memset(self._places, 0, sizeof(self._places))

    def takes(self, header):
        """Say whether the transaction of *header* is within the bounds."""
        return (self._from_lsn <= header.final_lsn < self._upto_lsn
                and self._from_time <= header.commit_time < self._upto_time
                and (self._xid < 0 or self._xid == header.xid))

    cdef Place* _place(self, uint32_t relation) except NULL:
        cdef Place* place = &self._places[relation % PLACES]
        found = self._wanted(self._relations, relation)
        place.relation = relation
        place.needle_size = 0
        if found is None:
            place.state = UNWANTED
        else:
            place.state = WANTED
            if found:
                self._needles.append(found)
                place.needle = PyBytes_AS_STRING(found)
                place.needle_size = <size_t>PyBytes_GET_SIZE(found)
        return place

    cdef int _takes_relation(self, uint32_t relation, const uint8_t* change,
                             size_t size) except -1 nogil:
        cdef Place* place = &self._places[relation % PLACES]
        if place.state == UNKNOWN or place.relation != relation:
            with gil:
                place = self._place(relation)
        if place.state == UNWANTED:
            return 0
        if place.needle_size == 0 or change == NULL:
            return 1
        return memmem(change + sizeof(ChangeHeader), size - sizeof(ChangeHeader), place.needle,
                      place.needle_size) != NULL

    cdef int _takes_change(self, const uint8_t* change, const ChangeHeader* header) except -1 nogil:
        cdef uint32_t i
        if header.action > MESSAGE or not self._operations & (1 << header.action):
            return 0
        if header.action != TRUNCATE:
            return self._takes_relation(header.relation, change, header.size)
        for i in range(truncated(change, header)):
            if self._takes_relation(truncated_relation(change, i), NULL, 0):
                return 1
        return 0

    cdef object _select(self, const uint8_t* data, size_t size, uint64_t from_lsn,
                        uint64_t upto_lsn):
        """Return the wanted changes of a chunk; None without any."""
        cdef size_t offset = 0
        # Of the wanted changes that lie side by side.
        cdef size_t start = 0
        cdef size_t end = 0
        cdef ChangeHeader header
        cdef list pieces = None
        with nogil:
            while offset < size:
                if not read_header(data, size, offset, &header):
                    with gil:
                        raise _damaged()
                if (from_lsn <= header.lsn <= upto_lsn
                        and self._takes_change(data + offset, &header)):
                    if end != offset or start == end:
                        if start != end:
                            with gil:
                                pieces = pieces or []
                                pieces.append(PyBytes_FromStringAndSize(
                                    <const char*>data + start, <Py_ssize_t>(end - start)))
                        start = offset
                    end = offset + header.size
                offset += header.size
        if start == end:
            return None
        last = PyBytes_FromStringAndSize(<const char*>data + start, <Py_ssize_t>(end - start))
        if pieces is None:
            return last
        pieces.append(last)
        return b"".join(pieces)

    def chunk(self, const uint8_t[::1] data not None, uint64_t from_lsn=0,
              uint64_t upto_lsn=0xFFFFFFFFFFFFFFFF):
        """Return the wanted changes of a chunk whose lsn is in [*from_lsn*, *upto_lsn*]; None
        without any.

        Raises:
            CorruptTransactionLog: a change does not fit its chunk.
        """
        if not data.shape[0]:
            return None
        return self._select(&data[0], data.shape[0], from_lsn, upto_lsn)

    def run(self, TransactionRun run not None):
        """Read *run*; return (header, its wanted changes) of each transaction that has any.

        Raises:
            CorruptTransactionLog: as :meth:`chunk`.
        """
        cdef Entry entry
        cdef list found = []
        while self._next(run, &entry):
            changes = self._select(entry.chunk, entry.chunk_size, 0, 0xFFFFFFFFFFFFFFFF)
            if changes is not None:
                found.append((TransactionHeader(
                    entry.header.xid, entry.header.first_lsn, entry.header.final_lsn,
                    entry.header.end_lsn, entry.header.commit_time, 0, entry.header.origin_lsn),
                    changes))
        return found

    cdef int _next(self, TransactionRun run, Entry* entry) except -1:
        """Go to the next transaction that may have a wanted change; 0 when there is none."""
        with nogil:
            while run.take(entry):
                if (self._from_lsn <= entry.header.final_lsn < self._upto_lsn
                        and self._from_time <= entry.header.commit_time < self._upto_time
                        and (self._xid < 0 or self._xid == entry.header.xid)
                        and self._has_any(entry.chunk, entry.chunk_size)):
                    return 1
        return 0

    cdef int _has_any(self, const uint8_t* data, size_t size) except -1 nogil:
        cdef size_t offset = 0
        cdef ChangeHeader header
        while offset < size:
            if not read_header(data, size, offset, &header):
                with gil:
                    raise _damaged()
            if self._takes_change(data + offset, &header):
                return 1
            offset += header.size
        return 0


def messages_of(const uint8_t[::1] data not None):
    """Return (lsn, is transactional, prefix, content) of each logical message among the changes of
    *data*, the latter two as bytes.

    Raises:
        CorruptTransactionLog: a change does not fit, or a message not its section.
    """
    cdef size_t offset = 0
    cdef size_t size = data.shape[0]
    cdef ChangeHeader header
    cdef const uint8_t* section
    cdef uint32_t head[2]
    cdef list found = []
    while offset < size:
        if not read_header(&data[0], size, offset, &header):
            raise _damaged()
        if header.action == MESSAGE:
            section = &data[offset] + sizeof(ChangeHeader)
            if header.new_size < sizeof(head):
                raise _damaged()
            memcpy(head, section, sizeof(head))
            if head[1] > header.new_size - sizeof(head):
                raise _damaged()
            section += sizeof(head)
            found.append((
                header.lsn, head[0] != 0,
                PyBytes_FromStringAndSize(<const char*>section, <Py_ssize_t>head[1]),
                PyBytes_FromStringAndSize(
                    <const char*>section + head[1],
                    <Py_ssize_t>(header.new_size - sizeof(head) - head[1])),
            ))
        offset += header.size
    return found


def ordinals(const uint64_t[::1] commits not None, const uint64_t[::1] lsns not None,
             (uint64_t, uint64_t, uint32_t) last):
    """Number the changes that have one commit and one lsn, as the rows of a COPY do, from 0.

    *last* is (commit, lsn, number) of the change before the first one here. Returns uint32 numbers
    as bytes, and the last change's (commit, lsn, number).
    """
    cdef Py_ssize_t i, count = commits.shape[0]
    cdef uint64_t commit = last[0]
    cdef uint64_t lsn = last[1]
    cdef uint32_t number = last[2]
    numbers = PyBytes_FromStringAndSize(NULL, count * 4)
    cdef uint32_t* out = <uint32_t*>PyBytes_AS_STRING(numbers)
    for i in range(count):
        if commits[i] == commit and lsns[i] == lsn:
            number += 1
        else:
            commit, lsn, number = commits[i], lsns[i], 0
        out[i] = number
    return numbers, (commit, lsn, number)
