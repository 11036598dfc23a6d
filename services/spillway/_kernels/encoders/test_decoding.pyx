# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop of the test_decoding plugin: a chunk of changes in, lines of text out.

What does not change from row to row is made once per relation: ``table public.t:`` and, for each
column, `` name[type]:`` and the writer of its type. The loop deforms a tuple and appends prefixes
and values to the message buffer, without the GIL; it takes it to look a relation up for the first
time in a chunk, for types whose codec is written in Python, and to raise.

Source: pg_decode_change, tuple_to_stringinfo, print_literal (contrib/test_decoding/test_decoding.c)
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from spillway._kernels.reorder.changes cimport (DELETE, FROM_ORIGIN, INSERT, INVALIDATION, MESSAGE,
                                                SCHEMA_CHANGE, TRUNCATE, UPDATE)
from spillway._kernels.encoders.chunk_encoder cimport (
    ChunkEncoder,
    LogicalMessage,
    RelationWriter,
    Truncation,
    read_message,
    read_truncation,
)
from spillway._kernels.values.datum cimport (
    DATUM_NULL,
    DATUM_UNCHANGED,
    Change,
    Datum,
    Deformer,
    invalid,
    load_u32,
    read_change,
)
from spillway._kernels.messages.buffer cimport (ByteBuffer, MessageBuffer, put_byte, put_bytes,
                                                reserve)
from spillway._kernels.values.text.datetime cimport put_timestamptz
from spillway._kernels.values.text.number cimport put_uint
from spillway._kernels.values.text.output cimport CompiledType, TextContext, TypeCompiler
from spillway._kernels.values.type cimport TypeOutput
from spillway._kernels.reorder.transaction_run cimport Entry, TransactionRun
from spillway.pg.identifier import quote_identifier, quote_qualified_identifier
from spillway.pg.versions import Since
from spillway.plugins.type_names import format_type

cdef int MESSAGE_BEGINS_TRANSACTION = Since.MESSAGE_BEGINS_TRANSACTION

cdef enum Style:
    STYLE_QUOTED = 0
    STYLE_PLAIN = 1
    STYLE_BITS = 2
    STYLE_BOOL = 3

cdef enum:
    TRUNCATE_CASCADE = 1
    TRUNCATE_RESTART_SEQS = 2

# int8, int2, int4, oid, float4, float8, numeric
PLAIN_TYPES = frozenset({20, 21, 23, 26, 700, 701, 1700})
BIT_TYPES = frozenset({1560, 1562})
BOOL_TYPE = 16


cdef struct ColumnPrinter:
    # `` name[type]:``
    const uint8_t* prefix
    size_t prefix_size
    const TypeOutput* output
    Style style


cdef class RelationPrinter(RelationWriter):
    """Prints rows of one table as of one descriptor."""
    # ``schema.table``
    cdef readonly bytes name
    cdef const char* name_text
    cdef size_t name_size
    cdef Deformer deformer
    cdef ColumnPrinter* columns
    cdef list owned

    def __init__(self, descriptor, TextContext context not None):
        cdef int i
        cdef int version = context.values.server_version_num
        cdef CompiledType compiled
        cdef TypeCompiler compiler = TypeCompiler(context, descriptor.types)
        cdef ColumnPrinter* printer
        RelationWriter.__init__(self, descriptor)
        self.deformer = Deformer(descriptor)
        encoding = context.settings.encoding
        name = quote_qualified_identifier(descriptor.schema, descriptor.name, version)
        self.name = name.encode(encoding, "surrogateescape")
        self.name_text = PyBytes_AS_STRING(self.name)
        self.name_size = PyBytes_GET_SIZE(self.name)
        self.owned = []
        self.columns = <ColumnPrinter*>calloc(self.deformer.natts + 1, sizeof(ColumnPrinter))
        if self.columns == NULL:
            raise MemoryError
        for i, column in enumerate(descriptor.columns):
            if column.dropped:
                continue
            printer = &self.columns[i]
            compiled = compiler.column(column)
            name = quote_identifier(column.name, version)
            type_name = format_type(column.type_oid, descriptor.types, version,
                                    context.settings.visible_schemas)
            prefix = f" {name}[{type_name}]:".encode(encoding, "surrogateescape")
            self.owned.append((compiled, prefix))
            printer.output = &compiled.output
            printer.prefix = <const uint8_t*>PyBytes_AS_STRING(prefix)
            printer.prefix_size = PyBytes_GET_SIZE(prefix)
            if column.type_oid in PLAIN_TYPES:
                printer.style = STYLE_PLAIN
            elif column.type_oid in BIT_TYPES:
                printer.style = STYLE_BITS
            elif column.type_oid == BOOL_TYPE:
                printer.style = STYLE_BOOL
            else:
                printer.style = STYLE_QUOTED

    def __dealloc__(self):
        free(self.columns)

    cdef int put_tuple(
        self, const uint8_t* section, size_t size, const Change* change, bint skip_nulls,
        ByteBuffer* out
    ) except -1 nogil:
        cdef const ColumnPrinter* column
        cdef const Datum* value
        cdef int i
        self.deformer.deform(section, size, change)
        for i in range(self.deformer.natts):
            column = &self.columns[i]
            value = &self.deformer.values[i]
            # Dropped columns have no prefix.
            if column.prefix == NULL or (skip_nulls and value.state == DATUM_NULL):
                continue
            put_bytes(out, column.prefix, column.prefix_size)
            if value.state == DATUM_NULL:
                put_bytes(out, b"null", 4)
            elif value.state == DATUM_UNCHANGED:
                put_bytes(out, b"unchanged-toast-datum", 21)
            else:
                put_literal(column, value, out)
        return 0


