"""Batches of messages with notices between them."""

from __future__ import annotations

import struct

from spillway.plugins.messages import EncodedBatch, Notice


def _batch(texts: list[bytes], *at: int) -> EncodedBatch:
    count = len(texts)
    return EncodedBatch(
        b"".join(texts),
        struct.pack(f"<{count}I", *map(len, texts)),
        struct.pack(f"<{count}Q", *range(count)),
        struct.pack(f"<{count}I", *range(count)),
        count,
        tuple(Notice(place, "55000", f"notice {place}", "", "") for place in at),
    )


def _parts(batch: EncodedBatch) -> list[tuple[bytes, int]]:
    return [(bytes(part.payload), part.count) for part in batch.between_notices()]


def test_notices_split_a_batch() -> None:
    batch = _batch([b"a", b"bb", b"", b"ccc"], 0, 2, 2, 4)
    assert _parts(batch) == [(b"", 0), (b"abb", 2), (b"", 0), (b"ccc", 2), (b"", 0)]
    second = batch.between_notices()[3]
    assert bytes(second.lsns) == struct.pack("<2Q", 2, 3)
    assert bytes(second.lengths) == struct.pack("<2I", 0, 3)
    assert bytes(second.xids) == struct.pack("<2I", 2, 3)


def test_joined_batches_keep_notices_in_their_places() -> None:
    joined = EncodedBatch.joined([_batch([b"a", b"b"], 1), _batch([]), _batch([b"c"], 0, 1)])
    assert [notice.at for notice in joined.notices] == [1, 2, 3]
    assert _parts(joined) == [(b"a", 1), (b"b", 1), (b"c", 1), (b"", 0)]
