from _typeshed import ReadableBuffer

class TextConversion:
    failure: bytes

    def __init__(self, table: ReadableBuffer, keeps_strays: bool, fields: bool) -> None: ...
    def convert(self, payload: ReadableBuffer, lengths: ReadableBuffer) -> tuple[bytes, bytes]: ...
