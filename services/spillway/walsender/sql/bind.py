"""Messages of the extended protocol that a statement on slots needs changed: Parse, Bind and
ParameterDescription.

The statement has a parameter more than the client knows of, its last one. What it is of tells its
ParameterDescription from others: ``refcursor``, read as text, which is a parameter's type in calls
of functions on cursors and nowhere else.

Source: PostgreSQL's documentation, "Message Formats"; exec_bind_message
(src/backend/tcop/postgres.c)
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from spillway.pg.lsn import Lsn
from spillway.walsender.failures import protocol_violation
from spillway.walsender.messages import message

_REFCURSOR: Final = 1790
_BINARY: Final = 1


class Parse(NamedTuple):
    """A Parse message."""

    name: bytes
    query: bytes
    #: int16 count, then OIDs
    types: bytes

    @classmethod
    def read(cls, body: bytes) -> Parse:
        """Read what a Parse holds.

        Raises:
            WireError: it is none.
        """
        parts = body.split(b"\0", 2)
        if len(parts) != 3 or len(parts[2]) < 2:
            raise protocol_violation("invalid message format")
        return cls(*parts)

    @property
    def type_count(self) -> int:
        """How many parameters have a type."""
        return int.from_bytes(self.types[:2], "big")

    def with_query(self, query: bytes) -> bytes:
        """Make the message with another text."""
        return message(b"P", b"\0".join((self.name, query, self.types)))


def json_parameter(number: int) -> str:
    """Return the text of the parameter that has the JSON value."""
    return f"CAST(CAST(${number} AS pg_catalog.refcursor) AS pg_catalog.text)"


class Bind:
    """A Bind message.

    Raises:
        WireError: it is none.
    """

    def __init__(self, body: bytes) -> None:
        try:
            self.portal, self.name, rest = body.split(b"\0", 2)
            at = 2
            (count,) = struct.unpack_from(">H", rest)
            self._formats: list[int] = list(struct.unpack_from(f">{count}H", rest, at))
            at += 2 * count
            #: of parameters
            (self.count,) = struct.unpack_from(">H", rest, at)
            at += 2
            self._values: list[bytes | None] = []
            begin = at
            for _ in range(self.count):
                (size,) = struct.unpack_from(">i", rest, at)
                at += 4
                self._values.append(None if size < 0 else rest[at : at + size])
                at += max(0, size)
            self._raw_values, self._results = rest[begin:at], rest[at:]
            if at > len(rest):
                raise protocol_violation("insufficient data left in message")
        except (struct.error, ValueError):
            raise protocol_violation("insufficient data left in message") from None

    def text_of(self, number: int, kind: str) -> str | None:
        """Return a parameter's value as text, whatever its format is; *kind* is its type."""
        if not 1 <= number <= self.count:
            return None
        value = self._values[number - 1]
        if value is None:
            return None
        if self._format(number) != _BINARY:
            return value.decode(errors="replace")
        match kind:
            case "pg_catalog.bool":
                return "true" if value != b"\0" else "false"
            case "pg_catalog.pg_lsn":
                return str(Lsn(int.from_bytes(value, "big")))
            case "pg_catalog.int4":
                return str(int.from_bytes(value, "big", signed=True))
        return value.decode(errors="replace")

    def _format(self, number: int) -> int:
        if not self._formats:
            return 0
        if len(self._formats) == 1:
            return self._formats[0]
        if len(self._formats) != self.count:
            raise protocol_violation(
                f"bind message has {len(self._formats)} parameter formats but {self.count} "
                "parameters"
            )
        return self._formats[number - 1]

    def with_json(self, value: str) -> bytes:
        """Make the message with the JSON value as one parameter more."""
        formats = [self._format(number) for number in range(1, self.count + 1)] + [0]
        data = value.encode()
        return message(
            b"B",
            b"".join(
                (
                    self.portal,
                    b"\0",
                    self.name,
                    b"\0",
                    struct.pack(f">H{len(formats)}H", len(formats), *formats),
                    struct.pack(">H", self.count + 1),
                    self._raw_values,
                    struct.pack(">i", len(data)),
                    data,
                    self._results,
                )
            ),
        )


def without_json_parameter(frame: bytes) -> bytes:
    """Return a ParameterDescription as the client is told: without the parameter that is ours, if
    it has that.
    """
    count = int.from_bytes(frame[5:7], "big")
    if not count or int.from_bytes(frame[-4:], "big") != _REFCURSOR:
        return frame
    return message(b"t", (count - 1).to_bytes(2, "big") + frame[7:-4])
