"""What PostgreSQL makes of each character for a client in an encoding of several bytes.

Python's codecs come close to PostgreSQL's maps, and nowhere all the way: PostgreSQL's SJIS, EUC_JP
and UHC are Microsoft's, each with a choice of its own where a character has two places. So a map is
made of a codec by decoding every place that a character may have; the order in which the places are
tried says which one counts. What neither the codec nor that order gives is listed by itself. A test
holds each code point against servers of each major.

A map is made when it is asked for first, in some tens of milliseconds, and kept.

Source: src/backend/utils/mb/Unicode/utf8_to_*.map, UtfToLocal (src/backend/utils/mb/conv.c)
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway._kernels.pg.character_map import CharacterMap
from spillway.pg import euc_codecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_BMP: Final = 0x10000
_SURROGATES: Final = range(0xD800, 0xE000)
_HIGH: Final = range(0xA1, 0xFF)
_SINGLE_SHIFT_2, _SINGLE_SHIFT_3 = 0x8E, 0x8F
_KATAKANA: Final = range(0xA1, 0xE0)

#: NEC's row of signs, by its first byte
_NEC_ROW_EUC, _NEC_ROW_SJIS = 0xAD, 0x87
#: Rows of JIS X 0213's second plane; in others a codec sees JIS X 0212, which isn't meant.
_SECOND_PLANE: Final = frozenset({0xA1, 0xA3, 0xA4, 0xA5, 0xA8, *range(0xAC, 0xB0)}) | frozenset(
    range(0xEE, 0xFF)
)
#: Characters of JIS X 0213 that Unicode writes as two: what may follow, and what may be before it.
_SECOND_OF_PAIR: Final = "\u309a\u0300\u0301\u02e5\u02e9"
_PAIR_BYTES: Final = 2
_FIRST_OF_PAIR: Final = "かきくけこカキクケコセツトㇷæɔʌəɚ\u02e9\u02e5"


class _Encoding(NamedTuple):
    codec: str
    #: where characters may be, in the order in which they count
    places: Callable[[], Iterable[bytes]]
    #: what the codec has not, or has otherwise
    others: Mapping[str, bytes]
    #: what it has beyond PostgreSQL
    without: str = ""


def _pairs(firsts: Iterable[int], seconds: Iterable[int]) -> Iterator[bytes]:
    following = tuple(seconds)
    return (bytes((first, second)) for first in firsts for second in following)


def _euc() -> Iterator[bytes]:
    return _pairs(_HIGH, _HIGH)


def _euc_jp() -> Iterator[bytes]:
    yield from _pairs([_SINGLE_SHIFT_2], _KATAKANA)
    yield from (place for place in _euc() if place[0] != _NEC_ROW_EUC)
    yield from _pairs([_NEC_ROW_EUC], _HIGH)
    yield from (bytes((_SINGLE_SHIFT_3,)) + place for place in _euc())


def _euc_jis_2004() -> Iterator[bytes]:
    yield from _pairs([_SINGLE_SHIFT_2], _KATAKANA)
    yield from _euc()
    for place in _euc():
        if place[0] in _SECOND_PLANE:
            yield bytes((_SINGLE_SHIFT_3,)) + place


def _single_katakana() -> Iterator[bytes]:
    return (bytes((byte,)) for byte in _KATAKANA)


def _sjis() -> Iterator[bytes]:
    seconds = range(0x40, 0xFD)
    yield from _single_katakana()
    standard = [*range(0x81, 0xA0), *range(0xE0, 0xEB)]
    yield from _pairs((byte for byte in standard if byte != _NEC_ROW_SJIS), seconds)
    # IBM's extensions, not where NEC has put them.
    yield from _pairs(range(0xFA, 0xFD), seconds)
    yield from _pairs([_NEC_ROW_SJIS], seconds)


def _shift_jis_2004() -> Iterator[bytes]:
    yield from _single_katakana()
    yield from _pairs([*range(0x81, 0xA0), *range(0xE0, 0xFD)], range(0x40, 0xFD))


def _wide() -> Iterator[bytes]:
    return _pairs(range(0x81, 0xFF), range(0x31, 0xFF))


def _johab() -> Iterator[bytes]:
    seconds = range(0x31, 0xFF)
    yield from _pairs(range(0x88, 0xD4), seconds)
    yield from _pairs(range(0xD8, 0xFA), seconds)
    # Vowels, and consonants that there are above.
    yield from _pairs(range(0x84, 0x88), seconds)


def _uhc_private() -> dict[str, bytes]:
    places = [*_pairs([0xC9], _HIGH), *_pairs([0xFE], _HIGH)]
    return {chr(0xE000 + number): place for number, place in enumerate(places)}


_FILLER: Final = "\u327e"
_ENCODINGS: Final[Mapping[str, _Encoding]] = {
    "EUC_JP": _Encoding("spillway_euc_jp", _euc_jp, {"¦": b"\x8f\xa2\xc3"}),
    "EUC_CN": _Encoding("gb2312", _euc, {}),
    "EUC_KR": _Encoding("cp949", _euc, {_FILLER: b"\xa2\xe8"}),
    "EUC_JIS_2004": _Encoding(
        "spillway_euc_jis_2004",
        _euc_jis_2004,
        {chr(code): bytes((code,)) for code in range(0x80, 0xA0)},
    ),
    "SJIS": _Encoding(
        "cp932",
        _sjis,
        {
            "¥": b"\\",
            "‾": b"~",
            "¢": b"\x81\x91",
            "£": b"\x81\x92",
            "¬": b"\x81\xca",
            "‖": b"\x81\x61",
            "\u2212": b"\x81\x7c",
            "〜": b"\x81\x60",
        },
        "\x80\uf8f0",
    ),
    "SHIFT_JIS_2004": _Encoding(
        "shift_jis_2004",
        _shift_jis_2004,
        {"¥": b"\\", "‾": b"~", "—": b"\x81\x5c", "｟": b"\x81\xd4", "｠": b"\x81\xd5"},
        "\u2015\u2985\u2986",
    ),
    "BIG5": _Encoding(
        "big5",
        _wide,
        {
            "\ufffd": b"\xa1\x5a",
            "十": b"\xa4\x51",
            "卅": b"\xa4\xca",
            "\uff0f": b"\xa2\x41",
            "\uff3c": b"\xa2\x42",
            # ETen's.
            **dict(zip("碁銹裏墻恒粧嫺", _pairs([0xF9], range(0xD6, 0xDD)), strict=True)),
        },
        "\u02cd\u2574\uffe3",
    ),
    "GBK": _Encoding("gbk", _wide, {"€": b"\x80"}),
    "UHC": _Encoding("cp949", _wide, {_FILLER: b"\xa2\xe8", **_uhc_private()}),
    "JOHAB": _Encoding("johab", _johab, {_FILLER: b"\xd9\xe8"}),
}
_GB18030: Final = "GB18030"
_EUC_TW: Final = "EUC_TW"
#: Whose characters may be two of Unicode.
_WITH_PAIRS: Final = frozenset({"EUC_JIS_2004", "SHIFT_JIS_2004"})

#: Encodings of several bytes a character that there is a map for.
WIDE_ENCODINGS: Final = frozenset({*_ENCODINGS, _GB18030, _EUC_TW})


@functools.cache
def character_map(encoding: str) -> CharacterMap:
    """Return PostgreSQL's map from UTF8 into one of :data:`WIDE_ENCODINGS`."""
    if encoding == _GB18030:
        places = {chr(code): chr(code).encode("gb18030") for code in _gb18030_bmp()}
        return packed(places, is_gb18030=True)
    if encoding == _EUC_TW:
        return packed(euc_codecs.euc_tw())
    codec, candidates, others, without = _ENCODINGS[encoding]
    found: dict[str, bytes] = {}
    pairs: dict[str, bytes] = {}
    for place in candidates():
        text = place.decode(codec, "ignore")
        # A byte of a place that is none may be ASCII.
        if len(text) == 1 and text > "\x7f" and text not in without:
            found.setdefault(text, place)
    if encoding in _WITH_PAIRS:
        pairs = dict(_combined(codec))
    return packed({**found, **others}, pairs)


