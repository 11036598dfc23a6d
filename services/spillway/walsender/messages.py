"""Messages of PostgreSQL's protocol, version 3: frontend's are read, the backend's are made.

Reading is bounded and total. Each kind of message has a length that it may have, as in PostgreSQL;
what is longer, or no message at all, ends the connection with 08P01. Nothing is taken for granted
of what a client sends: strings may lack their zero, numbers may be cut.

Source: PostgreSQL's documentation, "Message Formats"; ProcessStartupPacket
(src/backend/tcop/backend_startup.c), SocketBackend (src/backend/tcop/postgres.c)
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.walsender.failures import WireError, protocol_violation

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.service.model import Notice
    from spillway.walsender.client_encoding import ClientEncoding

CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSSENC_REQUEST: Final = 80877104
#: The newest minor version that is spoken: its cancel keys may be longer.
NEWEST_MINOR: Final = 2
_MAJOR: Final = 3
_NEGOTIATED: Final = "_pq_."

#: MAX_STARTUP_PACKET_LENGTH, without the length itself
STARTUP_BYTES_MAX: Final = 10_000
#: PQ_SMALL_MESSAGE_LIMIT
_SMALL_BYTES_MAX: Final = 10_000
#: PG_MAX_SASL_MESSAGE_LENGTH
_SASL_BYTES_MAX: Final = 1_024
#: Of a Query: PostgreSQL takes up to 1 GB, which no replication command comes near.
_QUERY_BYTES_MAX: Final = 1 << 20
#: PQ_LARGE_MESSAGE_LIMIT, which is what memory may be allocated in one piece
_STATEMENT_BYTES_MAX: Final = 0x3FFFFFFE
_QUERY: Final = ord("Q")
_BYTES_MAX: Final[Mapping[int, int]] = {ord("Q"): _QUERY_BYTES_MAX, ord("p"): _SASL_BYTES_MAX}
_KNOWN: Final = frozenset(b"QXdcfPBEDCFSHp")

TEXT: Final = 25
INT4: Final = 23
INT8: Final = 20
_LENGTHS: Final[Mapping[int, int]] = {TEXT: -1, INT4: 4, INT8: 8}

_HEAD: Final = struct.Struct(">ci")
_FEEDBACK: Final = struct.Struct(">QQQqB")
_HOT_STANDBY_FEEDBACK_BYTES: Final = 24


class UnexpectedMessage(Exception):
    """A client has sent in a stream what no standby sends."""


class StartupPacket(NamedTuple):
    """What a client says first."""

    #: of the protocol, as the client asks for it
    minor: int
    parameters: Mapping[str, str]
    #: parameters of the protocol that nobody knows here
    unknown: tuple[str, ...]


class Feedback(NamedTuple):
    """Standby status update: LSNs as the client has them, 0 for none."""

    write_lsn: int
    flush_lsn: int
    apply_lsn: int
    reply_requested: bool


# ---- reading


def parse_startup(packet: bytes) -> StartupPacket:
    """Parse a StartupMessage, without its length.

    Raises:
        WireError: it is none, or of a major version that isn't spoken.
    """
    version = int.from_bytes(packet[:4], "big")
    major, minor = version >> 16, version & 0xFFFF
    if major != _MAJOR:
        raise WireError(
            "0A000",
            f"unsupported frontend protocol {major}.{minor}: server supports {_MAJOR}.0 to "
            f"{_MAJOR}.{NEWEST_MINOR}",
            fatal=True,
        )
    fields = packet[4:].split(b"\0")
    # Pairs, each name and value with a zero behind; then an empty name.
    if len(fields) < 2 or fields[-1] != b"" or b"" not in fields[:-1:2]:
        raise protocol_violation("invalid startup packet layout: expected terminator as last byte")
    end = fields[:-1:2].index(b"") * 2
    if end != len(fields) - 2:
        raise protocol_violation("invalid startup packet layout: expected terminator as last byte")
    parameters: dict[str, str] = {}
    unknown = []
    for name, value in zip(fields[:end:2], fields[1:end:2], strict=True):
        text = _text(name)
        if text.startswith(_NEGOTIATED):
            unknown.append(text)
        else:
            parameters[text] = _text(value)
    return StartupPacket(minor, parameters, tuple(unknown))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WireError("22021", 'invalid byte sequence for encoding "UTF8"', fatal=True) from None


class LongQuery(NamedTuple):
    """A Query that is longer than is read in one piece: the rest of it is still to be read."""

    #: the message's first bytes
    head: bytes
    rest_bytes: int


async def read_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read a message: its type and what it holds.

    Raises:
        WireError: it is none, or longer than its kind may be.
        asyncio.IncompleteReadError: the client is gone.
    """
    read = await read_message_or_long_query(reader)
    if isinstance(read, LongQuery):
        raise protocol_violation("invalid message length")
    return read


