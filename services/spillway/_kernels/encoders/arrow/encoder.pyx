# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop of the arrow plugin: chunks of changes in, Arrow buffers per table out.

Rows are gathered per relation descriptor, over chunks and transactions, in column builders that
stay allocated from batch to batch. The :class:`Encoder` runs through a chunk without the GIL; it
takes it to look a relation up for the first time in a chunk, for types whose codec is Python, and
to raise. When enough is gathered the plugin takes the tables' buffers, writes messages of them, and
clears them.

All gathered tables are emitted together. A message of one table that came alone would be followed
by earlier transactions' rows of others, and a consumer that stopped between the two would lose
them.

When a table gets another descriptor its batch is closed, even if the first descriptor comes back
later: messages of one table keep the order of its changes.

Memory: what is gathered, about twice ``batch_bytes`` (see :attr:`Encoder.full`) and one row.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from spillway._kernels.values.arrow.column cimport (
    REFUSED_NOTHING,
    KIND_BINARY,
    KIND_BOOL,
    KIND_DATE,
    KIND_DECIMAL,
    KIND_FIXED,
    KIND_PRINTED,
    KIND_TEXT,
    KIND_TIME,
    KIND_TIMESTAMP,
    Column,
    append_datum,
    append_null,
    clear_column,
    empty,
    free_column,
    put_bit,
    refusal_of,
)
from spillway._kernels.reorder.changes cimport (DELETE, INSERT, INVALIDATION, MESSAGE,
                                                SCHEMA_CHANGE, TRUNCATE, UPDATE)
from spillway._kernels.values.datum cimport (DATUM_UNCHANGED, Change, Datum, Deformer, invalid,
                                             load_u32, read_change)
from spillway._kernels.messages.buffer cimport (ByteBuffer, MessageBuffer, put_byte, put_bytes,
                                                release)
from spillway._kernels.values.text.output cimport CompiledType, TextContext, TypeCompiler
from spillway._kernels.encoders.chunk_encoder import located
from spillway.errors import DecodingError

cdef enum:
    # Relations that one chunk may alternate between before look-ups cost the GIL.
    SLOTS = 64
    # Tables that are kept, compiled and with their memory, while they have no rows.
    TABLES_MAX = 256
    # Bytes of the plugin's own columns in a row.
    CHANGE_COLUMNS_SIZE = 53
    # Of a table's refused values, as many are told of as a batch of it has not reached; of each, as
    # many bytes of its datum are printed.
    REFUSED_MAX = 32
    REFUSED_BYTES_MAX = 1024

#: Microseconds from 1970-01-01 to 2000-01-01.
cdef int64_t EPOCH_US = 946684800000000

KINDS = {
    "bool": (KIND_BOOL, 0),
    "int16": (KIND_FIXED, 2),
    "int32": (KIND_FIXED, 4),
    "int64": (KIND_FIXED, 8),
    "binary": (KIND_BINARY, 0),
    "text": (KIND_TEXT, 0),
    "printed": (KIND_PRINTED, 0),
    "date": (KIND_DATE, 4),
    "time": (KIND_TIME, 8),
    "timestamp": (KIND_TIMESTAMP, 8),
    "decimal": (KIND_DECIMAL, 16),
}

# The buffers of a table's rows beside those of its columns.
cdef enum:
    LSN
    COMMIT_LSN
    COMMIT_END_LSN
    XID
    SEQ
    COMMIT_TIME
    # _op: one character a row
    OP_OFFSETS
    OP
    # _unchanged_toast: a list of names a row, null where there is none
    UNCHANGED_VALIDITY
    UNCHANGED_OFFSETS
    NAME_OFFSETS
    NAME_DATA
    # _old_key
    KEY_VALIDITY
    ROW_BUFFERS


# The transaction being gathered.
cdef struct Current:
    uint32_t xid
    uint64_t commit_lsn
    uint64_t commit_end_lsn
    int64_t commit_time
    uint64_t seq


