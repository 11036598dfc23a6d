"""EUC_JP, EUC_JIS_2004, EUC_KR and EUC_TW as PostgreSQL converts them to UTF-8, where Python's
codecs differ, or there is none.

PostgreSQL's EUC_JP is that of Microsoft: with NEC's row 13, IBM's extensions and the wide forms of
a few signs. The codecs here are Python's with those characters put right, under names of their own
(``spillway_euc_jp``), which :mod:`spillway.pg.encoding` gives out. Text without such a character
costs what Python's codec costs. EUC_TW is read out of ``euc_tw.txt``, a line a row of 94
characters, when it is asked for first.

Source: src/backend/utils/mb/Unicode/euc_{jp,kr}_to_utf8.map, euc_jis_2004_to_utf8.map;
``tests/golden/record_euc_tw.py``
"""

from __future__ import annotations

import codecs
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: First bytes of characters of two and of three bytes; from 0xA1 on there are two as well.
_SINGLE_SHIFT_2, _SINGLE_SHIFT_3, _TWO_BYTES = 0x8E, 0x8F, 0xA1
_ROW_CELLS: Final = range(94)
_EUC_TW: Final = "spillway_euc_tw"
#: in euc_tw.txt
_NO_CHARACTER: Final = "?"

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


@functools.cache
def euc_tw() -> Mapping[str, bytes]:
    """Return where EUC_TW has each of its characters beyond ASCII."""
    places = {}
    for line in Path(__file__).with_name("euc_tw.txt").read_text(encoding="utf-8").splitlines():
        first, row = line.split(" ", 1)
        for cell, character in enumerate(row):
            if character != _NO_CHARACTER:
                places[character] = bytes.fromhex(first) + bytes((_TWO_BYTES + cell,))
    return places


@functools.cache
def _euc_tw_characters() -> Mapping[bytes, str]:
    characters = {place: character for character, place in euc_tw().items()}
    # Plane 1 may be written as the others are, too.
    plane_1 = {b"\x8e\xa1" + place: character for place, character in characters.items()
               if len(place) == 2}  # fmt: skip
    return {**characters, **plane_1}


def _decode_euc_tw(data: bytes, errors: str = "strict") -> tuple[str, int]:
    content = bytes(data)
    characters = _euc_tw_characters()
    parts = []
    position = 0
    while position < len(content):
        first = content[position]
        size = 1 if first < 0x80 else 4 if first == _SINGLE_SHIFT_2 else 2
        place = content[position : position + size]
        text = chr(first) if size == 1 else characters.get(place)
        position += len(place)
        if text is None:
            error = UnicodeDecodeError(
                _EUC_TW, content, position - len(place), position, "there is no such character"
            )
            instead, position = codecs.lookup_error(errors)(error)
            text = instead if isinstance(instead, str) else instead.decode()
        parts.append(text)
    return "".join(parts), len(content)


def _encode_euc_tw(text: str, errors: str = "strict") -> tuple[bytes, int]:
    places = euc_tw()
    parts = []
    position = 0
    while position < len(text):
        character = text[position]
        place = character.encode() if character < "\x80" else places.get(character)
        position += 1
        if place is None:
            error = UnicodeEncodeError(
                _EUC_TW, text, position - 1, position, "there is no such character"
            )
            instead, position = codecs.lookup_error(errors)(error)
            place = instead if isinstance(instead, bytes) else instead.encode("ascii")
        parts.append(place)
    return b"".join(parts), len(text)


def _size(first: int) -> int:
    if first == _SINGLE_SHIFT_3:
        return 3
    return 2 if first == _SINGLE_SHIFT_2 or first >= _TWO_BYTES else 1


def _info(name: str) -> codecs.CodecInfo | None:
    if name == _EUC_TW:
        # As below: the names of the arguments don't matter.
        to_bytes: Callable[..., tuple[bytes, int]] = _encode_euc_tw
        to_text: Callable[..., tuple[str, int]] = _decode_euc_tw
        return codecs.CodecInfo(name=name, encode=to_bytes, decode=to_text)
    found = _CODECS.get(name)
    if found is None:
        return None
    codec = _Codec(*found)
    encode: Callable[..., tuple[bytes, int]] = codec.encode
    decode: Callable[..., tuple[str, int]] = codec.decode
    return codecs.CodecInfo(name=name, encode=encode, decode=decode)


codecs.register(_info)
