"""What PostgreSQL takes for a character of an encoding, where it converts nothing and only looks.

A database in SQL_ASCII has bytes of any encoding. They go to a client as they are, but they must be
text of the encoding that the client has named; PostgreSQL looks at how many bytes follow which,
never whether there is such a character. So a check is a small automaton: a state a place in a
character, and for each byte the state behind it.

Source: pg_*_verifychar, pg_*_mblen (src/common/wchar.c); pg_server_to_any
(src/backend/utils/mb/mbutils.c)
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from spillway._kernels.pg.character_map import CharacterMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BYTES: Final = 256
#: Between characters; and what no state is.
_WHOLE, _NONE = 0, 0xFF
_ASCII: Final = range(0x80)
_HIGH: Final = range(0x80, 0x100)
_EUC: Final = range(0xA1, 0xFF)
_SINGLE_SHIFT_2, _SINGLE_SHIFT_3 = [0x8E], [0x8F]
_KATAKANA: Final = range(0xA1, 0xE0)
_DIGITS: Final = range(0x30, 0x3A)
_GB_LEADS: Final = range(0x81, 0xFF)
_ANY: Final = range(1, 0x100)
#: What no two bytes of BIG5, GBK and UHC may be; PostgreSQL keeps them for what is invalid.
_RESERVED_LEAD, _RESERVED_TRAIL = 0x8D, 0x20

#: A state's bytes, and what state each leads to.
_State = tuple[tuple["Iterable[int]", int], ...]
#: How many bytes a character has by its first one; 2 for others above ASCII.
_Lengths = tuple[tuple["Iterable[int]", int], ...]

_ONE_MORE: Final[_State] = ((_EUC, _WHOLE),)
_EUC_KR: Final[tuple[_State, ...]] = (((_ASCII, _WHOLE), (_EUC, 1)), _ONE_MORE)
_EUC_JP: Final[tuple[_State, ...]] = (
    ((_ASCII, _WHOLE), (_EUC, 1), (_SINGLE_SHIFT_2, 2), (_SINGLE_SHIFT_3, 3)),
    _ONE_MORE,
    ((_KATAKANA, _WHOLE),),
    ((_EUC, 1),),
)
_EUC_TW: Final[tuple[_State, ...]] = (
    # What follows the first byte is looked at, that byte isn't.
    ((_ASCII, _WHOLE), (_HIGH, 1), (_SINGLE_SHIFT_2, 2), (_SINGLE_SHIFT_3, _NONE)),
    _ONE_MORE,
    ((range(0xA1, 0xA8), 3),),
    ((_EUC, 1),),
)
_JOHAB: Final[tuple[_State, ...]] = (
    ((_ASCII, _WHOLE), (_HIGH, 1), (_SINGLE_SHIFT_3, 2)),
    _ONE_MORE,
    ((_EUC, 1),),
)
_SJIS: Final[tuple[_State, ...]] = (
    ((_ASCII, _WHOLE), (_KATAKANA, _WHOLE), (range(0x81, 0xA0), 1), (range(0xE0, 0xFD), 1)),
    ((range(0x40, 0x7F), _WHOLE), (range(0x80, 0xFD), _WHOLE)),
)
_BIG5: Final[tuple[_State, ...]] = (
    ((_ASCII, _WHOLE), (_HIGH, 1), ([_RESERVED_LEAD], 2)),
    ((_ANY, _WHOLE),),
    ((_ANY, _WHOLE), ([_RESERVED_TRAIL], _NONE)),
)
_GB18030: Final[tuple[_State, ...]] = (
    ((_ASCII, _WHOLE), (_GB_LEADS, 1)),
    ((range(0x40, 0x7F), _WHOLE), (range(0x80, 0xFF), _WHOLE), (_DIGITS, 2)),
    ((_GB_LEADS, 3),),
    ((_DIGITS, _WHOLE),),
)
_MULE: Final[tuple[_State, ...]] = (
    (
        (range(0x100), _WHOLE), (range(0x81, 0x8E), 1), (range(0x90, 0x9A), 2),
        (range(0x9A, 0x9C), 2), (range(0x9C, 0x9E), 3),
    ),
    ((_HIGH, _WHOLE),),
    ((_HIGH, 1),),
    ((_HIGH, 2),),
)  # fmt: skip
_EUC_LENGTHS: Final[_Lengths] = ((_SINGLE_SHIFT_3, 3),)
_CHECKS: Final[Mapping[str, tuple[tuple[_State, ...], _Lengths]]] = {
    "EUC_JP": (_EUC_JP, _EUC_LENGTHS),
    "EUC_JIS_2004": (_EUC_JP, _EUC_LENGTHS),
    "EUC_KR": (_EUC_KR, _EUC_LENGTHS),
    "EUC_CN": (_EUC_KR, ((_SINGLE_SHIFT_2, 3), (_SINGLE_SHIFT_3, 3))),
    "EUC_TW": (_EUC_TW, ((_SINGLE_SHIFT_2, 4), (_SINGLE_SHIFT_3, 3))),
    "JOHAB": (_JOHAB, _EUC_LENGTHS),
    "SJIS": (_SJIS, ((_KATAKANA, 1),)),
    "SHIFT_JIS_2004": (_SJIS, ((_KATAKANA, 1),)),
    "BIG5": (_BIG5, ()),
    "GBK": (_BIG5, ()),
    "UHC": (_BIG5, ()),
    "GB18030": (_GB18030, ()),
    "MULE_INTERNAL": (
        _MULE,
        (
            (_HIGH, 1), (range(0x81, 0x8E), 2), (range(0x90, 0x9C), 3), (range(0x9C, 0x9E), 4),
        ),
    ),
}  # fmt: skip

#: Encodings of several bytes a character that text is checked for.
CHECKED: Final = frozenset(_CHECKS)


@functools.cache
def check_of(encoding: str) -> CharacterMap:
    """Return the map that leaves text as it is, and fails at what is none of *encoding*'s; one of
    :data:`CHECKED`.
    """
    states, lengths = _CHECKS[encoding]
    first = bytearray([1] * len(_ASCII) + [2] * len(_HIGH))
    for those, length in lengths:
        for byte in those:
            first[byte] = length
    table = bytes(first)
    for state in states:
        behind = bytearray([_NONE] * _BYTES)
        for those, following in state:
            for byte in those:
                behind[byte] = following
        table += bytes(behind)
    return CharacterMap(b"", is_gb18030=encoding == "GB18030", checks=table)
