# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop over a chunk of changes that row-wise output plugins share.

It reads one change after the other without the GIL, and takes the GIL to look a relation up for the
first time in a chunk, and to raise: an error says which change of which table it is about, and
messages that were finished before it are kept. Writers of relations are kept over chunks and
transactions.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from spillway._kernels.values.datum cimport Change, invalid, load_u32, read_change
from spillway._kernels.messages.buffer cimport MessageBuffer
from spillway._kernels.reorder.transaction_run cimport Entry, TransactionRun
from spillway.errors import DecodingError
from spillway.pg.lsn import Lsn

cdef enum:
    # Writers that are kept; descriptors of the past are never asked for again.
    WRITERS_MAX = 1024


cdef int read_truncation(const Change* change, Truncation* truncation) except -1 nogil:
    """Read a TRUNCATE's section."""
    if change.new_section == NULL or change.new_size < 8:
        return invalid(b"a truncation ends inside its header")
    truncation.flags = load_u32(change.new_section)
    truncation.count = load_u32(change.new_section + 4)
    truncation.relations = change.new_section + 8
    if truncation.count > (change.new_size - 8) // 4:
        return invalid(b"a truncation has fewer relations than it says")
    return 0


cdef int read_message(const Change* change, LogicalMessage* message) except -1 nogil:
    """Read a MESSAGE's section."""
    if change.new_section == NULL or change.new_size < 8:
        return invalid(b"a logical message ends inside its header")
    message.transactional = load_u32(change.new_section) != 0
    message.prefix_size = load_u32(change.new_section + 4)
    if message.prefix_size > change.new_size - 8:
        return invalid(b"a logical message ends inside its prefix")
    message.prefix = change.new_section + 8
    message.content = message.prefix + message.prefix_size
    message.content_size = change.new_size - 8 - message.prefix_size
    return 0


def located(error, uint64_t lsn, descriptor, column=None):
    """Return *error* with the change that it is about: where in WAL, of which table and, if that is
    known, column.

    The message says so too, unless it has PostgreSQL's own words (it is no DecodingError).
    """
    place = str(Lsn(lsn))
    details = {"lsn": place, **error.details}
    where = f"change at {place}"
    if descriptor is not None:
        details["relation"] = f"{descriptor.schema}.{descriptor.name}"
        if column is not None:
            details["column"] = column
            where = f"column {column}, {where}"
        where = f"table {descriptor.schema}.{descriptor.name}, {where}"
    message = f"{where}: {error.message}" if isinstance(error, DecodingError) else error.message
    return type(error)(message, hint=error.hint, **details)


cdef class RelationWriter:
    """Writes rows of one table as of one descriptor."""

    def __init__(self, descriptor):
        self.descriptor = descriptor


cdef void begin_call(ChunkEncoder encoder) noexcept:
    # The same id may mean another descriptor in another call's relations.
    memset(encoder.slots, 0, sizeof(encoder.slots))
    encoder.lsn = 0
    encoder.relation = 0


cdef int fail(ChunkEncoder encoder, error, relations, MessageBuffer out) except -1:
    """Raise *error* with what is known of the change at hand; the messages before it are kept."""
    out.discard()
    if isinstance(error, DecodingError):
        raise located(error, encoder.lsn, relations.get(encoder.relation)) from error
    raise error


cdef class ChunkEncoder:
    """Turns chunks of changes into messages; see the module."""

    def __cinit__(self):
        self.writers = {}

    cdef RelationWriter make_writer(self, object descriptor):
        raise NotImplementedError

    cdef int put_change(self, const Change* change, object relations,
                        MessageBuffer out) except -1 nogil:
        with gil:
            raise NotImplementedError

    cdef int put_transaction(self, const Entry* entry, object relations,
                             MessageBuffer out) except -1 nogil:
        with gil:
            raise NotImplementedError

    cdef int encode_run(self, TransactionRun run, MessageBuffer out, size_t batch_bytes,
                        size_t message_limit) except -1:
        """Write transactions of *run* until one of them ends with *batch_bytes* or *message_limit*
        messages in *out*.

        Raises:
            DecodingError: as ``encode``.
        """
        relations = run.relations
        begin_call(self)
        try:
            with nogil:
                self.run_transactions(run, relations, out, batch_bytes, message_limit)
        except BaseException as error:
            fail(self, error, relations, out)
        return 0

    cdef int run_transactions(self, TransactionRun run, object relations, MessageBuffer out,
                              size_t batch_bytes, size_t message_limit) except -1 nogil:
        cdef Entry entry
        while run.take(&entry):
            self.put_transaction(&entry, relations, out)
            if out.message_start >= batch_bytes or out.count >= message_limit:
                break
        return 0

    cdef int encode(self, const uint8_t[::1] chunk, object relations, MessageBuffer out) except -1:
        """Write what every change of *chunk* becomes.

        Raises:
            DecodingError: a change is malformed; the details say which. Messages before it are
                kept.
        """
        cdef size_t size = chunk.shape[0]
        if size == 0:
            return 0
        begin_call(self)
        try:
            with nogil:
                self.run(&chunk[0], size, relations, out)
        except BaseException as error:
            fail(self, error, relations, out)
        return 0

    cdef int run(self, const uint8_t* chunk, size_t size, object relations,
                 MessageBuffer out) except -1 nogil:
        cdef size_t offset = 0
        cdef Change change
        while offset < size:
            read_change(chunk, size, &offset, &change)
            self.lsn = change.header.lsn
            self.relation = change.header.relation
            self.put_change(&change, relations, out)
        return 0

    cdef void* find_writer(self, uint32_t relation, object relations) except NULL nogil:
        cdef WriterSlot* slot = &self.slots[relation % SLOTS]
        if slot.writer == NULL or slot.relation != relation:
            with gil:
                self.add_writer(relation, relations)
        return slot.writer

    cdef RelationWriter add_writer(self, uint32_t relation, object relations):
        """Return the writer of *relation*, made if need be, and put it into its slot."""
        cdef RelationWriter writer
        descriptor = relations.get(relation)
        if descriptor is None:
            raise DecodingError(f"a change is of relation {relation}, whose descriptor did not "
                                "come with it")
        writer = self.writers.get(relation)
        if writer is None or writer.descriptor is not descriptor:
            if len(self.writers) >= WRITERS_MAX:
                self.writers.clear()
                memset(self.slots, 0, sizeof(self.slots))
            writer = self.make_writer(descriptor)
            self.writers[relation] = writer
        self.slots[relation % SLOTS].relation = relation
        self.slots[relation % SLOTS].writer = <void*>writer
        return writer
