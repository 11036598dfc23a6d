"""Wishes to load tables anew: their files, and what a job makes of them, with loads that are done,
fail, or are cut off as the test says.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from spillway.errors import (
    Conflict,
    LakeError,
    LakeTableConflict,
    NotReady,
    SourceError,
    ValueNotRepresentable,
)
from spillway.lake.job import table_loads
from spillway.lake.job.run import JobSettings
from spillway.lake.job.status_file import LakeStatusFile
from spillway.lake.job.table_loads import Ending
from spillway.lake.load.initial_load import LoadFailed
from spillway.lake.state import quarantine, resyncs
from spillway.lake.state.loads import LoadState, Stage, load_state, store_state
from spillway.subscriber.run_status import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spillway.subscriber.model import TableState

T, U = "public.t", "public.u"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """One of two tables, both of which were loaded."""
    path = tmp_path / "lake"
    for name in (T, U):
        (path / "history" / name).mkdir(parents=True)
        store_state(path, name, LoadState(name, Stage.DONE, lsn="0/10"))
    return path


def test_a_wish_is_there_until_the_table_was_loaded_after_it(lake: Path) -> None:
    (wish,) = resyncs.ask(lake, [T])
    assert resyncs.asked(lake) == {T: wish}
    assert (wish.after, wish.reason, resyncs.is_done(lake, wish)) == ("0/10", "", False)
    assert "is loaded anew by the lake's job" in str(wish)
    # Again, while it waits: the same one.
    assert resyncs.ask(lake, [T, U])[0] == wish
    assert len(resyncs.asked(lake)) == 2

    store_state(lake, T, LoadState(T))
    with pytest.raises(LakeError, match="is being loaded"):
        resyncs.ask(lake, [U, T])
    assert not resyncs.is_done(lake, wish)
    store_state(lake, T, LoadState(T, Stage.DONE, lsn="0/20"))
    assert resyncs.is_done(lake, wish)
    # One that comes before that is removed is a wish of its own, and stays.
    (later,) = resyncs.ask(lake, [T])
    assert (later.after, resyncs.is_done(lake, later)) == ("0/20", False)
    resyncs.forget(lake, wish)
    assert resyncs.asked(lake)[T] == later
    resyncs.forget(lake, later)
    assert list(resyncs.asked(lake)) == [U]


def test_a_wish_that_failed_is_made_anew_and_leaves_no_files(lake: Path) -> None:
    for number in range(5):
        (wish,) = resyncs.ask(lake, [T])
        assert wish.reason == ""
        failed = resyncs.failed(lake, wish, f"reason {number}")
        assert resyncs.asked(lake) == {T: failed}
        assert str(failed) == f"{T} is not loaded anew yet: reason {number}"
    assert len(list((lake / "_spillway" / "resyncs").iterdir())) == 1
    # Its load was begun, and failed: it may be asked for then, too.
    store_state(lake, T, LoadState(T))
    (wish,) = resyncs.ask(lake, [T])
    assert (wish.after, wish.reason) == ("", "")


def test_what_can_be_asked_for(lake: Path) -> None:
    with pytest.raises(LakeError, match=r"has no table public\.x"):
        resyncs.ask(lake, [T, "public.x"])
    assert resyncs.asked(lake) == {}
    # A pause that has not begun does not begin; one that has is ended by the load.
    quarantine.pause(lake, [T])
    begun = quarantine.made(U, 0x15, "paused")
    quarantine.put(lake, U, begun)
    resyncs.ask(lake, [T, U])
    assert quarantine.quarantined(lake) == {U: begun}
    (lake / "_spillway" / "resyncs" / "x.json").write_text('{"version": 2}')
    with pytest.raises(LakeTableConflict, match="another release"):
        resyncs.asked(lake)


def test_a_wish_is_taken_back_until_its_load_begins(lake: Path) -> None:
    with pytest.raises(Conflict, match=r"nobody waits for public\.t"):
        resyncs.cancel(lake, [T])
    wish, other = resyncs.ask(lake, [T, U])
    (taken,) = resyncs.cancel(lake, [T])
    assert taken.name == wish.name
    assert list(resyncs.asked(lake)) == [U]
    assert not resyncs.begin(lake, wish)
    with pytest.raises(Conflict, match="nobody waits"):
        resyncs.cancel(lake, [T])
    # What the job notes behind it does not bring it back, and who asks again has a wish.
    resyncs.failed(lake, wish, "no such host")
    assert list(resyncs.asked(lake)) == [U]
    (again,) = resyncs.ask(lake, [T])
    assert resyncs.asked(lake)[T] == again
    assert not resyncs.cancelled(lake)
    # Written by a job that had read it before.
    resyncs.failed(lake, wish, "no such host, really")
    resyncs.cancel(lake, [T])
    assert list(resyncs.asked(lake)) == [U]

    # The other order, twice since the first may have died of it.
    assert resyncs.begin(lake, other)
    assert resyncs.begin(lake, other)
    with pytest.raises(Conflict, match="has begun"):
        resyncs.cancel(lake, [U])
    # It failed before the table was the load's.
    noted = resyncs.failed(lake, other, "no such host")
    resyncs.failed(lake, noted, "no such host")
    resyncs.cancel(lake, [U])
    # One whose table waits for a load that failed can't be; nor one that was loaded.
    store_state(lake, U, LoadState(U, reason="infinity"))
    (wish,) = resyncs.ask(lake, [U])
    with pytest.raises(Conflict, match="has begun"):
        resyncs.cancel(lake, [U])
    store_state(lake, U, LoadState(U, Stage.DONE, lsn="0/20"))
    with pytest.raises(Conflict, match="nobody waits"):
        resyncs.cancel(lake, [U])
    resyncs.forget(lake, wish)
    for each in resyncs.cancelled(lake):
        resyncs.forget(lake, each)
    assert list((lake / "_spillway" / "resyncs").iterdir()) == []


def test_a_wish_that_ended_meanwhile_is_not_taken_back(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded, and removed, between the look and the statement."""
    (wish,) = resyncs.ask(lake, [T])

    def decided(*arguments: Any) -> resyncs.Fate:
        resyncs.begin(lake, wish)
        resyncs.forget(lake, wish)
        return real(*arguments)

    real = resyncs._decided
    with monkeypatch.context() as patch:
        patch.setattr(resyncs, "_decided", lambda *a: patch.undo() or decided(*a))
        with pytest.raises(Conflict, match="nobody waits"):
            resyncs.cancel(lake, [T])
    assert list((lake / "_spillway" / "resyncs").iterdir()) == []


