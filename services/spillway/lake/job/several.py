"""One job for many slots: a Spark session, a lake and a streaming query for each.

Slots are kept apart: each has its directory below the lake's path, its checkpoint, its lock and its
transactions, so a slot may move to a job of its own, with ``--lake DIR/SLOT``, at any time. What
they share is the JVM and its cores.

What goes wrong with one is no reason for the others to stop. With the trigger ``continuous`` a run
that failed begins anew, after a pause that doubles up to a minute: so a restart of the service is
got over without help, and a slot that is lost is told of at each try, and counted in the metrics.
With ``available-now`` the others go on to their end, and the error comes then.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidRequest, LakeError, LakeTableConflict, SpillwayError
from spillway.lake.job.run import JobSettings, JobSummary, check_settings, run_job, stop_event
from spillway.lake.session import session_for
from spillway.lake.state import position
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from spillway.lake.job.status_file import LakeStatusFile
    from spillway.lake.metrics import LakeMetrics
    from spillway.storage.place import LakePath

#: available-now: queries at once; each has its planner process and, per core, Python workers
_RUNS_AT_ONCE: Final = 4
_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0


def settings_of(
    settings: JobSettings, slots: Sequence[str], checkpoint: LakePath | None
) -> list[JobSettings]:
    """Return the settings of each slot's run.

    Args:
        settings: of all; its path is where the lakes are, its slot and checkpoint don't matter.
        slots: one, whose lake is at that path itself; or several, each with a directory there.
        checkpoint: the directory of checkpoints; None: below each lake.

    Raises:
        InvalidRequest: a slot is named twice.
        LakeTableConflict: several slots, and a lake of one at the path itself; or one, and lakes of
            several below it.
    """
    if len(set(slots)) < len(slots):
        raise InvalidRequest("a slot is named twice", hint="Name each --slot once.")
    if len(slots) == 1:
        _check_alone(settings.path, slots[0])
        own = checkpoint or settings.path / "_spillway" / "checkpoint"
        return [replace(settings, slot=slots[0], checkpoint=own)]
    if (found := position.load(settings.path)) is not None:
        raise LakeTableConflict(
            f"{settings.path} is the lake of slot {found.slot} alone",
            hint="Several slots have a directory each below the path: name another one.",
            slot=found.slot,
        )
    return [
        replace(
            settings,
            slot=slot,
            path=settings.path / slot,
            checkpoint=checkpoint / slot
            if checkpoint
            else settings.path / slot / "_spillway" / "checkpoint",
        )
        for slot in slots
    ]


def _check_alone(path: LakePath, slot: str) -> None:
    """Refuse a new lake where the lakes of several slots are: their job could not begin again."""
    if isinstance(path, ObjectPath) or not path.is_dir() or position.load(path) is not None:
        return
    below = sorted(file.parts[-3] for file in path.glob("*/_spillway/lake.json"))
    if below:
        raise LakeTableConflict(
            f"{path} has the lakes of several slots in directories below it ({', '.join(below)})",
            hint=f"Name a directory of its own: --lake {path / slot}",
            slot=slot,
        )


def run_jobs(
    jobs: Sequence[JobSettings],
    *,
    tell: Callable[[str], None],
    metrics: LakeMetrics | None = None,
    status: LakeStatusFile | None = None,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> dict[str, JobSummary]:
    """Run them to their end, and return by slot what each did.

    Args:
        jobs: with one trigger and one format.
        tell: called, on any thread, with a line of text for each batch, step of a load, and
            failure.
        metrics: told of every batch and failure.
        status: of the only slot, told of every batch and step.
        stop: ends the runs when set; SIGTERM and SIGINT do when None.
        spark: a session to use; else one is started, and stopped at the end.

    Raises:
        SpillwayError: of the only slot; what was confirmed stays true.
        LakeError: some of several slots failed; the others did all that they had to.
    """
    first = jobs[0]
    short = first.trigger == "available-now"
    for job in jobs:
        check_settings(job)
    if len(jobs) == 1:
        # That of one of several is told as its run's, and the others go on.
        position.check_free(first.path, first.slot, first.table_format)
    with (
        session_for(first, first.table_format, spark, short=short) as session,
        stop_event(stop) as stopping,
    ):
        if len(jobs) == 1:
            return {first.slot: _run(first, tell, metrics, stopping, session, status)}
        with ThreadPoolExecutor(
            _RUNS_AT_ONCE if short else len(jobs), "spillway-lake-job"
        ) as threads:
            run = _run if short else _run_again
            futures = {
                job.slot: threads.submit(run, job, _named(job, tell), metrics, stopping, session)
                for job in jobs
            }
    failed = {slot: error for slot, each in futures.items() if (error := each.exception())}
    if failed:
        raise LakeError(
            f"{len(failed)} of {len(jobs)} slots failed: "
            + "; ".join(f"{slot}: {error}" for slot, error in failed.items()),
            hint="The other slots' lakes have all that was asked for.",
            slots=sorted(failed),
        )
    return {slot: each.result() for slot, each in futures.items()}


def _named(job: JobSettings, tell: Callable[[str], None]) -> Callable[[str], None]:
    return lambda news: tell(f"{job.slot}: {news}")


def _run(
    job: JobSettings,
    tell: Callable[[str], None],
    metrics: LakeMetrics | None,
    stopping: threading.Event,
    spark: SparkSession,
    status: LakeStatusFile | None = None,
) -> JobSummary:
    def heard(news: object) -> None:
        tell(str(news))
        if status is not None:
            status.heard(job.path, news)

    try:
        return run_job(
            job,
            on_batch=heard,
            on_load=heard,
            stop=stopping,
            spark=spark,
            metrics=metrics,
            status=status,
        )
    except SpillwayError:
        if metrics is not None:
            metrics.failed(job.slot)
        raise


def _run_again(
    job: JobSettings,
    tell: Callable[[str], None],
    metrics: LakeMetrics | None,
    stopping: threading.Event,
    spark: SparkSession,
) -> JobSummary:
    """Run a job until the end is asked for, however often it fails."""
    pause = _PAUSE_S
    summary: JobSummary | None = None

    def heard(news: str) -> None:
        nonlocal pause
        pause = _PAUSE_S
        tell(news)

    while True:
        try:
            summary = _run(job, heard, metrics, stopping, spark)
        except SpillwayError as error:
            if stopping.is_set():
                raise
            tell(f"failed, and begins anew in {pause:.0f} s: {error}")
            stopping.wait(pause)
            if stopping.is_set():
                raise
            pause = min(_PAUSE_MAX_S, 2 * pause)
        else:
            return summary
