"""Who calls: what the interfaces know of a client and the engine says of who has a slot.

An interface says it with :func:`calling` around what it does for a client. It travels as
PostgreSQL's ``MyProcPort`` does: beside the calls, in the context of the task that makes them.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: In the environment of a subscription's programs: its name, which they put into their User-Agent.
SUBSCRIPTION_VARIABLE: Final = "SPILLWAY_SUBSCRIPTION"
#: A program's name for itself is shown up to here.
_CLIENT_CHARACTERS_MAX: Final = 200
#: In their environment, too: the socket that the change stream comes through.
OWN_SOCKET_VARIABLE: Final = "SPILLWAY_OWN_SOCKET"
_SUBSCRIPTION: Final = re.compile(r"spillway-subscription/([a-z0-9_]{1,63})(?:\s|$)")


#: What clients speak, as people are told.
REST: Final = "REST"
GRPC: Final = "gRPC"
POSTGRESQL: Final = "PostgreSQL"
#: … and the service's own programs
OWN_SOCKET: Final = "own socket"


@dataclass(frozen=True, slots=True)
class Caller:
    """A client as an interface sees it."""

    #: host:port
    address: str | None = None
    #: the User-Agent or application_name, cut to what can be shown
    client: str | None = None
    #: what it speaks: :data:`REST`, :data:`GRPC`, :data:`POSTGRESQL` or :data:`OWN_SOCKET`
    protocol: str | None = None
    #: who it has shown to be, where users are known
    user: str | None = None

    @property
    def subscription(self) -> str | None:
        """The subscription whose program it says to be."""
        match = _SUBSCRIPTION.search(self.client or "")
        return None if match is None else match[1]


_caller: ContextVar[Caller] = ContextVar("spillway_caller")
_NOBODY: Final = Caller()


def caller() -> Caller:
    """Return who the present task works for."""
    return _caller.get(_NOBODY)


@contextmanager
def calling(
    address: str | None,
    client: str | None,
    *,
    protocol: str | None = None,
    user: str | None = None,
) -> Iterator[None]:
    """Work for the client at *address* that calls itself *client*; see :class:`Caller`."""
    shown = None
    if client:
        printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in client)
        shown = printable.encode(errors="replace").decode()[:_CLIENT_CHARACTERS_MAX]
    token = _caller.set(Caller(address, shown, protocol, user))
    try:
        yield
    finally:
        _caller.reset(token)
