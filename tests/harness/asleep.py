"""Waiting until an event loop sleeps, so that a test knows who has its turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.loop_turn import LendingLoop


def asleep(loop: LendingLoop) -> None:
    """Return when *loop* sleeps; from another thread than its own. It goes on sleeping until
    somebody has something for it.
    """
    deadline = time.monotonic() + 60
    while not loop.borrow():
        assert time.monotonic() < deadline, "the loop never sleeps"
        time.sleep(0.001)
    loop.give_back()
