# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""Decompression of what PostgreSQL compresses with pglz and LZ4: page images and TOAST values.

Both methods are byte-oriented Lempel-Ziv: literals, and matches that copy from what was already
written. All input is hostile until shown otherwise: each length is checked against what is left of
the source and of the output before a byte moves, and a match may reach back only to the output's
first byte. A malformed source gives -1, never a read or a write outside the two buffers.

pglz has no length and no end mark in the stream; the caller knows how long the result must be. LZ4
here is the block format, without frames. Zstandard, the third method of page images, comes from the
``zstandard`` package (see ``wal/images.py``).

Source: src/common/pg_lzcompress.c; lz4_Block_format.md of the LZ4 project.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset


cdef inline void _copy_match(uint8_t *to, size_t offset, size_t length) noexcept nogil:
    """Copy *length* bytes from *offset* bytes back; source and target may overlap, as LZ repeats by
    it.
    """
    cdef size_t chunk = offset
    cdef const uint8_t *source = to - offset
    if offset >= length:
        memcpy(to, source, length)
        return
    if offset == 1:
        memset(to, source[0], length)
        return
    # Each round copies all that is there of the repeating pattern, which doubles it.
    while length > chunk:
        memcpy(to, source, chunk)
        to += chunk
        length -= chunk
        chunk += chunk
    memcpy(to, source, length)


cdef Py_ssize_t pglz_decompress(
        const uint8_t *source, size_t size, uint8_t *out, size_t capacity) noexcept nogil:
    """A control byte, then eight items, lowest bit first: 0 a literal, 1 a match.

    A match is two bytes, with offset 1 … 4095 and length 3 … 17, or three when the length is
    longer: low nibble of the first = length - 3, its high nibble the high bits of the offset, the
    second the low ones, the third adds to length 18. The last match may be cut by the end of the
    output.
    """
    cdef size_t i = 0, o = 0, offset, length
    cdef unsigned int control, bit
    while i < size and o < capacity:
        control = source[i]
        i += 1
        bit = 0
        while bit < 8 and i < size and o < capacity:
            if control & 1:
                if size - i < 2:
                    return -1
                length = (source[i] & 0x0F) + 3
                offset = (<size_t> (source[i] & 0xF0) << 4) | source[i + 1]
                i += 2
                if length == 18:
                    if i >= size:
                        return -1
                    length += source[i]
                    i += 1
                if offset == 0 or offset > o:
                    return -1
                if length > capacity - o:
                    length = capacity - o
                _copy_match(out + o, offset, length)
                o += length
            else:
                out[o] = source[i]
                o += 1
                i += 1
            control >>= 1
            bit += 1
    if i < size:
        return -1
    return <Py_ssize_t> o


cdef Py_ssize_t lz4_decompress(
        const uint8_t *source, size_t size, uint8_t *out, size_t capacity) noexcept nogil:
    """Sequences of a token, literals, a two-byte offset and a match; the last has literals only."""
    cdef size_t i = 0, o = 0, offset, length
    cdef unsigned int token
    cdef uint8_t more
    while True:
        if i >= size:
            return -1
        token = source[i]
        i += 1
        length = token >> 4
        if length == 15:
            more = 255
            while more == 255:
                if i >= size:
                    return -1
                more = source[i]
                i += 1
                length += more
        if length > size - i or length > capacity - o:
            return -1
        if length > 0:
            memcpy(out + o, source + i, length)
            o += length
            i += length
        if i == size:
            return <Py_ssize_t> o
        if size - i < 2:
            return -1
        offset = <size_t> source[i] | (<size_t> source[i + 1] << 8)
        i += 2
        if offset == 0 or offset > o:
            return -1
        length = token & 0x0F
        if length == 15:
            more = 255
            while more == 255:
                if i >= size:
                    return -1
                more = source[i]
                i += 1
                length += more
        length += 4
        if length > capacity - o:
            return -1
        _copy_match(out + o, offset, length)
        o += length


ctypedef Py_ssize_t (*Method)(const uint8_t *, size_t, uint8_t *, size_t) noexcept nogil


cdef bytes _decompress(Method method, str name, const uint8_t[::1] source, Py_ssize_t raw_size):
    cdef bytearray out
    cdef uint8_t *target
    cdef const uint8_t *begin = NULL
    cdef size_t size = <size_t> source.shape[0]
    cdef Py_ssize_t written
    if raw_size < 0:
        raise ValueError("raw_size is negative")
    # One byte more, so that a pointer to it can be had when the result is empty.
    out = bytearray(raw_size + 1)
    target = out
    if size > 0:
        begin = &source[0]
    with nogil:
        written = method(begin, size, target, <size_t> raw_size)
    if written != raw_size:
        raise ValueError(f"malformed {name} data: {size} bytes do not give {raw_size}")
    return bytes(out[:raw_size])


def decompress_pglz(const uint8_t[::1] source not None, Py_ssize_t raw_size):
    """Return the *raw_size* bytes that *source* stands for.

    Raises:
        ValueError: *source* is malformed, or gives another size.
    """
    return _decompress(pglz_decompress, "pglz", source, raw_size)


def decompress_lz4(const uint8_t[::1] source not None, Py_ssize_t raw_size):
    """Return the *raw_size* bytes that *source*, an LZ4 block, stands for.

    Raises:
        ValueError: *source* is malformed, or gives another size.
    """
    return _decompress(lz4_decompress, "LZ4", source, raw_size)
