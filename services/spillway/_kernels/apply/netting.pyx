# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the changes of a group come to, table by table, as few statements.

The changes of a table go through a hash table by the key that the target finds rows by. What comes
of one key stands in one entry, which begins with the first change of that key::

    first    then          is
    insert   update        an insert of the newer row
    insert   delete        nothing, but the key must not be there: that insert would have failed
    update   update        an update, to the newer values
    update   delete        a delete
    delete   insert        a delete, and an insert behind it
    delete   insert, …     as after an insert, with the delete kept

Anything else that comes of a key (an insert of a row that is there already, an update of one that
is gone) is no history that a table with that key has; it ends the *epoch*. An epoch becomes its
steps, deletes before updates before inserts, each in the order in which its keys came first, and
the next one begins with nothing. A change of a key, and what comes behind it of the same keys,
stand in epochs of their own; TRUNCATE ends the epoch of every table.

Why that order is right: within an epoch no value of a *watched* column, which another unique
index or an exclusion constraint looks at, is overwritten unseen. A change that would do so ends the
epoch, too. So each key takes and frees such values once, and what it takes was free before: by a
delete, which comes earlier now, or by an update before it, which still is. Where nothing is watched
nothing but the key itself is unique.

Columns that an update left out (unchanged TOAST) come from the entry's row before, where there is
one. Where there is none, they are left out of the statement: updates that leave out different
columns are different steps; of a table with watched columns each run of the same is one, so that
their order stays.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from spillway._kernels.apply.change_group cimport ChangeGroup, Item, Unit
from spillway._kernels.apply.forms cimport (
    FORM_LITERAL,
    put_binary,
    put_copy_text,
    put_element,
    put_u32,
)
from spillway._kernels.apply.key_set cimport KeySet
from spillway._kernels.apply.reader cimport Reader, load_u32, read_u8, read_u32
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, release, reserve

from spillway.apply.changes import Step

cdef enum:
    OP_INSERT = 1
    OP_UPDATE = 2
    OP_DELETE = 3
    # a delete, and an insert behind it
    OP_REPLACE = 4
    # neither before nor after
    OP_ABSENT = 5
    OP_REKEY = 6
    # the other key of an OP_REKEY
    OP_NEW_KEY = 7

# What becomes of a change.
cdef enum Verdict:
    TAKEN = 0
    # the epoch must end before it
    ENDS = 1
    # it can't be netted at all
    REFUSED = 2

cdef enum:
    # columns of a table, in PostgreSQL
    COLUMNS_MAX = 1664
    ARRAY_HEADER_BYTES = 20
    PATTERNS_MAX = 0xFFFF

# a signature, flags, and the length of what else there is in the header
cdef const char* COPY_MAGIC = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0"


cdef struct Entry:
    uint64_t hash
    # in ``keys``; of an OP_REKEY the old one
    size_t key_at
    uint32_t key_size
    uint8_t op
    # the row lies in ``merged``, not in the group's arena
    uint8_t is_merged
    # which of ``patterns`` of columns left out
    uint16_t pattern
    # where the tuple begins
    size_t row_at


cdef inline uint64_t hash_of(const uint8_t* data, size_t size) noexcept nogil:
    """Mix 8 bytes at a time; the lengths of the values are among them."""
    cdef uint64_t mixed = <uint64_t>0x9E3779B97F4A7C15 ^ size
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, data, 8)
        mixed = (mixed ^ word) * <uint64_t>0xFF51AFD7ED558CCD
        mixed ^= mixed >> 32
        data += 8
        size -= 8
    word = 0
    if size:
        memcpy(&word, data, size)
    mixed = (mixed ^ word) * <uint64_t>0xC4CEB9FE1A85EC53
    return mixed ^ mixed >> 29


