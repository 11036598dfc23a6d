# cython: language_level=3
"""Rows of one table as wal2json writes them: C interface for its two formats."""

from libc.stdint cimport uint8_t

from spillway._kernels.encoders.chunk_encoder cimport RelationWriter
from spillway._kernels.values.datum cimport Change, Datum, Deformer
from spillway._kernels.messages.buffer cimport ByteBuffer, put_bytes
from spillway._kernels.values.type cimport TypeOutput


cdef enum Style:
    # plugins/wal2json_text.py has the same numbers.
    STYLE_QUOTED = 0
    STYLE_NUMBER = 1
    STYLE_BOOLEAN = 2
    STYLE_BYTEA = 3

cdef enum Kind:
    KIND_ROW = 0
    KIND_IDENTITY = 1
    KIND_PK = 2


cdef struct Text:
    const uint8_t* data
    size_t size


cdef struct Column:
    const TypeOutput* output
    Style style
    bint live
    bint in_identity
    bint in_pk
    # format 2: before the value, behind a new row's
    Text head
    Text tail


cdef struct Section:
    Text head
    Text tail
    # by column; NULL: the section has none
    Text* pieces


cdef inline int put_text(ByteBuffer* out, const Text* text) except -1 nogil:
    return put_bytes(out, text.data, text.size)


# Borrow *data*, which somebody else keeps.
cdef Text text_of(bytes data)


cdef class TableWriter(RelationWriter):
    cdef object text
    cdef bint selected
    cdef bint has_pk
    cdef bint has_identity_index
    cdef bint full
    cdef Text name
    cdef Text pk
    cdef Deformer deformer
    cdef Column* columns
    cdef Section* row_sections
    cdef int row_section_count
    cdef Section* key_sections
    cdef int key_section_count
    # Columns that the part at hand shows.
    cdef int* shown
    cdef int shown_count
    cdef bint numbers_quoted
    cdef list owned

    cdef Section* make_sections(self, sections) except NULL
    cdef int show(
        self, const uint8_t* section, size_t size, const Change* change, Kind kind, bint skip_nulls
    ) except -1 nogil
    cdef int put_value(self, int i, ByteBuffer* out) except -1 nogil
    cdef int put_number(self, const Column* column, const Datum* value,
                        ByteBuffer* out) except -1 nogil
    cdef int put_sections(
        self, const Section* sections, int count, const Text* comma, ByteBuffer* out
    ) except -1 nogil
    cdef int put_values(self, const Text* comma, ByteBuffer* out) except -1 nogil
    cdef int put_cells(self, Kind kind, ByteBuffer* out) except -1 nogil
