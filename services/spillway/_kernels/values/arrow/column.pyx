# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Arrow column builders: from datums to the buffers of an Arrow array, value by value, in C.

Arrow keeps a column as a validity bitmap and a buffer of values; a column of variable length has
int32 offsets into its values. Where PostgreSQL's binary form is Arrow's (integers, floats, text,
bytea) a value is copied; dates and timestamps change their epoch from 2000 to 1970; numerics become
128-bit integers; what has no Arrow form is printed as PostgreSQL prints it.

Some values of a type have no Arrow form although the type has: infinity, NaN, 24:00:00. Those raise
ValueNotRepresentable rather than become something else; in a column that ``marks`` they become
null, and ``refusal`` says why until whoever appended the row has taken it down.

Source: the numeric format is in src/backend/utils/adt/numeric.c (NumericShort, NumericLong);
Arrow's is "Arrow Columnar Format", sections Physical Memory Layout and Decimal.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from spillway._kernels.values.datum cimport DATUM_VALUE, Datum, invalid, load_i32, load_i64
from spillway._kernels.messages.buffer cimport ByteBuffer, put_bytes, release, reserve
from spillway._kernels.values.send.text cimport convert_text
from spillway.errors import ValueNotRepresentable

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    enum { DECIMAL_DONE, DECIMAL_SPECIAL, DECIMAL_MALFORMED, DECIMAL_TOO_LARGE };

    static unsigned __int128 spillway_powers_of_ten[39];

    static void spillway_fill_powers_of_ten(void)
    {
        spillway_powers_of_ten[0] = 1;
        for (int i = 1; i < 39; i++)
            spillway_powers_of_ten[i] = spillway_powers_of_ten[i - 1] * 10;
    }

    /* Write numeric data[0:size] times 10^scale to out, a 128-bit integer below 10^precision;
    precision <= 38. */ static int spillway_numeric_to_decimal(
        const uint8_t *data, size_t size, int precision, int scale, uint8_t *out)
    {
        const unsigned __int128 *powers = spillway_powers_of_ten;
        /* From here on another four digits would be too many. */
        const unsigned __int128 full = powers[precision > 4 ? precision - 4 : 0];
        unsigned __int128 sum = 0;
        uint16_t header, word;
        int16_t weight;
        int negative, exponent;
        size_t at = 2;

        if (size < 2 || size % 2 != 0)
            return DECIMAL_MALFORMED;
        memcpy(&header, data, 2);
        if ((header & 0xC000) == 0xC000)
            return DECIMAL_SPECIAL;
        if (header & 0x8000) {
            negative = (header & 0x2000) != 0;
            weight = (int16_t) ((header & 0x40) ? (header & 0x3F) - 0x40 : (header & 0x3F));
        } else {
            if (size < 4)
                return DECIMAL_MALFORMED;
            negative = (header & 0x4000) != 0;
            memcpy(&weight, data + 2, 2);
            at = 4;
        }
        /* Digit i of base 10000 stands for itself times 10^exponent,
           counted from the result's last place. */
        exponent = 4 * (int) weight + scale;
        for (; at < size; at += 2, exponent -= 4) {
            memcpy(&word, data + at, 2);
            if (word > 9999)
                return DECIMAL_MALFORMED;
            if (exponent >= 0) {
                if (sum >= full)
                    return DECIMAL_TOO_LARGE;
                sum = sum * 10000 + word;
            } else if (exponent > -4) {
                /* The scale ends inside this digit. */
                unsigned below = (unsigned) powers[-exponent];
                int above = 4 + exponent;
                if (word % below != 0 || sum >= powers[precision > above ? precision - above : 0])
                    return DECIMAL_TOO_LARGE;
                sum = sum * (unsigned) powers[above] + word / below;
            } else if (word != 0)
                return DECIMAL_TOO_LARGE;
        }
        /* Trailing zero digits are not stored; exponent is 4 below that of the last one that is. */
        if (sum != 0 && exponent + 4 > 0) {
            exponent += 4;
            if (exponent >= precision || sum >= powers[precision - exponent])
                return DECIMAL_TOO_LARGE;
            sum *= powers[exponent];
        }
        if (sum >= powers[precision])
            return DECIMAL_TOO_LARGE;
        if (negative)
            sum = -sum;
        memcpy(out, &sum, 16);
        return DECIMAL_DONE;
    }
    """
    enum:
        DECIMAL_DONE
        DECIMAL_SPECIAL
        DECIMAL_MALFORMED
    void spillway_fill_powers_of_ten() noexcept nogil
    int spillway_numeric_to_decimal(
        const uint8_t *data, size_t size, int precision, int scale, uint8_t *out) noexcept nogil

spillway_fill_powers_of_ten()

cdef enum:
    # Days from 1970-01-01 to 2000-01-01, from which PostgreSQL counts.
    EPOCH_DAYS = 10957
    OFFSETS_MAX = 0x7FFFFFFF
    # What a buffer keeps while empty: about what a batch of the default size needs.
    KEEP_BYTES = 2 << 20

cdef int64_t EPOCH_US = <int64_t>EPOCH_DAYS * 86400 * 1000000
cdef int64_t DAY_US = <int64_t>86400 * 1000000
cdef int64_t INT64_LOWEST = <int64_t>(<uint64_t>1 << 63)
cdef int64_t INT64_HIGHEST = 0x7FFFFFFFFFFFFFFF
cdef int32_t INT32_LOWEST = <int32_t>(<unsigned int>1 << 31)
cdef int32_t INT32_HIGHEST = 0x7FFFFFFF

cdef str TEMPORAL_HINT = (
    "Set the slot's option temporal_as=text: date and time columns are then text."
)
cdef str NUMERIC_HINT = "Set the slot's option numeric_as=text: numeric columns are then text."


cdef Py_ssize_t refuse(Column* column, size_t row, Refusal why, size_t size) except -1 nogil:
    """Append what stands for a value without a form: nothing, by an error, or a null and the
    reason. *size* is how long ``values`` was before it.
    """
    if not column.marks:
        with gil:
            what, hint = refusal_of(column, why)
            # What was written of it stays in the row that is given up.
            raise ValueNotRepresentable(what, hint=hint)
    column.values.size = size
    column.refusal = why
    return append_null(column, row)


cdef tuple refusal_of(const Column* column, Refusal why):
    """Return why a value has no form, and what mends that."""
    if why == REFUSED_TOO_LONG:
        return (
            "a batch's values of the column exceed 2 GiB", "Lower the slot's option batch_bytes."
        )
    if why == REFUSED_NOT_UTF8:
        return (
            "a value is not UTF-8, the encoding of Arrow's text",
            "Set the slot's option not_utf8=escape: such bytes are then \\xff.",
        )
    if why == REFUSED_INFINITE_TIMESTAMP:
        return "infinity is not a timestamp in Arrow", TEMPORAL_HINT
    if why == REFUSED_LATE_TIMESTAMP:
        return "the timestamp is later than Arrow's last", TEMPORAL_HINT
    if why == REFUSED_INFINITE_DATE:
        return "infinity is not a date in Arrow", TEMPORAL_HINT
    if why == REFUSED_END_OF_DAY:
        return "24:00:00 is not a time of day in Arrow", TEMPORAL_HINT
    if why == REFUSED_SPECIAL_NUMERIC:
        return "NaN and infinity are not decimals in Arrow", NUMERIC_HINT
    return (
        f"the value does not fit decimal128({column.precision}, {column.scale})", NUMERIC_HINT
    )


cdef bint is_utf8(const uint8_t* data, size_t size) noexcept nogil:
    """Say whether the bytes are UTF-8: shortest forms only, no surrogates, nothing past
    U+10FFFF.
    """
    cdef size_t i = 0
    cdef uint64_t word
    cdef uint8_t lead, second
    cdef size_t more, k
    while i < size:
        if size - i >= 8:
            memcpy(&word, data + i, 8)
            if word & <uint64_t>0x8080808080808080 == 0:
                i += 8
                continue
        lead = data[i]
        if lead < 0x80:
            i += 1
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
        if size - i <= more:
            return False
        second = data[i + 1]
        if (
            (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F)
            or (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F)
        ):
            return False
        for k in range(1, more + 1):
            if data[i + k] & 0xC0 != 0x80:
                return False
        i += more + 1
    return True


cdef void empty(ByteBuffer* buffer) noexcept nogil:
    buffer.size = 0
    if buffer.capacity > KEEP_BYTES:
        release(buffer)


cdef int clear_column(Column* column) except -1 nogil:
    cdef int32_t first = 0
    empty(&column.validity)
    empty(&column.offsets)
    empty(&column.values)
    column.null_count = 0
    if column.kind in (KIND_BINARY, KIND_TEXT, KIND_PRINTED):
        put_bytes(&column.offsets, &first, 4)
    return 0


cdef void free_column(Column* column) noexcept nogil:
    release(&column.validity)
    release(&column.offsets)
    release(&column.values)


cdef inline uint8_t* extend(ByteBuffer* buffer, size_t size) except NULL nogil:
    """Make *size* more bytes part of the buffer and return where they begin."""
    cdef uint8_t* place
    reserve(buffer, size)
    place = buffer.data + buffer.size
    buffer.size += size
    return place


cdef inline void copy_fixed(uint8_t* to, const uint8_t* source, int width) noexcept nogil:
    """Copy 2, 4 or 8 bytes: a move each, where a length that is not known is a call."""
    if width == 4:
        memcpy(to, source, 4)
    elif width == 8:
        memcpy(to, source, 8)
    else:
        memcpy(to, source, 2)


cdef inline int put_offset(Column* column) except -1 nogil:
    """End a value of variable length."""
    cdef int32_t end = <int32_t>column.values.size
    return put_bytes(&column.offsets, &end, 4)


cdef Py_ssize_t append_null(Column* column, size_t row) except -1 nogil:
    put_bit(&column.validity, row, False)
    column.null_count += 1
    if column.width > 0:
        memset(extend(&column.values, column.width), 0, column.width)
        return column.width
    if column.kind == KIND_BOOL:
        put_bit(&column.values, row, False)
        return 0
    put_offset(column)
    return 4


cdef Py_ssize_t append_datum(Column* column, size_t row, const Datum* value) except -1 nogil:
    """Append a row; an unchanged TOAST datum counts as null."""
    cdef size_t before = column.values.size
    cdef int refusal = REFUSED_NOTHING
    if value.state != DATUM_VALUE:
        return append_null(column, row)
    if column.kind == KIND_FIXED:
        if value.size != <size_t>column.width:
            return invalid(b"a value has another length than its type")
        copy_fixed(extend(&column.values, column.width), value.data, column.width)
    elif (column.kind == KIND_BINARY or column.kind == KIND_TEXT
            or column.kind == KIND_PRINTED):
        if column.kind == KIND_PRINTED:
            column.output.write(column.output, value.data, value.size, &column.values)
        else:
            put_bytes(&column.values, value.data, value.size)
        if column.kind != KIND_BINARY:
            refusal = make_utf8(column, before)
        if refusal == REFUSED_NOTHING and column.values.size > OFFSETS_MAX:
            refusal = REFUSED_TOO_LONG
        if refusal != REFUSED_NOTHING:
            return refuse(column, row, <Refusal>refusal, before)
        put_offset(column)
        put_bit(&column.validity, row, True)
        return <Py_ssize_t>(column.values.size - before) + 4
    elif column.kind == KIND_TIMESTAMP:
        refusal = put_timestamp(&column.values, value)
    elif column.kind == KIND_DECIMAL:
        refusal = put_decimal(column, value)
    elif column.kind == KIND_BOOL:
        if value.size != 1:
            return invalid(b"a boolean is not one byte")
        put_bit(&column.values, row, value.data[0] != 0)
    elif column.kind == KIND_DATE:
        refusal = put_date(&column.values, value)
    else:
        refusal = put_time(&column.values, value)
    if refusal != REFUSED_NOTHING:
        return refuse(column, row, <Refusal>refusal, before)
    put_bit(&column.validity, row, True)
    return column.width


# Those that follow return a Refusal.

cdef inline int make_utf8(Column* column, size_t start) except -1 nogil:
    """Convert the text from *start* on, which is in the database's encoding, to UTF-8."""
    if column.settings != NULL:
        convert_text(&column.values, start, column.settings)
    if not is_utf8(column.values.data + start, column.values.size - start):
        if not column.escape:
            return REFUSED_NOT_UTF8
        with gil:
            escape_text(column, start)
    return REFUSED_NOTHING