def _gb18030_bmp() -> Iterator[int]:
    return (code for code in range(0x80, _BMP) if code not in _SURROGATES)


def _combined(codec: str) -> Iterator[tuple[str, bytes]]:
    for first in _FIRST_OF_PAIR:
        for second in _SECOND_OF_PAIR:
            with contextlib.suppress(UnicodeEncodeError):
                place = (first + second).encode(codec)
                # Not one behind the other.
                if len(place) == _PAIR_BYTES and len(place.decode(codec)) == len(first + second):
                    yield first + second, place


def of_single_bytes(codec: str) -> CharacterMap:
    """Return the map into an encoding of a byte a character: Python has PostgreSQL's."""
    found = {}
    for byte in range(0x80, 0x100):
        text = bytes((byte,)).decode(codec, "ignore")
        if text:
            found[text] = bytes((byte,))
    return packed(found)


def packed(
    places: Mapping[str, bytes],
    pairs: Mapping[str, bytes] = MappingProxyType({}),
    *,
    is_gb18030: bool = False,
) -> CharacterMap:
    """Make a map of characters' places; *pairs* are characters that Unicode writes as two."""
    codes = array("I", bytes(4 * (ord(max(places)) + 1)))
    for text, place in places.items():
        codes[ord(text)] = int.from_bytes(place, "big")
    followed = array("I")
    for text, place in pairs.items():
        followed.extend((ord(text[0]), ord(text[1]), int.from_bytes(place, "big")))
    return CharacterMap(codes.tobytes(), followed.tobytes(), is_gb18030=is_gb18030)