class Loads:
    """What loads tables, in a test: each load takes the next of what is said."""

    def __init__(self, lake: Path, *said: object) -> None:
        self.lake = lake
        self.said = list(said)
        self.chosen: list[list[str]] = []
        self.lsn = 0x20

    @contextmanager
    def prepare(self) -> Iterator[Loads]:
        if self.said and isinstance(self.said[0], LakeTableConflict):
            raise self.said.pop(0)  # type: ignore[misc]
        yield self

    def choose(self, wanted: list[str], *, missing_only: bool, resync: bool) -> list[str]:
        assert (missing_only, resync) == (False, True)
        self.chosen.append(list(wanted))
        for table in wanted:
            state = load_state(self.lake, table)
            if state is None or state.stage == Stage.DONE:
                store_state(self.lake, table, LoadState(table))
        return list(wanted)

    def run(self, chosen: list[str]) -> list[LoadFailed]:
        said = self.said.pop(0) if self.said else None
        if isinstance(said, ValueNotRepresentable):
            store_state(self.lake, chosen[0], LoadState(chosen[0], reason=str(said)))
            return [LoadFailed(chosen[0], said)]
        if callable(said):
            said()
        elif isinstance(said, BaseException):
            raise said
        self.lsn += 0x10
        for table in chosen:
            store_state(self.lake, table, LoadState(table, Stage.DONE, lsn=f"0/{self.lsn:X}"))
        return []


class Job:
    """A job's loader, with a status file."""

    def __init__(
        self, lake: Path, loads: Loads, monkeypatch: pytest.MonkeyPatch, **changed: Any
    ) -> None:
        values: dict[str, Any] = {
            "slot": "s",
            "path": lake,
            "checkpoint": lake / "c",
            "source_dsn": "host=db",
        }
        self.lake = lake
        self.settings = JobSettings(**values | changed)
        self.stopping = threading.Event()
        self.steps: list[str] = []
        self.status = LakeStatusFile(lake / "status.json")
        self.status.loads(lake)
        #: of the source, and why it can't be read
        self.tables = {T, U}
        self.refuses: SourceError | None = None
        monkeypatch.setattr(table_loads.initial_load_run, "check_load", self._check)
        self.loader = table_loads._Loader(
            self.settings,
            loads.prepare,  # type: ignore[arg-type]
            self.stopping,
            self._report,
        )

    def _check(self, *_: object, **__: object) -> None:
        if self.refuses is not None:
            raise self.refuses

    def _report(self, step: object) -> None:
        self.steps.append(str(getattr(step, "state", step)))
        self.status.heard(self.lake, step)

    def told(self, table: str = T) -> TableState:
        self.status.begun()
        told = RunStatus.load(self.lake)
        assert told is not None
        return {each.table: each for each in told.tables}[table]


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name


