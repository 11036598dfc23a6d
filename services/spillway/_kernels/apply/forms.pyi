from collections.abc import Mapping

FORMS: Mapping[str, int]

def binary(form: int, text: bytes) -> bytes | None: ...
