"""Which history a lake's LSNs are of: ``<path>/_spillway/source.json``.

A lake knows its source by name, and leaves out what commits before the LSN that it has. Both are
true of one history only. Who drops a source and creates it again under its name, since its cluster
was made anew of a dump or set back to an older state, has LSNs that begin anew: a lake that is
beyond them would wait, without a word, until they reach it, and never have what lies before.

So the job writes down what the service says of its source, and looks when the source is another one
than it was. The service itself sees to it that one that was not created again stays on one history
(:mod:`spillway.receiver.continuity`), however often it fails over. Of one that was, a slot that
begins behind the lake's LSN leaves a gap at worst, which :func:`spillway.lake.state.position.check`
tells of.

A lake of an older release has no such file until its job is run.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from spillway.consumer.slot import SourceIdentity
from spillway.errors import LakeTableConflict
from spillway.lake.state import versioned
from spillway.pg.lsn import Lsn
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from spillway.consumer.slot import SlotPosition
    from spillway.lake.state.position import LakePosition
    from spillway.storage.place import LakePath

_FORMAT_VERSION: Final = 1


def settle(
    path: LakePath, lake: LakePosition, slot: SlotPosition, source: SourceIdentity | None
) -> None:
    """Check as :func:`check` does, and write down what *slot*'s source is now.

    Raises:
        LakeTableConflict: as there.
    """
    check(path, lake, slot, source)
    if source is not None and load(path) != source:
        replace_json(_file(path), {"version": _FORMAT_VERSION, **asdict(source)})


def check(
    path: LakePath, lake: LakePosition, slot: SlotPosition, source: SourceIdentity | None
) -> None:
    """Check that the LSNs of *lake* and of *slot*, whose source is *source*, are of one history.

    Args:
        path: the lake's.
        lake: where it stands.
        slot: where its slot stands.
        source: None: nobody knows.

    Raises:
        LakeTableConflict: they are not, or *lake*'s file can't be read.
    """
    if source is None or (known := load(path)) is None or known.created_at == source.created_at:
        return
    branched = (known.system_id, known.timeline) != (source.system_id, source.timeline)
    if lake.lsn_value <= slot.confirmed_flush_lsn or (
        not branched and lake.lsn_value <= slot.decoded_lsn
    ):
        return
    raise LakeTableConflict(
        f"the lake at {path} has everything before {lake.lsn} of source {slot.source} as it was: "
        f"cluster {known.system_id}, timeline {known.timeline}. The source was created again, and "
        f"is cluster {source.system_id}, timeline {source.timeline}, where slot {slot.slot_name} "
        f"begins at {Lsn(slot.confirmed_flush_lsn)} and is decoded up to {Lsn(slot.decoded_lsn)}: "
        "what commits before the lake's LSN would never get there",
        hint="Move the lake away, or name another directory, and load its tables from the source: "
        "spillway lake run --initial-load. What it has can be read on where it is.",
        slot=slot.slot_name,
        lsn=lake.lsn,
    )


def load(path: LakePath) -> SourceIdentity | None:
    """Return what a lake's source was when its job was run last, None when that is not known.

    Raises:
        LakeTableConflict: the file is not of this release.
    """
    return versioned.read(_file(path), _FORMAT_VERSION, _made, "Restore it from a copy.")


def _made(value: dict[str, Any]) -> SourceIdentity:
    return SourceIdentity(str(value["system_id"]), int(value["timeline"]), str(value["created_at"]))


def _file(lake: LakePath) -> LakePath:
    return lake / "_spillway" / "source.json"
