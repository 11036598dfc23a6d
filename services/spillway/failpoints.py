"""Named points in the code where a test may kill the process or make an operation fail.

Crash safety is a claim about instants: between the write and the fsync, between the fsync and the
confirmation. A failpoint names such an instant. Off, which is always unless a test asks, a
failpoint costs one look at an empty dict.

``SPILLWAY_FAILPOINTS`` arms them for a whole process, read once at import::

    SPILLWAY_FAILPOINTS="walstore.before_fsync=kill@3; walstore.write=error:ENOSPC@2-5"

=================  =================================================================================
action             what happens
=================  =================================================================================
``kill``           the process gets SIGKILL: no destructor, no buffer flush
``error:ENOSPC``   ``OSError`` with that errno (any name of the errno module) is raised there
``sleep:MS``       the thread sleeps that many milliseconds
=================  =================================================================================

``@N`` fires at the N-th hit only, ``@N-M`` from the N-th to the M-th, ``@N-`` from the N-th on;
without it every hit fires. Tests in the same process use :func:`armed`.

========================================  ==========================================================
failpoint                                 where
========================================  ==========================================================
``walstore.create_segment``               before a segment file is created and its space reserved
``walstore.write``                        before bytes are written to a segment
``walstore.after_write``                  bytes are written, nothing is synced
``walstore.before_fsync``                 before a segment file is synced
``walstore.after_fsync``                  the segments are durable, the state file does not say so
                                          yet
``walstore.before_state_fsync``           the state file is written, not synced
``walstore.after_state_fsync``            all is durable, nobody was told
``walstore.remove``                       before a segment file is removed
``walreceiver.before_status``             before a standby status update is sent
``session.before_snapshot_rename``        a decoding snapshot is written and synced, not in place
                                          yet
``session.before_log_sync``               the snapshot is in place, the transaction log names no new
                                          restart
``session.after_log_sync``                the restart point is durable, nothing older is removed yet
``session.before_spill_removal``          older snapshots are removed, the spill files that only
                                          they named are not
``storage.write``                         before the bytes of a small durable file are written
``storage.before_rename``                 a file is written and synced beside the one that it is to
                                          replace
``storage.after_rename``                  it is in place, its name is not durable yet
``service.slot_dropped``                  a slot is gone from the metadata store, who asked was not
                                          told
``certify.compare``                       two lines are about to be compared; an error changes ours
                                          first
``lake.before_history``                   a batch is read, no table has it
``lake.after_history``                    a table's history has the batch, its current table does
                                          not
``lake.after_reshape``                    a current table has followed an ALTER TABLE, without the
                                          batch
``lake.before_merge``                     a current table's merge is worked out, and not committed
``lake.before_vectors``                   a merge by position knows its rows, nothing is written
``lake.before_rows``                      its deletion vectors are durable, its rows are not there
``lake.before_commit``                    its rows are durable, no commit names them
``lake.before_index``                     it is committed, the index of keys doesn't know
``lake.after_index``                      the index of keys knows, no small file is folded
``lake.before_fold``                      a folded file is durable, no commit names it
``lake.after_fold``                       a commit names it, or the file is given up
``lake.before_checkpoint``                a Delta table's log is to have a checkpoint
``lake.after_current``                    a table has the batch whole, other tables may not
``lake.before_poisoned``                  what a table can't be written is kept, and not said yet
``lake.after_quarantined``                a table is in quarantine, nothing is set aside yet
``lake.after_quarantine``                 a batch of a table in quarantine is set aside
``lake.after_ddl``                        the events of a batch are durable, its position isn't
``lake.before_together``                  a batch's files are durable, its commits are to be made
                                          as one
``lake.after_together``                   that one is made, nothing says so yet
``lake.before_position``                  every table has the batch, the lake's position is the old
                                          one
``lake.before_served``                    the position is durable, who asked for the batch's end is
                                          not forgotten
``lake.before_advance``                   the position is durable, the slot is not confirmed
``lake.after_advance``                    the slot is confirmed, Spark has not committed the batch
``lake.load_begun``                       a table's load has its snapshot, no row of it is in
                                          history
``lake.load_chunk``                       a chunk of loaded rows is in history, the load's state
                                          does not say so
``lake.load_copied``                      history has all loaded rows, current none
``lake.load_published``                   current has the loaded rows, not what came meanwhile
``lake.load_done``                        a table is loaded, others may not be
``lake.resync_asked``                     the job knows the wish to load a table anew, nothing is
                                          begun
``lake.resync_begun``                     the wish can't be taken back any more, nothing is begun
``lake.resync_done``                      the table is loaded, the wish is still there
``lake.verify_asked``                     a comparison has asked for a batch, and holds the job
``table_sync.before_range``               a range's rows are on the target, not committed
``table_sync.after_range``                they are
``table_sync.before_finish``              all ranges of a table are durable, its state says copying
``table_sync.after_finish``               its state says that it is copied
``table_sync.before_handover``            what a table lacked is on the target, not committed
========================================  ==========================================================
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT_VARIABLE: Final = "SPILLWAY_FAILPOINTS"

_ENTRY: Final = re.compile(
    r"(?P<name>[a-z0-9_.]+)=(?P<action>kill|error|sleep)(?::(?P<argument>\w+))?"
    r"(?:@(?P<first>\d+)(?P<range>-(?P<last>\d+)?)?)?"
)


@dataclass(slots=True)
class _Armed:
    action: str
    argument: str
    first: int
    last: int | None
    hits: int = 0

    def fire(self, name: str) -> None:
        with _lock:
            self.hits += 1
            hit = self.hits
        if hit < self.first or (self.last is not None and hit > self.last):
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "sleep":
            time.sleep(int(self.argument) / 1000)
        else:
            code = getattr(errno, self.argument)
            raise OSError(code, f"{os.strerror(code)} (failpoint {name})")


_lock = threading.Lock()
_armed: dict[str, _Armed] = {}


def failpoint(name: str) -> None:
    """Do what *name* is armed with: nothing, unless a test asked."""
    if _armed and (armed_point := _armed.get(name)) is not None:
        armed_point.fire(name)


def parse(text: str) -> dict[str, _Armed]:
    """Parse the value of ``SPILLWAY_FAILPOINTS``.

    Raises:
        ValueError: *text* is malformed; a test that arms nothing by a typo would prove nothing.
    """
    points: dict[str, _Armed] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"malformed failpoint: {entry!r}")
        action, argument = match["action"], match["argument"] or ""
        if action == "error" and not hasattr(errno, argument):
            raise ValueError(f"failpoint {entry!r}: {argument!r} is not the name of an errno")
        if action == "sleep" and not argument.isdecimal():
            raise ValueError(f"failpoint {entry!r}: sleep needs milliseconds")
        first = int(match["first"]) if match["first"] else 1
        if match["last"]:
            last: int | None = int(match["last"])
        else:
            last = None if match["range"] or not match["first"] else first
        points[match["name"]] = _Armed(action, argument, first, last)
    return points


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Arm failpoints of this process for the length of a ``with``, counting hits from its
    beginning.
    """
    points = parse(text)
    before = {name: _armed[name] for name in points if name in _armed}
    _armed.update(points)
    try:
        yield
    finally:
        for name in points:
            del _armed[name]
        _armed.update(before)


_armed.update(parse(os.environ.get(ENVIRONMENT_VARIABLE, "")))
