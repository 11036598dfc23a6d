# cython: language_level=3
"""PostgreSQL's block compression methods for kernels: decompression only."""

from libc.stdint cimport uint8_t
from libc.stddef cimport size_t

# Both write at most *capacity* bytes to *out* and return how many, or -1 when the source is
# malformed or would write more. Neither reads outside source[0:size].
cdef Py_ssize_t pglz_decompress(
    const uint8_t *source, size_t size, uint8_t *out, size_t capacity) noexcept nogil
cdef Py_ssize_t lz4_decompress(
    const uint8_t *source, size_t size, uint8_t *out, size_t capacity) noexcept nogil
