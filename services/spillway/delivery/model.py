"""What consumers are given, and who they are, as values.

Plain frozen dataclasses, which ``service/model.py`` hands on to the interfaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from spillway.caller import POSTGRESQL

if TYPE_CHECKING:
    from datetime import datetime

    from spillway.pg.lsn import Lsn
    from spillway.plugins.messages import EncodedBatch


#: as a sentence has them
_PROTOCOLS: Final = {POSTGRESQL: "PostgreSQL's protocol"}


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who has a slot."""

    #: stream, or the call that is under way: get, peek, advance, rewind, alter, drop
    kind: str
    #: host:port that it came from; None: it did not come over the network
    address: str | None
    #: how its program names itself: User-Agent, or application_name
    client: str | None
    #: of the subscription whose program it is
    subscription: str | None
    since: datetime
    #: when a stream's client last sent feedback; None: never
    last_feedback_at: datetime | None = None
    #: how far a stream was handed out; None: it is no stream
    sent_lsn: Lsn | None = None
    #: None: it is so now; else another process serves it, and stored this then
    as_of: datetime | None = None
    #: what it speaks: REST, gRPC or PostgreSQL; None: nothing over the network, or a release before
    #: this was kept serves it
    protocol: str | None = None
    #: who it has shown to be, over PostgreSQL's protocol
    user: str | None = None

    @property
    def program(self) -> str:
        """How its program names itself, without its libraries; empty: not at all."""
        program = self.client or ""
        # What follows in a User-Agent is its libraries.
        return program if self.protocol == POSTGRESQL else program.split(" ", 1)[0]

    @property
    def shortly(self) -> str:
        """Name it in a few words: its program, who it is, and where it came from."""
        user = None if self.user is None else f"user {self.user}"
        return ", ".join(filter(None, (self.program, user, self.address))) or f"a {self.kind}"

    def __str__(self) -> str:
        """Name it as a person would."""
        what = {"stream": "a stream"}.get(self.kind, f"a {self.kind}")
        if self.subscription is not None:
            what += f" of subscription {self.subscription}"
        if self.address is not None:
            what += f" from {self.address}"
        if self.protocol is not None:
            what += f" over {_PROTOCOLS.get(self.protocol, self.protocol)}"
        if self.user is not None:
            what += f" as user {self.user}"
        if self.client:
            what += f" ({self.client})"
        return f"{what} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Change:
    r"""A row of pg_logical_slot_peek_changes; *data* is ``\\x…`` hex for a binary plugin."""

    lsn: Lsn
    xid: int
    #: with U+FFFD for what is not UTF-8
    data: str
    #: the message itself when it is not UTF-8, as one of a database in SQL_ASCII may be
    data_bytes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """Changes for a person to read; each ``data`` is a JSON object as wal2json's format 2 has
    it.
    """

    changes: tuple[Change, ...]
    #: where the next preview begins: behind the last transaction of which something is shown
    next_lsn: Lsn
    #: (start_lsn, skip) of the preview that goes on inside that one; None: it is shown whole, or
    #: too much of it came before
    rest: tuple[Lsn, int] | None
    #: something follows
    more: bool
    #: the last transaction is not shown whole
    cut: bool = False


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What a stream hands out in one step; ``messages.count`` may be 0: then it is a keepalive."""

    messages: EncodedBatch
    #: lsn of the first message, or where the stream stands
    wal_start: Lsn
    #: how far the source's WAL is decoded
    wal_end: Lsn
    #: a consumer that has processed everything so far may confirm up to here
    confirm_lsn: Lsn
    #: the stream reached the caller's upto_lsn: no more comes
    final: bool = False


class LiveConsumer(Protocol):
    """Takes what comes live in the middle of somebody else's work, the event loop's or the
    decoder's, who must not be kept.

    Both are called by whoever has the event loop's turn (:mod:`spillway.loop_turn`): no other code
    of the loop runs meanwhile.
    """

    def is_ready(self) -> bool:
        """Whether :meth:`take` would hand on what it gets at once."""
        ...

    def take(self, messages: EncodedBatch, confirm_lsn: Lsn) -> None:
        """Take the messages of a batch. What it raises, the stream's next_batch raises."""
        ...
