from collections.abc import Sequence
from typing import Any, Final

SKIP: Final = 0
OID: Final = 1
INT2: Final = 2
INT4: Final = 3
BOOL: Final = 4
CHAR: Final = 5
NAME: Final = 6
FLOAT4: Final = 7
INT2VECTOR: Final = 8
RAW: Final = 9
OIDVECTOR: Final = 10

def page_lsn(page: bytes) -> int: ...
def parse_page(page: bytes) -> list[tuple[int, int, int, int, int, int, bytes]]: ...

class Deformer:
    def __init__(
        self, columns: Sequence[tuple[int, str, int]], encoding: str, errors: str = "strict"
    ) -> None: ...
    def deform(self, infomask2: int, infomask: int, hoff: int, data: bytes) -> tuple[Any, ...]: ...

def parse_copy(
    data: bytes, kinds: Sequence[int], encoding: str, errors: str = "strict"
) -> list[tuple[int, int, int, tuple[Any, ...]]]: ...
