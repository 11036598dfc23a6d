from types import EllipsisType
from typing import TypeAlias, final

from _typeshed import ReadableBuffer

from spillway.catalog.descriptor import RelationDescriptor

Row: TypeAlias = list[bytes | EllipsisType | None]

@final
class Deformer:
    def __init__(self, descriptor: RelationDescriptor) -> None: ...
    @property
    def descriptor(self) -> RelationDescriptor: ...
    @property
    def natts(self) -> int: ...

def deform_change(
    descriptor: RelationDescriptor, change: ReadableBuffer
) -> tuple[Row | None, Row | None]: ...
