# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""Heap pages and catalog tuples: 8 kB of bytes → tuples → the values of the columns that are asked
for.

Comes in: page images and tuples out of WAL records or relation files, and COPY's binary output (the
SQL bootstrap reads catalogs with it). Goes out: plain Python values, one tuple per row. Used by the
catalog only: user tables' tuples are never deformed here (``_kernels/values/datum`` does that at
delivery).

Every read is checked against the end of its buffer; anything that contradicts itself raises
``ValueError`` with what and where in the buffer, and the caller, who knows the LSN, makes a
``CorruptWal`` or ``DecodingError`` of it.

Source: src/include/storage/{bufpage,itemid}.h, src/include/access/htup_details.h,
src/backend/access/common/heaptuple.c, src/backend/commands/copyto.c
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_Decode
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

cdef enum:
    PAGE_SIZE = 8192
    PAGE_HEADER_SIZE = 24
    TUPLE_HEADER_SIZE = 23
    NAME_SIZE = 64
    HEAP_HASNULL = 0x0001
    NATTS_MASK = 0x07FF

# How a column's value becomes a Python value.
cdef enum Kind:
    K_SKIP = 0
    K_OID = 1
    K_INT2 = 2
    K_INT4 = 3
    K_BOOL = 4
    K_CHAR = 5
    K_NAME = 6
    K_FLOAT4 = 7
    K_INT2VECTOR = 8
    K_RAW = 9
    K_OIDVECTOR = 10

SKIP = K_SKIP
OID = K_OID
INT2 = K_INT2
INT4 = K_INT4
BOOL = K_BOOL
CHAR = K_CHAR
NAME = K_NAME
FLOAT4 = K_FLOAT4
INT2VECTOR = K_INT2VECTOR
RAW = K_RAW
OIDVECTOR = K_OIDVECTOR


cdef inline uint16_t _u16(const uint8_t* p) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return value


cdef inline uint32_t _u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef inline uint16_t _be16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])


cdef inline uint32_t _be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


def page_lsn(const uint8_t[::1] page not None):
    """Return pd_lsn of a page: the end of the last record that changed it."""
    if page.shape[0] != PAGE_SIZE:
        raise ValueError(f"a page has {PAGE_SIZE} bytes, not {page.shape[0]}")
    return (<uint64_t>_u32(&page[0]) << 32) | _u32(&page[4])


def parse_page(const uint8_t[::1] page not None):
    """List the tuples of a heap page: ``(offset, xmin, xmax, infomask2, infomask, hoff, data)``.

    ``data`` is the tuple from byte 23 on: null bitmap, padding, attributes. Redirected, dead and
    unused line pointers are left out. A page of zeros (never initialised) has no tuples.
    """
    cdef:
        const uint8_t* base
        const uint8_t* tup
        uint32_t lower, upper, special, item, start, length, flags
        int count, i
        list tuples = []
    if page.shape[0] != PAGE_SIZE:
        raise ValueError(f"a page has {PAGE_SIZE} bytes, not {page.shape[0]}")
    base = &page[0]
    lower = _u16(base + 12)
    upper = _u16(base + 14)
    special = _u16(base + 16)
    if upper == 0:
        return tuples
    if lower < PAGE_HEADER_SIZE or lower > upper or upper > special or special > PAGE_SIZE:
        raise ValueError(f"page header contradicts itself: lower {lower}, upper {upper}, special "
                         f"{special}")
    count = (lower - PAGE_HEADER_SIZE) // 4
    for i in range(count):
        item = _u32(base + PAGE_HEADER_SIZE + 4 * i)
        flags = (item >> 15) & 3
        if flags != 1:
            continue
        start = item & 0x7FFF
        length = item >> 17
        if start < upper or start + length > special or length < TUPLE_HEADER_SIZE:
            raise ValueError(f"line pointer {i + 1} points outside the page: offset {start}, "
                             f"length {length}")
        tup = base + start
        if tup[22] < TUPLE_HEADER_SIZE or tup[22] > length:
            raise ValueError(f"tuple {i + 1} has header length {tup[22]} of {length} bytes")
        tuples.append((
            i + 1, _u32(tup), _u32(tup + 4), _u16(tup + 18), _u16(tup + 20), tup[22],
            PyBytes_FromStringAndSize(<const char*>tup + TUPLE_HEADER_SIZE,
                                      length - TUPLE_HEADER_SIZE),
        ))
    return tuples


cdef struct Column:
    int16_t length
    uint8_t align
    uint8_t kind


