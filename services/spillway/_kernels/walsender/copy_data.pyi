from collections.abc import Mapping

from _typeshed import ReadableBuffer

OPEN_WRITES: Mapping[str, int]

def copy_data_frames(
    payload: ReadableBuffer,
    lengths: ReadableBuffer,
    lsns: ReadableBuffer,
    send_time: int,
    plugin: int,
) -> bytes: ...
