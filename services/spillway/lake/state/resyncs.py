"""Tables that somebody wants loaded anew: ``<path>/_spillway/resyncs/<token>.json``, a file a wish.

A wish is durable before it is answered, and is there until the table was loaded after it::

    ask ──▶ wish ──▶ the job: the table's load is begun ──▶ loaded ──▶ the wish is removed
                          ▲   each of these may be the last before a death   │
                          └──────────── what a restart finds ◀───────────────┘

It says as of which LSN the table was loaded when it was written. Snapshots of loads only go
forward (:mod:`spillway.consumer.snapshots`), so a load that is done and as of another LSN came
after it, whoever made it, and the wish is fulfilled: nothing is loaded twice for one wish, and a
wish that is written when a load has just ended has the new LSN and stays.

Until its load has begun a wish can be taken back. Both are one statement, which of the two comes
first succeeds: ``<token>.fate`` is put where nothing is, by the job (``begun``) or by who takes the
wish back (``cancelled``). One that is cancelled is none any more, and stays until the job has told
so; one that is begun and failed before its table was the load's is anybody's again.

A wish is never changed by two: who asks writes a file of its own, and only the one who loads, of
whom there is one, notes a failure in it or removes it. A second wish while the first one waits is
the same one.

Driver, and commands; small files, looked at often.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import Conflict, LakeError
from spillway.lake.shape.payload import directory_named
from spillway.lake.state import versioned
from spillway.lake.state.loads import Stage, is_loading, known_tables, load_state
from spillway.lake.state.quarantine import quarantined, release
from spillway.storage.place import put_new_text, replace_json

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
    CANCELLED = "cancelled"


class Fate(StrEnum):
    """What became of a wish first."""

    #: nothing yet
    OPEN = ""
    BEGUN = "begun"
    CANCELLED = "cancelled"


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
    #: of a file beside it; not stored there
    fate: Fate = Fate.OPEN

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
        if self.state == ResyncState.CANCELLED:
            return f"{self.table} is not loaded anew: the wish was taken back"
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


def cancel(path: LakePath, tables: Collection[str]) -> list[Resync]:
    """Take wishes back whose load has not begun; return them. They are no more then, whatever
    dies.

    Raises:
        Conflict: nobody asks for a table, or its load has begun; those named before it are
            cancelled.
    """
    found = []
    for table in tables:
        wishes = [wish for wish in _all(path) if wish.table == table]
        wishes = [wish for wish in wishes if wish.fate != Fate.CANCELLED]
        wishes = [wish for wish in wishes if not is_done(path, wish)]
        if not wishes:
            raise _not_asked(path, table)
        if is_loading(path, directory_named(table)):
            # By a load that failed, or another's: its current table waits for that.
            raise _begun(path, table)
        # The newest is the wish; with it those go whose removal somebody did not live to see.
        for wish in sorted(wishes, key=lambda each: each.asked_at):
            if _decided(path, wish, Fate.CANCELLED) != Fate.CANCELLED:
                raise _begun(path, table)
            if not (_folder(path) / wish.name).exists():
                # Loaded meanwhile, and removed with what said so.
                _fate_file(path, wish.name).unlink(missing_ok=True)
                raise _not_asked(path, table)
            found.append(replace(wish, fate=Fate.CANCELLED))
    newest = {wish.table: wish for wish in found}
    return list(newest.values())


def begin(path: LakePath, wish: Resync) -> bool:
    """Say that the wish's load begins; False: the wish was taken back before. For the one who
    loads, who may have said so before it died.
    """
    return _decided(path, wish, Fate.BEGUN) == Fate.BEGUN


def cancelled(path: LakePath) -> list[Resync]:
    """Return the wishes that were taken back, and that nobody has removed.

    Raises:
        LakeTableConflict: a file is not of this release.
    """
    return [wish for wish in _all(path) if wish.fate == Fate.CANCELLED]


def asked(path: LakePath) -> dict[str, Resync]:
    """Return the newest wish for each table, by its directory; who asked first comes first.

    Raises:
        LakeTableConflict: a file is not of this release.
    """
    newest: dict[str, Resync] = {}
    for wish in _all(path):
        if wish.fate == Fate.CANCELLED:
            continue
        other = newest.get(wish.directory)
        if other is None or other.asked_at <= wish.asked_at:
            newest[wish.directory] = wish
    return dict(sorted(newest.items(), key=lambda each: each[1].asked_at))


def is_done(path: LakePath, wish: Resync) -> bool:
    """Say whether the table was loaded after the wish."""
    state = load_state(path, wish.directory)
    return state is not None and state.stage == Stage.DONE and state.lsn != wish.after


def failed(path: LakePath, wish: Resync, reason: str) -> Resync:
    """Note why the table could not be loaded; the wish stays, and can be taken back unless its load
    has begun.
    """
    noted = _put(path, replace(wish, reason=reason)) if reason != wish.reason else wish
    if not is_loading(path, wish.directory):
        file = _fate_file(path, wish.name)
        with suppress(FileNotFoundError):
            if json.loads(file.read_text())["fate"] == Fate.BEGUN:
                file.unlink(missing_ok=True)
    return noted


def forget(path: LakePath, wish: Resync) -> None:
    """Remove a wish that is fulfilled or can't be, and those before it for the same table."""
    _remove(path, wish)


