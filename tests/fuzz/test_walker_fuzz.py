"""Damage real WAL anywhere: a typed error with an LSN, or whole records up to some point; never
more.

A seed replays a run: SPILLWAY_FUZZ_SEED=… pytest tests/fuzz/test_walker_fuzz.py
"""

from __future__ import annotations

import os
import random
import re

import pytest

from harness.golden import GoldenWal, golden_wal
from harness.tiers import majors_by_tier
from spillway._kernels.wal.walker import Walker
from spillway.errors import WalError

ROUNDS = int(os.environ.get("SPILLWAY_FUZZ_ROUNDS", "400"))


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("SPILLWAY_FUZZ_SEED", random.randrange(1 << 32)))
    print("SPILLWAY_FUZZ_SEED", seed)
    return random.Random(seed)


def walk(golden: GoldenWal, data: bytes, start: int, *, strict: bool, rng: random.Random):
    """Walk damaged *data*; return its whole records' headers and the error, if there is one."""
    walker = Walker(
        golden.version, start, golden.segment_size, system_id=golden.system_id, end_is_error=strict
    )
    headers = []
    error: WalError | None = None
    at = 0
    try:
        while at < len(data):
            size = rng.choice((17, 1000, 8192, 100_000))
            walker.feed(start + at, data[at : at + size])
            at += size
            while (batch := walker.next_batch()) is not None:
                for i in range(len(batch)):
                    headers.append(batch.header(i))
                    batch.record(i)
    except WalError as caught:
        error = caught
    if error is not None:
        assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", str(error.details["lsn"]))
    return headers, error


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
def test_damage(major, rng):
    golden = golden_wal(major)
    whole = Walker(golden.version, golden.start_lsn, golden.segment_size, end_is_error=False)
    whole.feed(golden.start_lsn, golden.data)
    sound = []
    while (batch := whole.next_batch()) is not None:
        sound += [batch.header(i) for i in range(len(batch))]
    for _ in range(ROUNDS):
        # Three pages or so, to have headers damaged often, from a record on.
        first = rng.randrange(len(sound))
        start = sound[first][0]
        begin = start - golden.start_lsn
        data = bytearray(golden.data[begin : begin + rng.choice((500, 10_000, 30_000))])
        end = start + len(data)
        expected = [h for h in sound[first:] if h[0] + h[3] <= end]
        damaged_at = rng.randrange(len(data))
        how = rng.choice(("flip", "byte", "cut", "zeros", "noise", "drop"))
        if how == "flip":
            data[damaged_at] ^= 1 << rng.randrange(8)
        elif how == "byte":
            data[damaged_at] = rng.randrange(256)
        elif how == "cut":
            del data[damaged_at:]
        elif how == "zeros":
            data[damaged_at : damaged_at + 100] = bytes(min(100, len(data) - damaged_at))
        elif how == "noise":
            data[damaged_at:] = rng.randbytes(len(data) - damaged_at)
        else:
            del data[damaged_at : damaged_at + rng.choice((1, 8, 24))]
        headers, _ = walk(golden, bytes(data), start, strict=rng.random() < 0.5, rng=rng)
        # What comes out is what is in the sound WAL, in order, and nothing that the damage touched.
        assert headers == expected[: len(headers)], (how, damaged_at)
        untouched = [h for h in expected if h[1] <= start + damaged_at]
        assert headers[: len(untouched)] == untouched, (how, damaged_at)


def test_noise(rng):
    golden = golden_wal(15)
    for _ in range(ROUNDS):
        data = rng.randbytes(rng.randrange(1, 20_000))
        headers, _ = walk(golden, data, rng.randrange(1 << 30) * 8192 + 48, strict=True, rng=rng)
        assert headers == []
