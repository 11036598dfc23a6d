"""Root's threads, and its programs, bound by file permissions, as another user's are.

Root may read any file by two capabilities, which a thread has by itself: what it forks inherits
what it has then. A program that root executes gets them anew, unless its bounding set lacks them.

Source: capabilities(7), capget(2), prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_PR_CAPBSET_DROP = 24
_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def _call(function: str, sets: ctypes.Array[_Set]) -> None:
    header = _Header(_VERSION_3, 0)
    if getattr(_libc, function)(ctypes.byref(header), sets) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Bind this thread, and those that are started meanwhile for as long as they live, to what
    permissions say.
    """
    sets = (_Set * 2)()
    _call("capget", sets)
    before = sets[0].effective
    sets[0].effective = before & ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    _call("capset", sets)
    try:
        yield
    finally:
        sets[0].effective = before
        _call("capset", sets)


def command() -> list[str]:
    """Return what stands before a command line that is to be bound, with all that it starts."""
    return [sys.executable, __file__] if os.geteuid() == 0 else []


def _execute(arguments: list[str]) -> None:
    """Become the program, without the two capabilities for ever."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    _execute(sys.argv[1:])