def _put(path: LakePath, wish: Resync) -> Resync:
    file = _folder(path) / wish.name
    file.parent.mkdir(parents=True, exist_ok=True)
    value = asdict(wish)
    del value["name"], value["fate"]
    replace_json(file, value)
    return wish


def _remove(path: LakePath, wish: Resync, *, but: str = "") -> None:
    for each in _all(path):
        same = each.table == wish.table and each.asked_at <= wish.asked_at
        if same and each.name != but:
            (_folder(path) / each.name).unlink(missing_ok=True)
            # In this order: what has no fate is a wish again.
            _fate_file(path, each.name).unlink(missing_ok=True)


def _decided(path: LakePath, wish: Resync, fate: Fate) -> Fate:
    """Have *fate* be the wish's, unless it has one; return the one that it has."""
    file = _fate_file(path, wish.name)
    said = {"version": _FORMAT_VERSION, "fate": fate, "by": secrets.token_hex(8)}
    while True:
        try:
            put_new_text(file, json.dumps(said))
        except FileExistsError:
            # It goes with its wish.
            with suppress(FileNotFoundError):
                return Fate(json.loads(file.read_text())["fate"])
        else:
            return fate


def _not_asked(path: LakePath, table: str) -> Conflict:
    return Conflict(
        f"nobody waits for {table} of the lake at {path} to be loaded anew",
        hint="There is nothing to take back: it was loaded by now, or was not asked for.",
        relation=table,
    )


def _begun(path: LakePath, table: str) -> Conflict:
    return Conflict(
        f"the load of {table} of the lake at {path} has begun",
        hint="Let it end: readers find the table as it was until all rows are there.",
        relation=table,
    )


def _all(path: LakePath) -> list[Resync]:
    folder = _folder(path)
    there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    names = [name for name in there if name.endswith(".json")]
    found = []
    for name in sorted(names):
        wish = versioned.read(
            folder / name,
            _FORMAT_VERSION,
            partial(_wish, name),
            "Remove it, and ask for the table again.",
        )
        if wish is not None:
            if _fate_file(path, name).name in there:
                wish = replace(wish, fate=_fate(path, name))
            found.append(wish)
    return found


def _fate(path: LakePath, name: str) -> Fate:
    found = versioned.read(
        _fate_file(path, name),
        _FORMAT_VERSION,
        lambda value: Fate(value["fate"]),
        "Remove it: the wish beside it is as if nobody had begun it.",
    )
    return Fate.OPEN if found is None else found


def _fate_file(path: LakePath, name: str) -> LakePath:
    return _folder(path) / f"{name.removesuffix('.json')}.fate"


def _wish(name: str, value: dict[str, Any]) -> Resync:
    return Resync(**value, name=name)


def _folder(path: LakePath) -> LakePath:
    return path / "_spillway" / "resyncs"
