"""The message buffer: messages come out as they went in, and memory is given back."""

import array
import random

import pytest

from spillway._kernels.messages.buffer import MessageBuffer, total_length


def test_take_returns_what_was_appended() -> None:
    buffer = MessageBuffer(0)
    rng = random.Random(1)
    messages = [
        (rng.getrandbits(64), rng.getrandbits(32), rng.randbytes(rng.choice([0, 1, 100, 5000])))
        for _ in range(500)
    ]
    for lsn, xid, payload in messages:
        buffer.append(lsn, xid, payload)
    assert buffer.count == len(buffer) == 500
    assert buffer.nbytes == sum(len(m[2]) for m in messages)
    batch = buffer.take()
    assert batch.count == 500
    assert batch.payload == b"".join(m[2] for m in messages)
    assert array.array("Q", batch.lsns).tolist() == [m[0] for m in messages]
    assert array.array("I", batch.xids).tolist() == [m[1] for m in messages]
    assert array.array("I", batch.lengths).tolist() == [len(m[2]) for m in messages]


def test_take_empties() -> None:
    buffer = MessageBuffer()
    buffer.append(1, 2, b"x" * (8 << 20))
    assert buffer.take().count == 1
    assert (buffer.nbytes, buffer.count) == (0, 0)
    empty = buffer.take()
    assert (empty.payload, empty.lengths, empty.lsns, empty.xids, empty.count) == (
        b"",
        b"",
        b"",
        b"",
        0,
    )
    buffer.append(3, 4, memoryview(b"again"))
    assert buffer.take().payload == b"again"


@pytest.mark.parametrize("arguments", [(-1, 0, b""), (1 << 64, 0, b""), (0, 1 << 32, b"")])
def test_numbers_out_of_range_are_refused(arguments: tuple[int, int, bytes]) -> None:
    buffer = MessageBuffer()
    with pytest.raises(OverflowError):
        buffer.append(*arguments)
    assert buffer.count == 0


@pytest.mark.parametrize("count", [0, 1, 7, 4096])
@pytest.mark.parametrize("shift", range(4))
def test_total_length_at_any_alignment(count: int, shift: int) -> None:
    lengths = array.array("I", [0xFFFFFFFF - n for n in range(count)])
    data = memoryview(bytes(shift) + lengths.tobytes())[shift:]
    assert total_length(data) == sum(lengths)


@pytest.mark.parametrize("size", [1, 2, 3, 4097])
def test_total_length_of_a_cut_array(size: int) -> None:
    with pytest.raises(ValueError, match="cut"):
        total_length(bytes(size))
