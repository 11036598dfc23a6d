"""Under which names a lake has the source's columns: ``<path>/_spillway/column_names.json``.

``source``: their own. ``safe``: letters, digits and underscores only, which every reader of tables
takes, and for which Delta needs no column mapping (the option ``column_names`` of the plugin
``arrow``). What was said once stays, for later runs, loads, comparisons and replays; where nothing
was said the slot's own option counts.

If it is said anew of a lake that is filled, the tables take it as if their columns were renamed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from spillway.errors import LakeTableConflict
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from spillway.storage.place import LakePath

OPTION: Final = "column_names"
_KNOWN: Final = ("safe", "source")


def settle(path: LakePath, asked: str | None) -> None:
    """Make durable what is asked for; None changes nothing."""
    if asked is not None and plugin_options(path).get(OPTION) != asked:
        (path / "_spillway").mkdir(parents=True, exist_ok=True)
        replace_json(_file(path), {OPTION: asked})


def plugin_options(path: LakePath) -> dict[str, str]:
    """Return what was said, as an option of the plugin: over the slot's own; nothing if nothing
    was.

    Raises:
        LakeTableConflict: the file is none of this release.
    """
    file = _file(path)
    try:
        names = json.loads(file.read_text())[OPTION]
        if names not in _KNOWN:
            raise ValueError(names)  # noqa: TRY301 - one message for all that is wrong with it
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, ValueError) as error:
        raise LakeTableConflict(
            f"{file} can't be read: {error!r}",
            hint="It was written by another release, or is damaged. Removed, columns are named as "
            "the slot's option says; give --column-names to say it again.",
        ) from error
    return {OPTION: names}


def _file(path: LakePath) -> LakePath:
    return path / "_spillway" / "column_names.json"