cdef class Table:
    """The rows of one table that are gathered, as of one descriptor.

    Args:
        plan: a ``plugins.arrow_schema.TablePlan``.
        context: settings for printed values.
    """
    cdef readonly object plan
    cdef Deformer deformer
    cdef list owned
    # The table's columns, then those of _old_key; which attribute each takes.
    cdef Column* columns
    cdef int* attributes
    cdef int column_count
    cdef int key_count
    cdef ByteBuffer buffers[ROW_BUFFERS]
    cdef size_t unchanged_null_count
    cdef size_t key_null_count
    # How many names _unchanged_toast has, and those of all columns to choose from.
    cdef int32_t name_count
    cdef list names
    cdef readonly size_t rows
    # The last row's.
    cdef readonly uint64_t last_lsn
    cdef readonly uint64_t commit_end_lsn
    cdef readonly uint32_t xid
    # Values that have no form and are null instead, where the plan has such marked: the first
    # ones, as the plugin's documentation has them, and how many there are.
    cdef readonly list refused
    cdef readonly size_t refused_count
    # The column at hand, for errors; -1 none.
    cdef int at

    def __cinit__(self, plan, TextContext context not None):
        cdef int i
        cdef CompiledType compiled
        cdef TypeCompiler compiler = TypeCompiler(context, plan.descriptor.types)
        cdef Column* column
        self.plan = plan
        self.deformer = Deformer(plan.descriptor)
        self.column_count = len(plan.columns)
        self.key_count = len(plan.key_columns)
        # Columns point into it.
        self.owned = [context]
        self.names = []
        self.at = -1
        self.columns = <Column*>calloc(self.column_count + self.key_count + 1, sizeof(Column))
        self.attributes = <int*>calloc(self.column_count + self.key_count + 1, sizeof(int))
        if self.columns == NULL or self.attributes == NULL:
            raise MemoryError
        for i, planned in enumerate([*plan.columns, *plan.key_columns]):
            column = &self.columns[i]
            kind, column.width = KINDS[planned.kind]
            column.kind = kind
            column.precision = planned.precision
            column.scale = planned.scale
            self.attributes[i] = planned.column.attnum - 1
            if not 0 <= self.attributes[i] < self.deformer.natts:
                raise DecodingError(f"column {planned.column.name!r} has attnum "
                                    f"{planned.column.attnum}")
            if column.kind == KIND_PRINTED:
                compiled = compiler.column(planned.column)
                self.owned.append(compiled)
                column.output = &compiled.output
            column.settings = &context.values if context.values.codec != NULL else NULL
            column.escape = plan.not_utf8_escaped
            column.marks = plan.marks_refused
            self.names.append(planned.name.encode())
        self.clear()

    def __dealloc__(self):
        cdef int i
        if self.columns != NULL:
            for i in range(self.column_count + self.key_count):
                free_column(&self.columns[i])
        free(self.columns)
        free(self.attributes)
        for i in range(ROW_BUFFERS):
            release(&self.buffers[i])

    cpdef clear(self):
        """Forget the rows; the memory is kept for the next."""
        cdef int i
        cdef int32_t first = 0
        for i in range(self.column_count + self.key_count):
            clear_column(&self.columns[i])
        for i in range(ROW_BUFFERS):
            empty(&self.buffers[i])
        self.rows = 0
        self.key_null_count = 0
        self.unchanged_null_count = 0
        self.name_count = 0
        self.refused = []
        self.refused_count = 0
        put_bytes(&self.buffers[OP_OFFSETS], &first, 4)
        put_bytes(&self.buffers[UNCHANGED_OFFSETS], &first, 4)
        put_bytes(&self.buffers[NAME_OFFSETS], &first, 4)

    cdef str column_name(self):
        """The PostgreSQL name of the column at hand."""
        columns = [*self.plan.columns, *self.plan.key_columns]
        return columns[self.at].column.name if 0 <= self.at < len(columns) else None

    cdef Py_ssize_t add_row(self, const Change* change, uint8_t op,
                            Current* current) except -1 nogil:
        """Append a change of a row; return how many bytes it took."""
        cdef Py_ssize_t size = CHANGE_COLUMNS_SIZE
        self.put_change_columns(change, op, current)
        if op == c'I' or op == c'U':
            self.deformer.deform(change.new_section, change.new_size, change)
            size += self.put_columns(0, self.column_count, current)
            size += self.put_unchanged(op == c'U')
        elif change.old_section != NULL and op == c'D':
            # What the record has of the row, so that a MERGE finds its key where it always is.
            self.deformer.deform(change.old_section, change.old_size, change)
            size += self.put_columns(0, self.column_count, current)
            size += self.put_unchanged(False)
        else:
            size += self.put_nulls(0, self.column_count)
            size += self.put_unchanged(False)
        if self.key_count > 0:
            if change.old_section != NULL and (op == c'U' or op == c'D'):
                if op == c'U':
                    self.deformer.deform(change.old_section, change.old_size, change)
                size += self.put_columns(self.column_count, self.column_count + self.key_count,
                                         current)
                put_bit(&self.buffers[KEY_VALIDITY], self.rows, True)
            else:
                size += self.put_nulls(self.column_count, self.column_count + self.key_count)
                put_bit(&self.buffers[KEY_VALIDITY], self.rows, False)
                self.key_null_count += 1
        self.rows += 1
        return size

    cdef int put_change_columns(self, const Change* change, uint8_t op,
                                Current* current) except -1 nogil:
        cdef uint64_t lsn = change.header.lsn
        cdef int32_t op_end = <int32_t>(self.rows + 1)
        put_byte(&self.buffers[OP], op)
        put_bytes(&self.buffers[OP_OFFSETS], &op_end, 4)
        put_bytes(&self.buffers[LSN], &lsn, 8)
        put_bytes(&self.buffers[COMMIT_LSN], &current.commit_lsn, 8)
        put_bytes(&self.buffers[COMMIT_END_LSN], &current.commit_end_lsn, 8)
        put_bytes(&self.buffers[XID], &current.xid, 4)
        put_bytes(&self.buffers[SEQ], &current.seq, 8)
        put_bytes(&self.buffers[COMMIT_TIME], &current.commit_time, 8)
        self.last_lsn = lsn
        self.commit_end_lsn = current.commit_end_lsn
        self.xid = current.xid
        return 0

    cdef Py_ssize_t put_columns(self, int first, int end, Current* current) except -1 nogil:
        cdef Py_ssize_t size = 0
        cdef int i
        for i in range(first, end):
            self.at = i
            size += append_datum(&self.columns[i], self.rows,
                                 &self.deformer.values[self.attributes[i]])
            if self.columns[i].refusal != REFUSED_NOTHING:
                with gil:
                    self.note_refused(i, &self.deformer.values[self.attributes[i]], current)
        self.at = -1
        return size

    cdef int note_refused(self, int i, const Datum* value, Current* current) except -1:
        """Take down a value that has no form. What is beyond the bound is after what is told."""
        cdef Column* column = &self.columns[i]
        cdef size_t size = min(value.size, <size_t>REFUSED_BYTES_MAX)
        what, hint = refusal_of(column, column.refusal)
        column.refusal = REFUSED_NOTHING
        self.refused_count += 1
        if len(self.refused) < REFUSED_MAX:
            planned = (*self.plan.columns, *self.plan.key_columns)[i]
            self.refused.append({
                "column": planned.column.name,
                "reason": what,
                "hint": hint,
                "row": self.rows,
                "lsn": self.last_lsn,
                "commit_lsn": current.commit_lsn,
                "datum": (<const char*>value.data)[:<Py_ssize_t>size],
            })
        return 0

    cdef Py_ssize_t put_nulls(self, int first, int end) except -1 nogil:
        cdef Py_ssize_t size = 0
        cdef int i
        for i in range(first, end):
            size += append_null(&self.columns[i], self.rows)
        return size

    cdef Py_ssize_t put_unchanged(self, bint may_have) except -1 nogil:
        """Append to _unchanged_toast what the new tuple, deformed before, has of unchanged
        datums.
        """
        cdef int32_t before = self.name_count
        cdef Py_ssize_t size = 4
        cdef int i
        if may_have:
            for i in range(self.column_count):
                if self.deformer.values[self.attributes[i]].state == DATUM_UNCHANGED:
                    with gil:
                        size += self.put_unchanged_name(self.names[i])
        if self.name_count == before:
            self.unchanged_null_count += 1
        put_bit(&self.buffers[UNCHANGED_VALIDITY], self.rows, self.name_count > before)
        put_bytes(&self.buffers[UNCHANGED_OFFSETS], &self.name_count, 4)
        return size

    cdef Py_ssize_t put_unchanged_name(self, bytes name) except -1:
        cdef int32_t end
        put_bytes(&self.buffers[NAME_DATA], <const char*>name, len(name))
        end = <int32_t>self.buffers[NAME_DATA].size
        put_bytes(&self.buffers[NAME_OFFSETS], &end, 4)
        self.name_count += 1
        return len(name) + 4

    # Buffers for Arrow: (address, size), or None for a validity bitmap without nulls. They are
    # valid until the table is cleared, gets another row, or goes.

    def change_column_buffers(self):
        """Return the values of _lsn, _commit_lsn, … in order, then offsets and characters of
        _op.
        """
        return [_place(&self.buffers[i]) for i in range(OP + 1)]

    def unchanged_buffers(self):
        """Return ``(null count, names, [list validity, list offsets], [name offsets, name
        data])``.
        """
        return (
            self.unchanged_null_count, self.name_count,
            [
                _place(&self.buffers[UNCHANGED_VALIDITY]) if self.unchanged_null_count else None,
                _place(&self.buffers[UNCHANGED_OFFSETS]),
            ],
            [_place(&self.buffers[NAME_OFFSETS]), _place(&self.buffers[NAME_DATA])],
        )

    def key_validity_buffer(self):
        """Return ``(null count, validity)`` of _old_key."""
        return (self.key_null_count,
                _place(&self.buffers[KEY_VALIDITY]) if self.key_null_count else None)

    def column_buffers(self, int i):
        """Return ``(null count, [validity, (offsets,) values])`` of column *i*; key columns follow
        the table's.
        """
        cdef Column* column
        if not 0 <= i < self.column_count + self.key_count:
            raise IndexError(i)
        column = &self.columns[i]
        buffers = [_place(&column.validity) if column.null_count else None]
        if column.kind in (KIND_BINARY, KIND_TEXT, KIND_PRINTED):
            buffers.append(_place(&column.offsets))
        buffers.append(_place(&column.values))
        return (column.null_count, buffers)


