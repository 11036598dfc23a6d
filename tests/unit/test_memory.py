"""When freed memory is given back; what the C library does with it is its own affair."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spillway.memory import WORTH_BYTES, FreedMemory, resident_bytes

MIB = 1 << 20


class Process:
    """One whose heap is ours to say."""

    def __init__(self) -> None:
        self.resident = 100 * MIB
        self.free = 0
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1
        self.resident -= self.free
        self.free = 0


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def freed(process: Process) -> FreedMemory:
    return FreedMemory(process.trim, lambda: process.resident)


def test_growth_is_looked_at_once(process: Process, freed: FreedMemory) -> None:
    freed.look()
    process.resident += WORTH_BYTES - 1
    freed.look()
    assert process.trims == 0
    process.resident += 1
    freed.look()
    assert process.trims == 1
    # Nothing was free, and that is known.
    for _ in range(3):
        freed.look()
    assert process.trims == 1


def test_growth_counts_from_the_least(process: Process, freed: FreedMemory) -> None:
    process.resident = 80 * MIB
    freed.look()
    process.resident += WORTH_BYTES
    process.free = WORTH_BYTES
    freed.look()
    assert (process.trims, process.resident) == (1, 80 * MIB)


def test_who_asks_means_growth_since_somebody_asked(process: Process, freed: FreedMemory) -> None:
    process.resident += 40 * MIB
    freed.look()
    process.free = 30 * MIB
    freed.look()
    assert process.trims == 1
    freed.ask()
    freed.look()
    assert (process.trims, process.resident) == (2, 110 * MIB)
    freed.ask()
    freed.look()
    assert process.trims == 2, "too little is left to be worth it"


def test_a_large_block_is_given_back_at_once(process: Process, freed: FreedMemory) -> None:
    process.resident += 64 * MIB
    freed.look()
    process.free = 64 * MIB
    freed.give_back()
    assert (process.trims, process.resident) == (2, 100 * MIB)
    process.resident += WORTH_BYTES
    freed.look()
    assert process.trims == 3


def test_without_glibc_nothing_happens() -> None:
    freed = FreedMemory(None, resident_bytes)
    freed.give_back()
    freed.look()


def test_threads_share_arenas() -> None:
    """In a process of its own: what twenty threads hold lies in few arenas, which malloc_info
    lists.
    """
    program = """
import ctypes, os, sys, threading, tempfile
from spillway.memory import ARENAS, set_up_malloc
limited = set_up_malloc()
libc = ctypes.CDLL(None)
if not hasattr(libc, "malloc_info"):
    sys.exit(0 if not limited else 1)
libc.malloc.restype = ctypes.c_void_p
held = threading.Barrier(21)
def hold():
    libc.malloc(5000)
    held.wait()
for _ in range(20):
    threading.Thread(target=hold).start()
held.wait()
libc.fopen.restype = ctypes.c_void_p
name = tempfile.mktemp().encode()
file = ctypes.c_void_p(libc.fopen(name, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
heaps = open(name).read().count("<heap nr")
os.unlink(name)
assert limited and heaps <= ARENAS, (limited, heaps)
"""
    environment = {"PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.parametrize("variable", ["", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_a_buffer_that_is_made_again_has_its_pages_already(variable: str) -> None:
    """In a process of its own: 8 MiB stay when they are freed, unless the environment says
    otherwise, and are given back when that is asked for.
    """
    program = """
import ctypes, sys
from spillway.memory import freed_memory, resident_bytes, set_up_malloc
assert set_up_malloc() or not hasattr(ctypes.CDLL(None), "malloc_trim")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def used():
    before = resident_bytes()
    block = libc.malloc(8 << 20)
    ctypes.memset(block, 1, 8 << 20)
    libc.free(block)
    return (resident_bytes() - before) >> 20
first, second = used(), used()
before = resident_bytes()
freed_memory.give_back()
print(first, second, (before - resident_bytes()) >> 20)
"""
    environment = {"PATH": "/usr/bin:/bin"} | ({variable: "65536"} if variable else {})
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, capture_output=True, text=True
    )
    first, second, given_back = map(int, done.stdout.split())
    assert second == 0
    if variable:
        assert first <= 1
    else:
        assert first >= 7
        assert given_back >= 7
