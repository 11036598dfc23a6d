"""What glibc's malloc keeps of freed memory, and giving it back to the operating system.

Three habits of glibc's are right for many programs and wrong for those of here. Each thread that
mallocs gets an arena of its own, up to eight for a core, and what a thread has freed serves no
other: with a dozen workers that encode in turn it adds up. Freed memory returns to the system only
from an arena's end: one small block that outlives a large transaction keeps all of it. And from
there it returns at once, as a block of some hundred kilobytes does that was a mapping of its own:
whoever makes such a buffer for each batch touches its pages for the first time each time, which is
a page fault, some microseconds on a virtual machine, for 4 kB.

So a program has few arenas, takes blocks of up to 32 MiB from them, and leaves as much free at an
arena's end (:func:`set_up_malloc`). The service gives back what is free inside of them, too
(:class:`FreedMemory`), after a large transaction, after a stream and whenever the process has
grown. That costs a system call for each free stretch, and the first touch of pages that are used
again; both are bounded by how much was freed.

With another C library everything here does nothing; musl's malloc, for one, has no arenas.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Growth that is worth a look at what is free, and freed memory that is worth one.
WORTH_BYTES: Final = 16 << 20
#: How many arenas: see docs/explanation/performance.md, "Memory".
ARENAS: Final = 2

#: Free memory that stays at an arena's end, and the largest block that is made in an arena: glibc
#: takes no larger one.
KEPT_BYTES: Final = 32 << 20

#: mallopt's parameters, each with the variable by which whoever starts the program sets it.
_SETTINGS: Final = (
    (-8, "MALLOC_ARENA_MAX", ARENAS),
    (-1, "MALLOC_TRIM_THRESHOLD_", KEPT_BYTES),
    (-3, "MALLOC_MMAP_THRESHOLD_", KEPT_BYTES),
)
_STATM: Final = Path("/proc/self/statm")


def set_up_malloc() -> bool:
    """Have the process use :data:`ARENAS` arenas at most, and keep :data:`KEPT_BYTES` of each, but
    for what the environment sets itself; before threads begin. False: it can't be.
    """
    libc = _glibc()
    if libc is None:
        return False
    return all(
        libc.mallopt(parameter, value)
        for parameter, variable, value in _SETTINGS
        if variable not in os.environ
    )


class FreedMemory:
    """Gives free memory back. For any thread.

    Args:
        trim: gives back all that is free; None when it can't be, and then nothing happens.
        resident_bytes: tells how much memory the process has.
    """

    def __init__(self, trim: Callable[[], None] | None, resident_bytes: Callable[[], int]) -> None:
        self._trim = trim
        self._resident_bytes = resident_bytes
        self._lock = threading.Lock()
        # The least that the process had since free memory was last given back, and since that was
        # last asked for.
        self._least = self._least_asked = resident_bytes() if trim is not None else 0
        self._asked = False

    def ask(self) -> None:
        """Have free memory given back at the next :meth:`look`: something ended that may have had
        much.
        """
        self._asked = True

    def look(self) -> None:
        """Give back what is free if that may be much.

        So it may when the process has grown by WORTH_BYTES since it last gave back. Who asks means
        growth since the last time that somebody asked: what was in use then may be free now.
        """
        if self._trim is None:
            return
        asked, self._asked = self._asked, False
        resident = self._resident_bytes()
        self._least = min(self._least, resident)
        self._least_asked = min(self._least_asked, resident)
        if asked and resident - self._least_asked >= WORTH_BYTES:
            self.give_back()
            self._least_asked = self._least
        elif resident - self._least >= WORTH_BYTES:
            self.give_back()

    def give_back(self) -> None:
        """Give back what is free: something large was just freed."""
        if self._trim is not None:
            with self._lock:
                self._trim()
                self._least = self._resident_bytes()

    @classmethod
    def of_process(cls) -> FreedMemory:
        """Return that of this process."""
        libc = _glibc()
        if libc is None or not _STATM.exists():
            return cls(None, lambda: 0)
        return cls(lambda: libc.malloc_trim(0), resident_bytes)


def resident_bytes() -> int:
    """Return the resident memory of this process; Linux only."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc."""
    # Other libraries know no such name, or no confstr.
    with contextlib.suppress(AttributeError, ValueError, OSError):
        if (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return ctypes.CDLL(None)
    return None


#: The process has one heap.
freed_memory: Final = FreedMemory.of_process()
