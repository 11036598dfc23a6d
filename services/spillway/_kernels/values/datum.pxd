# cython: language_level=3
"""C interface of the datum kernel: reading changes and deforming tuples, for output plugins'
kernels.

The order of use, without the GIL, once a change::

    read_change(chunk, size, &offset, &change)
    deformer.deform(change.new_tuple, change.new_size, &change)
    deformer.values[i]        # a Datum for each of deformer.natts columns

All functions raise DecodingError for bytes that contradict themselves. The caller adds lsn and
relation to its details (``Deformer.deform`` knows neither).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spillway._kernels.reorder.changes cimport ChangeHeader


cdef enum DatumState:
    DATUM_NULL = 0
    DATUM_VALUE = 1
    # an external TOAST pointer whose value is not in the change: the row's old value still stands
    DATUM_UNCHANGED = 2


# One attribute's value. *data* is little-endian and may be unaligned. For a varlena it is the
# payload behind the header, decompressed and fetched from TOAST; for a cstring it is without the
# final zero. It points into the change or the deformer's scratch memory: valid until the next
# deform.
cdef struct Datum:
    const uint8_t* data
    size_t size
    uint8_t state


# A change of a chunk; pointers into the chunk, sizes checked against it.
cdef struct Change:
    ChangeHeader header
    const uint8_t* new_section
    size_t new_size
    const uint8_t* old_section
    size_t old_size
    # TOAST values, back to back
    const uint8_t* toast
    size_t toast_size


# How one attribute lies in a tuple.
cdef struct AttributeLayout:
    int16_t length          # attlen: > 0 bytes, -1 varlena, -2 cstring
    uint8_t align           # bytes: 1, 2, 4, 8
    bint dropped
    # offset in a tuple without nulls when all attributes before have a fixed length, else -1
    int32_t cached_offset
    # value where the tuple was written before the column came; NULL: null
    const uint8_t* missing
    size_t missing_size


# attalign's letter → bytes
cdef dict ALIGN_BYTES


# Memory for decompressed values, in blocks that never move; forgotten as a whole.
cdef struct ScratchBlock:
    ScratchBlock* next
    size_t size
    size_t used

cdef struct Scratch:
    ScratchBlock* blocks

cdef uint8_t* scratch_alloc(Scratch* scratch, size_t size) except NULL nogil
cdef void scratch_reset(Scratch* scratch) noexcept nogil
cdef void scratch_free(Scratch* scratch) noexcept nogil

# Set *change* to the change at *offset*, which must be < *size*, and *offset* behind it.
cdef int read_change(const uint8_t* chunk, size_t size, size_t* offset,
                     Change* change) except -1 nogil

# Locate *count* attributes of a tuple whose attributes begin at *data*; raw datums, header
# included. *bits* is the null bitmap (at least natts bits) or NULL. Attributes from *natts* on get
# their missing value.
cdef int locate_attributes(
    const AttributeLayout* layout, int count, const uint8_t* bits, int natts,
    const uint8_t* data, size_t size, Datum* values) except -1 nogil

# Turn a raw varlena (header included) into its payload.
cdef int open_varlena(Datum* value, const Change* change, Scratch* scratch) except -1 nogil

# The bytes of the varlena at *data*, header included, checked against *size*.
cdef size_t varlena_size(const uint8_t* data, size_t size) except 0 nogil

cdef int invalid(const char* what) except -1 nogil


cdef inline uint16_t load_u16(const uint8_t* p) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return value

cdef inline int16_t load_i16(const uint8_t* p) noexcept nogil:
    cdef int16_t value
    memcpy(&value, p, 2)
    return value

cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value

cdef inline int32_t load_i32(const uint8_t* p) noexcept nogil:
    cdef int32_t value
    memcpy(&value, p, 4)
    return value

cdef inline uint64_t load_u64(const uint8_t* p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return value

cdef inline int64_t load_i64(const uint8_t* p) noexcept nogil:
    cdef int64_t value
    memcpy(&value, p, 8)
    return value

cdef inline size_t align_up(size_t offset, size_t align) noexcept nogil:
    return (offset + align - 1) & ~(align - 1)


cdef class Layout:
    """The layout of a row type: a table's or a composite type's."""
    cdef AttributeLayout* attributes
    cdef readonly int natts
    # keeps the bytes that ``missing`` points to
    cdef list owned

    cdef int set_missing(self, AttributeLayout* layout, bytes missing, object name) except -1


cdef class Deformer:
    """A table's layout with room for one deformed tuple. Used by one thread at a time."""
    cdef readonly object descriptor
    cdef Layout layout
    cdef readonly int natts
    cdef Datum* values
    cdef Scratch scratch

    cdef int deform(self, const uint8_t* section, size_t size, const Change* change) except -1 nogil