cdef class Table:
    """One announced table of the source, and the epoch that its target is in."""
    cdef object plan
    cdef object relation
    cdef uint16_t columns
    cdef uint16_t key_count
    cdef uint16_t* key
    cdef uint16_t watched_count
    cdef uint16_t* watched
    cdef const uint8_t* forms
    cdef uint64_t since
    # the epoch
    cdef uint32_t* slots
    cdef size_t slot_count
    cdef ByteBuffer entries
    cdef size_t count
    cdef ByteBuffer keys
    cdef ByteBuffer merged
    # of a byte a column each: 1 where it is left out
    cdef ByteBuffer patterns
    cdef uint16_t pattern_count
    cdef bint rekeys
    # where columns begin in the tuples at hand, and where those end
    cdef uint32_t* new_at
    cdef uint32_t* old_at
    # one of them had a value in its binary form
    cdef bint is_binary
    # the group's
    cdef const uint8_t* arena
    # what is touched is added there, if anybody asks: hashes of keys, and of values that other
    # unique indexes look at, each with a hash of what they are of
    cdef KeySet touches
    cdef bint asked
    cdef uint64_t seed

    def __cinit__(self, plan, KeySet touches=None):
        cdef uint64_t of = plan.target
        self.touches = touches
        self.asked = touches is not None
        self.seed = hash_of(<const uint8_t*>&of, sizeof(of))
        self.plan = plan
        self.relation = plan.relation
        self.columns = len(plan.relation.columns)
        forms = plan.forms
        if len(forms) != self.columns or len(plan.type_oids) != self.columns:
            raise ValueError("a plan has a form for each column")
        self.forms = <const uint8_t*>PyBytes_AS_STRING(forms)
        self.since = plan.since
        self.key_count = len(plan.key)
        self.watched_count = len(plan.watched)
        self.key = <uint16_t*>calloc(self.key_count + 1, sizeof(uint16_t))
        self.watched = <uint16_t*>calloc(self.watched_count + 1, sizeof(uint16_t))
        self.new_at = <uint32_t*>calloc(self.columns + 1, sizeof(uint32_t))
        self.old_at = <uint32_t*>calloc(self.columns + 1, sizeof(uint32_t))
        if self.key == NULL or self.watched == NULL or self.new_at == NULL or self.old_at == NULL:
            raise MemoryError
        for i, position in enumerate(plan.key):
            self.key[i] = position
        for i, position in enumerate(plan.watched):
            self.watched[i] = position
        for position in (*plan.key, *plan.watched):
            if not 0 <= position < self.columns:
                raise ValueError("a plan names columns that its table has")

    def __dealloc__(self):
        free(self.key)
        free(self.watched)
        free(self.new_at)
        free(self.old_at)
        free(self.slots)
        release(&self.entries)
        release(&self.keys)
        release(&self.merged)
        release(&self.patterns)

    cdef void begin_epoch(self) noexcept nogil:
        self.entries.size = 0
        self.count = 0
        self.keys.size = 0
        self.merged.size = 0
        self.patterns.size = 0
        self.pattern_count = 0
        self.rekeys = False
        if self.slots != NULL:
            memset(self.slots, 0, self.slot_count * sizeof(uint32_t))

    cdef inline Entry* entry(self, size_t n) noexcept nogil:
        return <Entry*>self.entries.data + n

    cdef int put_key(
        self, const uint8_t* row, const uint32_t* at, const uint8_t* other, const uint32_t* other_at
    ) except -1 nogil:
        """Write the key's values behind the keys, as they lie in *row*, those that it leaves out
        from *other*. Returns 1, or 0 when there is a NULL, or a value that is nowhere.
        """
        cdef uint16_t i
        cdef const uint8_t* value
        for i in range(self.key_count):
            value = row + at[self.key[i]]
            if value[0] == c"u" and other != NULL:
                value = other + other_at[self.key[i]]
            if value[0] != c"t":
                return 0
            put_bytes(&self.keys, value, 5 + <size_t>load_u32(value + 1))
        return 1

    cdef Entry* find(self, uint64_t hashed, const uint8_t* key, size_t size) noexcept nogil:
        cdef size_t slot
        cdef Entry* entry
        if self.slot_count == 0:
            return NULL
        slot = hashed & (self.slot_count - 1)
        while self.slots[slot]:
            entry = self.entry(self.slots[slot] - 1)
            if (
                entry.hash == hashed and entry.key_size == size
                and memcmp(self.keys.data + entry.key_at, key, size) == 0
            ):
                return entry
            slot = (slot + 1) & (self.slot_count - 1)
        return NULL

    cdef Entry* add(
        self, uint64_t hashed, size_t key_at, uint32_t size, uint8_t op
    ) except NULL nogil:
        """Add an entry, whose key lies in ``keys`` already; of a table without a key to the list
        alone.
        """
        cdef size_t i, slot
        cdef Entry* entry
        cdef uint32_t* grown
        if self.key_count and (self.count + 1) * 2 > self.slot_count:
            i = self.slot_count * 2 if self.slot_count else 256
            grown = <uint32_t*>calloc(i, sizeof(uint32_t))
            if grown == NULL:
                with gil:
                    raise MemoryError
            free(self.slots)
            self.slots = grown
            self.slot_count = i
            for i in range(self.count):
                slot = self.entry(i).hash & (self.slot_count - 1)
                while self.slots[slot]:
                    slot = (slot + 1) & (self.slot_count - 1)
                self.slots[slot] = <uint32_t>(i + 1)
        reserve(&self.entries, sizeof(Entry))
        entry = self.entry(self.count)
        memset(entry, 0, sizeof(Entry))
        entry.hash = hashed
        entry.key_at = key_at
        entry.key_size = size
        entry.op = op
        self.entries.size += sizeof(Entry)
        self.count += 1
        if self.key_count:
            slot = hashed & (self.slot_count - 1)
            while self.slots[slot]:
                slot = (slot + 1) & (self.slot_count - 1)
            self.slots[slot] = <uint32_t>self.count
        return entry

    cdef bint is_watched_equal(
        self, const uint8_t* a, const uint32_t* a_at, const uint8_t* b, const uint32_t* b_at
    ) noexcept nogil:
        """Whether two rows have the same watched values; what *b* leaves out is *a*'s."""
        cdef uint16_t i
        cdef const uint8_t* one
        cdef const uint8_t* other
        for i in range(self.watched_count):
            one = a + a_at[self.watched[i]]
            other = b + b_at[self.watched[i]]
            if other[0] == c"u":
                continue
            if one[0] != other[0]:
                return False
            if one[0] == c"t" and (
                memcmp(one + 1, other + 1, 4) != 0
                or memcmp(one + 5, other + 5, load_u32(one + 1)) != 0
            ):
                return False
        return True

    cdef inline const uint8_t* row_of(self, const Entry* entry) noexcept nogil:
        if entry.is_merged:
            return self.merged.data + entry.row_at
        return self.arena + entry.row_at

    cdef bint locate(self, const uint8_t* row, uint32_t* at) noexcept nogil:
        """Find where the columns of a tuple begin; True when it leaves out any.

        Its bounds were looked at when it was taken. One with binary values sets ``is_binary``.
        """
        cdef uint16_t i
        cdef uint32_t offset = 2
        cdef bint leaves_out = False
        for i in range(self.columns):
            at[i] = offset
            if row[offset] == c"t" or row[offset] == c"b":
                self.is_binary |= row[offset] == c"b"
                offset += 5 + load_u32(row + offset + 1)
            else:
                leaves_out |= row[offset] == c"u"
                offset += 1
        at[self.columns] = offset
        return leaves_out

    cdef int merge_row(self, Entry* entry, const uint8_t* row) except -1 nogil:
        """Give an entry the row *row*, whose columns begin at ``new_at``, with what it leaves out
        from the entry's own, whose columns begin at ``old_at``.
        """
        cdef const uint8_t* before
        cdef const uint8_t* value
        cdef uint16_t i
        if self.merged.size == 0:
            # Position 0 stands for no row.
            put_byte(&self.merged, 0)
        # From here on nothing moves.
        reserve(&self.merged, <size_t>self.new_at[self.columns] + self.old_at[self.columns])
        before = self.row_of(entry)
        entry.row_at = self.merged.size
        entry.is_merged = True
        put_bytes(&self.merged, row, 2)
        for i in range(self.columns):
            value = row + self.new_at[i]
            if value[0] == c"u":
                value = before + self.old_at[i]
            put_bytes(
                &self.merged, value, 5 + <size_t>load_u32(value + 1) if value[0] == c"t" else 1)
        return 0

    cdef int newer(
        self, Entry* entry, size_t row_at, const uint8_t* row, bint leaves_out
    ) except -1 nogil:
        """Put a newer row over an entry's; returns a Verdict."""
        cdef const uint8_t* before = self.row_of(entry)
        if self.watched_count or leaves_out:
            self.locate(before, self.old_at)
        if self.watched_count and not self.is_watched_equal(before, self.old_at, row, self.new_at):
            return ENDS
        if leaves_out:
            self.merge_row(entry, row)
        else:
            entry.row_at = row_at
            entry.is_merged = False
        return TAKEN

    cdef int note(self, const uint8_t* row, const uint32_t* at) except -1 nogil:
        """Note the values of watched columns of a row."""
        cdef uint16_t i
        cdef const uint8_t* value
        for i in range(self.watched_count):
            value = row + at[self.watched[i]]
            if value[0] == c"t":
                self.touches.add(hash_of(value, 5 + <size_t>load_u32(value + 1)) ^ (
                    self.seed + self.watched[i] + 1) * <uint64_t>0x9E3779B97F4A7C15)
        return 0

    cdef int take(self, const Item* item) except -1 nogil:
        """Bring a change into the epoch; returns a Verdict."""
        cdef const uint8_t* message = self.arena + item.message
        cdef const uint8_t* old = NULL
        cdef const uint8_t* new = NULL
        cdef size_t key_at = self.keys.size
        cdef size_t new_key_at, size
        cdef size_t row_at = item.message + item.new_at
        cdef bint leaves_out = False
        cdef uint64_t hashed, new_hash
        cdef Entry* entry
        cdef int verdict
        if item.old_at:
            old = message + item.old_at
            self.locate(old, self.old_at)
        if item.new_at:
            new = message + item.new_at
            leaves_out = self.locate(new, self.new_at)
        if self.is_binary:
            return REFUSED
        if self.key_count == 0:
            if item.kind != c"I" or leaves_out:
                return REFUSED
            entry = self.add(0, 0, 0, OP_INSERT)
            entry.row_at = row_at
            return TAKEN
        if old != NULL:
            if not self.put_key(old, self.old_at, NULL, NULL):
                self.keys.size = key_at
                return REFUSED
        elif not self.put_key(new, self.new_at, NULL, NULL):
            self.keys.size = key_at
            return REFUSED
        size = self.keys.size - key_at
        hashed = hash_of(self.keys.data + key_at, size)
        if self.asked:
            self.touches.add(hashed ^ self.seed)
            if new != NULL:
                self.note(new, self.new_at)
            if old != NULL:
                self.note(old, self.old_at)
        if item.kind == c"U" and old != NULL:
            new_key_at = self.keys.size
            if not self.put_key(new, self.new_at, old, self.old_at):
                self.keys.size = key_at
                return REFUSED
            if (
                self.keys.size - new_key_at != size
                or memcmp(self.keys.data + key_at, self.keys.data + new_key_at, size) != 0
            ):
                new_hash = hash_of(self.keys.data + new_key_at, self.keys.size - new_key_at)
                if self.asked:
                    self.touches.add(new_hash ^ self.seed)
                if (self.count and not self.rekeys) or self.find(
                    hashed, self.keys.data + key_at, size
                ) != NULL or self.find(
                    new_hash, self.keys.data + new_key_at, self.keys.size - new_key_at
                ) != NULL:
                    self.keys.size = key_at
                    return ENDS
                self.rekeys = True
                entry = self.add(hashed, key_at, <uint32_t>size, OP_REKEY)
                entry.row_at = row_at
                verdict = self.set_pattern(entry, new, leaves_out)
                self.add(
                    new_hash, new_key_at, <uint32_t>(self.keys.size - new_key_at), OP_NEW_KEY)
                return verdict
            self.keys.size = new_key_at
        if self.rekeys:
            self.keys.size = key_at
            return ENDS
        entry = self.find(hashed, self.keys.data + key_at, size)
        if entry == NULL:
            if item.kind == c"I":
                if leaves_out:
                    return REFUSED
                entry = self.add(hashed, key_at, <uint32_t>size, OP_INSERT)
                entry.row_at = row_at
                return TAKEN
            if item.kind == c"D":
                self.add(hashed, key_at, <uint32_t>size, OP_DELETE)
                return TAKEN
            entry = self.add(hashed, key_at, <uint32_t>size, OP_UPDATE)
            entry.row_at = row_at
            return self.set_pattern(entry, new, leaves_out)
        self.keys.size = key_at
        if item.kind == c"I":
            if leaves_out:
                return REFUSED
            if entry.op == OP_DELETE:
                entry.op = OP_REPLACE
            elif entry.op == OP_ABSENT:
                entry.op = OP_INSERT
            else:
                return ENDS
            entry.row_at = row_at
            entry.is_merged = False
            return TAKEN
        if item.kind == c"U":
            if entry.op == OP_INSERT or entry.op == OP_REPLACE:
                return self.newer(entry, row_at, new, leaves_out)
            if entry.op == OP_UPDATE:
                verdict = self.newer(entry, row_at, new, leaves_out)
                if verdict != TAKEN or entry.pattern == 0:
                    return verdict
                # Something was left out before: less is now, perhaps.
                new = self.row_of(entry)
                return self.set_pattern(entry, new, self.locate(new, self.new_at))
            return ENDS
        # What a watched column had meanwhile would not be seen.
        if self.watched_count or entry.op == OP_DELETE or entry.op == OP_ABSENT:
            return ENDS
        entry.op = OP_ABSENT if entry.op == OP_INSERT else OP_DELETE
        entry.pattern = 0
        return TAKEN

    cdef int set_pattern(self, Entry* entry, const uint8_t* row, bint leaves_out) except -1 nogil:
        """Note which columns a row leaves out, which begin at ``new_at``; returns a Verdict."""
        cdef size_t start
        cdef uint16_t i
        cdef uint8_t* pattern
        if not leaves_out:
            entry.pattern = 0
            return TAKEN
        if self.pattern_count == PATTERNS_MAX:
            return REFUSED
        start = self.patterns.size
        reserve(&self.patterns, self.columns)
        pattern = self.patterns.data + start
        for i in range(self.columns):
            pattern[i] = row[self.new_at[i]] == c"u"
        for i in range(self.pattern_count):
            if memcmp(self.patterns.data + <size_t>i * self.columns, pattern, self.columns) == 0:
                entry.pattern = i + 1
                return TAKEN
        self.patterns.size += self.columns
        self.pattern_count += 1
        entry.pattern = self.pattern_count
        return TAKEN

    # -- steps

    cdef int end_epoch(self, list out) except -1:
        """Add the epoch's steps to *out*, and begin a new one."""
        cdef size_t counts[8]
        cdef size_t n
        memset(counts, 0, sizeof(counts))
        for n in range(self.count):
            counts[self.entry(n).op] += 1
        if counts[OP_DELETE] + counts[OP_REPLACE]:
            self.make(out, "delete", OP_DELETE, OP_REPLACE, 0, 0, self.count)
        if counts[OP_ABSENT]:
            self.make(out, "absent", OP_ABSENT, OP_ABSENT, 0, 0, self.count)
        if counts[OP_UPDATE]:
            self.make_updates(out, "update", OP_UPDATE)
        if counts[OP_REKEY]:
            self.make_updates(out, "rekey", OP_REKEY)
        if counts[OP_INSERT] + counts[OP_REPLACE]:
            n = self.plan.copy_from
            if n and counts[OP_INSERT] + counts[OP_REPLACE] >= n:
                self.make_copy(out)
            else:
                self.make(out, "insert", OP_INSERT, OP_REPLACE, 0, 0, self.count)
        self.begin_epoch()
        return 0

    cdef int make_updates(self, list out, str kind, int op) except -1:
        """Add the steps of updates: one a pattern; where columns are watched, one a run of the same
        pattern, as one update may take what another one freed.
        """
        cdef size_t n, first = 0
        cdef uint16_t pattern
        cdef bint begun = False
        if self.watched_count == 0:
            for pattern in range(self.pattern_count + 1):
                self.make(out, kind, op, op, pattern, 0, self.count)
            return 0
        pattern = 0
        for n in range(self.count):
            if self.entry(n).op != op or (begun and self.entry(n).pattern == pattern):
                continue
            if begun:
                self.make(out, kind, op, op, pattern, first, n)
            begun = True
            first = n
            pattern = self.entry(n).pattern
        self.make(out, kind, op, op, pattern, first, self.count)
        return 0

    cdef int make(
        self, list out, str kind, int op, int other_op, uint16_t pattern, size_t first, size_t end
    ) except -1:
        """Add the step of the entries from *first* to *end* of two operations and one pattern."""
        cdef size_t n
        cdef uint32_t rows = 0
        cdef uint16_t i, count, keys
        cdef Entry* entry
        cdef bint has_keys = op != OP_INSERT
        cdef bint has_rows = op == OP_INSERT or op == OP_UPDATE or op == OP_REKEY
        cdef ByteBuffer* columns
        cdef uint16_t* positions
        cdef uint8_t* forms
        cdef uint8_t* has_nulls
        cdef list set_positions = []
        cdef const uint8_t* row
        cdef const uint8_t* key
        for n in range(first, end):
            entry = self.entry(n)
            rows += (entry.op == op or entry.op == other_op) and entry.pattern == pattern
        if rows == 0:
            return 0
        if has_rows:
            unset = self.plan.unset if op == OP_UPDATE else ()
            for i in range(self.columns):
                if pattern and self.patterns.data[<size_t>(pattern - 1) * self.columns + i]:
                    continue
                if i not in unset:
                    set_positions.append(i)
        keys = self.key_count if has_keys else 0
        count = keys + len(set_positions)
        columns = <ByteBuffer*>calloc(count + 1, sizeof(ByteBuffer))
        positions = <uint16_t*>calloc(count + 1, sizeof(uint16_t))
        forms = <uint8_t*>calloc(count + 1, 1)
        has_nulls = <uint8_t*>calloc(count + 1, 1)
        try:
            if columns == NULL or positions == NULL or forms == NULL or has_nulls == NULL:
                raise MemoryError
            for i in range(count):
                positions[i] = self.key[i] if i < keys else set_positions[i - keys]
                forms[i] = self.forms[positions[i]]
            with nogil:
                for i in range(count):
                    begin_array(&columns[i], forms[i])
                for n in range(first, end):
                    entry = self.entry(n)
                    if not (entry.op == op or entry.op == other_op) or entry.pattern != pattern:
                        continue
                    if keys:
                        key = self.keys.data + entry.key_at
                        for i in range(keys):
                            put_value(&columns[i], &forms[i], &has_nulls[i], key)
                            key += 5 + load_u32(key + 1)
                    if has_rows:
                        row = self.row_of(entry)
                        self.locate(row, self.new_at)
                        for i in range(keys, count):
                            put_value(
                                &columns[i], &forms[i], &has_nulls[i],
                                row + self.new_at[positions[i]])
                # A column with a value that has no binary form goes as text.
                for i in range(count):
                    if forms[i] != FORM_LITERAL or self.forms[positions[i]] == FORM_LITERAL:
                        continue
                    columns[i].size = 0
                    begin_array(&columns[i], FORM_LITERAL)
                    for n in range(first, end):
                        entry = self.entry(n)
                        if not (entry.op == op or entry.op == other_op) or entry.pattern != pattern:
                            continue
                        if i < keys:
                            key = self.keys.data + entry.key_at
                            self.skip_keys(&key, i)
                            put_value(&columns[i], &forms[i], &has_nulls[i], key)
                        else:
                            row = self.row_of(entry)
                            self.locate(row, self.new_at)
                            put_value(
                                &columns[i], &forms[i], &has_nulls[i],
                                row + self.new_at[positions[i]])
            params = []
            for i in range(count):
                end_array(
                    &columns[i], forms[i], has_nulls[i], self.plan.type_oids[positions[i]], rows)
                params.append(
                    PyBytes_FromStringAndSize(<const char*>columns[i].data, columns[i].size))
            out.append(Step(
                kind, self.relation, rows, tuple(set_positions), tuple(params),
                tuple([1 if forms[i] != FORM_LITERAL else 0 for i in range(count)])))
        finally:
            if columns != NULL:
                for i in range(count):
                    release(&columns[i])
            free(columns)
            free(positions)
            free(forms)
            free(has_nulls)
        return 0

    cdef inline void skip_keys(self, const uint8_t** key, uint16_t count) noexcept nogil:
        cdef uint16_t _
        for _ in range(count):
            key[0] += 5 + load_u32(key[0] + 1)

    cdef int make_copy(self, list out) except -1:
        """Add the inserts as COPY's data: binary where every value has such a form."""
        cdef ByteBuffer data
        cdef size_t n
        cdef uint32_t rows = 0
        cdef uint16_t i
        cdef Entry* entry
        cdef const uint8_t* row
        cdef const uint8_t* value
        cdef bint binary = self.plan.copy_binary
        data.data = NULL
        data.size = data.capacity = 0
        try:
            with nogil:
                if binary:
                    put_bytes(&data, COPY_MAGIC, 19)
                    for n in range(self.count):
                        entry = self.entry(n)
                        if entry.op != OP_INSERT and entry.op != OP_REPLACE:
                            continue
                        rows += 1
                        row = self.row_of(entry)
                        self.locate(row, self.new_at)
                        put_bytes(&data, row, 2)
                        for i in range(self.columns):
                            value = row + self.new_at[i]
                            if value[0] == c"n":
                                put_u32(&data, 0xFFFFFFFF)
                            elif value[0] != c"t" or not put_binary(
                                &data, self.forms[i], value + 5, load_u32(value + 1)
                            ):
                                binary = False
                                break
                        if not binary:
                            break
                    put_bytes(&data, b"\xff\xff", 2)
                if not binary:
                    data.size = 0
                    rows = 0
                    for n in range(self.count):
                        entry = self.entry(n)
                        if entry.op != OP_INSERT and entry.op != OP_REPLACE:
                            continue
                        rows += 1
                        row = self.row_of(entry)
                        self.locate(row, self.new_at)
                        for i in range(self.columns):
                            value = row + self.new_at[i]
                            if i:
                                put_byte(&data, c"\t")
                            if value[0] == c"t":
                                put_copy_text(&data, value + 5, load_u32(value + 1))
                            else:
                                put_bytes(&data, b"\\N", 2)
                        put_byte(&data, c"\n")
            out.append(Step(
                "copy", self.relation, rows, tuple(range(self.columns)),
                (PyBytes_FromStringAndSize(<const char*>data.data, data.size),),
                (1 if binary else 0,)))
        finally:
            release(&data)
        return 0


