# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of integers, floats, numeric and money, as PostgreSQL's output functions print them.

Floats are printed with the fewest digits that read back as the same value; among those, the
closest. The method is Schubfach (Raffaello Giulietti, "The Schubfach way to render doubles", 2020):
a float's rounding interval is scaled by a power of ten so that it spans at least one and less than
ten integers, with 128-bit powers whose products are *rounded to odd*, so that every comparison is
exact. PostgreSQL (Ryu, src/common/d2s.c, built without STRICTLY_SHORTEST) never takes a bound of
the interval itself, even where round-half-even would read it back; so neither do we, for either
parity.

Powers of ten: 10^k = g·2^e with 2^127 ≤ g < 2^128, g rounded up; made from exact integers at
import.

Source: numeric_out, get_str_from_var (numeric.c); float8out_internal (float.c);
double_to_shortest_decimal_bufn (d2s.c); cash_out (cash.c)
"""

from libc.math cimport isinf, isnan
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset, strlen

from spillway._kernels.values.datum cimport (invalid, load_i16, load_i32, load_i64, load_u16,
                                             load_u32, load_u64)
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, release, reserve
from spillway._kernels.values.type cimport TypeOutput

cdef extern from *:
    """
    #include <stdint.h>
    /* The upper half of a 128-bit product; the lower goes to *low. */
    static inline uint64_t spillway_multiply(uint64_t a, uint64_t b, uint64_t *low) {
        unsigned __int128 product = (unsigned __int128)a * b;
        *low = (uint64_t)product;
        return (uint64_t)(product >> 64);
    }
    """
    uint64_t multiply "spillway_multiply"(uint64_t a, uint64_t b, uint64_t* low) noexcept nogil
    int leading_zeros "__builtin_clzll"(uint64_t value) noexcept nogil

cdef enum:
    NUMERIC_SIGN_MASK = 0xC000
    NUMERIC_NEG = 0x4000
    NUMERIC_SHORT = 0x8000
    NUMERIC_SPECIAL = 0xC000
    NUMERIC_EXT_SIGN_MASK = 0xF000
    NUMERIC_NAN = 0xC000
    NUMERIC_PINF = 0xD000
    NUMERIC_NINF = 0xF000
    NUMERIC_DSCALE_MASK = 0x3FFF
    NUMERIC_SHORT_SIGN_MASK = 0x2000
    NBASE = 10000
    # DBL_DIG, FLT_DIG
    FLOAT8_DIGITS = 15
    FLOAT4_DIGITS = 6
    POWER_MIN = -292
    POWER_MAX = 324

# 10^k for k from POWER_MIN to POWER_MAX, high and low halves.
cdef uint64_t power_high[POWER_MAX - POWER_MIN + 1]
cdef uint64_t power_low[POWER_MAX - POWER_MIN + 1]
# "00" … "99"
cdef char pairs[200]
# 10^0 … 10^19
cdef uint64_t powers_of_ten[20]


cdef void fill_tables():
    cdef int k, i
    cdef object numerator, denominator, shift, top, bottom, g
    cdef object ten = 10
    for k in range(POWER_MIN, POWER_MAX + 1):
        numerator = ten ** max(k, 0)
        denominator = ten ** max(-k, 0)
        # The shift that brings the quotient to 128 bits; the first guess is off by one at most.
        shift = 128 - numerator.bit_length() + denominator.bit_length()
        top = numerator << max(shift, 0)
        bottom = denominator << max(-shift, 0)
        if top // bottom >> 128:
            bottom <<= 1
        g = -(-top // bottom)
        power_high[k - POWER_MIN] = g >> 64
        power_low[k - POWER_MIN] = g & 0xFFFFFFFFFFFFFFFF
    for i in range(100):
        pairs[2 * i] = 48 + i // 10
        pairs[2 * i + 1] = 48 + i % 10
    for i in range(20):
        powers_of_ten[i] = ten ** i


fill_tables()


# Integers.

cdef inline int digit_count(uint64_t value) noexcept nogil:
    # So many bits, times log10(2), are the number of digits or one less.
    cdef int least = (64 - leading_zeros(value | 1)) * 1233 >> 12
    return least + ((value | 1) >= powers_of_ten[least])


cdef inline void write_digits(char* p, uint64_t value, int width) noexcept nogil:
    """Write the last *width* digits of *value* at *p*."""
    cdef uint64_t rest
    while width >= 2:
        width -= 2
        rest = value // 100
        memcpy(p + width, pairs + 2 * (value - rest * 100), 2)
        value = rest
    if width:
        p[0] = 48 + <char>(value % 10)


cdef char* write_uint(char* p, uint64_t value) noexcept nogil:
    """Write *value* in decimal at *p*, at most 20 digits; return where it ends."""
    cdef int count = digit_count(value)
    write_digits(p, value, count)
    return p + count


cdef int put_uint(ByteBuffer* out, uint64_t value) except -1 nogil:
    """Append *value* in decimal."""
    reserve(out, 20)
    out.size = write_uint(<char*>out.data + out.size, value) - <char*>out.data
    return 0


cdef int put_int(ByteBuffer* out, int64_t value) except -1 nogil:
    """Append *value* in decimal."""
    if value < 0:
        put_byte(out, c'-')
        return put_uint(out, <uint64_t>0 - <uint64_t>value)
    return put_uint(out, <uint64_t>value)


cdef int put_padded(ByteBuffer* out, uint64_t value, int width) except -1 nogil:
    """Append *value* in decimal, zeros before it to make *width* digits."""
    cdef uint64_t bound = 10
    cdef int digits = 1
    while digits < width and value >= bound:
        bound *= 10
        digits += 1
    while digits < width:
        put_byte(out, c'0')
        digits += 1
    return put_uint(out, value)


cdef int int2_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_int(out, load_i16(data))


cdef int int4_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_int(out, load_i32(data))


cdef int int8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_int(out, load_i64(data))


cdef int uint4_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    """oid, xid, cid."""
    return put_uint(out, load_u32(data))


cdef int uint8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    """xid8."""
    return put_uint(out, load_u64(data))


# Floats.

cdef inline uint64_t round_to_odd(uint64_t high, uint64_t low, uint64_t factor) noexcept nogil:
    """The upper 64 bits of the 192-bit product (high:low)·factor, with any lost bit kept as
    bit 0.
    """
    cdef uint64_t lost, middle
    cdef uint64_t carry = multiply(low, factor, &lost)
    cdef uint64_t top = multiply(high, factor, &middle)
    middle += carry
    if middle < carry:
        top += 1
    return top | (middle > 1)


cdef inline int floor_log2_pow10(int e) noexcept nogil:
    return (e * 1741647) >> 19


cdef uint64_t shortest(uint64_t significand, int exponent, bint lower_is_closer,
                       int* decimal_exponent) noexcept nogil:
    """Return d so that d·10^*decimal_exponent is the shortest decimal for significand·2^exponent.

    *lower_is_closer*: the float below is only half as far as the one above (powers of two). d may
    end in zeros.
    """
    # floor(log10(2^e)), floor(log10(3/4·2^e))
    cdef int k = (exponent * 1262611 - (524031 if lower_is_closer else 0)) >> 22
    cdef int shift = exponent + floor_log2_pow10(-k) + 1
    cdef uint64_t high = power_high[-k - POWER_MIN]
    cdef uint64_t low = power_low[-k - POWER_MIN]
    cdef uint64_t centre = significand << 2
    cdef uint64_t value = round_to_odd(high, low, centre << shift)
    # Bounds excluded: one off, inwards.
    cdef uint64_t lower = round_to_odd(high, low, (centre - 2 + lower_is_closer) << shift) + 1
    cdef uint64_t upper = round_to_odd(high, low, (centre + 2) << shift) - 1
    cdef uint64_t s = value >> 2
    cdef uint64_t tens, middle
    cdef bint below_inside, above_inside
    decimal_exponent[0] = k
    if s >= 10:
        tens = s // 10
        below_inside = lower <= 40 * tens
        above_inside = 40 * tens + 40 <= upper
        if below_inside != above_inside:
            decimal_exponent[0] = k + 1
            return tens + above_inside
    below_inside = lower <= 4 * s
    above_inside = 4 * s + 4 <= upper
    if below_inside != above_inside:
        return s + above_inside
    middle = 4 * s + 2
    if value > middle or (value == middle and s & 1):
        s += 1
    return s


cdef int put_decimal(ByteBuffer* out, uint64_t decimal, int exponent,
                     int fixed_below) except -1 nogil:
    """Append decimal·10^exponent: as a fixed-point number from 10^-4 to below 10^fixed_below, else
    with an exponent.
    """
    cdef int count
    cdef int point
    cdef uint64_t power, whole
    cdef char* p
    # A number of few digits comes with up to sixteen zeros behind them.
    if decimal % 100000000 == 0:
        decimal //= 100000000
        exponent += 8
    while decimal % 10000 == 0:
        decimal //= 10000
        exponent += 4
    while decimal % 10 == 0:
        decimal //= 10
        exponent += 1
    count = digit_count(decimal)
    # Digits before the decimal point, may be ≤ 0.
    point = count + exponent
    reserve(out, 48)
    p = <char*>out.data + out.size
    if -4 < point <= fixed_below:
        if point <= 0:
            memcpy(p, b"0.000", 5)
            p += 2 - point
            write_digits(p, decimal, count)
            p += count
        elif point >= count:
            write_digits(p, decimal, count)
            # At most fixed_below digits.
            memset(p + count, c'0', 16)
            p += point
        else:
            # Each part by itself: written as a whole, digits would have to be read back to make
            # room for the point.
            power = powers_of_ten[-exponent]
            whole = decimal // power
            write_digits(p, whole, point)
            p[point] = c'.'
            write_digits(p + point + 1, decimal - whole * power, -exponent)
            p += count + 1
    else:
        point -= 1
        write_digits(p + 1, decimal, count)
        p[0] = p[1]
        p += 1
        if count > 1:
            p[0] = c'.'
            p += count
        p[0] = c'e'
        p[1] = c'-' if point < 0 else c'+'
        p += 2
        if point < 0:
            point = -point
        if point >= 100:
            p[0] = 48 + <char>(point // 100)
            p += 1
            point %= 100
        memcpy(p, pairs + 2 * point, 2)
        p += 2
    out.size = p - <char*>out.data
    return 0


cdef int put_special(ByteBuffer* out, double value) except -1 nogil:
    """Append NaN, an infinity or a zero and return 1; return 0 for any other value."""
    if isnan(value):
        put_bytes(out, b"NaN", 3)
    elif isinf(value):
        if value < 0:
            put_bytes(out, b"-Infinity", 9)
        else:
            put_bytes(out, b"Infinity", 8)
    else:
        return 0
    return 1


cdef int put_rounded(ByteBuffer* out, double value, int digits) except -1 nogil:
    """Append *value* with so many significant digits, as printf's %g does."""
    cdef char text[40]
    if digits < 1:
        digits = 1
    snprintf(text, sizeof(text), b"%.*g", digits, value)
    return put_bytes(out, text, strlen(text))


