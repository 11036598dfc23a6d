"""pgoutput's messages, made by hand."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spillway.apply.changes import UNCHANGED, BinaryValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.apply.changes import Value


def word(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "big")


def arrays(messages: Sequence[bytes]) -> tuple[bytes, bytes]:
    """A batch's payload and lengths."""
    return b"".join(messages), b"".join(struct.pack("=I", len(one)) for one in messages)


def begin(xid: int, lsn: int) -> bytes:
    return b"B" + word(lsn, 8) + word(55, 8) + word(xid)


def commit(lsn: int) -> bytes:
    return b"C\0" + word(lsn, 8) + word(lsn + 1, 8) + word(55, 8)


def relation(
    oid: int, schema: str, name: str, identity: str, *columns: tuple[str, int, bool]
) -> bytes:
    described = b"".join(
        bytes([is_key]) + column.encode() + b"\0" + word(kind) + b"\xff\xff\xff\xff"
        for column, kind, is_key in columns
    )
    names = f"{schema}\0{name}\0{identity}".encode()
    return b"R" + word(oid) + names + word(len(columns), 2) + described


def row(values: Sequence[Value]) -> bytes:
    out = word(len(values), 2)
    for value in values:
        if value is None:
            out += b"n"
        elif value is UNCHANGED:
            out += b"u"
        elif isinstance(value, BinaryValue):
            out += b"b" + word(len(value.data)) + value.data
        else:
            assert isinstance(value, bytes)
            out += b"t" + word(len(value)) + value
    return out


def change(
    kind: str,
    oid: int,
    *,
    old: Sequence[Value] | None = None,
    tag: str = "K",
    new: Sequence[Value] | None = None,
    xid: int = 0,
) -> bytes:
    out = kind.encode() + (word(xid) if xid else b"") + word(oid)
    if old is not None:
        out += tag.encode() + row(old)
    if new is not None:
        out += b"N" + row(new)
    return out


def truncate(*oids: int, flags: int = 0) -> bytes:
    return b"T" + word(len(oids)) + bytes([flags]) + b"".join(word(one) for one in oids)
