# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop of the wal2json plugin: a chunk of changes in, JSON out.

``plugins/wal2json_text.py`` makes the text around the values once a relation, ``table.pyx`` writes
a tuple's columns; here they are put together as a format has them, without the GIL.

Format 1 gathers a transaction in a buffer of its own until the commit, because messages that are
not finished do not outlive a reader's batch; with write-in-chunks each change is a message of its
own. Its size is bounded as the original's is, by PostgreSQL's largest allocation.

Source: pg_decode_change_v1, pg_decode_write_change, pg_decode_message (eulerto/wal2json, 2.5)
"""

cimport cython

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr

from spillway._kernels.reorder.changes cimport (DELETE, INSERT, INVALIDATION, MESSAGE,
                                                SCHEMA_CHANGE, TRUNCATE, UPDATE)
from spillway._kernels.encoders.chunk_encoder cimport (
    ChunkEncoder,
    LogicalMessage,
    RelationWriter,
    Truncation,
    read_message,
    read_truncation,
)
from spillway._kernels.values.datum cimport Change, invalid, load_u32
from spillway._kernels.encoders.wal2json.json_text cimport put_json_string
from spillway._kernels.messages.buffer cimport (ByteBuffer, MessageBuffer, put_byte, put_bytes,
                                                release)
from spillway._kernels.values.text.datetime cimport put_timestamptz
from spillway._kernels.values.text.output cimport TextContext
from spillway._kernels.encoders.wal2json.table cimport (
    KIND_IDENTITY,
    KIND_PK,
    KIND_ROW,
    TableWriter,
    Text,
    put_text,
    text_of,
)
from spillway.errors import DecodingError
from spillway.plugins.wal2json_text import Format1Layout

# MaxAllocSize, PostgreSQL's bound of a string
TRANSACTION_BYTES_MAX = 0x3FFFFFFF


cdef int put_lsn(ByteBuffer* out, uint64_t lsn) except -1 nogil:
    put_hex(out, lsn >> 32)
    put_byte(out, c'/')
    return put_hex(out, <uint32_t>lsn)


cdef int put_hex(ByteBuffer* out, uint64_t value) except -1 nogil:
    cdef int shift = 28
    cdef uint8_t digit
    while shift and not value >> shift:
        shift -= 4
    while shift >= 0:
        digit = (value >> shift) & 0xF
        put_byte(out, c'0' + digit if digit < 10 else c'A' + (digit - 10))
        shift -= 4
    return 0


cdef class Encoder(ChunkEncoder):
    """What both formats share.

    Args:
        settings: a ``pg.text_settings.TextSettings``.
        options: a ``plugins.wal2json_options.Wal2JsonOptions``.
    """
    cdef TextContext context
    cdef readonly object options
    cdef bint inserts
    cdef bint updates
    cdef bint deletes
    cdef bint truncates
    cdef bint include_pk
    cdef bint filters_messages
    cdef frozenset filter_prefixes
    cdef frozenset add_prefixes
    cdef uint32_t xid

    def __init__(self, settings, options):
        self.context = TextContext(settings)
        self.options = options
        self.inserts = "insert" in options.actions
        self.updates = "update" in options.actions
        self.deletes = "delete" in options.actions
        self.truncates = "truncate" in options.actions
        self.include_pk = options.include_pk
        self.filter_prefixes = self.encoded(options.filter_msg_prefixes)
        self.add_prefixes = self.encoded(options.add_msg_prefixes)

        self.filters_messages = bool(self.filter_prefixes or self.add_prefixes)

    def encoded(self, prefixes):
        encoding = self.context.settings.encoding
        return frozenset(prefix.encode(encoding, "surrogateescape") for prefix in prefixes)

    def timestamp(self, int64_t time):
        """Return *time* (microseconds since 2000-01-01 00:00 UTC) as a timestamptz is printed."""
        cdef ByteBuffer text
        text.data = NULL
        text.size = text.capacity = 0
        try:
            put_timestamptz(&text, time, &self.context.values)
            return (<const char*>text.data)[: text.size].decode("ascii")
        finally:
            release(&text)

    def changes(self, const uint8_t[::1] chunk not None, relations, MessageBuffer out not None):
        """Write what every change of *chunk* becomes.

        Raises:
            DecodingError: a change is malformed; the details say which. Messages before it are
                kept.
        """
        self.encode(chunk, relations, out)

    cdef RelationWriter make_writer(self, object descriptor):
        return TableWriter(descriptor, self.context, self.options)

    cdef int put_change(self, const Change* change, object relations,
                        MessageBuffer out) except -1 nogil:
        cdef uint8_t action = change.header.action
        cdef LogicalMessage message
        cdef void* writer
        if action == INVALIDATION or action == SCHEMA_CHANGE:
            return 0
        if action == MESSAGE:
            read_message(change, &message)
            if self.shows_prefix(&message):
                return self.put_message(change, &message, out)
            return 0
        if action == TRUNCATE:
            if self.truncates:
                return self.put_truncate(change, relations, out)
            return 0
        if action != INSERT and action != UPDATE and action != DELETE:
            return invalid(b"a change has an action that no transaction yields")
        if (
            (action == INSERT and self.inserts)
            or (action == UPDATE and self.updates)
            or (action == DELETE and self.deletes)
        ):
            writer = self.find_writer(change.header.relation, relations)
            return put_row(self, <TableWriter>writer, change, out)
        return 0

    cdef int shows_prefix(self, const LogicalMessage* message) except -1 nogil:
        if not self.filters_messages:
            return True
        with gil:
            prefix = (<const char*>message.prefix)[: message.prefix_size]
            return prefix not in self.filter_prefixes and (not self.add_prefixes
                                                           or prefix in self.add_prefixes)

    cdef int put_message(self, const Change* change, const LogicalMessage* message,
                         MessageBuffer out) except -1 nogil:
        return 0

    cdef int put_truncate(self, const Change* change, object relations,
                          MessageBuffer out) except -1 nogil:
        return 0

    cdef int put_table_row(self, TableWriter writer, const Change* change,
                           MessageBuffer out) except -1 nogil:
        return 0


cdef int put_row(Encoder encoder, TableWriter writer, const Change* change,
                 MessageBuffer out) except -1 nogil:
    # The original warns of rows that it can't print, and leaves them out.
    if not writer.selected or (change.new_section == NULL and change.header.action != DELETE):
        return 0
    return encoder.put_table_row(writer, change, out)


cdef int put_content(const LogicalMessage* message, ByteBuffer* out) except -1 nogil:
    """Write a message's content, which ends at its first zero as a C string does."""
    cdef size_t size = message.content_size
    cdef const uint8_t* end = <const uint8_t*>memchr(message.content, 0, size) if size else NULL
    if end != NULL:
        size = end - message.content
    return put_json_string(out, message.content, size)


