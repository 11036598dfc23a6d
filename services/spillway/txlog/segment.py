"""One segment file: its index, its scan after a restart, and reading frames from it.

The index answers two questions: where to begin reading for an LSN, and which relation descriptors
hold there. It is sparse (an entry each :data:`INDEX_STEP_BYTES`), kept in memory while the segment
is written, and saved beside a sealed segment as ``<name>.idx`` so that a restart does not read the
whole log. The sidecar is only a cache: when it is missing or damaged the segment is scanned again.
A reader in another process makes the index of the segment that is being written as far as it needs
it (:meth:`Segment.index_to`).
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from spillway._kernels.pg.crc32c import crc32c
from spillway._kernels.reorder.transaction_run import find_run
from spillway.storage.durable_files import replace_cache
from spillway.storage.file_errors import file_error
from spillway.txlog import frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INDEX_STEP_BYTES: Final = 64 * 1024
#: What lies beside a sealed segment and can be made again: its index, and what it has of which
#: table (``contents.py``).
SIDECARS: Final = (".idx", ".contents")
_INDEX_HEADER: Final = struct.Struct("<IIIQQQQQ")
_INDEX_FORMAT: Final = 1
#: Later than any transaction: entries are gone over, and none is taken out.
NONE_WANTED: Final = (1 << 64) - 1


class Frame(NamedTuple):
    """A frame as read: its kind, payload, and the offset of the frame behind it."""

    kind: int
    payload: memoryview
    next_offset: int


@dataclass(slots=True, eq=False)
class Segment:
    """A segment file and what is known of its content.

    ``size`` is where the next frame goes; for the segment being written, readers must not look past
    the log's visible end, which is never behind a transaction's first and last frame.
    """

    path: Path
    start_lsn: int
    size: int = frames.SEGMENT_HEADER_SIZE
    #: sparse index, ascending: commit LSNs and the offsets of those transactions' first frames
    lsns: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    #: offsets of RELATION frames, ascending
    relations: array[int] = field(default_factory=lambda: array("Q"))
    last_final_lsn: int = 0
    last_end_lsn: int = 0
    #: of the last PROGRESS frame
    decoded_lsn: int = 0
    restart_lsn: int = 0
    #: start of the segment whose transactions come right before this one's; None: something is
    #: missing between
    follows: int | None = None
    #: its file is gone or of no use: nothing of it can be read until it is put back
    lost: bool = False
    #: how far the index goes, of a segment that another process writes; None: it has everything
    indexed_to: int | None = None
    #: it is not what readers were shown: whoever has it open reads again from a position
    cut: bool = False

    def note_transaction(self, final_lsn: int, end_lsn: int, offset: int) -> None:
        """Account for a transaction whose first frame is at *offset*."""
        self._index(final_lsn, offset)
        self.last_final_lsn = final_lsn
        self.last_end_lsn = end_lsn

    def _index(self, final_lsn: int, offset: int) -> None:
        if not self.offsets or offset - self.offsets[-1] >= INDEX_STEP_BYTES:
            # Readers look without a lock: an LSN is only there once its offset is.
            self.offsets.append(offset)
            self.lsns.append(final_lsn)

    def offset_for(self, lsn: int, limit: int) -> int:
        """Return an offset ≤ *limit* from which reading meets every transaction with final_lsn ≥
        *lsn*.
        """
        at = bisect.bisect_right(self.lsns, lsn) - 1
        while at >= 0 and self.offsets[at] > limit:
            at -= 1
        return self.offsets[at] if at >= 0 else frames.SEGMENT_HEADER_SIZE

    def index_to(self, limit: int) -> None:
        """Extend the index up to *limit*, where a frame ends; to before the first frame that is
        damaged, if one is.
        """
        offset = self.indexed_to
        if offset is None:
            return
        with SegmentReader(self.path) as reader:
            while offset < limit:
                window = reader.window(offset, min(limit, offset + INDEX_STEP_BYTES))
                _, size, _ = find_run(window, NONE_WANTED, {})
                if size:
                    header, _ = frames.decode_transaction_header(window[frames.FRAME_HEADER_SIZE :])
                    self._index(header.final_lsn, offset)
                    offset += size
                else:
                    frame = reader.frame(offset, limit)
                    if frame is None:
                        break
                    if frame.kind == frames.RELATION:
                        self.relations.append(offset)
                    elif frame.kind in (frames.TRANSACTION, frames.BEGIN):
                        header, _ = frames.decode_transaction_header(frame.payload)
                        self._index(header.final_lsn, offset)
                    offset = frame.next_offset
        self.indexed_to = offset

    def save_index(self) -> None:
        """Write the sidecar; not synced, since it can be made again."""
        body = self.lsns.tobytes() + self.offsets.tobytes() + self.relations.tobytes()
        head = _INDEX_HEADER.pack(
            _INDEX_FORMAT,
            len(self.lsns),
            len(self.relations),
            self.size,
            self.last_final_lsn,
            self.last_end_lsn,
            self.decoded_lsn,
            self.restart_lsn,
        )
        crc = crc32c(body, crc32c(head))
        replace_cache(
            self.path.with_suffix(".idx"), b"".join((crc.to_bytes(4, "little"), head, body))
        )

    def load_index(self) -> bool:
        """Fill the index from the sidecar; False when there is none.

        Raises:
            CorruptTransactionLog: it is sound, and the segment has another size than when it was
                sealed.
        """
        try:
            data = self.path.with_suffix(".idx").read_bytes()
        except OSError:
            return False
        head_end = 4 + _INDEX_HEADER.size
        if len(data) < head_end or crc32c(data[4:]) != int.from_bytes(data[:4], "little"):
            return False
        version, entries, relations, size, final, end, decoded, restart = _INDEX_HEADER.unpack_from(
            data, 4
        )
        if version != _INDEX_FORMAT or len(data) != head_end + 8 * (2 * entries + relations):
            return False
        found = self.path.stat().st_size
        if found != size:
            # It may be cut between two frames, where nothing else tells.
            raise frames.corrupt(
                str(self.path), min(found, size), end, f"it has {found} bytes, not {size}"
            )
        self.lsns = array("Q", data[head_end : head_end + 8 * entries])
        self.offsets = array("Q", data[head_end + 8 * entries : head_end + 16 * entries])
        self.relations = array("Q", data[head_end + 16 * entries :])
        self.size, self.last_final_lsn, self.last_end_lsn = size, final, end
        self.decoded_lsn, self.restart_lsn = decoded, restart
        return True

    def scan(self) -> int:
        """Rebuild the index by reading every frame; return the offset behind the last whole
        transaction.

        Anything behind that offset is a torn tail.
        """
        for values in (self.lsns, self.offsets, self.relations):
            del values[:]
        self.last_final_lsn = self.last_end_lsn = self.decoded_lsn = self.restart_lsn = 0
        good = offset = frames.SEGMENT_HEADER_SIZE
        began: tuple[int, int, int] | None = None
        with SegmentReader(self.path) as reader:
            for frame in reader.frames(offset, reader.file_size()):
                if frame.kind == frames.RELATION and began is None:
                    self.relations.append(offset)
                elif frame.kind in (frames.TRANSACTION, frames.BEGIN) and began is None:
                    header, _ = frames.decode_transaction_header(frame.payload)
                    if frame.kind == frames.BEGIN:
                        began = (header.final_lsn, header.end_lsn, offset)
                    else:
                        self.note_transaction(header.final_lsn, header.end_lsn, offset)
                elif frame.kind == frames.CHANGES and began is not None:
                    pass
                elif frame.kind == frames.END and began is not None:
                    self.note_transaction(*began)
                    began = None
                elif frame.kind == frames.PROGRESS and began is None:
                    self.decoded_lsn, self.restart_lsn = frames.PROGRESS_PAYLOAD.unpack(
                        frame.payload
                    )
                else:
                    break
                offset = frame.next_offset
                if began is None and frame.kind != frames.RELATION:
                    good = offset
        while self.relations and self.relations[-1] >= good:
            self.relations.pop()
        self.size = good
        return good


class SegmentReader:
    """Reads frames of one segment through a window of one ``pread``. What can't be read is
    StorageError.

    Not thread-safe; every cursor has its own. Payloads are views of the window's bytes and stay
    valid as long as someone holds them.
    """

    WINDOW_BYTES: Final = 1 << 20

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise file_error(error, path, "open") from error
        self._window = memoryview(b"")
        self._window_start = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; views handed out stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._window = memoryview(b"")

    def forget(self, upto: int) -> None:
        """Let the kernel forget what is before *upto*: whoever reads once should not take the
        memory of those who read twice.
        """
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, 0, upto, os.POSIX_FADV_DONTNEED)

    def file_size(self) -> int:
        """Return the file's size now."""
        return os.fstat(self._fd).st_size

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise file_error(error, self.path, "read") from error

    def _view(self, offset: int, length: int, limit: int) -> memoryview | None:
        """Return *length* bytes at *offset*, or None when they go past *limit* or the file."""
        if offset + length > limit:
            return None
        start = offset - self._window_start
        if start < 0 or start + length > len(self._window):
            wanted = min(max(length, self.WINDOW_BYTES), limit - offset)
            self._window = memoryview(self._pread(wanted, offset))
            self._window_start, start = offset, 0
            if len(self._window) < length:
                return None
        return self._window[start : start + length]

    def _read(self, offset: int, length: int, limit: int) -> memoryview | None:
        """Return as :meth:`_view` does, beside the window."""
        if offset + length > limit:
            return None
        read = memoryview(self._pread(length, offset))
        return read if len(read) == length else None

    def window(self, offset: int, limit: int) -> memoryview:
        """Return what can be had at once from *offset* on and before *limit*: frames, the last one
        maybe cut.

        Empty when a frame's header is not there.
        """
        head = self._view(offset, frames.FRAME_HEADER_SIZE, limit)
        if head is None:
            return memoryview(b"")
        _, length, _, _ = frames.FRAME.unpack(head)
        if self._view(offset, frames.FRAME_HEADER_SIZE + length, limit) is None:
            return memoryview(b"")
        start = offset - self._window_start
        return self._window[start : start + limit - offset]

    def frame(self, offset: int, limit: int) -> Frame | None:
        """Read the frame at *offset*; None if it is not whole before *limit* or fails its
        checksum.
        """
        head = self._view(offset, frames.FRAME_HEADER_SIZE, limit)
        if head is None:
            return None
        _, length, kind, zero = frames.FRAME.unpack(head)
        if zero or not frames.RELATION <= kind <= frames.PROGRESS:
            return None
        size = frames.FRAME_HEADER_SIZE + length
        # A large one is whoever's it is given to, and not held here as well.
        whole = (self._read if size > self.WINDOW_BYTES else self._view)(offset, size, limit)
        if whole is None:
            return None
        payload = whole[frames.FRAME_HEADER_SIZE :]
        if not frames.check_frame(whole[: frames.FRAME_HEADER_SIZE], payload):
            return None
        return Frame(kind, payload, offset + frames.FRAME_HEADER_SIZE + length + (-length % 8))

    def payload(self, offset: int) -> bytes | None:
        """Read the payload of the frame at *offset*, beside the window; None if it fails its
        checksum.
        """
        head = self._pread(frames.FRAME_HEADER_SIZE, offset)
        if len(head) < frames.FRAME_HEADER_SIZE:
            return None
        _, length, _, _ = frames.FRAME.unpack(head)
        payload = self._pread(length, offset + len(head))
        return payload if len(payload) == length and frames.check_frame(head, payload) else None

    def frames(self, offset: int, limit: int) -> Iterator[Frame]:
        """Yield frames from *offset* until *limit* or the first that is not whole."""
        while (frame := self.frame(offset, limit)) is not None:
            yield frame
            offset = frame.next_offset
