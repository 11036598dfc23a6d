from collections.abc import Callable, Mapping
from typing import final

from _typeshed import ReadableBuffer

from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.catalog.descriptor import RelationDescriptor
from spillway.pg.text_settings import TextSettings
from spillway.plugins.pgoutput_relation import Publishing

@final
class Encoder:
    messages: bool
    only_local: bool
    schema_message: Callable[[bytes], tuple[bytes, bytes, int | None]] | None
    def __init__(
        self,
        settings: TextSettings,
        rules: Callable[[RelationDescriptor], Publishing],
        publications_changed: Callable[[int], None],
        binary: bool,
    ) -> None: ...
    def begin(self, xid: int, final_lsn: int, commit_time: int, origin: bytes | None) -> None: ...
    def open_now(self, lsn: int, out: MessageBuffer) -> None: ...
    def commit(self, end_lsn: int, out: MessageBuffer) -> None: ...
    def begin_opened(self, xid: int) -> None: ...
    def begin_skipped(self, xid: int) -> None: ...
    def begin_part(self, xid: int) -> None: ...
    def begin_part_held_back(self, xid: int, first: bool) -> None: ...
    @property
    def has_begun_part(self) -> bool: ...
    @property
    def state_changes(self) -> int: ...
    def save(self) -> tuple[object, ...]: ...
    def load(self, saved: tuple[object, ...]) -> None: ...
    def forget_streamed(self, xid: int, committed: bool) -> None: ...
    def changes(
        self,
        chunk: ReadableBuffer,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None: ...
    def transactions(
        self,
        run: TransactionRun,
        out: MessageBuffer,
        batch_bytes: int,
        message_limit: int,
        opened: bool,
    ) -> None: ...
