# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of intervals, in every IntervalStyle.

An interval is months, days and microseconds, each with a sign of its own. Months are shown as years
and months, microseconds as hours, minutes and seconds; the fields of one number have its sign.

Source: interval2itm (src/backend/utils/adt/timestamp.c), EncodeInterval (datetime.c)
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.values.datum cimport load_i32, load_i64
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes
from spillway._kernels.values.text.datetime cimport put_fraction, put_infinity
from spillway._kernels.values.text.number cimport put_int, put_padded, put_uint
from spillway._kernels.values.type cimport (
    INTERVAL_STYLE_ISO_8601,
    INTERVAL_STYLE_POSTGRES_VERBOSE,
    INTERVAL_STYLE_SQL_STANDARD,
    TypeOutput,
)
from spillway.pg.versions import Since

cdef int INFINITE_INTERVALS = Since.INFINITE_INTERVALS

cdef enum:
    MONTHS_PER_YEAR = 12

cdef uint64_t SECOND = 1000000
# PostgreSQL's DT_NOBEGIN; written so that no literal is out of C's range.
cdef int64_t INT64_LOWEST = <int64_t>(<uint64_t>1 << 63)
cdef int64_t INT64_HIGHEST = 0x7FFFFFFFFFFFFFFF
cdef int32_t INT32_LOWEST = <int32_t>(<uint32_t>1 << 31)
cdef int32_t INT32_HIGHEST = 0x7FFFFFFF


# The fields that are shown. Those of time are absolute; *before*: they are negative.
cdef struct Interval:
    int64_t years
    int64_t months
    int64_t days
    bint before
    uint64_t hours
    uint32_t minutes
    uint32_t seconds
    uint32_t microseconds


cdef bint has_time(const Interval* interval) noexcept nogil:
    return interval.hours or interval.minutes or interval.seconds or interval.microseconds


cdef int put_clock(ByteBuffer* out, const Interval* interval, int hour_digits) except -1 nogil:
    """Append ``hours:MM:SS[.ffffff]``."""
    put_padded(out, interval.hours, hour_digits)
    put_byte(out, c':')
    put_padded(out, interval.minutes, 2)
    put_byte(out, c':')
    put_padded(out, interval.seconds, 2)
    return put_fraction(out, interval.microseconds)


# IntervalStyle postgres: 1 year 2 mons -3 days +04:05:06

cdef int put_unit(
    ByteBuffer* out, int64_t value, const char* unit, size_t unit_size, bint* is_zero,
    bint* is_before
) except -1 nogil:
    """Append ``value unit`` unless it is 0; a positive value after a negative one has a plus
    sign.
    """
    if value == 0:
        return 0
    if not is_zero[0]:
        put_byte(out, c' ')
    if is_before[0] and value > 0:
        put_byte(out, c'+')
    put_int(out, value)
    put_bytes(out, unit, unit_size)
    if value != 1:
        put_byte(out, c's')
    is_before[0] = value < 0
    is_zero[0] = False
    return 0


cdef int put_postgres(ByteBuffer* out, const Interval* interval) except -1 nogil:
    cdef bint is_zero = True
    cdef bint is_before = False
    put_unit(out, interval.years, b" year", 5, &is_zero, &is_before)
    put_unit(out, interval.months, b" mon", 4, &is_zero, &is_before)
    put_unit(out, interval.days, b" day", 4, &is_zero, &is_before)
    if not has_time(interval) and not is_zero:
        return 0
    if not is_zero:
        put_byte(out, c' ')
    if interval.before:
        put_byte(out, c'-')
    elif is_before:
        put_byte(out, c'+')
    return put_clock(out, interval, 2)


# IntervalStyle postgres_verbose: @ 1 year 2 mons -3 days 4 hours 5 mins 6 secs ago

cdef int put_verbose(ByteBuffer* out, const Interval* interval) except -1 nogil:
    """The first field decides whether all is ``ago``; the others are shown relative to it."""
    cdef bint is_zero = True
    cdef bint is_before = False
    cdef int64_t sign = -1 if interval.before else 1
    put_byte(out, c'@')
    put_verbose_unit(out, interval.years, b" year", 5, &is_zero, &is_before)
    put_verbose_unit(out, interval.months, b" mon", 4, &is_zero, &is_before)
    put_verbose_unit(out, interval.days, b" day", 4, &is_zero, &is_before)
    put_verbose_unit(out, sign * <int64_t>interval.hours, b" hour", 5, &is_zero, &is_before)
    put_verbose_unit(out, sign * <int64_t>interval.minutes, b" min", 4, &is_zero, &is_before)
    if interval.seconds or interval.microseconds:
        put_byte(out, c' ')
        if interval.before and is_zero:
            is_before = True
        elif interval.before != is_before:
            put_byte(out, c'-')
        put_uint(out, interval.seconds)
        put_fraction(out, interval.microseconds)
        put_bytes(out, b" sec", 4)
        if interval.seconds != 1 or interval.microseconds:
            put_byte(out, c's')
        is_zero = False
    if is_zero:
        put_bytes(out, b" 0", 2)
    if is_before:
        put_bytes(out, b" ago", 4)
    return 0


