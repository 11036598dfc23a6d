"""Changes of one transaction with the same LSN: the order is that of PostgreSQL's heap, and of all
that it has in it.

A message bears the LSN of its record's end, where another subtransaction's record may begin.
"""

from __future__ import annotations

import random

import pytest

from harness import changes
from harness.heap_records import DATABASE, TABLE, TABLE_ID, HeapWal
from spillway._kernels.reorder import buffer as reorder
from spillway.catalog.descriptor import ColumnDescriptor
from spillway.decoding.dispatch import action_table
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS

TOP = 100
OTHER = 900
#: a table whose changes PostgreSQL queues and we leave out
LEFT_OUT = (1663, DATABASE, 2608)


class Played:
    """A reorder buffer that has read WAL, beside a model of what PostgreSQL has queued by then."""

    def __init__(self, wal: HeapWal, directory) -> None:
        self.buffer = reorder.ReorderBuffer(
            action_table(WAL_VERSIONS[15]), DATABASE, 1 << 20, bytes(directory)
        )
        self.buffer.set_state(3, 0, 0)
        self.buffer.add_relation(
            TABLE_ID, [ColumnDescriptor(1, "a", 23, -1, 4, by_value=True, align="i")]
        )
        #: (sub)transaction → (LSN, is a change) of each thing queued; the top-level one is first
        self.arenas: dict[int, list[tuple[int, bool]]] = {TOP: []}
        self._in_parts: dict[int, list[tuple[int, bool]]] = {}
        self._has_base_snapshot = False
        self.read(wal)

    def read(self, wal: HeapWal) -> None:
        """Read what was written since the last time."""
        batch = wal.batch()
        index = 0
        while True:
            stop = self.buffer.run(batch, index)
            for i in range(index, min(self.buffer.index + 1, len(batch))):
                if stop != reorder.UNRESOLVED or i < self.buffer.index:
                    self._queue(*self.buffer.fields(batch, i), batch, i)
            index = self.buffer.index
            if stop == reorder.AT_END:
                break
            if stop == reorder.UNRESOLVED:
                table = self.buffer.block_locator(batch, index) == TABLE
                kind = reorder.KIND_TABLE if table else reorder.KIND_SKIP
                self.buffer.bind(batch, index, kind, TABLE_ID if table else 0)
                continue
            _, info, xid, lsn, *_ = self.buffer.fields(batch, index)
            if info & rmgr.XLOG_XACT_OPMASK == rmgr.XLOG_XACT_ABORT:
                self.buffer.forget(xid)
            else:
                self.buffer.distribute_snapshot(lsn)
            index += 1

    def _queue(self, rmid, info, xid, lsn, end_lsn, origin, main, batch, index) -> None:
        if rmid == rmgr.RM_XACT_ID:
            if info & rmgr.XLOG_XACT_OPMASK == rmgr.XLOG_XACT_ABORT:
                self.arenas.pop(xid, None)
                self._in_parts.pop(xid, None)
            elif self._has_base_snapshot:
                self.arenas[TOP].append((lsn, False))
            return
        arena = self.arenas.setdefault(xid, [])
        self._has_base_snapshot |= rmid != rmgr.RM_HEAP2_ID
        if rmid == rmgr.RM_LOGICALMSG_ID:
            arena.append((end_lsn, True))
        elif rmid == rmgr.RM_HEAP_ID:
            arena.append((lsn, self.buffer.block_locator(batch, index) == TABLE))
        else:
            arena.append((lsn, False))

    def expected(self) -> list[tuple[int, int]]:
        """Return (LSN, xid) of the changes in the order in which PostgreSQL's binary heap yields
        them.
        """
        heap = [(xid, list(reversed(arena))) for xid, arena in self.arenas.items() if arena]

        def sink(i: int) -> None:
            while True:
                first = i
                for child in (2 * i + 1, 2 * i + 2):
                    if child < len(heap) and heap[child][1][-1][0] < heap[first][1][-1][0]:
                        first = child
                if first == i:
                    return
                heap[i], heap[first] = heap[first], heap[i]
                i = first

        for i in reversed(range(len(heap))):
            sink(i)
        order = []
        while heap:
            xid, arena = heap[0]
            lsn, is_change = arena.pop()
            if is_change:
                order.append((lsn, xid))
            if not arena:
                last = heap.pop()
                if heap:
                    heap[0] = last
            sink(0)
        return order

    def end_part(self, upto_lsn: int) -> None:
        """Let a part end here: PostgreSQL's arenas are empty then."""
        self.buffer.end_part(TOP, upto_lsn)
        self._in_parts = {xid: list(arena) for xid, arena in self.arenas.items()}
        for arena in self.arenas.values():
            arena.clear()

    def forget_parts(self) -> None:
        """Queue all of it again, as for a slot that does not stream."""
        self.arenas = {
            xid: self._in_parts.get(xid, []) + arena for xid, arena in self.arenas.items()
        }

    def taken(self, *, news: bool = False) -> list[tuple[int, int]]:
        self.buffer.end(TOP, ())
        stream = self.buffer.borrow(TOP, news=True) if news else self.buffer.take(TOP)
        got = [(change.lsn, change.xid) for change in changes.parse(stream)]
        stream.close()
        return got


