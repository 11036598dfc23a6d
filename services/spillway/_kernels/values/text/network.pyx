# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of inet, cidr, macaddr and macaddr8.

An address is a family byte (2: IPv4, 3: IPv6), the netmask's bits and the address. IPv6 is printed
as inet_ntop does: the longest run of two or more zero groups becomes ``::``, and an address that
embeds an IPv4 one ends with it in dotted form.

Source: network_out (src/backend/utils/adt/network.c), pg_inet_net_ntop (src/port/inet_net_ntop.c),
mac.c, mac8.c
"""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.values.datum cimport invalid
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte
from spillway._kernels.values.text.number cimport put_uint
from spillway._kernels.values.text.scalar cimport put_hex
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    PGSQL_AF_INET = 2
    PGSQL_AF_INET6 = 3
    GROUPS = 8


cdef int put_ipv4(ByteBuffer* out, const uint8_t* address) except -1 nogil:
    cdef int i
    for i in range(4):
        if i:
            put_byte(out, c'.')
        put_uint(out, address[i])
    return 0


cdef int put_hex_group(ByteBuffer* out, uint32_t value) except -1 nogil:
    cdef int shift = 12
    cdef uint32_t digit
    while shift and not value >> shift:
        shift -= 4
    while shift >= 0:
        digit = (value >> shift) & 15
        put_byte(out, <uint8_t>(48 + digit if digit < 10 else 87 + digit))
        shift -= 4
    return 0


cdef int put_ipv6(ByteBuffer* out, const uint8_t* address) except -1 nogil:
    cdef uint32_t groups[GROUPS]
    cdef int best = -1
    cdef int best_length = 1
    cdef int run = 0
    cdef int i
    for i in range(GROUPS):
        groups[i] = <uint32_t>address[2 * i] << 8 | address[2 * i + 1]
        run = run + 1 if groups[i] == 0 else 0
        if run > best_length:
            best_length = run
            best = i - run + 1
    i = 0
    while i < GROUPS:
        if i == best:
            put_byte(out, c':')
            i += best_length
            if i == GROUPS:
                put_byte(out, c':')
            continue
        if i:
            put_byte(out, c':')
        if i == 6 and best == 0 and (
            best_length == 6
            or (best_length == 7 and groups[7] != 1)
            or (best_length == 5 and groups[5] == 0xFFFF)
        ):
            return put_ipv4(out, address + 12)
        put_hex_group(out, groups[i])
        i += 1
    return 0


cdef int check_address(const uint8_t* data, size_t size) except -1 nogil:
    cdef int bits_max
    if size < 2:
        return invalid(b"a network address ends inside its header")
    if data[0] == PGSQL_AF_INET:
        bits_max = 32
    elif data[0] == PGSQL_AF_INET6:
        bits_max = 128
    else:
        return invalid(b"a network address has a family that is not known")
    if size - 2 < <size_t>(bits_max // 8) or data[1] > bits_max:
        return invalid(b"a network address has a size or netmask that its family does not allow")
    return bits_max


cdef int put_address(const uint8_t* data, size_t size, ByteBuffer* out,
                     bint always_bits) except -1 nogil:
    cdef int bits_max = check_address(data, size)
    if bits_max == 32:
        put_ipv4(out, data + 2)
    else:
        put_ipv6(out, data + 2)
    if always_bits or data[1] != bits_max:
        put_byte(out, c'/')
        put_uint(out, data[1])
    return 0


cdef int inet_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_address(data, size, out, False)


cdef int cidr_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_address(data, size, out, True)


cdef int put_colons(const uint8_t* data, int count, ByteBuffer* out) except -1 nogil:
    cdef int i
    for i in range(count):
        if i:
            put_byte(out, c':')
        put_hex(out, data + i, 1)
    return 0


cdef int macaddr_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    return put_colons(data, 6, out)


cdef int macaddr8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil:
    return put_colons(data, 8, out)
