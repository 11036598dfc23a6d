"""Where a lake stands as a whole: ``<path>/_spillway/lake.json``, and the lock beside it.

Tables say for themselves what they have (:mod:`spillway.lake.tables.contract`), but a table without
changes in a batch says nothing about it. So after all tables of a batch have committed, the lake's
position is written, durably, and only then is the slot confirmed. That order gives two checks:

- the slot is never ahead of the lake's position, unless somebody else confirmed it, and then
  changes are missing;
- a batch that begins after the lake's position would leave a gap.

The lock keeps a second job away from the same lake: two of them would only take turns at failing.
Who holds it stands in its file, for whoever is kept away; the file of one that was killed says what
nobody asks, as the kernel gave its lock back. On object storage it is a lease
(:mod:`spillway.lake.lease`), and the position is replaced on condition that it is not ahead
already.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.errors import (
    DiskFull,
    LakeBehindSlot,
    LakeError,
    LakeTableConflict,
    LeaseLost,
    StorageError,
)
from spillway.lake import lease
from spillway.lake.state import versioned
from spillway.pg.lsn import Lsn
from spillway.storage.file_errors import NO_SPACE, NOT_PERMITTED
from spillway.storage.place import ObjectPath, StorageChanged, replace_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.consumer.slot import SlotPosition
    from spillway.storage.place import LakePath

_FORMAT_VERSION: Final = 1
_ONE_JOB: Final = (
    "Stop it first, with SIGTERM: one job a lake. Another slot has its lake in a directory of its "
    "own: name that with --lake."
)


@dataclass(frozen=True, slots=True)
class LakePosition:
    """Everything whose commit record starts before *lsn* is durable in the lake's tables."""

    slot: str
    source: str
    database: str
    table_format: str
    lsn: str
    version: int = _FORMAT_VERSION

    @property
    def lsn_value(self) -> int:
        return Lsn.parse(self.lsn)


def load(path: LakePath) -> LakePosition | None:
    """Return the lake's position, None when there is no lake at *path*.

    Raises:
        LakeTableConflict: the file is not of this release.
    """
    file = _file(path)
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    return _parsed(file, text)


def existing(path: LakePath) -> LakePosition:
    """Return the lake's position.

    Raises:
        LakeError: there is no lake at *path*.
        LakeTableConflict: as :func:`load`.
    """
    found = load(path)
    if found is None:
        raise LakeError(
            f"there is no lake at {path}",
            hint="Name the directory that `spillway lake run --lake` was given.",
        )
    return found


def _parsed(file: LakePath, text: str) -> LakePosition:
    with versioned.refusing(file):
        return LakePosition(**versioned.of_version(text, _FORMAT_VERSION))


def store(path: LakePath, position: LakePosition) -> None:
    """Make *position* durable.

    Raises:
        LeaseLost: the lake is another job's by now.
    """
    if isinstance(path, ObjectPath):
        _store_object(path, position)
        return
    (path / "_spillway").mkdir(parents=True, exist_ok=True)
    replace_json(_file(path), asdict(position))


def _store_object(lake: ObjectPath, position: LakePosition) -> None:
    lease.check(lake)
    file = lake / "_spillway" / "lake.json"
    tag, there = None, None
    try:
        data, tag = file.read_with_tag()
        there = _parsed(file, data.decode())
    except FileNotFoundError:
        pass
    if there == position:
        return
    if there is None or there.lsn_value <= position.lsn_value:
        try:
            file.replace_if(tag, json.dumps(asdict(position)))
        except StorageChanged:
            # By us, perhaps: a request whose answer got lost is repeated.
            there = load(lake)
        else:
            return
    if there != position:
        raise LeaseLost(
            f"the lake at {lake} was brought beyond {position.lsn} by another job",
            hint="This one's lease ran out meanwhile. Run it again when the other one is stopped.",
        )


def skip(path: LakePath, slot: SlotPosition, lsn: Lsn) -> None:
    """Count what commits before *lsn* as in the lake, as far as *slot* has confirmed it; there need
    not be a lake.

    Somebody moved the slot there on purpose. Where the lake is further already nothing changes.
    """
    found = load(path)
    upto = min(lsn, slot.confirmed_flush_lsn)
    if found is not None and found.slot == slot.slot_name and found.lsn_value < upto:
        store(path, replace(found, lsn=str(Lsn(upto))))


