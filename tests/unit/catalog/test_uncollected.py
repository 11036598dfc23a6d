"""Python's collector is off while a catalog is read, and on again whatever happens."""

from __future__ import annotations

import gc
import threading

import pytest

from spillway.catalog.bootstrap import uncollected


def test_it_is_on_again_after_the_last_of_several() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with uncollected():
        thread.start()
        assert inside.wait(10)
        assert not gc.isenabled()
    assert not gc.isenabled(), "the other one is still at work"
    leave.set()
    thread.join()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="lost"), uncollected():
        raise ValueError("lost")
    assert gc.isenabled()


def test_who_had_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
