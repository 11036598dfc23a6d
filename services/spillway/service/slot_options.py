"""Options of a slot that are the service's own, not its plugin's.

They stand among the plugin's, told apart by their prefix, and go wherever those go: they are given
when the slot is made, by PATCH, or by a consumer for its own session, by any interface. A plugin
never sees them, but for those of :data:`PLUGINS_OWN`: what is beyond PostgreSQL in what a plugin
writes has the prefix, too, so that no later option of PostgreSQL's can have its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import InvalidOption
from spillway.pg.boolean import parse_bool

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "spillway."
#: With the prefix, and a plugin's to read: pgoutput's.
PLUGINS_OWN: Final = frozenset(
    {
        "spillway.all_tables",
        "spillway.ddl",
        "spillway.origin",
        "spillway.send_encoding",
        "spillway.whole_prepared",
    }
)


class SlotOptions(NamedTuple):
    """What is beyond PostgreSQL; the fields' names are the options', all are off by default."""

    #: A stream that asks to begin before confirmed_flush_lsn begins there, and sets the slot back
    #: to it, while that is retained. PostgreSQL goes on from confirmed_flush_lsn, and says nothing.
    start_before_confirmed: bool = False
    #: Whoever asks for the slot gets it from a client that does not answer a keepalive.
    takeover: bool = False


def split(options: Mapping[str, str]) -> tuple[SlotOptions, dict[str, str]]:
    """Return the service's own options, and the plugin's.

    Raises:
        InvalidOption: there is no such option, or it is no boolean.
    """
    own: dict[str, bool] = {}
    others: dict[str, str] = {}
    for name, value in options.items():
        if not name.startswith(PREFIX) or name in PLUGINS_OWN:
            others[name] = value
            continue
        field = name.removeprefix(PREFIX)
        if field not in SlotOptions._fields:
            known = ", ".join(PREFIX + known for known in SlotOptions._fields)
            raise InvalidOption(f'slots have no option "{name}"', hint=f"There are {known}.")
        given = parse_bool(value)
        if given is None:
            raise InvalidOption(
                f'could not parse value "{value}" for parameter "{name}"', hint="It is on or off."
            )
        own[field] = given
    return SlotOptions(**own), others


def of_service(options: Mapping[str, str]) -> dict[str, str]:
    """Return the service's own options, as they were given."""
    return {
        name: value
        for name, value in options.items()
        if name.startswith(PREFIX) and name not in PLUGINS_OWN
    }
