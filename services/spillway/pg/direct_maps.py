"""What PostgreSQL converts from one encoding into another without UTF8 between.

Such a conversion goes by places of its own: by the letters alone of the Cyrillic encodings, by the
arithmetic that turns a row and a cell of JIS into Shift JIS, by runs of places of CNS 11643 and of
Big5. It does not give what UTF8 between would give. The service has text in UTF8 all the same, so a
map here goes from a character to what PostgreSQL makes of its place in the server's encoding.

What the server's encoding has and Unicode has not is lost on the way: bytes that are no character
here. A test holds each character that there is against servers of each major.

Source: src/backend/utils/mb/conversion_procs/: cyrillic_and_mic, latin_and_mic, latin2_and_win1250,
euc_cn_and_mic, euc_kr_and_mic, src/include/mb/pg_wchar.h,
euc_jp_and_sjis, euc2004_sjis2004, euc_tw_and_big5
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import operator
from typing import TYPE_CHECKING, Final

from spillway.pg.character_maps import character_map, packed
from spillway.pg.encoding import server_encoding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway._kernels.pg.character_map import CharacterMap

_FIRST: Final = 0xA1
_CELLS: Final = 94
_SINGLE_SHIFT_2, _SINGLE_SHIFT_3 = 0x8E, 0x8F
_PLANE_2: Final = 0xA2

_RUSSIAN: Final = "".join(map(chr, range(0x410, 0x450))) + "Ёё"
_UKRAINIAN: Final = "ЄєІіЇїҐґ"
#: Where PostgreSQL has them, whatever the encoding says itself: KOI8R as KOI8U.
_UKRAINIAN_PLACES: Final = {
    "KOI8R": bytes.fromhex("b4a4b6a6b7a7bdad"),
    "WIN1251": _UKRAINIAN.encode("cp1251"),
    "WIN866": bytes.fromhex("f2f3f8f9f4f5bdad"),
}
_CYRILLIC: Final = frozenset({"KOI8R", "WIN1251", "WIN866", "ISO_8859_5"})
#: WIN1250 begins with signs that LATIN2 has no place for; they go where they are.
_SAME_IN_WIN1250: Final = range(0x80, 0xA0)

#: 〓, for what Shift JIS has not.
_GETA: Final = b"\x81\xac"
#: JIS X 0213's second plane, by its rows in EUC, as Shift JIS follows them.
_ROWS_BEFORE_PLANE_2: Final = _CELLS
_ROWS_BELOW_KATAKANA: Final = 62
_ROWS_OF_PLANE_2: Final = (0xA1, 0xA8, 0xA3, 0xA4, 0xA5, *range(0xAC, 0xB0), *range(0xEE, 0xFF))

#: Planes 1 and 2 of CNS 11643 in runs: first place (of plane 2: 20,000 more), that of Big5, how
#: many.
_BIG5_RUNS: Final = (
    (0, 0, 148), (148, 149, 1), (149, 148, 1), (150, 150, 84), (282, 234, 174), (3102, 408, 33),
    (3290, 471, 1412), (4702, 1884, 424), (5126, 1883, 1), (5127, 2308, 1876), (7003, 4571, 1),
    (7004, 4184, 387), (7391, 4572, 525), (7916, 5286, 1), (7917, 5097, 189), (8106, 5287, 84),
    (8190, 5517, 1), (8191, 5371, 54), (8245, 5426, 1), (8246, 5425, 1), (8247, 5427, 90),
    (8337, 5518, 354), (20000, 6280, 10), (20010, 6291, 33), (20043, 6372, 1), (20044, 6324, 48),
    (20092, 6373, 46), (20138, 6586, 1), (20139, 6419, 167), (20306, 6587, 1949),
    (22255, 8537, 638), (22893, 8536, 1), (22894, 9175, 399), (23293, 9575, 1637),
    (24930, 11761, 1), (24931, 11212, 146), (25077, 11899, 1), (25078, 11358, 287),
    (25365, 12508, 1), (25366, 11645, 116), (25482, 11762, 137), (25619, 11900, 104),
    (25723, 12425, 1), (25724, 12004, 222), (25946, 12227, 198), (26144, 12426, 82),
    (26226, 12509, 86), (26312, 12226, 1), (26313, 12595, 8), (26321, 12604, 153),
    (26474, 12758, 56), (26530, 13114, 1), (26531, 12814, 113), (26644, 12603, 1),
    (26645, 12927, 142), (26787, 12757, 1), (26788, 13069, 45), (26833, 13115, 71),
    (26904, 13380, 1), (26905, 13186, 194), (27099, 13381, 490), (27589, 13914, 1),
    (27590, 13871, 43), (27633, 13915, 1), (27634, 13917, 11), (27645, 13916, 1),
    (27646, 13928, 4),
)  # fmt: skip
_BIG5_CELLS: Final = 157
_BIG5_LOW_CELLS: Final = 63
_PLANE: Final = 10_000

_MULE: Final = "MULE_INTERNAL"
#: What stands before a character in MULE_INTERNAL: the set that it is of.
_MULE_SETS: Final = {"LATIN1": 0x81, "LATIN2": 0x82, "LATIN3": 0x83, "LATIN4": 0x84, "KOI8R": 0x8B}
_MULE_SETS_OF_EUC: Final = {"EUC_CN": 0x91, "EUC_JP": 0x92, "EUC_KR": 0x93, "EUC_TW": 0x95}
#: Encodings that become another one first.
_MULE_THROUGH: Final = {
    "WIN1250": "LATIN2", "ISO_8859_5": "KOI8R", "WIN1251": "KOI8R", "WIN866": "KOI8R",
}  # fmt: skip
_MULE_JIS_KATAKANA, _MULE_JIS_MORE = b"\x89", b"\x94"
_MULE_CNS_2: Final = b"\x96"
#: CNS 11643's planes from the third on are private sets.
_MULE_PRIVATE, _MULE_CNS_3, _MULE_CNS_7 = 0x9D, 0xF6, 0xFA

#: server's encoding, client's encoding
DIRECT: Final = frozenset(
    {
        *((one, other) for one in _CYRILLIC for other in _CYRILLIC if one != other),
        ("LATIN2", "WIN1250"),
        ("WIN1250", "LATIN2"),
        ("EUC_JP", "SJIS"),
        ("EUC_JIS_2004", "SHIFT_JIS_2004"),
        ("EUC_TW", "BIG5"),
        *((one, _MULE) for one in (*_MULE_SETS, *_MULE_SETS_OF_EUC, *_MULE_THROUGH)),
    }
)
#: Of which bytes that are no character go out as they are.
KEEPS_STRAYS: Final = frozenset({("LATIN2", "WIN1250"), ("WIN1250", "LATIN2")})


@functools.cache
def direct_map(server: str, client: str) -> CharacterMap:
    """Return what PostgreSQL makes of each character of a server's encoding; one of
    :data:`DIRECT`.
    """
    places: dict[str, bytes]
    if client == _MULE:
        places = _mule(server)
    elif server in _CYRILLIC:
        places = _cyrillic(server, client)
    elif server.startswith(("LATIN", "WIN")):
        places = _latin2(server_encoding(server).codec, server_encoding(client).codec)
    else:
        convert = {"EUC_JP": _sjis, "EUC_JIS_2004": _shift_jis_2004, "EUC_TW": _big5}[server]
        places = {text: convert(place, text) for text, place in _places(character_map(server))}
    singles = {text: place for text, place in places.items() if place and len(text) == 1}
    return packed(singles, {text: place for text, place in places.items() if len(text) > 1})


def _mule(server: str) -> dict[str, bytes]:
    if server in _MULE_SETS_OF_EUC:
        own = _places(character_map(server))
        return {text: _mule_of_euc(server, place) for text, place in own}
    through = _MULE_THROUGH.get(server, server)
    before = bytes((_MULE_SETS[through],))
    if through != server:
        own = _places(direct_map(server, through))
    else:
        codec = server_encoding(server).codec
        every = (bytes((byte,)) for byte in range(0x80, 0x100))
        own = ((place.decode(codec, "ignore"), place) for place in every)
    return {text: before + place for text, place in own if text}


def _mule_of_euc(server: str, place: bytes) -> bytes:
    lead, rest = place[0], place[1:]
    if lead == _SINGLE_SHIFT_3:
        return _MULE_JIS_MORE + rest
    if lead != _SINGLE_SHIFT_2:
        return bytes((_MULE_SETS_OF_EUC[server],)) + place
    if server == "EUC_JP":
        return _MULE_JIS_KATAKANA + rest
    if rest[0] == _PLANE_2:
        return _MULE_CNS_2 + rest[1:]
    private = rest[0] - _PLANE_2 - 1 + _MULE_CNS_3
    # A database in EUC_TW takes no plane beyond that.
    return bytes((_MULE_PRIVATE, private)) + rest[1:] if private <= _MULE_CNS_7 else b""


def _cyrillic(server: str, client: str) -> dict[str, bytes]:
    codec = server_encoding(server).codec
    places = {}
    if server in _UKRAINIAN_PLACES and client in _UKRAINIAN_PLACES:
        for theirs, ours in zip(_UKRAINIAN_PLACES[server], _UKRAINIAN_PLACES[client], strict=True):
            places[bytes((theirs,)).decode(codec)] = bytes((ours,))
    # Last: one place of WIN866 is taken twice.
    russian = {letter: letter.encode(server_encoding(client).codec) for letter in _RUSSIAN}
    return {**places, **russian}


def _latin2(server_codec: str, client_codec: str) -> dict[str, bytes]:
    places = {}
    for byte in range(0x80, 0x100):
        text = bytes((byte,)).decode(server_codec, "ignore")
        with contextlib.suppress(UnicodeEncodeError):
            places[text] = text.encode(client_codec)
        if byte in _SAME_IN_WIN1250 and text not in places and not _is_letter_of_win1250(byte):
            places[text] = bytes((byte,))
    places.pop("", None)
    return places


def _is_letter_of_win1250(byte: int) -> bool:
    return bytes((byte,)).decode("cp1250", "ignore").isalpha()


def _places(characters: CharacterMap) -> Iterator[tuple[str, bytes]]:
    """Yield what an encoding of several bytes has, with its place."""
    for code, place in enumerate(memoryview(characters.codes).cast("I")):
        if place:
            yield chr(code), place.to_bytes((place.bit_length() + 7) // 8, "big")
    numbers = memoryview(characters.pairs).cast("I")
    for n in range(0, len(numbers), 3):
        yield chr(numbers[n]) + chr(numbers[n + 1]), numbers[n + 2].to_bytes(2, "big")


def _sjis(place: bytes, text: str) -> bytes:
    if place[0] == _SINGLE_SHIFT_2:
        return place[1:]
    if place[0] != _SINGLE_SHIFT_3:
        return _shifted(place[0] - _FIRST, place[1])
    return _ibm_extensions().get(text, _GETA)


@functools.cache
def _ibm_extensions() -> dict[str, bytes]:
    places = (bytes((first, second)) for first in range(0xFA, 0xFD) for second in range(0x40, 0xFD))
    found = ((place.decode("cp932", "ignore"), place) for place in places)
    return {text: place for text, place in found if len(text) == 1 and text > "\x7f"}


def _shift_jis_2004(place: bytes, text: str) -> bytes:  # noqa: ARG001
    if place[0] == _SINGLE_SHIFT_2:
        return place[1:]
    if len(place) == 1:
        return b""
    if place[0] != _SINGLE_SHIFT_3:
        return _shifted(place[0] - _FIRST, place[1])
    return _shifted(_ROWS_BEFORE_PLANE_2 + _ROWS_OF_PLANE_2.index(place[1]), place[2])


def _shifted(row: int, cell_byte: int) -> bytes:
    """Return the bytes of Shift JIS for a row, counted from 0, and a cell as EUC writes it."""
    cell = cell_byte - _FIRST
    first = row // 2 + (0x81 if row < _ROWS_BELOW_KATAKANA else 0xC1)
    return bytes((first, cell + 0x9F if row % 2 else cell + 0x40 + (cell >= 0x3F)))


def _big5(place: bytes, text: str) -> bytes:  # noqa: ARG001
    if len(place) > 2 and place[1] != _PLANE_2:
        return b""
    number = (place[-2] - _FIRST) * _CELLS + place[-1] - _FIRST
    if len(place) > 2:
        number += 2 * _PLANE
    first, big5, count = _BIG5_RUNS[
        bisect.bisect_right(_BIG5_RUNS, number, key=operator.itemgetter(0)) - 1
    ]
    if number >= first + count:
        return b""
    row, cell = divmod(big5 + number - first, _BIG5_CELLS)
    return bytes((row + _FIRST, cell + 0x40 if cell < _BIG5_LOW_CELLS else cell + 0x62))
