"""Compares a subscription's target with its source when that is asked for: one program at a time,
beside the one that fills the target; and what came out, kept as a fact with its time.

::

    verification/verification.json   the fact: running since, or the outcome with its time; the
                                     service's, replaced as a whole, durable before it is answered
    verification/outcome.json        what the program found, with its run's token; the program's
    verification/run.json, run.lock, log   as any program's (:mod:`run_start`)

A fact that says *running* and whose program is no more is never left so: a program that was killed
is told as such when it ends, and one that went with the service at the next start, unless it had
brought its outcome before. The program's processes end with the service, and what is left of them
is ended before another one is begun.

On the event loop; files and processes are looked at on worker threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import Conflict, SpillwayError, SubscriptionFailed
from spillway.pg.lsn import Lsn
from spillway.storage.durable_files import replace_file
from spillway.subscriber.model import Failure, Verification, VerificationState, VerifiedTable
from spillway.subscriber.run_log import RunLog, error_in
from spillway.subscriber.run_processes import TOKEN_VARIABLE, RunRecord, end_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from spillway.subscriber.targets import Program

OUTCOME: Final = "outcome.json"
_FACT: Final = "verification.json"
_VERSION: Final = 1
#: A file that is larger was not written by a program of ours.
_BYTES_MAX: Final = 32 << 20
_POLL_S: Final = 0.5
_KILL_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Fact:
    """A comparison, and the token of its run."""

    run: str
    told: Verification


class Verifier:
    """Has one subscription's target compared."""

    def __init__(self, name: str, directory: Path) -> None:
        """Take the subscription's name, and its directory."""
        self.last: Verification | None = None
        self._name = name
        self._directory = directory / "verification"
        self._log = RunLog(self._directory)
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    @property
    def outcome_file(self) -> Path:
        """Where its program is to write what it found."""
        return self._directory / OUTCOME

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def load(self) -> None:
        """Learn what came out last; call while no program of it can run here."""
        self.last = await asyncio.to_thread(self._loaded)

    async def start(
        self,
        program: Program,
        environment: Mapping[str, str],
        may_go_on: Callable[[], bool],
        umask: int | None = None,
    ) -> None:
        """Begin a comparison; that it has begun is durable when this returns.

        Args:
            program: see :meth:`~spillway.subscriber.targets.TargetKind.verify_program`.
            environment: the program's, whole.
            may_go_on: asked from time to time; it is ended when that is false.
            umask: its files are made with it; None: with this process's.

        Raises:
            Conflict: one is at work.
            SubscriptionFailed: it can't be started.
        """
        if self.is_running:
            raise self._at_work()
        fact = _Fact(
            secrets.token_hex(16), Verification(VerificationState.RUNNING, datetime.now(UTC))
        )
        await asyncio.to_thread(self._begin, fact)
        self.last = fact.told
        output = await asyncio.to_thread(self._log.open)
        try:
            # On this thread, whose death would be the program's.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "spillway.subscriber.run_start", str(self._directory),
                fact.run, str(os.getpid()),
                *program.arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                env={**environment, TOKEN_VARIABLE: fact.run}, start_new_session=True,
                umask=-1 if umask is None else umask,
            )  # fmt: skip
        except OSError as error:
            failed = SubscriptionFailed(
                f"the comparison can't be started: {error.strerror}",
                hint="Check the memory and the number of processes that the service may have.",
            )
            await self._end(fact, failed)
            raise failed from error
        finally:
            os.close(output)
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(
            self._watch(process, fact, may_go_on), name=f"spillway-verify-{self._name}"
        )

    async def halt(self) -> None:
        """End a comparison that is at work; return when none of its processes is left."""
        if self._task is not None:
            self._stop.set()
            await asyncio.wait({self._task})

    def _at_work(self) -> Conflict:
        since = "" if self.last is None else f" since {self.last.began_at:%Y-%m-%d %H:%M:%S} UTC"
        return Conflict(
            f'the target of subscription "{self._name}" is being compared{since}',
            hint="Wait for it: one comparison at a time.",
            subscription=self._name,
        )

    async def _watch(
        self, process: asyncio.subprocess.Process, fact: _Fact, may_go_on: Callable[[], bool]
    ) -> None:
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stop.wait())
        cut_off = False
        try:
            while not ended.done() and not cut_off:
                await asyncio.wait(
                    {ended, stopping}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                cut_off = not ended.done() and (stopping.done() or not may_go_on())
        finally:
            stopping.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await ended
            await asyncio.to_thread(self._end_rest, fact.run)
        why: SpillwayError
        if not cut_off:
            why = await asyncio.to_thread(self._why, process.returncode or 0)
        else:
            why = SubscriptionFailed(
                "it was ended with the subscription's program, which was stopped or altered, or "
                "whose source another process serves now",
                hint="Verify again when the subscription follows its slot.",
            )
        await self._end(fact, why)

    async def _end(self, fact: _Fact, why: SpillwayError) -> None:
        """Keep what came out: what the program found, or else *why* it found nothing."""
        try:
            self.last = await asyncio.to_thread(self._ended, fact, why)
        except OSError as error:
            # Shown all the same; the next start tells that it is not known.
            self.last = _failed(fact.told, SubscriptionFailed(f"it can't be kept: {error}"))

    # -- on worker threads --------------------------------------------------------------------

    def _begin(self, fact: _Fact) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (before := RunRecord.load(self._directory)) is not None:
            self._end_rest(before.token)
        self.outcome_file.unlink(missing_ok=True)
        self._store(fact)
        self._log.note("comparing the target with the source")

    def _ended(self, fact: _Fact, why: SpillwayError) -> Verification:
        told = self._found(fact) or _failed(fact.told, why)
        self._store(replace(fact, told=told))
        return told

    def _loaded(self) -> Verification | None:
        fact = self._fact()
        if fact is None or fact.told.state != VerificationState.RUNNING:
            return None if fact is None else fact.told
        # Whoever had begun it died, and it with him; its JVM takes a moment to see that.
        self._end_rest(fact.run)
        return self._ended(
            fact,
            SubscriptionFailed(
                "the service ended while it was at work, and it with the service",
                hint="Verify again.",
            ),
        )

    def _end_rest(self, token: str) -> None:
        record = RunRecord.load(self._directory)
        if record is not None and record.token == token:
            end_processes(record, _KILL_TIMEOUT_S)

    def _why(self, code: int) -> SpillwayError:
        """Say why the program ended without an outcome: its own words, else the last in its log."""
        lines = self._log.tail(50)
        if (told := error_in(lines)) is not None:
            return told
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = next((line for line in reversed(lines) if line.strip()), "")
        return SubscriptionFailed(
            f"its program {how}" + (f": {last.strip()[:500]}" if last and code > 0 else ""),
            hint="Verify again; the log of the service's machine says more: "
            f"{self._directory / 'log'}",
        )

    def _store(self, fact: _Fact) -> None:
        value = {"version": _VERSION, "run": fact.run, **asdict(fact.told)}
        value["lsn"] = None if fact.told.lsn is None else str(fact.told.lsn)
        replace_file(self._directory / _FACT, json.dumps(value, default=_text), mode=0o600)

    def _fact(self) -> _Fact | None:
        """Return what is kept; None: nothing, or what another release wrote."""
        try:
            value = _read(self._directory / _FACT)
            if value["version"] != _VERSION:
                return None
            error = value["error"]
            told = Verification(
                VerificationState(value["state"]),
                datetime.fromisoformat(value["began_at"]),
                value["ended_at"] and datetime.fromisoformat(value["ended_at"]),
                None if value["lsn"] is None else Lsn.parse(value["lsn"]),
                tuple(VerifiedTable(**table) for table in value["tables"]),
                error and Failure(**error),
            )
            return _Fact(str(value["run"]), told)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _found(self, fact: _Fact) -> Verification | None:
        """Return what the run's program found; None: it brought nothing."""
        try:
            value = _read(self.outcome_file)
            if value["run"] != fact.run:
                return None
            tables = tuple(VerifiedTable(**table) for table in value["tables"])
            lsn, ended_at = Lsn.parse(value["lsn"]), datetime.fromisoformat(value["ended_at"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        equal = all(table.equal for table in tables)
        state = VerificationState.EQUAL if equal else VerificationState.DIFFERENT
        return replace(fact.told, state=state, ended_at=ended_at, lsn=lsn, tables=tables)


def _failed(told: Verification, why: SpillwayError) -> Verification:
    return replace(
        told,
        state=VerificationState.FAILED,
        ended_at=datetime.now(UTC),
        error=Failure(why.code, why.message, why.hint),
    )


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return json.loads(file.read(_BYTES_MAX))


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
