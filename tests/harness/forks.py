"""Whether this process forks: what a program is started by, as the C library sees it.

A forked child runs on in a copy of this process until it has become its program, and whatever
registered for that (gRPC does) runs there first, on locks and stacks of threads that the child does
not have. subprocess does without (``vfork``) unless it is asked for something that needs Python in
the child: ``preexec_fn``, ``user``, ``group``, ``extra_groups``.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_forks = 0


def _prepare() -> None:
    global _forks  # noqa: PLW0603 - the C library keeps the handler for as long as the process runs
    _forks += 1


#: Kept for as long.
_HANDLER: Final = ctypes.CFUNCTYPE(None)(_prepare)
# What pthread_atfork() of a program calls: that one is no symbol of the library.
ctypes.CDLL(None).__register_atfork(_HANDLER, None, None, None)


def forks() -> int:
    """Return how often this process has forked since this module was imported."""
    return _forks


@contextmanager
def without_forks() -> Iterator[None]:
    """Check that nothing within forks this process."""
    before = _forks
    yield
    assert _forks == before, f"{_forks - before} children were forked"
