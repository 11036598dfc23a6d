# cython: language_level=3
"""Strings of JSON as PostgreSQL's escape_json writes them."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer

# Write *data* as a JSON string, quotes included.
cdef int put_json_string(ByteBuffer* out, const uint8_t* data, size_t size) except -1 nogil

# Escape what was written from *start* on, and close the string; who calls wrote the quote before
# it.
cdef int close_json_string(ByteBuffer* out, size_t start) except -1 nogil