def job_of(lake: Path, loads: Loads, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Job:
    job = Job(lake, loads, monkeypatch, **changed)

    class Source:
        def __init__(self, *_: object) -> None:
            pass

        def tables(self, wanted: object) -> list[_Named]:
            return [_Named(name) for name in sorted(job.tables)]

    monkeypatch.setattr(table_loads, "Source", Source)
    return job


def test_what_is_asked_for_is_loaded_once(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(lake)
    job = job_of(lake, loads, monkeypatch)
    job.loader.look()
    resyncs.ask(lake, [T, U])
    for _ in range(3):
        job.loader.look()
    # Together, so that they share a snapshot.
    assert loads.chosen == [[T, U]]
    assert job.steps == ["waiting", "waiting", "loading", "loading", "done", "done"]
    told = job.told()
    assert told.resync is not None
    assert (told.state, told.resync.state, str(told.resync.lsn)) == ("ready", "done", "0/30")
    assert resyncs.asked(lake) == {}


def test_what_is_taken_back_is_not_loaded(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a job looks, after it told of the wish, and as the load begins."""
    loads = Loads(lake)
    job = job_of(lake, loads, monkeypatch)
    resyncs.ask(lake, [T])
    resyncs.cancel(lake, [T])
    job.loader.look()
    assert job.steps == ["cancelled"]
    assert list((lake / "_spillway" / "resyncs").iterdir()) == []
    told = job.told().resync
    assert told is not None
    assert (told.state, told.ended_at is not None, job.told().state) == ("cancelled", True, "ready")

    real = resyncs.begin

    def begin(path: Path, wish: resyncs.Resync) -> bool:
        if wish.table == T:
            resyncs.cancel(path, [T])
        return real(path, wish)

    monkeypatch.setattr(resyncs, "begin", begin)
    resyncs.ask(lake, [T, U])
    job.loader.look()
    assert loads.chosen == [[U]]
    assert job.steps[1:] == ["waiting", "waiting", "cancelled", "loading", "done"]
    assert list((lake / "_spillway" / "resyncs").iterdir()) == []
    monkeypatch.setattr(resyncs, "begin", real)

    # Told as waiting by a run that ended; nobody takes it for loaded.
    (wish,) = resyncs.ask(lake, [T])
    job._report(resyncs.ResyncStep(T, resyncs.ResyncState.WAITING, wish.asked_at))
    job.told()
    resyncs.cancel(lake, [T])
    told = job_of(lake, loads, monkeypatch).told().resync
    assert told is not None
    assert told.state == "cancelled"


def test_the_tables_own_trouble_and_others(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(
        lake,
        ValueNotRepresentable("infinity", hint="Mend it.", relation=T),
        SourceError("it went away", hint="Start it."),
    )
    job = job_of(lake, loads, monkeypatch)
    resyncs.ask(lake, [T])
    job.loader.look()
    told = job.told()
    assert (told.state, told.reason) == ("waiting", "infinity. Mend it.")
    assert told.resync is not None
    assert told.resync.state == "failed"
    status = RunStatus.load(lake)
    assert status is not None
    # It is not this program's start that has to bring it: the wish is there.
    assert (status.is_copying, status.has_first_copies) == (True, False)
    assert not status.has_copies_under_way
    # Not at once, but when somebody asks again.
    job.loader.look()
    assert len(loads.chosen) == 1
    resyncs.ask(lake, [T])
    job.loader.look()
    told = job.told()
    assert told.resync is not None
    assert (told.resync.state, told.reason) == ("failed", "it went away. Start it.")
    # By itself after a while.
    later = job.loader._tried
    assert [each.pause_s for each in later.values()] == [5.0]
    next(iter(later.values())).at = 0.0
    job.loader.look()
    assert job.told().state == "ready"
    assert job.told().reason is None
    assert resyncs.asked(lake) == {}


def test_the_source_is_not_reached(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(lake, LakeTableConflict("tables are being loaded already", hint="Wait."))
    job = job_of(lake, loads, monkeypatch)
    job.refuses = SourceError("no such host", hint="Name another.")
    resyncs.ask(lake, [T])
    job.loader.look()
    # The table is as it was, and followed.
    told = job.told()
    assert told.resync is not None
    assert (told.state, told.reason) == ("ready", None)
    assert told.resync.reason == "no such host. Name another."
    (wish,) = resyncs.asked(lake).values()
    assert wish.reason == told.resync.reason
    job.refuses = None
    # Another process loads meanwhile.
    for pause_s in (5.0, 10.0):
        (later,) = job.loader._tried.values()
        assert later.pause_s == pause_s
        later.at = 0.0
        job.loader.look()
    assert resyncs.asked(lake) == {}
    assert loads.chosen == [[T]]


def test_what_trying_again_does_not_help(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(lake)
    job = job_of(lake, loads, monkeypatch, tables=(U, "public.root"))
    resyncs.ask(lake, [T])
    job.tables = {U}
    job.loader.look()
    told = job.told()
    assert told.resync is not None
    assert told.resync.reason is not None
    assert "no such table" in told.resync.reason
    assert told.resync.reason.endswith("It is not tried again")
    assert resyncs.asked(lake) == {}
    # Without a DSN it may help: another run has one.
    job = job_of(lake, loads, monkeypatch, source_dsn="")
    resyncs.ask(lake, [U])
    job.loader.look()
    assert "SPILLWAY_LAKE_SOURCE_DSN" in resyncs.asked(lake)[U].reason
    assert loads.chosen == []
    # What can't be read ends nothing, and is told once.
    (lake / "_spillway" / "resyncs" / "x.json").write_text("{")
    job.loader.look()
    job.loader.look()


def test_an_end_in_the_middle_leaves_the_wish(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> None:
        job.stopping.set()
        raise NotReady("the load was stopped", hint="Run it again.")

    loads = Loads(lake, ends)
    job = job_of(lake, loads, monkeypatch)
    resyncs.ask(lake, [T])
    job.loader.look()
    assert job.steps == ["waiting", "loading"]
    (wish,) = resyncs.asked(lake).values()
    assert wish.reason == ""
    # The next run goes on.
    job = job_of(lake, loads, monkeypatch)
    told = job.told()
    assert told.resync is not None
    assert (told.state, told.resync.state) == ("waiting", "waiting")
    job.loader.look()
    assert job.told().state == "ready"


def test_a_death_before_it_was_told(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the load and the wish's removal; and between that and the news of it."""
    loads = Loads(lake)
    job = job_of(lake, loads, monkeypatch)
    (wish,) = resyncs.ask(lake, [T])
    job._report(resyncs.ResyncStep(T, resyncs.ResyncState.LOADING, wish.asked_at))
    store_state(lake, T, LoadState(T, Stage.DONE, lsn="0/20"))
    again = job_of(lake, loads, monkeypatch)
    again.loader.look()
    assert loads.chosen == []
    assert again.steps == ["done"]

    job._report(resyncs.ResyncStep(T, resyncs.ResyncState.LOADING, wish.asked_at))
    job.told()
    told = job_of(lake, loads, monkeypatch).told()
    assert told.resync is not None
    assert (told.state, told.resync.state, str(told.resync.lsn)) == ("ready", "done", "0/20")
    assert loads.chosen == []


def test_loads_that_failed_are_tried_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wish; one that somebody has loaded meanwhile is not."""
    for table in (T, U):
        store_state(lake, table, LoadState(table, reason="infinity"))
    loads = Loads(lake, SourceError("it went away", hint="Start it."))
    job = job_of(lake, loads, monkeypatch)
    monkeypatch.setattr(table_loads, "_LOAD_AGAIN_S", 0.0)
    monkeypatch.setattr(table_loads, "_LOOK_S", 0.01)
    store_state(lake, U, LoadState(U, Stage.DONE, lsn="0/20"))
    thread = threading.Thread(target=job.loader.until_stopped, args=([T, U],))
    thread.start()
    wait(lambda: (state := load_state(lake, T)) is not None and state.stage == Stage.DONE)
    job.stopping.set()
    thread.join()
    assert loads.chosen == [[T], [T]]


def wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_ends_alone() -> None:
    every = threading.Event()
    one, other = Ending(every), Ending(every)
    assert not one.wait(0)
    one.set()
    assert (one.wait(), one.is_set(), other.is_set(), every.is_set()) == (True, True, False, False)
    threading.Timer(0.05, every.set).start()
    assert other.wait(60)
