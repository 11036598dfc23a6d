"""Messages from the database's encoding into UTF-8, as a server converts what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway._kernels.messages.buffer import MessageBuffer

if TYPE_CHECKING:
    from types import TracebackType


class ConvertedMessages:
    """A buffer for text in *encoding*, whose messages go into another one in UTF-8 at the end of a
    ``with``.

    A byte that is no character of the encoding passes unchanged. For UTF-8 it is the other buffer
    itself.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._own = None if encoding == "utf-8" else MessageBuffer()
        self._out: MessageBuffer | None = None

    def into(self, out: MessageBuffer) -> ConvertedMessages:
        """Say where messages go: ``with converted.into(out) as buffer``."""
        self._out = out
        return self

    def __enter__(self) -> MessageBuffer:
        assert self._out is not None
        # An empty buffer is false.
        return self._out if self._own is None else self._own

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        out, self._out = self._out, None
        if self._own is None or out is None:
            return
        # After an error too: the messages before it count.
        batch = self._own.take()
        position = 0
        for length, lsn, xid in zip(
            memoryview(batch.lengths).cast("I"),
            memoryview(batch.lsns).cast("Q"),
            memoryview(batch.xids).cast("I"),
            strict=True,
        ):
            line = bytes(batch.payload[position : position + length])
            position += length
            text = line.decode(self._encoding, "surrogateescape")
            out.append(lsn, xid, text.encode(errors="surrogateescape"))
