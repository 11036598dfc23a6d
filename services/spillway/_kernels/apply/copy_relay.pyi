from typing import Final

#: There is more, or may be.
GOES_ON: Final = 0
#: The source has no more data; its result says whether that is all. Everything is with the
#: target's libpq, which may have to send some of it yet.
SOURCE_ENDED: Final = 1
#: The source's connection says why.
SOURCE_FAILED: Final = 2
#: The target's connection says why.
TARGET_FAILED: Final = 3

class CopyRelay:
    size: Final[int]
    messages: Final[int]
    def __init__(
        self, source: int, target: int, functions: tuple[int, int, int, int, int, int]
    ) -> None: ...
    def run(self, size: int, wait_ms: int) -> int: ...
