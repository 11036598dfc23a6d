# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of dates, times, timestamps and intervals: DateStyle ISO, IntervalStyle postgres.

Dates count days, times and timestamps microseconds from 2000-01-01; the calendar is the proleptic
Gregorian one from 4713 BC to AD 5874897, and there is no year 0: the year before AD 1 is 1 BC. A
timestamptz is shown in the session's TimeZone, from a table of transitions that ``pg/timezone.py`` makes for
the years 1800 to 2500. As the Gregorian calendar repeats every 400 years, weekdays included, later times
are looked up a whole number of cycles earlier, in 2100 to 2499.

Source: EncodeDateOnly, EncodeDateTime, EncodeTimeOnly, EncodeInterval (src/backend/utils/adt/datetime.c)
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.datum cimport invalid, load_i32, load_i64
from spillway._kernels.message_buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.text_number cimport put_int, put_padded
from spillway._kernels.text_type cimport TextSettings, TypeOutput

cdef enum:
    DAYS_TO_1970 = 10957
    DAYS_OF_CYCLE = 146097
    MONTHS_PER_YEAR = 12
    DATE_TEXT_MAX = 32

cdef int64_t SECOND = 1000000
cdef int64_t DAY = 86400 * SECOND
# PostgreSQL's DT_NOBEGIN; written so that no literal is out of C's range.
cdef int64_t INT64_LOWEST = <int64_t>(<uint64_t>1 << 63)
cdef int64_t INT64_HIGHEST = 0x7FFFFFFFFFFFFFFF
cdef int32_t INT32_LOWEST = <int32_t>(<uint32_t>1 << 31)
cdef int32_t INT32_HIGHEST = 0x7FFFFFFF
# 2100-01-01 and 2500-01-01: from the latter on the transition table is read one or more cycles earlier.
cdef int64_t CYCLE_START = 36525 * DAY
cdef int64_t CYCLE = DAYS_OF_CYCLE * DAY


cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t quotient = a // b
    return quotient - 1 if a % b < 0 else quotient