cdef int escape_text(Column* column, size_t start) except -1:
    cdef bytes text = PyBytes_FromStringAndSize(<char*>column.values.data + start,
                                                column.values.size - start)
    text = text.decode("utf-8", "backslashreplace").encode()
    column.values.size = start
    return put_bytes(&column.values, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef int put_timestamp(ByteBuffer* values, const Datum* value) except -1 nogil:
    cdef int64_t microseconds
    if value.size != 8:
        return invalid(b"a timestamp is not eight bytes")
    microseconds = load_i64(value.data)
    if microseconds == INT64_LOWEST or microseconds == INT64_HIGHEST:
        return REFUSED_INFINITE_TIMESTAMP
    if microseconds > INT64_HIGHEST - EPOCH_US:
        return REFUSED_LATE_TIMESTAMP
    microseconds += EPOCH_US
    return put_bytes(values, &microseconds, 8)


cdef int put_date(ByteBuffer* values, const Datum* value) except -1 nogil:
    cdef int32_t days
    if value.size != 4:
        return invalid(b"a date is not four bytes")
    days = load_i32(value.data)
    if days == INT32_LOWEST or days == INT32_HIGHEST:
        return REFUSED_INFINITE_DATE
    if days > INT32_HIGHEST - EPOCH_DAYS:
        return invalid(b"a date is later than PostgreSQL's last")
    days += EPOCH_DAYS
    return put_bytes(values, &days, 4)


cdef int put_time(ByteBuffer* values, const Datum* value) except -1 nogil:
    cdef int64_t microseconds
    if value.size != 8:
        return invalid(b"a time is not eight bytes")
    microseconds = load_i64(value.data)
    if microseconds == DAY_US:
        return REFUSED_END_OF_DAY
    if microseconds < 0 or microseconds > DAY_US:
        return invalid(b"a time of day is outside of the day")
    return put_bytes(values, &microseconds, 8)


cdef int put_decimal(Column* column, const Datum* value) except -1 nogil:
    cdef int outcome = spillway_numeric_to_decimal(
        value.data, value.size, column.precision, column.scale, extend(&column.values, 16))
    if outcome == DECIMAL_DONE:
        return REFUSED_NOTHING
    if outcome == DECIMAL_MALFORMED:
        return invalid(b"a numeric value is malformed")
    return REFUSED_SPECIAL_NUMERIC if outcome == DECIMAL_SPECIAL else REFUSED_WIDE_NUMERIC
