"""The LSNs at which all tables of a lake agree: ``<path>/_spillway/commits/``.

Tables commit one by one, so while a batch is written some are ahead of others. When all tables of a
batch are durable at its end, that LSN is published here: everything that commits before it is in
every table's commit up to it, and what commits later is in later commits of the tables. A reader
that takes of each table the newest commit that is not after one published LSN sees every
transaction whole, across tables, however long it reads (:mod:`spillway.lake.read`).

::

    _spillway/commits/<decimal, 20 digits>.jsonl    named by its first point; one line a point, in
                                                    the order of LSNs

The last file is replaced whole for each point, which an object store can do, too; a full one stays
as it is. The oldest go when there are many: readers keep to what the tables' own retention leaves,
which is less.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.errors import LakeError, LakeTableConflict
from spillway.pg.lsn import Lsn
from spillway.storage.place import replace_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from spillway.storage.place import LakePath

_POINTS_PER_FILE: Final = 500
#: Older files are removed: 100,000 points are days of batches, one a few seconds.
_FILES_MAX: Final = 200
#: Who writes is the lake's job: a batch, and its maintenance beside it.
_writing = threading.Lock()


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """Every table but those that were being loaded has everything whose commit record starts before
    *lsn*.
    """

    lsn: str
    #: ISO 8601, UTC: when it was published
    published_at: str
    batch_id: int
    #: changes of the batch that were new to history
    changes: int
    #: tables (their directories) whose current state was not as of this: they were being loaded, in
    #: quarantine, or waited for a merge at a pace of their own, and still do
    loading: list[str] = field(default_factory=list)

    @property
    def lsn_value(self) -> int:
        return Lsn.parse(self.lsn)


def publish(path: LakePath, lsn: int, batch_id: int, changes: int, loading: list[str]) -> None:
    """Make a point durable; one that is there already, or is before the last one, changes
    nothing.
    """
    with _writing:
        files = _files(path)
        points = _read(files[-1]) if files else []
        if points and points[-1].lsn_value >= lsn:
            return
        now = datetime.now(UTC).isoformat()
        point = CommitPoint(str(Lsn(lsn)), now, batch_id, changes, loading)
        if files and len(points) < _POINTS_PER_FILE:
            file = files[-1]
        else:
            points = []
            file = _directory(path) / f"{lsn:020d}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, (*points, point))
        for old in files[:-_FILES_MAX]:
            old.unlink()


def caught_up(path: LakePath, lsn: int, exactly: Collection[str], ever: Collection[str]) -> None:
    """Hear that current tables were brought up to *lsn*, a point's: those *exactly* to it, and
    *ever*, as of which nothing has come since, so that they are as of all later points, too.
    """
    with _writing:
        for file in reversed(_files(path)):
            found = _read(file)
            changed = [_without(point, lsn, exactly, ever) for point in found]
            if changed != found:
                _replace(file, changed)
            if found and found[0].lsn_value <= lsn:
                return


def _without(
    point: CommitPoint, lsn: int, exactly: Collection[str], ever: Collection[str]
) -> CommitPoint:
    at = point.lsn_value
    gone = {*ever, *(exactly if at == lsn else ())} if at >= lsn else set()
    if gone.isdisjoint(point.loading):
        return point
    return replace(point, loading=[name for name in point.loading if name not in gone])


def _replace(file: LakePath, found: Iterable[CommitPoint]) -> None:
    replace_text(file, "".join(f"{json.dumps(asdict(each))}\n" for each in found))


def points(path: LakePath) -> Iterator[CommitPoint]:
    """Yield all points, the newest first."""
    for file in reversed(_files(path)):
        yield from reversed(_read(file))


def newest_published_at(path: LakePath) -> datetime | None:
    """Return when the newest point was published, None when there is none."""
    newest = next(points(path), None)
    return None if newest is None else datetime.fromisoformat(newest.published_at)


def forget(path: LakePath, before: datetime) -> int:
    """Give up the points that were published before *before*, but for the newest of all; return how
    many.
    """
    with _writing:
        forgotten = 0
        files = _files(path)
        for file in files:
            found = _read(file)
            kept = [p for p in found if datetime.fromisoformat(p.published_at) >= before]
            if not kept and file == files[-1]:
                kept = found[-1:]
            if not kept:
                file.unlink()
            elif len(kept) < len(found):
                # Named by its first point still: names only have to be in order.
                _replace(file, kept)
            forgotten += len(found) - len(kept)
    return forgotten


def at(path: LakePath, lsn: int | None = None, tables: Collection[str] = ()) -> CommitPoint:
    """Return the newest point that is not after *lsn*, the newest of all for None, of which all of
    *tables* (their directories) are.

    Raises:
        LakeError: there is none: nothing was written yet, or it was so long ago that it is
            forgotten.
    """
    for point in points(path):
        if (lsn is None or point.lsn_value <= lsn) and not {*tables} & {*point.loading}:
            return point
    if tables:
        raise LakeError(
            f"the lake at {path} has no consistent LSN with all of {', '.join(sorted(tables))}",
            hint="They were being loaded, in quarantine or waiting for a merge at each; `spillway "
            "lake points` lists what there is.",
        )
    if lsn is None:
        raise LakeError(
            f"the lake at {path} has no consistent LSN yet",
            hint="Run `spillway lake run` first; a batch that has ended publishes one.",
        )
    raise LakeError(
        f"the lake at {path} has no consistent LSN up to {Lsn(lsn)}",
        hint="It began later, or what it knew of then was given up. `spillway lake points` lists "
        "what there is.",
        lsn=str(Lsn(lsn)),
    )


def _directory(path: LakePath) -> LakePath:
    return path / "_spillway" / "commits"


def _files(path: LakePath) -> list[LakePath]:
    return sorted(
        file for file in _directory(path).glob("*.jsonl") if file.stem.isdecimal()
    )  # fmt: skip


def _read(file: LakePath) -> list[CommitPoint]:
    try:
        return [CommitPoint(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]
    except FileNotFoundError:
        # Given up since it was listed.
        return []
    except (TypeError, ValueError) as error:
        raise LakeTableConflict(
            f"{file} can't be read: {error}",
            hint="It was written by another release, or is damaged. Moved away, it only makes its "
            "LSNs unknown.",
        ) from error
