# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""CRC-32C, the checksum of WAL records and of Spillway's own files.

x86-64 has an instruction for it since SSE 4.2; whether this machine does is asked once, when the
module is loaded, so one build runs everywhere. Other machines take eight table look-ups for eight
bytes (slicing-by-8: Kounavis and Berry, "A Systematic Approach to Building High Performance
Software-Based CRC Generators", 2005). Both give the same sums; a test compares them.

The instruction takes eight bytes but has its result only three cycles later, and begins one each
cycle: three stretches of the data are summed side by side. A sum is carried over the stretch behind
it by what so many zero bytes would make of it, which is linear in its bits and so a table look-up
for each of its bytes.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stddef cimport size_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>

    #define SPILLWAY_CRC32C_POLYNOMIAL 0x82F63B78u  /* bit-reversed 0x1EDC6F41 */

    static uint32_t spillway_crc32c_table[8][256];

    static void spillway_crc32c_fill_table(void)
    {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = (crc >> 1) ^ ((crc & 1) ? SPILLWAY_CRC32C_POLYNOMIAL : 0);
            spillway_crc32c_table[0][byte] = crc;
        }
        for (uint32_t byte = 0; byte < 256; byte++)
            for (int slice = 1; slice < 8; slice++) {
                uint32_t before = spillway_crc32c_table[slice - 1][byte];
                spillway_crc32c_table[slice][byte] =
                    (before >> 8) ^ spillway_crc32c_table[0][before & 0xFF];
            }
    }

    static uint32_t spillway_crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size)
    {
        const uint32_t (*t)[256] = (const uint32_t (*)[256]) spillway_crc32c_table;
        crc = ~crc;
        for (; size >= 8; data += 8, size -= 8) {
            uint32_t low = crc ^ ((uint32_t) data[0] | (uint32_t) data[1] << 8
                                  | (uint32_t) data[2] << 16 | (uint32_t) data[3] << 24);
            crc = t[7][low & 0xFF] ^ t[6][(low >> 8) & 0xFF]
                ^ t[5][(low >> 16) & 0xFF] ^ t[4][low >> 24]
                ^ t[3][data[4]] ^ t[2][data[5]] ^ t[1][data[6]] ^ t[0][data[7]];
        }
        for (; size > 0; data++, size--)
            crc = (crc >> 8) ^ t[0][(crc ^ *data) & 0xFF];
        return ~crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <nmmintrin.h>

    /* Long stretches for chunks and page images, short ones for rows. */
    #define SPILLWAY_CRC32C_LONG 2048
    #define SPILLWAY_CRC32C_SHORT 128

    static uint32_t spillway_crc32c_over_long[4][256];
    static uint32_t spillway_crc32c_over_short[4][256];

    static void spillway_crc32c_fill_over(uint32_t over[4][256], size_t zeros)
    {
        for (int bit = 0; bit < 32; bit++) {
            uint32_t crc = (uint32_t) 1 << bit;
            uint32_t *row = over[bit / 8];
            for (size_t i = 0; i < zeros; i++)
                crc = (crc >> 8) ^ spillway_crc32c_table[0][crc & 0xFF];
            for (int byte = 1 << bit % 8; byte < 256; byte++)
                if (byte >> bit % 8 & 1)
                    row[byte] ^= crc;
        }
    }

    static inline uint32_t spillway_crc32c_carry(const uint32_t over[4][256], uint32_t crc)
    {
        return over[0][crc & 0xFF] ^ over[1][crc >> 8 & 0xFF]
            ^ over[2][crc >> 16 & 0xFF] ^ over[3][crc >> 24];
    }

    __attribute__((target("sse4.2")))
    static inline uint64_t spillway_crc32c_of_three(
        uint64_t sum, const uint8_t *data, size_t stretch, const uint32_t over[4][256])
    {
        uint64_t second = 0, third = 0;
        for (const uint8_t *end = data + stretch; data < end; data += 8) {
            uint64_t words[3];
            memcpy(&words[0], data, 8);
            memcpy(&words[1], data + stretch, 8);
            memcpy(&words[2], data + 2 * stretch, 8);
            sum = _mm_crc32_u64(sum, words[0]);
            second = _mm_crc32_u64(second, words[1]);
            third = _mm_crc32_u64(third, words[2]);
        }
        sum = spillway_crc32c_carry(over, (uint32_t) sum) ^ second;
        return spillway_crc32c_carry(over, (uint32_t) sum) ^ third;
    }

    __attribute__((target("sse4.2")))
    static uint32_t spillway_crc32c_by_instruction(uint32_t crc, const uint8_t *data, size_t size)
    {
        uint64_t sum = ~crc;
        const size_t far = SPILLWAY_CRC32C_LONG, near = SPILLWAY_CRC32C_SHORT;
        for (; size >= 3 * far; data += 3 * far, size -= 3 * far)
            sum = spillway_crc32c_of_three(sum, data, far, spillway_crc32c_over_long);
        for (; size >= 3 * near; data += 3 * near, size -= 3 * near)
            sum = spillway_crc32c_of_three(sum, data, near, spillway_crc32c_over_short);
        for (; size >= 8; data += 8, size -= 8) {
            uint64_t word;
            memcpy(&word, data, 8);
            sum = _mm_crc32_u64(sum, word);
        }
        uint32_t tail = (uint32_t) sum;
        for (; size > 0; data++, size--)
            tail = _mm_crc32_u8(tail, *data);
        return ~tail;
    }

    /* After spillway_crc32c_fill_table. */
    static void spillway_crc32c_fill_tables_of_instruction(void)
    {
        spillway_crc32c_fill_over(spillway_crc32c_over_long, SPILLWAY_CRC32C_LONG);
        spillway_crc32c_fill_over(spillway_crc32c_over_short, SPILLWAY_CRC32C_SHORT);
    }

    static int spillway_crc32c_has_instruction(void)
    {
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #else
    #define spillway_crc32c_by_instruction spillway_crc32c_by_table

    static void spillway_crc32c_fill_tables_of_instruction(void)
    {
    }

    static int spillway_crc32c_has_instruction(void)
    {
        return 0;
    }
    #endif
    """
    void spillway_crc32c_fill_table() noexcept nogil
    uint32_t spillway_crc32c_by_table(uint32_t, const uint8_t *, size_t) noexcept nogil
    uint32_t spillway_crc32c_by_instruction(uint32_t, const uint8_t *, size_t) noexcept nogil
    void spillway_crc32c_fill_tables_of_instruction() noexcept nogil
    bint spillway_crc32c_has_instruction() noexcept nogil

ctypedef uint32_t (*Implementation)(uint32_t, const uint8_t *, size_t) noexcept nogil

cdef Implementation _implementation = spillway_crc32c_by_table

spillway_crc32c_fill_table()
#: "sse4.2" or "table": what :func:`crc32c` runs on here.
IMPLEMENTATION = "table"
if spillway_crc32c_has_instruction():
    spillway_crc32c_fill_tables_of_instruction()
    _implementation = spillway_crc32c_by_instruction
    IMPLEMENTATION = "sse4.2"


cdef uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil:
    return _implementation(crc, data, size)


def _checksum(const uint8_t[::1] data not None, uint32_t crc=0):
    """Return the CRC-32C of *data*; pass the sum of what came before as *crc* to go on from it."""
    cdef size_t size = <size_t> data.shape[0]
    if size == 0:
        return crc
    with nogil:
        crc = _implementation(crc, &data[0], size)
    return crc


def checksum_by_table(const uint8_t[::1] data not None, uint32_t crc=0):
    """Return the same as ``crc32c``, by the table: what machines without the instruction run."""
    cdef size_t size = <size_t> data.shape[0]
    if size == 0:
        return crc
    with nogil:
        crc = spillway_crc32c_by_table(crc, &data[0], size)
    return crc


# Python sees the checksum under the name that kernels cimport; the compiler takes a name once a
# module.
_checksum.__name__ = _checksum.__qualname__ = "crc32c"
globals()["crc32c"] = _checksum
