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

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import grpc

from spillway_client._v1 import slots_pb2
from spillway_client.errors import ServiceError
from spillway_client.lsn import Lsn
from spillway_client.service import CALL_TIMEOUT_S, Address, Tls, error_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    address: str, name: str, *, token: str | None = None, tls: Tls | None = None
) -> Iterator[Snapshot]:
    """Have the service hold a snapshot of a slot's source while the block runs: the one that the
    slot was created with, or a new one.

    Args:
        address: host:port of the service's gRPC, https://host:port of one with a certificate.
        name: the slot.
        token: the service's bearer token.
        tls: what to verify the service with, and to show it.

    Raises:
        ServiceError: UnknownSlot; Unavailable when there is no exact snapshot to be had in time, or
            the service can't be reached.
        InvalidUse: a file of *tls* can't be read.
    """
    where = Address(address, token, tls)
    with where.open(grpc.insecure_channel, grpc.secure_channel) as channel:

        def call(method: str, request: Any, answer: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
            send = channel.unary_unary(
                _SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            try:
                return send(request, metadata=where.metadata, timeout=timeout_s)
            except grpc.RpcError as error:
                raise error_of(error, address) from None

        try:
            held = call(
                "GetSnapshot", slots_pb2.GetSnapshotRequest(slot_name=name), slots_pb2.Snapshot
            )
        except ServiceError as error:
            if error.code != "unknown_snapshot":
                raise
            held = call(
                "TakeSnapshot",
                slots_pb2.TakeSnapshotRequest(slot_name=name),
                slots_pb2.Snapshot,
                _TAKE_TIMEOUT_S,
            )
        try:
            yield Snapshot(
                held.snapshot_name,
                Lsn(held.consistent_point),
                held.contents,
                held.method,
                held.held_until.ToDatetime(UTC),
            )
        finally:
            # The service gives it up by itself, too.
            with suppress(ServiceError):
                call(
                    "ReleaseSnapshot",
                    slots_pb2.ReleaseSnapshotRequest(slot_name=name),
                    slots_pb2.ReleaseSnapshotResponse,
                )
