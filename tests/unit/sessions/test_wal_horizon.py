"""Who holds WAL in a full store, and what an operator is told about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from spillway.errors import SpillwayError, StorageError
from spillway.sessions.wal_horizon import (
    GIVE_UP_AFTER_S,
    is_full,
    what_holds,
    who_counts,
)

if TYPE_CHECKING:
    from spillway.receiver.wal_writer import WalWriter
    from spillway.sessions.session import Session


@dataclass
class FakeSession:
    database: str
    required_lsn: int
    decoded_lsn: int = 1000
    read_lsn: int = 1000
    failed_for_s: float = 0.0
    error: SpillwayError | None = None


@dataclass
class FakeStore:
    first_lsn: int = 100
    received_lsn: int = 1000
    retained_bytes: int = 900
    segment_size: int = 100
    max_bytes: int | None = 900
    record_bytes: int = 50

    @property
    def reader(self) -> FakeStore:
        return self

    def read(self, lsn: int, max_bytes: int) -> bytes:
        return self.record_bytes.to_bytes(max_bytes, "little")


def told(*sessions: FakeSession, store: FakeStore | None = None, complete: bool = True) -> str:
    found = cast("list[Session]", list(sessions))
    return what_holds(found, cast("WalWriter", store or FakeStore()), complete=complete)


def test_the_database_that_holds_most_is_named() -> None:
    fine = FakeSession("fine", 900)
    assert '"behind", which needs WAL from 0/12C, is 600 bytes behind' in told(
        fine, FakeSession("behind", 300, decoded_lsn=400, read_lsn=450)
    )
    failed = FakeSession("failed", 200, error=StorageError("the disk is gone"))
    assert 'Decoding of database "failed" has stopped' in told(fine, failed)
    assert "the disk is gone" in told(fine, failed)
    assert 'catalog of database "new" is being read' in told(fine, FakeSession("new", 0))
    assert "GET /v1/sources" in told(fine, complete=False)


def test_a_record_that_is_too_long_is_named_with_what_it_needs() -> None:
    stuck = FakeSession("long", 150, decoded_lsn=160, read_lsn=1000)
    hint = told(stuck, store=FakeStore(record_bytes=800))
    assert "The WAL record at 0/A0 does not fit into it" in hint
    # From the first segment that it touches to the last, and one more.
    assert "SPILLWAY_WAL_STORE_MAX_BYTES to 1100 or more" in hint
    # One that fits comes when the checkpoint has freed what is before it; nonsense is no length.
    for record_bytes in (50, 600, 0, 2**32 - 1):
        assert "840 bytes behind" in told(stuck, store=FakeStore(record_bytes=record_bytes))
    # It is still being read.
    assert "840 bytes behind" in told(
        FakeSession("long", 150, decoded_lsn=160, read_lsn=999), store=FakeStore(record_bytes=800)
    )


@pytest.mark.parametrize(
    ("session", "store", "counts"),
    [
        (FakeSession("fine", 300), FakeStore(), True),
        (FakeSession("failed lately", 300, failed_for_s=1), FakeStore(), True),
        (FakeSession("failed for long", 300, failed_for_s=GIVE_UP_AFTER_S + 1), FakeStore(), False),
        (
            FakeSession(
                "failed for long, and there is room", 300, failed_for_s=GIVE_UP_AFTER_S + 1
            ),
            FakeStore(retained_bytes=800),
            True,
        ),
        (
            FakeSession("failed for long, without a bound", 300, failed_for_s=GIVE_UP_AFTER_S + 1),
            FakeStore(max_bytes=None),
            True,
        ),
        (FakeSession("what it needs is gone", 50), FakeStore(retained_bytes=800), False),
        (FakeSession("not known", 0), FakeStore(), True),
    ],
    ids=lambda value: value.database if isinstance(value, FakeSession) else "",
)
def test_whose_need_counts(session: FakeSession, store: FakeStore, *, counts: bool) -> None:
    found = who_counts(cast("list[Session]", [session]), cast("WalWriter", store))
    assert bool(found) == counts


def test_a_store_without_a_bound_is_never_full() -> None:
    assert is_full(cast("WalWriter", FakeStore()))
    assert not is_full(cast("WalWriter", FakeStore(retained_bytes=799)))
    assert not is_full(cast("WalWriter", FakeStore(max_bytes=None)))
