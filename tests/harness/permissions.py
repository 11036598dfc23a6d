"""Root's threads bound by file permissions, as another user's are.

Root may read any file by two capabilities, which a thread has by itself: what it starts inherits
what it has then.

Source: capabilities(7), capget(2).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
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
