"""The WAL store against a model: any course of appends, syncs, failures, crashes, removals and
forks.

WAL here is a function of position and timeline, as it is in reality: what is received again is the
same. The model is that function, the forks and a few numbers. After every step the store must hold
exactly the model's bytes; after a crash, which leaves anything behind the last sync, everything
that was confirmed. Somebody follows the directory all the while, and reads nothing but the model's
bytes, and nothing that a crash takes away.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from spillway import failpoints
from spillway.errors import LsnNotRetained, StorageError
from spillway.pg.wal_segment import parse_segment_name
from spillway.receiver.segment_file import SegmentFile
from spillway.receiver.store_state import STATE_NAME, StateFile, StoreState
from spillway.receiver.wal_reader import FollowedWal
from spillway.receiver.wal_writer import WalWriter

SIZE = 1 << 20
START = 7 * SIZE
NEAR_BOUNDARY = st.one_of(
    st.integers(1, 9000),
    st.integers(SIZE - 3, SIZE + 3),
    st.sampled_from([8192, SIZE // 2, 2 * SIZE, 2 * SIZE + 1]),
)
FAILURE = st.sampled_from(
    [
        "walstore.create_segment=error:ENOSPC@1",
        "walstore.write=error:ENOSPC@1",
        "walstore.write=error:EIO@2",
        "walstore.before_fsync=error:EIO@1",
        "walstore.before_fsync=error:EIO@2",
        "walstore.after_fsync=error:EIO@1",
        "walstore.before_state_fsync=error:EIO@1",
        "walstore.after_state_fsync=error:EIO@1",
        "walstore.remove=error:EIO@1",
    ]
)


#: The bytes of a timeline are these, from an offset of its own: coprime to the segment size, so
#: that no two segments and no two timelines are alike.
PATTERN = random.Random(1).randbytes(1_000_003)


def pattern(timeline: int, lsn: int, count: int) -> bytes:
    start = (lsn + timeline * 77_777) % len(PATTERN)
    repeated = PATTERN * ((start + count) // len(PATTERN) + 1)
    return repeated[start : start + count]


def state_on_disk(contents: bytes, scratch: Path) -> StoreState:
    """What opening the store would find."""
    path = scratch / "state"
    path.write_bytes(contents)
    file = StateFile.open(path)
    file.close()
    return file.state


class WalStoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp(prefix="spillway-model-"))
        self.directory = self.scratch / "wal"
        self.state_path = self.directory / STATE_NAME
        self.noise = random.Random(4711)

    @initialize()
    def create(self) -> None:
        self.store = WalWriter(self.directory, system_id="1", segment_size=SIZE, start_lsn=START)
        self.received = START
        #: (fork, timeline) in order; the first has no fork
        self.forks = [(START, 1)]
        #: contents of the state file that are certainly durable; None: not known
        self.durable_state: bytes | None = self.state_path.read_bytes()
        self.followed = FollowedWal(self.directory)
        self.followed_to = START

    def follow(self) -> None:
        """Read on in the directory."""
        while True:
            try:
                data = self.followed.read(self.followed_to, SIZE)
            except LsnNotRetained:
                assert self.followed_to < self.store.first_lsn
                self.followed_to = int(self.followed.first_lsn)
                continue
            if not data:
                break
            assert data == self.expected(self.followed_to, len(data))
            self.followed_to += len(data)

    def expected(self, lsn: int, count: int) -> bytes:
        pieces = []
        for index, (fork, timeline) in enumerate(self.forks):
            end = self.forks[index + 1][0] if index + 1 < len(self.forks) else lsn + count
            begin = max(lsn, fork)
            if (piece := min(lsn + count, end) - begin) > 0:
                pieces.append(pattern(timeline, begin, piece))
        return b"".join(pieces)

    def succeeded(self) -> None:
        self.durable_state = self.state_path.read_bytes()

    def failed(self) -> None:
        """After a failed call, take over where the store says it stands."""
        self.durable_state = None
        assert self.store.received_lsn <= self.received
        self.received = int(self.store.received_lsn)

    def append_bytes(self, count: int) -> None:
        timeline = self.forks[-1][1]
        data, start = pattern(timeline, self.received, count), self.received
        self.received += count
        self.store.append(start, data)

    @rule(count=NEAR_BOUNDARY)
    def append(self, count: int) -> None:
        self.append_bytes(count)

    @rule()
    def sync(self) -> None:
        assert self.store.sync() == self.received
        self.succeeded()

    @rule(count=NEAR_BOUNDARY, fails=st.booleans())
    def sync_beside_append(self, count: int, fails: bool) -> None:
        """Append while the segments are synced, as the receiver does."""
        flushed, received = int(self.store.flushed_lsn), self.received
        appended = False

        def sync(segment: SegmentFile) -> None:
            nonlocal appended
            if not appended:
                appended = True
                self.append_bytes(count)
            self.follow()
            original(segment)
            self.follow()
            assert self.followed_to <= flushed

        original = SegmentFile.sync
        with patch.object(SegmentFile, "sync", sync):
            try:
                with failpoints.armed("walstore.before_fsync=error:EIO@1" if fails else ""):
                    assert self.store.sync() == received
            except StorageError:
                assert self.store.received_lsn == flushed
                self.failed()
            else:
                self.succeeded()

    @rule(count=NEAR_BOUNDARY, spec=FAILURE)
    def fail(self, count: int, spec: str) -> None:
        try:
            with failpoints.armed(spec):
                self.append_bytes(count)
                self.store.sync()
        except StorageError:
            self.failed()
        else:
            self.succeeded()

    @rule(count=st.integers(0, 3 * SIZE), spec=st.one_of(st.none(), FAILURE))
    def remove(self, count: int, spec: str | None) -> None:
        try:
            with failpoints.armed(spec or ""):
                self.store.remove_before(self.store.first_lsn + count)
        except StorageError:
            self.failed()
        else:
            self.succeeded()

    @rule(spec=st.one_of(st.none(), FAILURE))
    def switch_timeline(self, spec: str | None) -> None:
        timeline = self.forks[-1][1] + 1
        fork = self.received
        try:
            with failpoints.armed(spec or ""):
                self.store.switch_timeline(timeline, fork, b"")
        except StorageError:
            self.failed()
            # The state file may say on disk that it succeeded. Nothing but repeating it can follow,
            # as the old timeline has ended; but WAL that a failed sync made us forget comes first.
            if self.received < fork:
                self.append_bytes(fork - self.received)
            self.store.switch_timeline(timeline, fork, b"")
        self.forks.append((fork, timeline))
        self.succeeded()

    @rule()
    def kill(self) -> None:
        """kill -9: what was written is in the kernel's cache, what was not synced is cut off."""
        self.follow()
        flushed = self.store.flushed_lsn
        self.store.close()
        self.open_again(at_least=flushed)

    @rule(revert=st.booleans())
    def power_cut(self, revert: bool) -> None:
        """What was not synced is noise, or not there; so is a state that was written and not
        synced.
        """
        self.follow()
        flushed = self.store.flushed_lsn
        self.store.close()
        if revert and self.durable_state is not None:
            self.state_path.write_bytes(self.durable_state)
        durable = state_on_disk(self.state_path.read_bytes(), self.scratch).flushed_lsn
        for path in list(self.directory.iterdir()):
            named = parse_segment_name(path.name, SIZE)
            if named is None:
                continue
            kept = max(0, durable - named[1] * SIZE)
            if kept == 0 and self.noise.random() < 0.5:
                path.unlink()
            elif kept < SIZE:
                noise = self.noise.randbytes(self.noise.randrange(SIZE - kept + 1))
                path.write_bytes(path.read_bytes()[:kept] + noise)
        self.open_again(at_least=flushed)

    def open_again(self, at_least: int) -> None:
        self.store = WalWriter(self.directory, system_id="1")
        assert self.store.received_lsn == self.store.flushed_lsn >= at_least
        assert self.followed_to <= self.store.flushed_lsn
        assert self.store.timeline == self.forks[-1][1]
        self.received = int(self.store.received_lsn)
        self.succeeded()

    @invariant()
    def holds_the_models_bytes(self) -> None:
        if not hasattr(self, "store"):
            return
        store = self.store
        assert store.first_lsn <= store.flushed_lsn <= store.received_lsn == self.received
        position = int(store.first_lsn)
        while data := store.reader.read(position, SIZE):
            assert data == self.expected(position, len(data))
            position += len(data)
        assert position == self.received
        self.follow()
        assert self.followed_to == store.flushed_lsn
        if store.first_lsn > START:
            try:
                store.reader.read(store.first_lsn - 1, 1)
            except LsnNotRetained:
                pass
            else:
                raise AssertionError("read removed WAL")

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.followed.close()
        shutil.rmtree(self.scratch)


WalStoreModel.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWalStoreModel = WalStoreModel.TestCase
