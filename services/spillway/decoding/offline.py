"""Decoding without a server: segment files and a serialised decoder state in, transactions out.

The state is an ``<lsn>.snap`` of the engine's, or what :meth:`Decoder.serialize` returned. WAL is read from its LSN
on, from a directory that holds that segment and those after it. Transactions that were in progress in the state
are left out, because their beginning is not read; so is what commits before the last of them has ended.

Memory is bounded as a decoder's is; the directory is only read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.decoding.decoder import WORK_MEM_BYTES_DEFAULT, Decoder, DecoderStats

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.decoding.transaction import TransactionSink
    from spillway.wal.reader import WalDirectory


def decode_directory(
    wal: WalDirectory,
    state: bytes,
    sink: TransactionSink,
    *,
    spill_dir: Path,
    work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
    end_lsn: int | None = None,
) -> DecoderStats:
    """Decode what *wal* holds after *state*, to its end or, by batches, to about *end_lsn*.

    Raises:
        CorruptWal: the directory lacks the segment that the state needs, or is damaged.
        DecodingError, UnsupportedWal: a record can't be decoded.
        StorageError: *state* is damaged, or *spill_dir* can't be written.
    """
    decoder = Decoder.restore(
        state,
        wal.version,
        sink,
        work_mem_bytes=work_mem_bytes,
        spill_dir=spill_dir,
        start_decoding_at=None,
    )
    try:
        for batch in wal.batches(decoder.position, end_lsn):
            decoder.process(batch)
        return decoder.stats
    finally:
        decoder.close()
