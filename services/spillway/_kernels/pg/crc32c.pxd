# cython: language_level=3
"""CRC-32C (Castagnoli) for kernels."""

from libc.stdint cimport uint8_t, uint32_t

# The checksum of *data* appended to what *crc* is the checksum of; 0 to begin.
cdef uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
