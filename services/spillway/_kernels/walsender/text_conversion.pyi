from _typeshed import ReadableBuffer

class CharacterMap:
    codes: bytes

    def __init__(
        self, codes: ReadableBuffer, pairs: ReadableBuffer = b"", is_gb18030: bool = False
    ) -> None: ...
    def encode(self, text: str) -> bytes: ...

class TextConversion:
    failure: bytes

    def __init__(
        self, characters: CharacterMap | None, keeps_strays: bool, fields: bool
    ) -> None: ...
    def convert(self, payload: ReadableBuffer, lengths: ReadableBuffer) -> tuple[bytes, bytes]: ...
