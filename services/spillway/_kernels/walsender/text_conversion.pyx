# cython: language_level=3, boundscheck=False, wraparound=False
"""Text of a batch of messages in the encoding that a walsender would have sent it in.

The service's messages are in UTF-8. A walsender's are not all of one encoding: what pgoutput sends
by pq_sendtext and its like (names, values in text format, prefixes of messages, names of prepared
transactions and origins) is converted to the client's; the contents of messages, and all that a
plugin like test_decoding writes, are as the server has them.

A conversion into UTF-8 has nothing to do but to find bytes that are no characters: they went
through the service unchanged. Into another encoding, each character is looked up; text becomes
twice as long at most (two bytes of UTF-8 may be four of GB18030 or EUC_TW).

Source: pg_server_to_any, report_untranslatable_char, report_invalid_encoding
(src/backend/utils/mb/mbutils.c); UtfToLocal (src/backend/utils/mb/conv.c); logicalproto's writers
(src/backend/replication/logical/proto.c)
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

cdef enum:
    BMP = 0x10000
    # How many times longer a text may become.
    GROWTH = 2
    # In a map's pairs: two code points and the bytes.
    PAIR_NUMBERS = 3
    LSN_BYTES = 8
    # flags, three numbers of eight bytes, xid; a gid follows
    PREPARED_BYTES = 1 + 3 * 8 + 4
    ROLLBACK_PREPARED_BYTES = 1 + 4 * 8 + 4
    BEGIN_PREPARED_BYTES = 3 * 8 + 4
    # OID and modifier of a column's type
    TYPE_BYTES = 8

cdef struct Place:
    const uint8_t* at
    const uint8_t* end
    uint8_t* out


cdef inline uint32_t get_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline size_t announced(uint8_t lead) noexcept nogil:
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


cdef class CharacterMap:
    """The characters of an encoding that begins with ASCII.

    Args:
        codes: for each code point its bytes as a u32, the first one most significant; 0: there is
            none. In the machine's byte order, as pairs are.
        pairs: characters that Unicode writes as two: both code points, and the bytes.
        is_gb18030: what is beyond *codes* is counted as GB18030 does.
    """

    # As given.
    cdef readonly bytes codes
    cdef bytes _pairs
    cdef const uint32_t* _code
    cdef uint32_t _count
    cdef const uint32_t* _pair
    cdef size_t _pair_count
    cdef bint _is_gb18030

    def __init__(self, codes, pairs=b"", is_gb18030=False):
        if len(codes) % sizeof(uint32_t) or len(pairs) % (PAIR_NUMBERS * sizeof(uint32_t)):
            raise ValueError("a map is made of numbers of four bytes")
        self.codes = bytes(codes)
        self._pairs = bytes(pairs)
        self._code = <const uint32_t*>PyBytes_AS_STRING(self.codes)
        self._count = <uint32_t>(len(codes) // sizeof(uint32_t))
        self._pair = <const uint32_t*>PyBytes_AS_STRING(self._pairs)
        self._pair_count = len(pairs) // (PAIR_NUMBERS * sizeof(uint32_t))
        self._is_gb18030 = is_gb18030

    cdef inline uint32_t single(self, uint32_t code) noexcept nogil:
        """The bytes of a character; 0: there are none."""
        if code < self._count:
            return self._code[code]
        return beyond_bmp_in_gb18030(code) if self._is_gb18030 and code >= BMP else 0

    cdef inline uint32_t both(self, uint32_t first, uint32_t second) noexcept nogil:
        """The bytes of two code points that are one character; 0: they are not."""
        cdef const uint32_t* pair = self._pair
        cdef size_t n
        for n in range(self._pair_count):
            if pair[0] == first and pair[1] == second:
                return pair[2]
            pair += PAIR_NUMBERS
        return 0

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
            if self._pair_count and at + 1 < len(text):
                place = self.both(code, <uint32_t>ord(text[at + 1]))
                at += place != 0
            if not place:
                place = self.single(code)
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


cdef class TextConversion:
    """The conversion of one stream's messages, which it has to see in their order.

    Args:
        characters: of the encoding into which text goes; None: it stays UTF-8.
        keeps_strays: bytes that are no characters pass, as where nothing is converted; else they
            are failures.
        fields: messages are pgoutput's, of which only text is converted; else each is all text.

    After :meth:`convert` has returned fewer messages than it was given, ``failure`` has the bytes
    of the character that stopped it.
    """

    cdef CharacterMap _characters
    cdef bint _keeps_strays
    cdef bint _fields
    cdef bint _in_part
    cdef readonly bytes failure

    def __init__(self, CharacterMap characters, keeps_strays, fields):
        self._characters = characters
        self._keeps_strays = keeps_strays
        self._fields = fields
        self._in_part = False
        self.failure = b""

    def convert(self, const uint8_t[::1] payload not None, const uint8_t[::1] lengths not None):
        """Return the payload and the lengths of the messages up to the first that can't be
        converted.

        Args:
            payload: messages, back to back.
            lengths: a u32 for each, in the machine's byte order.

        Raises:
            ValueError: the lengths don't fit the payload, or a message is none of pgoutput's.
        """
        cdef size_t count = <size_t>lengths.shape[0] // sizeof(uint32_t)
        cdef size_t done = 0
        cdef size_t written
        cdef uint32_t size
        cdef Place place
        cdef int outcome = 0
        cdef bytes sizes, converted
        cdef uint8_t* sizes_at
        cdef uint8_t* begun
        cdef uint8_t* first
        if count == 0:
            return b"", b""
        cdef Py_ssize_t room = payload.shape[0]
        if self._characters is not None:
            room *= GROWTH
        converted = PyBytes_FromStringAndSize(NULL, room)
        sizes = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * sizeof(uint32_t)))
        sizes_at = <uint8_t*>PyBytes_AS_STRING(sizes)
        first = <uint8_t*>PyBytes_AS_STRING(converted)
        place.out = first
        place.at = &payload[0] if payload.shape[0] else NULL
        cdef const uint8_t* end = place.at + payload.shape[0]
        with nogil:
            while done < count:
                memcpy(&size, &lengths[done * sizeof(uint32_t)], sizeof(uint32_t))
                if size > <size_t>(end - place.at):
                    outcome = 2
                    break
                place.end = place.at + size
                begun = place.out
                outcome = self._message(&place) if self._fields else self._text(
                    &place, <size_t>size)
                if outcome:
                    place.out = begun
                    break
                size = <uint32_t>(place.out - begun)
                memcpy(sizes_at + done * sizeof(uint32_t), &size, sizeof(uint32_t))
                place.at = place.end
                done += 1
        if outcome == 2:
            raise ValueError("a batch's messages are not whole")
        written = <size_t>(place.out - first)
        if outcome:
            size = <uint32_t>min(announced(place.at[0]), <size_t>(place.end - place.at))
            self.failure = place.at[:size]
        return converted[:written], sizes[:done * sizeof(uint32_t)]

    cdef int _text(self, Place* place, size_t size) noexcept nogil:
        """Convert *size* bytes; 1: there is what can't be, at place.at up to place.end."""
        cdef const uint8_t* at = place.at
        cdef const uint8_t* end = at + size
        cdef uint8_t* out = place.out
        cdef size_t length, following, n
        cdef uint32_t place_code
        while at < end:
            if at[0] < 0x80:
                out[0] = at[0]
                at += 1
                out += 1
                continue
            length = legal(at, end)
            if length == 0:
                if not self._keeps_strays:
                    place.at = at
                    place.end = end
                    return 1
                out[0] = at[0]
                at += 1
                out += 1
                continue
            if self._characters is None:
                memcpy(out, at, length)
                out += length
                at += length
                continue
            place_code = 0
            if self._characters._pair_count and at + length < end:
                following = legal(at + length, end)
                if following:
                    place_code = self._characters.both(code_point(at, length),
                                                 code_point(at + length, following))
                    if place_code:
                        length += following
            if place_code == 0:
                place_code = self._characters.single(code_point(at, length))
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

    cdef int _raw(self, Place* place, size_t size) noexcept nogil:
        """Copy *size* bytes; 2: there are fewer."""
        if size > <size_t>(place.end - place.at):
            return 2
        memcpy(place.out, place.at, size)
        place.at += size
        place.out += size
        return 0

    cdef int _string(self, Place* place) noexcept nogil:
        """Convert text up to its zero."""
        cdef const uint8_t* zero = <const uint8_t*>memchr(
            place.at, 0, <size_t>(place.end - place.at))
        cdef int outcome
        if zero == NULL:
            return 2
        outcome = self._text(place, <size_t>(zero - place.at))
        return outcome if outcome else self._raw(place, 1)

    cdef int _message(self, Place* place) noexcept nogil:
        """Convert a message of pgoutput; 0, or as :meth:`_text` and :meth:`_raw`."""
        cdef uint8_t kind
        cdef int outcome
        cdef uint16_t columns
        if place.at == place.end:
            return 2
        kind = place.at[0]
        outcome = self._raw(place, 1)
        if kind == c"S":
            self._in_part = True
        elif kind == c"E":
            self._in_part = False
        if kind == c"O":
            outcome = self._raw(place, LSN_BYTES)
            return outcome if outcome else self._string(place)
        if kind == c"b":
            outcome = self._raw(place, BEGIN_PREPARED_BYTES)
            return outcome if outcome else self._string(place)
        if kind == c"P" or kind == c"p" or kind == c"K":
            outcome = self._raw(place, PREPARED_BYTES)
            return outcome if outcome else self._string(place)
        if kind == c"r":
            outcome = self._raw(place, ROLLBACK_PREPARED_BYTES)
            return outcome if outcome else self._string(place)
        if not (kind == c"R" or kind == c"Y" or kind == c"I" or kind == c"U" or kind == c"D"
                or kind == c"M"):
            return self._raw(place, <size_t>(place.end - place.at))
        if self._in_part:
            outcome = self._raw(place, 4)
            if outcome:
                return outcome
        if kind == c"M":
            outcome = self._raw(place, 1 + LSN_BYTES)
            if outcome == 0:
                outcome = self._string(place)
            return outcome if outcome else self._raw(place, <size_t>(place.end - place.at))
        # The table's, or the type's, OID.
        outcome = self._raw(place, 4)
        if outcome:
            return outcome
        if kind == c"R" or kind == c"Y":
            outcome = self._string(place)
            if outcome == 0:
                outcome = self._string(place)
            if outcome or kind == c"Y":
                return outcome
            # The replica identity; how many columns.
            if place.end - place.at < 3:
                return 2
            columns = <uint16_t>((place.at[1] << 8) | place.at[2])
            outcome = self._raw(place, 3)
            while columns and not outcome:
                outcome = self._raw(place, 1)
                if outcome == 0:
                    outcome = self._string(place)
                if outcome == 0:
                    outcome = self._raw(place, TYPE_BYTES)
                columns -= 1
            return outcome
        # One or two rows, each behind its letter.
        while place.at < place.end and not outcome:
            outcome = self._raw(place, 1)
            if outcome == 0:
                outcome = self._row(place)
        return outcome

    cdef int _row(self, Place* place) noexcept nogil:
        cdef uint16_t columns
        cdef uint32_t size
        cdef uint8_t form
        cdef uint8_t* length_at
        cdef int outcome
        if place.end - place.at < 2:
            return 2
        columns = <uint16_t>((place.at[0] << 8) | place.at[1])
        outcome = self._raw(place, 2)
        while columns and not outcome:
            columns -= 1
            if place.at == place.end:
                return 2
            form = place.at[0]
            outcome = self._raw(place, 1)
            if form != c"t" and form != c"b":
                continue
            if place.end - place.at < 4:
                return 2
            size = get_u32(place.at)
            length_at = place.out
            outcome = self._raw(place, 4)
            if size > <size_t>(place.end - place.at):
                return 2
            if form == c"b":
                outcome = self._raw(place, size)
            else:
                outcome = self._text(place, size)
                put_u32(length_at, <uint32_t>(place.out - length_at - 4))
        return outcome
