"""EUC_JP, EUC_JIS_2004 and EUC_KR as PostgreSQL converts them to UTF-8, where Python's codecs
differ.

PostgreSQL's EUC_JP is that of Microsoft: with NEC's row 13, IBM's extensions and the wide forms of
a few signs. The codecs here are Python's with those characters put right, under names of their own
(``spillway_euc_jp``), which :mod:`spillway.pg.encoding` gives out. Text without such a character
costs what Python's codec costs.

Source: src/backend/utils/mb/Unicode/euc_{jp,kr}_to_utf8.map, euc_jis_2004_to_utf8.map
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: First bytes of characters of two and of three bytes; from 0xA1 on there are two as well.
_SINGLE_SHIFT_2, _SINGLE_SHIFT_3, _TWO_BYTES = 0x8E, 0x8F, 0xA1
_ROW_CELLS: Final = range(94)

#: IBM's extensions in Shift JIS; those that are in no JIS set follow one another in EUC from 8FF3F3
#: on.
_IBM_SHIFT_JIS: Final = (0xFA40, 0xFC4B)
_IBM_START: Final = (0xF3, 0xF3)
#: Two of them have a place elsewhere, one has two.
_NOT_SIGN, _BROKEN_BAR, _NUMERO_SIGN = "\uffe2", "\uffe4", "\u2116"


def _euc_jp() -> dict[bytes, str]:
    special = {
        b"\xa1\xc1": "\uff5e", b"\xa1\xc2": "\u2225", b"\xa1\xdd": "\uff0d", b"\xa1\xf1": "\uffe0",
        b"\xa1\xf2": "\uffe1", b"\xa2\xcc": _NOT_SIGN, b"\x8f\xa2\xc3": _BROKEN_BAR,
    }  # fmt: skip
    for cell in _ROW_CELLS:
        # NEC's row 13, as Shift JIS has it: its second byte leaves 7F out.
        try:
            character = bytes((0x87, 0x40 + cell + (cell >= 0x3F))).decode("cp932")
        except UnicodeDecodeError:
            continue
        special[bytes((0xAD, 0xA1 + cell))] = character
    row, cell = _IBM_START
    for character in _ibm_characters():
        special[bytes((_SINGLE_SHIFT_3, row, cell))] = character
        row, cell = (row, cell + 1) if cell < 0xFE else (row + 1, _TWO_BYTES)
    return special


def _ibm_characters() -> Iterator[str]:
    for code in range(_IBM_SHIFT_JIS[0], _IBM_SHIFT_JIS[1] + 1):
        try:
            character = code.to_bytes(2, "big").decode("cp932")
        except UnicodeDecodeError:
            continue
        if character in {_NOT_SIGN, _BROKEN_BAR}:
            continue
        try:
            character.encode("euc_jp")
        except UnicodeEncodeError:
            yield character
        else:
            if character == _NUMERO_SIGN:
                yield character


#: name → Python's codec, and the characters that it has not, or has otherwise
_CODECS: Final[Mapping[str, tuple[str, Mapping[bytes, str]]]] = {
    "spillway_euc_jp": ("euc_jp", _euc_jp()),
    "spillway_euc_jis_2004": (
        "euc_jis_2004",
        {
            b"\xa1\xb1": "‾",
            b"\xa1\xbd": "—",
            b"\xa1\xef": "¥",
            b"\xa2\xd6": "｟",
            b"\xa2\xd7": "｠",
        },
    ),
    # Microsoft's superset, which knows the filler.
    "spillway_euc_kr": ("cp949", {b"\xa2\xe8": "\u327e"}),
}


class _Codec:
    """One codec's two directions, stateless."""

    def __init__(self, base: str, special: Mapping[bytes, str]) -> None:
        self._base = base
        self._special = special
        self._bytes = {character: data for data, character in special.items()}
        #: what the base makes of bytes that mean something else
        self._corrected: dict[int, str] = {}
        for data, character in special.items():
            try:
                self._corrected[ord(data.decode(base))] = character
            except UnicodeDecodeError:
                continue

    def decode(self, data: bytes, errors: str = "strict") -> tuple[str, int]:
        content = bytes(data)
        try:
            return content.decode(self._base).translate(self._corrected), len(content)
        except UnicodeDecodeError:
            pass
        parts = []
        position = 0
        while position < len(content):
            size = _size(content[position])
            character = content[position : position + size]
            text = self._special.get(character)
            if text is None:
                text = character.decode(self._base, errors).translate(self._corrected)
            parts.append(text)
            position += size
        return "".join(parts), len(content)

    def encode(self, text: str, errors: str = "strict") -> tuple[bytes, int]:
        # In runs: some characters of EUC_JIS_2004 are two of Unicode.
        parts = []
        start = 0
        for i, character in enumerate(text):
            if character in self._bytes:
                parts.append(text[start:i].encode(self._base, errors))
                parts.append(self._bytes[character])
                start = i + 1
        parts.append(text[start:].encode(self._base, errors))
        return b"".join(parts), len(text)


def _size(first: int) -> int:
    if first == _SINGLE_SHIFT_3:
        return 3
    return 2 if first == _SINGLE_SHIFT_2 or first >= _TWO_BYTES else 1


def _info(name: str) -> codecs.CodecInfo | None:
    found = _CODECS.get(name)
    if found is None:
        return None
    codec = _Codec(*found)
    encode: Callable[..., tuple[bytes, int]] = codec.encode
    decode: Callable[..., tuple[str, int]] = codec.decode
    return codecs.CodecInfo(name=name, encode=encode, decode=decode)


codecs.register(_info)
