# cython: language_level=3, boundscheck=False, wraparound=False
"""Text of a batch of messages in the encoding that a walsender would have sent it in.

The service's messages are in UTF-8. A walsender's are not all of one encoding: what pgoutput sends
by pq_sendtext and its like (names, values in text format, prefixes of messages, names of prepared
transactions and origins) is converted to the client's; the contents of messages, and all that a
plugin like test_decoding writes, are as the server has them.

What becomes of a character is a map's matter (``_kernels/pg/character_map``). Values in the send
format of their types are left alone: only the encoder knows these, and it has converted the text in
them (``_kernels/values/send/text``).

Source: pg_server_to_any, report_untranslatable_char, report_invalid_encoding
(src/backend/utils/mb/mbutils.c); logicalproto's writers (src/backend/replication/logical/proto.c)
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from spillway._kernels.pg.character_map cimport (
    GROWTH,
    CharacterMap,
    MapNumbers,
    Place,
    convert_characters,
    shown_bytes,
)

cdef enum:
    LSN_BYTES = 8
    # flags, three numbers of eight bytes, xid; a gid follows
    PREPARED_BYTES = 1 + 3 * 8 + 4
    ROLLBACK_PREPARED_BYTES = 1 + 4 * 8 + 4
    BEGIN_PREPARED_BYTES = 3 * 8 + 4
    # OID and modifier of a column's type
    TYPE_BYTES = 8


cdef inline uint32_t get_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


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
    # its; NULL: text stays UTF-8
    cdef const MapNumbers* _numbers
    cdef bint _keeps_strays
    cdef bint _fields
    cdef bint _in_part
    cdef readonly bytes failure

    def __init__(self, CharacterMap characters, keeps_strays, fields):
        self._characters = characters
        self._numbers = NULL if characters is None else &characters.numbers
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
            size = <uint32_t>shown_bytes(self._numbers, &place)
            self.failure = place.at[:size]
        return converted[:written], sizes[:done * sizeof(uint32_t)]

    cdef inline int _text(self, Place* place, size_t size) noexcept nogil:
        """Convert *size* bytes; 1: there is what can't be, at place.at up to place.end."""
        return convert_characters(self._numbers, self._keeps_strays, place, size)

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
