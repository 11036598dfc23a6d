"""A snapshot of the source that fits a slot: what to copy before the slot is followed.

The service holds it on the source, and says which LSN belongs to it: it has what commits before,
and nothing else. So tables are copied under it, in sessions on the source that import it, and the
slot is followed from that LSN on::

    with exported_snapshot("127.0.0.1:50051", "audit") as snapshot:
        source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        source.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
    copy(source)
    with Slot("127.0.0.1:50051", "audit", start_lsn=snapshot.lsn) as slot: ...
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import grpc

from spillway_client._v1 import slots_pb2
from spillway_client.errors import ServiceError
from spillway_client.lsn import Lsn
from spillway_client.service import CALL_TIMEOUT_S, addresses_of, error_of, forget

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spillway_client.service import Address, Tls

_SERVICE: Final = "/spillway.v1.SlotService/"
#: The service waits for decoding, and may have to ask the primary, which waits for transactions.
_TAKE_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that the service holds on the source."""

    #: what ``SET TRANSACTION SNAPSHOT`` is given
    name: str
    #: what commits from here on is not in it
    lsn: Lsn
    #: its ``pg_current_snapshot()``
    contents: str
    #: ``paired``, or ``temporary_slot``: the primary's help was needed
    method: str
    #: when the service gives it up by itself
    held_until: datetime


@contextmanager
def exported_snapshot(
    address: str | Sequence[str], name: str, *, token: str | None = None, tls: Tls | None = None
) -> Iterator[Snapshot]:
    """Have the service hold a snapshot of a slot's source while the block runs: the one that the
    slot was created with, or a new one.

    Args:
        address: host:port of the service's gRPC, https://host:port of one with a certificate;
            several, where one service stands by for another: they are tried in turn.
        name: the slot.
        token: the service's bearer token.
        tls: what to verify the service with, and to show it.

    Raises:
        ServiceError: UnknownSlot; Unavailable when there is no exact snapshot to be had in time, or
            the service can't be reached.
        InvalidUse: there is no address, or a file of *tls* can't be read.
    """
    process = os.getpid()
    service, held = _hold(addresses_of(address, token, tls), name)
    try:
        yield Snapshot(
            held.snapshot_name,
            Lsn(held.consistent_point),
            held.contents,
            held.method,
            held.held_until.ToDatetime(UTC),
        )
    finally:
        # A process that was forked within the block leaves it to the one that has it.
        if os.getpid() == process:
            # The service gives it up by itself, too.
            with suppress(ServiceError):
                service.call(
                    "ReleaseSnapshot",
                    slots_pb2.ReleaseSnapshotRequest(slot_name=name),
                    slots_pb2.ReleaseSnapshotResponse,
                )
            service.close()


def _hold(addresses: tuple[Address, ...], name: str) -> tuple[_Service, Any]:
    """Return the first of the services that answers, and the snapshot that it holds."""
    for left in reversed(range(len(addresses))):
        service = _Service(addresses[-1 - left])
        try:
            held = service.held_snapshot(name)
        except BaseException as error:
            service.close()
            if not (isinstance(error, ServiceError) and error.is_transient and left):
                raise
        else:
            break
    if held is None:
        try:
            held = service.call(
                "TakeSnapshot",
                slots_pb2.TakeSnapshotRequest(slot_name=name),
                slots_pb2.Snapshot,
                _TAKE_TIMEOUT_S,
            )
        except BaseException:
            service.close()
            raise
    return service, held


class _Service:
    """A connection for calls."""

    def __init__(self, where: Address) -> None:
        self._where = where
        self._channel: Any = where.open(grpc.insecure_channel, grpc.secure_channel)

    def call(
        self, method: str, request: Any, answer: Any, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Call a method.

        Raises:
            ServiceError: it can't be done, or the service can't be reached.
        """
        send = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return send(request, metadata=self._where.metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(error, self._where.text) from None

    def held_snapshot(self, name: str) -> Any | None:
        """Return the snapshot that is held for a slot, None if there is none."""
        try:
            return self.call(
                "GetSnapshot", slots_pb2.GetSnapshotRequest(slot_name=name), slots_pb2.Snapshot
            )
        except ServiceError as error:
            if error.code != "unknown_snapshot":
                raise
            return None

    def close(self) -> None:
        self._channel.close()
        forget(self._channel)