cdef class Deformer:
    """Takes the tracked columns of one catalog out of its tuples.

    *columns* lists the physical columns in order: ``(attlen, attalign, kind)``. Kind ``SKIP`` steps
    over the column; columns after the last that is wanted may be left out. Values come in column
    order: OID, INT2, INT4 as int, BOOL as bool, CHAR and NAME as str, FLOAT4 as float, INT2VECTOR
    and OIDVECTOR as a tuple, RAW as the bytes of the datum with its varlena header. Null, or beyond
    the tuple's last column: None.
    """

    cdef Column columns[128]
    cdef int count
    cdef int wanted
    cdef bytes encoding
    cdef bytes errors

    def __init__(self, columns, str encoding not None, str errors not None="strict"):
        cdef int i = 0
        if len(columns) > 128:
            raise ValueError(f"a catalog has at most 128 columns, not {len(columns)}")
        self.encoding = encoding.encode("ascii")
        self.errors = errors.encode("ascii")
        self.wanted = 0
        for length, align, kind in columns:
            if align not in "csid":
                raise ValueError(f"unknown attalign {align!r}")
            if length < -1 or length == 0:
                raise ValueError(f"unknown attlen {length}")
            if kind in (OID, INT4, FLOAT4) and length != 4 or kind == INT2 and length != 2 \
                    or kind in (BOOL,
                                CHAR) and length != 1 or kind == NAME and length != NAME_SIZE \
                    or kind in (INT2VECTOR, OIDVECTOR, RAW) and length != -1:
                raise ValueError(f"column {i + 1} of length {length} can't be read as kind {kind}")
            self.columns[i].length = length
            self.columns[i].align = {"c": 1, "s": 2, "i": 4, "d": 8}[align]
            self.columns[i].kind = kind
            if kind != K_SKIP:
                self.wanted += 1
            i += 1
        self.count = i

    def deform(self, int infomask2, int infomask, int hoff, bytes data not None):
        """Return the wanted columns' values of one tuple; *data* begins at byte 23 of it."""
        cdef:
            const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
            Py_ssize_t size = PyBytes_GET_SIZE(data)
            Py_ssize_t start = hoff - TUPLE_HEADER_SIZE
            Py_ssize_t offset = 0
            Py_ssize_t length
            int natts = infomask2 & NATTS_MASK
            bint has_null = (infomask & HEAP_HASNULL) != 0
            int i, place = 0
            Column* column
            tuple values = PyTuple_New(self.wanted)
            object value
        if start < 0 or start > size:
            raise ValueError(f"tuple of {size + TUPLE_HEADER_SIZE} bytes has header length {hoff}")
        if has_null and (natts + 7) // 8 > start:
            raise ValueError(f"null bitmap of {natts} columns does not fit a header of {hoff} "
                             "bytes")
        for i in range(self.count):
            column = &self.columns[i]
            if i >= natts or (has_null and not (base[i >> 3] >> (i & 7)) & 1):
                if column.kind != K_SKIP:
                    Py_INCREF(None)
                    PyTuple_SET_ITEM(values, place, None)
                    place += 1
                continue
            if column.length == -1:
                # A short header is not aligned; a padding byte is zero, a header never is.
                if start + offset >= size:
                    raise ValueError(f"column {i + 1} begins beyond the tuple's end")
                if base[start + offset] == 0:
                    offset = (offset + column.align - 1) & ~(<Py_ssize_t>column.align - 1)
                length = _varlena_size(base + start + offset, size - start - offset)
                if length < 0:
                    raise ValueError(f"column {i + 1} goes beyond the tuple's end")
            else:
                offset = (offset + column.align - 1) & ~(<Py_ssize_t>column.align - 1)
                length = column.length
            if start + offset + length > size:
                raise ValueError(f"column {i + 1} goes beyond the tuple's end")
            if column.kind != K_SKIP:
                value = self._value(base + start + offset, length, column.kind)
                Py_INCREF(value)
                PyTuple_SET_ITEM(values, place, value)
                place += 1
            offset += length
        return values

    cdef object _value(self, const uint8_t* p, Py_ssize_t length, int kind):
        cdef float real
        cdef const void* end
        if kind == K_OID:
            return _u32(p)
        if kind == K_INT2:
            return <int16_t>_u16(p)
        if kind == K_INT4:
            return <int32_t>_u32(p)
        if kind == K_BOOL:
            return p[0] != 0
        if kind == K_CHAR:
            return chr(p[0]) if p[0] else ""
        if kind == K_NAME:
            end = memchr(p, 0, NAME_SIZE)
            if end == NULL:
                raise ValueError("a name has no final zero")
            return PyUnicode_Decode(<char*>p, <const uint8_t*>end - p, self.encoding, self.errors)
        if kind == K_FLOAT4:
            memcpy(&real, p, 4)
            return <double>real
        if kind == K_INT2VECTOR:
            return _vector(p, length, 2)
        if kind == K_OIDVECTOR:
            return _vector(p, length, 4)
        return PyBytes_FromStringAndSize(<const char*>p, length)


cdef Py_ssize_t _varlena_size(const uint8_t* p, Py_ssize_t available) noexcept nogil:
    """Bytes of the varlena at *p*, header included; -1 when it does not fit."""
    cdef Py_ssize_t length
    if available < 1:
        return -1
    if p[0] == 0x01:
        # external or expanded: a tag byte says how long the pointer is (18: VARTAG_ONDISK)
        if available < 2:
            return -1
        length = 18 if p[1] == 18 else 10
    elif p[0] & 1:
        length = p[0] >> 1
    else:
        if available < 4:
            return -1
        length = _u32(p) >> 2
        if length < 4:
            return -1
    return length if length <= available else -1


