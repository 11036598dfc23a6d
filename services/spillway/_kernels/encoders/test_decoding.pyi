from collections.abc import Mapping
from typing import final

from _typeshed import ReadableBuffer

from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.catalog.descriptor import RelationDescriptor
from spillway.pg.text_settings import TextSettings

@final
class Encoder:
    include_xids: bool
    include_timestamp: bool
    skip_empty_xacts: bool
    only_local: bool
    wrote_changes: bool
    wrote_opening: bool
    def __init__(self, settings: TextSettings) -> None: ...
    def begin(self, xid: int, first_lsn: int, transactional: bool, out: MessageBuffer) -> None: ...
    def commit(self, end_lsn: int, commit_time: int, out: MessageBuffer) -> None: ...
    def transactions(
        self, run: TransactionRun, out: MessageBuffer, batch_bytes: int, message_limit: int
    ) -> None: ...
    def begin_part(self, xid: int, first_lsn: int, out: MessageBuffer) -> None: ...
    def end_part(self, last_lsn: int, out: MessageBuffer) -> None: ...
    def streamed_changes(self, chunk: ReadableBuffer, out: MessageBuffer) -> None: ...
    def news(
        self, text: ReadableBuffer, lsn: int, xid: int, time: int | None, out: MessageBuffer
    ) -> None: ...
    def changes(
        self,
        chunk: ReadableBuffer,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None: ...
