"""One subscription's program: started, watched, started again; and what state that makes.

::

       ┌─────── enable ───────┐
    paused ◀──disable── any   ▼
        failed ◀──ends── initializing ──follows its slot──▶ copying ──all copied──▶ streaming
          │ after a wait      ▲                                │ ends                  │ ends
          └───────────────────┘◀── failed ◀────────────────────┴───────────────────────┘

A subscription that failed stays *failed*, with the reason, until a program follows the slot again:
who looks sees what is wrong, and not how often it is tried. Waits double up to a minute
(:mod:`backoff`).

When its tables have changed by a refresh, the program is ended between two batches and started with
the new ones, but not while tables are copied: their copies would begin anew. When all are copied
the row says so, and later programs don't ask the source for anything.

What must survive is in the row (failure, restarts, phase), written under the fence of the source's
lease; what a program tells is in its status file. Both are read again after a start, so a
subscription shows what it showed before.

All on the event loop; files and processes are looked at on worker threads. One task a subscription;
:meth:`Supervisor.halt` ends it, and returns when no process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.caller import OWN_SOCKET_VARIABLE, SUBSCRIPTION_VARIABLE
from spillway.errors import (
    MetadataError,
    NotReady,
    SpillwayError,
    SubscriptionFailed,
    remote_error,
)
from spillway.store.rows import ConflictTotals
from spillway.subscriber.backoff import Backoff
from spillway.subscriber.conflict_file import FILE as CONFLICTS_FILE
from spillway.subscriber.conflict_file import ConflictReader
from spillway.subscriber.model import Failure, SubscriptionState, TableResync
from spillway.subscriber.publication_look import PublicationLook
from spillway.subscriber.run_log import RunLog, error_in
from spillway.subscriber.run_processes import (
    TOKEN_VARIABLE,
    RunRecord,
    end_processes,
    is_locked,
)
from spillway.subscriber.run_start import LOCKED
from spillway.subscriber.run_status import FILE, RunStatus, tell_resync
from spillway.subscriber.table_rates import TableRates
from spillway.subscriber.targets import Program, RunPlan, target_kind
from spillway.subscriber.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from spillway.service.interface import EngineInterface
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import Fence, SubscriptionRow
    from spillway.subscriber.model import TableState

log = logging.getLogger(__name__)

_POLL_S: Final = 0.5
#: A batch is let finish so long when a program is stopped; being killed only costs the batch.
STOP_GRACE_S: Final = 20.0
_KILL_TIMEOUT_S: Final = 20.0
#: What is run beside the program that keeps running: a look at the target, and what clears it.
BRIEF_S: Final = 60.0
#: Of the service's environment, what its programs have no business with, and what is given to them
#: afresh.
_PRIVATE: Final = (
    "SPILLWAY_METADATA_URL",
    "SPILLWAY_TOKEN",
    "SPILLWAY_FAILPOINTS",
    "SPILLWAY_LAKE_SOURCE_DSN",
    "SPILLWAY_APPLY_OPTIONS",
    "SPILLWAY_APPLY_SOURCE_DSN",
)


@dataclass(frozen=True, slots=True)
class Service:
    """What a program is to know of the service that starts it."""

    engine: EngineInterface
    metadata: MetadataStore
    grpc: str
    token: str | None
    #: that programs begin with; None: the service's own
    umask: int | None = None
    #: where its own programs may have their stream, as an alternative to gRPC
    own_socket: str = ""


class Supervisor:
    """Keeps the program of one subscription running."""

    def __init__(
        self, row: SubscriptionRow, directory: Path, prepare: Callable[[], Awaitable[None]]
    ) -> None:
        """Take the subscription as it is stored, its directory, and what must be done before each
        run.
        """
        #: as it is stored
        self.row = row
        self.status = RunStatus()
        #: as they are stored
        self.conflicts = ConflictTotals()
        self.log = RunLog(directory)
        self.pid: int | None = None
        self.verifier = Verifier(row.name, directory)
        self._publications = PublicationLook()
        self._directory = directory
        self._prepare = prepare
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._follows = False
        self._well_since: float | None = None
        #: that the program was started with
        self._tables: Sequence[str] | None = None
        #: … and those that it was to forget, until it has
        self._forgets: Mapping[str, int] = {}
        self._rates = TableRates()
        self._met = ConflictReader(directory / CONFLICTS_FILE)
        self._taking = asyncio.Lock()
        #: wishes that its program has not told of: what it told before, and what is told meanwhile
        self._resyncs: dict[str, tuple[TableResync | None, TableResync]] = {}

    @property
    def state(self) -> SubscriptionState:
        """How it is."""
        if not self.row.enabled:
            return SubscriptionState.PAUSED
        if self.row.error_code is not None:
            return SubscriptionState.FAILED
        if not self._follows:
            return SubscriptionState.INITIALIZING
        return SubscriptionState.COPYING if self.status.is_copying else SubscriptionState.STREAMING

    @property
    def failure(self) -> Failure | None:
        """Why the last run failed, until one goes well, or it is disabled by somebody."""
        row = self.row
        if row.error_code is None:
            return None
        return Failure(row.error_code, row.error or "", row.hint or "")

    @property
    def missing_publications(self) -> tuple[str, ...] | None:
        """Those that it reads by and that do not exist; None: not known."""
        return self._publications.missing

    async def load(self) -> None:
        """Learn what the last program told."""
        told = await asyncio.to_thread(RunStatus.load, self._directory)
        self.status = told or RunStatus()
        await self.verifier.load()

    @property
    def follows(self) -> bool:
        """Whether its program follows the slot."""
        return self._follows

    async def verify(self, service: Service, program: Program) -> None:
        """Begin to compare the target with the source.

        Raises:
            Conflict: that is being done.
            SubscriptionFailed: it can't be started.
        """
        fence = service.engine.fence(self.row.source)

        def may_go_on() -> bool:
            return service.engine.fence(self.row.source) == fence

        environment = self._environment(service, program)
        await self.verifier.start(program, environment, may_go_on, service.umask)

    def resync_asked(self, table: str, before: TableResync | None) -> None:
        """Hear that a table is to be loaded anew: that is told until its program tells.

        Args:
            table: which.
            before: what was told of it before it was asked for. A program that tells otherwise
                knows of the wish, and may have fulfilled it by now.
        """
        if before is not None and before.state == "waiting":
            return
        self._tell(table, before, TableResync("waiting", datetime.now(UTC)))

    async def resync_cancelled(self, table: str) -> None:
        """Hear that a table is not to be loaded anew any more, before its program tells so; without
        a program it is told in the program's place.
        """
        now = datetime.now(UTC)
        before = next(each.resync for each in self.status.tables if each.table == table)
        if before is not None and before.state == "cancelled":
            return
        asked_at = now if before is None else before.asked_at
        cancelled = TableResync("cancelled", asked_at, now)
        self._tell(table, before, cancelled)
        if not self.row.enabled:
            await asyncio.to_thread(tell_resync, self._directory, table, cancelled)

    def _tell(self, table: str, before: TableResync | None, now: TableResync) -> None:
        """Tell *now* of a table of which *before* is told, until its program tells otherwise."""
        by_program, meanwhile = self._resyncs.get(table, (before, None))
        if meanwhile != before:
            by_program = before
        for each in self.status.tables:
            if each.table == table and each.resync == before:
                self._resyncs[table] = (by_program, now)
                told = replace(each, resync=now)
                tables = [told if one is each else one for one in self.status.tables]
                self.status = replace(self.status, tables=tuple(tables))

    def _asked(self, table: TableState) -> TableState:
        """Return a table as its program tells, with what it does not know yet."""
        before, asked = self._resyncs.get(table.table, (None, None))
        if asked is None:
            return table
        # A program may tell of a wish that it has just seen, and was taken back behind that.
        is_behind = table.resync is not None and (table.resync.state, asked.state) == (
            "waiting", "cancelled",
        )  # fmt: skip
        if table.resync not in (before, asked) and not is_behind:
            # It knows by now.
            del self._resyncs[table.table]
            return table
        return replace(table, resync=asked)

    async def take_conflicts(self, metadata: MetadataStore, fence: Fence) -> None:
        """Put the conflicts that its program wrote down into the metadata store.

        What can't be stored stays in the file, and is tried again at the next look.
        """
        async with self._taking:
            reading = await asyncio.to_thread(self._met.read)
            if not reading.met:
                self._met.taken(reading)
                return
            try:
                self.conflicts = await metadata.conflicts.add(
                    self.row.name, reading.met, fence=fence
                )
            except SpillwayError as error:
                log.warning(
                    'conflicts of subscription "%s" are not stored yet: %s', self.row.name, error
                )
                return
            self._met.taken(reading)

    def start(self, service: Service) -> None:
        """Begin to keep a program running."""
        if self._task is None or self._task.done():
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(
                self._keep_up(service), name=f"spillway-subscription-{self.row.name}"
            )

    @property
    def is_wanted(self) -> bool:
        """Whether its row says that a program is to run."""
        return self.row.enabled and not self.is_being_dropped

    @property
    def is_being_dropped(self) -> bool:
        """Whether nothing but its end is to be done."""
        return self.row.phase in ("dropping", "dropping_all")

    @property
    def is_started(self) -> bool:
        """Whether there is, or is to be, a program."""
        return self._task is not None and not self._task.done()

    async def halt(self) -> None:
        """End the program and what would start it again, and what compares its target; return when
        none of their processes is left.
        """
        # Without a job at work it would be one itself.
        await self.verifier.halt()
        task = self._task
        if task is None:
            return
        self._stop.set()
        await asyncio.wait({task})
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error('subscription "%s": %s', self.row.name, error, exc_info=error)

    async def clear(self, *, files: bool = False) -> None:
        """End what an earlier run left, and remove its files if asked to; there must be no program
        of this one's.
        """
        await asyncio.to_thread(self._clear)
        if files:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    # -- the task -----------------------------------------------------------------------------

    async def _keep_up(self, service: Service) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            fence = service.engine.fence(self.row.source)
            if fence is None or not self.is_wanted:
                # Another process serves the source, or none does yet; or one has disabled or begun
                # to drop it meanwhile.
                await self._wait(_POLL_S)
                continue
            self._well_since = None
            try:
                await self._run(service, fence)
                continue
            except SpillwayError as error:
                reason = error
            except Exception as error:
                log.exception('subscription "%s"', self.row.name)
                reason = SpillwayError(f"{type(error).__name__}: {error}", hint="Report this.")
            finally:
                self._follows = False
                self.pid = None
                await self._publications.end()
                self._rates.forget()
                # Nothing moves that nobody moves.
                still = [
                    replace(table, changes_per_second=None, bytes_per_second=None)
                    for table in self.status.tables
                ]
                self.status = replace(self.status, tables=tuple(still))
            well_s = 0.0 if self._well_since is None else time.monotonic() - self._well_since
            await self._note_failure(service, fence, reason)
            await self._pause(service, reason, backoff.failed(well_s))

    async def _pause(self, service: Service, reason: SpillwayError, seconds: float) -> None:
        """Wait to try again; if it failed of what keeps the service from its work, no longer than
        that lasts: what is mended is not to be told as the subscription's error any more.
        """
        until = time.monotonic() + seconds
        hindered = False
        while (left_s := until - time.monotonic()) > 0 and not self._stop.is_set():
            still = any(reason.code == one.code for one in service.engine.obstacles())
            if hindered and not still:
                return
            hindered = still
            await self._wait(min(_POLL_S, left_s))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _note_failure(self, service: Service, fence: Fence, reason: SpillwayError) -> None:
        log.warning('subscription "%s" failed: %s', self.row.name, reason)
        changes = {
            "error": reason.message,
            "error_code": reason.code,
            "hint": reason.hint,
            "restarts": self.row.restarts + 1,
        }
        with contextlib.suppress(SpillwayError):
            kind = target_kind(self.row.target.get("kind"))
            if kind.disables(self.row.target, reason):
                changes["enabled"] = False
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.log.note, f"failed: {reason} [{reason.code}]")
        try:
            self.row = await service.metadata.update_subscription(
                self.row.name, fence=fence, **changes
            )
        except SpillwayError as error:
            log.warning('subscription "%s": its failure can\'t be stored: %s', self.row.name, error)

    async def _run(self, service: Service, fence: Fence) -> None:
        """Run one program to its end; return when it was asked for.

        Raises:
            SpillwayError: it ended by itself, or could not be started.
        """
        await self._prepare()
        await asyncio.to_thread(self._clear)
        if self._stop.is_set():
            return
        token = secrets.token_hex(16)
        log_end = await asyncio.to_thread(self.log.size)
        self._tables = self.row.resolved_tables
        kind = target_kind(self.row.target.get("kind"))
        reads_by_publications = kind.reads_by_publications and self.row.publications is not None
        self._forgets = dict(self.row.forgotten_tables or {})
        process = await self._spawn(service, self._program(service), token)
        self.pid = process.pid
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stop.wait())
        superseded = False
        try:
            while not ended.done() and not stopping.done():
                await asyncio.wait(
                    {ended, stopping}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                await self._look(service, fence, token)
                if reads_by_publications:
                    self._publications.look(service.engine, self.row)
                if service.engine.fence(self.row.source) != fence:
                    # Somebody else may launch by now.
                    process.kill()
                    raise NotReady(
                        f'the lease on source "{self.row.source}" is lost',
                        hint="Another process serves it now, or the metadata store could not be "
                        "reached in time.",
                    )
                if self._has_other_tables and not self.status.has_copies_under_way:
                    superseded = True
                    break
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    # The driver alone: its JVM must outlive the batch.
                    process.send_signal(signal.SIGTERM)
                await asyncio.wait({ended}, timeout=STOP_GRACE_S)
        finally:
            stopping.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await ended
            await asyncio.to_thread(self._end_rest, token, process.pid)
        await self._look(service, fence, token)
        if not superseded and not self._stop.is_set():
            raise await asyncio.to_thread(self._reason, process.returncode or 0, token, log_end)

    @property
    def _has_other_tables(self) -> bool:
        """Whether there are others by now than the program was started with; one that has left and
        is there again is another one.
        """
        return self.row.resolved_tables != self._tables or bool(self._to_be_forgotten())

    def _to_be_forgotten(self) -> dict[str, int]:
        """What has left since the program was started."""
        forgotten = self.row.forgotten_tables or {}
        return {name: n for name, n in forgotten.items() if self._forgets.get(name) != n}

    def plan(self, service: Service) -> RunPlan:
        """Return what its programs are to do."""
        row = self.row
        tables = row.tables if row.resolved_tables is None else row.resolved_tables
        return RunPlan(
            subscription=row.name,
            slot=row.slot,
            source=row.source,
            database=row.database,
            target=row.target,
            tables=None if tables is None else tuple(tables),
            publications=None if row.publications is None else tuple(row.publications),
            copy_data=row.copy_data and row.phase != "copied",
            copies=row.copy_data,
            has_begun=row.has_begun,
            refreshes=row.phase not in ("begun", "copied"),
            forgets=frozenset(row.forgotten_tables or ()),
            origin=row.origin,
            streaming=row.streaming,
            two_phase=row.two_phase,
            created_us=round(row.created_at.timestamp() * 1e6),
            skip_lsn=row.skip_lsn,
            grpc=service.grpc,
            status_file=self._directory / FILE,
            dsn=service.engine.conninfo(row.source, row.database),
        )

    def _program(self, service: Service) -> Program:
        return target_kind(self.row.target.get("kind")).program(self.plan(service))

    async def run_briefly(self, service: Service, program: Program) -> list[str]:
        """Run a program that ends by itself, beside what keeps running; return what it printed.

        Raises:
            SpillwayError: it failed, or did not end in :data:`BRIEF_S`.
        """
        environment = self._environment(service, program)
        try:
            process = await asyncio.create_subprocess_exec(
                *program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise _cannot_start(error) from error
        try:
            async with asyncio.timeout(BRIEF_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise SubscriptionFailed(
                f"a program of it did not end within {BRIEF_S:.0f} s",
                hint="Does its target answer? Try again.",
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        lines = output.decode(errors="replace").splitlines()
        if process.returncode:
            raise error_in(lines) or SubscriptionFailed(
                f"a program of it ended with exit code {process.returncode}: "
                f"{(lines or [''])[-1][:500]}",
                hint="Report this.",
            )
        return lines

    def _environment(self, service: Service, program: Program) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if k not in _PRIVATE}
        environment |= program.environment
        environment[SUBSCRIPTION_VARIABLE] = self.row.name
        environment[OWN_SOCKET_VARIABLE] = service.own_socket
        environment["PYTHONUNBUFFERED"] = "1"
        if service.token is not None:
            environment["SPILLWAY_TOKEN"] = service.token
        return environment

    async def _spawn(
        self, service: Service, program: Program, token: str
    ) -> asyncio.subprocess.Process:
        environment = self._environment(service, program)
        environment[TOKEN_VARIABLE] = token
        await asyncio.to_thread(self.log.note, f"starting {' '.join(program.arguments)}")
        output = await asyncio.to_thread(self.log.open)
        try:
            # On this thread, whose death would be the program's (PR_SET_PDEATHSIG): it is the
            # service's own.
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "spillway.subscriber.run_start", str(self._directory), token,
                str(os.getpid()),
                *program.arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment, start_new_session=True,
                umask=-1 if service.umask is None else service.umask,
            )  # fmt: skip
        except OSError as error:
            raise _cannot_start(error) from error
        finally:
            os.close(output)

    async def _look(self, service: Service, fence: Fence, token: str) -> None:
        """Take in what the program told since the last look."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.log.bound)
        await self.take_conflicts(service.metadata, fence)
        status = await asyncio.to_thread(RunStatus.load, self._directory)
        if status is None or status.run != token:
            return
        tables = self._rates.of(time.monotonic(), status.tables)
        self.status = replace(status, tables=tuple(map(self._asked, tables)))
        if not status.begun or status.error is not None:
            return
        row = self.row
        if self._has_other_tables:
            # Tables that are no part of this run yet are the next one's.
            phase = "refreshed"
        else:
            phase = "begun" if status.has_first_copies else "copied"
        if row.phase != phase or row.error_code is not None or self._forgets:
            try:
                self.row = await service.metadata.update_subscription(
                    row.name, fence=fence, phase=phase, error=None, error_code=None, hint=None,
                    forgotten_tables=self._to_be_forgotten() or None,
                )  # fmt: skip
                self._forgets = {}
            except MetadataError as error:
                # No reason to end a program that is well: the next look tries again.
                log.warning('subscription "%s": %s', row.name, error)
        # What is streaming is also known to have begun.
        self._follows = True
        if self._well_since is None:
            self._well_since = time.monotonic()

    # -- on worker threads --------------------------------------------------------------------

    def _clear(self) -> None:
        """Make the directory, and end what an earlier run left."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = RunRecord.load(self._directory)
        if record is not None and not end_processes(record, _KILL_TIMEOUT_S):
            raise SubscriptionFailed(
                f"process {record.pid} of an earlier run does not end",
                hint="It may hang in the kernel, on a disk that does not answer for one.",
                pid=record.pid,
            )
        if is_locked(self._directory):
            raise SubscriptionFailed(
                f"another program holds {self._directory / 'run.lock'}",
                hint="Find it with fuser or lsof, and end it.",
            )

    def _end_rest(self, token: str, pid: int) -> None:
        """End what the program started and left: a JVM takes a moment to see that its driver is
        gone.
        """
        record = RunRecord.load(self._directory)
        if record is not None and (record.token, record.pid) == (token, pid):
            end_processes(record, _KILL_TIMEOUT_S)

    def _reason(self, code: int, token: str, log_end: int) -> SpillwayError:
        """Say why the program ended: its own words, else the last ones in its log."""
        status = self.status
        if status.run == token and status.error is not None:
            return remote_error(status.error.code, status.error.message, hint=status.error.hint)
        if code == LOCKED:
            return SubscriptionFailed(
                "another program of this subscription is at work",
                hint="It is ended before the next try.",
            )
        printed = self.log.tail(50) if self.log.size() != log_end else []
        if (told := error_in(printed)) is not None:
            return told
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        last = next((line for line in reversed(printed) if line.strip()), "")
        return SubscriptionFailed(
            f"its program {how}" + (f": {last.strip()[:500]}" if last and code > 0 else ""),
            hint=f"Its log says more: spillway subscription log {self.row.name}",
        )


def _cannot_start(error: OSError) -> SubscriptionFailed:
    return SubscriptionFailed(
        f"its program can't be started: {error.strerror}",
        hint="Check the memory and the number of processes that the service may have.",
    )
