"""A log that is read by its directory alone: what the writer has published, whatever happens to the
files.
"""

from __future__ import annotations

import random
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from harness.followed_directories import LOG_START, log_line, log_lines, made, open_log
from spillway.errors import CorruptTransactionLog, LsnNotRetained, NotReady, StorageError
from spillway.storage.announcement import Announcer
from spillway.txlog import FollowedLog, TransactionCursor, writer
from spillway.txlog.opening import remove_segments
from spillway.txlog.reader import END_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.txlog import LogReader, LogWriter


def lsn_of(number: int) -> int:
    return LOG_START + number * 0x100


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    with open_log(tmp_path / "txlog", segment_bytes=8192) as log:
        yield log


@pytest.fixture
def followed(log: LogWriter) -> Iterator[FollowedLog]:
    followed = FollowedLog(log.directory)
    yield followed
    followed.close()


def begin(log: LogWriter) -> None:
    log.start(LOG_START)
    log.checkpoint(0x800)


def write(log: LogWriter, first: int, end: int, run: int = 0) -> None:
    for number in range(first, end):
        log.transaction(made(number, run, 1 + number % 3))
        log.progress(lsn_of(number) + 48)
        log.publish()


def same(log: LogWriter, followed: FollowedLog, lsn: int = LOG_START) -> list[str]:
    lines = log_lines(followed, lsn)
    assert lines == log_lines(log.reader, lsn)
    return lines


