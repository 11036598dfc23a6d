"""Tables that somebody wants loaded anew: ``<path>/_spillway/resyncs/<token>.json``, a file a wish.

A wish is durable before it is answered, and is there until the table was loaded after it::

    ask ──▶ wish ──▶ the job: the table's load is begun ──▶ loaded ──▶ the wish is removed
                          ▲   each of these may be the last before a death   │
                          └──────────── what a restart finds ◀───────────────┘

It says as of which LSN the table was loaded when it was written. Snapshots of loads only go
forward (:mod:`spillway.consumer.snapshots`), so a load that is done and as of another LSN came
after it, whoever made it, and the wish is fulfilled: nothing is loaded twice for one wish, and a
wish that is written when a load has just ended has the new LSN and stays.

A wish is never changed by two: who asks writes a file of its own, and only the one who loads, of
whom there is one, notes a failure in it or removes it. A second wish while the first one waits is
the same one.

Driver, and commands; small files, looked at often.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import LakeError
from spillway.lake.shape.payload import directory_named
from spillway.lake.state import versioned
from spillway.lake.state.loads import Stage, known_tables, load_state
from spillway.lake.state.quarantine import quarantined, release
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from collections.abc import Collection

    from spillway.lake.state.loads import LoadState
    from spillway.storage.place import LakePath

_FORMAT_VERSION: Final = 1


class ResyncState(StrEnum):
    """How far a wish is, as it is told."""

    WAITING = "waiting"
    LOADING = "loading"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Resync:
    """One wish."""

    #: ``schema.table``
    table: str
    #: ISO 8601, UTC
    asked_at: str
    #: as of which LSN it was loaded then; "": never
    after: str
    #: why the last try failed; "": it was not tried, or is at work
    reason: str = ""
    version: int = _FORMAT_VERSION
    #: of its file; not stored
    name: str = ""

    @property
    def directory(self) -> str:
        return directory_named(self.table)

    def __str__(self) -> str:
        if self.reason:
            return f"{self.table} is not loaded anew yet: {self.reason}"
        return f"{self.table} is loaded anew by the lake's job, as soon as no other load is at work"


@dataclass(frozen=True, slots=True)
class ResyncStep:
    """A step of a wish, for people."""

    table: str
    state: ResyncState
    asked_at: str
    reason: str = ""
    #: as of which it was loaded
    lsn: str = ""

    def __str__(self) -> str:
        if self.state == ResyncState.FAILED:
            return f"{self.table} could not be loaded anew: {self.reason}"
        if self.state == ResyncState.DONE:
            return f"{self.table} was loaded anew, as of {self.lsn}"
        if self.state == ResyncState.LOADING:
            return f"{self.table} is being loaded anew"
        return f"{self.table} is to be loaded anew"


def ask(path: LakePath, tables: Collection[str]) -> list[Resync]:
    """Ask for tables, by ``schema.table``, to be loaded anew; return the wishes, which are durable
    then.

    One that is set aside or paused may be asked for, too: a load leads it back, and a pause that
    has not begun does not begin. One that waits already keeps its wish; of one that failed the new
    wish is tried at once.

    Raises:
        LakeError: the lake has no such table, or loads it.
    """
    aside = quarantined(path)
    known = known_tables(path) | aside.keys()
    before = asked(path)
    loaded: dict[str, LoadState | None] = {}
    for table in tables:
        directory = directory_named(table)
        if directory not in known:
            raise LakeError(
                f"the lake at {path} has no table {table}",
                hint="Name it as schema.table; nothing of it has come yet, if it is to be there.",
                relation=table,
            )
        state = loaded[table] = load_state(path, directory)
        if state is not None and state.stage != Stage.DONE and not state.reason:
            earlier = before.get(directory)
            if earlier is None or not earlier.reason:
                raise LakeError(
                    f"{table} of the lake at {path} is being loaded",
                    hint="Ask for it when its load is done, if it is still to be loaded anew then.",
                    relation=table,
                )
    found = []
    for table, state in loaded.items():
        if (paused := aside.get(directory_named(table))) is not None and paused.is_asked:
            # The job might take it up only after the load: it would not be led back by that.
            release(path, directory_named(table))
        after = state.lsn if state is not None and state.stage == Stage.DONE else ""
        earlier = before.get(directory_named(table))
        if earlier is not None and earlier.after == after and not earlier.reason:
            found.append(earlier)
            continue
        name = f"{secrets.token_hex(8)}.json"
        wish = Resync(table, datetime.now(UTC).isoformat(), after, name=name)
        found.append(_put(path, wish))
        # Those before it are this one now: however often somebody asks, there are few files.
        _remove(path, wish, but=name)
    return found


def asked(path: LakePath) -> dict[str, Resync]:
    """Return the newest wish for each table, by its directory; who asked first comes first.

    Raises:
        LakeTableConflict: a file is not of this release.
    """
    newest: dict[str, Resync] = {}
    for wish in _all(path):
        other = newest.get(wish.directory)
        if other is None or other.asked_at <= wish.asked_at:
            newest[wish.directory] = wish
    return dict(sorted(newest.items(), key=lambda each: each[1].asked_at))


def is_done(path: LakePath, wish: Resync) -> bool:
    """Say whether the table was loaded after the wish."""
    state = load_state(path, wish.directory)
    return state is not None and state.stage == Stage.DONE and state.lsn != wish.after


def failed(path: LakePath, wish: Resync, reason: str) -> Resync:
    """Note why the table could not be loaded; the wish stays."""
    return _put(path, replace(wish, reason=reason))


def forget(path: LakePath, wish: Resync) -> None:
    """Remove a wish that is fulfilled or can't be, and those before it for the same table."""
    _remove(path, wish)


def _put(path: LakePath, wish: Resync) -> Resync:
    file = _folder(path) / wish.name
    file.parent.mkdir(parents=True, exist_ok=True)
    value = asdict(wish)
    del value["name"]
    replace_json(file, value)
    return wish


def _remove(path: LakePath, wish: Resync, *, but: str = "") -> None:
    for each in _all(path):
        same = each.table == wish.table and each.asked_at <= wish.asked_at
        if same and each.name != but:
            (_folder(path) / each.name).unlink(missing_ok=True)


def _all(path: LakePath) -> list[Resync]:
    folder = _folder(path)
    names = [file.name for file in folder.glob("*.json")] if folder.is_dir() else []
    found = []
    for name in sorted(names):
        wish = versioned.read(
            folder / name,
            _FORMAT_VERSION,
            partial(_wish, name),
            "Remove it, and ask for the table again.",
        )
        if wish is not None:
            found.append(wish)
    return found


def _wish(name: str, value: dict[str, Any]) -> Resync:
    return Resync(**value, name=name)


def _folder(path: LakePath) -> LakePath:
    return path / "_spillway" / "resyncs"