cdef tuple _vector(const uint8_t* p, Py_ssize_t length, Py_ssize_t width):
    """The values of an int2vector or oidvector: a one-dimensional array without nulls."""
    cdef:
        Py_ssize_t header = 1 if p[0] & 1 else 4
        uint32_t count, i
        list values = []
    # ndim, dataoffset, elemtype, dim, lbound
    if p[0] == 0x01 or length < header + 12:
        raise ValueError("a vector is cut short")
    if _u32(p + header) == 0:
        return ()
    if length < header + 20 or _u32(p + header) != 1 or _u32(p + header + 4) != 0:
        raise ValueError("a vector has another shape than one dimension without nulls")
    count = _u32(p + header + 12)
    if <Py_ssize_t>count * width > length - header - 20:
        raise ValueError("a vector is cut short")
    for i in range(count):
        if width == 2:
            values.append(<int16_t>_u16(p + header + 20 + 2 * i))
        else:
            values.append(_u32(p + header + 20 + 4 * i))
    return tuple(values)


def parse_copy(bytes data not None, kinds, str encoding not None, str errors not None="strict"):
    """Parse the output of ``COPY (SELECT ctid, xmin, …) TO STDOUT (FORMAT binary)``.

    *kinds* are those of the columns after ctid and xmin. Returns
    ``[(block, offset, xmin, values)]`` with values as :meth:`Deformer.deform` gives them, but RAW
    is the value in its type's send format.
    """
    cdef:
        const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
        Py_ssize_t size = PyBytes_GET_SIZE(data)
        Py_ssize_t at = 19
        int columns = len(kinds)
        int i
        int16_t fields
        uint32_t block, xmin
        uint16_t offset
        bytes codec = encoding.encode("ascii")
        bytes codec_errors = errors.encode("ascii")
        list rows = []
        list values
        Py_ssize_t length
    if size < 21 or data[:11] != b"PGCOPY\n\xff\r\n\x00":
        raise ValueError("COPY did not give its binary format")
    at += _be32(base + 15)
    while True:
        if at + 2 > size:
            raise ValueError("COPY's output ends without a trailer")
        fields = <int16_t>_be16(base + at)
        at += 2
        if fields == -1:
            return rows
        if fields != columns + 2:
            raise ValueError(f"COPY gave {fields} columns where {columns + 2} were asked for")
        if at + 18 > size or _be32(base + at) != 6 or _be32(base + at + 10) != 4:
            raise ValueError("COPY's output has no ctid and xmin")
        block = _be32(base + at + 4)
        offset = _be16(base + at + 8)
        xmin = _be32(base + at + 14)
        at += 18
        values = []
        for i in range(columns):
            if at + 4 > size:
                raise ValueError("COPY's output is cut short")
            length = <int32_t>_be32(base + at)
            at += 4
            if length == -1:
                values.append(None)
                continue
            if length < 0 or at + length > size:
                raise ValueError("COPY's output is cut short")
            values.append(_sent_value(base + at, length, kinds[i], codec, codec_errors))
            at += length
        rows.append((block, offset, xmin, tuple(values)))


cdef object _sent_value(const uint8_t* p, Py_ssize_t length, int kind, bytes encoding,
                        bytes errors):
    cdef uint32_t bits
    cdef float real
    cdef Py_ssize_t expected = 4 if kind in (K_OID, K_INT4, K_FLOAT4) else 2 if kind == K_INT2 \
        else 1 if kind in (K_BOOL, K_CHAR) else length
    if length != expected:
        raise ValueError(f"COPY gave {length} bytes for a column of kind {kind}")
    if kind == K_OID:
        return _be32(p)
    if kind == K_INT2:
        return <int16_t>_be16(p)
    if kind == K_INT4:
        return <int32_t>_be32(p)
    if kind == K_BOOL:
        return p[0] != 0
    if kind == K_CHAR:
        return chr(p[0]) if p[0] else ""
    if kind == K_NAME:
        return PyUnicode_Decode(<char*>p, length, encoding, errors)
    if kind == K_FLOAT4:
        bits = _be32(p)
        memcpy(&real, &bits, 4)
        return <double>real
    if kind == K_INT2VECTOR:
        return _sent_vector(p, length, 2)
    if kind == K_OIDVECTOR:
        return _sent_vector(p, length, 4)
    return PyBytes_FromStringAndSize(<const char*>p, length)


cdef tuple _sent_vector(const uint8_t* p, Py_ssize_t length, Py_ssize_t width):
    # ndim, flags, element type, then dim and lbound of one dimension, then a length and a value
    # each
    cdef uint32_t count, i
    cdef list values = []
    if length < 12:
        raise ValueError("a vector is cut short")
    if _be32(p) == 0:
        return ()
    if length < 20 or _be32(p) != 1:
        raise ValueError("a vector has another shape than one dimension")
    count = _be32(p + 12)
    if <Py_ssize_t>count * (4 + width) != length - 20:
        raise ValueError("a vector is cut short")
    for i in range(count):
        if width == 2:
            values.append(<int16_t>_be16(p + 24 + 6 * i))
        else:
            values.append(_be32(p + 24 + 8 * i))
    return tuple(values)
