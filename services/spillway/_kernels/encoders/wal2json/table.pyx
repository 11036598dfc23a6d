# cython: language_level=3, boundscheck=False, wraparound=False
"""Rows of one table as wal2json writes them: which columns are shown, and their values as JSON.

Numbers and booleans are written bare; a bytea without its ``\\x``; everything else is a string of
what its type prints. ``plugins/wal2json_text.py`` made the text around the values.

Source: pg_decode_write_value, tuple_to_stringinfo (eulerto/wal2json, 2.5)
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from spillway._kernels.encoders.chunk_encoder cimport RelationWriter
from spillway._kernels.values.datum cimport DATUM_NULL, DATUM_UNCHANGED, Change, Datum, Deformer
from spillway._kernels.encoders.wal2json.json_text cimport close_json_string
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.values.text.output cimport CompiledType, TextContext, TypeCompiler
from spillway.plugins.wal2json_text import relation_text


cdef Text text_of(bytes data):
    """Borrow *data*, which somebody else keeps."""
    cdef Text text
    text.data = <const uint8_t*>PyBytes_AS_STRING(data)
    text.size = PyBytes_GET_SIZE(data)
    return text


cdef class TableWriter(RelationWriter):
    """Writes the columns of one table's rows."""

    def __init__(self, descriptor, TextContext context not None, options):
        cdef int i
        cdef Column* column
        cdef CompiledType compiled
        cdef TypeCompiler compiler = TypeCompiler(context, descriptor.types)
        RelationWriter.__init__(self, descriptor)
        text = relation_text(descriptor, options, context.settings)
        self.text = text
        self.selected = text.selected
        self.has_pk = text.has_pk
        self.has_identity_index = text.has_identity_index
        self.full = descriptor.replica_identity == "f"
        self.numbers_quoted = options.numeric_data_types_as_string
        self.name = text_of(text.name)
        self.pk = text_of(text.pk)
        self.deformer = Deformer(descriptor)
        self.owned = []
        self.columns = <Column*>calloc(self.deformer.natts + 1, sizeof(Column))
        self.shown = <int*>calloc(self.deformer.natts + 1, sizeof(int))
        if self.columns == NULL or self.shown == NULL:
            raise MemoryError
        for i, descriptor_column in enumerate(descriptor.columns):
            if descriptor_column.dropped:
                continue
            column = &self.columns[i]
            compiled = compiler.column(descriptor_column)
            self.owned.append(compiled)
            column.output = &compiled.output
            column.style = text.styles[i]
            column.live = text.live[i]
            column.in_identity = text.in_identity[i]
            column.in_pk = text.in_pk[i]
            if text.cells:
                column.head = text_of(text.cells[i].head)
                column.tail = text_of(text.cells[i].tail)
        self.row_sections = self.make_sections(text.row_sections)
        self.row_section_count = len(text.row_sections)
        self.key_sections = self.make_sections(text.key_sections)
        self.key_section_count = len(text.key_sections)

    def __dealloc__(self):
        free_sections(self.row_sections, self.row_section_count)
        free_sections(self.key_sections, self.key_section_count)
        free(self.columns)
        free(self.shown)

    cdef Section* make_sections(self, sections) except NULL:
        cdef Section* made = <Section*>calloc(len(sections) + 1, sizeof(Section))
        cdef Section* section
        if made == NULL:
            raise MemoryError
        for i, source in enumerate(sections):
            section = &made[<int>i]
            section.head = text_of(source.head)
            section.tail = text_of(source.tail)
            if source.pieces:
                section.pieces = <Text*>calloc(len(source.pieces), sizeof(Text))
                if section.pieces == NULL:
                    free_sections(made, <int>i)
                    raise MemoryError
                for n, piece in enumerate(source.pieces):
                    section.pieces[<int>n] = text_of(piece)
        return made

    cdef int show(
        self, const uint8_t* section, size_t size, const Change* change, Kind kind, bint skip_nulls
    ) except -1 nogil:
        """Deform a tuple and choose the columns to show of it."""
        cdef const Column* column
        cdef uint8_t state
        cdef int i
        self.deformer.deform(section, size, change)
        self.shown_count = 0
        for i in range(self.deformer.natts):
            column = &self.columns[i]
            state = self.deformer.values[i].state
            if (
                not column.live
                or state == DATUM_UNCHANGED
                or (skip_nulls and state == DATUM_NULL)
                or (kind == KIND_IDENTITY and not column.in_identity)
                or (kind == KIND_PK and not column.in_pk)
            ):
                continue
            self.shown[self.shown_count] = i
            self.shown_count += 1
        return 0

    cdef int put_value(self, int i, ByteBuffer* out) except -1 nogil:
        cdef const Column* column = &self.columns[i]
        cdef const Datum* value = &self.deformer.values[i]
        cdef size_t start = out.size
        if value.state == DATUM_NULL:
            return put_bytes(out, b"null", 4)
        if column.style == STYLE_QUOTED:
            put_byte(out, c'"')
            column.output.write(column.output, value.data, value.size, out)
            return close_json_string(out, start + 1)
        if column.style == STYLE_NUMBER:
            return self.put_number(column, value, out)
        column.output.write(column.output, value.data, value.size, out)
        if column.style == STYLE_BOOLEAN:
            return put_boolean(out, start)
        return put_bytea(out, start)

    cdef int put_number(self, const Column* column, const Datum* value,
                        ByteBuffer* out) except -1 nogil:
        """Write a number as such; NaN and infinities, which JSON has not, as null."""
        cdef size_t start = out.size
        cdef const uint8_t* digits
        if self.numbers_quoted:
            put_byte(out, c'"')
            column.output.write(column.output, value.data, value.size, out)
            return put_byte(out, c'"')
        column.output.write(column.output, value.data, value.size, out)
        digits = out.data + start
        if out.size > start + 1 and digits[0] == c'-':
            digits += 1
        if out.size > start and (digits[0] == c'N' or digits[0] == c'I'):
            out.size = start
            return put_bytes(out, b"null", 4)
        return 0

    # ---- format 1

    cdef int put_sections(
        self, const Section* sections, int count, const Text* comma, ByteBuffer* out
    ) except -1 nogil:
        cdef const Section* section
        cdef int s, n
        for s in range(count):
            section = &sections[s]
            put_text(out, &section.head)
            if section.pieces != NULL:
                for n in range(self.shown_count):
                    if n:
                        put_text(out, comma)
                    put_text(out, &section.pieces[self.shown[n]])
            put_text(out, &section.tail)
        return 0

    cdef int put_values(self, const Text* comma, ByteBuffer* out) except -1 nogil:
        cdef int n
        for n in range(self.shown_count):
            if n:
                put_text(out, comma)
            self.put_value(self.shown[n], out)
        return put_byte(out, c']')

    # ---- format 2

    cdef int put_cells(self, Kind kind, ByteBuffer* out) except -1 nogil:
        cdef const Column* column
        cdef int n
        for n in range(self.shown_count):
            if n:
                put_byte(out, c',')
            column = &self.columns[self.shown[n]]
            put_text(out, &column.head)
            if kind != KIND_PK:
                put_bytes(out, b',"value":', 9)
                self.put_value(self.shown[n], out)
            if kind == KIND_ROW:
                put_text(out, &column.tail)
            else:
                put_byte(out, c'}')
        return put_byte(out, c']')


cdef void free_sections(Section* sections, int count) noexcept:
    cdef int i
    if sections != NULL:
        for i in range(count):
            free(sections[i].pieces)
        free(sections)


cdef int put_boolean(ByteBuffer* out, size_t start) except -1 nogil:
    """Replace ``t`` or ``f``, written from *start* on."""
    cdef bint value = out.size == start + 1 and out.data[start] == c't'
    out.size = start
    if value:
        return put_bytes(out, b"true", 4)
    return put_bytes(out, b"false", 5)


cdef int put_bytea(ByteBuffer* out, size_t start) except -1 nogil:
    """Make what was written from *start* on a string, without its first two bytes: ``\\x``, or what
    is there.
    """
    cdef size_t skipped = min(<size_t>2, out.size - start)
    cdef size_t size = out.size - start - skipped
    reserve(out, 1)
    memmove(out.data + start + 1, out.data + start + skipped, size)
    out.data[start] = c'"'
    out.size = start + 1 + size
    return close_json_string(out, start + 1)