cdef inline int begin_array(ByteBuffer* out, uint8_t form) except -1 nogil:
    if form == FORM_LITERAL:
        put_byte(out, c"{")
        return 0
    reserve(out, ARRAY_HEADER_BYTES)
    memset(out.data, 0, ARRAY_HEADER_BYTES)
    out.size = ARRAY_HEADER_BYTES
    return 0


cdef inline int put_value(
    ByteBuffer* out, uint8_t* form, uint8_t* has_null, const uint8_t* value
) except -1 nogil:
    """Add a value as it lies in a tuple; *form* becomes FORM_LITERAL when it has no binary one, and
    then nothing more is added, as all must be added anew.
    """
    if form[0] == FORM_LITERAL:
        if out.size >= ARRAY_HEADER_BYTES and out.data[0] == 0:
            return 0
        if out.size > 1:
            put_byte(out, c",")
        if value[0] == c"t":
            put_element(out, value + 5, load_u32(value + 1))
        else:
            put_bytes(out, b"NULL", 4)
        return 0
    if value[0] != c"t":
        has_null[0] = 1
        put_u32(out, 0xFFFFFFFF)
    elif not put_binary(out, form[0], value + 5, load_u32(value + 1)):
        form[0] = FORM_LITERAL
    return 0


cdef int end_array(
    ByteBuffer* out, uint8_t form, bint has_null, uint32_t type_oid, uint32_t rows
) except -1:
    """Close the text form, or fill in the header: dimensions, whether there are NULLs, the type of
    the elements, how many there are, and that the first is 1.
    """
    cdef ByteBuffer header
    if form == FORM_LITERAL:
        put_byte(out, c"}")
        return 0
    header.data = out.data
    header.size = 0
    header.capacity = ARRAY_HEADER_BYTES
    put_u32(&header, 1)
    put_u32(&header, has_null)
    put_u32(&header, type_oid)
    put_u32(&header, rows)
    put_u32(&header, 1)
    return 0