@cython.final
cdef class Format1Encoder(Encoder):
    """Format 1: an object for a transaction, with an array of its changes.

    Args:
        transaction_bytes_max: the bound of a transaction that is not written in chunks.
    """
    cdef bint in_chunks
    # A non-transactional message gets a comma that belongs to the transaction before it.
    cdef bint stray_comma
    cdef uint64_t change_count
    # The transaction so far, unless it is written in chunks.
    cdef ByteBuffer pending
    cdef size_t transaction_bytes_max
    cdef list owned
    cdef Text lead
    cdef Text message_lead
    cdef Text openings[3]
    cdef Text row_values
    cdef Text key_opening
    cdef Text key_values
    cdef Text key_end
    cdef Text row_end
    cdef Text separator
    cdef Text comma
    cdef Text newline
    cdef Text message_opening
    cdef Text message_true
    cdef Text message_false
    cdef Text message_content
    cdef Text message_end
    cdef Text single_opening
    cdef Text single_end

    def __init__(self, settings, options, transaction_bytes_max=TRANSACTION_BYTES_MAX):
        Encoder.__init__(self, settings, options)
        self.transaction_bytes_max = transaction_bytes_max
        self.in_chunks = options.write_in_chunks
        self.stray_comma = options.version == "2.5"
        self.owned = []
        layout = Format1Layout.of(options)
        newline, member, end = layout.newline, layout.member, layout.end()
        self.lead = self.text(("" if self.in_chunks else newline) + layout.tab * 2)
        self.message_lead = self.text(layout.tab * 2)
        for i, kind in enumerate(("insert", "update", "delete")):
            self.openings[<int>i] = self.text(layout.change(kind))
        self.row_values = self.text(member(3, "columnvalues") + "[")
        self.key_opening = self.text(f"{member(3, 'oldkeys')}{{{newline}")
        self.key_values = self.text(member(4, "keyvalues") + "[")
        self.key_end = self.text(f"{newline}{layout.tab * 3}}}{newline}")
        self.row_end = self.text(layout.tab * 2 + "}")
        self.separator = self.text(end)
        self.comma = self.text("," + layout.space)
        self.newline = self.text(newline)
        self.message_opening = self.text(layout.change("message") + member(3, "transactional"))
        self.message_true = self.text(f"true{end}{member(3, 'prefix')}")
        self.message_false = self.text(f"false{end}{member(3, 'prefix')}")
        self.message_content = self.text(end + member(3, "content"))
        self.message_end = self.text(f"{newline}{layout.tab * 2}}}")
        self.single_opening = self.text(f"{{{newline}{member(1, 'change')}[{newline}")
        self.single_end = self.text(f"{newline}{layout.tab}]{newline}}}")

    def __dealloc__(self):
        release(&self.pending)

    cdef Text text(self, str text):
        data = text.encode()
        self.owned.append(data)
        return text_of(data)

    def begin(self, uint32_t xid):
        """Start a transaction without changes."""
        self.xid = xid
        self.change_count = 0
        release(&self.pending)

    def begin_message(self, uint32_t xid):
        """Start a message outside of transactions."""
        self.xid = xid

    def append(self, const uint8_t[::1] text not None):
        """Add *text* to the transaction."""
        if text.shape[0]:
            put_bytes(&self.pending, &text[0], text.shape[0])

    def finish(self, uint64_t lsn, MessageBuffer out not None):
        """Write the transaction."""
        put_bytes(&out.payload, self.pending.data, self.pending.size)
        out.finish(lsn, self.xid)
        release(&self.pending)

    cdef int finish_change(self, const Change* change, MessageBuffer out) except -1 nogil:
        if self.in_chunks:
            return out.finish(change.header.lsn, self.xid)
        if self.pending.size > self.transaction_bytes_max:
            with gil:
                raise DecodingError(
                    f"the changes of transaction {self.xid} are more than "
                    f"{self.transaction_bytes_max} bytes of JSON",
                    hint="Read it with write-in-chunks, or in format-version 2.",
                )
        return 0

    cdef int put_table_row(self, TableWriter writer, const Change* change,
                           MessageBuffer out) except -1 nogil:
        cdef uint8_t action = change.header.action
        cdef ByteBuffer* to = &out.payload if self.in_chunks else &self.pending
        if action != INSERT and not writer.has_identity_index and not writer.full:
            return 0
        if action == DELETE and change.old_section == NULL:
            return 0
        self.change_count += 1
        put_text(to, &self.lead)
        if self.change_count > 1:
            put_byte(to, c',')
        put_text(to, &self.openings[action - INSERT])
        put_text(to, &writer.name)
        if action != DELETE:
            writer.show(change.new_section, change.new_size, change, KIND_ROW, False)
            writer.put_sections(writer.row_sections, writer.row_section_count, &self.comma, to)
            put_text(to, &self.row_values)
            writer.put_values(&self.comma, to)
            put_text(to, &self.separator if action == UPDATE or writer.pk.size else &self.newline)
        if writer.pk.size:
            put_text(to, &writer.pk)
            put_text(to, &self.newline if action == INSERT else &self.separator)
        if action != INSERT:
            self.put_identity(writer, change, to)
        put_text(to, &self.row_end)
        return self.finish_change(change, out)

    cdef int put_identity(self, TableWriter writer, const Change* change,
                          ByteBuffer* to) except -1 nogil:
        if change.header.action == DELETE:
            writer.show(change.old_section, change.old_size, change, KIND_IDENTITY, True)
        elif change.old_section != NULL:
            # All that it has.
            writer.show(change.old_section, change.old_size, change, KIND_ROW, True)
        else:
            writer.show(change.new_section, change.new_size, change, KIND_IDENTITY, True)
        put_text(to, &self.key_opening)
        writer.put_sections(writer.key_sections, writer.key_section_count, &self.comma, to)
        put_text(to, &self.key_values)
        writer.put_values(&self.comma, to)
        return put_text(to, &self.key_end)

    cdef int put_message(self, const Change* change, const LogicalMessage* message,
                         MessageBuffer out) except -1 nogil:
        cdef bint single = not message.transactional
        cdef ByteBuffer* to = &out.payload if self.in_chunks or single else &self.pending
        if single:
            put_text(to, &self.single_opening)
            put_text(to, &self.message_lead)
        else:
            self.change_count += 1
            put_text(to, &self.lead)
        if self.change_count > 1 and (not single or self.stray_comma):
            put_byte(to, c',')
        put_text(to, &self.message_opening)
        put_text(to, &self.message_false if single else &self.message_true)
        put_json_string(to, message.prefix, message.prefix_size)
        put_text(to, &self.message_content)
        put_content(message, to)
        put_text(to, &self.message_end)
        if single:
            put_text(to, &self.single_end)
            return out.finish(change.header.lsn, self.xid)
        return self.finish_change(change, out)


