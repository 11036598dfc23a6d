"""Large batches come out of one budget."""

from __future__ import annotations

from contextlib import ExitStack

from spillway.delivery.large_batches import LARGE_BYTES_MAX, ORDINARY_BYTES, LargeBatches
from spillway.stream.change_stream import BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX

MIB = 1 << 20


def test_the_default_is_what_is_ordinary() -> None:
    assert ORDINARY_BYTES == BATCH_BYTES_DEFAULT
    assert BATCH_BYTES_MAX <= LARGE_BYTES_MAX


def test_who_asks_for_more_than_there_is_gets_the_default() -> None:
    batches = LargeBatches(9 * MIB)
    with ExitStack() as streams:
        granted = [streams.enter_context(batches.granted(4 * MIB)) for _ in range(4)]
        assert granted == [4 * MIB, 4 * MIB, ORDINARY_BYTES, ORDINARY_BYTES]
        # What is left serves who asks for less.
        assert streams.enter_context(batches.granted(MIB)) == MIB
    with batches.granted(9 * MIB) as granted_bytes:
        assert granted_bytes == 9 * MIB


def test_ordinary_ones_take_nothing_of_it() -> None:
    batches = LargeBatches(MIB)
    with ExitStack() as streams:
        for _ in range(100):
            assert streams.enter_context(batches.granted(ORDINARY_BYTES)) == ORDINARY_BYTES
            assert streams.enter_context(batches.granted(1024)) == 1024
        assert streams.enter_context(batches.granted(MIB)) == MIB
