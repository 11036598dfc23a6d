"""A slot over gRPC: the change stream for reading, the slot service for where it stands and for
confirming.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spillway.consumer.slot import ExportedSnapshot, SlotPosition, SourceIdentity
from spillway.errors import SpillwayError
from spillway.pg.lsn import Lsn
from spillway.stream.client import (
    advance_slot,
    get_slot,
    get_source,
    open_stream,
    release_snapshot,
    take_paired_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.tls import ClientTls

#: What the plugin gathers in a message, and gRPC in a batch: large, as nobody waits for the first
#: row of a micro-batch.
_BATCH_BYTES: Final = 4 << 20
_PLUGIN_OPTIONS: Final = {"batch_bytes": str(_BATCH_BYTES)}


class GrpcSlotClient:
    """See :class:`spillway.consumer.slot.SlotClient`. Holds no connection between calls."""

    def __init__(self, target: str, token: str, tls: ClientTls | None = None) -> None:
        self._target = target
        self._token = token or None
        self._tls = tls

    def position(self, slot_name: str) -> SlotPosition:
        slot = get_slot(self._target, slot_name, token=self._token, tls=self._tls)
        return SlotPosition(
            slot_name=slot.slot_name,
            plugin=slot.plugin,
            source=slot.source,
            database=slot.database,
            confirmed_flush_lsn=slot.confirmed_flush_lsn,
            decoded_lsn=slot.decoded_lsn,
            invalidation_reason=slot.invalidation_reason,
            options=dict(slot.options),
        )

    def read(
        self,
        slot_name: str,
        start_lsn: int,
        upto_lsn: int,
        *,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[bytes]:
        # The slot's own position counts where it is later, and a range before it is empty. The log
        # may begin there: what was given up on purpose is retained no longer.
        start_lsn = max(start_lsn, self.position(slot_name).confirmed_flush_lsn)
        if upto_lsn <= start_lsn:
            return
        with open_stream(
            self._target,
            slot_name,
            start_lsn=Lsn(start_lsn),
            upto_lsn=Lsn(upto_lsn),
            options={**_PLUGIN_OPTIONS, **options},
            batch_bytes=_BATCH_BYTES,
            peek=True,
            token=self._token,
            tls=self._tls,
        ) as stream:
            for batch in stream:
                for _, _, payload in batch.messages():
                    yield payload

    def advance(self, slot_name: str, upto_lsn: int) -> int:
        return advance_slot(self._target, slot_name, upto_lsn, token=self._token, tls=self._tls)

    def source_identity(self, source: str) -> SourceIdentity:
        found = get_source(self._target, source, token=self._token, tls=self._tls)
        created_at = found.created_at.ToDatetime(UTC).isoformat()
        return SourceIdentity(found.system_id, found.timeline, created_at)

    @contextmanager
    def exported_snapshot(self, slot_name: str) -> Iterator[ExportedSnapshot]:
        snapshot = take_paired_snapshot(self._target, slot_name, token=self._token, tls=self._tls)
        try:
            yield ExportedSnapshot(
                snapshot.snapshot_name, snapshot.contents, snapshot.consistent_point
            )
        finally:
            # It is given up by itself, too.
            with suppress(SpillwayError):
                release_snapshot(self._target, slot_name, token=self._token, tls=self._tls)

    def close(self) -> None:
        """Do nothing: streams end with their iterator."""
