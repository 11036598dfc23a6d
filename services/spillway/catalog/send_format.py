"""A value in its type's send format → the raw datum that a tuple would hold.

The SQL bootstrap reads attmissingval through COPY's binary format, which has the element in
the type's send format (what libpq calls binary). Encoders want the datum, byte for byte as the
server would have stored it. Which send format a type has is told by the name of its send function,
so that domains and extension types that borrow a built-in one (citext) are read as well.

Types whose send format does not determine the datum, or which are not worth it, give an
:class:`UnreadableMissing`: hstore, tsvector, xml with a declaration, multiranges and the like.

Source: the …_send and …_recv functions under src/backend/utils/adt;
src/include/utils/{array,numeric, jsonb,inet,geo_decls,varbit,rangetypes}.h, numeric.c
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.jsonb_datum import jsonb_body
from spillway.catalog.layout import (
    ENUM_BY_TYPE,
    PG_ENUM,
    PG_PROC,
    PG_RANGE,
    PG_TYPE,
    PROC_BY_OID,
    RANGE_BY_TYPE,
    TYPE_BY_OID,
)
from spillway.catalog.missing_value import MissingValue, UnreadableMissing
from spillway.catalog.numeric_datum import numeric_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.catalog.heaps import CatalogHeaps
    from spillway.catalog.layout import PgType, TrackedCatalog

_I32: Final = struct.Struct(">i")
_ARRAY_HEADER: Final = struct.Struct(">iiI")
_ALIGNMENT: Final = {"c": 1, "s": 2, "i": 4, "d": 8}
_MAX_ALIGNMENT: Final = 8
_VARLENA: Final = -1
#: longest varlena that fits a 1-byte header, header included (VARATT_SHORT_MAX)
_SHORT_MAX: Final = 127

# Types of fixed length: their fields in order, sent big-endian and stored little-endian.
_FIELDS: Final = {
    "boolsend": "B", "charsend": "B", "int2send": "H", "int4send": "I", "int8send": "Q",
    "oidsend": "I", "xidsend": "I", "cidsend": "I", "xid8send": "Q", "pg_lsn_send": "Q",
    "regprocsend": "I", "regproceduresend": "I", "regopersend": "I", "regoperatorsend": "I",
    "regclasssend": "I", "regcollationsend": "I", "regtypesend": "I", "regrolesend": "I",
    "regnamespacesend": "I", "regconfigsend": "I", "regdictionarysend": "I",
    "float4send": "I", "float8send": "Q", "cash_send": "Q", "date_send": "I", "time_send": "Q",
    "timestamp_send": "Q", "timestamptz_send": "Q", "timetz_send": "QI", "interval_send": "QII",
    "uuid_send": "16s", "macaddr_send": "6s", "macaddr8_send": "8s", "tidsend": "IH",
    "point_send": "QQ", "lseg_send": "QQQQ", "box_send": "QQQQ", "line_send": "QQQ",
    "circle_send": "QQQ",
}  # fmt: skip

# Varlenas that are sent as they are stored.
_VERBATIM: Final = frozenset(
    {"textsend", "varcharsend", "bpcharsend", "byteasend", "json_send", "citextsend"}
)

_RANGE_EMPTY: Final = 0x01
_RANGE_LB_INF: Final = 0x08
_RANGE_UB_INF: Final = 0x10


class _UnknownSendFormat(Exception):
    """A type, maybe an inner one, whose datum can't be rebuilt."""


