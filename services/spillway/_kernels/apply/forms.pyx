# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A value's text, as pgoutput sends it, in the forms in which the target takes it: as an element of
an array's text form, as a field of COPY's, or as the type's receive function has it.

The binary forms spare the target's backend its input functions, which is most of what a short value
costs there. They are made for what the output functions of these types write under the settings of
our sessions and of pgoutput (DateStyle ISO, UTC offsets as numbers); any other text is refused here
and goes to the target as it is, for its input function to judge. So a form never decides what a
value means.

Source: the input, output and receive functions of src/backend/utils/adt: array_in and array_recv
(arrayfuncs.c), int.c, int8.c, bool.c, uuid.c, varlena.c, jsonb.c, date.c, timestamp.c, numeric.c,
float.c
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport strtod, strtof
from libc.string cimport memcmp, memcpy, memset

from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, release, reserve

FORMS = {
    "literal": FORM_LITERAL, "text": FORM_TEXT, "int2": FORM_INT2, "int4": FORM_INT4,
    "int8": FORM_INT8, "bool": FORM_BOOL, "jsonb": FORM_JSONB, "uuid": FORM_UUID,
    "bytea": FORM_BYTEA, "date": FORM_DATE, "timestamp": FORM_TIMESTAMP,
    "timestamptz": FORM_TIMESTAMPTZ, "numeric": FORM_NUMERIC, "float8": FORM_FLOAT8,
    "float4": FORM_FLOAT4, "time": FORM_TIME,
}

cdef int64_t DAY_US = <int64_t>86400 * 1000000

cdef enum:
    # What is longer is no number that is worth it, and its fields fit two bytes.
    NUMERIC_BYTES_MAX = 1000
    # more than float8out and float4out write
    FLOAT_BYTES_MAX = 31
    NUMERIC_NEGATIVE = 0x4000
    NUMERIC_NAN = 0xC000

# powers of ten that a double has exactly
cdef double[23] POWERS = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]


