from typing import Generic, TypeVar, final

from _typeshed import ReadableBuffer

from spillway._kernels.values.text.output import TextContext
from spillway.catalog.descriptor import RelationDescriptor

_U = TypeVar("_U")

def split_changes(chunk: ReadableBuffer) -> list[tuple[int, int, int, int, int, bytes]]: ...
def new_section(change: ReadableBuffer) -> bytes: ...

@final
class RowPrinter(Generic[_U]):
    descriptor: RelationDescriptor
    columns: tuple[str, ...]
    def __init__(
        self, descriptor: RelationDescriptor, context: TextContext, unchanged: _U
    ) -> None: ...
    def texts(self, change: ReadableBuffer, old: bool) -> tuple[str | _U | None, ...]: ...
