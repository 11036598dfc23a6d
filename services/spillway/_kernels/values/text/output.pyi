from collections.abc import Mapping
from typing import final

from _typeshed import ReadableBuffer

from spillway.catalog.descriptor import ColumnDescriptor, TypeDescriptor
from spillway.pg.text_settings import TextSettings

@final
class TextContext:
    settings: TextSettings
    def __init__(self, settings: TextSettings) -> None: ...

def datum_text(
    column: ColumnDescriptor,
    types: Mapping[int, TypeDescriptor],
    settings: TextSettings,
    payload: ReadableBuffer,
) -> bytes: ...