cdef inline void pair(char* p, int value) noexcept nogil:
    p[0] = 48 + <char>(value // 10)
    p[1] = 48 + <char>(value % 10)


cdef int put_date(ByteBuffer* out, int64_t days, bint* before_christ) except -1 nogil:
    """Append ``YYYY-MM-DD`` for days since 2000-01-01; the caller appends `` BC`` where it belongs."""
    # Days since 0000-03-01: years that begin in March have their leap day at the end.
    cdef int64_t day = days + DAYS_TO_1970 + 719468
    cdef int64_t era = floor_divide(day, DAYS_OF_CYCLE)
    cdef uint32_t day_of_era = <uint32_t>(day - era * DAYS_OF_CYCLE)
    cdef uint32_t year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    cdef uint32_t day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef uint32_t shifted_month = (5 * day_of_year + 2) // 153
    cdef int day_of_month = <int>(day_of_year - (153 * shifted_month + 2) // 5 + 1)
    cdef int month = <int>(shifted_month + 3 if shifted_month < 10 else shifted_month - 9)
    cdef int64_t year = <int64_t>year_of_era + era * 400 + (month <= 2)
    cdef char* p
    before_christ[0] = year <= 0
    if year <= 0:
        year = 1 - year
    reserve(out, DATE_TEXT_MAX)
    if year < 10000:
        p = <char*>out.data + out.size
        pair(p, <int>(year // 100))
        pair(p + 2, <int>(year % 100))
        out.size += 4
    else:
        put_int(out, year)
        reserve(out, 8)
    p = <char*>out.data + out.size
    p[0] = c'-'
    pair(p + 1, month)
    p[3] = c'-'
    pair(p + 4, day_of_month)
    out.size += 6
    return 0


cdef int put_fraction(ByteBuffer* out, uint32_t microseconds) except -1 nogil:
    """Append ``.ffffff`` without trailing zeros, or nothing."""
    cdef int width = 6
    if microseconds == 0:
        return 0
    while microseconds % 10 == 0:
        microseconds //= 10
        width -= 1
    put_byte(out, c'.')
    return put_padded(out, microseconds, width)


cdef int put_time(ByteBuffer* out, int64_t time) except -1 nogil:
    """Append ``HH:MM:SS[.ffffff]`` for microseconds since midnight, 0 to 24 hours."""
    cdef int64_t seconds = time // SECOND
    cdef char* p
    reserve(out, 8)
    p = <char*>out.data + out.size
    pair(p, <int>(seconds // 3600))
    p[2] = c':'
    pair(p + 3, <int>(seconds // 60 % 60))
    p[5] = c':'
    pair(p + 6, <int>(seconds % 60))
    out.size += 8
    return put_fraction(out, <uint32_t>(time % SECOND))


cdef int put_zone(ByteBuffer* out, int32_t offset) except -1 nogil:
    """Append ``+HH[:MM[:SS]]`` for seconds east of UTC."""
    cdef uint32_t seconds = <uint32_t>(-offset if offset < 0 else offset)
    put_byte(out, c'-' if offset < 0 else c'+')
    put_padded(out, seconds // 3600, 2)
    if seconds % 3600:
        put_byte(out, c':')
        put_padded(out, seconds // 60 % 60, 2)
        if seconds % 60:
            put_byte(out, c':')
            put_padded(out, seconds % 60, 2)
    return 0


cdef int put_timestamp(ByteBuffer* out, int64_t value, const int32_t* zone) except -1 nogil:
    """Append a finite local timestamp, and the zone when it is given."""
    cdef int64_t days = floor_divide(value, DAY)
    cdef bint before_christ
    put_date(out, days, &before_christ)
    put_byte(out, c' ')
    put_time(out, value - days * DAY)
    if zone != NULL:
        put_zone(out, zone[0])
    if before_christ:
        put_bytes(out, b" BC", 3)
    return 0


cdef int32_t zone_offset(int64_t value, const TextSettings* settings) noexcept nogil:
    """Seconds east of UTC at *value*."""
    cdef size_t low = 0
    cdef size_t high = settings.transition_count
    cdef size_t middle
    if high == 1:
        return settings.transitions[0].offset
    if value >= CYCLE_START + CYCLE:
        value = CYCLE_START + (value - CYCLE_START) % CYCLE
    # The last transition that is not after value; the first one is before everything.
    while high - low > 1:
        middle = (low + high) // 2
        if settings.transitions[middle].start <= value:
            low = middle
        else:
            high = middle
    return settings.transitions[low].offset


cdef int put_infinity(ByteBuffer* out, bint negative) except -1 nogil:
    if negative:
        return put_bytes(out, b"-infinity", 9)
    return put_bytes(out, b"infinity", 8)


cdef int put_timestamptz(ByteBuffer* out, int64_t value, const TextSettings* settings) except -1 nogil:
    """Append a timestamptz as under DateStyle ISO and the settings' TimeZone."""
    cdef int32_t offset
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    offset = zone_offset(value, settings)
    return put_timestamp(out, value + offset * SECOND, &offset)


cdef int date_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef int32_t days = load_i32(data)
    cdef bint before_christ
    if days == INT32_LOWEST or days == INT32_HIGHEST:
        return put_infinity(out, days == INT32_LOWEST)
    put_date(out, days, &before_christ)
    if before_christ:
        put_bytes(out, b" BC", 3)
    return 0


cdef int64_t checked_time(const uint8_t* data) except -1 nogil:
    """Microseconds since midnight; a value beyond a day would not fit the digits that it has."""
    cdef int64_t time = load_i64(data)
    if not 0 <= time <= DAY:
        invalid(b"a time is not between 00:00 and 24:00")
    return time


cdef int time_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    return put_time(out, checked_time(data))


cdef int timetz_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef int64_t west
    put_time(out, checked_time(data))
    # Stored as seconds west.
    west = load_i32(data + 8)
    return put_zone(out, <int32_t>-west)


cdef int timestamp_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef int64_t value = load_i64(data)
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    return put_timestamp(out, value, NULL)


cdef int timestamptz_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    return put_timestamptz(out, load_i64(data), type.settings)


cdef int put_unit(
    ByteBuffer* out, int64_t value, const char* unit, size_t unit_size, bint* is_zero, bint* is_before
) except -1 nogil:
    """Append ``value unit`` unless it is 0; a positive value after a negative one has a plus sign."""
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


cdef int interval_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef int64_t time = load_i64(data)
    cdef int32_t day = load_i32(data + 8)
    cdef int32_t month = load_i32(data + 12)
    cdef bint is_zero = True
    cdef bint is_before = False
    cdef uint64_t microseconds, seconds
    # Versions before 17 have no infinite intervals; the same bits are an ordinary value there.
    if type.settings.server_version_num >= 170000:
        if time == INT64_HIGHEST and day == INT32_HIGHEST and month == INT32_HIGHEST:
            return put_infinity(out, False)
        if time == INT64_LOWEST and day == INT32_LOWEST and month == INT32_LOWEST:
            return put_infinity(out, True)
    put_unit(out, month // MONTHS_PER_YEAR, b" year", 5, &is_zero, &is_before)
    put_unit(out, month % MONTHS_PER_YEAR, b" mon", 4, &is_zero, &is_before)
    put_unit(out, day, b" day", 4, &is_zero, &is_before)
    if time == 0 and not is_zero:
        return 0
    if not is_zero:
        put_byte(out, c' ')
    if time < 0:
        put_byte(out, c'-')
    elif is_before:
        put_byte(out, c'+')
    microseconds = <uint64_t>0 - <uint64_t>time if time < 0 else <uint64_t>time
    seconds = microseconds // <uint64_t>SECOND
    put_padded(out, seconds // 3600, 2)
    put_byte(out, c':')
    put_padded(out, seconds // 60 % 60, 2)
    put_byte(out, c':')
    put_padded(out, seconds % 60, 2)
    return put_fraction(out, <uint32_t>(microseconds % <uint64_t>SECOND))
