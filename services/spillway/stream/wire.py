"""Change stream messages on the wire, written and read without a Python object per change.

``StreamResponse{changes: Changes}`` (proto/spillway/v1/change_stream.proto) is mostly four byte
strings that an output plugin's buffer has ready: the payload, and three little-endian arrays, which
is also how protobuf packs repeated fixed32 and fixed64. So encoding is a join and decoding is
slicing; the cost is one copy of the payload, however many messages it holds. A test compares both
with the standard parser.

:func:`encode_plainly` says the same for the service's own programs, at a tenth of the cost for one
small transaction: the numbers in fixed places, then the arrays and the payload.

Streams that share their steps send the same bytes: what one has serialised stays with the messages,
in place of them, for the others. They differ only where positions do, and then the large part is
copied from there.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway._kernels.messages.buffer import total_length
from spillway.errors import MalformedMessage
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import now_us
from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.plugins.messages import EncodedBatch
    from spillway.service.model import StreamBatch

_VARINT: Final = 0
_I64: Final = 1
_LEN: Final = 2
_I32: Final = 5

# Field numbers of Changes.
_WAL_START: Final = 1
_WAL_END: Final = 2
_SEND_TIME: Final = 3
_CONFIRM_LSN: Final = 4
_FINAL: Final = 5
_PAYLOAD: Final = 6
_LENGTHS: Final = 7
_LSNS: Final = 8
_XIDS: Final = 9

_HINT: Final = (
    "Open the stream again: what was not confirmed comes again. Is it a service of another release?"
)
_CHANGES_TAG: Final = bytes([1 << 3 | _LEN])

#: wal_start, wal_end, send_time, confirm_lsn, number of messages
_PLAIN: Final = struct.Struct("<QQqQI")
#: of a message's LSN, length and xid, which stand in that order
_PLAIN_MESSAGE_BYTES: Final = 16

#: Smaller ones are serialised for each stream: keeping them would cost as much.
_SHARED_BYTES_MIN: Final = 16 * 1024
#: How old send_time may be.
_SHARED_US_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """A Changes or a Keepalive as a client sees it; a keepalive has a count of 0.

    The arrays are views of the received bytes: valid as long as they are referred to, and not
    copied.
    """

    #: LSN of the first message; of a keepalive, confirm_lsn
    wal_start: Lsn
    #: how far the source's WAL is decoded
    wal_end: Lsn
    #: whoever has made everything so far durable may confirm up to here
    confirm_lsn: Lsn
    #: microseconds since 2000-01-01
    send_time: int
    #: no more comes
    final: bool
    count: int
    payload: memoryview
    #: format I (unsigned 32-bit)
    lengths: memoryview
    #: format Q (unsigned 64-bit)
    lsns: memoryview
    #: format I
    xids: memoryview
    #: the service wants feedback now
    reply_requested: bool = False
    #: of a keepalive: the furthest feedback of this stream that the slot has taken
    flush_lsn: Lsn = Lsn(0)  # noqa: RUF009 - immutable

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (lsn, xid, data) of each message."""
        start = 0
        for length, lsn, xid in zip(self.lengths, self.lsns, self.xids, strict=True):
            yield lsn, xid, bytes(self.payload[start : start + length])
            start += length


class _Serialised(NamedTuple):
    """What messages were serialised to, with what else it says."""

    data: bytes
    wal_end: int
    confirm_lsn: int
    final: bool
    send_time: int


def encode_changes(batch: StreamBatch) -> bytes:
    """Serialise a StreamResponse of *batch*, or return what another stream has serialised if it
    says the same.
    """
    messages = batch.messages
    send_time = now_us()
    said = batch.wal_end, batch.confirm_lsn, batch.final
    before: _Serialised | None = messages.serialised
    if before is not None and before[1:4] == said and 0 <= send_time - before[4] <= _SHARED_US_MAX:
        return before.data
    inner = [
        _fixed64(_WAL_START, batch.wal_start),
        _fixed64(_WAL_END, batch.wal_end),
        bytes([_SEND_TIME << 3 | _VARINT]) + _varint(send_time),
        _fixed64(_CONFIRM_LSN, batch.confirm_lsn),
    ]
    if batch.final:
        inner.append(bytes([_FINAL << 3 | _VARINT, 1]))
    contents = messages.payload, messages.lengths, messages.lsns, messages.xids
    for number, content in zip((_PAYLOAD, _LENGTHS, _LSNS, _XIDS), contents, strict=True):
        if content:
            inner.append(bytes([number << 3 | _LEN]) + _varint(len(content)))
            inner.append(content)  # type: ignore[arg-type]
    length = sum(map(len, inner))
    data = b"".join([_CHANGES_TAG, _varint(length), *inner])
    if len(messages.payload) >= _SHARED_BYTES_MIN and messages.count:
        _share(messages, data)
        messages.serialised = _Serialised(data, *said, send_time)
    return data


