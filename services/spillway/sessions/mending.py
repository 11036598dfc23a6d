"""A hole in the middle of a transaction log: decoded again from WAL, beside the decoding that goes
on.

::

    log      │ segment │ damaged │ segment │ being written …
                       a         b                 what commits in [a, b) can't be read
    WAL   P ──────────D┴─────────┘                 from the store, before that from the archive

A *base* (``snapshots.py``) is a state as of P with which all that commits from D on is decoded. The
last one with D at or before a is taken, by a decoder of its own on a thread of its own, into a log
of its own, which then takes the damaged segment's place in one rename. So slots that stand behind
the hole notice nothing, those before it get an error that passes, and a kill at any line leaves the
hole as it was. Where only a later D is to be had, the log begins anew there.

What can't be decoded again, because WAL or bases are gone or don't fit, is given up with all before
it, and the log says from where to where; slots that stand there are invalidated (``healing.py``).
What can't be read, or written, now is tried again and gives nothing up.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from typing import TYPE_CHECKING, Final

from spillway._kernels.wal.walker import Walker
from spillway.decoding.capture import CaptureFilter
from spillway.decoding.decoder import Decoder
from spillway.errors import (
    CorruptSnapshot,
    CorruptTransactionLog,
    CorruptWal,
    DecodingError,
    LsnNotRetained,
    SpillwayError,
    WalError,
    WalGap,
)
from spillway.failpoints import failpoint
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.pg.wal_segment import XLOG_BLCKSZ
from spillway.storage.file_errors import file_error
from spillway.txlog import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction
    from spillway.receiver.archive import WalArchive
    from spillway.receiver.wal_reader import WalReader
    from spillway.sessions.layout import DatabaseLayout
    from spillway.sessions.settings import SessionSettings
    from spillway.sessions.snapshots import Base, Snapshots
    from spillway.store.rows import SourceRow

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_RETRY_S: Final = 30.0
#: XLogLongPageHeaderData: between the last record of a page and the first of the next.
_PAGE_HEADER_MAX: Final = 40


class Mending:
    """Of one database's log. :meth:`tend` is for one thread, which does not wait for it."""

    def __init__(
        self,
        source: SourceRow,
        database_oid: int,
        transactions: LogWriter,
        snapshots: Snapshots,
        layout: DatabaseLayout,
        store: WalReader,
        settings: SessionSettings,
        archive: Callable[[], WalArchive | None],
        mend_wal: Callable[[int, int], bool],
    ) -> None:
        self._source = source
        self._database_oid = database_oid
        self._log = transactions
        self._snapshots = snapshots
        self._layout = layout
        self._store = store
        self._settings = settings
        self._archive_of_source = archive
        self._archive: WalArchive | None = None
        self._mend_wal = mend_wal
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._again_s = 0.0
        #: bases that did not lead over the hole
        self._unfit: set[Base] = set()

    @property
    def needs_wal(self) -> bool:
        """Whether WAL must stay that is stored now: there is a hole, and nothing has kept it from
        being mended yet.
        """
        return self._log.is_damaged and not self._again_s

    def tend(self) -> None:
        """See whether there is a hole, and begin to mend it."""
        thread = self._thread
        if not self._log.is_damaged or (thread is not None and thread.is_alive()):
            return
        hole = self._log.damage()
        if hole is None or time.monotonic() < self._again_s or self._stop.is_set():
            return
        thread = threading.Thread(
            target=self._run,
            args=hole,
            name=f"spillway-mend-{self._source.name}-{self._database_oid}",
            daemon=True,
        )
        self._thread = thread
        thread.start()

    def stop(self) -> None:
        """End the thread; the hole stays for the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self, first: int, end: int) -> None:
        log.error(
            "the transaction log %s is damaged: what commits from %s to %s is decoded again if WAL "
            "is there",
            self._log.directory,
            Lsn(first),
            Lsn(end),
        )
        try:
            self._archive = self._archive_of_source()
            while not self._stop.is_set():
                base = self._base(first, end)
                if base is None:
                    log.error(
                        "what commits from %s to %s can't be decoded again: the transaction log %s "
                        "begins behind it, and slots that stand before that are invalidated",
                        Lsn(first),
                        Lsn(end),
                        self._log.directory,
                    )
                    self._log.drop_through(first)
                    break
                if self._try(base, first, end):
                    break
            self._unfit.clear()
            self._again_s = 0.0
        except SpillwayError as error:
            self._later(error)
        except OSError as error:
            self._later(file_error(error, self._layout.root))
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _later(self, error: SpillwayError) -> None:
        log.warning("mending of %s is tried again: %s", self._log.directory, error)
        self._again_s = time.monotonic() + _RETRY_S

    @property
    def _directory(self) -> Path:
        return self._layout.root / "mending"

    def _base(self, first: int, end: int) -> Base | None:
        """Return the best base there is: it gives all of the hole, else as much of its end as can
        be had.
        """
        bases = [
            base
            for base in self._snapshots.bases()
            if base not in self._unfit and base.logged < end and self._has_wal(base.lsn)
        ]
        before = [base for base in bases if base.logged <= first]
        return before[-1] if before else bases[0] if bases else None

    def _has_wal(self, lsn: int) -> bool:
        if lsn >= self._store.first_lsn:
            return True
        return self._archive is not None and bool(self._archive.read(lsn, 1))

    def _try(self, base: Base, first: int, end: int) -> bool:
        """Mend with *base*; say whether that is done, or the log is closed. If not, another one
        may.
        """
        try:
            return self._mend(base, first, end)
        except CorruptSnapshot as damage:
            log.error("%s is of no use, and is removed: %s", base.path, damage)  # noqa: TRY400
            base.path.unlink(missing_ok=True)
        except FileNotFoundError:
            # A checkpoint removed it meanwhile.
            self._unfit.add(base)
        except (CorruptWal, WalGap) as error:
            lsn = Lsn.parse(str(error.details["lsn"]))
            if lsn < self._store.first_lsn or not self._mend_wal(lsn, lsn):
                self._give_up(base, error)
        except (WalError, DecodingError, LsnNotRetained, CorruptTransactionLog) as error:
            self._give_up(base, error)
        return False

    def _give_up(self, base: Base, error: SpillwayError) -> None:
        log.error("from %s on the log can't be decoded again: %s", Lsn(base.lsn), error)
        self._unfit.add(base)

    def _mend(self, base: Base, first: int, end: int) -> bool:
        begin = max(first, base.logged)
        shutil.rmtree(self._directory, ignore_errors=True)
        version = version_of_server(self._source.server_version_num)
        with LogWriter(
            self._directory / "txlog",
            system_id=int(self._source.system_id),
            database_oid=self._database_oid,
            # One segment takes the place of one.
            segment_bytes=1 << 62,
            admit=self._layout.reserve.admit,
        ) as beside:
            beside.start(begin)
            decoder = Decoder.restore(
                base.path.read_bytes(),
                version,
                _Sink(beside),
                work_mem_bytes=self._settings.logical_decoding_work_mem,
                spill_dir=self._directory / "spill",
                start_decoding_at=base.logged,
                capture=CaptureFilter.parse(self._source.capture),
                as_of=base.lsn,
            )
            try:
                if (streaming := self._layout.streaming()) is not None:
                    decoder.stream_from(*streaming)
                if not self._decode(decoder, end):
                    return True
                _check_whole(decoder.position, end)
                beside.progress(end)
                beside.checkpoint(min(decoder.restart_lsn, end))
            finally:
                decoder.close()
            (segment,) = beside.segments()
        failpoint("mending.before_put_back")
        self._log.put_back(first, segment.path, begin)
        log.warning(
            "the transaction log %s is whole again from %s to %s",
            self._log.directory,
            Lsn(begin),
            Lsn(end),
        )
        return True

    def _decode(self, decoder: Decoder, end: int) -> bool:
        """Decode up to *end*; False when it is to stop."""
        lsn = decoder.position
        walker = Walker(
            version_of_server(self._source.server_version_num),
            lsn,
            self._source.wal_segment_size,
            system_id=int(self._source.system_id),
        )
        while lsn < end:
            if self._stop.is_set():
                return False
            data = self._read(lsn, min(_READ_BYTES, end - lsn))
            if not data:
                raise LsnNotRetained(f"WAL at {Lsn(lsn)} is not there", lsn=str(Lsn(lsn)))
            walker.feed(lsn, data)
            lsn += len(data)
            while (batch := walker.next_batch()) is not None:
                decoder.process(batch)
        return True

    def _read(self, lsn: int, size: int) -> bytes:
        if lsn >= self._store.first_lsn:
            return self._store.read(lsn, size)
        return b"" if self._archive is None else self._archive.read(lsn, size)


class _Sink:
    """Hands transactions to a log that was started."""

    def __init__(self, transactions: LogWriter) -> None:
        self._log = transactions

    def consistent(self, lsn: int) -> None:
        """Do nothing: a base is consistent."""

    def transaction(self, transaction: Transaction) -> None:
        self._log.transaction(transaction)

    def transactions(self, run: TransactionRun) -> None:
        self._log.transactions(run)

    def progress(self, decoded_lsn: int) -> None:
        self._log.progress(decoded_lsn)


def _check_whole(position: int, end: int) -> None:
    """Raise when a record lies over *end*, which may be a commit that is to be in the hole."""
    at_page = position % XLOG_BLCKSZ == 0 and end - position <= _PAGE_HEADER_MAX
    if position != end and not at_page:
        raise LsnNotRetained(f"{Lsn(end)} is within a record", lsn=str(Lsn(end)))
