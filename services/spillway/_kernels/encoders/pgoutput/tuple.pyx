# cython: language_level=3, boundscheck=False, wraparound=False
"""Rows in the tuple format of the logical replication protocol.

A tuple is the number of columns, then for each column one byte that says what follows: ``n`` null,
``u`` a TOAST value that did not change and so is not in WAL, ``t`` the value's text, ``b``
its type's send format, both with the length before. Integers are in network byte order.

Which columns, and in which order, is the published table's matter: a partition's row that goes out
under its root's name has the root's columns in the root's order. So a writer has, for each column
that it writes, where to find it in the tuple. A partition's columns have the types of its root's,
and are printed as its own.

Source: logicalrep_write_tuple (src/backend/replication/logical/proto.c)
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from spillway._kernels.values.datum cimport (
    DATUM_NULL,
    DATUM_UNCHANGED,
    DATUM_VALUE,
    Change,
    Datum,
    Deformer,
    invalid,
)
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, reserve
from spillway._kernels.values.send.output cimport SendCompiler
from spillway._kernels.values.send.scalar cimport patch_int32, put_int16
from spillway._kernels.values.send.text cimport convert_text
from spillway._kernels.values.text.output cimport CompiledType, TextContext, TypeCompiler
from spillway.errors import DecodingError

cdef enum:
    # t and b
    TEXT = 0x74
    BINARY = 0x62
    # What the protocol's lengths, and so PostgreSQL's own values, can be.
    VALUE_BYTES_MAX = 0x7FFFFFFF


cdef class RowWriter:
    """Writes rows of one table.

    Args:
        descriptor: the RelationDescriptor that the tuples were written under.
        attnums: of the columns to write, in the order to write them.
        context: the settings to print under.
        binary: send values in their types' send format, where they have one.
    """

    def __cinit__(self, descriptor, attnums, TextContext context not None, bint binary):
        cdef CompiledType compiled
        cdef TypeCompiler texts = TypeCompiler(context, descriptor.types)
        cdef SendCompiler sends = SendCompiler(context, descriptor.types)
        cdef int i
        self.deformer = Deformer(descriptor)
        self.old = Deformer(descriptor)
        self.owned = []
        self.count = len(attnums)
        self.columns = <ColumnWriter*>calloc(len(attnums) + 1, sizeof(ColumnWriter))
        if self.columns == NULL:
            raise MemoryError
        for i, attnum in enumerate(attnums):
            if not 0 < attnum <= self.deformer.natts or descriptor.columns[attnum - 1].dropped:
                raise DecodingError(f"table {descriptor.schema}.{descriptor.name} has no column "
                                    f"{attnum} to publish")
            compiled = sends.column(descriptor.columns[attnum - 1]) if binary else None
            self.columns[i].format = BINARY
            if compiled is None:
                compiled = texts.column(descriptor.columns[attnum - 1])
                self.columns[i].format = TEXT
            self.owned.append(compiled)
            self.columns[i].source = attnum - 1
            self.columns[i].output = &compiled.output

    def __dealloc__(self):
        free(self.columns)

    cdef int put_tuple(
        self, const uint8_t* section, size_t size, const Change* change, ByteBuffer* out
    ) except -1 nogil:
        self.deformer.deform(section, size, change)
        return self.put_values(self.deformer.values, NULL, out)

    cdef int put_merged(self, const Change* change, ByteBuffer* out) except -1 nogil:
        self.deformer.deform(change.new_section, change.new_size, change)
        if change.old_section == NULL:
            return self.put_values(self.deformer.values, NULL, out)
        self.old.deform(change.old_section, change.old_size, change)
        return self.put_values(self.deformer.values, self.old.values, out)

    cdef int put_values(self, const Datum* values, const Datum* fallback,
                        ByteBuffer* out) except -1 nogil:
        cdef const ColumnWriter* column = self.columns
        cdef const ColumnWriter* end = column + self.count
        cdef const Datum* value
        cdef size_t start, size
        put_int16(out, self.count)
        while column < end:
            value = &values[column.source]
            if (value.state == DATUM_UNCHANGED and fallback != NULL
                    and fallback[column.source].state == DATUM_VALUE):
                value = &fallback[column.source]
            if value.state == DATUM_VALUE:
                reserve(out, 5)
                out.data[out.size] = column.format
                out.size += 5
                start = out.size
                column.output.write(column.output, value.data, value.size, out)
                if column.format == TEXT and column.output.settings.codec != NULL:
                    convert_text(out, start, column.output.settings)
                size = out.size - start
                if size > VALUE_BYTES_MAX:
                    return invalid(b"a value is too long for the protocol")
                patch_int32(out, start - 4, <uint32_t>size)
            else:
                put_byte(out, c'n' if value.state == DATUM_NULL else c'u')
            column += 1
        return 0