@cython.final
cdef class Format2Encoder(Encoder):
    """Format 2: an object for each change."""
    cdef bint include_lsn
    # What every object of the transaction has behind its action.
    cdef bytes frame_bytes
    cdef Text frame

    def __init__(self, settings, options):
        Encoder.__init__(self, settings, options)
        self.include_lsn = options.include_lsn

    def begin(self, uint32_t xid, bytes frame not None):
        """Start a transaction, or a message outside of transactions; *frame* is ``,"xid":1`` and
        the like.
        """
        self.xid = xid
        self.frame_bytes = frame
        self.frame = text_of(frame)

    cdef int open(self, uint8_t action, const Change* change, ByteBuffer* out) except -1 nogil:
        put_bytes(out, b'{"action":"', 11)
        put_byte(out, action)
        put_byte(out, c'"')
        put_text(out, &self.frame)
        if not self.include_lsn:
            return 0
        put_bytes(out, b',"lsn":"', 8)
        put_lsn(out, change.header.lsn)
        return put_byte(out, c'"')

    cdef int put_table_row(self, TableWriter writer, const Change* change,
                           MessageBuffer out) except -1 nogil:
        cdef ByteBuffer* to = &out.payload
        cdef uint8_t action = change.header.action
        cdef const uint8_t* old = change.old_section
        cdef size_t old_size = change.old_size
        if action != INSERT and old == NULL and not writer.has_identity_index and not writer.full:
            return 0
        self.open(c'I' if action == INSERT else c'U' if action == UPDATE else c'D', change, to)
        put_text(to, &writer.name)
        if change.new_section != NULL:
            put_bytes(to, b',"columns":[', 12)
            writer.show(change.new_section, change.new_size, change, KIND_ROW, False)
            writer.put_cells(KIND_ROW, to)
        if old == NULL:
            # The identity did not change: it is in the new row.
            old = change.new_section
            old_size = change.new_size
        if old != NULL and (
            change.old_section != NULL
            or (action == UPDATE and (writer.has_pk or writer.has_identity_index))
        ):
            put_bytes(to, b',"identity":[', 13)
            writer.show(old, old_size, change, KIND_IDENTITY, False)
            writer.put_cells(KIND_IDENTITY, to)
        if self.include_pk:
            put_bytes(to, b',"pk":[', 7)
            if writer.has_pk and old != NULL:
                writer.show(old, old_size, change, KIND_PK, False)
                writer.put_cells(KIND_PK, to)
            else:
                put_byte(to, c']')
        put_byte(to, c'}')
        return out.finish(change.header.lsn, self.xid)

    cdef int put_truncate(self, const Change* change, object relations,
                          MessageBuffer out) except -1 nogil:
        cdef Truncation truncation
        cdef uint32_t i
        cdef void* writer
        read_truncation(change, &truncation)
        for i in range(truncation.count):
            writer = self.find_writer(load_u32(truncation.relations + 4 * <size_t>i), relations)
            self.put_truncated(<TableWriter>writer, change, out)
        return 0

    cdef int put_truncated(self, TableWriter writer, const Change* change,
                           MessageBuffer out) except -1 nogil:
        if not writer.selected:
            return 0
        self.open(c'T', change, &out.payload)
        put_text(&out.payload, &writer.name)
        put_byte(&out.payload, c'}')
        return out.finish(change.header.lsn, self.xid)

    cdef int put_message(self, const Change* change, const LogicalMessage* message,
                         MessageBuffer out) except -1 nogil:
        cdef ByteBuffer* to = &out.payload
        self.open(c'M', change, to)
        put_bytes(to, b',"transactional":', 17)
        if message.transactional:
            put_bytes(to, b'true,"prefix":', 14)
        else:
            put_bytes(to, b'false,"prefix":', 15)
        put_json_string(to, message.prefix, message.prefix_size)
        put_bytes(to, b',"content":', 11)
        put_content(message, to)
        put_byte(to, c'}')
        return out.finish(change.header.lsn, self.xid)
