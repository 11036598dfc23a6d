# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of dates, times and timestamps, in every DateStyle.

Dates count days, times and timestamps microseconds from 2000-01-01; the calendar is the proleptic
Gregorian one from 4713 BC to AD 5874897, and there is no year 0: the year before AD 1 is 1 BC. A
timestamptz is shown in the session's TimeZone, from a table of transitions that ``pg/timezone.py`` makes for
the years 1800 to 2500. As the Gregorian calendar repeats every 400 years, weekdays included, later times
are looked up a whole number of cycles earlier, in 2100 to 2499. Styles other than ISO show a zone by its abbreviation.

Source: EncodeDateOnly, EncodeDateTime, EncodeTimeOnly (src/backend/utils/adt/datetime.c)
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.datum cimport invalid, load_i32, load_i64
from spillway._kernels.message_buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.text_number cimport put_padded, put_uint
from spillway._kernels.text_type cimport (
    DATE_STYLE_GERMAN,
    DATE_STYLE_ISO,
    DATE_STYLE_POSTGRES,
    TextSettings,
    TypeOutput,
    ZoneTransition,
)

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char* text, size_t size)

cdef enum:
    DAYS_TO_1970 = 10957
    DAYS_OF_CYCLE = 146097
    # MAXTZLEN
    ZONE_NAME_MAX = 10

cdef const char* WEEKDAYS = b"SunMonTueWedThuFriSat"
cdef const char* MONTHS = b"JanFebMarAprMayJunJulAugSepOctNovDec"

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


cdef struct Date:
    uint32_t year
    int month
    int day
    # 0: Sunday
    int weekday
    bint before_christ


cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t quotient = a // b
    return quotient - 1 if a % b < 0 else quotient


