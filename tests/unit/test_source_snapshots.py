"""Snapshots of a source, and the LSN that belongs to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.decoding.moment import DecodingMoment
from spillway.decoding.transaction import Prepared, TransactionHeader, TransactionKind
from spillway.errors import LsnNotRetained, SourceError
from spillway.source_snapshots.pairing import (
    OutOfOrder,
    Paired,
    Running,
    Taken,
    Undecided,
    pair,
)
from spillway.source_snapshots.visibility import SeenXids, distance
from spillway.txlog import LogWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from spillway.catalog.descriptor import RelationDescriptor

DATABASE = 16384
OTHER = 16385


class Empty:
    """A transaction of which only the header counts."""

    relations: dict[int, RelationDescriptor] = {}  # noqa: RUF012 - never written

    def __init__(self, header: TransactionHeader) -> None:
        self.header = header

    def chunks(self) -> Iterator[memoryview]:
        return iter(())

    def close(self) -> None: ...


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    made = LogWriter(tmp_path / "log", system_id=1, database_oid=DATABASE)
    made.start(100)
    yield made
    made.close()


def _commit(
    log: LogWriter, *commits: tuple[int, int], kind: TransactionKind = TransactionKind.COMMIT
) -> None:
    """Append commits (xid, LSN)."""
    for xid, lsn in commits:
        prepared = None if kind is TransactionKind.COMMIT else Prepared("g", 1, 2, 0)
        header = TransactionHeader(xid, lsn - 8, lsn, lsn + 8, 0, kind=kind, prepared=prepared)
        log.transaction(Empty(header))  # type: ignore[arg-type]
    log.publish()


def _taken(contents: str, lsn: int, running: Iterable[Running] = ()) -> Taken:
    return Taken(tuple(running), contents, lsn, 0)


def test_what_a_snapshot_sees() -> None:
    seen = SeenXids.parse("10:20:10,15")
    assert [xid for xid in range(8, 22) if seen.sees(xid)] == [8, 9, 11, 12, 13, 14, 16, 17, 18, 19]
    assert not SeenXids.parse("7:7:").sees(7)
    assert SeenXids.parse("7:7:").sees(6)


def test_xids_of_32_bits_beside_those_of_64() -> None:
    epoch = 5 << 32
    seen = SeenXids.parse(f"{epoch - 3}:{epoch + 4}:{epoch - 3},{epoch + 3}")
    last = (1 << 32) - 1
    assert [xid for xid in (last - 3, last - 2, last - 1, last, 3, 4, 5) if seen.sees(xid)] == [
        last - 3, last - 1, last,
    ]  # fmt: skip
    assert distance(2, last) == 3
    assert distance(last, 2) == -3


@pytest.mark.parametrize("text", ["", "1:2", "a:b:c", "1:2:3,x"])
def test_what_is_no_snapshot(text: str) -> None:
    with pytest.raises(SourceError):
        SeenXids.parse(text)


def test_without_anybody_who_hides_the_position_is_the_snapshots_moment(
    log: LogWriter,
) -> None:
    _commit(log, (10, 200), (11, 300))
    taken = _taken("12:12:", 400)
    assert pair(log.reader, taken, DecodingMoment(500, (), ()), DATABASE, 200) == Paired(400)


def test_the_position_is_that_of_the_first_who_is_not_seen(log: LogWriter) -> None:
    # 12 had its commit record written, and was still in the ProcArray; 13 came after the snapshot.
    _commit(log, (10, 200), (12, 300), (13, 320))
    taken = _taken("12:13:12", 400)
    assert pair(log.reader, taken, DecodingMoment(500, (), ()), DATABASE, 200) == Paired(300)


def test_who_is_seen_behind_one_who_is_not_spoils_it(log: LogWriter) -> None:
    _commit(log, (10, 200), (12, 300), (11, 350))
    taken = _taken("12:13:12", 400)
    outcome = pair(log.reader, taken, DecodingMoment(500, (), ()), DATABASE, 200)
    assert outcome == OutOfOrder(300, 12, 350, 11)
    assert "11" in str(outcome)
    assert "12" in str(outcome)


def test_what_commits_behind_the_snapshots_moment_is_no_matter(log: LogWriter) -> None:
    """VACUUM's transactions are in no snapshot: one that commits later looks as if it were seen."""
    _commit(log, (10, 200), (12, 420), (11, 450))
    taken = _taken("11:13:12", 400)
    assert pair(log.reader, taken, DecodingMoment(500, (), ()), DATABASE, 200) == Paired(400)