cdef int put_literal(const ColumnPrinter* column, const Datum* value,
                     ByteBuffer* out) except -1 nogil:
    cdef size_t start
    if column.style == STYLE_PLAIN:
        return column.output.write(column.output, value.data, value.size, out)
    if column.style == STYLE_BOOL:
        if value.data[0]:
            return put_bytes(out, b"true", 4)
        return put_bytes(out, b"false", 5)
    if column.style == STYLE_BITS:
        put_byte(out, c'B')
    put_byte(out, c"'")
    start = out.size
    column.output.write(column.output, value.data, value.size, out)
    if memchr(out.data + start, c"'", out.size - start) != NULL:
        double_quotes(out, start)
    return put_byte(out, c"'")


cdef int double_quotes(ByteBuffer* out, size_t start) except -1 nogil:
    """Double every single quote from *start* on, in place."""
    cdef size_t size = out.size - start
    cdef size_t quotes = 0
    cdef size_t i
    cdef uint8_t* source
    cdef uint8_t* target
    for i in range(size):
        quotes += out.data[start + i] == c"'"
    reserve(out, quotes)
    out.size += quotes
    source = out.data + start + size
    target = out.data + out.size
    while target != source:
        source -= 1
        target -= 1
        target[0] = source[0]
        if source[0] == c"'":
            target -= 1
            target[0] = c"'"
    return 0


