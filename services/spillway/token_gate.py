"""Who brings the service's token, and how fast it may be guessed: one gate for REST, gRPC and the
UI's login.

A wrong token is answered at once, five times; after that its address must wait, twice as long each
time, up to a minute, before another token of it is even looked at, the right one too: otherwise a
guess would not be slowed at all. What is counted are *different* wrong tokens. A client that goes
on with the token of yesterday guesses nothing: it is refused as it was, and doesn't shut out those
that share its address. Other addresses are never shut out.

Whoever has many addresses gets five guesses from each. So while many are wrong everywhere (100 in a
minute), an address waits after its first wrong one. IPv6 counts by /64, which is what one customer
has.

Memory is bound: the addresses heard of last are remembered, with digests of their last wrong
tokens. Tokens are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.errors import TooManyAttempts, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable

_FREE_ATTEMPTS: Final = 5
_DELAY_MAX_S: Final = 60
#: An address that was quiet for so long begins anew.
_FORGET_S: Final = 900.0
_ADDRESSES_MAX: Final = 4096
_DIGESTS_MAX: Final = 16
#: wrong tokens a minute, of all addresses, from which on an address has one free attempt
_MANY: Final = 100
_MANY_WINDOW_S: Final = 60.0


@dataclass(slots=True)
class _Address:
    #: different wrong tokens
    wrong: int = 0
    last_at_s: float = 0.0
    #: nothing unknown is looked at before this
    until_s: float = 0.0
    digests: deque[bytes] = field(default_factory=lambda: deque(maxlen=_DIGESTS_MAX))


class TokenGate:
    """Compares tokens; safe to call from any thread."""

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the service's token, None where it has none, and a clock in seconds."""
        self.asks_token = token is not None
        self._token = (token or "").encode()
        self._clock = clock
        self._digest_key = secrets.token_bytes(16)
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._recent: deque[float] = deque(maxlen=_MANY)
        self._lock = threading.Lock()

    def is_token(self, given: bytes) -> bool:
        """Compare with the token. It counts nothing, and is no answer to give: :meth:`check` is."""
        return self.asks_token and hmac.compare_digest(given, self._token)

    def check(self, given: bytes | None, address: str | None) -> None:
        """Let a caller pass who brings the token, or anybody where there is none.

        Args:
            given: the token as it came; None if none came.
            address: the caller's, without a port; None where that is not known: such callers share
                one.

        Raises:
            Unauthenticated: there is no token, or it is wrong.
            TooManyAttempts: too many different wrong ones came from *address*; when to come again
                is in ``details``.
        """
        if not self.asks_token:
            return
        if given is None:
            raise Unauthenticated("a token is needed")
        is_right = self.is_token(given)
        name = network_of(address)
        now_s = self._clock()
        with self._lock:
            known = self._addresses.get(name)
            if known is not None and now_s - known.last_at_s > _FORGET_S:
                del self._addresses[name]
                known = None
            if known is None and is_right:
                return
            digest = hashlib.blake2b(given, key=self._digest_key, digest_size=8).digest()
            if known is not None and digest in known.digests and not is_right:
                raise Unauthenticated("the token is wrong")
            if known is not None and now_s < known.until_s:
                raise _wait(known.until_s - now_s)
            if is_right:
                self._addresses.pop(name, None)
                return
            self._count(name, digest, now_s)
        raise Unauthenticated("the token is wrong")

    def _count(self, name: str, digest: bytes, now_s: float) -> None:
        known = self._addresses.setdefault(name, _Address())
        self._addresses.move_to_end(name)
        while len(self._addresses) > _ADDRESSES_MAX:
            self._addresses.popitem(last=False)
        many = len(self._recent) == _MANY and now_s - self._recent[0] < _MANY_WINDOW_S
        self._recent.append(now_s)
        known.wrong += 1
        known.last_at_s = now_s
        known.digests.append(digest)
        paid = known.wrong - (1 if many else _FREE_ATTEMPTS)
        if paid >= 0:
            known.until_s = now_s + min(2.0 ** min(paid, 10), _DELAY_MAX_S)


def _wait(seconds: float) -> TooManyAttempts:
    wait_s = int(seconds) + 1
    return TooManyAttempts(
        "too many different wrong tokens came from this address; the next is looked at in "
        f"{wait_s} s",
        hint="Wait that long, then send the service's SPILLWAY_TOKEN.",
        retry_after_s=wait_s,
    )


def network_of(address: str | None) -> str:
    """Give what stands for a client's address: itself, of IPv6 its /64, which one customer has;
    empty for what is none.
    """
    try:
        parsed = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return ""
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