@pytest.fixture
def wal():
    return HeapWal()


@pytest.mark.parametrize("another_behind", [False, True])
def test_snapshots_of_others_decide(wal, tmp_path, another_behind):
    """The top-level transaction has nothing but snapshots; each of them turns the order of the two
    changes.
    """
    wal.insert(101, 1, top_xid=TOP)
    wal.commit(OTHER, invals=1)
    wal.message(102, "m", b"first written", transactional=True, top_xid=TOP)
    lsn = wal.insert(103, 2, top_xid=TOP)
    if another_behind:
        wal.commit(OTHER + 1, invals=1)
    played = Played(wal, tmp_path)
    order = (103, 102) if another_behind else (102, 103)
    assert played.expected()[1:] == [(lsn, xid) for xid in order]
    assert played.taken()[1:] == [(lsn, xid) for xid in order]


def test_a_message_and_the_row_behind_it_alone(wal, tmp_path):
    wal.insert(101, 1, top_xid=TOP)
    wal.message(102, "m", b"first written", transactional=True, top_xid=TOP)
    lsn = wal.insert(103, 2, top_xid=TOP)
    played = Played(wal, tmp_path)
    assert played.taken()[1:] == played.expected()[1:] == [(lsn, 103), (lsn, 102)]


def write_at_random(wal: HeapWal, rng: random.Random, known: set[int]) -> None:
    """Write rows, messages, and what PostgreSQL queues besides: command ids, changes left out,
    snapshots.

    Args:
        wal: where to.
        rng: decides.
        known: the xids of which there are records already; kept up.
    """
    for i in range(rng.randrange(4, 60)):
        xid = rng.choice((TOP, *range(101, rng.choice((103, 107, 120)))))
        top_xid = 0 if xid in known else TOP
        choice = rng.random()
        if choice < 0.8 or top_xid:
            known.add(xid)
        if choice < 0.35 or (top_xid and choice < 0.6):
            wal.message(xid, "m", bytes(rng.randrange(9)), transactional=True, top_xid=top_xid)
        elif top_xid:
            wal.insert(xid, i, top_xid=top_xid, locator=TABLE if choice < 0.8 else LEFT_OUT)
        elif choice < 0.6:
            wal.insert(xid, i)
        elif choice < 0.7:
            wal.update(xid, locator=LEFT_OUT)
        elif choice < 0.8:
            wal.new_cid(xid)
        elif choice < 0.95 or xid == TOP:
            wal.commit(OTHER + i, invals=1)
        else:
            wal.abort(xid)
            known.discard(xid)


def test_random_transactions_come_in_the_heaps_order(tmp_path):
    ties = turned = 0
    for seed in range(400):
        wal = HeapWal()
        wal.insert(TOP, 0)
        write_at_random(wal, random.Random(seed), {TOP})
        played = Played(wal, tmp_path)
        expected = played.expected()
        assert played.taken() == expected, f"seed {seed}"
        lsns = [lsn for lsn, _ in expected]
        assert lsns == sorted(lsns)
        ties += len(lsns) - len(set(lsns))
        turned += expected != sorted(expected)
        assert played.buffer.memory_bytes == 0
    assert ties > 500
    assert turned > 50


def test_a_part_of_a_streamed_transaction_begins_with_an_empty_heap(tmp_path):
    """What was passed over before is in the heap only when all of the transaction is read again."""
    for seed in range(100):
        rng = random.Random(seed)
        wal = HeapWal()
        wal.insert(TOP, 0)
        known = {TOP}
        write_at_random(wal, rng, known)
        played = Played(wal, tmp_path)
        played.end_part(wal.writer.lsn)
        write_at_random(wal, rng, known)
        played.read(wal)
        assert played.taken(news=True) == played.expected(), f"seed {seed}"
        played.forget_parts()
        assert played.taken() == played.expected(), f"seed {seed}"