cdef class Encoder(ChunkEncoder):
    """Writes the messages of transactions; what the options change is in the attributes.

    Args:
        settings: a ``pg.text_settings.TextSettings``.
    """
    cdef TextContext context
    cdef public bint include_xids
    cdef public bint include_timestamp
    cdef public bint skip_empty_xacts
    cdef public bint only_local
    # The transaction at hand.
    cdef uint32_t xid
    cdef bint transactional
    cdef public bint wrote_changes

    def __init__(self, settings):
        self.context = TextContext(settings)
        self.include_xids = True

    def begin(self, uint32_t xid, uint64_t first_lsn, bint transactional,
              MessageBuffer out not None):
        """Start a transaction: write BEGIN, or leave that to its first change."""
        self.start(xid, first_lsn, transactional, out)

    def commit(self, uint64_t end_lsn, int64_t commit_time, MessageBuffer out not None):
        """End a transaction."""
        self.end(end_lsn, commit_time, out)

    def transactions(self, TransactionRun run not None, MessageBuffer out not None,
                     size_t batch_bytes, size_t message_limit):
        """Write whole transactions of *run* until one ends with *batch_bytes* or *message_limit*
        messages in *out*.
        """
        self.encode_run(run, out, batch_bytes, message_limit)

    cdef int put_transaction(self, const Entry* entry, object relations,
                             MessageBuffer out) except -1 nogil:
        self.start(entry.header.xid, entry.header.first_lsn, True, out)
        self.run(entry.chunk, entry.chunk_size, relations, out)
        return self.end(entry.header.end_lsn, entry.header.commit_time, out)

    cdef int start(self, uint32_t xid, uint64_t first_lsn, bint transactional,
                   MessageBuffer out) except -1 nogil:
        self.xid = xid
        self.transactional = transactional
        self.wrote_changes = False
        if transactional and not self.skip_empty_xacts:
            self.put_begin(first_lsn, out)
        return 0

    cdef int end(self, uint64_t end_lsn, int64_t commit_time, MessageBuffer out) except -1 nogil:
        if not self.transactional or (self.skip_empty_xacts and not self.wrote_changes):
            return 0
        put_bytes(&out.payload, b"COMMIT", 6)
        if self.include_xids:
            put_byte(&out.payload, c' ')
            put_uint(&out.payload, self.xid)
        if self.include_timestamp:
            put_bytes(&out.payload, b" (at ", 5)
            put_timestamptz(&out.payload, commit_time, &self.context.values)
            put_byte(&out.payload, c')')
        return out.finish(end_lsn, self.xid)

    def news(self, const uint8_t[::1] text not None, uint64_t lsn, uint32_t xid, time,
             MessageBuffer out not None):
        """Write a line that begins with *text*; *time*, an int or None, follows when timestamps are
        wanted.
        """
        cdef int64_t at
        put_bytes(&out.payload, &text[0], text.shape[0])
        if time is not None and self.include_timestamp:
            at = time
            put_bytes(&out.payload, b" (at ", 5)
            put_timestamptz(&out.payload, at, &self.context.values)
            put_byte(&out.payload, c')')
        out.finish(lsn, xid)

    def begin_part(self, uint32_t xid, uint64_t first_lsn, MessageBuffer out not None):
        """Start a part of a transaction in progress: say so, or leave that to its first change."""
        self.xid = xid
        self.wrote_changes = False
        if not self.skip_empty_xacts:
            self.put_block(b"opening", first_lsn, out)

    def end_part(self, uint64_t last_lsn, MessageBuffer out not None):
        """End a part."""
        if not self.skip_empty_xacts or self.wrote_changes:
            self.put_block(b"closing", last_lsn, out)

    cdef int put_block(self, const char* verb, uint64_t lsn, MessageBuffer out) except -1 nogil:
        put_bytes(&out.payload, verb, 7)
        put_bytes(&out.payload, b" a streamed block for transaction", 33)
        if self.include_xids:
            put_bytes(&out.payload, b" TXN ", 5)
            put_uint(&out.payload, self.xid)
        return out.finish(lsn, self.xid)

    def streamed_changes(self, const uint8_t[::1] chunk not None, MessageBuffer out not None):
        """Write a message for every change of *chunk*, which is of a part: not what changed, since
        it may abort.

        Raises:
            DecodingError: a change is malformed.
        """
        cdef size_t size = chunk.shape[0]
        try:
            if size:
                with nogil:
                    self.run_streamed(&chunk[0], size, out)
        except BaseException:
            out.discard()
            raise

    cdef int run_streamed(self, const uint8_t* chunk, size_t size,
                          MessageBuffer out) except -1 nogil:
        cdef size_t offset = 0
        cdef Change change
        cdef LogicalMessage message
        while offset < size:
            read_change(chunk, size, &offset, &change)
            if change.header.action == INVALIDATION or change.header.action == SCHEMA_CHANGE:
                continue
            if self.only_local and change.header.flags & FROM_ORIGIN:
                continue
            if (change.header.action != MESSAGE
                    or self.context.values.server_version_num >= MESSAGE_BEGINS_TRANSACTION):
                if self.skip_empty_xacts and not self.wrote_changes:
                    self.put_block(b"opening", change.header.lsn, out)
                self.wrote_changes = True
            if change.header.action == MESSAGE:
                put_bytes(&out.payload, b"streaming ", 10)
                read_message(&change, &message)
                put_message_head(&message, &out.payload)
            else:
                if change.header.action == TRUNCATE:
                    put_bytes(&out.payload, b"streaming truncate for ", 23)
                else:
                    put_bytes(&out.payload, b"streaming change for ", 21)
                if self.include_xids:
                    put_bytes(&out.payload, b"TXN ", 4)
                    put_uint(&out.payload, self.xid)
                else:
                    put_bytes(&out.payload, b"transaction", 11)
            out.finish(change.header.lsn, self.xid)
        return 0

    def changes(self, const uint8_t[::1] chunk not None, relations, MessageBuffer out not None):
        """Write a message for every change of *chunk*.

        Raises:
            DecodingError: a change is malformed; the details say which. Messages before it are
                kept.
        """
        self.encode(chunk, relations, out)

    cdef RelationWriter make_writer(self, object descriptor):
        return RelationPrinter(descriptor, self.context)

    cdef int put_begin(self, uint64_t lsn, MessageBuffer out) except -1 nogil:
        put_bytes(&out.payload, b"BEGIN", 5)
        if self.include_xids:
            put_byte(&out.payload, c' ')
            put_uint(&out.payload, self.xid)
        return out.finish(lsn, self.xid)

    cdef int put_change(self, const Change* change, object relations,
                        MessageBuffer out) except -1 nogil:
        cdef bint begins
        if change.header.action == INVALIDATION or change.header.action == SCHEMA_CHANGE:
            return 0
        if self.only_local and change.header.flags & FROM_ORIGIN:
            return 0
        # Up to 16 a logical message was no change that makes a transaction worth a BEGIN.
        begins = self.transactional and (
            change.header.action != MESSAGE
            or self.context.values.server_version_num >= MESSAGE_BEGINS_TRANSACTION
        )
        if begins and not self.wrote_changes:
            if self.skip_empty_xacts:
                self.put_begin(change.header.lsn, out)
            self.wrote_changes = True
        if change.header.action == MESSAGE:
            self.put_message(change, &out.payload)
        elif change.header.action == TRUNCATE:
            self.put_truncate(change, relations, &out.payload)
        else:
            self.put_row(change, relations, &out.payload)
        return out.finish(change.header.lsn, self.xid)

    cdef int put_row(self, const Change* change, object relations, ByteBuffer* out) except -1 nogil:
        cdef void* printer = self.find_writer(change.header.relation, relations)
        return put_row(<RelationPrinter>printer, change, out)

    cdef int put_truncate(self, const Change* change, object relations,
                          ByteBuffer* out) except -1 nogil:
        cdef Truncation truncation
        cdef uint32_t i
        cdef void* printer
        read_truncation(change, &truncation)
        put_bytes(out, b"table ", 6)
        for i in range(truncation.count):
            if i:
                put_bytes(out, b", ", 2)
            printer = self.find_writer(load_u32(truncation.relations + 4 * <size_t>i), relations)
            put_name(<RelationPrinter>printer, out)
        put_bytes(out, b": TRUNCATE:", 11)
        if truncation.flags & TRUNCATE_RESTART_SEQS:
            put_bytes(out, b" restart_seqs", 13)
        if truncation.flags & TRUNCATE_CASCADE:
            put_bytes(out, b" cascade", 8)
        if not truncation.flags & (TRUNCATE_RESTART_SEQS | TRUNCATE_CASCADE):
            put_bytes(out, b" (no-flags)", 11)
        return 0

    cdef int put_message(self, const Change* change, ByteBuffer* out) except -1 nogil:
        cdef LogicalMessage message
        read_message(change, &message)
        put_message_head(&message, out)
        put_bytes(out, b" content:", 9)
        return put_bytes(out, message.content, message.content_size)