def test_what_is_published_can_be_read(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    assert same(log, followed) == []
    log.transaction(made(0, 0, 5))
    assert same(log, followed) == [], "not published"
    for number in range(60):
        write(log, number, number + 1)
        assert followed.snapshot() is followed.snapshot(), (
            "the same object as long as nothing is new"
        )
        assert len(same(log, followed)) == number + 1
        assert followed.decoded_lsn == log.decoded_lsn == lsn_of(number) + 48
        assert followed.retained_bytes == log.reader.retained_bytes
    assert len(log.segments()) > 8
    assert followed.start_lsn == LOG_START
    assert followed.restart_lsn == log.restart_lsn == 0x800
    # From everywhere, and by one who comes when all is written, whose index is made at once.
    late = FollowedLog(log.directory)
    for number in range(60):
        for reader in (followed, late):
            assert len(same(log, reader, lsn_of(number))) == 60 - number
            assert len(same(log, reader, lsn_of(number) + 1)) == 59 - number
            assert reader.bytes_from(lsn_of(number)) == log.reader.bytes_from(lsn_of(number))
    late.close()


def test_the_index_of_what_is_being_written_is_as_the_writers(tmp_path: Path) -> None:
    """A reader that begins near the end does not read from the beginning."""
    with open_log(tmp_path / "txlog", segment_bytes=64 << 20) as log:
        begin(log)
        followed = FollowedLog(log.directory)
        for first in range(0, 2000, 500):
            write(log, first, first + 500)
            last = first + 499
            assert len(same(log, followed, lsn_of(last))) == 1
            assert followed.bytes_from(lsn_of(last)) <= log.reader.bytes_from(lsn_of(last)) + (
                128 << 10
            )
            assert followed.bytes_from(lsn_of(last)) < 256 << 10 < log.reader.retained_bytes
        followed.close()


def test_a_cursor_goes_on(log: LogWriter, followed: FollowedLog) -> None:
    """Over segments that are sealed, and removed, while it stands in them."""
    begin(log)
    cursor = TransactionCursor(followed, LOG_START)
    assert cursor.next() is None
    for number in range(100):
        write(log, number, number + 1)
        if number % 7 == 0:
            log.checkpoint(0x800)
        if number % 5 == 0:
            log.remove_before(lsn_of(number))
        entry = cursor.next()
        assert entry is not None
        assert entry.header == made(number, 0).header
        assert b"".join(entry.chunks()) == b"".join(made(number, 0, 1 + number % 3).pieces)
        assert entry.relations[1 + number % 3].name == f"t_0_{number % 3}"
        assert cursor.next() is None
        assert cursor.decoded_lsn == lsn_of(number) + 48


def test_a_log_that_is_provisional_is_empty(log: LogWriter, followed: FollowedLog) -> None:
    log.start(LOG_START)
    write(log, 0, 5)
    assert len(log_lines(log.reader, LOG_START)) == 5
    assert followed.snapshot() is None
    assert followed.start_lsn is None
    assert (followed.decoded_lsn, followed.restart_lsn, followed.bytes_from(0)) == (0, 0, 0)
    log.checkpoint(0x800)
    assert len(same(log, followed)) == 5


def test_a_reader_that_is_too_late(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    write(log, 0, 10)
    cursor = TransactionCursor(followed, LOG_START)
    assert cursor.next() is not None
    write(log, 10, 80)
    log.remove_before(lsn_of(70))
    assert len(log.segments()) < 5
    # It has its segment open, and not the one after.
    with pytest.raises(LsnNotRetained):
        list(iter(cursor.next, None))
    with pytest.raises(LsnNotRetained, match="the transaction log begins at"):
        TransactionCursor(followed, LOG_START)
    assert same(log, followed, lsn_of(70))


def test_what_goes_is_told_before_it_goes(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    write(log, 0, 40)
    told: list[int | None] = []

    def remove(paths: list[Path]) -> None:
        told.append(followed.start_lsn)
        assert all(path.exists() for path in paths)
        remove_segments(paths)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "remove_segments", remove)
        log.remove_before(lsn_of(20))
        kept = log.start_lsn
        log.begin_anew(lsn_of(50))
    assert told == [kept, None]


def test_a_writer_that_comes_again(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    write(log, 0, 30)
    cursor = TransactionCursor(followed, LOG_START)
    while cursor.next() is not None:
        pass
    before = followed.snapshot()
    log.transaction(made(30, 0))
    log.close()
    assert len(log_lines(followed, LOG_START)) == 31, "closing publishes"
    last = max(log.directory.glob("*.txlog"))
    with last.open("ab") as file:
        file.write(b"torn")
    assert len(log_lines(followed, LOG_START)) == 31
    with open_log(log.directory, segment_bytes=8192) as again:
        write(again, 31, 60, run=1)
        assert len(same(again, followed)) == 60
        numbers = [entry.header.xid - 700 for entry in iter(cursor.next, None)]
        assert numbers == list(range(30, 60))
    after = followed.snapshot()
    assert before is not None
    assert after is not None
    assert after.segments[: len(before.segments)] == before.segments


def test_a_log_that_begins_anew(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    write(log, 0, 30)
    cursor = TransactionCursor(followed, LOG_START)
    while cursor.next() is not None:
        pass
    log.begin_anew(lsn_of(40))
    assert followed.snapshot() is None, "provisional"
    log.checkpoint(0x900)
    write(log, 40, 42, run=1)
    with pytest.raises(LsnNotRetained):
        cursor.next()
    assert len(same(log, followed, lsn_of(40))) == 2
    with pytest.raises(LsnNotRetained):
        TransactionCursor(followed, lsn_of(30))


def test_what_a_disk_lost_of_the_end_is_read_again(log: LogWriter, followed: FollowedLog) -> None:
    """The next writer cuts the log where damage begins; the same transactions come again, behind
    other ones maybe.
    """
    begin(log)
    write(log, 0, 30)
    cursor = TransactionCursor(followed, LOG_START)
    while cursor.next() is not None:
        pass
    log.close()
    last = max(log.directory.glob("*.txlog"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 10)
    with open_log(log.directory, segment_bytes=8192) as again:
        assert len(same(again, followed)) == 29
        # From where it was confirmed.
        confirmed = TransactionCursor(followed, lsn_of(29))
        write(again, 29, 60, run=1)
        # It must not go on in the next segment, behind what has come instead.
        with pytest.raises(LsnNotRetained):
            cursor.next()
        assert [entry.header.xid - 700 for entry in iter(confirmed.next, None)] == [*range(29, 60)]
        assert len(same(again, followed)) == 60


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_a_hole_is_said_and_mended(log: LogWriter, tmp_path: Path, damage: str) -> None:
    begin(log)
    write(log, 0, 60)
    segments = log.segments()
    damaged, following = segments[3], segments[4]
    whole = tmp_path / "whole"
    shutil.copyfile(damaged.path, whole)
    if damage == "bit":
        data = bytearray(whole.read_bytes())
        data[700] ^= 1
        damaged.path.write_bytes(data)
    elif damage == "cut":
        damaged.path.write_bytes(whole.read_bytes()[:1000])
    else:
        damaged.path.unlink()
    heard: list[int] = []
    followed = FollowedLog(log.directory, lambda segment: heard.append(segment.start_lsn))
    with pytest.raises(CorruptTransactionLog):
        log_lines(followed, damaged.start_lsn)
    # What a missing one would have begun with is not in the files; then it is behind the one
    # before.
    assert heard == [damaged.start_lsn if damage != "gone" else damaged.start_lsn - 0x100 + 1]
    assert log_lines(followed, following.start_lsn) == log_lines(log.reader, following.start_lsn)
    log.note_damage(damaged)
    assert log.damage() == (damaged.start_lsn, following.start_lsn)
    log.put_back(damaged.start_lsn, whole, damaged.start_lsn)
    assert len(same(log, followed)) == 60
    followed.close()


def test_a_segment_that_is_put_back_is_another_one(
    log: LogWriter, followed: FollowedLog, tmp_path: Path
) -> None:
    """What is decoded again need not lie in the file as it did."""
    begin(log)
    write(log, 0, 60)
    assert len(same(log, followed)) == 60
    segments = log.segments()
    damaged, following = segments[3], segments[4]
    first, end = ((s.start_lsn - LOG_START) // 0x100 for s in (damaged, following))
    with open_log(tmp_path / "beside", segment_bytes=1 << 62) as beside:
        beside.start(damaged.start_lsn)
        for number in range(first, end):
            beside.transaction(made(number, 100_000_000, 1 + number % 3))
        beside.checkpoint(0x800)
        (again,) = beside.segments()
    log.note_damage(damaged)
    log.put_back(damaged.start_lsn, again.path, damaged.start_lsn)
    for number in range(60):
        assert len(same(log, followed, lsn_of(number))) == 60 - number


def test_a_hole_at_the_beginning(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    write(log, 0, 5)
    log.miss(LOG_START - 0x100)
    assert followed.start_lsn == LOG_START - 0x100
    with pytest.raises(CorruptTransactionLog):
        log_lines(followed, LOG_START - 0x100)
    assert len(log_lines(followed, LOG_START)) == 5
    log.drop_through(LOG_START - 0x100)
    assert followed.start_lsn == LOG_START
    with pytest.raises(LsnNotRetained):
        log_lines(followed, LOG_START - 0x100)


def test_nobody_has_opened_it(tmp_path: Path) -> None:
    path = tmp_path / "txlog"
    with pytest.raises(NotReady, match="no service has opened") as early:
        FollowedLog(path)
    assert "Start the service that decodes into this directory" in early.value.hint
    # It is right.
    with open_log(path) as log:
        followed = FollowedLog(path)
        begin(log)
        write(log, 0, 3)
        assert len(same(log, followed)) == 3
    (path / END_NAME).unlink()
    with pytest.raises(NotReady):
        followed.snapshot()
    open_log(path).close()
    assert len(log_lines(followed, LOG_START)) == 3
    followed.close()
    followed.close()
    with pytest.raises(NotReady, match="closed"):
        followed.snapshot()


def test_listeners_are_told(log: LogWriter, followed: FollowedLog) -> None:
    begin(log)
    told = threading.Event()
    followed.add_listener(told.set)
    for number in range(5):
        told.clear()
        write(log, number, number + 1)
        while followed.decoded_lsn < lsn_of(number):
            pass
        assert told.wait(60)
    followed.remove_listener(told.set)
    others = [threading.Event(), threading.Event()]
    for other in others:
        followed.add_listener(other.set)
    # Whoever begins to listen is told to look, and so is everybody when it can't be followed any
    # more.
    assert others[0].wait(60)
    for other in others:
        other.clear()
    shutil.rmtree(log.directory)
    assert others[0].wait(60)
    assert others[1].wait(60)
    for other in others:
        followed.remove_listener(other.set)


def test_a_directory_that_cannot_be_told_fails_the_call(log: LogWriter) -> None:
    begin(log)
    log.transaction(made(0, 0))

    def refuse(_announcer: Announcer, *_: int) -> None:
        raise OSError(5, "no")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Announcer, "announce", refuse)
        with pytest.raises(StorageError):
            log.publish()
    # As after any write that failed, the session begins again with what is visible.
    log.recover()
    write(log, 1, 3)
    followed = FollowedLog(log.directory)
    assert len(same(log, followed)) == 3
    followed.close()


class _Follower:
    """One who reads on, from wherever it is, and remembers what it read."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._cursor: TransactionCursor | None = None
        self.at = LOG_START
        self.lines: dict[int, str] = {}

    def read(self, count: int) -> None:
        start = self._reader.start_lsn
        if start is None:
            return
        if self._cursor is None:
            self.at = max(self.at, start)
            self._cursor = TransactionCursor(self._reader, self.at)
        for _ in range(count):
            try:
                entry = self._cursor.next()
            except LsnNotRetained:
                # Only somebody who fell behind what is kept.
                start = self._reader.start_lsn
                assert start is not None
                assert self.at < start
                self._cursor.close()
                self._cursor = None
                return
            if entry is None:
                return
            final_lsn = entry.header.final_lsn
            assert final_lsn >= self.at
            used = 1 + (entry.header.xid - 700) % 3
            data = b"".join(entry.chunks())
            self.lines[final_lsn] = log_line(entry.header, {used: entry.relations[used]}, data)
            self.at = final_lsn + 1


@pytest.mark.parametrize("seed", range(12))
def test_any_course_of_things(tmp_path: Path, seed: int) -> None:
    """Writers that die with what they have not published, segments that go: all read the same, each
    thing once, in order.
    """
    numbers = random.Random(seed)
    directory = tmp_path / "txlog"
    log, run, number = open_log(directory, segment_bytes=8192), 0, 0
    begin(log)
    followed = [FollowedLog(directory) for _ in range(3)]
    readers = [_Follower(one) for one in (*followed, followed[0])]
    truth: dict[int, str] = {}
    written: dict[int, str] = {}
    for _ in range(250):
        what = numbers.choice(
            ("write",) * 8
            + ("publish",) * 4
            + ("read",) * 8
            + ("checkpoint", "remove", "recover", "kill")
        )
        match what:
            case "write":
                one = made(number, run, numbers.choice((1, 1, 2, 6)))
                used = 1 + number % 3
                written[lsn_of(number)] = log_line(
                    one.header, {used: one.relations[used]}, b"".join(one.pieces)
                )
                log.transaction(one)
                number += 1
            case "publish" | "checkpoint":
                if what == "publish":
                    log.publish()
                else:
                    log.checkpoint(0x800)
                truth |= written
            case "read":
                numbers.choice(readers).read(numbers.randrange(1, 20))
            case "remove":
                log.remove_before(lsn_of(max(number - numbers.randrange(10, 60), 0)))
            case "recover" | "kill":
                if what == "kill":
                    # Nothing of it is closed; what it had written and not published is torn, or
                    # whole.
                    last = log.segments()[-1].path
                    with last.open("ab") as file:
                        file.write(numbers.randbytes(numbers.randrange(40)))
                    log = open_log(directory, segment_bytes=8192)
                else:
                    log.recover()
                run += 1
                kept = [int(line_lsn) for line_lsn in written if line_lsn <= log.last_final_lsn]
                written = {line_lsn: written[line_lsn] for line_lsn in kept}
                truth |= written
                number = len(kept)
    log.publish()
    truth |= written
    for reader in readers:
        for _ in range(100):
            reader.read(1000)
        assert reader.at == max(truth) + 1
        assert list(reader.lines) == sorted(reader.lines)
        assert reader.lines == {at: truth[at] for at in reader.lines}
    log.close()
    for follower in followed:
        follower.close()
