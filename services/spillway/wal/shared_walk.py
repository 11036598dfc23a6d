"""One source's WAL, walked and checked once for all the sessions that decode its databases.

::

    store ── read ──▶ walker ──▶ batches that are kept │ n-3 │ n-2 │ n-1 │ end
                        ▲                                 ▲           ▲     ▲
                        one reader at a time leads        readers that are behind, those that wait

A *walk* has a walker and the last batches that it made, at most KEPT_BYTES of them. Each session
has a :class:`RecordReader`, which goes through those batches at its own pace. Who comes to the end
while nobody else is there *leads*: it reads the store, waits for it, and has the walker make the
next batch, which everybody then finds kept. No thread is the walk's own: a source with one database
is walked by that one's session, as if nothing were shared.

Most batches of a busy database concern no other: a reader is given those that do
(:class:`Interest`), and passes over the rest. A walk remembers the number of the last batch that
concerned a database, everyone, or whoever follows the ends of transactions. So who leads touches
only the readers that a batch wakes, and one that looks again passes over any number of batches at
once. A reader that waits is woken for what may bring about something at once; what can wait, and
how far it has passed, it finds when it looks again.

Who leads goes away with each batch that it takes, and most often is back before more WAL comes. To
have another lead meanwhile would cost a switch of threads there and one back for each batch. So the
others give it AWAY_S: one of them, the *deputy*, looks after that time, and leads if nobody does.
Who leads and makes a batch for another alone lets that one lead: it will be needed again. While
more is stored than was walked, whoever comes back from decoding a batch leads at once, so that
several busy databases are decoded side by side. And who leads through batches that are another's
alone, which that one is slow to take, makes one each AWAY_S, and ever more seldom, up to ten times
that: else one slow sync of its log would leave it behind, and have it walk all of it a second time,
for those who have nothing to do but to pass.

Batches are immutable and own what their records point to, so that any number of threads go through
one at the same time. What a reader does with a batch is its own matter: one that fails, or takes
long, holds nobody up. Whoever is further behind than what is kept is *left behind*, and so is who
begins elsewhere: it walks for itself (a walk of its own, which others may join) until it *meets*
one that is ahead, whose kept batches hold its position.

WAL that is damaged ends a walk for all its readers at the same place, each with an exception of its
own; what comes before it is read by all of them first. None joins a walk that has failed, so that a
new attempt reads the store again, which may be mended. What the store itself raises (a segment that
is gone) ends only the call of the reader that was leading.

What is everyone's is kept longer than the rest (half of KEPT_BYTES), until all have passed it: the
many for whom a batch has nothing else are not left behind while they sleep.

Nor is who sleeps woken to say how far it has passed, or to look at what can wait. Whoever leads
*stands in* for it: at an end of what is stored, at most each STAND_IN_S, and every _LOOK_BYTES of a
backlog, it does what the sleepers' threads would, for a few of them at a time. A sleeper that wakes
meanwhile waits until that is done. To wake fifty threads costs more than decoding a few megabytes.

Who sleeps holds back nothing that does not concern it. Batches that concern nobody any more go but
for the last SPARE_BYTES, so that the next ones get their memory; and the store hears what WAL
nobody will read again, so that its pages are used again, too. New pages cost more than decoding
(docs/explanation/performance.md, "Pages of WAL").

Memory: one and a half KEPT_BYTES for each walk with several readers, else one batch; a chunk and an
unfinished record for each walker.

Who leads and waits for WAL *lends its turn*, if its owner says what is to be done with a batch
(*live*). What comes then, if it is little, is walked, decoded and handed on by whoever has appended
it, in the leader's stead, while the leader sleeps on: to wake it would take longer than all of
that. Whatever can't be done so wakes it: what goes wrong, which is raised where the leader waits; a
batch that is another's, who is to lead from there on; an owner that says that it has become too
much.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from spillway._kernels.wal.walker import Walker
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.pg.versions import WalVersion

    Live = Callable[[RecordBatch, int], bool]

#: What of a walk is kept for those behind, with what the records take in memory; half as much more
#: of what is everyone's.
KEPT_BYTES: Final = 16 << 20

#: What is kept of batches that concern nobody any more: for who begins just behind.
SPARE_BYTES: Final = 2 << 20

_READ_BYTES: Final = 1 << 20
_BATCH_RECORDS: Final = 8192
#: A reader that waits for the one who leads looks that often whether that is still so. Where there
#: are many each looks less often, all together so often a second.
_LOOK_S: Final = 0.5
_LOOK_MAX_S: Final = 20.0
_LOOKS_PER_S: Final = 2.5

#: Who leads stands in for who sleeps that often, for so many between two looks at the store, and
#: when so much was passed.
STAND_IN_S: Final = 0.5
_STAND_IN_READERS: Final = 8
#: So many sleepers are woken at once for something that they must do themselves, a checkpoint most
#: often; the others the next time: it takes the interpreter's lock from who decodes.
_CALLED_AT_ONCE: Final = 2
_LOOK_BYTES: Final = 32 << 20

#: Who led is expected back that soon: at most so much later another reader leads. Who would be left
#: behind is waited for twice as long each time, up to so many times AWAY_S.
_AWAY_S: Final = 0.01
_AWAY_TIMES: Final = 10

#: What a batch is to a reader: to be passed over; to be looked at before what comes later;
#: something may come of it at once.
PASSED: Final = 0
LATER: Final = 1
NOW: Final = 2


class Interest(Protocol):
    """Knows what a reader's records are for. What it answers changes only while its reader is not
    in :meth:`RecordReader.take`.
    """

    @property
    def database_oid(self) -> int:
        """The database whose own records concern the reader at once; always the same."""

    @property
    def is_eager(self) -> bool:
        """Whether all that concerns every database concerns the reader at once; else only what is
        urgent does.
        """

    @property
    def sees_ends(self) -> bool:
        """Whether plain ends of any database's transactions concern it, in time."""

    def interest(self, batch: RecordBatch, start: int) -> int:
        """Return what the records of *batch* from index *start* on mean: PASSED, LATER or NOW."""


