# cython: language_level=3, boundscheck=False, wraparound=False
"""Text on its way to a client, whose encoding is UTF-8.

A change holds text in its database's encoding. Where all of a message is text, an output plugin
converts it as a whole; in the send format, lengths stand between, so each piece is converted as
pq_sendtext does. Bytes that are no character of the database's encoding pass unchanged.

Source: pq_sendtext (src/backend/libpq/pqformat.c), textsend, json_send, jsonb_send, jsonpath_send,
xml_send, enum_send
"""

from libc.stdint cimport uint8_t

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsEncodedString, PyUnicode_Decode

from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes
from spillway._kernels.values.type cimport TextSettings, TypeOutput


cdef int convert_text(ByteBuffer* out, size_t start, const TextSettings* settings) except -1 nogil:
    cdef size_t i
    cdef bint ascii = True
    if settings.codec == NULL:
        return 0
    # Every server encoding has ASCII as it is.
    for i in range(start, out.size):
        if out.data[i] >= 0x80:
            ascii = False
            break
    if ascii:
        return 0
    with gil:
        return convert_other(out, start, settings)


cdef int convert_other(ByteBuffer* out, size_t start, const TextSettings* settings) except -1:
    # By itself: a function with Python variables takes the GIL to leave them behind, whether it
    # used them or not.
    text = PyUnicode_Decode(<char*>out.data + start, out.size - start, <char*>settings.codec,
                            "surrogateescape")
    converted = PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape")
    out.size = start
    return put_bytes(out, PyBytes_AS_STRING(converted), PyBytes_GET_SIZE(converted))


cdef int put_text(ByteBuffer* out, const uint8_t* data, size_t size,
                  const TextSettings* settings) except -1 nogil:
    cdef size_t start = out.size
    put_bytes(out, data, size)
    return convert_text(out, start, settings)


cdef int text_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef size_t start = out.size
    type.element.write(type.element, data, size, out)
    return convert_text(out, start, type.settings)


cdef int versioned_text_send(const TypeOutput* type, const uint8_t* data, size_t size,
                             ByteBuffer* out) except -1 nogil:
    put_byte(out, 1)
    return text_send(type, data, size, out)
