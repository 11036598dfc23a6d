"""A frame in words, for whoever has to find out why two of them differ."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.certify.wire.connection import Frame

_SHOWN_BYTES: Final = 600
_NAMES: Final = {
    "B": "Begin", "C": "Commit", "O": "Origin", "R": "Relation", "Y": "Type", "I": "Insert",
    "U": "Update", "D": "Delete", "T": "Truncate", "M": "Message", "S": "Stream Start",
    "E": "Stream Stop", "c": "Stream Commit", "A": "Stream Abort", "b": "Begin Prepare",
    "P": "Prepare", "K": "Commit Prepared", "r": "Rollback Prepared", "p": "Stream Prepare",
}  # fmt: skip
#: letter → names of its fields, and how they lie behind it; l is an LSN
_FIELDS: Final = {
    "B": ("final_lsn commit_time xid", "lqI"),
    "C": ("flags commit_lsn end_lsn commit_time", "Bllq"),
    "O": ("origin_lsn", "l"),
    "S": ("xid first", "IB"),
    "c": ("xid flags commit_lsn end_lsn commit_time", "IBllq"),
    "A": ("xid subxid", "II"),
    "b": ("prepare_lsn end_lsn prepare_time xid", "llqI"),
    "P": ("flags prepare_lsn end_lsn prepare_time xid", "BllqI"),
    "p": ("flags prepare_lsn end_lsn prepare_time xid", "BllqI"),
    "K": ("flags commit_lsn end_lsn commit_time xid", "BllqI"),
    "r": ("flags prepare_end_lsn end_lsn prepare_time rollback_time xid", "BllqqI"),
}
#: What has the xid of the (sub)transaction behind its letter while a transaction is streamed.
_CHANGES: Final = "RYIUDTM"


def described(frame: Frame, plugin: str) -> str:
    """Return a frame's LSNs, what it says, and for binary messages its bytes."""
    place = f"{Lsn(frame.start)}"
    if frame.end != frame.start:
        place += f", walEnd {Lsn(frame.end)}"
    data = frame.data
    more = f" … ({len(data)} bytes)" if len(data) > _SHOWN_BYTES else ""
    if plugin != "pgoutput":
        return f"{place} {data[:_SHOWN_BYTES].decode(errors='backslashreplace')}{more}"
    letter = data[:1].decode("latin-1")
    said = " ".join([f"{letter} ({_NAMES.get(letter, 'unknown')})", *_said(letter, data[1:])])
    return f"{place} {said}; bytes {data[:_SHOWN_BYTES].hex(' ')}{more}"


def first_difference(ours: bytes, theirs: bytes) -> int:
    """Return the number of the first byte in which they differ."""
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return at
    return min(len(ours), len(theirs))


def _said(letter: str, body: bytes) -> Iterator[str]:
    names, layout = _FIELDS.get(letter, ("", ""))
    code = struct.Struct(">" + layout.replace("l", "Q"))
    if len(body) >= code.size:
        for name, kind, value in zip(names.split(), layout, code.unpack_from(body), strict=True):
            yield f"{name}={Lsn(value) if kind == 'l' else value}"
        body = body[code.size :]
    if letter in _CHANGES or letter in "ObPKrp":
        text = body[:_SHOWN_BYTES].decode(errors="backslashreplace")
        yield repr("".join(sign if sign.isprintable() else "·" for sign in text))
