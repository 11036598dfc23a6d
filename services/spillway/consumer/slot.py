"""What a consumer asks of a slot: three calls, synchronous.

A consumer may run in many processes, as Spark runs its Python (the planner, the executors'
workers), and none of them has an event loop to share; what they need is small: where the slot
stands, the messages of an LSN range, and, from one of them only, to confirm. :class:`SlotClient` is
that need, :func:`spillway.consumer.connect.connect` answers it with the gRPC client.

Messages are read by *peek*: beside the slot's consumer, without making the slot active and without
moving it. So a range can be read again, by a retried task or after a restart, and several ranges at
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager


@dataclass(frozen=True, slots=True)
class SlotPosition:
    """Where a slot stands. LSNs are plain integers; 0 where there is none yet."""

    slot_name: str
    plugin: str
    source: str
    database: str
    confirmed_flush_lsn: int
    #: every transaction that commits before this is ready to be read
    decoded_lsn: int
    #: why the slot is of no use any more; '' while it is
    invalidation_reason: str = ""
    #: the plugin's, of the slot: how values are shown
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot that somebody else's session of the source holds, to be imported."""

    #: what SET TRANSACTION SNAPSHOT is given
    name: str
    #: pg_current_snapshot(): tells it from another one of the same name
    contents: str
    #: it sees what has its commit record before this, and nothing else
    lsn: int


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which history a source's LSNs are of: a name is given again, and LSNs begin anew."""

    #: PostgreSQL's system identifier of the cluster
    system_id: str
    timeline: int
    #: ISO 8601: when the source was created in the service. One that is created again may be set
    #: back, or another cluster
    created_at: str


@runtime_checkable
class SourceIdentifier(Protocol):
    """A :class:`SlotClient` whose service says which cluster a source is."""

    def source_identity(self, source: str) -> SourceIdentity: ...


@runtime_checkable
class SnapshotExporter(Protocol):
    """A :class:`SlotClient` whose service pairs snapshots of the source with LSNs."""

    def exported_snapshot(self, slot_name: str) -> AbstractContextManager[ExportedSnapshot]:
        """Have a snapshot held while the block runs; it was paired, so nobody was waited for."""
        ...


class SlotClient(Protocol):
    """What a consumer asks of the service. Every call may raise a
    :class:`spillway.errors.SpillwayError`.
    """

    def position(self, slot_name: str) -> SlotPosition: ...

    def read(
        self,
        slot_name: str,
        start_lsn: int,
        upto_lsn: int,
        *,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[bytes]:
        """Yield the payloads of the transactions whose commit record starts in [*start_lsn*,
        *upto_lsn*).

        Ends by itself, which needs *upto_lsn* ≤ ``decoded_lsn``. What the slot has confirmed is
        left out. The same range always gives the same rows in the same order; where it is cut into
        messages may differ. *options* are the plugin's, over the slot's own.
        """
        ...

    def advance(self, slot_name: str, upto_lsn: int) -> int:
        """Confirm everything before *upto_lsn* and return where the slot stands then."""
        ...

    def close(self) -> None: ...
