# cython: language_level=3, boundscheck=False, wraparound=False
"""A group: what has come of a pgoutput stream, transaction behind transaction, until it is written.

:meth:`ChangeGroup.feed` takes messages of protocol 1 to 4 as they come in batches, reads each of
them through once and keeps the bytes of changes in one arena. Nothing is made of a row until
somebody asks: the exact writer gets Python objects, change by change (:meth:`ChangeGroup.changes`);
for the grouped writer another kernel nets the changes where they lie.

A group consists of *units*. Ordinary transactions come together, as many as have arrived
(``is_plain``). Any other unit (a prepared transaction and what becomes of it, a stretch of a
streamed one and its end) is a group of its own. What has begun and not ended stays when the group
is cleared, and counts for nothing until then; but a transaction that alone is as large as
*bytes_max* is given in pieces (``is_piece``), so that memory is bounded by that and one message.

A table is a Relation message. Tables can be announced anew at any place, within a transaction, too;
each change knows the announcement that it was made under.

Nothing in a stream is trusted: what reads beyond a message's end, a row with another number of
columns than its table, a table that was not announced, messages in an order that cannot be, are a
MalformedMessage, and the message that it is about has not been taken.

Source: src/backend/replication/logical/proto.c, worker.c
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from spillway._kernels.apply.reader cimport (
    Reader,
    load_u32,
    read_bytes,
    read_i64,
    read_name,
    read_u8,
    read_u16,
    read_u32,
    read_u64,
    skip_tuple,
)
from spillway._kernels.messages.buffer cimport ByteBuffer, put_bytes, release, reserve

from spillway.apply.changes import (
    UNCHANGED,
    BinaryValue,
    Change,
    SourceColumn,
    SourceRelation,
    Touched,
    TransactionHead,
)
from spillway.errors import MalformedMessage

cdef enum:
    # flags of TRUNCATE
    CASCADE = 1
    RESTART_SEQS = 2
    # where in a logical message its prefix is, behind its letter and an xid
    MESSAGE_PREFIX_AT = 9
    # with the final zero
    DDL_PREFIX_SIZE = 13
    # more versions of relations than this, and those that count no more are forgotten
    VERSIONS_KEPT = 4096

cdef const char* DDL_PREFIX = b"spillway.ddl"
cdef const char* CUT = b"it is cut short"
cdef const char* LONG = b"there is more in it than belongs to it"
cdef const char* ORDER = b"nothing like it may come here"
cdef const char* UNKNOWN_RELATION = b"its table was not announced"
cdef const char* BAD_TUPLE = b"its row is not one of its table"
cdef const char* UNKNOWN_KIND = b"pgoutput has no such message"


cdef class ChangeGroup:
    """Takes messages until it is full.

    Args:
        bytes_max: bytes of changes, with what is kept about them, from which it is full.
        known: a group that reads, or has read, the same stream: what that one knows of tables is
            known here, too. A copy: neither learns from the other afterwards.
    """

    def __cinit__(self, size_t bytes_max, ChangeGroup known=None):
        self.bytes_max = bytes_max
        self.names = {}
        self.versions = []
        self.known = {}
        self.types = {}
        self.last_relation_id = 0
        if known is not None:
            self.types = dict(known.types)
            self.versions = list(known.versions)
            self.known = dict(known.known)
            put_bytes(&self.widths, known.widths.data, known.widths.size)
            if known.current_size:
                self.current = <Current*>calloc(known.current_size, sizeof(Current))
                if self.current == NULL:
                    raise MemoryError
                memcpy(self.current, known.current, known.current_size * sizeof(Current))
                self.current_size = known.current_size
                self.current_count = known.current_count

    def __dealloc__(self):
        release(&self.arena)
        release(&self.items)
        release(&self.units)
        release(&self.truncated)
        release(&self.widths)
        free(self.current)

    # -- taking messages

    def feed(self, const uint8_t[::1] payload not None, const uint8_t[::1] lengths not None,
             size_t first=0):
        """Take the messages of a batch, from the one with the index *first* on; return the index of
        the first that was not taken.

        It stops at the batch's end, when the group is full, and before and behind a unit that must
        stand alone (then it is full, too). A full group takes nothing.

        Args:
            payload: messages back to back.
            lengths: a u32 for each, in the machine's byte order, as ``EncodedBatch`` has it.
            first: how many of them were taken before.

        Raises:
            MalformedMessage: a message is none of pgoutput's, or may not come here. Those before it
                have been taken.
            ValueError: the arrays don't fit one another.
        """
        cdef size_t count = <size_t>lengths.shape[0] // sizeof(uint32_t)
        cdef size_t size = <size_t>payload.shape[0]
        cdef size_t at = 0
        cdef size_t n
        cdef uint32_t length = 0
        cdef bint stop_before = False
        cdef const char* reason = NULL
        if <size_t>lengths.shape[0] % sizeof(uint32_t) or first > count:
            raise ValueError("the arrays of a batch don't fit one another")
        with nogil:
            for n in range(first):
                memcpy(&length, &lengths[n * sizeof(uint32_t)], sizeof(uint32_t))
                at += length
            n = first
            while n < count and not self.full:
                memcpy(&length, &lengths[n * sizeof(uint32_t)], sizeof(uint32_t))
                if at > size or length > size - at:
                    with gil:
                        raise ValueError("the arrays of a batch don't fit one another")
                reason = self.take(
                    &payload[at] if length else NULL, length, &stop_before
                )
                if reason != NULL or stop_before:
                    break
                at += length
                n += 1
        if reason != NULL:
            letter = chr(payload[at]) if length else ""
            raise MalformedMessage(
                f"message {letter!r} of {length} bytes, number {n} of its batch, cannot be read: "
                f"{reason.decode()}",
                index=n,
            )
        return n

    cdef const char* take(
        self, const uint8_t* data, size_t size, bint* stop_before
    ) except? NULL nogil:
        """Take one message; return why it is none, or NULL."""
        cdef uint8_t letter
        cdef const char* reason
        if size == 0:
            return CUT
        letter = data[0]
        if letter == c"I" or letter == c"U" or letter == c"D" or letter == c"T" or letter == c"M":
            reason = self.take_change(data, size)
            # A transaction that is too large is given as it is so far.
            if self.within and self.nbytes_now() >= self.bytes_max:
                self.full = True
            return reason
        if letter == c"R" or letter == c"Y":
            with gil:
                return self.take_relation(data, size)
        return self.take_head(data, size, stop_before)

    cdef inline size_t nbytes_now(self) noexcept nogil:
        return self.arena.size + self.items.size + self.units.size

    cdef int keep(self, const uint8_t* data, size_t size, Item* item) except -1 nogil:
        """Add a message and its item."""
        reserve(&self.items, sizeof(Item))
        item.message = self.arena.size
        item.size = <uint32_t>size
        put_bytes(&self.arena, data, size)
        memcpy(self.items.data + self.items.size, item, sizeof(Item))
        self.items.size += sizeof(Item)
        return 0

    cdef const char* take_change(self, const uint8_t* data, size_t size) except? NULL nogil:
        cdef Reader reader
        cdef Item item
        cdef uint8_t tag
        cdef uint16_t columns
        cdef uint32_t _, count, version, relation_id
        cdef size_t tables
        reader.data = data
        reader.size = size
        reader.at = 1
        reader.is_cut = False
        memset(&item, 0, sizeof(Item))
        item.kind = data[0]
        if not self.within and item.kind != c"M":
            return ORDER
        if self.streaming:
            item.xid = read_u32(&reader)
        if item.kind == c"M":
            # Those that are not transactional come between transactions, too, and nobody applies
            # any.
            if self.within:
                if (size > reader.at + MESSAGE_PREFIX_AT + DDL_PREFIX_SIZE
                        and memcmp(data + reader.at + MESSAGE_PREFIX_AT, DDL_PREFIX,
                                   DDL_PREFIX_SIZE) == 0):
                    item.old_tag = c"D"
                    self.schema_changes += 1
                self.keep(data, size, &item)
            return NULL
        if item.kind == c"T":
            count = read_u32(&reader)
            read_u8(&reader)
            if count > (size - reader.at) // sizeof(uint32_t):
                return CUT
            tables = self.truncated.size
            for _ in range(count):
                version = self.version_of(read_u32(&reader))
                if version == 0:
                    self.truncated.size = tables
                    return UNKNOWN_RELATION
                version -= 1
                put_bytes(&self.truncated, &version, sizeof(version))
            if reader.at != size:
                self.truncated.size = tables
                return LONG
            item.old_at = <uint32_t>(tables // sizeof(uint32_t))
            item.new_at = count
            self.keep(data, size, &item)
            return NULL
        relation_id = read_u32(&reader)
        version = self.version_of(relation_id)
        if reader.is_cut:
            return CUT
        if version == 0:
            return UNKNOWN_RELATION
        item.relation = version - 1
        columns = (<uint16_t*>self.widths.data)[item.relation]
        tag = read_u8(&reader)
        if (tag == c"K" or tag == c"O") and item.kind != c"I":
            item.old_tag = tag
            item.old_at = <uint32_t>reader.at
            if not skip_tuple(&reader, columns):
                return CUT if reader.is_cut else BAD_TUPLE
            if item.kind == c"U":
                tag = read_u8(&reader)
        elif item.kind == c"D":
            return CUT if reader.is_cut else BAD_TUPLE
        if item.kind != c"D":
            if tag != c"N":
                return CUT if reader.is_cut else BAD_TUPLE
            item.new_at = <uint32_t>reader.at
            if not skip_tuple(&reader, columns):
                return CUT if reader.is_cut else BAD_TUPLE
        if reader.at != size:
            return LONG
        self.keep(data, size, &item)
        return NULL

    cdef Unit* open_unit(self, uint8_t kind) except NULL nogil:
        """Begin a unit at the items' end."""
        cdef Unit* unit
        reserve(&self.units, sizeof(Unit))
        unit = <Unit*>(self.units.data + self.units.size)
        memset(unit, 0, sizeof(Unit))
        unit.kind = kind
        unit.first = unit.end = self.items.size // sizeof(Item)
        self.units.size += sizeof(Unit)
        return unit

    cdef const char* take_head(
        self, const uint8_t* data, size_t size, bint* stop_before
    ) except? NULL nogil:
        """Take what begins, ends or is a unit, and Origin."""
        cdef Reader reader
        cdef Unit read
        cdef Unit* unit
        cdef Item item
        cdef uint8_t letter = data[0]
        cdef bint alone = False
        cdef bint ends = False
        reader.data = data
        reader.size = size
        reader.at = 1
        reader.is_cut = False
        memset(&read, 0, sizeof(Unit))
        memset(&item, 0, sizeof(Item))
        item.kind = letter
        read.kind = letter
        if letter == c"C" or letter == c"P" or letter == c"E" or letter == c"O":
            if not self.within:
                return ORDER
            unit = <Unit*>(self.units.data + self.units.size) - 1
            if letter == c"O":
                with gil:
                    return self.take_origin(&reader)
            if letter == c"E":
                if unit.kind != c"S":
                    return ORDER
            else:
                if unit.kind != (c"B" if letter == c"C" else c"b"):
                    return ORDER
                read_u8(&reader)
                read.commit_lsn = read_u64(&reader)
                read.end_lsn = read_u64(&reader)
                read.commit_time = read_i64(&reader)
                if letter == c"P":
                    read.xid = read_u32(&reader)
                    with gil:
                        read_name(&reader)
            if reader.is_cut or reader.at != size:
                return CUT if reader.is_cut else LONG
            if letter != c"E":
                unit.commit_lsn = read.commit_lsn
                unit.end_lsn = read.end_lsn
                unit.commit_time = read.commit_time
            else:
                self.keep(data, size, &item)
            unit.end = self.items.size // sizeof(Item)
            self.within = False
            self.streaming = False
            self.ended += 1
            if unit.kind != c"B" or unit.is_continued or self.nbytes_now() >= self.bytes_max:
                self.full = True
            return NULL
        if self.within:
            return ORDER
        if letter == c"B":
            read.commit_lsn = read_u64(&reader)
            read.commit_time = read_i64(&reader)
            read.xid = read_u32(&reader)
        elif letter == c"b":
            alone = True
            read.commit_lsn = read_u64(&reader)
            read.end_lsn = read_u64(&reader)
            read.commit_time = read_i64(&reader)
            read.xid = read_u32(&reader)
        elif letter == c"S":
            alone = True
            read.xid = read_u32(&reader)
            read.is_first_stretch = read_u8(&reader) == 1
        elif letter == c"K":
            alone = ends = True
            read_u8(&reader)
            read.commit_lsn = read_u64(&reader)
            read.end_lsn = read_u64(&reader)
            read.commit_time = read_i64(&reader)
            read.xid = read_u32(&reader)
        elif letter == c"r":
            alone = ends = True
            read_u8(&reader)
            read.commit_lsn = read_u64(&reader)
            read.end_lsn = read_u64(&reader)
            read.prepare_time = read_i64(&reader)
            read.commit_time = read_i64(&reader)
            read.xid = read_u32(&reader)
        elif letter == c"c":
            alone = ends = True
            read.xid = read_u32(&reader)
            read_u8(&reader)
            read.commit_lsn = read_u64(&reader)
            read.end_lsn = read_u64(&reader)
            read.commit_time = read_i64(&reader)
        elif letter == c"p":
            alone = ends = True
            read_u8(&reader)
            read.commit_lsn = read_u64(&reader)
            read.end_lsn = read_u64(&reader)
            read.commit_time = read_i64(&reader)
            read.xid = read_u32(&reader)
        elif letter == c"A":
            alone = ends = True
            read.xid = read_u32(&reader)
            read.sub_xid = read_u32(&reader)
            # From protocol 4, when streamed transactions are applied in parallel.
            if reader.at != size:
                read.commit_lsn = read_u64(&reader)
                read.commit_time = read_i64(&reader)
        else:
            return UNKNOWN_KIND
        if alone and self.ended:
            stop_before[0] = True
            self.full = True
            return NULL
        if letter == c"b" or letter == c"K" or letter == c"r" or letter == c"p":
            with gil:
                gid = read_name(&reader)
                if not reader.is_cut and reader.at == size:
                    self.names[self.units.size // sizeof(Unit)] = [
                        None, gid.decode(errors="replace")]
            read.is_named = True
        if reader.is_cut or reader.at != size:
            return CUT if reader.is_cut else LONG
        unit = self.open_unit(letter)
        read.first = read.end = unit.first
        unit[0] = read
        if letter == c"S":
            self.keep(data, size, &item)
            self.streaming = True
        if ends:
            self.ended += 1
            self.full = True
        else:
            self.within = True
        return NULL

    cdef const char* take_origin(self, Reader* reader) except? NULL:
        cdef Unit* unit = <Unit*>(self.units.data + self.units.size) - 1
        lsn = read_u64(reader)
        name = read_name(reader)
        if reader.is_cut or reader.at != reader.size:
            return CUT if reader.is_cut else LONG
        entry = self.names.setdefault(self.units.size // sizeof(Unit) - 1, [None, ""])
        entry[0] = (name.decode(errors="replace"), lsn)
        unit.is_named = True
        return NULL

    # -- tables

    cdef uint32_t version_of(self, uint32_t relation_id) noexcept nogil:
        """The index in ``versions`` plus one; 0 when there was no announcement."""
        cdef size_t slot
        if relation_id == self.last_relation_id and self.last_version:
            return self.last_version
        if self.current_size == 0:
            return 0
        slot = (relation_id * <size_t>0x9E3779B97F4A7C15) >> 32 & (self.current_size - 1)
        while self.current[slot].version:
            if self.current[slot].relation_id == relation_id:
                self.last_relation_id = relation_id
                self.last_version = self.current[slot].version
                return self.last_version
            slot = (slot + 1) & (self.current_size - 1)
        return 0

    cdef int set_version(self, uint32_t relation_id, uint32_t version) except -1:
        """Make *version*, plus one, the one that *relation_id* means from now on."""
        cdef size_t slot, i, size
        cdef Current* old = self.current
        cdef Current* grown
        self.last_version = 0
        if (self.current_count + 1) * 2 > self.current_size:
            size = self.current_size * 2 if self.current_size else 64
            grown = <Current*>calloc(size, sizeof(Current))
            if grown == NULL:
                raise MemoryError
            for i in range(self.current_size):
                if old[i].version:
                    slot = (old[i].relation_id * <size_t>0x9E3779B97F4A7C15) >> 32 & (size - 1)
                    while grown[slot].version:
                        slot = (slot + 1) & (size - 1)
                    grown[slot] = old[i]
            free(old)
            self.current = grown
            self.current_size = size
        slot = (relation_id * <size_t>0x9E3779B97F4A7C15) >> 32 & (self.current_size - 1)
        while self.current[slot].version and self.current[slot].relation_id != relation_id:
            slot = (slot + 1) & (self.current_size - 1)
        if self.current[slot].version == 0:
            self.current_count += 1
        self.current[slot].relation_id = relation_id
        self.current[slot].version = version
        return 0

    cdef const char* take_relation(self, const uint8_t* data, size_t size) except? NULL:
        """Take a Relation or Type message."""
        cdef Reader reader
        cdef Item item
        cdef size_t body
        cdef uint16_t columns, _
        cdef uint8_t flags
        reader.data = data
        reader.size = size
        reader.at = 1
        reader.is_cut = False
        memset(&item, 0, sizeof(Item))
        item.kind = data[0]
        if self.streaming:
            item.xid = read_u32(&reader)
        body = reader.at
        relation_id = read_u32(&reader)
        schema = read_name(&reader).decode(errors="backslashreplace")
        name = read_name(&reader).decode(errors="backslashreplace")
        if item.kind == c"Y":
            if reader.is_cut or reader.at != size:
                return CUT if reader.is_cut else LONG
            self.types[relation_id] = (schema or "pg_catalog", name)
        else:
            identity = chr(read_u8(&reader))
            columns = read_u16(&reader)
            described = []
            for _ in range(columns):
                flags = read_u8(&reader)
                column_name = read_name(&reader).decode(errors="backslashreplace")
                type_oid = read_u32(&reader)
                modifier = <int>read_u32(&reader)
                if reader.is_cut:
                    return CUT
                described.append(SourceColumn(column_name, type_oid, modifier, flags & 1 != 0))
            if reader.is_cut or reader.at != size:
                return CUT if reader.is_cut else LONG
            message = data[body:size]
            version = self.known.get(message)
            if version is None:
                version = len(self.versions)
                put_bytes(&self.widths, &columns, sizeof(columns))
                # An empty schema stands for pg_catalog.
                self.versions.append(SourceRelation(
                    relation_id, schema or "pg_catalog", name, identity, tuple(described)))
                self.known[message] = version
            self.set_version(relation_id, version + 1)
        if self.streaming:
            self.keep(data, size, &item)
        return NULL

    # -- what there is

    @property
    def nbytes(self):
        """Bytes of changes, with what is kept about them."""
        return self.nbytes_now()

    @property
    def count(self):
        """Changes of units that have ended, or of the piece."""
        cdef size_t n = self.given()
        return (<Unit*>self.units.data)[n - 1].end if n else 0

    @property
    def transactions(self):
        """Units that have ended."""
        return self.ended

    @property
    def is_full(self):
        """Whether it takes nothing more until :meth:`clear`."""
        return self.full

    @property
    def is_within(self):
        """Whether a unit has begun and not ended."""
        return self.within

    @property
    def is_piece(self):
        """Whether it is a part of one transaction (of a stretch), which is larger than a group."""
        return self.full and self.within and self.ended == 0

    @property
    def is_plain(self):
        """Whether there are ordinary transactions only; one of several pieces, too."""
        return self.units.size == 0 or (<Unit*>self.units.data).kind == c"B"

    @property
    def has_schema_change(self):
        """Whether there is an event of DDL (a logical message of the service's own) in the units
        that have ended, or in the piece.
        """
        cdef size_t n, units = self.given()
        cdef Item* items = <Item*>self.items.data
        if self.schema_changes == 0 or units == 0:
            return False
        for n in range((<Unit*>self.units.data)[units - 1].end):
            if items[n].kind == c"M" and items[n].old_tag == c"D":
                return True
        return False

    @property
    def last(self):
        """The head of the last unit that has ended, or of the piece; None when there is none."""
        cdef size_t n = self.given()
        return self.head(n - 1) if n else None

    cdef size_t given(self):
        """Bring the open unit's end up to date; return how many units there are to be written."""
        cdef Unit* unit
        if self.within:
            unit = <Unit*>(self.units.data + self.units.size) - 1
            unit.end = self.items.size // sizeof(Item)
            if self.full and self.ended == 0:
                return 1
        return self.ended

    cdef object head(self, size_t n):
        cdef Unit* unit = <Unit*>self.units.data + n
        origin, gid = self.names.get(n, (None, ""))
        return TransactionHead(
            kind=chr(unit.kind),
            xid=unit.xid,
            commit_lsn=unit.commit_lsn,
            end_lsn=unit.end_lsn if n < self.ended else 0,
            commit_time=unit.commit_time,
            origin=origin,
            gid=gid,
            prepare_time=unit.prepare_time,
            sub_xid=unit.sub_xid,
            is_first_stretch=unit.is_first_stretch,
            is_continued=unit.is_continued,
        )

    def heads(self):
        """Return the TransactionHead of each unit that has ended; or of the piece."""
        return [self.head(n) for n in range(self.given())]

    cdef Unit* unit(self, size_t n) except NULL:
        if n >= self.given():
            raise IndexError(n)
        return <Unit*>self.units.data + n

    def changes(self, size_t unit):
        """Yield each Change of the unit with this index in :meth:`heads`, in their order.

        The group must not be fed or cleared meanwhile.
        """
        cdef Unit* found = self.unit(unit)
        cdef size_t n
        for n in range(found.first, found.end):
            change = self.change(n)
            if change is not None:
                yield change

    def raw(self, size_t unit):
        """Return the messages that a stretch consists of, as :meth:`feed` takes them: payload and
        lengths. What a file has kept of them comes back by another group that knows this one.
        """
        cdef Unit* found = self.unit(unit)
        cdef Item* items = <Item*>self.items.data
        cdef size_t n
        payload = []
        lengths = bytearray()
        for n in range(found.first, found.end):
            payload.append((self.arena.data + items[n].message)[: items[n].size])
            lengths += (<uint8_t*>&items[n].size)[: sizeof(uint32_t)]
        return b"".join(payload), bytes(lengths)

    cdef object change(self, size_t n):
        cdef Item* item = <Item*>self.items.data + n
        cdef const uint8_t* message = self.arena.data + item.message
        cdef Reader reader
        cdef uint32_t i, flags
        reader.data = message
        reader.size = item.size
        reader.at = 5 if item.xid else 1
        reader.is_cut = False
        if item.kind == c"I" or item.kind == c"U" or item.kind == c"D":
            return Change(
                chr(item.kind),
                self.versions[item.relation],
                item.xid,
                None if item.old_at == 0 else self._row(item, item.old_at),
                item.old_tag == c"K",
                None if item.new_at == 0 else self._row(item, item.new_at),
            )
        if item.kind == c"T":
            read_u32(&reader)
            flags = read_u8(&reader)
            return Change(
                "T", None, item.xid,
                truncated=tuple([
                    self.versions[(<uint32_t*>self.truncated.data)[item.old_at + i]]
                    for i in range(item.new_at)
                ]),
                cascade=flags & CASCADE != 0,
                restart_identity=flags & RESTART_SEQS != 0,
            )
        if item.kind == c"M":
            read_u8(&reader)
            read_u64(&reader)
            prefix = read_name(&reader)
            size = read_u32(&reader)
            content = read_bytes(&reader, size)
            if reader.is_cut or content == NULL:
                return Change("M", None, item.xid, message=(prefix.decode(errors="replace"), b""))
            return Change(
                "M", None, item.xid,
                message=(prefix.decode(errors="replace"), content[:<Py_ssize_t>size]))
        return None

    cdef tuple _row(self, const Item* item, uint32_t at):
        """The values of a tuple, whose bounds were looked at when it was taken."""
        cdef const uint8_t* data = self.arena.data + item.message + at
        cdef uint16_t columns = <uint16_t>(data[0] << 8 | data[1])
        cdef uint16_t _
        cdef uint32_t size
        cdef list values = []
        data += 2
        for _ in range(columns):
            if data[0] == c"n":
                values.append(None)
                data += 1
            elif data[0] == c"u":
                values.append(UNCHANGED)
                data += 1
            else:
                size = load_u32(data + 1)
                value = PyBytes_FromStringAndSize(<const char*>data + 5, size)
                values.append(value if data[0] == c"t" else BinaryValue(value))
                data += 5 + size
        return tuple(values)

    def touched(self):
        """Return a Touched for each table that units that have ended, or the piece, change, in the
        order of their first change; a table that was announced anew may be there twice.
        """
        cdef size_t units = self.given()
        cdef size_t end = (<Unit*>self.units.data)[units - 1].end if units else 0
        cdef Item* items = <Item*>self.items.data
        cdef size_t n
        cdef uint32_t i, version
        cdef uint64_t* counts = <uint64_t*>calloc(4 * len(self.versions) + 1, sizeof(uint64_t))
        cdef list order = []
        cdef set seen = set()
        if counts == NULL:
            raise MemoryError
        try:
            version = 0xFFFFFFFF
            for n in range(end):
                if items[n].kind == c"T":
                    for i in range(items[n].new_at):
                        version = (<uint32_t*>self.truncated.data)[items[n].old_at + i]
                        counts[4 * version + 3] += 1
                        if version not in seen:
                            seen.add(version)
                            order.append(version)
                    version = 0xFFFFFFFF
                    continue
                if items[n].kind != c"I" and items[n].kind != c"U" and items[n].kind != c"D":
                    continue
                if items[n].relation != version:
                    version = items[n].relation
                    if (counts[4 * version] | counts[4 * version + 1] | counts[4 * version + 2]
                            | counts[4 * version + 3]) == 0:
                        seen.add(version)
                        order.append(version)
                counts[4 * version + (
                    0 if items[n].kind == c"I" else 1 if items[n].kind == c"U" else 2)] += 1
            return [
                Touched(
                    self.versions[version], counts[4 * version], counts[4 * version + 1],
                    counts[4 * version + 2], counts[4 * version + 3])
                for version in order
            ]
        finally:
            free(counts)

    # -- going on

    def clear(self):
        """Forget the units that have ended, or the piece. What has begun and not ended stays."""
        cdef Unit open_unit
        cdef Item* items
        cdef size_t n, moved, first, start
        cdef bint piece = self.is_piece
        cdef bint keeps = self.within
        if not keeps:
            self._empty()
            return
        self.given()
        open_unit = (<Unit*>(self.units.data + self.units.size) - 1)[0]
        names = self.names.get(self.units.size // sizeof(Unit) - 1)
        if piece:
            self._empty()
            open_unit.is_continued = True
            open_unit.first = open_unit.end = 0
        else:
            items = <Item*>self.items.data
            first = open_unit.first
            moved = open_unit.end - first
            if moved:
                start = items[first].message
                memmove(self.arena.data, self.arena.data + start, self.arena.size - start)
                self.arena.size -= start
                memmove(items, items + first, moved * sizeof(Item))
                self.schema_changes = 0
                for n in range(moved):
                    items[n].message -= start
                    self.schema_changes += items[n].kind == c"M" and items[n].old_tag == c"D"
            else:
                self.arena.size = 0
                self.schema_changes = 0
            self.items.size = moved * sizeof(Item)
            open_unit.first = 0
            open_unit.end = moved
            self.units.size = 0
            self.ended = 0
            self.names = {}
        if names is not None:
            self.names[0] = names
        self.within = True
        self.streaming = open_unit.kind == c"S"
        put_bytes(&self.units, &open_unit, sizeof(Unit))
        # A beginning alone fills nothing: there would be no end of empty pieces.
        self.full = self.items.size > 0 and self.nbytes_now() >= self.bytes_max

    def take_out(self):
        """Return the units that have ended, or the piece, as a group of its own, as this one would
        be before :meth:`clear`; this one is then as it would be after it. Nothing is copied but
        what has begun and not ended.
        """
        cdef ChangeGroup taken = ChangeGroup(self.bytes_max, self)
        cdef bint piece = self.is_piece
        cdef size_t tail, start
        cdef Unit* unit
        cdef Item* items
        self.given()
        if self.within and not piece:
            # What stays is copied out; what goes keeps its memory.
            unit = <Unit*>(self.units.data + self.units.size) - 1
            tail = unit.first * sizeof(Item)
            if tail < self.items.size:
                start = (<Item*>self.items.data)[unit.first].message
                put_bytes(&taken.arena, self.arena.data + start, self.arena.size - start)
                put_bytes(&taken.items, self.items.data + tail, self.items.size - tail)
                items = <Item*>taken.items.data
                for n in range(taken.items.size // sizeof(Item)):
                    items[n].message -= start
                put_bytes(&taken.truncated, self.truncated.data, self.truncated.size)
                self.arena.size = start
                self.items.size = tail
            put_bytes(&taken.units, unit, sizeof(Unit))
            self.units.size -= sizeof(Unit)
            unit = <Unit*>taken.units.data
            unit.first = 0
            unit.end = taken.items.size // sizeof(Item)
            taken.within = True
            last = self.ended
            if last in self.names:
                taken.names[0] = self.names.pop(last)
        elif piece:
            put_bytes(&taken.units, <Unit*>(self.units.data + self.units.size) - 1, sizeof(Unit))
            unit = <Unit*>taken.units.data
            unit.is_continued = True
            unit.first = unit.end = 0
            taken.within = True
            if 0 in self.names:
                taken.names[0] = self.names[0]
        taken.streaming = taken.within and (<Unit*>taken.units.data).kind == c"S"
        # Until here it had what stays.
        self.arena, taken.arena = taken.arena, self.arena
        self.items, taken.items = taken.items, self.items
        self.units, taken.units = taken.units, self.units
        self.truncated, taken.truncated = taken.truncated, self.truncated
        self.names, taken.names = taken.names, self.names
        taken.ended, self.ended = self.ended, 0
        taken.full, self.full = self.full, False
        taken.streaming, self.streaming = self.streaming and piece, taken.streaming
        taken.within, self.within = piece, taken.within
        # A beginning alone fills nothing, as after clear().
        self.full = self.items.size > 0 and self.nbytes_now() >= self.bytes_max
        return taken

    def forget(self):
        """Forget what was taken, the open unit, too: the stream begins anew. Tables stay known, as
        a stream announces again what it needs.
        """
        self._empty()

    cdef void _empty(self):
        """Drop everything but the tables; memory beyond a group's is given back."""
        if self.arena.capacity > 2 * self.bytes_max + 65536:
            release(&self.arena)
        self.arena.size = 0
        self.items.size = 0
        self.units.size = 0
        self.truncated.size = 0
        self.ended = 0
        self.schema_changes = 0
        self.within = False
        self.streaming = False
        self.full = False
        self.names = {}
        if len(self.versions) > VERSIONS_KEPT and len(self.versions) > 2 * self.current_count:
            self._forget_versions()

    cdef int _forget_versions(self) except -1:
        """Keep those versions only that a relation has now."""
        cdef size_t slot
        cdef list versions = []
        cdef ByteBuffer widths
        cdef uint16_t width
        memset(&widths, 0, sizeof(ByteBuffer))
        renumbered = {}
        for slot in range(self.current_size):
            if self.current[slot].version:
                old = self.current[slot].version - 1
                renumbered[old] = len(versions)
                width = (<uint16_t*>self.widths.data)[old]
                put_bytes(&widths, &width, sizeof(width))
                versions.append(self.versions[old])
                self.current[slot].version = <uint32_t>len(versions)
        release(&self.widths)
        self.widths = widths
        self.versions = versions
        self.known = {
            message: renumbered[old] for message, old in self.known.items() if old in renumbered}
        self.last_version = 0
        return 0
