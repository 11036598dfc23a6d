"""Tables whose current state waits for a merge, at a pace of its own:
``<path>/_spillway/waiting.json``.

Their histories are ahead of them. What is here is durable before the slot is confirmed, so that
whoever merges them, after a crash or in another run, knows how: in one shape, from where current is
to where history is, which the tables say themselves. A table that is here and has nothing to merge
does no harm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from spillway.lake.state import versioned
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.storage.place import LakePath

_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a merge of one table must know."""

    #: ``schema.table``
    table: str
    #: of all changes that wait (:func:`spillway.lake.shape.changes.shape_text`)
    shape: str
    #: two rows may have one key within a transaction
    key_deferrable: bool
    #: ISO 8601: when the oldest change that waits was committed, by the source's clock
    since: str


def load(path: LakePath) -> dict[str, Waiting]:
    """Return those of the lake at *path*, by their directories.

    Raises:
        LakeTableConflict: the file is not of this release.
    """
    found = versioned.read(
        _file(path),
        _FORMAT_VERSION,
        lambda value: {name: Waiting(**each) for name, each in value["tables"].items()},
        "Without it, tables that wait are brought up to date with their next change: move it away.",
    )
    return found or {}


def store(path: LakePath, tables: Mapping[str, Waiting]) -> None:
    """Make durable which ones wait."""
    told = {name: asdict(each) for name, each in sorted(tables.items())}
    replace_json(_file(path), {"version": _FORMAT_VERSION, "tables": told})


def _file(path: LakePath) -> LakePath:
    return path / "_spillway" / "waiting.json"
