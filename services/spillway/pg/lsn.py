"""Log sequence numbers.

An LSN is a byte position in the WAL, written ``XXXXXXXX/XXXXXXXX`` in hexadecimal without leading
zeros, as PostgreSQL's ``pg_lsn`` prints it. Kernels and hot loops carry it as a plain ``int``;
:class:`Lsn` is that same integer with PostgreSQL's text form, for everything a person reads.
"""

from __future__ import annotations

import re
from typing import Final, Self

from spillway.errors import InvalidLsn

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_MAX: Final = (1 << 64) - 1


class Lsn(int):
    """A WAL position, 0 ≤ lsn < 2**64; ``Lsn(0)`` is PostgreSQL's InvalidXLogRecPtr."""

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        """Make an LSN of an integer position in bytes.

        Raises:
            InvalidLsn: *value* is negative or needs more than 64 bits.
        """
        if not 0 <= value <= _MAX:
            raise InvalidLsn(str(value))
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's text form, ``16/B374D848`` for one.

        Raises:
            InvalidLsn: *text* is not an LSN.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InvalidLsn(text)
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"

    def __format__(self, spec: str) -> str:
        return (
            format(str(self), spec) if spec == "" or spec[-1] in "<>^s" else format(int(self), spec)
        )
