"""Readers in a process of their own: writer and reader are killed, and everybody reads the same in
the end.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from harness.followed_directories import (
    LOG_START,
    WAL_START,
    end_at,
    log_lines,
    made,
    open_log,
    open_wal,
    spawn,
)
from spillway.receiver.wal_reader import FollowedWal
from spillway.txlog import FollowedLog

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

#: Where the writer of WAL dies, run by run. At each of these something is written of which nobody
#: knows yet.
WAL_KILLS = (
    "walstore.after_write=kill@7",
    "walstore.after_fsync=kill@3",
    "walstore.before_state_fsync=kill@6",
    "walstore.create_segment=kill@4",
    "walstore.after_state_fsync=kill@5",
)


def until(reached: Callable[[], bool], reader: subprocess.Popen[bytes], errors: Path) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert reader.poll() is None, errors.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed(writer: subprocess.Popen[bytes]) -> None:
    assert writer.wait(120) == -signal.SIGKILL


def ended(reader: subprocess.Popen[bytes], errors: Path) -> None:
    try:
        assert reader.wait(120) == 0, errors.read_text()
    finally:
        reader.kill()


def test_wal_that_another_process_writes(tmp_path: Path) -> None:
    directory, output, stop = tmp_path / "wal", tmp_path / "read", tmp_path / "stop"
    errors = tmp_path / "errors"
    output.touch()
    reader = spawn("follow_wal", directory, output, stop, errors=errors)
    try:
        for run, failpoints in enumerate(WAL_KILLS):
            killed(spawn("write_wal", directory, run, failpoints=failpoints))
            if run % 3 == 1:
                # It goes on from what it has.
                reader.kill()
                reader.wait()
                reader = spawn("follow_wal", directory, output, stop, errors=errors)
            # The writer is dead, and all that it vouched for can be read.
            followed = FollowedWal(directory)
            vouched = int(followed.flushed_lsn)
            followed.close()
            until(lambda: WAL_START + output.stat().st_size >= vouched, reader, errors)  # noqa: B023
            with open_wal(directory) as store:
                assert output.stat().st_size <= store.flushed_lsn - WAL_START
        with open_wal(directory) as store:
            store.append(store.received_lsn, b"the end")
            end = store.sync()
            end_at(stop, int(end))
            ended(reader, errors)
            stored, position = [], WAL_START
            while data := store.reader.read(position, 1 << 20):
                stored.append(data)
                position += len(data)
        assert output.read_bytes() == b"".join(stored)
        assert len(b"".join(stored)) > 3 << 20
    finally:
        reader.kill()


def test_a_log_that_another_process_writes(tmp_path: Path) -> None:
    directory, output, stop = tmp_path / "txlog", tmp_path / "read", tmp_path / "stop"
    errors = tmp_path / "errors"
    output.touch()
    numbers = random.Random(4711)
    # Before the first checkpoint, which is the second time that bytes are written, all is thrown
    # away.
    kills = [1, 2, *(numbers.randrange(3, 40) for _ in range(6))]
    reader = spawn("follow_log", directory, output, stop, errors=errors)
    try:
        for run, kill_at in enumerate(kills):
            killed(spawn("write_log", directory, run, kill_at))
            if run % 3 == 2:
                reader.kill()
                reader.wait()
                reader = spawn("follow_log", directory, output, stop, errors=errors)
            followed = FollowedLog(directory)
            vouched = log_lines(followed, LOG_START) if followed.start_lsn is not None else []
            followed.close()
            if run == 0:
                assert vouched == []
            until(lambda: len(output.read_text().splitlines()) >= len(vouched), reader, errors)  # noqa: B023
        with open_log(directory) as log:
            number = (log.last_final_lsn - LOG_START) // 0x100 + 1
            log.transaction(made(number, len(kills)))
            log.checkpoint(0x800)
            end_at(stop, log.last_final_lsn)
            ended(reader, errors)
            written = log_lines(log.reader, LOG_START)
        assert output.read_text().splitlines() == written
        assert len(written) > 100
        # More than one life has written it.
        assert len({line.split("run ")[1].split(",")[0] for line in written}) > 3
    finally:
        reader.kill()


@pytest.mark.parametrize("program", ["follow_wal", "follow_log"])
def test_a_writer_does_not_notice_its_readers(tmp_path: Path, program: str) -> None:
    """One that dies takes nothing with it, and one that was there first only waits."""
    directory, errors = tmp_path / "directory", tmp_path / "errors"
    output = tmp_path / "read"
    output.touch()
    reader = spawn(program, directory, output, tmp_path / "stop", errors=errors)
    try:
        if program == "follow_wal":
            with open_wal(directory) as store:
                store.append(WAL_START, b"a" * 1000)
                store.sync()
                until(lambda: output.stat().st_size == 1000, reader, errors)
                reader.kill()
                reader.wait()
                store.append(WAL_START + 1000, b"b" * 1000)
                assert store.sync() == WAL_START + 2000
        else:
            with open_log(directory) as log:
                log.start(LOG_START)
                log.transaction(made(0, 0))
                log.checkpoint(0x800)
                until(lambda: output.read_text().count("\n") == 1, reader, errors)
                reader.kill()
                reader.wait()
                log.transaction(made(1, 0))
                log.publish()
                assert len(log_lines(log.reader, LOG_START)) == 2
    finally:
        reader.kill()
