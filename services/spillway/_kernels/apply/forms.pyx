# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A value's text, as pgoutput sends it, in the forms in which the target takes it: as an element of
an array's text form, as a field of COPY's, or as the type's receive function has it.

The binary forms spare the target's backend its input functions, which is most of what a short value
costs there. They are made for what the output functions of these types write under the settings of
our sessions and of pgoutput (DateStyle ISO, UTC offsets as numbers); any other text is refused here
and goes to the target as it is, for its input function to judge. So a form never decides what a
value means.

Source: the input, output and receive functions of src/backend/utils/adt: array_in and array_recv
(arrayfuncs.c), int.c, int8.c, bool.c, uuid.c, varlena.c, jsonb.c, date.c, timestamp.c
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, release, reserve

FORMS = {
    "literal": FORM_LITERAL, "text": FORM_TEXT, "int2": FORM_INT2, "int4": FORM_INT4,
    "int8": FORM_INT8, "bool": FORM_BOOL, "jsonb": FORM_JSONB, "uuid": FORM_UUID,
    "bytea": FORM_BYTEA, "date": FORM_DATE, "timestamp": FORM_TIMESTAMP,
    "timestamptz": FORM_TIMESTAMPTZ,
}

cdef int64_t DAY_US = <int64_t>86400 * 1000000


cdef inline void store_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef int put_u32(ByteBuffer* out, uint32_t value) except -1 nogil:
    reserve(out, 4)
    store_u32(out.data + out.size, value)
    out.size += 4
    return 0


cdef bint read_integer(
    const uint8_t* text, uint32_t size, int64_t lowest, int64_t highest, int64_t* value
) noexcept nogil:
    """Read what int8out writes: a minus or nothing, digits."""
    cdef uint32_t i = 0
    cdef uint64_t magnitude = 0
    cdef bint negative = False
    if size and text[0] == c"-":
        negative = True
        i = 1
    if i == size or size - i > 19:
        return False
    while i < size:
        if text[i] < c"0" or text[i] > c"9":
            return False
        magnitude = magnitude * 10 + (text[i] - c"0")
        i += 1
    if negative:
        # Up to 19 digits fit an unsigned one.
        if magnitude > <uint64_t>0x8000000000000000:
            return False
        value[0] = <int64_t>(0 - magnitude)
    else:
        if magnitude > <uint64_t>0x7FFFFFFFFFFFFFFF:
            return False
        value[0] = <int64_t>magnitude
    return lowest <= value[0] <= highest


cdef inline int nibble(uint8_t character) noexcept nogil:
    if c"0" <= character <= c"9":
        return character - c"0"
    if c"a" <= character <= c"f":
        return character - c"a" + 10
    return -1


cdef inline int digits(const uint8_t* text, uint32_t count) noexcept nogil:
    """The value of *count* digits, at most 9; -1 when one is none."""
    cdef int value = 0
    cdef uint32_t i
    for i in range(count):
        if text[i] < c"0" or text[i] > c"9":
            return -1
        value = value * 10 + (text[i] - c"0")
    return value


cdef inline bint is_leap(int year) noexcept nogil:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


cdef bint read_date(const uint8_t* text, int64_t* days) noexcept nogil:
    """Read YYYY-MM-DD, of years 1 to 9999; days since 2000-01-01."""
    cdef int year = digits(text, 4)
    cdef int month = digits(text + 5, 2)
    cdef int day = digits(text + 8, 2)
    cdef int last, y, m
    if text[4] != c"-" or text[7] != c"-" or year < 1 or month < 1 or month > 12 or day < 1:
        return False
    last = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    elif month == 2:
        last = 29 if is_leap(year) else 28
    if day > last:
        return False
    # Years that begin in March: a leap day is the last one of its year.
    y = year if month > 2 else year - 1
    m = month - 3 if month > 2 else month + 9
    # of 0000-03-01 to 2000-01-01 there are 730425 days
    days[0] = (
        <int64_t>365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 1 - 730425
    )
    return True


cdef bint read_timestamp(
    const uint8_t* text, uint32_t size, bint with_zone, int64_t* value
) noexcept nogil:
    """Read YYYY-MM-DD HH:MM:SS[.ffffff][±HH[:MM[:SS]]]; microseconds since 2000-01-01."""
    cdef int64_t days = 0
    cdef int hours, minutes, seconds, fraction, zone, part
    cdef uint32_t i, count
    cdef bint west
    if size < 19 or not read_date(text, &days):
        return False
    hours = digits(text + 11, 2)
    minutes = digits(text + 14, 2)
    seconds = digits(text + 17, 2)
    if text[10] != c" " or text[13] != c":" or text[16] != c":":
        return False
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or seconds < 0 or seconds > 59:
        return False
    i = 19
    fraction = 0
    if i < size and text[i] == c".":
        i += 1
        count = 0
        while i < size and c"0" <= text[i] <= c"9" and count < 6:
            fraction = fraction * 10 + (text[i] - c"0")
            i += 1
            count += 1
        if count == 0:
            return False
        while count < 6:
            fraction *= 10
            count += 1
    zone = 0
    if with_zone:
        if size - i < 3 or (text[i] != c"+" and text[i] != c"-"):
            return False
        west = text[i] == c"-"
        zone = digits(text + i + 1, 2)
        if zone < 0 or zone > 15:
            return False
        zone *= 3600
        i += 3
        count = 60
        while i < size and count:
            if size - i < 3 or text[i] != c":":
                return False
            part = digits(text + i + 1, 2)
            if part < 0 or part > 59:
                return False
            zone += part * <int>count
            count //= 60
            i += 3
        if west:
            zone = -zone
    if i != size:
        return False
    value[0] = (
        days * DAY_US + (<int64_t>hours * 3600 + minutes * 60 + seconds - zone) * 1000000 + fraction
    )
    return True