class SentValues:
    """Rebuilds datums by the types of one database."""

    def __init__(self, heaps: CatalogHeaps) -> None:
        """Look up types, enums, functions and ranges in *heaps* when they are asked for, which is
        seldom.

        Text is in the server's encoding throughout, in what is sent and in what is made.
        """
        self._heaps: Final = heaps
        self._facts: Final = heaps.facts
        self._by_name: Final[dict[str, Callable[[PgType, bytes], bytes]]] = {
            "array_send": self._array,
            "enum_send": self._enum,
            "range_send": self._range,
            "jsonb_send": self._jsonb,
        }

    def missing_value(self, array: bytes, type_oid: int) -> MissingValue:
        """Rebuild the element of an attmissingval: *array* is the one-element array as it was
        sent.
        """
        type_ = self._type(type_oid)
        if type_ is None:
            return UnreadableMissing(str(type_oid))
        try:
            dimensions, _, _ = _ARRAY_HEADER.unpack_from(array)
            (size,) = _I32.unpack_from(array, 20)
            value = array[24 : 24 + size]
            if dimensions != 1 or size < 0 or len(value) != size or len(array) != 24 + size:
                return UnreadableMissing(type_.typname)
            return self.datum(type_oid, value)
        except (_UnknownSendFormat, ValueError, struct.error):
            return UnreadableMissing(type_.typname)

    def datum(self, type_oid: int, value: bytes) -> bytes:
        """Return the datum, varlenas with a 4-byte header.

        Raises:
            _UnknownSendFormat: a type has no send format that is known here.
            ValueError: *value* contradicts its type.
        """
        type_ = self._type(type_oid)
        if type_ is None:
            raise _UnknownSendFormat
        while type_.typtype == "d":
            base = self._type(type_.typbasetype)
            if base is None:
                raise _UnknownSendFormat
            type_ = base
        name = self._function_name(type_.typsend)
        fields = _FIELDS.get(name)
        if fields is not None:
            if name == "tidsend":
                return _tid(value)
            return struct.pack("<" + fields, *struct.unpack(">" + fields, value))
        if name in _VERBATIM:
            return varlena(value)
        if name == "namesend":
            return value.ljust(64, b"\0")
        build = _BODIES.get(name)
        if build is not None:
            return varlena(build(value))
        method = self._by_name.get(name)
        if method is None:
            raise _UnknownSendFormat
        return method(type_, value)

    def _rows(self, catalog: TrackedCatalog, index: int, key: int) -> list[Any]:
        storage = self._heaps.locations.current[catalog.oid]
        return [tup.row for tup in storage.with_key(index, key)]

    def _type(self, oid: int) -> PgType | None:
        found = self._rows(PG_TYPE, TYPE_BY_OID, oid)
        return found[0] if found else None

    def _function_name(self, oid: int) -> str:
        found = self._rows(PG_PROC, PROC_BY_OID, oid)
        return str(found[0].proname) if found else ""

    def _range_subtype(self, oid: int) -> int:
        found = self._rows(PG_RANGE, RANGE_BY_TYPE, oid)
        return int(found[0].rngsubtype) if found else 0

    def _enum(self, type_: PgType, value: bytes) -> bytes:
        label = value.decode(self._facts.encoding, self._facts.encoding_errors)
        for row in self._rows(PG_ENUM, ENUM_BY_TYPE, type_.oid):
            if row.enumlabel == label:
                return struct.pack("<I", row.oid)
        raise _UnknownSendFormat

    def _jsonb(self, _type: PgType, value: bytes) -> bytes:
        if value[:1] != b"\x01":
            raise ValueError("jsonb is sent in an unknown version")
        return varlena(jsonb_body(value[1:], self._facts.encoding, self._facts.encoding_errors))

    def _array(self, _type: PgType, value: bytes) -> bytes:
        dimensions, _, element_oid = _ARRAY_HEADER.unpack_from(value)
        if dimensions == 0:
            return varlena(struct.pack("<iiI", 0, 0, element_oid))
        element = self._type(element_oid)
        if element is None:
            raise _UnknownSendFormat
        at = _ARRAY_HEADER.size
        shape = struct.unpack_from(f">{2 * dimensions}i", value, at)
        at += 8 * dimensions
        sizes, lower_bounds = shape[::2], shape[1::2]
        elements: list[bytes | None] = []
        while at < len(value):
            (size,) = _I32.unpack_from(value, at)
            at += 4
            if size == -1:
                elements.append(None)
            else:
                elements.append(self.datum(element_oid, value[at : at + size]))
                at += size
        head = struct.pack(f"<{2 * dimensions}i", *sizes, *lower_bounds)
        offset = 4 + _ARRAY_HEADER.size + len(head)
        bitmap = b""
        if None in elements:
            bits = sum(1 << i for i, item in enumerate(elements) if item is not None)
            bitmap = bits.to_bytes((len(elements) + 7) // 8, "little")
        start = _aligned(offset + len(bitmap), _MAX_ALIGNMENT)
        alignment = _ALIGNMENT[element.typalign]
        body = bytearray()
        for item in elements:
            if item is not None:
                body += item
                body += bytes(-len(body) % alignment)
        return varlena(
            struct.pack("<iiI", dimensions, start if bitmap else 0, element_oid)
            + head
            + bitmap
            + bytes(start - offset - len(bitmap))
            + bytes(body)
        )

    def _range(self, type_: PgType, value: bytes) -> bytes:
        """Header with the range type, the bounds that are there, and last the flags."""
        subtype = self._type(self._range_subtype(type_.oid))
        if subtype is None:
            raise _UnknownSendFormat
        flags, at = value[0], 1
        # The alignment of bounds counts from the varlena's start.
        out = bytearray(struct.pack("<II", 0, type_.oid))
        for absent in (_RANGE_LB_INF, _RANGE_UB_INF):
            if flags & (_RANGE_EMPTY | absent):
                continue
            (size,) = _I32.unpack_from(value, at)
            datum = self.datum(subtype.oid, value[at + 4 : at + 4 + size])
            at += 4 + size
            if subtype.typlen == _VARLENA and len(datum) - 3 <= _SHORT_MAX:
                out.append((len(datum) - 3) << 1 | 1)
                out += datum[4:]
            else:
                out += bytes(-len(out) % _ALIGNMENT[subtype.typalign])
                out += datum
        out.append(flags)
        return varlena(bytes(out[4:]))


def varlena(body: bytes) -> bytes:
    """Put a 4-byte header before *body*."""
    return struct.pack("<I", (len(body) + 4) << 2) + body


def _aligned(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def _tid(value: bytes) -> bytes:
    block, offset = struct.unpack(">IH", value)
    return struct.pack("<HHH", block >> 16, block & 0xFFFF, offset)


def _bit(value: bytes) -> bytes:
    (count,) = _I32.unpack_from(value)
    return struct.pack("<i", count) + value[4:]


def _inet(value: bytes) -> bytes:
    family, bits, _is_cidr, size = value[:4]
    if len(value) != 4 + size:
        raise ValueError("an inet is cut short")
    return bytes((family, bits)) + value[4:]


def _points(value: bytes) -> list[float]:
    return list(struct.unpack(f">{len(value) // 8}d", value))


def _path(value: bytes) -> bytes:
    closed, count = value[0], _I32.unpack_from(value, 1)[0]
    points = _points(value[5:])
    if len(points) != 2 * count:
        raise ValueError("a path is cut short")
    return struct.pack(f"<iii{len(points)}d", count, closed, 0, *points)


def _polygon(value: bytes) -> bytes:
    """Count, bounding box (high corner first), points."""
    count = _I32.unpack_from(value)[0]
    points = _points(value[4:])
    if len(points) != 2 * count or not points:
        raise ValueError("a polygon is cut short")
    xs, ys = points[::2], points[1::2]
    box = (max(xs), max(ys), min(xs), min(ys))
    return struct.pack(f"<i4d{len(points)}d", count, *box, *points)


_BODIES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "numeric_send": numeric_body,
    "bit_send": _bit,
    "varbit_send": _bit,
    "inet_send": _inet,
    "cidr_send": _inet,
    "path_send": _path,
    "poly_send": _polygon,
}
