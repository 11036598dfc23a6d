"""What is in the way of a consumer, found before it is started: several things are said at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.errors import remote_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.errors import SpillwayError

#: How many of them are said.
_SAID_MAX: Final = 20


def as_one(obstacles: Sequence[SpillwayError], where: str) -> SpillwayError:
    """Put what is in the way *where*, ``on the target`` say, into one error: the one thing that
    there is, or, of several, one of the first one's kind, which says all of them.
    """
    first = obstacles[0]
    if len(obstacles) == 1:
        return first
    said = obstacles[:_SAID_MAX]
    more = len(obstacles) - len(said)
    message = f"{len(obstacles)} things are in the way {where}: " + "; ".join(
        one.message for one in said
    )
    if more:
        message += f"; and {more} more"
    hints = dict.fromkeys(one.hint for one in said if one.hint)
    return remote_error(first.code, message, hint=" ".join(hints))
