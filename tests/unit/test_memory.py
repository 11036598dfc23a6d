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
from spillway.memory import ARENAS, limit_arenas
limited = limit_arenas()
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
