"""Rows of one table on two sides: which keys differ, and in which columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spillway.consumer.row_checksums import values_of
from spillway.pg.encoding import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose rows differ. One that several rows have is told as often as they differ."""

    #: what PostgreSQL prints of its columns; of the whole row where the table has no key
    key: tuple[str | None, ...]
    #: the side where it only is (``source``, or what the other is called); else the columns that
    #: differ
    only: str = ""
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        key = "(" + ", ".join("null" if v is None else readable(v) for v in self.key) + ")"
        return (
            f"{key} is in the {self.only} only"
            if self.only
            else f"{key}: {', '.join(self.columns)}"
        )


class HashedRow(NamedTuple):
    """A row's hash, and its columns' texts."""

    hash: str
    texts: Sequence[str | None]


def by_key(
    rows: Iterable[tuple[str, str, Sequence[str | None]]],
) -> dict[str, list[HashedRow]]:
    """Return rows (key, hash, texts) by their key."""
    found: dict[str, list[HashedRow]] = {}
    for key, hash_, texts in rows:
        found.setdefault(key, []).append(HashedRow(hash_, texts))
    return found


def differences(
    key_text: str,
    left: Sequence[HashedRow],
    right: Sequence[HashedRow],
    columns: Sequence[str],
    *,
    keyed: bool,
    other: str,
) -> Iterator[Difference]:
    """Yield how the rows of one key differ; those that are on both sides cancel out.

    Args:
        key_text: the key's, as in :mod:`spillway.consumer.row_checksums`.
        left: the source's rows of it.
        right: the other side's.
        columns: what the rows' texts are of.
        keyed: *key_text* is made of a key's columns, not of the whole row.
        other: what the other side is called.
    """
    rest = list(right)
    missing = []
    for row in left:
        match = next((one for one in rest if one.hash == row.hash), None)
        if match is None:
            missing.append(row)
        else:
            rest.remove(match)
    key = tuple(values_of(key_text)) if keyed else ()
    while missing and rest:
        one, its = missing.pop(), rest.pop()
        wrong = (c for c, a, b in zip(columns, one.texts, its.texts, strict=True) if a != b)
        yield Difference(key, columns=tuple(wrong))
    for where, rows in (("source", missing), (other, rest)):
        for row in rows:
            yield Difference(key or tuple(row.texts), only=where)
