# cython: language_level=3, boundscheck=False, wraparound=False
"""Text on its way to a client, whose encoding is UTF-8, but for one of PostgreSQL's own protocol.

A change holds text in its database's encoding. Where all of a message is text, an output plugin
converts it as a whole; in the send format, lengths stand between, so each piece is converted as
pq_sendtext does. Bytes that are no character of the database's encoding pass unchanged.

What a client in another encoding than UTF-8 is sent, a ``SentText`` says, made of the settings that
a type is compiled with: its rules are what ``codec`` of the compiled type points to, NULL for UTF-8
(types whose send format is their text have no other use for that field).

Source: pq_sendtext (src/backend/libpq/pqformat.c), textsend, json_send, jsonb_send, jsonpath_send,
xml_send, enum_send
"""

from libc.stdint cimport uint8_t

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsEncodedString, PyUnicode_Decode
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.pg.character_map cimport (
    GROWTH,
    CharacterMap,
    Place,
    convert_characters,
    shown_bytes,
)
from spillway._kernels.values.type cimport TextSettings, TypeOutput
from spillway.errors import ValueNotRepresentable


cdef class SentText:
    """How text in values of the send format reaches a client.

    Args:
        characters: of the client's encoding; None: UTF-8.
        keeps_strays: bytes that are no characters pass; else they are failures.
        as_is: text goes out as the database has it, whatever the others say.
    """

    def __init__(self, CharacterMap characters, keeps_strays, as_is=False):
        self.characters = characters
        self.rules.numbers = NULL if characters is None else &characters.numbers
        self.rules.keeps_strays = keeps_strays
        self.rules.as_is = as_is


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


cdef int send_text(ByteBuffer* out, size_t start, const TypeOutput* type) except -1 nogil:
    """Convert what was written from *start* on to what the client speaks, in place."""
    cdef const SentRules* rules = <const SentRules*>type.codec
    if rules == NULL:
        return convert_text(out, start, type.settings)
    if rules.as_is:
        return 0
    convert_text(out, start, type.settings)
    return convert_utf8(out, start, rules)


cdef int convert_utf8(ByteBuffer* out, size_t start, const SentRules* rules) except -1 nogil:
    cdef size_t size = out.size - start
    cdef Place place
    cdef uint8_t* text
    cdef size_t i = start
    cdef int outcome
    while i < out.size and out.data[i] < 0x80:
        i += 1
    if i == out.size:
        return 0
    reserve(out, (GROWTH - 1) * size)
    text = <uint8_t*>malloc(size)
    if text == NULL:
        with gil:
            raise MemoryError
    memcpy(text, out.data + start, size)
    place.at = text
    place.end = text + size
    place.out = out.data + start
    outcome = convert_characters(rules.numbers, rules.keeps_strays, &place, size)
    try:
        if outcome:
            with gil:
                refuse(place.at, shown_bytes(rules.numbers, &place))
        out.size = place.out - out.data
    finally:
        free(text)
    return 0


cdef int refuse(const uint8_t* character, size_t size) except -1:
    data = <bytes>character[:size]
    raise ValueNotRepresentable(
        f"a character of {data!r} has no equivalent in the client's encoding",
        hint="Connect with client_encoding=UTF8.",
        character=data.hex(),
    )


cdef int put_text(ByteBuffer* out, const uint8_t* data, size_t size,
                  const TextSettings* settings) except -1 nogil:
    cdef size_t start = out.size
    put_bytes(out, data, size)
    return convert_text(out, start, settings)


cdef int put_part(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    cdef size_t start = out.size
    put_bytes(out, data, size)
    return send_text(out, start, type)


cdef int text_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef size_t start = out.size
    type.element.write(type.element, data, size, out)
    return send_text(out, start, type)


cdef int versioned_text_send(const TypeOutput* type, const uint8_t* data, size_t size,
                             ByteBuffer* out) except -1 nogil:
    put_byte(out, 1)
    return text_send(type, data, size, out)
