# cython: language_level=3
"""Writing rows in the logical replication protocol's tuple format: C interface for the pgoutput
kernel.
"""

from libc.stdint cimport uint8_t, uint16_t

from spillway._kernels.values.datum cimport Change, Datum, Deformer
from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput


cdef struct ColumnWriter:
    # index into the deformed tuple's values
    int source
    # what the value's bytes are: t or b
    uint8_t format
    const TypeOutput* output


cdef class RowWriter:
    """Writes rows of one table, as of one descriptor, with the columns that are published."""
    cdef Deformer deformer
    # for the old tuple of a change whose new one borrows from it
    cdef Deformer old
    cdef ColumnWriter* columns
    cdef uint16_t count
    cdef list owned

    # Append the tuple in *section*.
    cdef int put_tuple(
        self, const uint8_t* section, size_t size, const Change* change,
        ByteBuffer* out) except -1 nogil
    # Append the new tuple of *change*, unchanged TOAST values taken from the old one where that has
    # them.
    cdef int put_merged(self, const Change* change, ByteBuffer* out) except -1 nogil
    cdef int put_values(self, const Datum* values, const Datum* fallback,
                        ByteBuffer* out) except -1 nogil