cdef int truncate(
    ChangeGroup group, const Item* item, dict tables, object plans, list out
) except -1:
    """Add the step of a TRUNCATE, behind the epochs of all tables."""
    cdef Table table
    cdef Reader reader
    cdef uint32_t i
    for table in tables.values():
        table.end_epoch(out)
    reader.data = group.arena.data + item.message
    reader.size = item.size
    reader.at = 1
    reader.is_cut = False
    read_u32(&reader)
    flags = read_u8(&reader)
    relations = []
    for i in range(item.new_at):
        relation = group.versions[(<uint32_t*>group.truncated.data)[item.old_at + i]]
        if relation in plans:
            relations.append(relation)
    out.append(Step(
        "truncate", None, truncated=tuple(relations), cascade=flags & 1 != 0,
        restart_identity=flags & 2 != 0))
    return 0


def steps(ChangeGroup group not None, plans not None, KeySet touches=None):
    """Return the steps that the units of a plain group, or its piece, come to; None when that can't
    be said: the group has to be written change by change.

    Args:
        group: is read, and stays as it is.
        plans: a StepPlan for each table that counts; changes of others are left out.
        touches: hears which keys of the target the group touches, and which values it takes of
            columns that other unique indexes look at.

    Raises:
        ValueError: a plan does not fit its table.
    """
    cdef size_t units = group.given()
    cdef size_t u, n
    cdef size_t count = len(group.versions)
    cdef Unit* unit
    cdef Item* items = <Item*>group.items.data
    cdef Item* item
    cdef Table table, other
    cdef uint32_t version, i
    cdef int verdict
    cdef list by_version = [None] * count
    cdef dict targets = {}
    cdef dict known = {}
    cdef list out = []
    for version in range(<uint32_t>count):
        plan = plans.get(group.versions[version])
        if plan is not None:
            table = Table(plan, touches)
            table.arena = group.arena.data
            by_version[version] = known[version] = table
    for u in range(units):
        unit = <Unit*>group.units.data + u
        if unit.kind != c"B":
            return None
        n = unit.first
        while n < unit.end:
            item = &items[n]
            n += 1
            if item.kind == c"T":
                for i in range(item.new_at):
                    table = by_version[(<uint32_t*>group.truncated.data)[item.old_at + i]]
                    if table is not None and unit.commit_lsn >= table.since:
                        truncate(group, item, known, plans, out)
                        break
                continue
            if item.kind != c"I" and item.kind != c"U" and item.kind != c"D":
                continue
            table = by_version[item.relation]
            if table is None or unit.commit_lsn < table.since:
                continue
            # Announced anew, or two tables of the source that are one on the target.
            other = targets.get(table.plan.target)
            if other is not table:
                if other is not None:
                    other.end_epoch(out)
                targets[table.plan.target] = table
            n -= 1
            while True:
                # Runs of one table need no Python.
                with nogil:
                    verdict = TAKEN
                    while n < unit.end and items[n].relation == item.relation and (
                        items[n].kind == c"I" or items[n].kind == c"U" or items[n].kind == c"D"
                    ):
                        verdict = table.take(&items[n])
                        if verdict != TAKEN:
                            break
                        n += 1
                if verdict == REFUSED:
                    return None
                if verdict == TAKEN:
                    break
                if table.count == 0:
                    return None
                table.end_epoch(out)
    for table in known.values():
        table.end_epoch(out)
    return out
