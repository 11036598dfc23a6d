"""Programs that write a WAL store or a transaction log, and programs that follow one, to be killed
at any instant.

``python -m harness.followed_directories PROGRAM DIRECTORY …``. What is written behind the end that
a writer finds depends on its *run*, so that a reader which saw what the writer before it did not
vouch for has other bytes than everybody else.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
from spillway.decoding.transaction import TransactionHeader
from spillway.errors import NotReady
from spillway.receiver.wal_reader import FollowedWal
from spillway.receiver.wal_writer import WalWriter
from spillway.txlog import FollowedLog, LogReader, LogWriter, TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

SEGMENT = 1 << 20
WAL_START = 3 * SEGMENT
LOG_START = 0x1000
LOG_SYSTEM_ID = 7_000_000_000_000_000_001

_LOOK_S = 0.02


def spawn(
    program: str, *arguments: object, failpoints: str = "", errors: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start one of the programs; what it says of errors goes to the file *errors*."""
    command = [sys.executable, "-m", "harness.followed_directories", program, *map(str, arguments)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "SPILLWAY_FAILPOINTS": failpoints}
    if errors is None:
        return subprocess.Popen(command, env=os.environ | environment)
    with errors.open("ab") as file:
        return subprocess.Popen(command, env=os.environ | environment, stderr=file)


def opened_when_ready(open_it: Callable[[], T]) -> T:
    """Open something that a writer has yet to make."""
    while True:
        try:
            return open_it()
        except NotReady:
            threading.Event().wait(_LOOK_S)


# -- WAL ------------------------------------------------------------------------------------------


def open_wal(directory: Path) -> WalWriter:
    return WalWriter(directory, system_id="1", segment_size=SEGMENT, start_lsn=WAL_START)


@functools.cache
def _pattern(run: int) -> bytes:
    return random.Random(run).randbytes(100_003)


