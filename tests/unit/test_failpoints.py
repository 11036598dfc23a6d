"""Failpoints: armed exactly as told, and a typo is an error."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from spillway import failpoints
from spillway.failpoints import armed, failpoint, parse


def hits(count: int) -> list[int]:
    """The hits at which the failpoint raised."""
    raised = []
    for hit in range(1, count + 1):
        try:
            failpoint("walstore.write")
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
            raised.append(hit)
    return raised


@pytest.mark.parametrize(
    ("when", "expected"),
    [("", [1, 2, 3, 4, 5]), ("@2", [2]), ("@2-3", [2, 3]), ("@4-", [4, 5])],
)
def test_hits(when: str, expected: list[int]) -> None:
    with armed(f"walstore.write=error:ENOSPC{when}"):
        assert hits(5) == expected
    assert hits(5) == []


def test_nested() -> None:
    with armed("walstore.write=error:ENOSPC"):
        with armed("walstore.write=sleep:1; other=sleep:1"):
            assert hits(1) == []
        assert hits(1) == [1]


def test_sleep() -> None:
    with armed("walstore.write=sleep:50"):
        began = time.monotonic()
        failpoint("walstore.write")
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x=",
        "x=explode",
        "x=error",
        "x=error:EWHAT",
        "x=sleep",
        "x=sleep:soon",
        "x=kill@",
        "X=kill",
    ],
)
def test_typo(text: str) -> None:
    with pytest.raises(ValueError, match="failpoint"):
        parse(text)


def test_environment_and_kill() -> None:
    code = (
        "from spillway.failpoints import failpoint\n"
        "failpoint('a'); print('one', flush=True); failpoint('a')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, failpoints.ENVIRONMENT_VARIABLE: "a=kill@2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "one\n"
    assert done.returncode == -signal.SIGKILL
