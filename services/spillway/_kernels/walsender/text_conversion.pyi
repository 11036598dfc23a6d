from _typeshed import ReadableBuffer

from spillway._kernels.pg.character_map import CharacterMap

class TextConversion:
    failure: bytes

    def __init__(
        self, characters: CharacterMap | None, keeps_strays: bool, fields: bool
    ) -> None: ...
    def convert(self, payload: ReadableBuffer, lengths: ReadableBuffer) -> tuple[bytes, bytes]: ...
