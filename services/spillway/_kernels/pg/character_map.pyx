# cython: language_level=3, boundscheck=False, wraparound=False
"""What becomes of each character in another encoding, and text converted by it.

The service's text is in UTF-8. Into another encoding each character is looked up by its code point;
text becomes twice as long at most. A conversion that stays in UTF-8 has nothing to do but to find
bytes that are no characters: they went through the service unchanged.

A database in SQL_ASCII is not in UTF-8. Its text stays what it is, and is only held against the
states that bytes of the client's encoding go through (:mod:`spillway.pg.character_checks`).

Source: UtfToLocal (src/backend/utils/mb/conv.c), pg_utf_mblen, pg_utf8_islegal
(src/common/wchar.c)
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING

cdef enum:
    BMP = 0x10000
    # In a map's pairs: two code points and the bytes.
    PAIR_NUMBERS = 3
    # In its checks: how long a character is by its first byte, and then a state each.
    STATE_BYTES = 256
    WHOLE = 0
    NO_STATE = 0xFF


cdef size_t announced(uint8_t lead) noexcept nogil:
    """How many bytes a character has by its first one: pg_utf_mblen."""
    if lead < 0x80:
        return 1
    if lead & 0xE0 == 0xC0:
        return 2
    if lead & 0xF0 == 0xE0:
        return 3
    if lead & 0xF8 == 0xF0:
        return 4
    return 1


cdef inline size_t legal(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """The length of the character that begins at *at*; 0: none does (pg_utf8_islegal)."""
    cdef size_t length = announced(at[0])
    cdef size_t n
    if at[0] < 0x80:
        return 1
    if length == 1 or length > <size_t>(end - at):
        return 0
    for n in range(1, length):
        if at[n] & 0xC0 != 0x80:
            return 0
    if at[0] < 0xC2 or at[0] > 0xF4:
        return 0
    if ((at[0] == 0xE0 and at[1] < 0xA0) or (at[0] == 0xED and at[1] > 0x9F)
            or (at[0] == 0xF0 and at[1] < 0x90) or (at[0] == 0xF4 and at[1] > 0x8F)):
        return 0
    return length


cdef inline uint32_t code_point(const uint8_t* at, size_t length) noexcept nogil:
    if length == 1:
        return at[0]
    if length == 2:
        return ((at[0] & 0x1F) << 6) | (at[1] & 0x3F)
    if length == 3:
        return ((at[0] & 0x0F) << 12) | ((at[1] & 0x3F) << 6) | (at[2] & 0x3F)
    return ((<uint32_t>(at[0] & 0x07) << 18) | ((at[1] & 0x3F) << 12) | ((at[2] & 0x3F) << 6)
            | (at[3] & 0x3F))


cdef inline uint32_t beyond_bmp_in_gb18030(uint32_t code) noexcept nogil:
    """GB18030 counts through the other planes in four bytes."""
    cdef uint32_t number = code - BMP
    return ((0x90 + number // 12600) << 24 | (0x30 + number // 1260 % 10) << 16
            | (0x81 + number // 10 % 126) << 8 | (0x30 + number % 10))


cdef inline uint32_t single(const MapNumbers* numbers, uint32_t code) noexcept nogil:
    """The bytes of a character; 0: there are none."""
    if code < numbers.count:
        return numbers.code[code]
    return beyond_bmp_in_gb18030(code) if numbers.is_gb18030 and code >= BMP else 0


cdef inline uint32_t both(const MapNumbers* numbers, uint32_t first,
                          uint32_t second) noexcept nogil:
    """The bytes of two code points that are one character; 0: they are not."""
    cdef const uint32_t* pair = numbers.pair
    cdef const uint32_t* end = pair + numbers.pair_count * PAIR_NUMBERS
    while pair < end:
        if pair[0] == first and pair[1] == second:
            return pair[2]
        pair += PAIR_NUMBERS
    return 0


cdef int check_states(bytes checks) except -1:
    # A state that isn't there would be read behind the table.
    states = len(checks) // STATE_BYTES - 1
    if len(checks) % STATE_BYTES or (checks and states < 1) or any(
            state != NO_STATE and state >= states for state in checks[STATE_BYTES:]):
        raise ValueError("checks are of 256 lengths and states of 256 bytes")
    return 0


cdef class CharacterMap:
    """The characters of an encoding that begins with ASCII.

    Args:
        codes: for each code point its bytes as a u32, the first one most significant; 0: there is
            none. In the machine's byte order, as pairs are.
        pairs: characters that Unicode writes as two: both code points, and the bytes.
        is_gb18030: what is beyond *codes* is counted as GB18030 does.
        checks: text is not converted, but must go through these states: 256 lengths of characters
            by their first byte, then for each state 256 that follow; 0 is between characters, 0xFF
            none. Empty: it is converted.
    """

    def __init__(self, codes, pairs=b"", is_gb18030=False, checks=b""):
        if len(codes) % sizeof(uint32_t) or len(pairs) % (PAIR_NUMBERS * sizeof(uint32_t)):
            raise ValueError("a map is made of numbers of four bytes")
        check_states(bytes(checks))
        self.codes = bytes(codes)
        self.pairs = bytes(pairs)
        self.numbers.code = <const uint32_t*>PyBytes_AS_STRING(self.codes)
        self.numbers.count = <uint32_t>(len(codes) // sizeof(uint32_t))
        self.numbers.pair = <const uint32_t*>PyBytes_AS_STRING(self.pairs)
        self.numbers.pair_count = len(pairs) // (PAIR_NUMBERS * sizeof(uint32_t))
        self.numbers.is_gb18030 = is_gb18030
        self.checks = bytes(checks)
        self.numbers.checks = NULL if not checks else <const uint8_t*>PyBytes_AS_STRING(self.checks)

    def encode(self, text):
        """Return *text* in the encoding; a byte that went in by ``surrogateescape`` comes out.

        Raises:
            UnicodeEncodeError: a character has no equivalent.
        """
        cdef uint32_t code, place
        cdef Py_ssize_t at = 0
        out = bytearray()
        while at < len(text):
            code = <uint32_t>ord(text[at])
            if code < 0x80:
                out.append(code)
                at += 1
                continue
            if 0xDC80 <= code < 0xDD00:
                out.append(code - 0xDC00)
                at += 1
                continue
            place = 0
            if self.numbers.pair_count and at + 1 < len(text):
                place = both(&self.numbers, code, <uint32_t>ord(text[at + 1]))
                at += place != 0
            if not place:
                place = single(&self.numbers, code)
            if not place:
                raise UnicodeEncodeError("map", text, at, at + 1, "there is no equivalent")
            out += (<object>place).to_bytes(put_length(place), "big")
            at += 1
        return bytes(out)


cdef inline size_t put_length(uint32_t place) noexcept nogil:
    if place < 0x100:
        return 1
    if place < 0x10000:
        return 2
    return 3 if place < 0x1000000 else 4


cdef size_t shown_bytes(const MapNumbers* numbers, const Place* place) noexcept nogil:
    cdef size_t left = <size_t>(place.end - place.at)
    cdef size_t length
    if numbers == NULL or numbers.checks == NULL:
        length = announced(place.at[0])
    else:
        length = numbers.checks[place.at[0]]
        if numbers.is_gb18030 and length == 2 and left > 1 and 0x30 <= place.at[1] <= 0x39:
            length = 4
    return min(length, left)


cdef int check_characters(const uint8_t* states, Place* place, size_t size) noexcept nogil:
    """Copy *size* bytes, if all of them are whole characters; 1: there is one that is none, at
    place.at up to place.end.
    """
    cdef const uint8_t* at = place.at
    cdef const uint8_t* end = at + size
    cdef const uint8_t* begun = at
    cdef uint8_t state = WHOLE
    while at < end:
        if state == WHOLE:
            begun = at
        state = states[state * STATE_BYTES + at[0]]
        if state == NO_STATE:
            break
        at += 1
    if state != WHOLE:
        place.at = begun
        place.end = end
        return 1
    memcpy(place.out, place.at, size)
    place.at = end
    place.out += size
    return 0


cdef int convert_characters(
    const MapNumbers* numbers, bint keeps_strays, Place* place, size_t size
) noexcept nogil:
    cdef const uint8_t* at = place.at
    cdef const uint8_t* end = at + size
    cdef uint8_t* out = place.out
    cdef size_t length, following, n
    cdef uint32_t place_code
    if numbers != NULL and numbers.checks != NULL:
        return check_characters(numbers.checks + STATE_BYTES, place, size)
    while at < end:
        if at[0] < 0x80:
            out[0] = at[0]
            at += 1
            out += 1
            continue
        length = legal(at, end)
        if length == 0:
            if not keeps_strays:
                place.at = at
                place.end = end
                return 1
            out[0] = at[0]
            at += 1
            out += 1
            continue
        if numbers == NULL:
            memcpy(out, at, length)
            out += length
            at += length
            continue
        place_code = 0
        if numbers.pair_count and at + length < end:
            following = legal(at + length, end)
            if following:
                place_code = both(numbers, code_point(at, length),
                                  code_point(at + length, following))
                if place_code:
                    length += following
        if place_code == 0:
            place_code = single(numbers, code_point(at, length))
        if place_code == 0:
            place.at = at
            place.end = end
            return 1
        following = put_length(place_code)
        for n in range(following):
            out[n] = <uint8_t>(place_code >> (8 * (following - 1 - n)))
        out += following
        at += length
    place.at = end
    place.out = out
    return 0
