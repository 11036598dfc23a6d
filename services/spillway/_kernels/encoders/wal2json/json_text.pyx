# cython: language_level=3, boundscheck=False, wraparound=False
"""Strings of JSON as PostgreSQL writes them: what has to be escaped is, every other byte stays as
it is.

Escaping is done in place, behind the type's writer: most values have nothing to escape, and cost
one look. Bytes from 0x80 on are a server encoding's characters, none of whose bytes looks like
ASCII.

Source: escape_json (src/backend/utils/adt/json.c)
"""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve


cdef inline size_t escaped_size(uint8_t character) noexcept nogil:
    if character == c'"' or character == c"\\":
        return 2
    if character >= 0x20:
        return 1
    # \b \t \n \f \r have a letter; the others are \u00XX
    if 8 <= character <= 13 and character != 11:
        return 2
    return 6


cdef inline uint8_t hex_digit(uint8_t value) noexcept nogil:
    return c'0' + value if value < 10 else c'a' + (value - 10)


cdef inline uint8_t escape_letter(uint8_t character) noexcept nogil:
    if character == 8:
        return c'b'
    if character == 9:
        return c't'
    if character == 10:
        return c'n'
    if character == 12:
        return c'f'
    if character == 13:
        return c'r'
    return character


cdef int put_json_string(ByteBuffer* out, const uint8_t* data, size_t size) except -1 nogil:
    cdef size_t start
    put_byte(out, c'"')
    start = out.size
    put_bytes(out, data, size)
    return close_json_string(out, start)


cdef int close_json_string(ByteBuffer* out, size_t start) except -1 nogil:
    cdef size_t size = out.size - start
    cdef size_t escaped = 0
    cdef size_t i
    for i in range(size):
        escaped += escaped_size(out.data[start + i])
    if escaped != size:
        expand(out, start, escaped)
    return put_byte(out, c'"')


cdef int expand(ByteBuffer* out, size_t start, size_t escaped) except -1 nogil:
    """Escape the bytes from *start* on, from the last to the first: they come to take *escaped*
    bytes.
    """
    cdef uint8_t* source
    cdef uint8_t* target
    cdef uint8_t character
    cdef size_t length
    reserve(out, start + escaped - out.size)
    source = out.data + out.size
    out.size = start + escaped
    target = out.data + out.size
    # Once nothing is left to escape, what is before lies where it belongs.
    while target != source:
        source -= 1
        character = source[0]
        length = escaped_size(character)
        target -= length
        if length == 1:
            target[0] = character
        elif length == 2:
            target[0] = c"\\"
            target[1] = escape_letter(character)
        else:
            target[0] = c"\\"
            target[1] = c'u'
            target[2] = c'0'
            target[3] = c'0'
            target[4] = hex_digit(character >> 4)
            target[5] = hex_digit(character & 0xF)
    return 0
