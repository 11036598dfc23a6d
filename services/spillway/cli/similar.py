"""Names that are like one that doesn't exist."""

from __future__ import annotations

import contextlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.cli.rest_client import RestClient
    from spillway.errors import NotFound

_NAMES_MAX: Final = 3
#: How like a name must be, from 0 to 1; of two letters one may be another.
_LIKENESS: Final = 0.6
_LIKENESS_SHORT: Final = 0.5
_SHORT: Final = 3
#: By what is missing, as errors name it in their details: where all of them are, and the field.
_LISTS: Final = {
    "slot": ("slots", "slot_name"),
    "source": ("sources", "name"),
    "subscription": ("subscriptions", "name"),
    "user": ("users", "name"),
    "rule": ("alerts/rules", "name"),
    "channel": ("alerts/channels", "name"),
}
_CODES: Final = {
    f"unknown_{'alert_' if path.startswith('alerts/') else ''}{what}": what
    for what, (path, _) in _LISTS.items()
}


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with those of *names* that *name* may be meant for, and a blank after it;
    the empty text where none is like it.
    """
    likeness = _LIKENESS_SHORT if len(name) <= _SHORT else _LIKENESS
    found = get_close_matches(name, list(names), n=_NAMES_MAX, cutoff=likeness)
    if not found:
        return ""
    return f"Did you mean {' or '.join(found)}? "


def hint_names(error: NotFound, client: RestClient) -> None:
    """Put the names that are like the missing one in front of an error's hint, if the service tells
    them at once.
    """
    what = _CODES.get(error.code)
    missing: Any = error.details.get(what or "")
    if what is None or not isinstance(missing, str):
        return
    path, field = _LISTS[what]
    # It is an aside: whatever goes wrong here, the error itself is told.
    with contextlib.suppress(SpillwayError, KeyError, TypeError):
        *_, things = steps = path.split("/")
        names = [one[field] for one in client.call("GET", *steps)[things]]
        error.hint = did_you_mean(missing, names) + error.hint