def check(
    path: LakePath, table_format: str, slot: SlotPosition, *, has_checkpoint: bool
) -> LakePosition:
    """Return the lake's position after checking that it and *slot* belong together; a new lake's is
    the slot's.

    Raises:
        LakeTableConflict: the lake is of another slot, source or format, or is gone while its
            checkpoint is not.
        LakeBehindSlot: the slot was confirmed past what the lake has.
    """
    found = load(path)
    fresh = LakePosition(
        slot.slot_name, slot.source, slot.database, table_format, str(Lsn(slot.confirmed_flush_lsn))
    )
    if found is None:
        if has_checkpoint:
            raise LakeTableConflict(
                f"the checkpoint has a position, and there is no lake at {path}",
                hint="Name the lake that the checkpoint is of, or a new checkpoint.",
            )
        store(path, fresh)
        return fresh
    _check_same(path, found, asdict(fresh))
    if slot.confirmed_flush_lsn > found.lsn_value:
        raise LakeBehindSlot(
            f"slot {slot.slot_name} was confirmed up to {Lsn(slot.confirmed_flush_lsn)} and the "
            f"lake at {path} has everything before {found.lsn} only",
            hint="Something else consumed the slot. Rewind it if the changes are still retained "
            f"(spillway slot rewind {slot.slot_name} {found.lsn}). Else go on behind the gap "
            f"(spillway lake run --skip-to {Lsn(slot.confirmed_flush_lsn)}; of a subscription: "
            "spillway subscription skip), and load the tables afresh (spillway lake load "
            "--resync): their current state is wrong until then, and their history lacks what lies "
            "between. A lake needs a slot of its own.",
            slot=slot.slot_name,
            lsn=found.lsn,
        )
    return found


def _check_same(path: LakePath, found: LakePosition, wanted: Mapping[str, str]) -> None:
    for field in ("slot", "source", "database", "table_format"):
        if field in wanted and getattr(found, field) != wanted[field]:
            raise LakeTableConflict(
                f"the lake at {path} is of {field.replace('_', ' ')} {getattr(found, field)!r}, "
                f"not {wanted[field]!r}",
                hint="Use a path of its own for each slot and format.",
                slot=wanted["slot"],
            )


def check_free(path: LakePath, slot_name: str, table_format: str) -> None:
    """Refuse the lake at *path* to a job that it can't be for, before that costs a JVM;
    :func:`check` and :func:`locked` look again. There need not be a lake.

    Raises:
        LakeTableConflict: another job is at work on it, or it is of another slot or format.
    """
    if not isinstance(path, ObjectPath):
        with locked(path):
            pass
    if (found := load(path)) is not None:
        _check_same(path, found, {"slot": slot_name, "table_format": table_format})


def file_error(error: OSError, path: LakePath) -> StorageError:
    """Type what the system said of a file of the lake at *path*, or of whatever it names itself."""
    file = error.filename if isinstance(error.filename, str) else str(path)
    message = f"can't use {file}: {error.strerror or error}"
    again = (
        "run it again: what was confirmed is in the lake, and the slot keeps the rest until then."
    )
    if error.errno in NO_SPACE:
        return DiskFull(message, hint=f"Free space on that file system, and {again}", path=file)
    if error.errno in NOT_PERMITTED or error.errno == errno.EROFS:
        hint = f"See to it that the job's user may write there, and {again}"
    else:
        hint = f"See what the kernel's log says of the disk, mend that, and {again}"
    return StorageError(message, hint=hint, path=file)


@contextmanager
def file_errors(path: LakePath) -> Iterator[None]:
    """Turn an OSError that is about a file into :func:`file_error`; a connection's stays itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in {*NO_SPACE, errno.EIO, errno.EROFS}:
            raise
        raise file_error(error, path) from error


@contextmanager
def locked(path: LakePath) -> Iterator[None]:
    """Hold the lake at *path* for this process; the lock goes with the process, however it ends.

    Raises:
        LakeTableConflict: another process has it.
        StorageError: of files, also in the block (DiskFull: there is no space).
    """
    with file_errors(path), _locked(path):
        yield


@contextmanager
def _locked(path: LakePath) -> Iterator[None]:
    if isinstance(path, ObjectPath):
        with lease.held(path, _ONE_JOB):
            yield
        return
    (path / "_spillway").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / "_spillway" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeTableConflict(
                f"another job is at work on the lake at {path}{_holder(descriptor)}",
                hint=_ONE_JOB,
            ) from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        told = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
        # One that is kept away meanwhile reads it without a name, not half of one.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(told).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return who holds a lock, to be put after what is told; empty: it has not said yet."""
    try:
        told = json.loads(os.pread(descriptor, 4096, 0))
        return f": process {told['pid']} of {told['host']}, since {told['since']}"
    except (ValueError, KeyError, TypeError):
        return ""


def is_locked(path: LakePath) -> bool:
    """Say whether a job is at work on the lake at *path*."""
    if isinstance(path, ObjectPath):
        return lease.holder(path) is not None
    try:
        with locked(path):
            return False
    except LakeTableConflict:
        return True


def _file(lake: LakePath) -> LakePath:
    return lake / "_spillway" / "lake.json"
