# cython: language_level=3
"""Text on its way to a client: conversion to UTF-8, and types whose send format is their text."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.pg.character_map cimport CharacterMap, MapNumbers
from spillway._kernels.values.type cimport TextSettings, TypeOutput


cdef struct SentRules:
    # NULL: text stays UTF-8
    const MapNumbers* numbers
    bint keeps_strays
    bint as_is


cdef class SentText:
    cdef CharacterMap characters
    cdef SentRules rules


# Convert what was written from *start* on from the database's encoding to UTF-8, in place.
cdef int convert_text(ByteBuffer* out, size_t start, const TextSettings* settings) except -1 nogil

# pq_sendtext
cdef int put_text(ByteBuffer* out, const uint8_t* data, size_t size,
                  const TextSettings* settings) except -1 nogil

# A piece of text within a value of *type*, as its client speaks.
cdef int put_part(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil

# The type's text (that of ``type.element``, which was compiled for text).
cdef int text_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
# A byte of version, 1, and the text.
cdef int versioned_text_send(const TypeOutput* type, const uint8_t* data, size_t size,
                             ByteBuffer* out) except -1 nogil
