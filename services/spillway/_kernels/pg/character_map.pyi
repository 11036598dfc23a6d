from _typeshed import ReadableBuffer

class CharacterMap:
    codes: bytes
    pairs: bytes

    def __init__(
        self, codes: ReadableBuffer, pairs: ReadableBuffer = b"", is_gb18030: bool = False
    ) -> None: ...
    def encode(self, text: str) -> bytes: ...