cdef inline void store_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void store_u16(uint8_t* at, uint16_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


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


cdef bint read_time(const uint8_t* text, uint32_t size, int64_t* value) noexcept nogil:
    """Read HH:MM:SS[.ffffff], before 24:00:00; microseconds since midnight."""
    cdef int hours, minutes, seconds
    cdef int64_t fraction = 0
    cdef uint32_t _
    if size < 8 or size > 15 or size == 9 or text[2] != c":" or text[5] != c":":
        return False
    hours = digits(text, 2)
    minutes = digits(text + 3, 2)
    seconds = digits(text + 6, 2)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or seconds < 0 or seconds > 59:
        return False
    if size > 8:
        fraction = digits(text + 9, size - 9)
        if text[8] != c"." or fraction < 0:
            return False
        for _ in range(15 - size):
            fraction *= 10
    value[0] = (<int64_t>hours * 3600 + minutes * 60 + seconds) * 1000000 + fraction
    return True


cdef bint read_float(
    const uint8_t* text, uint32_t size, bint single, uint64_t* bits
) noexcept nogil:
    """Read what float8out and float4out write, to the nearest double, or float if *single*; the
    bits of that.
    """
    cdef char[FLOAT_BYTES_MAX + 1] copied
    cdef char* end = NULL
    cdef double read
    cdef float narrow
    cdef uint32_t narrow_bits
    cdef uint64_t magnitude = 0
    cdef uint32_t i = 0, count = 0, behind = 0
    cdef bint negative = False, is_plain = True, has_point = False, is_zero = True
    if size == 0 or size > FLOAT_BYTES_MAX:
        return False
    if size == 3 and memcmp(text, b"NaN", 3) == 0:
        bits[0] = <uint64_t>0x7FC00000 if single else <uint64_t>0x7FF8000000000000
        return True
    if text[0] == c"-":
        negative = True
        i = 1
    if size - i == 8 and memcmp(text + i, b"Infinity", 8) == 0:
        bits[0] = <uint64_t>0x7F800000 if single else <uint64_t>0x7FF0000000000000
        if negative:
            bits[0] |= <uint64_t>0x80000000 if single else <uint64_t>0x8000000000000000
        return True
    if i == size or text[i] < c"0" or text[i] > c"9":
        return False
    while i < size:
        if c"0" <= text[i] <= c"9":
            is_zero = is_zero and text[i] == c"0"
            if is_plain:
                magnitude = magnitude * 10 + (text[i] - c"0")
                count += 1
                behind += has_point
                # What has more digits may overflow.
                is_plain = count <= 18
        elif text[i] == c"." and not has_point and is_plain:
            has_point = True
        elif text[i] == c"e" and not is_zero:
            # An exponent may stand behind a number that is not zero, once.
            is_plain = False
            if i + 2 >= size or (text[i + 1] != c"+" and text[i + 1] != c"-"):
                return False
            i += 2
            while i < size:
                if text[i] < c"0" or text[i] > c"9":
                    return False
                i += 1
            break
        elif text[i] != c"." or has_point:
            return False
        else:
            has_point = True
        i += 1
    if not single and is_plain and magnitude <= <uint64_t>1 << 53 and behind <= 22:
        # Both are exact, so their quotient is rounded once.
        read = <double>magnitude / POWERS[behind]
        if negative:
            read = -read
    else:
        memcpy(copied, text, size)
        copied[size] = 0
        if single:
            narrow = strtof(copied, &end)
            read = narrow
        else:
            read = strtod(copied, &end)
        # A locale with another decimal point stops before the end. What is too large or too small
        # is an error, which is the server's to tell.
        if end != copied + size or read - read != 0 or (read == 0 and not is_zero):
            return False
    if single:
        narrow = <float>read
        memcpy(&narrow_bits, &narrow, 4)
        bits[0] = narrow_bits
    else:
        memcpy(bits, &read, 8)
    return True


cdef bint put_numeric(ByteBuffer* out, const uint8_t* text, uint32_t size) except -1 nogil:
    """Write what numeric_recv takes of what numeric_out writes: four decimal digits are one of it.
    """
    cdef uint32_t begin = 0, point, whole, scale, at, i
    cdef uint16_t sign = 0, value
    cdef int weight, count = 0, last = 0
    cdef uint8_t* header
    cdef uint8_t* place
    if size == 3 and memcmp(text, b"NaN", 3) == 0:
        reserve(out, 12)
        header = out.data + out.size
        store_u32(header, 8)
        memset(header + 4, 0, 8)
        store_u16(header + 8, NUMERIC_NAN)
        out.size += 12
        return True
    if size and text[0] == c"-":
        sign = NUMERIC_NEGATIVE
        begin = 1
    if begin == size or size > NUMERIC_BYTES_MAX:
        return False
    point = size
    for i in range(begin, size):
        if text[i] == c"." and point == size:
            point = i
        elif text[i] < c"0" or text[i] > c"9":
            return False
    if point == begin or point + 1 == size:
        return False
    whole = point - begin
    scale = size - point - 1 if point < size else 0
    weight = <int>((whole + 3) // 4) - 1
    reserve(out, 12 + 2 * <size_t>(whole // 4 + scale // 4 + 2))
    header = out.data + out.size
    place = header + 12
    # How many decimal digits the next one takes: the first may be short, as may the last.
    at = begin
    i = whole % 4 if whole % 4 else 4
    while at < point:
        value = <uint16_t>digits(text + at, i)
        at += i
        i = 4
        if value == 0 and count == 0:
            weight -= 1
            continue
        store_u16(place + 2 * count, value)
        count += 1
        if value:
            last = count
    at = point + 1
    while at < size:
        i = size - at if size - at < 4 else 4
        value = <uint16_t>digits(text + at, i)
        at += i
        while i < 4:
            value *= 10
            i += 1
        if value == 0 and count == 0:
            weight -= 1
            continue
        store_u16(place + 2 * count, value)
        count += 1
        if value:
            last = count
    if last == 0:
        weight = 0
        sign = 0
    store_u32(header, 8 + 2 * <uint32_t>last)
    store_u16(header + 4, <uint16_t>last)
    store_u16(header + 6, <uint16_t>weight)
    store_u16(header + 8, sign)
    store_u16(header + 10, <uint16_t>scale)
    out.size += 12 + 2 * <size_t>last
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
    cdef uint64_t bits = 0
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
    if form == FORM_NUMERIC:
        return put_numeric(out, text, size)
    if form == FORM_FLOAT8 or form == FORM_FLOAT4:
        if not read_float(text, size, form == FORM_FLOAT4, &bits):
            return False
        put_number(out, <int64_t>bits, 4 if form == FORM_FLOAT4 else 8)
        return True
    if form == FORM_TIME:
        if not read_time(text, size, &value):
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
