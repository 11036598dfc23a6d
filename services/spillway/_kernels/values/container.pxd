# cython: language_level=3
"""Reading arrays, composite values, ranges and multiranges: what their text and their send format
share.

Inside a container, alignment counts from the container's 4-byte header, which was cut off (see
Datum): offsets here are relative to ``data - HEADER``. Everything is checked against the
container's size.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.values.datum cimport Datum, Scratch
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    MAXDIM = 6
    HEADER = 4
    # dimensions, nulls, element type, length, lower bound
    VECTOR_HEADER = 20
    RANGE_EMPTY = 0x01
    RANGE_LB_INC = 0x02
    RANGE_UB_INC = 0x04
    RANGE_LB_INF = 0x08
    RANGE_UB_INF = 0x10
    RANGE_LB_NULL = 0x20
    RANGE_UB_NULL = 0x40


# An array's header; *count* elements follow, the first at *offset* from ``data - HEADER``.
cdef struct ArrayHeader:
    int ndim
    uint32_t element_oid
    int32_t dims[MAXDIM]
    int32_t lower_bounds[MAXDIM]
    uint64_t count
    # the null bitmap, NULL without one
    const uint8_t* bits
    size_t offset


# Where a walk through the ranges of a multirange is.
cdef struct MultirangeWalk:
    const uint8_t* data
    size_t size
    uint32_t count
    uint32_t item
    uint64_t begin
    uint64_t offset


# Read the value at *offset* of the container data[0:size] and move *offset* behind it.
cdef int take_value(
    const TypeOutput* type, const uint8_t* data, size_t size, size_t* offset, Datum* value,
    Scratch* scratch
) except -1 nogil

cdef int open_array(const uint8_t* data, size_t size, ArrayHeader* header) except -1 nogil

# Return the number of elements of an oidvector or int2vector, which begin at data + VECTOR_HEADER.
cdef int64_t open_vector(const uint8_t* data, size_t size, size_t element_size) except -1 nogil

# Whether element *item* is null.
cdef inline bint is_null_element(const ArrayHeader* header, uint64_t item) noexcept nogil:
    return header.bits != NULL and not header.bits[item >> 3] & (1 << (item & 7))

# Set *values*, room for ``type.count``, to a composite value's fields, opened; dropped ones are
# left as they lie.
cdef int open_record(
    const TypeOutput* type, const uint8_t* data, size_t size, Datum* values,
    Scratch* scratch) except -1 nogil

cdef int open_multirange(
    const TypeOutput* type, const uint8_t* data, size_t size, MultirangeWalk* walk) except -1 nogil

# Step to the next range: its flags, and the offset of its bounds from ``data - HEADER``.
cdef int next_range(MultirangeWalk* walk, uint8_t* flags, size_t* offset) except -1 nogil