def test_prepared_transactions_count_when_they_commit(log: LogWriter) -> None:
    _commit(log, (12, 200), kind=TransactionKind.PREPARE)
    _commit(log, (13, 210))
    _commit(log, (12, 300), kind=TransactionKind.COMMIT_PREPARED)
    # Not seen, and its PREPARE is before what is.
    assert pair(
        log.reader, _taken("12:14:12", 250), DecodingMoment(500, (), ()), DATABASE, 200
    ) == Paired(250)
    assert pair(
        log.reader, _taken("12:14:12", 400), DecodingMoment(500, (), ()), DATABASE, 200
    ) == Paired(300)


def test_what_runs_for_long_is_not_waited_for(log: LogWriter) -> None:
    _commit(log, (20, 200), (21, 300))
    running = [
        # In progress where decoding is.
        Running(10, DATABASE, is_idle=False),
        # It idles, so it does not commit.
        Running(11, DATABASE, is_idle=True),
        Running(12, OTHER, is_idle=False),
        # It was seen in the end.
        Running(21, DATABASE, is_idle=False),
    ]
    taken = _taken("10:22:10,11,12", 400, running)
    assert pair(log.reader, taken, DecodingMoment(500, (10,), ()), DATABASE, 250) == Paired(400)


def test_one_of_whom_nothing_is_known(log: LogWriter) -> None:
    _commit(log, (9, 200), (15, 300))
    hung = Running(12, DATABASE, is_idle=False)
    taken = _taken("12:16:12", 400, [hung])
    assert pair(log.reader, taken, DecodingMoment(500, (), ()), DATABASE, 300) == Undecided((12,))
    # A record that says that it was not given out yet, and the log from there on.
    marks = ((120, 8), (150, 11), (290, 16))
    assert pair(log.reader, taken, DecodingMoment(500, (), marks), DATABASE, 300) == Paired(400)
    # The log does not reach back so far.
    before = ((90, 11),)
    assert pair(log.reader, taken, DecodingMoment(500, (), before), DATABASE, 300) == Undecided(
        (12,)
    )


def test_one_who_hangs_between_its_commit_record_and_its_end(log: LogWriter) -> None:
    """As under a synchronous standby that does not answer; its commit record is from before we
    began to look.
    """
    _commit(log, (9, 200), (12, 220))
    hung = Running(12, DATABASE, is_idle=False)
    moment = DecodingMoment(500, (), ((150, 11),))
    assert pair(log.reader, _taken("12:13:12", 400, [hung]), moment, DATABASE, 300) == Paired(220)
    _commit(log, (13, 310))
    outcome = pair(log.reader, _taken("12:14:12", 400, [hung]), moment, DATABASE, 300)
    assert outcome == OutOfOrder(220, 12, 310, 13)


def test_one_who_ran_before_and_commits_meanwhile(log: LogWriter) -> None:
    _commit(log, (9, 200), (12, 320))
    ran = Running(12, DATABASE, is_idle=False)
    # Its commit record is behind where decoding was, so nothing need be looked for further back.
    taken = _taken("12:13:12", 400, [ran])
    assert pair(log.reader, taken, DecodingMoment(500, (), ()), DATABASE, 300) == Paired(320)


def test_a_log_that_is_not_kept_so_far_back(log: LogWriter) -> None:
    _commit(log, (9, 200))
    with pytest.raises(LsnNotRetained):
        pair(log.reader, _taken("12:12:", 400), DecodingMoment(500, (), ()), DATABASE, 50)
