"""Where a session's changes come from.

A session (``session.py``) knows how to start from what is durable, to keep what was decoded, and
when to make a checkpoint. It does not know how changes are had: it is given a
:class:`ChangeSource`, has it follow the decoder that it has restored, and takes one step after the
other. Here they are decoded from WAL that is stored, which is walked once for all databases of the
source (``wal/shared_walk.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spillway.wal.shared_walk import SharedWalk

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.decoding.decoder import Decoder
    from spillway.pg.versions import WalVersion
    from spillway.receiver.wal_reader import WalReader
    from spillway.wal.shared_walk import RecordReader


class Changes(Protocol):
    """What one attempt to decode takes its changes from. For one thread, but for :meth:`wake`."""

    @property
    def read_lsn(self) -> int:
        """How far the source was read."""

    @property
    def caught_up(self) -> bool:
        """Whether the last step found that everything there is was taken."""

    @property
    def look_s(self) -> float:
        """How long to wait for more, when there was none, before anything else is looked at."""

    def advance(
        self,
        timeout_s: float,
        called: Callable[[], bool],
        live: Callable[[], bool] | None = None,
    ) -> bool:
        """Take the next changes, and hand on what is whole; False when there were none in
        *timeout_s*, or *called* says so.

        The decoder gets further also by what concerns other databases alone. And, with *live*, by
        the little that comes while this waits: another thread, which must not wait, has the decoder
        take it then, and calls *live*, which says whether more may be taken like that.

        Raises:
            WalError, DecodingError, StorageError, LsnNotRetained: what keeps it from going on.
            Whatever the sink raises, or *live*.
        """

    def wake(self) -> None:
        """Have who waits in :meth:`advance` look whether it is called. For any thread."""

    def close(self) -> None:
        """Take no more; safe to repeat."""


class ChangeSource(Protocol):
    """Gives changes of one source to any number of sessions. For any thread."""

    def follow(
        self, decoder: Decoder, version: WalVersion, went_on: Callable[[int], bool]
    ) -> Changes:
        """Return what goes on where *decoder* stands.

        While the session waits in :meth:`Changes.advance`, another one's thread may bring its
        decoder further. It calls *went_on* with how far the source was read then, which says
        whether the session has something to do that only its own thread can.
        """


class StoredChanges:
    """Changes that are decoded from the WAL that a store has."""

    def __init__(self, store: WalReader) -> None:
        self._walk = SharedWalk(store, store.segment_size, int(store.system_id))

    def follow(
        self, decoder: Decoder, version: WalVersion, went_on: Callable[[int], bool]
    ) -> _Decoding:
        """Return what feeds *decoder* with records from its position on.

        Raises:
            CorruptWal: no record can start there.
        """

        def stand_in(taken: tuple[RecordBatch, int] | None, lsn: int) -> bool:
            _feed(decoder, taken, lsn)
            return went_on(lsn)

        reader = self._walk.reader(decoder.position, version, decoder, stand_in)
        return _Decoding(decoder, reader)


class _Decoding:
    """Records of the walk, into one decoder."""

    def __init__(self, decoder: Decoder, reader: RecordReader) -> None:
        self._decoder = decoder
        self._reader = reader
        self._live: Callable[[], bool] | None = None

    @property
    def read_lsn(self) -> int:
        return self._reader.read_lsn

    @property
    def caught_up(self) -> bool:
        return self._reader.caught_up

    @property
    def look_s(self) -> float:
        return self._reader.look_s

    def advance(
        self,
        timeout_s: float,
        called: Callable[[], bool],
        live: Callable[[], bool] | None = None,
    ) -> bool:
        self._live = live
        taken = self._reader.take(timeout_s, called, self._take if live is not None else None)
        _feed(self._decoder, taken, self._reader.position)
        return taken is not None

    def _take(self, batch: RecordBatch, start: int) -> bool:
        self._decoder.process(batch, start)
        return self._live is not None and self._live()

    def wake(self) -> None:
        self._reader.wake()

    def close(self) -> None:
        self._reader.close()
        self._live = None


def _feed(decoder: Decoder, taken: tuple[RecordBatch, int] | None, lsn: int) -> None:
    if taken is not None:
        decoder.process(*taken)
    elif lsn > decoder.position:
        decoder.pass_to(lsn)