cdef int put_float8(ByteBuffer* out, double value, int extra_float_digits) except -1 nogil:
    """Append a float8 under a setting of extra_float_digits."""
    cdef uint64_t bits, fraction
    cdef int exponent, decimal_exponent
    memcpy(&bits, &value, 8)
    fraction = bits & ((<uint64_t>1 << 52) - 1)
    exponent = (bits >> 52) & 0x7FF
    if exponent == 0x7FF:
        put_special(out, value)
        return 0
    if extra_float_digits <= 0:
        return put_rounded(out, value, FLOAT8_DIGITS + extra_float_digits)
    if bits >> 63:
        put_byte(out, c'-')
    if exponent == 0 and fraction == 0:
        return put_byte(out, c'0')
    if exponent:
        fraction = shortest(
            fraction | <uint64_t>1 << 52, exponent - 1075, fraction == 0 and exponent > 1,
            &decimal_exponent)
    else:
        fraction = shortest(fraction, -1074, False, &decimal_exponent)
    return put_decimal(out, fraction, decimal_exponent, FLOAT8_DIGITS)


cdef int float8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    cdef double value
    memcpy(&value, data, 8)
    return put_float8(out, value, type.settings.extra_float_digits)


cdef int put_float4(ByteBuffer* out, uint32_t bits, int extra_float_digits) except -1 nogil:
    """Append a float4, given by its bits, under a setting of extra_float_digits."""
    cdef float value
    cdef uint32_t fraction = bits & ((1 << 23) - 1)
    cdef int exponent = (bits >> 23) & 0xFF
    cdef int decimal_exponent
    cdef uint64_t decimal
    memcpy(&value, &bits, 4)
    if put_special(out, value):
        return 0
    if extra_float_digits <= 0:
        return put_rounded(out, value, FLOAT4_DIGITS + extra_float_digits)
    if bits >> 31:
        put_byte(out, c'-')
    if exponent == 0 and fraction == 0:
        return put_byte(out, c'0')
    if exponent:
        decimal = shortest(
            fraction | <uint32_t>1 << 23, exponent - 150, fraction == 0 and exponent > 1,
            &decimal_exponent)
    else:
        decimal = shortest(fraction, -149, False, &decimal_exponent)
    return put_decimal(out, decimal, decimal_exponent, FLOAT4_DIGITS)