cdef tuple _place(const ByteBuffer* buffer):
    return (<size_t>buffer.data, buffer.size)


def put_message(MessageBuffer out not None, uint64_t lsn, uint32_t xid, list parts):
    """Append one message that is made of *parts*, each a buffer, without joining them first."""
    cdef Py_buffer view
    try:
        for part in parts:
            PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
            try:
                put_bytes(&out.payload, view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
    except BaseException:
        out.discard()
        raise
    out.finish(lsn, xid)


cdef struct Slot:
    uint32_t relation
    # borrowed from ``tables``; NULL: free
    void* table


cdef class Encoder:
    """Gathers the rows of transactions.

    Args:
        settings: a ``pg.text_settings.TextSettings``, for values that are printed.
        make_plan: RelationDescriptor → ``plugins.arrow_schema.TablePlan``.
        batch_bytes: how much is gathered, about, before :attr:`full`.
        batch_rows: the same in rows.
    """
    cdef TextContext context
    cdef object make_plan
    # true: stop behind a SCHEMA_CHANGE
    cdef public bint schema_changes
    # what gather stopped behind: lsn and content; None
    cdef public tuple schema_change
    cdef size_t batch_bytes
    cdef size_t batch_rows
    # By relation id; and of each table (by oid) the one that rows go to.
    cdef dict tables
    cdef dict open_by_oid
    # Tables with rows, in the order of their first.
    cdef list gathered
    cdef Slot slots[SLOTS]
    cdef Current current
    cdef readonly bint in_transaction
    # All that is gathered; the same of the current transaction alone.
    cdef size_t bytes
    cdef size_t rows
    cdef size_t own_bytes
    cdef size_t own_rows
    # The change at hand, for errors.
    cdef uint64_t lsn
    cdef uint32_t relation

    def __cinit__(self, settings, make_plan, size_t batch_bytes, size_t batch_rows):
        self.context = TextContext(settings)
        self.make_plan = make_plan
        self.batch_bytes = batch_bytes
        self.batch_rows = batch_rows
        self.tables = {}
        self.open_by_oid = {}
        self.gathered = []

    @property
    def full(self):
        """Whether it is time to emit.

        Between transactions: the bounds are reached. Inside of one: that one alone reaches them, so
        that others are never cut; what came before it is below the bounds.
        """
        if self.in_transaction:
            return self.own_bytes >= self.batch_bytes or self.own_rows >= self.batch_rows
        return self.bytes >= self.batch_bytes or self.rows >= self.batch_rows

    def begin(self, uint32_t xid, uint64_t commit_lsn, uint64_t commit_end_lsn,
              int64_t commit_time):
        """Start a transaction."""
        self.current.xid = xid
        self.current.commit_lsn = commit_lsn
        self.current.commit_end_lsn = commit_end_lsn
        self.current.commit_time = commit_time + EPOCH_US
        self.current.seq = 0
        self.own_bytes = 0
        self.own_rows = 0
        self.in_transaction = True

    @property
    def next_seq(self):
        """The number that the current transaction's next change gets."""
        return self.current.seq

    def commit(self):
        """End the transaction."""
        self.in_transaction = False

    def gather(self, const uint8_t[::1] chunk not None, size_t offset, relations):
        """Gather changes from *offset* on until the chunk ends or :attr:`full`, or behind a
        :attr:`schema_change`; return where that is.

        Raises:
            DecodingError: a change is malformed; the details say which. What was gathered is given
                up.
            ValueNotRepresentable: a value has no Arrow form.
        """
        cdef size_t size = chunk.shape[0]
        cdef Table table
        if offset >= size:
            return size
        # The same id may mean another descriptor in another chunk's relations.
        memset(self.slots, 0, sizeof(self.slots))
        self.lsn = 0
        self.relation = 0
        try:
            with nogil:
                self.run(&chunk[0], size, &offset, relations)
        except DecodingError as error:
            table = self.tables.get(self.relation)
            place = located(
                error, self.lsn, relations.get(self.relation),
                None if table is None else table.column_name()
            )
            self.reset()
            raise place from error
        except BaseException:
            self.reset()
            raise
        return offset

    def take(self):
        """Return the tables with rows, those of earlier transactions first; to be cleared by
        :meth:`taken`.
        """
        return sorted(self.gathered, key=lambda table: table.commit_end_lsn)

    def taken(self):
        """Forget the rows of all tables: they are in messages now."""
        cdef Table table
        for table in self.gathered:
            table.clear()
        self.gathered = []
        self.bytes = self.rows = 0
        self.own_bytes = self.own_rows = 0
        # An id comes to mean another table once its own is gone: what was open for that is in the
        # second one only.
        if len(self.tables) > TABLES_MAX or len(self.open_by_oid) > TABLES_MAX:
            self.reset()

    cdef int reset(self) except -1:
        self.tables = {}
        self.open_by_oid = {}
        self.gathered = []
        self.bytes = self.rows = 0
        self.own_bytes = self.own_rows = 0
        memset(self.slots, 0, sizeof(self.slots))
        return 0

    cdef Table table(self, uint32_t relation, relations):
        """Return the table that rows of *relation* go to now, and put it into its slot."""
        cdef Table table
        descriptor = relations.get(relation)
        if descriptor is None:
            raise DecodingError(f"a change is of relation {relation}, whose descriptor did not "
                                "come with it")
        table = self.tables.get(relation)
        if table is None or (table.plan.descriptor is not descriptor
                             and table.plan.descriptor != descriptor):
            table = Table(self.make_plan(descriptor), self.context)
            self.tables[relation] = table
        before = self.open_by_oid.get(descriptor.oid)
        if before is not None and before is not table:
            # Another descriptor of the same table: rows gathered under the one before are a batch
            # of their own, and stay in `gathered`; should that descriptor come back, it begins
            # another.
            self.tables = {key: value for key, value in self.tables.items() if value is not before}
            memset(self.slots, 0, sizeof(self.slots))
        self.open_by_oid[descriptor.oid] = table
        self.tables[relation] = table
        self.slots[relation % SLOTS].relation = relation
        self.slots[relation % SLOTS].table = <void*>table
        return table

    cdef void* find_table(self, uint32_t relation, relations) except NULL nogil:
        cdef Slot* slot = &self.slots[relation % SLOTS]
        if slot.table == NULL or slot.relation != relation:
            with gil:
                self.table(relation, relations)
        return slot.table

    cdef int run(self, const uint8_t* chunk, size_t size, size_t* offset,
                 relations) except -1 nogil:
        cdef Change change
        while offset[0] < size:
            read_change(chunk, size, offset, &change)
            self.lsn = change.header.lsn
            self.relation = change.header.relation
            if change.header.action == INSERT:
                self.add(&change, change.header.relation, c'I', relations)
            elif change.header.action == UPDATE:
                self.add(&change, change.header.relation, c'U', relations)
            elif change.header.action == DELETE:
                self.add(&change, change.header.relation, c'D', relations)
            elif change.header.action == TRUNCATE:
                self.add_truncate(&change, relations)
            elif change.header.action == SCHEMA_CHANGE:
                if self.schema_changes:
                    with gil:
                        self.schema_change = (change.header.lsn, (<const char*>change.new_section)[
                            :<Py_ssize_t>change.new_size])
                    return 0
            elif change.header.action not in (INVALIDATION, MESSAGE):
                return invalid(b"a change has an action that no transaction yields")
            if self.own_bytes >= self.batch_bytes or self.own_rows >= self.batch_rows:
                return 0
        return 0

    cdef int add(self, const Change* change, uint32_t relation, uint8_t op,
                 relations) except -1 nogil:
        cdef void* table = self.find_table(relation, relations)
        cdef size_t size = <size_t>add_row(<Table>table, change, op, &self.current)
        if row_count(<Table>table) == 1:
            with gil:
                self.gathered.append(<Table>table)
        self.current.seq += 1
        self.bytes += size
        self.own_bytes += size
        self.rows += 1
        self.own_rows += 1
        return 0

    cdef int add_truncate(self, const Change* change, relations) except -1 nogil:
        """Add a row to every table that the TRUNCATE names."""
        cdef uint32_t count, i
        if change.new_section == NULL or change.new_size < 8:
            return invalid(b"a truncation ends inside its header")
        count = load_u32(change.new_section + 4)
        if count > (change.new_size - 8) // 4:
            return invalid(b"a truncation has fewer relations than it says")
        for i in range(count):
            self.relation = load_u32(change.new_section + 8 + 4 * <size_t>i)
            self.add(change, self.relation, c'T', relations)
        return 0


cdef inline Py_ssize_t add_row(Table table, const Change* change, uint8_t op,
                               Current* current) except -1 nogil:
    return table.add_row(change, op, current)


cdef inline size_t row_count(Table table) noexcept nogil:
    return table.rows
