"""Options of an output plugin as a command line has them: ``NAME=VALUE``, as pg_recvlogical's
``--option``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_option_list(given: Iterable[str] | None) -> dict[str, str]:
    """Make a mapping of ``NAME=VALUE``; a NAME alone has an empty value, as for pg_recvlogical.

    Raises:
        InvalidOption: a name is empty or comes twice.
    """
    options: dict[str, str] = {}
    for text in given or ():
        name, _, value = text.partition("=")
        if not name:
            raise InvalidOption(f"option {text!r} has no name", hint="Write --option NAME=VALUE.")
        if name in options:
            raise InvalidOption(f'option "{name}" is given more than once', hint="Give it once.")
        options[name] = value
    return options