cdef int float4_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    return put_float4(out, load_u32(data), type.settings.extra_float_digits)


# Numeric.

cdef inline int put_group(char** p, int digit) noexcept nogil:
    memcpy(p[0], pairs + 2 * (digit // 100), 2)
    memcpy(p[0] + 2, pairs + 2 * (digit % 100), 2)
    p[0] += 4
    return 0


cdef int put_numeric(ByteBuffer* out, const uint8_t* data, size_t size) except -1 nogil:
    """Append a numeric: a header, then digits of base 10000, most significant first."""
    cdef uint16_t header
    cdef int weight, dscale, i, d, digit, count
    cdef bint negative
    cdef const uint8_t* digits
    cdef char* p
    cdef char* point
    if size < 2 or size % 2:
        return invalid(b"a numeric has a size that no numeric has")
    header = load_u16(data)
    if header & NUMERIC_SIGN_MASK == NUMERIC_SPECIAL:
        if header & NUMERIC_EXT_SIGN_MASK == NUMERIC_NAN:
            return put_bytes(out, b"NaN", 3)
        if header & NUMERIC_EXT_SIGN_MASK == NUMERIC_PINF:
            return put_bytes(out, b"Infinity", 8)
        if header & NUMERIC_EXT_SIGN_MASK == NUMERIC_NINF:
            return put_bytes(out, b"-Infinity", 9)
        return invalid(b"a numeric has a special value that is not known")
    if header & NUMERIC_SIGN_MASK == NUMERIC_SHORT:
        negative = header & NUMERIC_SHORT_SIGN_MASK
        dscale = (header >> 7) & 0x3F
        weight = header & 0x3F
        if header & 0x40:
            weight |= ~0x3F
        digits = data + 2
        count = <int>(size - 2) // 2
    else:
        if size < 4:
            return invalid(b"a numeric ends inside its header")
        negative = header & NUMERIC_SIGN_MASK == NUMERIC_NEG
        dscale = header & NUMERIC_DSCALE_MASK
        weight = load_i16(data + 2)
        digits = data + 4
        count = <int>(size - 4) // 2
    # Every group is written whole, so that the loops need no checks of their own.
    reserve(out, 16 + 4 * (weight + 1 if weight > 0 else 1) + dscale + 4)
    p = <char*>out.data + out.size
    if negative:
        p[0] = c'-'
        p += 1
    if weight < 0:
        p[0] = c'0'
        p += 1
        d = weight + 1
    else:
        for d in range(weight + 1):
            digit = load_u16(digits + 2 * d) if d < count else 0
            if digit >= NBASE:
                return invalid(b"a numeric has a digit of 10000 or more")
            if d == 0:
                if digit < 10:
                    p[0] = 48 + <char>digit
                    p += 1
                elif digit < 100:
                    memcpy(p, pairs + 2 * digit, 2)
                    p += 2
                elif digit < 1000:
                    p[0] = 48 + <char>(digit // 100)
                    memcpy(p + 1, pairs + 2 * (digit % 100), 2)
                    p += 3
                else:
                    put_group(&p, digit)
            else:
                put_group(&p, digit)
        d = weight + 1
    if dscale > 0:
        p[0] = c'.'
        p += 1
        point = p
        i = 0
        while i < dscale:
            digit = load_u16(digits + 2 * d) if 0 <= d < count else 0
            if digit >= NBASE:
                return invalid(b"a numeric has a digit of 10000 or more")
            put_group(&p, digit)
            d += 1
            i += 4
        p = point + dscale
    out.size = p - <char*>out.data
    return 0


cdef int numeric_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    return put_numeric(out, data, size)


# Money.

cdef int money_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    """As under lc_monetary C or en_US: ``-$1,234.56``. WAL does not say which locale a server
    has.
    """
    cdef int64_t signed_value = load_i64(data)
    cdef uint64_t value = <uint64_t>signed_value
    cdef char text[40]
    cdef int start = 40
    cdef int digits = 0
    cdef uint64_t whole
    if signed_value < 0:
        value = <uint64_t>0 - value
        put_byte(out, c'-')
    put_byte(out, c'$')
    whole = value // 100
    while True:
        if digits and digits % 3 == 0:
            start -= 1
            text[start] = c','
        start -= 1
        text[start] = 48 + <char>(whole % 10)
        whole //= 10
        digits += 1
        if whole == 0:
            break
    put_bytes(out, text + start, 40 - start)
    put_byte(out, c'.')
    return put_padded(out, value % 100, 2)


def numeric_to_text(const uint8_t[::1] payload not None):
    """Return the text of a numeric's payload as ``str``: for codecs written in Python.

    Raises:
        DecodingError: the payload is malformed.
    """
    cdef ByteBuffer out
    cdef uint8_t none = 0
    out.data = NULL
    out.size = out.capacity = 0
    try:
        put_numeric(&out, &payload[0] if payload.shape[0] else &none, payload.shape[0])
        return out.data[:out.size].decode("ascii")
    finally:
        release(&out)
