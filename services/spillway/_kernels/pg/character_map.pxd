# cython: language_level=3
"""C interface of characters' maps: text of one encoding into another, piece by piece."""

from libc.stdint cimport uint8_t, uint32_t


# The map's numbers; they live as long as the CharacterMap does.
cdef struct MapNumbers:
    const uint32_t* code
    uint32_t count
    const uint32_t* pair
    size_t pair_count
    bint is_gb18030
    # NULL, or text is checked by these states and stays as it is
    const uint8_t* checks


cdef class CharacterMap:
    # As given.
    cdef readonly bytes codes
    cdef readonly bytes pairs
    cdef readonly bytes checks
    cdef MapNumbers numbers


# What is read, up to *end*, and where what becomes of it goes: there is room for GROWTH times as
# much.
cdef struct Place:
    const uint8_t* at
    const uint8_t* end
    uint8_t* out


cdef enum:
    # How many times longer a text may become: two bytes of UTF-8 may be four of GB18030 or EUC_TW.
    GROWTH = 2

# How many bytes a character of UTF-8 has by its first one: pg_utf_mblen.
cdef size_t announced(uint8_t lead) noexcept nogil

# How many bytes an error shows of what convert_characters has left there.
cdef size_t shown_bytes(const MapNumbers* numbers, const Place* place) noexcept nogil

# Convert *size* bytes of UTF-8; NULL for *numbers*: they stay UTF-8, and are checked. Bytes that
# are no characters pass with *keeps_strays*, otherwise they are failures. 1: there is what can't
# be, at place.at up to place.end.
cdef int convert_characters(
    const MapNumbers* numbers, bint keeps_strays, Place* place, size_t size) noexcept nogil
