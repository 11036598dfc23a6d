# cython: language_level=3
"""What a compiled type's text output looks like in C; shared by the text kernels.

``text_output.pyx`` compiles a type into a :c:type:`TypeOutput`; the kernels ``text_number``,
``text_datetime``, ``text_network``, ``text_geometric`` and ``text_jsonb`` hold writers, one a type. A writer
appends the text that PostgreSQL's output function gives for the value in ``data[0:size]`` (a Datum's:
unaligned, varlenas without header), reads nothing outside it, and raises DecodingError if it is malformed.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from spillway._kernels.datum cimport AttributeLayout
from spillway._kernels.message_buffer cimport ByteBuffer


# From *start* on (microseconds since 2000-01-01 00:00 UTC) local time is *offset* seconds east of UTC.
cdef struct ZoneTransition:
    int64_t start
    int32_t offset


# PostgreSQL's settings that change what output functions print, and the version that they belong to.
cdef struct TextSettings:
    int server_version_num
    int extra_float_digits
    bint bytea_escape
    # at least one; the first one's start is before every timestamp
    const ZoneTransition* transitions
    size_t transition_count


cdef struct EnumLabel:
    uint32_t oid
    uint32_t size
    const uint8_t* text


ctypedef int (*text_writer)(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil


cdef struct TypeOutput:
    text_writer write
    const TextSettings* settings
    int16_t length
    uint8_t align
    # arrays: between elements
    uint8_t delimiter
    # arrays: of elements; ranges: of bounds; multiranges: the range
    const TypeOutput* element
    # enums: ordered by oid
    const EnumLabel* labels
    # composites: how attributes lie, and their types (NULL for dropped ones)
    const AttributeLayout* layout
    const TypeOutput** fields
    # labels or fields
    size_t count
    # borrowed Python object: codecs written in Python
    void* codec
