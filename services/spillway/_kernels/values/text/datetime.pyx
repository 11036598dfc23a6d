# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of dates, times and timestamps, in every DateStyle.

Dates count days, times and timestamps microseconds from 2000-01-01; the calendar is the proleptic
Gregorian one from 4713 BC to AD 5874897, and there is no year 0: the year before AD 1 is 1 BC. A
timestamptz is shown in the session's TimeZone, from a table of transitions that ``pg/timezone.py``
makes for the years 1800 to 2500. As the Gregorian calendar repeats every 400 years, weekdays
included, later times are looked up a whole number of cycles earlier, in 2100 to 2499. Styles other
than ISO show a zone by its abbreviation.

Source: EncodeDateOnly, EncodeDateTime, EncodeTimeOnly (src/backend/utils/adt/datetime.c)
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spillway._kernels.values.datum cimport invalid, load_i32, load_i64
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.values.text.number cimport write_uint
from spillway._kernels.values.type cimport (
    DATE_STYLE_GERMAN,
    DATE_STYLE_ISO,
    DATE_STYLE_POSTGRES,
    PrintedDate,
    TextSettings,
    TypeOutput,
    ZoneTransition,
)

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char* text, size_t size)

# In C, so that they are constants to its compiler, too: dividing by a variable takes ten times as
# long.
cdef extern from *:
    """
    #define SPILLWAY_SECOND INT64_C(1000000)
    #define SPILLWAY_DAY (86400 * SPILLWAY_SECOND)
    """
    const int64_t SECOND "SPILLWAY_SECOND"
    const int64_t DAY "SPILLWAY_DAY"

cdef enum:
    DAYS_OF_CYCLE = 146097
    # from 0000-03-01 to 2000-01-01
    DAYS_TO_2000 = 730425
    # so many cycles earlier there is no date: before it lies the first day that an int32 can give
    CYCLES_BEFORE = 14700
    # MAXTZLEN
    ZONE_NAME_MAX = 10
    # what a timestamp in style ISO has room in, zone and era included
    ISO_BYTES_MAX = 64

cdef const char* WEEKDAYS = b"SunMonTueWedThuFriSat"
cdef const char* MONTHS = b"JanFebMarAprMayJunJulAugSepOctNovDec"

# PostgreSQL's DT_NOBEGIN; written so that no literal is out of C's range.
cdef int64_t INT64_LOWEST = <int64_t>(<uint64_t>1 << 63)
cdef int64_t INT64_HIGHEST = 0x7FFFFFFFFFFFFFFF
cdef int32_t INT32_LOWEST = <int32_t>(<uint32_t>1 << 31)
cdef int32_t INT32_HIGHEST = 0x7FFFFFFF
# 2100-01-01 and 2500-01-01: from the latter on the transition table is read one or more cycles
# earlier.
cdef int64_t CYCLE_START = 36525 * DAY
cdef int64_t CYCLE = DAYS_OF_CYCLE * DAY


cdef struct Date:
    uint32_t year
    uint32_t month
    uint32_t day
    bint before_christ
    # since 2000-01-01
    int64_t days


cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t quotient = a // b
    return quotient - 1 if a % b < 0 else quotient


