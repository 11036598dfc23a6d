"""A position in PostgreSQL's write-ahead log."""

from __future__ import annotations

from typing import Self

_LSN_MAX = (1 << 64) - 1


class Lsn(int):
    """A byte position in WAL: an integer that is written as PostgreSQL writes it, ``0/16B3748``.

    Positions compare as numbers; their difference is a number of bytes of WAL. 0 stands for "none".
    """

    __slots__ = ()

    def __new__(cls, value: int | str = 0) -> Self:
        """Make one of a number, or of PostgreSQL's text.

        Raises:
            ValueError: the text is no LSN, or the number is none of 64 bits.
        """
        number = _parsed(value) if isinstance(value, str) else int(value)
        if not 0 <= number <= _LSN_MAX:
            raise ValueError(f"{value} is not an LSN: it has 64 bits, without a sign")
        return super().__new__(cls, number)

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else int(self).__format__(spec)


def _parsed(text: str) -> int:
    upper, slash, lower = text.partition("/")
    try:
        if not slash or not 1 <= len(upper) <= 8 or not 1 <= len(lower) <= 8:
            raise ValueError  # noqa: TRY301 - one message for all that is wrong with it
        return int(upper, 16) << 32 | int(lower, 16)
    except ValueError:
        raise ValueError(f"{text!r} is not an LSN; one is written like 0/16B3748") from None
