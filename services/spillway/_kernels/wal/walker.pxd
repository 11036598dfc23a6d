# cython: language_level=3
"""The walker for kernels: what its batches hold is declared in record_batch.pxd, and to be had from
here too.
"""

from spillway._kernels.wal.record_batch cimport (
    BKPBLOCK_HAS_DATA,
    BKPBLOCK_HAS_IMAGE,
    BKPBLOCK_SAME_REL,
    BKPBLOCK_WILL_INIT,
    BLOCK_SIZE,
    IMAGE_LZ4,
    IMAGE_PGLZ,
    IMAGE_PLAIN,
    IMAGE_ZSTD,
    RecordBatch,
    WalBlockRef,
    WalRecord,
    load_u16,
    load_u32,
    load_u64,
)
