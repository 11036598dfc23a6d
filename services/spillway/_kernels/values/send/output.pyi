from collections.abc import Mapping

from _typeshed import ReadableBuffer

from spillway.catalog.descriptor import ColumnDescriptor, TypeDescriptor
from spillway.pg.text_settings import TextSettings

def datum_send(
    column: ColumnDescriptor,
    types: Mapping[int, TypeDescriptor],
    settings: TextSettings,
    payload: ReadableBuffer,
) -> bytes | None: ...
