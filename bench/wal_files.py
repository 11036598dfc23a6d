"""WAL from a server's own segment files into a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway._kernels.wal.walker import Walker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.decoding.decoder import Decoder
    from spillway.pg.versions import WalVersion

_READ_BYTES: Final = 1 << 20
_BATCH_RECORDS: Final = 8192


def wal_bytes(directory: Path, segment_size: int, start: int, end: int) -> Iterator[bytes]:
    """Yield what is from *start* to *end* on timeline 1."""
    segments_per_xlogid = (1 << 32) // segment_size
    while start < end:
        number, offset = divmod(start, segment_size)
        name = f"00000001{number // segments_per_xlogid:08X}{number % segments_per_xlogid:08X}"
        with (directory / name).open("rb", buffering=0) as segment:
            segment.seek(offset)
            while start < end and offset < segment_size:
                data = segment.read(min(_READ_BYTES, segment_size - offset, end - start))
                yield data
                offset += len(data)
                start += len(data)


def decode(
    decoder: Decoder, version: WalVersion, segment_size: int, pieces: Iterator[bytes]
) -> None:
    """Decode *pieces*, which begin at the decoder's position."""
    lsn = decoder.position
    walker = Walker(version, lsn, segment_size)
    for data in pieces:
        walker.feed(lsn, data)
        lsn += len(data)
        while (batch := walker.next_batch(_BATCH_RECORDS)) is not None:
            decoder.process(batch)
