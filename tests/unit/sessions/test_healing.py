"""Where a log goes on, or begins anew, when decoding does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.errors import (
    CatalogAuditFailed,
    CorruptTransactionLog,
    CorruptWal,
    DecodingError,
    DiskFull,
    LsnNotRetained,
    SourceUnreachable,
    SpillwayError,
    StorageError,
    WalGap,
    WalLevelNotLogical,
)
from spillway.sessions.healing import LogSink, WholeFrom, begin_behind
from spillway.txlog import LogWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT = 1 << 20


class Whole(WholeFrom):
    """Knows of commits that were missed at some LSNs."""

    def __init__(self, *missed: int) -> None:
        self._missed = missed

    def first_lsn(self, consistent_lsn: int, known_to: int = 0) -> int:
        found = [lsn for lsn in self._missed if known_to <= lsn < consistent_lsn]
        return max(found) + 1 if found else known_to


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    with LogWriter(tmp_path, system_id=1, database_oid=5) as opened:
        opened.start(0x1000)
        opened.progress(0x2000)
        opened.checkpoint(0x2000)
        yield opened


def test_a_log_that_reaches_the_new_beginning_goes_on(log: LogWriter) -> None:
    LogSink(log, Whole(0x1800)).consistent(0x2000)
    assert (log.start_lsn, log.decoded_lsn, log.restart_lsn) == (0x1000, 0x2000, 0x2000)


def test_a_log_goes_on_when_nothing_was_committed_in_between(log: LogWriter) -> None:
    sink = LogSink(log, Whole(0x1800))
    # What decoding reads before it is consistent, it does not know.
    sink.progress(0x2800)
    log.publish()
    assert log.decoded_lsn == 0x2000
    sink.consistent(0x3000)
    sink.progress(0x3000)
    log.publish()
    assert (log.start_lsn, log.decoded_lsn) == (0x1000, 0x3000)


def test_a_log_begins_behind_the_last_commit_that_was_missed(log: LogWriter) -> None:
    sink = LogSink(log, Whole(0x2100, 0x2200))
    sink.progress(0x2900)
    log.publish()
    sink.consistent(0x3000)
    assert log.start_lsn == 0x2201
    assert log.restart_lsn == 0, "provisional until it is checkpointed"
    sink.progress(0x3000)
    log.publish()
    assert log.decoded_lsn == 0x3000


@pytest.mark.parametrize(
    "error",
    [DiskFull("full"), StorageError("not permitted"), SourceUnreachable("down")],
    ids=lambda error: error.code,
)
def test_nothing_is_given_up_for_what_time_mends(error: SpillwayError) -> None:
    assert begin_behind(error, SEGMENT) is None


@pytest.mark.parametrize(
    ("error", "behind"),
    [
        (CorruptWal("", lsn="0/1000"), 0x1001),
        (WalGap("", lsn="0/100000"), 0x200000),
        (DecodingError("", lsn="0/1000"), 0x1001),
        (CatalogAuditFailed("", lsn="0/1000"), 0x1001),
        (WalLevelNotLogical("", lsn="0/1000"), 0x1001),
        (LsnNotRetained("", lsn="0/1000"), 0x1001),
        (CorruptTransactionLog(""), 0),
        (SpillwayError("a bug"), 0),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_what_stops_decoding_is_passed_by_beginning_behind_it(
    error: SpillwayError, behind: int
) -> None:
    assert begin_behind(error, SEGMENT) == behind
