"""Decoding without a service: segment files and a beginning in, transactions out.

The beginning is a serialised decoder state (an ``<lsn>.snap`` of the engine's, or what
:meth:`Decoder.serialize` returned), or a catalog bootstrap. WAL is read from its LSN on, from a
directory that holds that segment and those after it. From a state, transactions that were in
progress in it are left out, because their beginning is not read; so is what commits before the last
of them has ended. From a bootstrap, what commits before decoding is consistent.

Memory is bounded as a decoder's is; the directory is only read.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from spillway.decoding.decoder import WORK_MEM_BYTES_DEFAULT, Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.catalog.bootstrap import Bootstrap
    from spillway.decoding.sink import TransactionSink
    from spillway.decoding.transaction_ends import DecoderStats
    from spillway.wal.reader import WalDirectory


@contextmanager
def offline_decoder(
    wal: WalDirectory,
    begin: Bootstrap | bytes,
    sink: TransactionSink,
    *,
    spill_dir: Path,
    work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
) -> Iterator[Decoder]:
    """Make a decoder that is to read *wal* from its ``position`` on, and close it at the block's
    end.

    Raises:
        StorageError: *begin* is a damaged state, or *spill_dir* can't be written.
    """
    if isinstance(begin, bytes):
        decoder = Decoder.restore(
            begin,
            wal.version,
            sink,
            work_mem_bytes=work_mem_bytes,
            spill_dir=spill_dir,
            start_decoding_at=None,
        )
    else:
        decoder = Decoder(
            wal.version,
            begin.mirror.facts.database_oid,
            begin.mirror,
            sink,
            work_mem_bytes=work_mem_bytes,
            spill_dir=spill_dir,
            start=begin.redo_lsn,
        )
    try:
        yield decoder
    finally:
        decoder.close()


def decode_directory(
    wal: WalDirectory,
    begin: Bootstrap | bytes,
    sink: TransactionSink,
    *,
    spill_dir: Path,
    work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
    end_lsn: int | None = None,
) -> DecoderStats:
    """Decode what *wal* holds from *begin* on, to its end or, by batches, to about *end_lsn*.

    Raises:
        WalGap: a segment that is needed is not there.
        CorruptWal: the directory is damaged.
        DecodingError, UnsupportedWal: a record can't be decoded.
        StorageError: *begin* is a damaged state, or *spill_dir* can't be written.
    """
    with offline_decoder(
        wal, begin, sink, spill_dir=spill_dir, work_mem_bytes=work_mem_bytes
    ) as decoder:
        read_on(wal, decoder, end_lsn)
        return decoder.stats


def read_on(wal: WalDirectory, decoder: Decoder, end_lsn: int | None = None) -> None:
    """Decode what *wal* holds from the decoder's position on; raises as
    :func:`decode_directory`.
    """
    wal.check_from(decoder.position)
    for batch in wal.batches(decoder.position, end_lsn):
        decoder.process(batch)
    if end_lsn is None or decoder.position < end_lsn:
        wal.check_ended(decoder.position)