cdef inline int put_number(ByteBuffer* out, int64_t value, uint32_t size) except -1 nogil:
    """Write a length and as many bytes of a number."""
    cdef uint8_t* at
    cdef uint32_t i
    reserve(out, 4 + size)
    at = out.data + out.size
    store_u32(at, size)
    for i in range(size):
        at[4 + i] = <uint8_t>(<uint64_t>value >> (8 * (size - 1 - i)))
    out.size += 4 + size
    return 0


cdef bint put_binary(
    ByteBuffer* out, int form, const uint8_t* text, uint32_t size
) except -1 nogil:
    """Write a value's length and its binary form; False, with nothing written, when *text* is not
    what the type's output function writes.
    """
    cdef int64_t value = 0
    cdef uint32_t i, count
    cdef int high, low
    cdef uint8_t* at
    if form == FORM_TEXT:
        put_u32(out, size)
        put_bytes(out, text, size)
        return True
    if form == FORM_INT4:
        if not read_integer(text, size, -0x80000000, 0x7FFFFFFF, &value):
            return False
        put_number(out, value, 4)
        return True
    if form == FORM_INT8:
        if not read_integer(
            text, size, <int64_t>(-0x7FFFFFFFFFFFFFFF - 1), 0x7FFFFFFFFFFFFFFF, &value
        ):
            return False
        put_number(out, value, 8)
        return True
    if form == FORM_INT2:
        if not read_integer(text, size, -0x8000, 0x7FFF, &value):
            return False
        put_number(out, value, 2)
        return True
    if form == FORM_BOOL:
        if size != 1 or (text[0] != c"t" and text[0] != c"f"):
            return False
        put_number(out, text[0] == c"t", 1)
        return True
    if form == FORM_TIMESTAMP or form == FORM_TIMESTAMPTZ:
        if not read_timestamp(text, size, form == FORM_TIMESTAMPTZ, &value):
            return False
        put_number(out, value, 8)
        return True
    if form == FORM_DATE:
        if size != 10 or not read_date(text, &value):
            return False
        put_number(out, value, 4)
        return True
    if form == FORM_JSONB:
        if size >= 0x3FFFFFFF:
            return False
        put_u32(out, size + 1)
        # the version of the format
        put_byte(out, 1)
        put_bytes(out, text, size)
        return True
    if form == FORM_UUID:
        if size != 36:
            return False
        for i in range(36):
            if i == 8 or i == 13 or i == 18 or i == 23:
                if text[i] != c"-":
                    return False
            elif nibble(text[i]) < 0:
                return False
        reserve(out, 20)
        at = out.data + out.size
        store_u32(at, 16)
        at += 4
        i = 0
        while i < 36:
            if text[i] == c"-":
                i += 1
            at[0] = <uint8_t>(nibble(text[i]) << 4 | nibble(text[i + 1]))
            at += 1
            i += 2
        out.size += 20
        return True
    if form == FORM_BYTEA:
        if size < 2 or size % 2 or text[0] != c"\\" or text[1] != c"x":
            return False
        count = size // 2 - 1
        reserve(out, 4 + <size_t>count)
        at = out.data + out.size
        store_u32(at, count)
        at += 4
        for i in range(count):
            high = nibble(text[2 + 2 * i])
            low = nibble(text[3 + 2 * i])
            if high < 0 or low < 0:
                return False
            at[i] = <uint8_t>(high << 4 | low)
        out.size += 4 + <size_t>count
        return True
    return False


cdef int put_element(ByteBuffer* out, const uint8_t* text, uint32_t size) except -1 nogil:
    """Write an element of an array's text form, in quotes."""
    cdef uint32_t i
    cdef uint8_t* at
    reserve(out, 2 * <size_t>size + 2)
    at = out.data + out.size
    at[0] = c'"'
    at += 1
    for i in range(size):
        if text[i] == c'"' or text[i] == c"\\":
            at[0] = c"\\"
            at += 1
        at[0] = text[i]
        at += 1
    at[0] = c'"'
    out.size = <size_t>(at + 1 - out.data)
    return 0


cdef int put_copy_text(ByteBuffer* out, const uint8_t* text, uint32_t size) except -1 nogil:
    """Write a field of COPY's text format."""
    cdef uint32_t i
    cdef uint8_t* at
    cdef uint8_t escaped
    reserve(out, 2 * <size_t>size)
    at = out.data + out.size
    for i in range(size):
        escaped = text[i]
        if escaped == c"\\" or escaped == c"\n" or escaped == c"\r" or escaped == c"\t":
            at[0] = c"\\"
            at += 1
            if escaped == c"\n":
                escaped = c"n"
            elif escaped == c"\r":
                escaped = c"r"
            elif escaped == c"\t":
                escaped = c"t"
        at[0] = escaped
        at += 1
    out.size = <size_t>(at - out.data)
    return 0


def binary(int form, bytes text not None):
    """Return what a value's receive function is given; None for a text that is refused here."""
    cdef ByteBuffer out
    out.data = NULL
    out.size = out.capacity = 0
    try:
        if not put_binary(&out, form, text, <uint32_t>len(text)):
            return None
        return (out.data + 4)[: out.size - 4]
    finally:
        release(&out)
