"""Whether the service does its work, and if not, what keeps it from it: ``/readyz``, gRPC's health,
the overview.

Made afresh of facts at each question. The service is ready when nothing of this list holds:

- *metadata*: nothing could be written there for :data:`METADATA_S`, or the last attempt failed.
  :class:`MetadataWatch` writes a row every few seconds, since a store that can be read may well be
  locked, full or read-only.
- *disk*: it is full; the reserve for metadata is in use.
- *listener*: nobody new can connect to a port that is served, as the listener itself knows.
- *certificate*: it has expired or is not valid yet, so that clients refuse the service.
- *source*: it was not heard since the service started, or not every database of it was opened; or
  does not stream for longer than :data:`NOT_STREAMING_S`, which a restart of the primary or a
  failover takes; or its receiver has failed, or waits for space, or another process has its lease.
- *database*: its decoding has stopped; or has not come to where it stood before the service
  started.

A database that was dropped on the source is not in the list: its decoding is over, not broken. Nor
is one that is decoded for the first time. A service without sources is ready as soon as its
metadata is. Nor is what will be in the way and is not yet, a certificate that expires soon or whose
renewal failed: that is a warning, :func:`warnings_of`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.errors import (
    AddressUnavailable,
    DatabaseDropped,
    DiskFull,
    MetadataError,
    SpillwayError,
    TlsFailed,
    WalStoreFull,
)
from spillway.instants import Instant
from spillway.service.model import Obstacle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spillway.listener_signs import ListenerSigns
    from spillway.sessions.source import Source
    from spillway.storage.disk_reserve import DiskReserve
    from spillway.store.metadata import MetadataStore
    from spillway.tls import ServerCertificate

log = logging.getLogger(__name__)

NOT_STREAMING_S: Final = 10.0
METADATA_S: Final = 15.0
_PROBE_S: Final = 5.0
_PROBE_AGAIN_S: Final = 1.0


class MetadataWatch:
    """Knows whether metadata can be written. Used on the event loop."""

    def __init__(self, metadata: MetadataStore, holder: str) -> None:
        self._metadata = metadata
        self._holder = holder
        self._error: SpillwayError | None = None
        #: None: never since the service started
        self._written: Instant | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="spillway-metadata-watch")

    def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

    def alive(self) -> bool:
        """Whether its task runs."""
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        while True:
            try:
                await self._metadata.probe(self._holder)
            except SpillwayError as error:
                self._error = error
            except Exception as error:
                log.exception("metadata could not be written")
                self._error = MetadataError(f"metadata could not be written: {error!r}")
            else:
                self._error = None
                self._written = Instant.now()
            await asyncio.sleep(_PROBE_S if self._error is None else _PROBE_AGAIN_S)

    def obstacle(self) -> Obstacle | None:
        """Say why metadata can't be written, if it can't."""
        written, error = self._written, self._error
        silence_s = math.inf if written is None else written.ago_s
        if error is None and silence_s >= METADATA_S:
            error = MetadataError(
                "nothing could be written to the metadata store since the service started"
                if written is None
                else f"nothing could be written to the metadata store for {silence_s:.0f} s",
                hint="Another program may have its database locked; see what has it open.",
            )
        if error is None:
            return None
        return Obstacle(
            "metadata",
            "metadata",
            error.code,
            error.message,
            error.hint,
            None if written is None else written.at,
            "Metadata can't be written",
        )


def obstacles_of(
    sources: Iterable[Source],
    watch: MetadataWatch,
    reserve: DiskReserve,
    certificate: ServerCertificate | None,
    listeners: Iterable[ListenerSigns] = (),
) -> Iterator[Obstacle]:
    """Give what keeps the service from its work; see the top."""
    if (metadata := watch.obstacle()) is not None:
        yield metadata
    if reserve.full_since is not None:
        yield disk_obstacle(reserve)
    yield from _of_certificate(certificate, refused=True)
    for listener in listeners:
        yield from _of_listener(listener)
    for source in sources:
        yield from _of_source(source)


def warnings_of(certificate: ServerCertificate | None) -> Iterator[Obstacle]:
    """Give what will keep the service from its work if nobody does anything."""
    yield from _of_certificate(certificate, refused=False)


def _of_certificate(certificate: ServerCertificate | None, *, refused: bool) -> Iterator[Obstacle]:
    for trouble in () if certificate is None else certificate.troubles():
        if trouble.is_refused == refused:
            yield Obstacle(
                "certificate",
                "tls",
                TlsFailed.code,
                trouble.message,
                trouble.hint,
                trouble.since,
                trouble.title,
            )


def _of_listener(listener: ListenerSigns) -> Iterator[Obstacle]:
    trouble = listener.trouble
    if trouble is not None:
        yield Obstacle(
            "listener",
            listener.door,
            AddressUnavailable.code,
            f"nobody can connect to {listener.address}: {trouble.message}",
            "It is tried again every second. Another program may have the address, or the process "
            "has too few open files: see what listens there, and raise ulimit -n.",
            datetime.fromtimestamp(trouble.since_s, UTC),
            f"Nobody can connect by the protocol of {listener.door}",
        )


def disk_obstacle(reserve: DiskReserve) -> Obstacle:
    """Say that the disk is full."""
    directory = str(reserve.path.parent)
    return Obstacle(
        "disk",
        directory,
        DiskFull.code,
        f"no space is left on the file system of {directory}",
        "Free space there, or drop or advance the slot that retains most. All goes on by itself "
        "then.",
        reserve.full_since,
        "The disk is full",
    )


def _of_source(source: Source) -> Iterator[Obstacle]:
    info = source.info()
    if info.state != "streaming":
        at_once = info.state == "failed" or info.error_code in (DiskFull.code, WalStoreFull.code)
        if at_once or not source.streamed or source.stands_s >= NOT_STREAMING_S:
            yield Obstacle(
                "source",
                info.name,
                info.error_code or "not_ready",
                info.error or f'source "{info.name}" is {info.state}: nothing was received yet',
                info.hint or "It goes on by itself; GET /v1/sources shows how far it is.",
                info.since,
            )
    elif not source.is_complete:
        # It is received before the databases are opened, one after the other: nothing tells of
        # those that have no session yet.
        yield Obstacle(
            "source",
            info.name,
            info.error_code or "not_ready",
            info.error or f'not every database of source "{info.name}" is opened yet',
            info.hint or "It goes on by itself; GET /v1/sources shows those that are.",
            info.since,
        )
    continuing = source.continuing()
    for session in info.sessions:
        stopped = session.state == "stopped" and session.error_code != DatabaseDropped.code
        if stopped or (session.state == "starting" and session.database in continuing):
            yield Obstacle(
                "database",
                f"{info.name}/{session.database}",
                session.error_code or "not_ready",
                session.error
                or (
                    f'database "{session.database}" is not decoded up to where it was before the '
                    "start"
                ),
                session.hint or "It goes on by itself; GET /v1/sources shows how far it is.",
                session.since,
            )