async def read_message_or_long_query(
    reader: asyncio.StreamReader,
) -> tuple[int, bytes] | LongQuery:
    """Read a message as :func:`read_message`; of a long Query the head only."""
    head = await reader.readexactly(_HEAD.size)
    kind_byte, length = _HEAD.unpack(head)
    kind = kind_byte[0]
    if kind not in _KNOWN:
        raise protocol_violation(f"invalid frontend message type {kind}")
    if not 4 <= length <= 4 + _BYTES_MAX.get(kind, _SMALL_BYTES_MAX):
        if kind == _QUERY and 4 <= length <= _STATEMENT_BYTES_MAX:
            return LongQuery(head, length - 4)
        raise protocol_violation("invalid message length")
    return kind, await reader.readexactly(length - 4)


async def read_backend_message(reader: asyncio.StreamReader, bytes_max: int) -> tuple[bytes, bytes]:
    """Read a message of a server: its letter and what it holds.

    Raises:
        WireError: it is none, or longer than *bytes_max*.
        asyncio.IncompleteReadError: the server is gone.
    """
    kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if not 4 <= length <= 4 + bytes_max:
        raise protocol_violation("invalid message length")
    return kind, await reader.readexactly(length - 4)


def parse_data_row(body: bytes) -> list[str | None]:
    """Read a DataRow of a server's, all of it text.

    Raises:
        WireError: it is none.
    """
    values: list[str | None] = []
    at = 2
    try:
        for _ in range(int.from_bytes(body[:2], "big")):
            (size,) = struct.unpack_from(">i", body, at)
            at += 4
            values.append(None if size < 0 else body[at : at + size].decode())
            at += max(0, size)
    except (struct.error, UnicodeDecodeError):
        raise protocol_violation("the server sent a row that can't be read") from None
    return values


def error_fields(body: bytes) -> dict[str, str]:
    """Read an ErrorResponse: texts by the letters of their fields."""
    parts = (field.decode(errors="replace") for field in body.split(b"\0") if field)
    return {part[0]: part[1:] for part in parts}


def parse_query(body: bytes, encoding: ClientEncoding) -> str:
    """Give the text of a Query.

    Raises:
        WireError: it is no string in the client's encoding.
    """
    if body[-1:] != b"\0" or b"\0" in body[:-1]:
        raise protocol_violation("invalid string in message")
    try:
        return body[:-1].decode(encoding.codec)
    except UnicodeDecodeError as error:
        byte = body[error.start]
        raise WireError(
            "22021", f'invalid byte sequence for encoding "{encoding.client}": 0x{byte:02x}'
        ) from None


def parse_feedback(body: bytes) -> Feedback | None:
    """Read what a client sends in CopyData: feedback, or None for what has nothing to say on a
    logical stream.

    Raises:
        WireError: it is cut.
        UnexpectedMessage: it is neither.
    """
    kind = body[:1]
    # Errors of the command, after which the connection lives.
    if not kind:
        raise WireError("08P01", "no data left in message")
    if kind == b"r":
        if len(body) < 1 + _FEEDBACK.size:
            raise WireError("08P01", "insufficient data left in message")
        write_lsn, flush_lsn, apply_lsn, _, reply_requested = _FEEDBACK.unpack_from(body, 1)
        return Feedback(write_lsn, flush_lsn, apply_lsn, reply_requested != 0)
    if kind == b"h":
        if len(body) < 1 + _HOT_STANDBY_FEEDBACK_BYTES:
            raise WireError("08P01", "insufficient data left in message")
        return None
    raise UnexpectedMessage