class StandIn(Protocol):
    """Does what a reader's owner would, while that one waits in :meth:`RecordReader.take`, on the
    thread of another.
    """

    def __call__(self, taken: tuple[RecordBatch, int] | None, lsn: int) -> bool:
        """Look at what was *taken*, or pass what is before *lsn*; return whether the owner has
        something to do that it must do itself. What it raises is raised to the owner.
        """


class StoredWal(Protocol):
    """Where WAL is read: see :class:`spillway.receiver.wal_reader.WalReader`."""

    def read(self, lsn: int, max_bytes: int) -> bytes:
        """Return up to *max_bytes* from *lsn* on; ``b""`` when there is nothing yet."""

    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = ...,
        instead: Callable[[int, memoryview], bool] | None = None,
    ) -> bool:
        """Wait until there is a byte at *lsn*, or *called* says so; whoever appends some may call
        *instead* for it.
        """

    def wake(self) -> None:
        """Have those who wait look whether they are called."""

    def passed(self, reader: Hashable, lsn: int) -> None:
        """Hear that *reader* will not read again what is before *lsn*."""

    def leave(self, reader: Hashable) -> None:
        """Hear that *reader* reads no more."""


class _Database:
    """A walk's readers that decode one database, and the last batch that had records of it, or may
    have had.
    """

    def __init__(self, last: int) -> None:
        self.readers: set[RecordReader] = set()
        self.last = last


