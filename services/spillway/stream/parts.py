"""Lists in questions and answers: how much may be asked for, and answers of any length in parts."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

#: Bytes after which a part of an answer is sent; one of a list may be larger by itself.
_PART_BYTES: Final = 256 * 1024
#: of a list, unless the request says how many
_LIMIT_DEFAULT: Final = 100


async def write_in_parts(
    context: Any, response: type[Any], field: str, messages: Iterable[Any], **last: Any
) -> None:
    """Write *messages* to *context* (grpc.aio) in as many messages of type *response* as they need,
    one at least.

    Args:
        context: the call's.
        response: what the method answers with.
        field: the list in *response* that takes the messages.
        messages: each is made when its turn comes, so that they need not be in memory together.
        last: fields of the last part.
    """
    part: list[Any] = []
    size = 0
    for message in messages:
        part.append(message)
        size += message.ByteSize()
        if size >= _PART_BYTES:
            await context.write(response(**{field: part}))
            part, size = [], 0
    await context.write(response(**{field: part}, **last))


def limit_of(request: Any, most: int) -> int:
    """Return how many of a list *request* asks for.

    Raises:
        InvalidRequest: that is more than *most*.
    """
    limit: int = request.limit or _LIMIT_DEFAULT
    if limit > most:
        raise InvalidRequest(
            f"limit is {limit}", hint=f"Give a number from 1 to {most}.", field="limit"
        )
    return limit


def moment_of(request: Any, field: str) -> datetime | None:
    """Return the time that *field* of *request* says; None: it is not set."""
    if not request.HasField(field):
        return None
    found: datetime = getattr(request, field).ToDatetime(UTC)
    return found


def refuse_nul(request: Message) -> None:
    """Refuse texts that are none in PostgreSQL, as REST does; protobuf has refused what is not
    UTF-8.

    Raises:
        InvalidRequest: a text of *request* has a NUL.
    """
    for field, value in request.ListFields():
        if not _is_text(value):
            raise InvalidRequest(
                f"{field.name} has a NUL",
                hint="PostgreSQL has no such text; leave it out.",
                field=field.name,
            )


def _is_text(value: Any) -> bool:
    """Say whether every text in a field's value is one. Requests are 1 MiB at most."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, Message):
        return all(_is_text(held) for _, held in value.ListFields())
    if hasattr(value, "items"):
        return all(_is_text(key) and _is_text(held) for key, held in value.items())
    if isinstance(value, int | float | bytes):
        return True
    return all(map(_is_text, value))