cdef inline void pair(char* p, int value) noexcept nogil:
    p[0] = 48 + <char>(value // 10)
    p[1] = 48 + <char>(value % 10)


cdef void set_date(Date* date, int64_t days) noexcept nogil:
    """Set *date* to the calendar's for days since 2000-01-01."""
    # Days since 0000-03-01: years that begin in March have their leap day at the end.
    cdef int64_t day = days + DAYS_TO_1970 + 719468
    cdef int64_t era = floor_divide(day, DAYS_OF_CYCLE)
    cdef uint32_t day_of_era = <uint32_t>(day - era * DAYS_OF_CYCLE)
    cdef uint32_t year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    cdef uint32_t day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef uint32_t shifted_month = (5 * day_of_year + 2) // 153
    cdef int64_t year
    date.day = <int>(day_of_year - (153 * shifted_month + 2) // 5 + 1)
    date.month = <int>(shifted_month + 3 if shifted_month < 10 else shifted_month - 9)
    year = <int64_t>year_of_era + era * 400 + (date.month <= 2)
    date.before_christ = year <= 0
    date.year = <uint32_t>(1 - year if year <= 0 else year)
    # 2000-01-01 was a Saturday.
    date.weekday = <int>((days + 6) % 7)
    if date.weekday < 0:
        date.weekday += 7


cdef int put_pair(ByteBuffer* out, int value) except -1 nogil:
    reserve(out, 2)
    pair(<char*>out.data + out.size, value)
    out.size += 2
    return 0


cdef int put_year(ByteBuffer* out, uint32_t year) except -1 nogil:
    """Append a year of four digits, or as many as it has."""
    if year >= 10000:
        return put_uint(out, year)
    put_pair(out, <int>(year // 100))
    return put_pair(out, <int>(year % 100))


cdef int put_iso_date(ByteBuffer* out, const Date* date) except -1 nogil:
    cdef char* p
    put_year(out, date.year)
    reserve(out, 6)
    p = <char*>out.data + out.size
    p[0] = c'-'
    pair(p + 1, date.month)
    p[3] = c'-'
    pair(p + 4, date.day)
    out.size += 6
    return 0


cdef int put_date(ByteBuffer* out, const Date* date, const TextSettings* settings) except -1 nogil:
    """Append a date in the settings' DateStyle; the caller appends `` BC`` where it belongs."""
    cdef char separator = c'/'
    if settings.date_style == DATE_STYLE_ISO:
        return put_iso_date(out, date)
    if settings.date_style == DATE_STYLE_GERMAN:
        separator = c'.'
    elif settings.date_style == DATE_STYLE_POSTGRES:
        separator = c'-'
    # The order that German dates have does not depend on the setting.
    if settings.day_first or settings.date_style == DATE_STYLE_GERMAN:
        put_pair(out, date.day)
        put_byte(out, separator)
        put_pair(out, date.month)
    else:
        put_pair(out, date.month)
        put_byte(out, separator)
        put_pair(out, date.day)
    put_byte(out, separator)
    return put_year(out, date.year)


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


cdef int put_iso_timestamp(ByteBuffer* out, int64_t value, const ZoneTransition* zone) except -1 nogil:
    """Append a finite local timestamp in style ISO, and the zone when it is given."""
    cdef int64_t days = floor_divide(value, DAY)
    cdef Date date
    set_date(&date, days)
    put_iso_date(out, &date)
    put_byte(out, c' ')
    put_time(out, value - days * DAY)
    if zone != NULL:
        put_zone(out, zone.offset)
    if date.before_christ:
        put_bytes(out, b" BC", 3)
    return 0


cdef int put_timestamp(
    ByteBuffer* out, int64_t value, const ZoneTransition* zone, const TextSettings* settings
) except -1 nogil:
    """Append a finite local timestamp in the settings' DateStyle, and the zone when it is given."""
    cdef int64_t days
    cdef Date date
    if settings.date_style == DATE_STYLE_ISO:
        return put_iso_timestamp(out, value, zone)
    days = floor_divide(value, DAY)
    set_date(&date, days)
    if settings.date_style == DATE_STYLE_POSTGRES:
        # Sat Jan 01 00:00:00 2000
        put_bytes(out, WEEKDAYS + 3 * date.weekday, 3)
        put_byte(out, c' ')
        if settings.day_first:
            put_pair(out, date.day)
            put_byte(out, c' ')
        put_bytes(out, MONTHS + 3 * (date.month - 1), 3)
        put_byte(out, c' ')
        if not settings.day_first:
            put_pair(out, date.day)
            put_byte(out, c' ')
        put_time(out, value - days * DAY)
        put_byte(out, c' ')
        put_year(out, date.year)
    else:
        put_date(out, &date, settings)
        put_byte(out, c' ')
        put_time(out, value - days * DAY)
    if zone != NULL:
        put_byte(out, c' ')
        put_bytes(out, zone.name, strnlen(zone.name, ZONE_NAME_MAX))
    if date.before_christ:
        put_bytes(out, b" BC", 3)
    return 0


cdef const ZoneTransition* zone_at(int64_t value, const TextSettings* settings) noexcept nogil:
    """What holds at *value* in the settings' TimeZone."""
    cdef size_t low = 0
    cdef size_t high = settings.transition_count
    cdef size_t middle
    if value >= CYCLE_START + CYCLE:
        value = CYCLE_START + (value - CYCLE_START) % CYCLE
    # The last transition that is not after value; the first one is before everything.
    while high - low > 1:
        middle = (low + high) // 2
        if settings.transitions[middle].start <= value:
            low = middle
        else:
            high = middle
    return &settings.transitions[low]


cdef int put_infinity(ByteBuffer* out, bint negative) except -1 nogil:
    if negative:
        return put_bytes(out, b"-infinity", 9)
    return put_bytes(out, b"infinity", 8)


cdef int put_timestamptz(ByteBuffer* out, int64_t value, const TextSettings* settings) except -1 nogil:
    """Append a timestamptz in the settings' TimeZone and, as timestamptz_to_str does, always in style ISO."""
    cdef const ZoneTransition* zone
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    zone = zone_at(value, settings)
    return put_iso_timestamp(out, value + zone.offset * SECOND, zone)


cdef int date_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef int32_t days = load_i32(data)
    cdef Date date
    if days == INT32_LOWEST or days == INT32_HIGHEST:
        return put_infinity(out, days == INT32_LOWEST)
    set_date(&date, days)
    put_date(out, &date, type.settings)
    if date.before_christ:
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
    return put_timestamp(out, value, NULL, type.settings)


cdef int timestamptz_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef int64_t value = load_i64(data)
    cdef const ZoneTransition* zone
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    zone = zone_at(value, type.settings)
    return put_timestamp(out, value + zone.offset * SECOND, zone, type.settings)
