from _typeshed import ReadableBuffer

class CharacterMap:
    codes: bytes
    pairs: bytes
    checks: bytes

    def __init__(
        self,
        codes: ReadableBuffer,
        pairs: ReadableBuffer = b"",
        is_gb18030: bool = False,
        checks: ReadableBuffer = b"",
    ) -> None: ...
    def encode(self, text: str) -> bytes: ...
