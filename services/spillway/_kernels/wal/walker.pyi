from typing_extensions import Buffer

from spillway._kernels.wal.record_batch import RecordBatch
from spillway.pg.versions import WalVersion

class Walker:
    def __init__(
        self,
        version: WalVersion,
        start_lsn: int,
        segment_size: int,
        *,
        system_id: int = 0,
        end_is_error: bool = True,
    ) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def fed_lsn(self) -> int: ...
    @property
    def timeline(self) -> int: ...
    @property
    def overwritten_lsn(self) -> int: ...
    @property
    def end_of_wal(self) -> tuple[int, str] | None: ...
    def feed(self, lsn: int, data: Buffer) -> None: ...
    def next_batch(self, max_records: int = 4096) -> RecordBatch | None: ...