cdef int put_message_head(const LogicalMessage* message, ByteBuffer* out) except -1 nogil:
    put_bytes(out, b"message: transactional: ", 24)
    put_byte(out, c'1' if message.transactional else c'0')
    put_bytes(out, b" prefix: ", 9)
    put_bytes(out, message.prefix, message.prefix_size)
    put_bytes(out, b", sz: ", 6)
    return put_uint(out, message.content_size)


cdef int put_name(RelationPrinter printer, ByteBuffer* out) except -1 nogil:
    return put_bytes(out, printer.name_text, printer.name_size)


cdef int put_row(RelationPrinter printer, const Change* change, ByteBuffer* out) except -1 nogil:
    cdef const uint8_t* new = change.new_section
    cdef const uint8_t* old = change.old_section
    put_bytes(out, b"table ", 6)
    put_name(printer, out)
    if change.header.action == INSERT:
        put_bytes(out, b": INSERT:", 9)
    elif change.header.action == UPDATE:
        put_bytes(out, b": UPDATE:", 9)
        if old != NULL:
            put_bytes(out, b" old-key:", 9)
            printer.put_tuple(old, change.old_size, change, True, out)
            put_bytes(out, b" new-tuple:", 11)
    elif change.header.action == DELETE:
        put_bytes(out, b": DELETE:", 9)
        if old != NULL:
            return printer.put_tuple(old, change.old_size, change, True, out)
        return put_bytes(out, b" (no-tuple-data)", 16)
    else:
        return invalid(b"a change has an action that no transaction yields")
    if new != NULL:
        return printer.put_tuple(new, change.new_size, change, False, out)
    return put_bytes(out, b" (no-tuple-data)", 16)