cdef inline char* pair(char* p, uint32_t value) noexcept nogil:
    """Write a number below 100 with two digits; return where they end."""
    p[0] = 48 + <char>(value // 10)
    p[1] = 48 + <char>(value % 10)
    return p + 2


cdef void set_date(Date* date, int64_t days) noexcept nogil:
    """Set *date* to the calendar's for days since 2000-01-01, an int32's range around it.

    Years begin in March, so that a leap day is a year's last. Each division by the length of a
    century, of a year and of a month is one of a number that was brought to whole multiples (Cassio
    Neri, Lorenz Schneider, "Euclidean affine functions and their application to calendar
    algorithms", 2022).
    """
    cdef uint64_t quarters = 4 * <uint64_t>(days + DAYS_TO_2000
                                            + <int64_t>CYCLES_BEFORE * DAYS_OF_CYCLE) + 3
    cdef uint64_t century = quarters // DAYS_OF_CYCLE
    cdef uint32_t day_of_century = <uint32_t>(quarters - century * DAYS_OF_CYCLE) // 4
    # Its upper half is the year, its lower one how much of the year has passed.
    cdef uint64_t years = <uint64_t>2939745 * (4 * day_of_century + 3)
    cdef uint32_t day_of_year = <uint32_t>years // 2939745 // 4
    cdef uint32_t months = 2141 * day_of_year + 197913
    cdef bint after_december = day_of_year >= 306
    cdef int64_t year = <int64_t>(100 * century
                                  + (years >> 32)) - 400 * CYCLES_BEFORE + after_december
    date.day = (months & 0xFFFF) // 2141 + 1
    date.month = (months >> 16) - (12 if after_december else 0)
    date.before_christ = year <= 0
    date.year = <uint32_t>(1 - year if year <= 0 else year)
    date.days = days


cdef inline int weekday(const Date* date) noexcept nogil:
    """0: Sunday. 2000-01-01 was a Saturday."""
    cdef int day = <int>((date.days + 6) % 7)
    return day + 7 if day < 0 else day


cdef inline char* year_digits(char* p, uint32_t year) noexcept nogil:
    """Write a year with four digits, or as many as it has."""
    if year >= 10000:
        return write_uint(p, year)
    return pair(pair(p, year // 100), year % 100)


cdef inline char* iso_date(char* p, const Date* date) noexcept nogil:
    p = year_digits(p, date.year)
    p[0] = c'-'
    p = pair(p + 1, date.month)
    p[0] = c'-'
    return pair(p + 1, date.day)


cdef int put_pair(ByteBuffer* out, uint32_t value) except -1 nogil:
    reserve(out, 2)
    pair(<char*>out.data + out.size, value)
    out.size += 2
    return 0


cdef int put_year(ByteBuffer* out, uint32_t year) except -1 nogil:
    reserve(out, 20)
    out.size = year_digits(<char*>out.data + out.size, year) - <char*>out.data
    return 0


cdef int put_iso_date(ByteBuffer* out, const Date* date) except -1 nogil:
    reserve(out, ISO_BYTES_MAX)
    out.size = iso_date(<char*>out.data + out.size, date) - <char*>out.data
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


cdef inline char* fraction(char* p, uint32_t microseconds) noexcept nogil:
    """Write ``.ffffff`` without trailing zeros, or nothing."""
    if microseconds == 0:
        return p
    p[0] = c'.'
    pair(p + 1, microseconds // 10000)
    pair(p + 3, microseconds // 100 % 100)
    p = pair(p + 5, microseconds % 100)
    while p[-1] == c'0':
        p -= 1
    return p


cdef inline char* time_of_day(char* p, int64_t time) noexcept nogil:
    """Write ``HH:MM:SS[.ffffff]`` for microseconds since midnight, 0 to 24 hours."""
    cdef uint32_t seconds = <uint32_t>(<uint64_t>time // SECOND)
    cdef uint32_t minutes = seconds // 60
    pair(p, minutes // 60)
    p[2] = c':'
    pair(p + 3, minutes % 60)
    p[5] = c':'
    pair(p + 6, seconds % 60)
    return fraction(p + 8, <uint32_t>(time - <int64_t>seconds * SECOND))


cdef inline char* zone_offset(char* p, int32_t offset) noexcept nogil:
    """Write ``+HH[:MM[:SS]]`` for seconds east of UTC."""
    cdef uint32_t seconds = <uint32_t>0 - <uint32_t>offset if offset < 0 else <uint32_t>offset
    cdef uint32_t hours = seconds // 3600
    p[0] = c'-' if offset < 0 else c'+'
    # No zone has a hundred hours, but a timetz may claim it.
    p = pair(p + 1, hours) if hours < 100 else write_uint(p + 1, hours)
    seconds -= hours * 3600
    if seconds:
        p[0] = c':'
        p = pair(p + 1, seconds // 60)
        if seconds % 60:
            p[0] = c':'
            p = pair(p + 1, seconds % 60)
    return p


cdef int put_fraction(ByteBuffer* out, uint32_t microseconds) except -1 nogil:
    """Append ``.ffffff`` without trailing zeros, or nothing."""
    reserve(out, 7)
    out.size = fraction(<char*>out.data + out.size, microseconds) - <char*>out.data
    return 0


cdef int put_time(ByteBuffer* out, int64_t time) except -1 nogil:
    """Append ``HH:MM:SS[.ffffff]`` for microseconds since midnight, 0 to 24 hours."""
    reserve(out, 15)
    out.size = time_of_day(<char*>out.data + out.size, time) - <char*>out.data
    return 0


cdef int put_zone(ByteBuffer* out, int32_t offset) except -1 nogil:
    """Append ``+HH[:MM[:SS]]`` for seconds east of UTC."""
    reserve(out, 32)
    out.size = zone_offset(<char*>out.data + out.size, offset) - <char*>out.data
    return 0


cdef void forget_date(PrintedDate* printed) noexcept nogil:
    # No timestamp has this day.
    printed.days = INT64_LOWEST


cdef void print_date(PrintedDate* printed, int64_t days) noexcept nogil:
    cdef Date date
    set_date(&date, days)
    printed.days = days
    printed.before_christ = date.before_christ
    printed.size = <uint8_t>(iso_date(printed.text, &date) - printed.text)


cdef int put_iso_timestamp(
    ByteBuffer* out, int64_t value, const ZoneTransition* zone, PrintedDate* printed
) except -1 nogil:
    """Append a finite local timestamp in style ISO, and the zone when it is given."""
    cdef int64_t days = floor_divide(value, DAY)
    cdef char* p
    if printed.days != days:
        print_date(printed, days)
    reserve(out, ISO_BYTES_MAX)
    p = <char*>out.data + out.size
    memcpy(p, printed.text, sizeof(printed.text))
    p += printed.size
    p[0] = c' '
    p = time_of_day(p + 1, value - days * DAY)
    if zone != NULL:
        p = zone_offset(p, zone.offset)
    if printed.before_christ:
        memcpy(p, b" BC", 3)
        p += 3
    out.size = p - <char*>out.data
    return 0


cdef int put_timestamp(
    ByteBuffer* out, int64_t value, const ZoneTransition* zone, const TextSettings* settings
) except -1 nogil:
    """Append a finite local timestamp in the settings' DateStyle, and the zone when it is given."""
    cdef int64_t days
    cdef Date date
    if settings.date_style == DATE_STYLE_ISO:
        return put_iso_timestamp(out, value, zone, settings.printed)
    days = floor_divide(value, DAY)
    set_date(&date, days)
    if settings.date_style == DATE_STYLE_POSTGRES:
        # Sat Jan 01 00:00:00 2000
        put_bytes(out, WEEKDAYS + 3 * weekday(&date), 3)
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


cdef int put_timestamptz(ByteBuffer* out, int64_t value,
                         const TextSettings* settings) except -1 nogil:
    """Append a timestamptz in the settings' TimeZone and, as timestamptz_to_str does, always in
    style ISO.
    """
    cdef const ZoneTransition* zone
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    zone = zone_at(value, settings)
    return put_iso_timestamp(out, value + zone.offset * SECOND, zone, settings.printed)


cdef int date_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
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


cdef int time_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_time(out, checked_time(data))


cdef int timetz_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    cdef int64_t west
    put_time(out, checked_time(data))
    # Stored as seconds west.
    west = load_i32(data + 8)
    return put_zone(out, <int32_t>-west)


cdef int timestamp_text(const TypeOutput* type, const uint8_t* data, size_t size,
                        ByteBuffer* out) except -1 nogil:
    cdef int64_t value = load_i64(data)
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    return put_timestamp(out, value, NULL, type.settings)


cdef int timestamptz_text(const TypeOutput* type, const uint8_t* data, size_t size,
                          ByteBuffer* out) except -1 nogil:
    cdef int64_t value = load_i64(data)
    cdef const ZoneTransition* zone
    if value == INT64_LOWEST or value == INT64_HIGHEST:
        return put_infinity(out, value == INT64_LOWEST)
    zone = zone_at(value, type.settings)
    return put_timestamp(out, value + zone.offset * SECOND, zone, type.settings)