class _Walk:
    """A walker and what it made last; the lock of its :class:`SharedWalk` guards all but the
    walker.
    """

    def __init__(self, version: WalVersion, begin_lsn: int, walker: Walker) -> None:
        self.version = version
        #: used by the leader alone
        self.walker = walker
        self.leader: RecordReader | None = None
        #: who is expected to lead again, for how long, and since when nobody did
        self.away: RecordReader | None = None
        self.away_for_s = _AWAY_S
        self.left_at = 0.0
        #: looks whether anybody leads; it waits, or was just woken
        self.deputy: RecordReader | None = None
        #: the leader has found nothing more in the store; how often that came to be
        self.is_at_end = False
        self.ends = 0
        #: the last batch was as large as one can be, or what it was made of: there may be more
        self.lags = False
        #: that was so since the walk was at its end
        self.has_lagged = False
        #: readers that wait for a batch, in the order in which they came, and which of them are
        #: eager
        self.waiting: dict[RecordReader, None] = {}
        self.eager: set[RecordReader] = set()
        self.readers: set[RecordReader] = set()
        #: whose batches are told apart: those of the readers
        self.databases: dict[int, _Database] = {}
        #: number of the last batch with ends of transactions
        self.last_of_ends = -1
        #: numbers of the kept batches with records that are everyone's
        self.of_all: deque[int] = deque()
        #: such batches from before the first kept one, which somebody has not passed; all of them
        #: from :attr:`late_from` on
        self.late: deque[tuple[int, RecordBatch]] = deque()
        self.late_bytes = 0
        self.late_from = 0
        #: whom somebody stands in for next, in turn; when they were listed last, and where the
        #: walk was then; whether they are to be listed without delay
        self.sleepers: deque[RecordReader] = deque()
        self.listed_at, self.listed_lsn = 0.0, begin_lsn
        self.sleepers_due = False
        #: how many of them may still be woken for something of their own
        self.may_call = 0
        #: made since all that wait were looked at, and the number of the batch that came next then
        self.unseen_bytes = 0
        self.seen = 0
        #: where the walk was when all that waited were woken last
        self.all_woken_at = begin_lsn
        self.batches: deque[RecordBatch] = deque()
        #: number of the first batch that is kept
        self.first = 0
        self.kept_bytes = 0
        #: with more than that kept somebody looks what concerns nobody any more
        self.spare_at_bytes = 0
        #: with WAL read up to there the store hears what was passed
        self.passed_at = 0
        #: where the first kept batch begins, and where the last one ends
        self.begin_lsn = begin_lsn
        self.end_lsn = begin_lsn
        #: what ended it
        self.failure: SpillwayError | None = None
        #: it can't go on, for a reason that has nothing to do with WAL
        self.is_broken = False

    @property
    def next(self) -> int:
        """Number of the batch that is made next."""
        return self.first + len(self.batches)

    def hand_on(self) -> None:
        """Have one of those who wait look after AWAY_S whether anybody leads, if nobody does
        now.
        """
        if self.leader is None and self.waiting and self.deputy is None:
            self.deputy = next(iter(self.waiting))
            self.deputy.woken.notify()

    def resign(self, heir: RecordReader, *, is_overtaken: bool = False) -> None:
        """Have nobody lead; *heir* is expected to do so soon. One that *is_overtaken* again, before
        it came back, is waited for longer.
        """
        is_again = is_overtaken and heir is self.away
        longer_s = min(2 * self.away_for_s, _AWAY_TIMES * _AWAY_S)
        self.away_for_s = longer_s if is_again else _AWAY_S
        self.leader, self.away, self.left_at = None, heir, time.monotonic()

    def patience_s(self, reader: RecordReader, now_s: float, left_s: float) -> float | None:
        """Return how long *reader*, which has *left_s*, is to wait before it looks again; None when
        it is to lead.
        """
        patience_s = max(left_s, 0.0) if self.is_at_end else reader.look_s
        away_s = now_s - self.left_at
        if self.leader is None:
            is_expected = self.away is not None and self.away is not reader
            is_expected &= away_s < self.away_for_s
            # While there is much to walk, who has just decoded a batch is as good as who led.
            if not is_expected or (self.lags and reader.was_given):
                return None
            if self.deputy is None:
                self.deputy = reader
            is_to_look = self.deputy is reader or (left_s <= 0 and self.is_at_end)
            return self.away_for_s - away_s if is_to_look else patience_s
        if self.deputy is reader:
            if away_s < self.away_for_s:
                # Who leads comes and goes: to be called each time would cost more.
                return min(patience_s, self.away_for_s)
            self.deputy = None
        return patience_s

    def enter(self, reader: RecordReader) -> None:
        """Have *reader* among the readers."""
        self.readers.add(reader)
        # Of what is kept it is not known which is whose.
        of = self.databases.setdefault(reader.database_oid, _Database(self.next - 1))
        of.readers.add(reader)

    def leave(self, reader: RecordReader) -> None:
        """Have *reader* no more; with nothing that refers to it, so that what it reads for goes
        with it.
        """
        self.readers.discard(reader)
        if self.away is reader:
            self.away = None
        if (of := self.databases.get(reader.database_oid)) is not None:
            of.readers.discard(reader)
            if not of.readers:
                del self.databases[reader.database_oid]
        self.withdraw(reader)

    def withdraw(self, reader: RecordReader) -> None:
        """Have *reader*, which has other things to do, look after nothing here."""
        if self.deputy is reader:
            self.deputy = None
        self.hand_on()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not (self.batches or self.late)

    def pass_over(self, batch: RecordBatch) -> None:
        """Keep nothing of the newest batch: of an empty walk with one reader, which has it."""
        self.first += 1
        self.begin_lsn = self.end_lsn = batch.end_lsn

    def append(self, batch: RecordBatch) -> RecordReader | None:
        """Keep the newest batch, and wake who is to look at once; return one of those, if there are
        any.
        """
        number = self.next
        self.batches.append(batch)
        self.kept_bytes += batch.memory_bytes
        self.end_lsn = batch.end_lsn
        woken: RecordReader | None = None
        databases, of_all, has_ends = batch.concerned()
        for oid in databases:
            if (of := self.databases.get(oid)) is not None:
                before, of.last = of.last, number
                for reader in of.readers:
                    if before < reader.number:
                        reader.own_from = number
                    if reader in self.waiting:
                        woken = reader
                        reader.woken.notify()
        if of_all != PASSED:
            self.of_all.append(number)
            for reader in self.waiting if of_all == NOW else self.eager:
                woken = reader
                reader.woken.notify()
        if has_ends:
            self.last_of_ends = number
        self._look_after(batch.memory_bytes)
        return woken

    def end(self) -> None:
        """Note that all that is stored was walked."""
        self.is_at_end = True
        self.ends += 1
        self.sleepers_due |= self.has_lagged
        self.has_lagged = False
        for reader in self.waiting:
            if reader.waits_for_end:
                reader.woken.notify()

    def _look_after(self, new_bytes: int) -> None:
        """Have nobody be left behind in its sleep: every so many bytes wake those for whom there is
        something.

        What is everyone's is kept for longer: it is for the second time that it wakes.
        """
        if self.end_lsn - self.all_woken_at > _LOOK_BYTES:
            self.all_woken_at = self.end_lsn
            self.sleepers_due = True
            for reader in self.waiting:
                if reader.stand_in is None:
                    reader.passes = True
                    reader.woken.notify()
        self.unseen_bytes += new_bytes
        if self.unseen_bytes > KEPT_BYTES // 2:
            self.unseen_bytes = 0
            for reader in self.waiting:
                number = reader.number
                if self.last_own(reader) >= number:
                    reader.woken.notify()
                elif self.next_of_all(number)[0] < self.seen:
                    if reader.stand_in is None:
                        reader.woken.notify()
                    else:
                        self.sleepers_due = True
            self.seen = self.next

    def stand_in_in_s(self) -> float:
        """Return in how many seconds who sleeps is to be told how far the walk is then."""
        if not self.waiting:
            return math.inf
        return max(0.0, self.listed_at + STAND_IN_S - time.monotonic())

    def may_be_stood_in_for(self, reader: RecordReader) -> bool:
        """Say whether *reader* sleeps, and there is nothing of its own for it."""
        return (
            reader in self.waiting
            and reader.stand_in is not None
            and reader not in self.eager
            and reader.told_lsn < self.end_lsn
            and reader.number >= self.late_from
            and not reader.waits_for_end
            and not reader.is_lent
            and self.last_own(reader) < reader.number
        )

    def overtaken(self) -> RecordReader | None:
        """Return a reader that is at work, and will soon be left behind by what concerns it, if
        there is one.
        """
        if self.kept_bytes <= 2 * SPARE_BYTES:
            return None
        edge = self.first + len(self.batches) // 2
        for of in self.databases.values():
            for reader in of.readers:
                is_behind = reader.number <= of.last and reader not in self.waiting
                if is_behind and self.first <= self.first_own(reader) < edge:
                    return reader
        return None

    def last_own(self, reader: RecordReader) -> int:
        """Return the number of the last batch that may concern *reader* by more than what is
        everyone's.
        """
        of = self.databases.get(reader.database_oid)
        if of is None:
            # It was closed meanwhile.
            return self.next - 1
        return max(of.last, self.last_of_ends) if reader.sees_ends else of.last

    def first_own(self, reader: RecordReader) -> int:
        """Return the number of the first such batch, or of one before it, from the reader's next
        on; the number of what comes next if there is none.
        """
        if self.last_own(reader) < reader.number:
            return self.next
        if reader.sees_ends and self.last_of_ends >= reader.number:
            return reader.number
        return max(reader.number, reader.own_from)

    def next_of_all(self, number: int) -> tuple[int, RecordBatch | None]:
        """Return the first batch from *number* on that has records of everyone's, with its number;
        the next one, without a batch, if there is none.
        """
        for late, batch in self.late:
            if late >= number:
                return late, batch
        for kept in self.of_all:
            if kept >= number:
                return kept, self.batches[kept - self.first]
        return self.next, None

    def needed(self) -> tuple[int, int]:
        """Return number and LSN of what somebody has yet to take; of what comes next, if nothing
        that was made concerns any reader any more.
        """
        behind = min(self.readers, key=self.first_own, default=None)
        number = self.next if behind is None else self.first_own(behind)
        if behind is not None and number < self.first:
            return number, behind.position
        kept = number - self.first
        return number, self.batches[kept - 1].end_lsn if kept else self.begin_lsn

    def forget_spare(self) -> None:
        """Forget what concerns nobody any more but for SPARE_BYTES. It looks each so many bytes
        only.
        """
        if self.kept_bytes > self.spare_at_bytes:
            number = min(self.needed()[0], self.next - 1)
            self.forget_before(number, SPARE_BYTES, KEPT_BYTES // 2)
            # Below the bound, which would else keep it from being reached.
            self.spare_at_bytes = min(self.kept_bytes, KEPT_BYTES - 2 * SPARE_BYTES) + SPARE_BYTES

    def forget_before(self, number: int, limit_bytes: int, late_limit_bytes: int) -> None:
        """Forget the oldest batches before *number* until what is kept fits *limit_bytes*, and
        what of them is everyone's *late_limit_bytes*.
        """
        while self.first < number and self.kept_bytes > limit_bytes:
            batch = self.batches.popleft()
            if self.of_all and self.of_all[0] == self.first:
                self.late.append((self.of_all.popleft(), batch))
                self.late_bytes += batch.memory_bytes
            self.first += 1
            self.kept_bytes -= batch.memory_bytes
            self.begin_lsn = batch.end_lsn
        while self.late and (
            self.late_bytes > late_limit_bytes
            or all(reader.number > self.late[0][0] for reader in self.readers)
        ):
            late, batch = self.late.popleft()
            self.late_bytes -= batch.memory_bytes
            self.late_from = late + 1

    def find(self, lsn: int) -> int | None:
        """Return the number of the batch that who stands at *lsn* reads next; None when it is not
        kept, or *lsn* is no record's end.
        """
        if not self.begin_lsn <= lsn <= self.end_lsn or self.failure is not None or self.is_broken:
            return None
        number = self.next
        while number > self.first and self.batches[number - self.first - 1].end_lsn > lsn:
            number -= 1
        if number < self.next and not self.batches[number - self.first].is_between_records(lsn):
            return None
        return number


class SharedWalk:
    """The walks of one source's WAL. For any thread."""

    def __init__(self, store: StoredWal, segment_size: int, system_id: int) -> None:
        """Walk nothing yet.

        Args:
            store: has the WAL.
            segment_size: wal_segment_size of the cluster.
            system_id: of the database system whose WAL it is.
        """
        self._store = store
        self._segment_size = segment_size
        self._system_id = system_id
        self._lock = threading.Lock()
        self._walks: list[_Walk] = []
        self._readers = 0
        #: how long who has taken all waits for more before it looks whether there is anything else
        #: to do
        self.look_s = _LOOK_S
        #: batches that walkers have made, for who counts
        self.batches_walked = 0

    def reader(
        self,
        position: int,
        version: WalVersion,
        interest: Interest,
        stand_in: StandIn | None = None,
    ) -> RecordReader:
        """Return a reader that stands at *position*, a record's start or the end of the one before;
        close it.

        *interest* says which batches it is given, *stand_in* does what its owner would with those
        that can wait; without one the owner is woken.

        Raises:
            CorruptWal: no record can start there.
        """
        woken = threading.Condition(self._lock)
        reader = RecordReader(self, position, interest, woken, stand_in)
        with self._lock:
            self._join(reader, version)
            self._count(1)
        return reader

    def _count(self, more: int) -> None:
        """Have so many readers more."""
        self._readers += more
        self.look_s = max(_LOOK_S, min(self._readers / _LOOKS_PER_S, _LOOK_MAX_S))

    @property
    def kept_bytes(self) -> int:
        """Memory of what is kept for readers that are behind."""
        with self._lock:
            return sum(walk.kept_bytes + walk.late_bytes for walk in self._walks)

    @property
    def walks(self) -> int:
        """How many times stored WAL is being walked just now."""
        with self._lock:
            return len(self._walks)

    # -- standing in ----------------------------------------------------------------------------

    def _stand_in(self, walk: _Walk, leader: RecordReader, *, at_end: bool) -> bool:
        """Stand in for some of those who sleep, or, unless *at_end*, for all if that is due; False
        when nobody is left.

        The *leader*, which may lead for long without anything of its own, does for itself what it
        does for them.
        """
        if not walk.waiting:
            return False
        now = time.monotonic()
        is_due = walk.sleepers_due or (at_end and now >= walk.listed_at + STAND_IN_S)
        if not walk.sleepers and not is_due:
            return False
        lent: list[RecordReader] = []
        with self._lock:
            if is_due:
                walk.sleepers = deque(walk.waiting)
                walk.listed_at, walk.listed_lsn = now, walk.end_lsn
                walk.sleepers_due, walk.may_call = False, _CALLED_AT_ONCE
            # Who is to go on in another walk must do that itself.
            is_furthest = all(walk.end_lsn >= other.end_lsn for other in self._walks)
            while walk.sleepers and not (at_end and len(lent) == _STAND_IN_READERS):
                reader = walk.sleepers.popleft()
                if not is_furthest:
                    reader.woken.notify()
                elif walk.may_be_stood_in_for(reader):
                    reader.is_lent = True
                    lent.append(reader)
        if is_due and leader.stand_in is not None:
            leader.passes |= leader.stand_in(None, leader.position)
            leader.told_lsn = leader.position
        for reader in lent:
            self._stand_in_for(reader)
        return bool(lent)

    def _stand_in_for(self, reader: RecordReader) -> None:
        """Do what the owner of *reader*, which is lent, would with what there is for it."""
        walk, has_more, is_called = reader.walk, True, False
        assert reader.stand_in is not None
        while has_more:
            with self._lock:
                taken = reader.next_that_can_wait()
                reader.read_lsn = reader.position
                has_more = taken is not None
            try:
                is_called = reader.stand_in(taken, reader.position)
            except BaseException as error:  # noqa: BLE001 - it is raised to who reads
                reader.failure, has_more = error, False
        is_put_off = is_called and walk.may_call <= 0
        with self._lock:
            reader.is_lent = False
            if not is_put_off:
                # Else somebody stands in for it again soon, and is told the same.
                reader.told_lsn = reader.position
                reader.passes |= is_called
                walk.may_call -= is_called
            if reader.is_stirred or reader.passes or reader.failure or walk.failure:
                reader.is_stirred = False
                reader.woken.notify()

    # -- with the lock held -------------------------------------------------------------------

    def _join(self, reader: RecordReader, version: WalVersion) -> None:
        """Put *reader*, which is in no walk, into one that keeps its position, or into a new
        one.
        """
        for walk in self._walks:
            number = walk.find(reader.position) if walk.version is version else None
            if number is not None:
                reader.enter(walk, number)
                return
        walker = Walker(version, reader.position, self._segment_size, system_id=self._system_id)
        walk = _Walk(version, reader.position, walker)
        self._walks.append(walk)
        reader.enter(walk, 0)

    def _leave(self, reader: RecordReader) -> None:
        """Take *reader* out of its walk, which ends with its last reader."""
        walk = reader.walk
        walk.leave(reader)
        if not walk.readers and walk in self._walks:
            self._end(walk)

    def _end(self, walk: _Walk) -> None:
        """Have nobody join *walk* any more."""
        self._walks.remove(walk)
        self._store.leave(walk)

    def _meet(self, reader: RecordReader) -> None:
        """Have *reader* go on in a walk that is further than its own, or older and as far, if that
        keeps its position.
        """
        mine = reader.walk
        older = True
        for walk in self._walks:
            if walk is mine:
                older = False
            elif (
                walk.version is mine.version
                and (walk.end_lsn > mine.end_lsn or (older and walk.end_lsn == mine.end_lsn))
                and (number := walk.find(reader.position)) is not None
            ):
                self._leave(reader)
                reader.enter(walk, number)
                return

    def _trim(self, walk: _Walk) -> None:
        if self._readers > 1:
            walk.forget_spare()
            walk.forget_before(walk.next - 1, KEPT_BYTES, KEPT_BYTES // 2)
        else:
            walk.forget_before(min(reader.number for reader in walk.readers), 0, 0)

    def _pass(self, walk: _Walk) -> None:
        """Tell the store what of *walk*, which has read more, nobody will read again."""
        walk.passed_at = walk.walker.fed_lsn + _READ_BYTES
        if walk in self._walks:
            self._store.passed(walk, walk.needed()[1])


class RecordReader:
    """One session's way through the records of a source, in batches. For one thread, but for
    :meth:`close` and :meth:`wake`.
    """

    def __init__(
        self,
        shared: SharedWalk,
        position: int,
        interest: Interest,
        woken: threading.Condition,
        stand_in: StandIn | None,
    ) -> None:
        self._shared = shared
        self._interest = interest
        self.database_oid = interest.database_oid
        #: as of the last look
        self.sees_ends = True
        #: the last :meth:`take` gave it a batch
        self.was_given = False
        #: end of the last record handed out or passed, or where it began
        self.position = position
        #: told when there may be something for it
        self.woken = woken
        #: at the last :meth:`take`, all that is stored was taken
        self.caught_up = False
        #: how far stored WAL was read for it; beyond :attr:`position` lies a record that is not
        #: whole yet
        self.read_lsn = position
        self.walk: _Walk
        #: of the batch that it takes next
        self.number = 0
        #: no batch from there on, before this one, is of its database; it says nothing when it is
        #: smaller
        self.own_from = 0
        #: what it has taken as it led
        self._own: tuple[RecordBatch, int] | None = None
        #: what takes a batch while it leads and sleeps, on another thread, and what that raised
        self._live: Live | None = None
        self._raised: BaseException | None = None
        #: it was woken to say how far it has passed
        self.passes = False
        #: it waits to be told that there is no more, if there is not
        self.waits_for_end = False
        #: what another does in its owner's stead; somebody is at it; it was woken meanwhile; what
        #: that one met
        self.stand_in = stand_in
        self.is_lent = self.is_stirred = False
        #: how far its owner knows it to be
        self.told_lsn = position
        self.failure: BaseException | None = None

    @property
    def look_s(self) -> float:
        """See :attr:`SharedWalk.look_s`."""
        return self._shared.look_s

    def enter(self, walk: _Walk, number: int) -> None:
        """Go on with batch *number* of *walk*; the lock is held."""
        self.walk = walk
        self.number, self.own_from = number, 0
        walk.enter(self)

    def _step_over(self, batch: RecordBatch) -> None:
        self.number += 1
        self.position = max(self.position, batch.end_lsn)

    def wake(self) -> None:
        """Have who waits in :meth:`take` look whether it is called. For any thread."""
        shared = self._shared
        with shared._lock:  # noqa: SLF001
            self.woken.notify()
            leads = self.walk.leader is self
        if leads:
            shared._store.wake()  # noqa: SLF001

    def close(self) -> None:
        """Read no more."""
        shared = self._shared
        with shared._lock:  # noqa: SLF001 - two halves of one thing
            if self in self.walk.readers:
                shared._leave(self)  # noqa: SLF001
                shared._count(-1)  # noqa: SLF001
        # It leads to the owner, who leads here: neither is to wait for Python's collector.
        self._live = None

    def take(
        self,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        live: Live | None = None,
    ) -> tuple[RecordBatch, int] | None:
        """Return the next batch of interest, and the index of the first record in it that is new;
        None when there is none in time.

        With *timeout_s* 0 it waits only for WAL to be walked that is stored already. What *called*
        looks at has changed when :meth:`wake` is called. None comes, too, after much was
        passed over, or *live* has taken some: :attr:`position` says how far.

        *live* may be given batches while this thread sleeps, on another one, which must not wait.
        It says whether it can take more like that; this one wakes and gets None if not.

        Raises:
            Whatever *live* has raised.
            CorruptWal: the bytes contradict themselves; ``details['lsn']`` is the record or the
                page.
            UnsupportedWal: they are of another version, or use what Spillway does not know.
            LsnNotRetained, WalGap, StorageError: as the store's read.
        """
        shared = self._shared
        self._live = live
        began_s, began_at = time.monotonic(), self.position
        self.told_lsn = began_at
        deadline = began_s + timeout_s
        began_in: _Walk | None = None
        ends = 0
        while True:
            with shared._lock:  # noqa: SLF001
                if self.failure is not None:
                    failure, self.failure = self.failure, None
                    raise failure
                taken = self._next_kept()
                walk = self.walk
                if walk is not began_in:
                    began_in, ends = walk, walk.ends
                self.read_lsn = max(self.position, walk.walker.fed_lsn if taken is None else 0)
                # There was an end since, though more may have come while it was woken.
                met_end = walk.ends > ends
                self.caught_up = taken is None and (walk.is_at_end or met_end)
                now = time.monotonic()
                left_s = deadline - now
                is_due = self.passes or now - began_s >= shared.look_s
                if walk.is_at_end and walk.listed_lsn == walk.end_lsn:
                    # Who was awake when the others were told, tells its owner itself.
                    is_due |= self.position > self.told_lsn and self.stand_in is not None
                has_passed = self.position > began_at and is_due
                # Who was ready to wait need not see an end behind its time: others stand in for it.
                is_over = met_end or walk.is_at_end or (timeout_s > 0 and self.stand_in is not None)
                is_late = left_s <= 0 and (met_end or (is_over and walk.leader is not None))
                if (
                    taken is not None
                    or walk.failure is not None
                    or is_late
                    or has_passed
                    or called()
                ):
                    # Whoever was told that nobody leads any more has other things to do.
                    walk.withdraw(self)
                    self.passes = False
                    self.was_given = taken is not None
                    if taken is None and walk.failure is not None:
                        raise _again(walk.failure)
                    return taken
                patience_s = walk.patience_s(self, now, left_s)
                if patience_s is not None:
                    self._wait(patience_s, for_end=left_s <= 0)
                    continue
                walk.leader = self
                if walk.deputy is self:
                    walk.deputy = None
            self._own = None
            try:
                has_more = self._lead(walk, began_at, deadline, called)
            finally:
                with shared._lock:  # noqa: SLF001
                    if walk.leader is self:
                        walk.resign(self)
                    walk.hand_on()
            if self._own is not None:
                self.caught_up = False
                self.read_lsn = self.position
                self.was_given = True
                taken, self._own = self._own, None
                return taken
            if not has_more:
                self.caught_up = walk.is_at_end
                self.read_lsn = walk.walker.fed_lsn
                self.was_given = self.passes = False
                return None

    def _wait(self, patience_s: float, *, for_end: bool) -> None:
        """Wait to be woken; the lock is held, but for the waiting."""
        walk = self.walk
        self.waits_for_end = for_end
        walk.waiting[self] = None
        if self._interest.is_eager:
            walk.eager.add(self)
        try:
            self.woken.wait(patience_s)
            while self.is_lent:
                self.is_stirred = True
                self.woken.wait()
        finally:
            del walk.waiting[self]
            walk.eager.discard(self)

    def _next_kept(self) -> tuple[RecordBatch, int] | None:
        """Step to the next batch of interest that is kept, if there is one; the lock is held."""
        shared = self._shared
        self.sees_ends = self._interest.sees_ends
        if len(shared._walks) > 1:  # noqa: SLF001
            shared._meet(self)  # noqa: SLF001
        walk = self.walk
        if walk.is_broken or (
            self.number < walk.first
            and (walk.first_own(self) < walk.first or self.number < walk.late_from)
        ):
            version = walk.version
            shared._leave(self)  # noqa: SLF001
            shared._join(self, version)  # noqa: SLF001
            walk = self.walk
        taken = self._next_of_interest(walk)
        shared._trim(walk)  # noqa: SLF001
        return taken

    def next_that_can_wait(self) -> tuple[RecordBatch, int] | None:
        """Step to the next batch of interest for who stands in, if there is one that is not the
        owner's own matter; the lock is held.
        """
        walk = self.walk
        self.sees_ends = self._interest.sees_ends
        if self.number < walk.late_from or walk.last_own(self) >= self.number:
            return None
        return self._next_of_interest(walk)

    def _next_of_interest(self, walk: _Walk) -> tuple[RecordBatch, int] | None:
        taken = None
        while taken is None and self.number < walk.next:
            batch: RecordBatch | None = None
            own = walk.first_own(self)
            if own > self.number:
                self.number, batch = walk.next_of_all(self.number)
            if own <= self.number:
                self.number = own
                batch = walk.batches[own - walk.first] if own < walk.next else None
            if batch is None:
                self.position = max(self.position, walk.end_lsn)
                break
            start = batch.first_from(self.position)
            if self._interest.interest(batch, start) != PASSED:
                taken = batch, start
            self._step_over(batch)
        return taken

    def _lead(
        self, walk: _Walk, began_at: int, deadline: float, called: Callable[[], bool]
    ) -> bool:
        """Walk on until there is a batch of interest, which is taken then, or somebody else is to
        lead, or the walk ends; False when none of it came in time.
        """
        shared, walker = self._shared, walk.walker
        store = shared._store  # noqa: SLF001
        look_at = time.monotonic() + shared.look_s
        is_full, is_fed = False, True
        while True:
            if walk.sleepers_due:
                shared._stand_in(walk, self, at_end=False)  # noqa: SLF001
            is_due = self.passes or called() or time.monotonic() >= look_at
            if self.position > began_at and is_due:
                return False
            try:
                batch = walker.next_batch(_BATCH_RECORDS) if is_fed else None
            except SpillwayError as error:
                self._end(walk, error)
                return True
            except BaseException:
                self._end(walk, None)
                raise
            if batch is not None:
                if self._keep(walk, batch, is_full=is_full) and self._own is None:
                    continue
                return True
            lsn = walker.fed_lsn
            data = store.read(lsn, _READ_BYTES)
            is_fed = bool(data)
            if data:
                walk.is_at_end = False
                is_full = len(data) >= _READ_BYTES
                walker.feed(lsn, data)
                if lsn >= walk.passed_at:
                    with shared._lock:  # noqa: SLF001
                        shared._pass(walk)  # noqa: SLF001
                continue
            if not walk.is_at_end:
                with shared._lock:  # noqa: SLF001
                    walk.end()
            if shared._stand_in(walk, self, at_end=True):  # noqa: SLF001
                continue
            left_s = deadline - time.monotonic()
            if left_s <= 0 or called():
                return False
            instead = self._serve if self._live is not None else None
            store.wait(lsn, min(left_s, walk.stand_in_in_s()), called, instead)
            if self._raised is not None:
                raised, self._raised = self._raised, None
                raise raised
            if walk.leader is not self or walk.failure is not None or walk.is_broken:
                return True
            is_fed = True

    def _keep(self, walk: _Walk, batch: RecordBatch, *, is_full: bool) -> bool:
        """Keep a batch of *walk*, which it leads, and take it if it is of interest; False when
        another is to lead from here on.
        """
        shared = self._shared
        with shared._lock:  # noqa: SLF001
            walk.lags = is_full or len(batch) >= _BATCH_RECORDS
            walk.has_lagged |= walk.lags
            shared.batches_walked += 1
            start = batch.first_from(self.position)
            is_passed = self._interest.interest(batch, start) == PASSED
            if not is_passed:
                self._own = batch, start
            if shared._readers == 1 and walk.is_empty:  # noqa: SLF001
                walk.pass_over(batch)
                self._step_over(batch)
                return True
            woken = walk.append(batch)
            # Who leads has passed all before: it takes it at once, or passes this, too.
            self._step_over(batch)
            shared._trim(walk)  # noqa: SLF001
            if is_passed and (heir := woken or walk.overtaken()) is not None:
                walk.resign(heir, is_overtaken=woken is None)
                # What it was given last gives it no claim to lead on from who is left behind.
                self.was_given &= woken is not None
                return False
        return True

    def _serve(self, lsn: int, data: memoryview) -> bool:
        """Do what the leader, which sleeps, would do with *data* from *lsn* on, on the thread that
        has appended it; False when it is to wake.
        """
        walk, live = self.walk, self._live
        walker = walk.walker
        if live is None or walk.leader is not self or walker.fed_lsn != lsn:
            return False
        try:
            walker.feed(lsn, data)
            if lsn >= walk.passed_at:
                with self._shared._lock:  # noqa: SLF001
                    self._shared._pass(walk)  # noqa: SLF001
            while True:
                try:
                    batch = walker.next_batch(_BATCH_RECORDS)
                except SpillwayError as error:
                    self._end(walk, error)
                    return False
                except BaseException:
                    self._end(walk, None)
                    raise
                if batch is None:
                    # Who sleeps is for who leads to look after.
                    return not walk.sleepers_due
                if not self._keep(walk, batch, is_full=False):
                    return False
                if self._own is not None:
                    own, self._own = self._own, None
                    if not live(*own):
                        # Its owner is to look after that.
                        self.passes = True
                        return False
        except BaseException as error:  # noqa: BLE001 - the leader's, who is raised it
            self._raised = error
            return False

    def _end(self, walk: _Walk, failure: SpillwayError | None) -> None:
        """Have nobody join *walk* any more; its readers get *failure*, or walk for themselves
        without one.
        """
        shared = self._shared
        with shared._lock:  # noqa: SLF001
            walk.failure, walk.is_broken = failure, failure is None
            if walk in shared._walks:  # noqa: SLF001
                shared._end(walk)  # noqa: SLF001
            for reader in walk.waiting:
                reader.woken.notify()


def _again(error: SpillwayError) -> SpillwayError:
    """Return another exception that says what *error* says: who gets it may add to it."""
    return type(error)(error.message, hint=error.hint, **error.details)