def wal_of(run: int, lsn: int, count: int) -> bytes:
    pattern = _pattern(run)
    start = lsn % len(pattern)
    return (pattern * ((start + count) // len(pattern) + 1))[start : start + count]


def write_wal(directory: Path, run: int) -> None:
    """Append eight segments, and sync now and then."""
    numbers = random.Random(run)
    with open_wal(directory) as store:
        end = store.received_lsn + 8 * SEGMENT
        while (lsn := store.received_lsn) < end:
            store.append(lsn, wal_of(run, lsn, numbers.randrange(1, 200_000)))
            if numbers.random() < 0.3:
                store.sync()
        store.sync()


def follow_wal(directory: Path, output: Path, stop: Path) -> None:
    """Append what can be read to the file *output*, until it goes up to the LSN that the file
    *stop* says.
    """
    followed = opened_when_ready(lambda: FollowedWal(directory))
    numbers = random.Random()
    with output.open("ab", buffering=0) as file:
        while not stop.exists() or WAL_START + file.tell() < int(stop.read_text()):
            position = WAL_START + file.tell()
            if data := followed.read(position, numbers.randrange(1, 400_000)):
                assert followed.flushed_lsn >= position + len(data)
                file.write(data)
            else:
                followed.wait(position, 0.1)


def end_at(stop: Path, lsn: int) -> None:
    """Have a follower end when it has all before *lsn*, or the transaction there: it finds the file
    *stop* whole or not at all.
    """
    beside = stop.with_suffix(".new")
    beside.write_text(str(lsn))
    beside.replace(stop)


# -- the log --------------------------------------------------------------------------------------


@dataclass
class MadeTransaction:
    """A transaction of made-up changes."""

    header: TransactionHeader
    relations: dict[int, RelationDescriptor]
    pieces: list[bytes] = field(default_factory=list)

    def chunks(self) -> Iterator[memoryview]:
        return map(memoryview, self.pieces)

    def close(self) -> None: ...


def made(number: int, run: int, chunks: int = 1) -> MadeTransaction:
    """Return the transaction *number*, of which one decides by its header and the other parts which
    *run* made it.
    """
    lsn = LOG_START + number * 0x100
    column = ColumnDescriptor(1, "a", 23, -1, 4, True, "i")
    relation = RelationDescriptor(
        16384, "public", f"t_{run}_{number % 3}", "r", "p", "d", (column,)
    )
    text = f"run {run}, number {number}, ".encode()
    pieces = [(text + b"%d. " % i * 20).ljust(1 << 10) for i in range(chunks)]
    header = TransactionHeader(700 + number, lsn - 64, lsn, lsn + 48, 1_000_000 * number)
    return MadeTransaction(header, {1 + number % 3: relation}, pieces)


def open_log(directory: Path, segment_bytes: int = 64 << 10) -> LogWriter:
    return LogWriter(
        directory, system_id=LOG_SYSTEM_ID, database_oid=5, segment_bytes=segment_bytes
    )


def log_line(
    header: TransactionHeader, relations: Mapping[int, RelationDescriptor], data: bytes
) -> str:
    names = sorted(relation.name for relation in relations.values())
    return json.dumps([int(header.final_lsn), header.xid, names, data.decode()])


def log_lines(reader: LogReader, lsn: int) -> list[str]:
    """Return a line for each transaction that can be read now."""
    cursor, lines = TransactionCursor(reader, lsn), []
    while (entry := cursor.next()) is not None:
        used = {1 + (entry.header.xid - 700) % 3}
        relations = {number: entry.relations[number] for number in used}
        lines.append(log_line(entry.header, relations, b"".join(entry.chunks())))
    cursor.close()
    return lines


def write_log(directory: Path, run: int, kill_at: int) -> None:
    """Write transactions; the *kill_at*-th time that bytes go to a file is the last, and half of
    them get there.
    """
    write, times = os.write, 0

    def torn(fd: int, data: memoryview) -> int:
        nonlocal times
        times += 1
        if times == kill_at:
            write(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(fd, data)

    os.write = torn  # type: ignore[assignment]
    numbers = random.Random(run)
    with open_log(directory) as log:
        if log.start_lsn is None:
            log.start(LOG_START)
        first = max((log.last_final_lsn - LOG_START) // 0x100 + 1, 0)
        for number in range(first, first + 1000):
            log.transaction(made(number, run, numbers.choice([1] * 25 + [5, 5, 40, 40, 1500])))
            chance = numbers.random()
            if chance < 0.1 and number > 3:
                log.progress(LOG_START + number * 0x100 + 48)
                log.checkpoint(0x800)
            elif chance < 0.4:
                log.publish()


def follow_log(directory: Path, output: Path, stop: Path) -> None:
    """Append a line for each transaction to the file *output*, until it has that of the LSN that
    the file *stop* says.
    """
    followed = opened_when_ready(lambda: FollowedLog(directory))
    woken = threading.Event()
    followed.add_listener(woken.set)
    whole = output.read_text() if output.exists() else ""
    # Who was killed may have written half a line.
    whole = whole[: whole.rfind("\n") + 1]
    output.write_text(whole)
    last = json.loads(whole.splitlines()[-1])[0] if whole else LOG_START - 1
    cursor = None
    with output.open("a", buffering=1) as file:
        while not stop.exists() or last < int(stop.read_text()):
            woken.clear()
            if cursor is None and followed.start_lsn is not None:
                cursor = TransactionCursor(followed, last + 1)
            entry = cursor.next() if cursor is not None else None
            if entry is None:
                woken.wait(0.1)
                continue
            used = 1 + (entry.header.xid - 700) % 3
            relations = {used: entry.relations[used]}
            file.write(log_line(entry.header, relations, b"".join(entry.chunks())) + "\n")
            last = entry.header.final_lsn
    followed.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write_wal", directory, run]:
            write_wal(Path(directory), int(run))
        case ["follow_wal", directory, output, stop]:
            follow_wal(Path(directory), Path(output), Path(stop))
        case ["write_log", directory, run, kill_at]:
            write_log(Path(directory), int(run), int(kill_at))
        case ["follow_log", directory, output, stop]:
            follow_log(Path(directory), Path(output), Path(stop))
        case arguments:
            raise SystemExit(f"no such program: {arguments}")
