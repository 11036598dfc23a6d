from collections.abc import Mapping
from typing import final

from _typeshed import ReadableBuffer

from spillway._kernels.messages.buffer import MessageBuffer
from spillway.catalog.descriptor import RelationDescriptor
from spillway.pg.text_settings import TextSettings
from spillway.plugins.wal2json_options import Wal2JsonOptions

class Encoder:
    def __init__(self, settings: TextSettings, options: Wal2JsonOptions) -> None: ...
    @property
    def options(self) -> Wal2JsonOptions: ...
    def timestamp(self, time: int) -> str: ...
    def changes(
        self,
        chunk: ReadableBuffer,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None: ...

@final
class Format1Encoder(Encoder):
    def __init__(
        self,
        settings: TextSettings,
        options: Wal2JsonOptions,
        transaction_bytes_max: int = ...,
    ) -> None: ...
    def begin(self, xid: int) -> None: ...
    def begin_message(self, xid: int) -> None: ...
    def append(self, text: ReadableBuffer) -> None: ...
    def finish(self, lsn: int, out: MessageBuffer) -> None: ...

@final
class Format2Encoder(Encoder):
    def begin(self, xid: int, frame: bytes) -> None: ...
