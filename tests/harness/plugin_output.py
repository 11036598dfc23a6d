"""What an output plugin makes of changes, message by message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spillway._kernels.messages.buffer import MessageBuffer
from spillway.decoding.transaction import TransactionHeader
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.plugins.messages import EncodedBatch

HEADER = TransactionHeader(
    xid=742, first_lsn=0x100, final_lsn=0x300, end_lsn=0x330, commit_time=812_345_678_900_000
)


def messages(batch: EncodedBatch) -> list[tuple[int, int, str]]:
    lengths = struct.unpack(f"<{batch.count}I", batch.lengths)
    lsns = struct.unpack(f"<{batch.count}Q", batch.lsns)
    xids = struct.unpack(f"<{batch.count}I", batch.xids)
    result, position = [], 0
    for length, lsn, xid in zip(lengths, lsns, xids, strict=True):
        result.append((lsn, xid, bytes(batch.payload[position : position + length]).decode()))
        position += length
    return result


def encode(
    changes: list[bytes],
    relations: Mapping[int, RelationDescriptor],
    version: int,
    options: Mapping[str, str] | None = None,
    header: TransactionHeader = HEADER,
    encoding: str = "utf-8",
) -> list[tuple[int, int, str]]:
    plugin = create_plugin(
        "test_decoding", options or {}, PluginContext("s", "d", version, encoding)
    )
    out = MessageBuffer()
    plugin.begin(header, out)
    if changes:
        plugin.changes(header, memoryview(b"".join(changes)), relations, out)
    plugin.commit(header, out)
    return messages(out.take())
