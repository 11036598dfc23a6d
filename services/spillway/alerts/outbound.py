"""Connections that the service makes on behalf of whoever sets up a channel.

A channel's address is whatever its owner writes, and the service stands inside the network. So

- the name is resolved here, every address that it has is looked at, and the connection is made to
  one of those, so that a name can't lead elsewhere a moment later;
- link-local, multicast and unspecified addresses are refused: there the credentials of cloud
  machines are handed out, and no receiver of alerts listens. Loopback and private addresses are
  not: there most of them do;
- redirects are not followed, and of an answer nothing is shown but its status.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from spillway.errors import AlertNotDelivered, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

#: for all of it: name, connection, answer
TIMEOUT_S: Final = 30.0
_STEP_S: Final = 10.0
_URL_CHARACTERS_MAX: Final = 2000
_PORTS: Final = {"http": 80, "https": 443}


def checked_url(text: object, what: str) -> str:
    """Return an address of HTTP.

    Raises:
        InvalidRequest: it is none, or has a user in it.
    """
    hint = "Write https://host/path, or http:// where the network is your own."
    if not isinstance(text, str) or not text or len(text) > _URL_CHARACTERS_MAX:
        raise InvalidRequest(f"{what} is no address", hint=hint)
    url, port = urlsplit(text), None
    with suppress(ValueError):
        port = url.port or _PORTS.get(url.scheme)
    if port is None or not url.hostname or not text.isascii() or not text.isprintable():
        raise InvalidRequest(f"{what} is no address of HTTP", hint=hint)
    if url.username is not None or url.password is not None:
        raise InvalidRequest(
            f"{what} has a user in it, which would be shown",
            hint="Give what proves who sends as the channel's authorization or secret.",
        )
    return text


async def addresses(host: str, port: int) -> list[str]:
    """Resolve *host*, and refuse it if one of its addresses is none to connect to.

    Raises:
        AlertNotDelivered: it has no address, or one that is refused.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AlertNotDelivered(
            f"the name {host} can't be resolved: {error}", hint="Check the channel's address."
        ) from error
    texts = [str(entry[4][0]) for entry in found]
    for text in texts:
        address = ipaddress.ip_address(text.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
            raise AlertNotDelivered(
                f"{host} is {address}, where no alerts are sent",
                hint="Link-local, multicast and unspecified addresses are refused; give the "
                "receiver's own.",
            )
    return texts


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send *body*; return when it was taken: a status from 200 to 299.

    Raises:
        AlertNotDelivered: it was not.
    """
    parsed = urlsplit(url)
    host = parsed.hostname or ""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await addresses(host, parsed.port or _PORTS[parsed.scheme])
            await _post(parsed, found[0], body, headers)
    except TimeoutError as error:
        raise AlertNotDelivered(
            f"{host} did not answer within {TIMEOUT_S:.0f} s",
            hint="See whether the receiver is up and can be reached from here.",
        ) from error


async def _post(url: SplitResult, address: str, body: bytes, headers: Mapping[str, str]) -> None:
    # A tenth of a second, which a start without channels need not take.
    import httpx  # noqa: PLC0415

    # The certificate is checked for the name; the connection goes to the address that was looked
    # at. The environment's proxies would resolve the name again.
    host = url.hostname or ""
    target = httpx.URL(url.geturl()).copy_with(host=address.partition("%")[0])
    try:
        async with (
            httpx.AsyncClient(timeout=_STEP_S, trust_env=False) as client,
            client.stream(
                "POST",
                target,
                content=body,
                headers={**headers, "Host": url.netloc},
                extensions={"sni_hostname": host},
            ) as answer,
        ):
            status = answer.status_code
    except httpx.HTTPError as error:
        raise AlertNotDelivered(
            f"{host} can't be reached: {error or type(error).__name__}",
            hint="See whether the receiver is up and can be reached from here.",
        ) from error
    if not 200 <= status < 300:
        raise AlertNotDelivered(
            f"{host} answered {status}",
            hint="See the receiver's log; a redirect is not followed."
            if status < 400
            else "See the receiver's log: the address, the secret or the form may be wrong.",
        )
