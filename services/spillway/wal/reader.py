"""Read WAL from a directory of segment files: for tools and tests.

The files are PostgreSQL's own, named by timeline and position, or the WAL store's, which are the
same. Reading begins at an LSN and ends where written WAL ends: with the last file, at a record of
length zero, or at a page that a recycled file held before. A file is read in pieces, never whole.

A service reads through the WAL store instead, which knows how far the stream has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway._kernels.wal.walker import Walker
from spillway.errors import CorruptWal, WalGap
from spillway.pg.lsn import Lsn
from spillway.pg.versions import WalVersion, version_of_magic
from spillway.pg.wal_segment import (
    SEGMENT_SIZE_MIN,
    XLOG_BLCKSZ,
    is_valid_segment_size,
    parse_segment_name,
    segment_name,
    segment_start,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.wal.record import Record

#: Large enough that a read costs little beside the walk, small beside a segment's 16 MiB.
_READ_SIZE: Final = 1 << 20
_BATCH_RECORDS: Final = 4096
_LONG_HEADER_SIZE: Final = 40
_XLP_LONG_HEADER: Final = 0x0002


class WalDirectory:
    """The segment files of one directory; version, segment size and system id are read from their
    pages.

    Where several timelines have a segment, the newest one's file is read: it begins with what it
    shares with the older.

    Raises:
        CorruptWal: there are no segment files, or the first is no WAL.
        UnsupportedWal: they are of a version that Spillway does not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        names = sorted(
            p.name
            for p in path.iterdir()
            if parse_segment_name(p.name, SEGMENT_SIZE_MIN) is not None
        )
        if not names:
            raise CorruptWal(
                f"there are no WAL segment files in {path}",
                hint="Segment files have 24 hexadecimal digits for a name.",
                lsn="0/0",
            )
        with (path / names[0]).open("rb") as file:
            header = file.read(_LONG_HEADER_SIZE)
        if len(header) < _LONG_HEADER_SIZE or not header[2] & _XLP_LONG_HEADER:
            raise CorruptWal(
                f"{path / names[0]} does not begin as a WAL segment",
                hint="The file is cut or damaged: fetch it again from the server or its archive.",
                lsn="0/0",
            )
        self.version: WalVersion = version_of_magic(int.from_bytes(header[0:2], "little"))
        self.system_id = int.from_bytes(header[24:32], "little")
        self.segment_size = int.from_bytes(header[32:36], "little")
        if not is_valid_segment_size(self.segment_size):
            raise CorruptWal(
                f"{path / names[0]} says that segments have {self.segment_size} bytes",
                hint="The file is damaged: fetch it again from the server or its archive.",
                lsn="0/0",
            )
        #: first LSN → file, in order
        self._files: dict[int, Path] = {}
        for name in names:  # by timeline, so that a newer one's file replaces an older's
            parsed = parse_segment_name(name, self.segment_size)
            if parsed is not None:
                self._files[parsed[1] * self.segment_size] = path / name
        self.first_lsn = Lsn(min(self._files))

    def check_from(self, lsn: int) -> None:
        """Say where reading from *lsn* on would end too early: a segment is not there, but later
        ones are.

        Raises:
            WalGap: the segment of *lsn*, or one after it, is missing.
        """
        begin = int(segment_start(lsn, self.segment_size))
        wanted = range(begin, max(self._files) + self.segment_size, self.segment_size)
        missing = next((start for start in wanted or (begin,) if start not in self._files), None)
        if missing is not None:
            raise WalGap(
                f"the WAL segment that begins at {Lsn(missing)} is not in {self.path}",
                hint=f"Put the file {self._name(missing)} there, from the server or its archive.",
                lsn=str(Lsn(missing)),
            )

    def check_ended(self, position: int) -> None:
        """Say whether WAL really ends at *position*, where reading ended.

        Raises:
            CorruptWal: later segments were written as well, so that what is at *position* is
                damaged.
        """
        following = int(segment_start(position, self.segment_size)) + self.segment_size
        path = self._files.get(following)
        if path is None:
            return
        with path.open("rb") as file:
            header = file.read(_LONG_HEADER_SIZE)
        # A recycled file still has the address of its former place.
        if len(header) == _LONG_HEADER_SIZE and header[8:16] == following.to_bytes(8, "little"):
            raise CorruptWal(
                f"WAL can't be read on at {Lsn(position)}, though {path.name} follows",
                hint="The segment is damaged or cut: fetch it again from the server or its "
                "archive.",
                lsn=str(Lsn(position)),
            )

    def _name(self, start_lsn: int) -> str:
        """The name of a missing file, on the timeline of what is there."""
        before = [lsn for lsn in self._files if lsn < start_lsn]
        neighbour = self._files[max(before) if before else min(self._files)].name
        timeline = int(neighbour[:8], 16)
        return segment_name(timeline, start_lsn // self.segment_size, self.segment_size)

    def batches(
        self,
        start_lsn: int | None = None,
        end_lsn: int | None = None,
        *,
        records_max: int = _BATCH_RECORDS,
        exactly: bool = False,
    ) -> Iterator[RecordBatch]:
        """Yield records that start in [*start_lsn*, *end_lsn*), as the walker makes them; see
        :meth:`records`.

        The last batch may go on behind *end_lsn*; *exactly*, which wants a record's end for it, has
        none do so.
        """
        begin = self.first_lsn if start_lsn is None else start_lsn
        walker = Walker(
            self.version, begin, self.segment_size, system_id=self.system_id, end_is_error=False
        )
        for lsn, data in self._read(begin):
            walker.feed(lsn, data[: end_lsn - lsn] if exactly and end_lsn is not None else data)
            while (batch := walker.next_batch(records_max)) is not None:
                yield batch
            if walker.end_of_wal is not None or (
                end_lsn is not None and walker.position >= end_lsn
            ):
                return

    def records(self, start_lsn: int | None = None, end_lsn: int | None = None) -> Iterator[Record]:
        """Yield the records that start in [*start_lsn*, *end_lsn*), by default all that are
        written.

        *start_lsn* is a record's start or a page's first byte, by default the first file's.

        Raises:
            CorruptWal: the bytes contradict themselves before written WAL ends.
            WalGap: a file was removed meanwhile.
            UnsupportedWal: they use what Spillway does not know.
        """
        for batch in self.batches(start_lsn, end_lsn):
            for i in range(len(batch)):
                if end_lsn is not None and batch.header(i)[0] >= end_lsn:
                    return
                yield batch.record(i)

    def _read(self, lsn: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes from *lsn*'s page on, up to the first segment that is not there or is
        cut.
        """
        segment = int(segment_start(lsn, self.segment_size))
        offset = (lsn - segment) // XLOG_BLCKSZ * XLOG_BLCKSZ
        while (path := self._files.get(segment)) is not None:
            try:
                file = path.open("rb")
            except FileNotFoundError as error:
                raise WalGap(
                    f"the WAL segment {path.name} was removed from {self.path} meanwhile",
                    hint="Keep the server from recycling it, by a physical replication slot, or "
                    "read its archive.",
                    lsn=str(Lsn(segment)),
                ) from error
            with file:
                file.seek(offset)
                while offset < self.segment_size and (data := file.read(_READ_SIZE)):
                    yield segment + offset, data
                    offset += len(data)
            if offset < self.segment_size:
                return
            segment += self.segment_size
            offset = 0