cdef int put_verbose_unit(
    ByteBuffer* out, int64_t value, const char* unit, size_t unit_size, bint* is_zero,
    bint* is_before
) except -1 nogil:
    if value == 0:
        return 0
    if is_zero[0]:
        is_before[0] = value < 0
    if is_before[0]:
        value = -value
    put_byte(out, c' ')
    put_int(out, value)
    put_bytes(out, unit, unit_size)
    if value != 1:
        put_byte(out, c's')
    is_zero[0] = False
    return 0


# IntervalStyle sql_standard: 1-2, 3 4:05:06, or all of it with a sign each: +1-2 -3 +4:05:06

cdef int put_sql_standard(ByteBuffer* out, const Interval* interval) except -1 nogil:
    cdef bint time = has_time(interval)
    cdef bint negative = (interval.years < 0 or interval.months < 0 or interval.days < 0
                          or (time and interval.before))
    cdef bint ahead = time and not interval.before
    cdef bint positive = interval.years > 0 or interval.months > 0 or interval.days > 0 or ahead
    cdef bint year_month = interval.years != 0 or interval.months != 0
    if not negative and not positive:
        return put_byte(out, c'0')
    if (negative and positive) or (year_month and (interval.days != 0 or time)):
        # The standard has no such interval.
        put_byte(out, c'-' if interval.years < 0 or interval.months < 0 else c'+')
        put_uint(out, absolute(interval.years))
        put_byte(out, c'-')
        put_uint(out, absolute(interval.months))
        put_byte(out, c' ')
        put_byte(out, c'-' if interval.days < 0 else c'+')
        put_uint(out, absolute(interval.days))
        put_byte(out, c' ')
        put_byte(out, c'-' if time and interval.before else c'+')
        return put_clock(out, interval, 1)
    if negative:
        put_byte(out, c'-')
    if year_month:
        put_uint(out, absolute(interval.years))
        put_byte(out, c'-')
        return put_uint(out, absolute(interval.months))
    if interval.days:
        put_uint(out, absolute(interval.days))
        put_byte(out, c' ')
    return put_clock(out, interval, 1)


cdef inline uint64_t absolute(int64_t value) noexcept nogil:
    return <uint64_t>(-value if value < 0 else value)


# IntervalStyle iso_8601: P1Y2M3DT4H5M6S

cdef int put_part(ByteBuffer* out, int64_t value, char unit) except -1 nogil:
    if value == 0:
        return 0
    put_int(out, value)
    return put_byte(out, unit)


cdef int put_iso_8601(ByteBuffer* out, const Interval* interval) except -1 nogil:
    cdef int64_t sign = -1 if interval.before else 1
    if (interval.years == 0 and interval.months == 0 and interval.days == 0
            and not has_time(interval)):
        return put_bytes(out, b"PT0S", 4)
    put_byte(out, c'P')
    put_part(out, interval.years, c'Y')
    put_part(out, interval.months, c'M')
    put_part(out, interval.days, c'D')
    if not has_time(interval):
        return 0
    put_byte(out, c'T')
    put_part(out, sign * <int64_t>interval.hours, c'H')
    put_part(out, sign * <int64_t>interval.minutes, c'M')
    if interval.seconds or interval.microseconds:
        if interval.before:
            put_byte(out, c'-')
        put_uint(out, interval.seconds)
        put_fraction(out, interval.microseconds)
        put_byte(out, c'S')
    return 0


cdef int interval_text(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil:
    cdef int64_t time = load_i64(data)
    cdef int32_t day = load_i32(data + 8)
    cdef int32_t month = load_i32(data + 12)
    cdef uint64_t microseconds = <uint64_t>0 - <uint64_t>time if time < 0 else <uint64_t>time
    cdef Interval interval
    # Versions before 17 have no infinite intervals; the same bits are an ordinary value there.
    if type.settings.server_version_num >= INFINITE_INTERVALS:
        if time == INT64_HIGHEST and day == INT32_HIGHEST and month == INT32_HIGHEST:
            return put_infinity(out, False)
        if time == INT64_LOWEST and day == INT32_LOWEST and month == INT32_LOWEST:
            return put_infinity(out, True)
    interval.years = month // MONTHS_PER_YEAR
    interval.months = month % MONTHS_PER_YEAR
    interval.days = day
    interval.before = time < 0
    interval.microseconds = <uint32_t>(microseconds % SECOND)
    microseconds //= SECOND
    interval.seconds = <uint32_t>(microseconds % 60)
    interval.minutes = <uint32_t>(microseconds // 60 % 60)
    interval.hours = microseconds // 3600
    if type.settings.interval_style == INTERVAL_STYLE_SQL_STANDARD:
        return put_sql_standard(out, &interval)
    if type.settings.interval_style == INTERVAL_STYLE_ISO_8601:
        return put_iso_8601(out, &interval)
    if type.settings.interval_style == INTERVAL_STYLE_POSTGRES_VERBOSE:
        return put_verbose(out, &interval)
    return put_postgres(out, &interval)