def encode_plainly(batch: StreamBatch) -> bytes:
    """Serialise *batch*, which is not the final one, for :func:`decode_plain`."""
    messages = batch.messages
    head = _PLAIN.pack(batch.wal_start, batch.wal_end, now_us(), batch.confirm_lsn, messages.count)
    return b"".join((head, messages.lsns, messages.lengths, messages.xids, messages.payload))


def decode_plain(data: bytes, start: int = 0) -> Batch:
    """Read what :func:`encode_plainly` has written, from *start* on.

    Raises:
        MalformedMessage: *data* is no such thing.
    """
    view = memoryview(data)
    try:
        wal_start, wal_end, send_time, confirm_lsn, count = _PLAIN.unpack_from(data, start)
        lsns = start + _PLAIN.size
        lengths, xids = lsns + 8 * count, lsns + 12 * count
        payload = lsns + _PLAIN_MESSAGE_BYTES * count
        batch = Batch(
            wal_start=Lsn(wal_start),
            wal_end=Lsn(wal_end),
            confirm_lsn=Lsn(confirm_lsn),
            send_time=send_time,
            final=False,
            count=count,
            payload=view[payload:],
            lengths=_array(view[lengths:xids], "I"),
            lsns=_array(view[lsns:lengths], "Q"),
            xids=_array(view[xids:payload], "I"),
        )
        fits = len(batch.xids) == count and total_length(view[lengths:xids]) == len(batch.payload)
    except (struct.error, ValueError, TypeError) as error:
        raise MalformedMessage(
            f"the service sent a malformed message: {error}", hint=_HINT
        ) from error
    if not fits:
        raise MalformedMessage(
            "the service sent a batch whose arrays do not fit its payload", hint=_HINT
        )
    return batch


def _share(messages: EncodedBatch, data: bytes) -> None:
    """Let *messages* lie in *data*, which ends with them."""
    view = memoryview(data)
    end = len(data)
    views = []
    for content in (messages.xids, messages.lsns, messages.lengths, messages.payload):
        start = end - len(content)
        views.append(view[start:end])
        end = start - 1 - len(_varint(len(content)))
    messages.xids, messages.lsns, messages.lengths, messages.payload = views


def encode_keepalive(
    *, wal_end: int, confirm_lsn: int, flush_lsn: int, reply_requested: bool
) -> bytes:
    """Serialise a StreamResponse of a keepalive."""
    return change_stream_pb2.StreamResponse(
        keepalive=change_stream_pb2.Keepalive(
            wal_end=wal_end,
            confirm_lsn=confirm_lsn,
            send_time=now_us(),
            reply_requested=reply_requested,
            flush_lsn=flush_lsn,
        )
    ).SerializeToString()


def decode_response(data: bytes) -> Batch:
    """Parse a StreamResponse.

    Raises:
        MalformedMessage: *data* is none.
    """
    view = memoryview(data)
    try:
        if data[:1] != _CHANGES_TAG:
            return _decode_keepalive(data)
        length, start = _read_varint(view, 1)
        # Anything but exactly one Changes is legal protobuf, though no server of ours sends it.
        fields = _fields(view[start:]) if start + length == len(view) else None
        batch = _slow_batch(data) if fields is None else _batch(fields)
    except (IndexError, ValueError, TypeError) as error:
        raise MalformedMessage(
            f"the service sent a malformed message: {error}", hint=_HINT
        ) from error
    if total_length(batch.lengths.cast("B")) != len(batch.payload) or not (
        len(batch.lengths) == len(batch.lsns) == len(batch.xids)
    ):
        raise MalformedMessage(
            "the service sent a batch whose arrays do not fit its payload", hint=_HINT
        )
    return batch


def _batch(fields: dict[int, int | memoryview]) -> Batch:
    empty = memoryview(b"")
    lengths = _array(fields.get(_LENGTHS, empty), "I")
    return Batch(
        wal_start=Lsn(_number(fields.get(_WAL_START, 0))),
        wal_end=Lsn(_number(fields.get(_WAL_END, 0))),
        confirm_lsn=Lsn(_number(fields.get(_CONFIRM_LSN, 0))),
        send_time=_signed(_number(fields.get(_SEND_TIME, 0))),
        final=bool(fields.get(_FINAL, 0)),
        count=len(lengths),
        payload=_array(fields.get(_PAYLOAD, empty), "B"),
        lengths=lengths,
        lsns=_array(fields.get(_LSNS, empty), "Q"),
        xids=_array(fields.get(_XIDS, empty), "I"),
    )


