# cython: language_level=3
"""What a compiled type's output looks like in C; shared by ``text/`` and ``send/``.

A type has two outputs, as in PostgreSQL: text, and the send format (binary). ``text/output.pyx``
and ``send/output.pyx`` compile a type into a :c:type:`TypeOutput` of the one or the other; the
kernels beside them hold writers, one a type. A writer appends what PostgreSQL's output or send
function gives for the value in ``data[0:size]`` (a Datum's: unaligned, varlenas without header),
reads nothing outside it, and raises DecodingError if it is malformed.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from spillway._kernels.values.datum cimport AttributeLayout
from spillway._kernels.messages.buffer cimport ByteBuffer


# From *start* on (microseconds since 2000-01-01 00:00 UTC) local time is *offset* seconds east of
# UTC.
cdef struct ZoneTransition:
    int64_t start
    int32_t offset
    # abbreviation, CEST for one; zero-terminated
    const char* name


cdef enum DateStyle:
    DATE_STYLE_ISO = 0
    DATE_STYLE_SQL = 1
    DATE_STYLE_POSTGRES = 2
    DATE_STYLE_GERMAN = 3


cdef enum IntervalStyle:
    INTERVAL_STYLE_POSTGRES = 0
    INTERVAL_STYLE_POSTGRES_VERBOSE = 1
    INTERVAL_STYLE_SQL_STANDARD = 2
    INTERVAL_STYLE_ISO_8601 = 3


# The date of the timestamp that was printed last, in style ISO: rows that are written together have
# few dates.
cdef struct PrintedDate:
    # since 2000-01-01
    int64_t days
    bint before_christ
    uint8_t size
    # what is behind *size* is room
    char[16] text


# PostgreSQL's settings that change what output functions print, and the version that they belong
# to.
cdef struct TextSettings:
    int server_version_num
    int extra_float_digits
    bint bytea_escape
    DateStyle date_style
    # DateStyle's order is DMY
    bint day_first
    IntervalStyle interval_style
    # at least one; the first one's start is before every timestamp
    const ZoneTransition* transitions
    size_t transition_count
    # Python's codec of the database's encoding; NULL for UTF-8, and for bytes of none
    const char* codec
    # not a setting, but as these for one plugin instance, which one thread at a time uses
    PrintedDate* printed


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
    # composites: their types' oids, domains included
    const uint32_t* field_oids
    # labels or fields
    size_t count
    # borrowed Python object: codecs written in Python, and what they need
    void* codec
