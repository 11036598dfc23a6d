"""Statements with ``$1`` for parameters, whose values are texts in bytes, passed on as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper

if TYPE_CHECKING:
    from collections.abc import Sequence

    Connection = psycopg.Connection[tuple[Any, ...]]

Cursor = psycopg.RawCursor[tuple[Any, ...]]


class Text(bytes):
    """A value in its type's text form, in the session's encoding."""

    __slots__ = ()


class _TextDumper(Dumper):
    """Hands a text over, of a type that the server infers."""

    oid = 0
    format = pq.Format.TEXT

    def dump(self, obj: bytes) -> bytes:
        return obj


def prepare_session(connection: Connection) -> None:
    """Have the connection know :class:`Text`; once, before :func:`raw` is used."""
    connection.adapters.register_dumper(Text, _TextDumper)


def raw(
    connection: Connection,
    query: bytes,
    values: Sequence[bytes | None] = (),
    *,
    prepare: bool | None = None,
) -> Cursor:
    """Run a statement; within a pipeline its result is there when it is asked for.

    Raises:
        psycopg.Error: the target refused it, or did not answer.
    """
    cursor = psycopg.RawCursor(connection)
    texts = [None if one is None else Text(one) for one in values]
    return cursor.execute(query, texts, prepare=prepare)


def cells(cursor: Cursor, row: int) -> list[bytes | None]:
    """A row of a result, as its types' output functions made it."""
    result = cursor.pgresult
    assert result is not None
    return [result.get_value(row, column) for column in range(result.nfields)]