def _slow_batch(data: bytes) -> Batch:
    """Parse legal but unusual protobuf: an array in several pieces, unpacked ones, repeated
    fields.
    """
    changes = _parse(data).changes
    again = [
        _fixed64(_WAL_START, changes.wal_start),
        _fixed64(_WAL_END, changes.wal_end),
        _fixed64(_CONFIRM_LSN, changes.confirm_lsn),
    ]
    fields = _fields(memoryview(b"".join(again))) or {}
    fields[_SEND_TIME] = changes.send_time
    fields[_FINAL] = int(changes.final)
    fields[_PAYLOAD] = memoryview(changes.payload)
    for number, values, width in (
        (_LENGTHS, changes.message_length, 4),
        (_LSNS, changes.message_lsn, 8),
        (_XIDS, changes.message_xid, 4),
    ):
        fields[number] = memoryview(b"".join(value.to_bytes(width, "little") for value in values))
    return _batch(fields)


def _decode_keepalive(data: bytes) -> Batch:
    response = _parse(data)
    if not response.HasField("keepalive"):
        if response.HasField("changes"):
            return _slow_batch(data)
        raise MalformedMessage("the service sent an empty message", hint=_HINT)
    keepalive = response.keepalive
    empty = memoryview(b"")
    return Batch(
        wal_start=Lsn(keepalive.confirm_lsn),
        wal_end=Lsn(keepalive.wal_end),
        confirm_lsn=Lsn(keepalive.confirm_lsn),
        send_time=keepalive.send_time,
        final=False,
        count=0,
        payload=empty,
        lengths=empty.cast("I"),
        lsns=empty.cast("Q"),
        xids=empty.cast("I"),
        reply_requested=keepalive.reply_requested,
        flush_lsn=Lsn(keepalive.flush_lsn),
    )


def _parse(data: bytes) -> change_stream_pb2.StreamResponse:
    try:
        return change_stream_pb2.StreamResponse.FromString(data)
    except Exception as error:  # protobuf's DecodeError is not importable by a stable name
        raise MalformedMessage(
            f"the service sent a malformed message: {error}", hint=_HINT
        ) from error


def _fields(view: memoryview) -> dict[int, int | memoryview] | None:
    """Split a message into its fields; None if it takes the standard parser."""
    fields: dict[int, int | memoryview] = {}
    position = 0
    end = len(view)
    while position < end:
        key, position = _read_varint(view, position)
        number, wire_type = key >> 3, key & 7
        value: int | memoryview
        if wire_type == _VARINT:
            value, position = _read_varint(view, position)
        elif wire_type == _LEN:
            length, position = _read_varint(view, position)
            value = view[position : position + length]
            if len(value) != length:
                msg = "a field is longer than its message"
                raise ValueError(msg)
            position += length
        elif wire_type in (_I64, _I32):
            width = 8 if wire_type == _I64 else 4
            piece = view[position : position + width]
            if len(piece) != width:
                msg = "a field is longer than its message"
                raise ValueError(msg)
            value = int.from_bytes(piece, "little")
            position += width
        else:
            return None
        if number in fields:
            return None
        fields[number] = value
    # An array of one element may legally come unpacked.
    if any(isinstance(fields.get(number, b""), int) for number in (_LENGTHS, _LSNS, _XIDS)):
        return None
    return fields


def _array(value: int | memoryview, code: str) -> memoryview:
    if isinstance(value, int):
        msg = "a number where an array belongs"
        raise TypeError(msg)
    if sys.byteorder == "big" and code != "B":
        # Never on the machines that PostgreSQL's WAL is read on today; right all the same.
        width = 8 if code == "Q" else 4
        swapped = b"".join(bytes(value[i : i + width])[::-1] for i in range(0, len(value), width))
        return memoryview(swapped).cast(code)  # type: ignore[call-overload,no-any-return]
    return value.cast(code)  # type: ignore[call-overload,no-any-return]


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        msg = "an array where a number belongs"
        raise TypeError(msg)
    return value


def _signed(value: int) -> int:
    """Read 64 bits as two's complement, which is how protobuf's int64 comes out of a varint."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _fixed64(number: int, value: int) -> bytes:
    return bytes([number << 3 | _I64]) + value.to_bytes(8, "little")


def _varint(value: int) -> bytes:
    """Encode an unsigned number; protobuf's int64 too, as two's complement."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    msg = "a number of more than ten bytes"
    raise ValueError(msg)