# ---- writing


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Make a message of *kind*, a letter."""
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def _string(text: str, codec: str = "utf-8") -> bytes:
    return text.encode(codec, errors="replace").replace(b"\0", b"?") + b"\0"


def query(text: str) -> bytes:
    """Make a Query."""
    return message(b"Q", _string(text))


def startup_message(parameters: Mapping[str, str]) -> bytes:
    """Make a StartupMessage of version 3.0."""
    pairs = b"".join(_string(name) + _string(value) for name, value in parameters.items())
    body = (_MAJOR << 16).to_bytes(4, "big") + pairs + b"\0"
    return (len(body) + 4).to_bytes(4, "big") + body


def negotiate_protocol_version(minor: int, unknown: Sequence[str]) -> bytes:
    """Say which minor version is spoken, and which of the protocol's parameters nobody knows."""
    version = _MAJOR << 16 | minor
    body = version.to_bytes(4, "big") + len(unknown).to_bytes(4, "big")
    return message(b"v", body + b"".join(map(_string, unknown)))


def authentication(code: int, data: bytes = b"") -> bytes:
    """Make an Authentication message: 0 is Ok, 10 to 12 are SASL's."""
    return message(b"R", code.to_bytes(4, "big") + data)


def sasl_mechanisms(names: Iterable[str]) -> bytes:
    """Offer mechanisms, the one that is preferred first."""
    return authentication(10, b"".join(map(_string, names)) + b"\0")


def parameter_status(name: str, value: str) -> bytes:
    """Report a setting."""
    return message(b"S", _string(name) + _string(value))


def backend_key_data(pid: int, key: bytes) -> bytes:
    """Tell what a CancelRequest must bring."""
    return message(b"K", pid.to_bytes(4, "big") + key)


def ready_for_query(status: bytes = b"I") -> bytes:
    """Say that a command may come: I, there is no transaction, T, in one, E, in one that has
    failed.
    """
    return message(b"Z", status)


def error_response(error: WireError, codec: str = "utf-8") -> bytes:
    """Make an ErrorResponse with the fields of PostgreSQL's, in Python's *codec* of what the client
    reads.
    """
    return _response(b"E", "FATAL" if error.fatal else "ERROR", error, codec)


def notice(sqlstate: str, text: str, codec: str = "utf-8") -> bytes:
    """Make a NoticeResponse of a NOTICE."""
    return _response(b"N", "NOTICE", WireError(sqlstate, text), codec)


def warning(notice: Notice) -> bytes:
    """Make a NoticeResponse with the fields of PostgreSQL's."""
    return _response(b"N", "WARNING", notice)


def _response(kind: bytes, severity: str, told: WireError | Notice, codec: str = "utf-8") -> bytes:
    fields = [(b"S", severity), (b"V", severity), (b"C", told.sqlstate), (b"M", told.message)]
    if told.detail:
        fields.append((b"D", told.detail))
    if told.hint:
        fields.append((b"H", told.hint))
    if isinstance(told, WireError) and told.context:
        fields.append((b"W", told.context))
    return message(kind, b"".join(code + _string(text, codec) for code, text in fields) + b"\0")


def row_description(columns: Sequence[tuple[str, int]]) -> bytes:
    """Describe columns: name and the type's OID, all as text."""
    parts = [len(columns).to_bytes(2, "big")]
    for name, type_oid in columns:
        parts += [_string(name), struct.pack(">ihIhih", 0, 0, type_oid, _LENGTHS[type_oid], -1, 0)]
    return message(b"T", b"".join(parts))


def data_row(values: Sequence[str | None], codec: str = "utf-8") -> bytes:
    """Make a row of texts in Python's *codec* of what the client reads; None is NULL."""
    parts = [len(values).to_bytes(2, "big")]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            data = value.encode(codec, errors="replace")
            parts += [len(data).to_bytes(4, "big"), data]
    return message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """Say that a command is done."""
    return message(b"C", _string(tag))


def empty_query_response() -> bytes:
    """Answer a Query that holds nothing."""
    return message(b"I")


def copy_both_response() -> bytes:
    """Begin CopyBoth: text, of no columns."""
    return message(b"W", b"\0\0\0")


def copy_done() -> bytes:
    """End the copy."""
    return message(b"c")


def keepalive(wal_end: int, send_time: int, *, reply_requested: bool) -> bytes:
    """Make a primary keepalive in its CopyData."""
    return message(b"d", struct.pack(">cQqB", b"k", wal_end, send_time, reply_requested))
