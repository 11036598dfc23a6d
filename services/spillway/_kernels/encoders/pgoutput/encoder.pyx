# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop of the pgoutput plugin: a chunk of changes in, messages of the logical replication
protocol out.

What frames prepared and streamed transactions the plugin writes itself; this kernel writes what
comes per change or per ordinary transaction, and decides before each change what must precede it:

- BEGIN, up to then held back: a transaction of which nothing is published shows nothing;
- the table's announcement (RELATION, and TYPE for types that the consumer may not know). A consumer
  keeps what it was told for the rest of the session, so a table is announced once, and again when
  the server would have thrown its own definition away (INVALIDATION). Announced in a part of a
  streamed transaction it is known only within that transaction, until that commits.

Row filters are asked about all rows of a chunk at once that are the same table's and action's, when
the first is met.

A table's rules are found out with its first change after an invalidation, and hold until the next,
as PostgreSQL's. What a session knows of a table is kept by its oid and outlives descriptors, what
is compiled from one descriptor by the relation's id (``table.pyx``). The loop runs without the GIL,
over a chunk of one transaction or over a run of small ones, and takes it to look a relation up for
the first time, to announce it, and to raise.

Source: pgoutput_change, pgoutput_truncate, pgoutput_message, maybe_send_schema,
cleanup_rel_sync_cache (src/backend/replication/pgoutput/pgoutput.c); logicalrep_write_insert and
its like (logical/proto.c)
"""

cimport cython

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory

from spillway._kernels.reorder.changes cimport (
    DELETE,
    FROM_ORIGIN,
    FROM_OTHER,
    INSERT,
    INVALIDATION,
    MESSAGE,
    SCHEMA_CHANGE,
    TRUNCATE,
    UPDATE,
)
from spillway._kernels.values.datum cimport Change, invalid, load_u32, read_change
from spillway._kernels.messages.buffer cimport ByteBuffer, MessageBuffer, put_byte, put_bytes
from spillway._kernels.encoders.pgoutput.table cimport (
    Judgement,
    RelationEncoder,
    RelationState,
    invalidate_state,
    is_current,
    kept_states,
    loaded_states,
    put_truncated,
    saved_states,
)
from spillway._kernels.values.send.scalar cimport put_int32, put_int64
from spillway._kernels.values.send.text cimport put_text
from spillway._kernels.values.text.output cimport TextContext
from spillway._kernels.reorder.transaction_run cimport Entry, TransactionRun
from spillway._kernels.encoders.chunk_encoder import located
from spillway.errors import DecodingError, SpillwayError
from spillway.pg.versions import Since

cdef int CHECKS_OLD_ROW_FIRST = Since.PGOUTPUT_CHECKS_OLD_ROW_FIRST
cdef int FOLLOWS_PUBLICATIONS = Since.PGOUTPUT_FOLLOWS_PUBLICATIONS

cdef enum:
    TRUNCATE_CASCADE = 1
    TRUNCATE_RESTART_SEQS = 2
    MESSAGE_TRANSACTIONAL = 1
    # Verdicts of plugins/row_filter.py.
    DROP = 0
    KEEP = 1
    AS_INSERT = 2
    AS_DELETE = 3
    # Relations that one chunk may alternate between before look-ups cost the GIL.
    SLOTS = 64
    # Compiled relations that are kept; descriptors of the past are never asked for again.
    ENCODERS_MAX = 1024
    STATES_MIN = 256


cdef struct Slot:
    uint32_t relation
    # borrowed from ``encoders``; NULL: free
    void* encoder


# Final, so that its methods are called directly, and those that run for each change become part of
# the loop.
@cython.final
cdef class Encoder:
    """Writes the messages of transactions.

    Args:
        settings: a ``pg.text_settings.TextSettings``.
        rules: called with a RelationDescriptor; returns its
            ``plugins.pgoutput_relation.Publishing``.
        publications_changed: called with each item of an INVALIDATION that is no relation.
        binary: send values in their types' send format, where they have one.
    """
    cdef TextContext context
    cdef object rules
    cdef object publications_changed
    cdef bint binary
    # true: write logical messages
    cdef public bint messages
    # true: leave out what came in through a replication origin
    cdef public bint only_local
    # makes of a SCHEMA_CHANGE's content prefix and content of a message, and says which table is
    # to be announced anew after it (oid, 0 for all; None for none); None: they are left out
    cdef public object schema_message
    # oid → RelationState
    cdef dict states
    # with so many of them it is looked which can be forgotten
    cdef size_t states_max
    # counts what changed in them: whoever saved them need not again while this is the same
    cdef readonly uint64_t state_changes
    # relation id → RelationEncoder
    cdef dict encoders
    cdef Slot slots[SLOTS]
    # The transaction at hand.
    cdef uint32_t xid
    # nothing of it is published
    cdef bint skip
    # BEGIN was written; until then it waits for the first published change, with what it says
    cdef bint is_open
    cdef uint64_t final_lsn
    cdef int64_t commit_time
    # the message ORIGIN, or None
    cdef bytes origin
    cdef bint in_stream
    # STREAM START was not written: it waits for the part's first change that is not left out
    cdef bint is_part_held_back
    cdef bint is_first_part
    # numbers parts of streamed transactions, from 1
    cdef uint64_t part
    # The chunk at hand; chunks are numbered from 1.
    cdef uint64_t chunk
    cdef const uint8_t* chunk_data
    cdef size_t chunk_size
    # what row filters said of its changes
    cdef list verdicts
    # The change at hand.
    cdef uint64_t lsn
    cdef uint32_t change_xid
    cdef uint32_t relation

    def __cinit__(self, settings, rules, publications_changed, bint binary):
        self.context = TextContext(settings)
        self.rules = rules
        self.publications_changed = publications_changed
        self.binary = binary
        self.states = {}
        self.states_max = STATES_MIN
        self.encoders = {}
        self.verdicts = []

    # What the plugin tells of transactions.

    def begin(self, uint32_t xid, uint64_t final_lsn, int64_t commit_time, bytes origin):
        """Start a transaction; have BEGIN, and *origin* if there is one, ready for its first
        published change.
        """
        self.start_held_back(xid, final_lsn, commit_time)
        self.origin = origin

    def open_now(self, uint64_t lsn, MessageBuffer out not None):
        """Write what ``begin`` got ready."""
        self.lsn = lsn
        self.write_opening(out)

    def commit(self, uint64_t end_lsn, MessageBuffer out not None):
        """Write COMMIT, if BEGIN was written."""
        self.write_commit(end_lsn, out)

    def begin_opened(self, uint32_t xid):
        """Start what the plugin itself has opened."""
        self.start(xid)

    def begin_skipped(self, uint32_t xid):
        """Start a transaction of which nothing is published; but what it made invalid is."""
        self.start(xid)
        self.skip = True

    def begin_part(self, uint32_t xid):
        """Start a part of a streamed transaction."""
        self.start(xid)
        self.in_stream = True
        self.part += 1

    def begin_part_held_back(self, uint32_t xid, bint first):
        """Start a part of a streamed transaction; have STREAM START ready for its first change that
        did not come in through a replication origin.
        """
        self.begin_part(xid)
        self.is_part_held_back = True
        self.is_first_part = first

    @property
    def has_begun_part(self):
        """Whether STREAM START was written of the part that ``begin_part_held_back`` started."""
        return not self.is_part_held_back

    cdef void start(self, uint32_t xid) noexcept nogil:
        self.xid = xid
        self.is_open = True
        self.skip = False
        self.in_stream = False
        self.is_part_held_back = False

    cdef void start_held_back(self, uint32_t xid, uint64_t final_lsn,
                              int64_t commit_time) noexcept nogil:
        self.start(xid)
        self.is_open = False
        self.final_lsn = final_lsn
        self.commit_time = commit_time

    def save(self):
        """Return what was told of tables and by which rules, in a form that compares; not of
        streamed transactions.
        """
        return saved_states(self.states)

    def load(self, saved):
        """Go on from what another encoder saved."""
        self.states = loaded_states(saved)
        self.encoders.clear()
        memset(self.slots, 0, sizeof(self.slots))
        self.state_changes += 1

    def forget_streamed(self, uint32_t xid, bint committed):
        """Drop what is known of a streamed transaction; what it announced stays known if it
        committed.
        """
        cdef RelationState state
        for state in self.states.values():
            if xid in state.streamed:
                state.streamed.discard(xid)
                if committed:
                    state.schema_sent = True

    def changes(self, chunk not None, relations, MessageBuffer out not None):
        """Write the messages of every change of *chunk*.

        Raises:
            DecodingError: a change is malformed; the details say which. Messages before it are
                kept.
            SpillwayError: a table can't be published as its publications say.
        """
        cdef const uint8_t[::1] data = chunk
        cdef size_t size = data.shape[0]
        if size == 0:
            return
        self.begin_call()
        try:
            with nogil:
                self.run(&data[0], size, relations, out)
        except BaseException as error:
            self.fail(error, relations, out)
        finally:
            self.end_chunk()

    def transactions(self, TransactionRun run not None, MessageBuffer out not None,
                     size_t batch_bytes, size_t message_limit, bint opened):
        """Write transactions of *run* until one ends with *batch_bytes* or *message_limit* messages
        in *out*.

        With *opened* BEGIN is written at once, not with the first published change.

        Raises:
            As :meth:`changes`.
        """
        relations = run.relations
        self.begin_call()
        self.origin = None
        try:
            with nogil:
                self.run_transactions(run, relations, out, batch_bytes, message_limit, opened)
        except BaseException as error:
            self.fail(error, relations, out)
        finally:
            self.end_chunk()

    cdef void begin_call(self) noexcept:
        # The same id may mean another descriptor in another call's relations.
        memset(self.slots, 0, sizeof(self.slots))
        self.lsn = 0
        self.relation = 0

    cdef int end_chunk(self) except -1:
        self.chunk_data = NULL
        self.verdicts.clear()
        return 0

    cdef int fail(self, error, relations, MessageBuffer out) except -1:
        """Raise *error* with what is known of the change at hand; the messages before it are
        kept.
        """
        out.discard()
        if isinstance(error, SpillwayError):
            raise located(error, self.lsn, relations.get(self.relation)) from error
        raise error

    # The loop.

    cdef int run_transactions(self, TransactionRun run, relations, MessageBuffer out,
                              size_t batch_bytes, size_t message_limit,
                              bint opened) except -1 nogil:
        cdef Entry entry
        while run.take(&entry):
            self.start_held_back(entry.header.xid, entry.header.final_lsn, entry.header.commit_time)
            if opened:
                self.lsn = entry.header.first_lsn
                self.write_opening(out)
            self.run(entry.chunk, entry.chunk_size, relations, out)
            self.write_commit(entry.header.end_lsn, out)
            if out.message_start >= batch_bytes or out.count >= message_limit:
                break
        return 0

    cdef int run(self, const uint8_t* chunk, size_t size, relations,
                 MessageBuffer out) except -1 nogil:
        cdef size_t offset = 0
        cdef Change change
        self.chunk += 1
        self.chunk_data = chunk
        self.chunk_size = size
        while offset < size:
            read_change(chunk, size, &offset, &change)
            self.lsn = change.header.lsn
            self.change_xid = change.header.xid
            self.relation = change.header.relation
            if change.header.action == INVALIDATION:
                # ReorderBufferForget executes the transaction's own alone.
                if not (self.skip and change.header.flags & FROM_OTHER):
                    self.invalidate(&change)
                continue
            if change.header.action == SCHEMA_CHANGE and self.schema_message is None:
                continue
            if self.skip or (self.only_local and change.header.flags & FROM_ORIGIN):
                continue
            if self.is_part_held_back:
                self.write_stream_start(out)
            if change.header.action == MESSAGE:
                self.put_message(&change, out)
            elif change.header.action == SCHEMA_CHANGE:
                with gil:
                    self.put_schema_change(&change, out)
            elif change.header.action == TRUNCATE:
                self.put_truncate(&change, relations, out)
            else:
                self.put_row(&change, relations, out)
        return 0

    cdef int put_row(self, const Change* change, relations, MessageBuffer out) except -1 nogil:
        cdef void* found = self.find_encoder(change.header.relation, relations)
        return self.put_row_of(<RelationEncoder>found, change, out)

    cdef int put_row_of(self, RelationEncoder encoder, const Change* change,
                        MessageBuffer out) except -1 nogil:
        cdef uint8_t action = change.header.action
        cdef uint8_t verdict
        if not INSERT <= action <= DELETE:
            return invalid(b"a change has an action that no transaction yields")
        if action == DELETE and change.old_section == NULL:
            # Nothing tells which row it was. PostgreSQL 14 found out only after the announcement.
            if encoder.deletes and self.context.values.server_version_num < CHECKS_OLD_ROW_FIRST:
                self.prepare(encoder, out)
            return 0
        verdict = self.judge(encoder, action)
        if verdict == DROP or not (
            encoder.inserts if action == INSERT else encoder.updates if action == UPDATE
            else encoder.deletes
        ):
            return 0
        self.prepare(encoder, out)
        if verdict == AS_INSERT:
            self.start_message(c'I', self.change_xid, &out.payload)
            put_int32(&out.payload, encoder.target_oid)
            put_byte(&out.payload, c'N')
            encoder.rows.put_merged(change, &out.payload)
            return out.finish(change.header.lsn, self.xid)
        if verdict == AS_DELETE:
            action = DELETE
        self.start_message(
            c'I' if action == INSERT else c'U' if action == UPDATE else c'D', self.change_xid,
            &out.payload
        )
        put_int32(&out.payload, encoder.target_oid)
        if action != INSERT and change.old_section != NULL:
            put_byte(&out.payload, encoder.old_tag)
            encoder.rows.put_tuple(change.old_section, change.old_size, change, &out.payload)
        if action != DELETE:
            put_byte(&out.payload, c'N')
            encoder.rows.put_tuple(change.new_section, change.new_size, change, &out.payload)
        return out.finish(change.header.lsn, self.xid)

    cdef int judge(self, RelationEncoder encoder, uint8_t action) except -1 nogil:
        """Return what the table's row filter says of the change at hand."""
        cdef Judgement* judgement = &encoder.judgements[action - INSERT]
        cdef size_t number
        if encoder.chunk != self.chunk:
            self.forget_judgements(encoder)
        number = judgement.seen
        judgement.seen += 1
        if not judgement.filtered:
            return KEEP
        if judgement.verdicts == NULL:
            with gil:
                self.ask_filter(encoder, action)
        if number >= judgement.count:
            return invalid(b"a row filter passed over a change")
        return judgement.verdicts[number]

    cdef void forget_judgements(self, RelationEncoder encoder) noexcept nogil:
        cdef int i
        encoder.chunk = self.chunk
        for i in range(3):
            encoder.judgements[i].seen = 0
            encoder.judgements[i].verdicts = NULL
            encoder.judgements[i].count = 0

    cdef int ask_filter(self, RelationEncoder encoder, uint8_t action) except -1:
        """Have all rows of the chunk judged that the same filter is about."""
        cdef Judgement* judgement = &encoder.judgements[action - INSERT]
        cdef object chunk = PyMemoryView_FromMemory(<char*>self.chunk_data, self.chunk_size,
                                                    PyBUF_READ)
        cdef bytes verdicts = encoder.filters[action - INSERT].verdicts(
            chunk, self.relation, action, only_local=self.only_local
        )
        self.verdicts.append(verdicts)
        judgement.verdicts = <const uint8_t*>PyBytes_AS_STRING(verdicts)
        judgement.count = PyBytes_GET_SIZE(verdicts)
        return 0

    cdef int put_truncate(self, const Change* change, relations, MessageBuffer out) except -1 nogil:
        cdef uint32_t flags, count, i
        cdef uint32_t published = 0
        cdef void* found
        if change.new_section == NULL or change.new_size < 8:
            return invalid(b"a truncation ends inside its header")
        flags = load_u32(change.new_section)
        count = load_u32(change.new_section + 4)
        if count > (change.new_size - 8) // 4:
            return invalid(b"a truncation has fewer relations than it says")
        # Announcements of the tables come before the message that names them.
        for i in range(count):
            self.relation = load_u32(change.new_section + 8 + 4 * <size_t>i)
            found = self.find_encoder(self.relation, relations)
            published += self.prepare_truncated(<RelationEncoder>found, out)
        if published == 0:
            return 0
        self.start_message(c'T', self.change_xid, &out.payload)
        put_int32(&out.payload, published)
        put_byte(&out.payload, flags & (TRUNCATE_CASCADE | TRUNCATE_RESTART_SEQS))
        for i in range(count):
            self.relation = load_u32(change.new_section + 8 + 4 * <size_t>i)
            found = self.find_encoder(self.relation, relations)
            put_truncated(<RelationEncoder>found, &out.payload)
        return out.finish(change.header.lsn, self.xid)

    cdef int prepare_truncated(self, RelationEncoder encoder, MessageBuffer out) except -1 nogil:
        """Return 1 for a table whose truncation is published, announced if need be; 0 otherwise."""
        if not encoder.truncates:
            return 0
        self.prepare(encoder, out)
        return 1

    cdef int put_message(self, const Change* change, MessageBuffer out) except -1 nogil:
        cdef uint32_t transactional, prefix_size
        cdef size_t content_size
        if change.new_section == NULL or change.new_size < 8:
            return invalid(b"a logical message ends inside its header")
        transactional = load_u32(change.new_section)
        prefix_size = load_u32(change.new_section + 4)
        if prefix_size > change.new_size - 8:
            return invalid(b"a logical message ends inside its prefix")
        content_size = change.new_size - 8 - prefix_size
        if not self.messages:
            return 0
        if transactional:
            self.open(out)
        # Of the top-level transaction, whichever subtransaction wrote it.
        self.start_message(c'M', self.xid, &out.payload)
        put_byte(&out.payload, MESSAGE_TRANSACTIONAL if transactional else 0)
        put_int64(&out.payload, change.header.lsn)
        put_text(&out.payload, change.new_section + 8, prefix_size, &self.context.values)
        put_byte(&out.payload, 0)
        put_int32(&out.payload, <uint32_t>content_size)
        put_bytes(&out.payload, change.new_section + 8 + prefix_size, content_size)
        return out.finish(change.header.lsn, self.xid)

    cdef int put_schema_change(self, const Change* change, MessageBuffer out) except -1:
        """Write the event as a transactional logical message."""
        cdef bytes prefix, text
        cdef RelationState state
        prefix, text, anew = self.schema_message(
            (<const char*>change.new_section)[:<Py_ssize_t>change.new_size]
        )
        self.open(out)
        self.start_message(c'M', self.xid, &out.payload)
        put_byte(&out.payload, MESSAGE_TRANSACTIONAL)
        put_int64(&out.payload, change.header.lsn)
        put_bytes(&out.payload, <const char*>prefix, len(prefix))
        put_byte(&out.payload, 0)
        put_int32(&out.payload, <uint32_t>len(text))
        put_bytes(&out.payload, <const char*>text, len(text))
        out.finish(change.header.lsn, self.xid)
        if anew is not None:
            self.invalidate_one(anew, 0)
            # Of what 14 keeps, too: whose it is published as.
            for state in self.states.values() if anew == 0 else (self.states.get(anew),):
                if state is not None:
                    state.rules_valid = False
        return 0

    cdef int start_message(self, uint8_t tag, uint32_t xid, ByteBuffer* out) except -1 nogil:
        """Write a message's type and, within a part of a streamed transaction, whose change it
        is.
        """
        put_byte(out, tag)
        if self.in_stream:
            return put_int32(out, xid)
        return 0

    # What precedes a change.

    cdef int prepare(self, RelationEncoder encoder, MessageBuffer out) except -1 nogil:
        """Open the transaction and announce the table, as far as neither has happened yet."""
        cdef bint known
        self.open(out)
        if self.in_stream:
            known = encoder.state.known_in_part == self.part
        else:
            known = encoder.state.schema_sent
        if not known:
            with gil:
                self.announce(encoder, out)
        return 0

    cdef int open(self, MessageBuffer out) except -1 nogil:
        if self.is_open:
            return 0
        return self.write_opening(out)

    cdef int write_opening(self, MessageBuffer out) except -1 nogil:
        self.is_open = True
        put_byte(&out.payload, c'B')
        put_int64(&out.payload, self.final_lsn)
        put_int64(&out.payload, self.commit_time)
        put_int32(&out.payload, self.xid)
        out.finish(self.lsn, self.xid)
        if self.origin is not None:
            with gil:
                put_bytes(&out.payload, PyBytes_AS_STRING(self.origin),
                          PyBytes_GET_SIZE(self.origin))
            out.finish(self.lsn, self.xid)
        return 0

    cdef int write_stream_start(self, MessageBuffer out) except -1 nogil:
        self.is_part_held_back = False
        put_byte(&out.payload, c'S')
        put_int32(&out.payload, self.xid)
        put_byte(&out.payload, self.is_first_part)
        return out.finish(self.lsn, self.xid)

    cdef int write_commit(self, uint64_t end_lsn, MessageBuffer out) except -1 nogil:
        if not self.is_open:
            return 0
        put_byte(&out.payload, c'C')
        # No flags are defined.
        put_byte(&out.payload, 0)
        put_int64(&out.payload, self.final_lsn)
        put_int64(&out.payload, end_lsn)
        put_int64(&out.payload, self.commit_time)
        return out.finish(end_lsn, self.xid)

    cdef int announce(self, RelationEncoder encoder, MessageBuffer out) except -1:
        cdef RelationState state = encoder.state
        cdef bytes body
        if self.in_stream and self.xid in state.streamed:
            state.known_in_part = self.part
            return 0
        self.state_changes += 1
        for body in encoder.announcement:
            self.start_message(body[0], self.change_xid, &out.payload)
            put_bytes(&out.payload, PyBytes_AS_STRING(body) + 1, PyBytes_GET_SIZE(body) - 1)
            out.finish(self.lsn, self.xid)
        if self.in_stream:
            state.streamed.add(self.xid)
            state.known_in_part = self.part
        else:
            state.schema_sent = True
        return 0

    # Relations.

    cdef int invalidate(self, const Change* change) except -1 nogil:
        cdef uint32_t count, i
        cdef const uint8_t* items = change.new_section
        if items == NULL or change.new_size < 8:
            return invalid(b"an invalidation ends inside its header")
        count = load_u32(change.new_section)
        if count > (change.new_size - 8) // 8:
            return invalid(b"an invalidation has fewer items than it says")
        with gil:
            for i in range(1, count + 1):
                self.invalidate_one(load_u32(items + 8 * <size_t>i),
                                    load_u32(items + 8 * <size_t>i + 4))
        return 0

    cdef int invalidate_one(self, uint32_t oid, uint32_t catalog) except -1:
        cdef RelationState state
        cdef bint follows = self.context.values.server_version_num >= FOLLOWS_PUBLICATIONS
        self.state_changes += 1
        if catalog != 0:
            self.publications_changed(<uint64_t>catalog << 32 | oid)
            # From 15 on, the tables that are concerned are items, too.
            for state in () if follows else self.states.values():
                state.rules_valid = False
            return 0
        for state in self.states.values() if oid == 0 else (self.states.get(oid),):
            if state is not None:
                invalidate_state(state, not follows)
        return 0

    cdef void* find_encoder(self, uint32_t relation, relations) except NULL nogil:
        cdef Slot* slot = &self.slots[relation % SLOTS]
        if (slot.encoder == NULL or slot.relation != relation
                or not is_current(<RelationEncoder>slot.encoder)):
            with gil:
                self.encoder(relation, relations)
        return slot.encoder

    cdef RelationEncoder encoder(self, uint32_t relation, relations):
        """Return the encoder of *relation*, compiled if need be, and put it into its slot."""
        cdef RelationEncoder encoder, previous
        cdef int i
        cdef RelationState state
        descriptor = relations.get(relation)
        if descriptor is None:
            raise DecodingError(f"a change is of relation {relation}, whose descriptor did not "
                                "come with it")
        state = self.states.get(descriptor.oid)
        if state is None:
            if len(self.states) >= self.states_max:
                self.states = kept_states(self.states)
                self.states_max = max(<size_t> STATES_MIN, 2 * <size_t> len(self.states))
                self.state_changes += 1
            state = RelationState()
            self.states[descriptor.oid] = state
        encoder = self.encoders.get(relation)
        if encoder is None or encoder.descriptor is not descriptor or not is_current(encoder):
            if len(self.encoders) >= ENCODERS_MAX:
                self.encoders.clear()
                memset(self.slots, 0, sizeof(self.slots))
            if not (state.valid and state.rules_valid):
                self.validate(state, descriptor)
            # What is compiled may have another target.
            self.state_changes += 1
            previous = encoder
            encoder = RelationEncoder(descriptor, state, self.context, self.binary)
            if previous is not None and previous.chunk == self.chunk:
                encoder.chunk = self.chunk
                for i in range(3):
                    encoder.judgements[i].seen = previous.judgements[i].seen
            self.encoders[relation] = encoder
        self.slots[relation % SLOTS].relation = relation
        self.slots[relation % SLOTS].encoder = <void*>encoder
        return encoder

    cdef int validate(self, RelationState state, descriptor) except -1:
        """Find the rules of a table anew and have it announced again, as far as needed."""
        if not state.rules_valid:
            state.publishing = self.rules(descriptor)
            state.rules_valid = True
        if not state.valid:
            state.schema_sent = False
            state.streamed.clear()
            state.known_in_part = 0
            state.valid = True
        state.generation += 1
        return 0
