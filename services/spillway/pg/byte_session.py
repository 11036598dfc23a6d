r"""SQL in a database without an encoding: SQL_ASCII, where names and texts are any bytes.

PostgreSQL sends such text to a client in UTF8 only if all of it is UTF-8, so that one odd name
would refuse a whole list of tables. A session in SQL_ASCII gets the bytes as they are. They become
the ``str`` that the catalog mirror has (:func:`spillway.pg.encoding.server_encoding`): UTF-8, with
a surrogate for each byte that is none, which is turned into that byte on its way back. Whoever
shows such a name asks :func:`spillway.pg.encoding.readable`, or has the session read texts so.

Names in statements are :class:`Name`: psycopg's own ``Identifier`` is written in the session's
encoding, which is ASCII here.

Source: pg_server_to_client (src/backend/utils/mb/mbutils.c)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.types.json import set_json_loads
from psycopg.types.string import StrDumperUnknown

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer

_ERRORS: Final = "surrogateescape"
#: Types that are text, and what has none.
_TEXTS: Final = ("text", "varchar", "bpchar", "name", '"char"', 0)


class Name(sql.Identifier):
    """An identifier, which may be qualified, of any bytes: in UTF-8, as sessions here speak, with
    surrogates for what is none.
    """

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:  # noqa: ARG002 - as psycopg has it
        parts = (part.encode(errors=_ERRORS).replace(b'"', b'""') for part in self._obj)
        return b".".join(b'"%s"' % part for part in parts)


class _Loader(Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors=_ERRORS)


class _ShownLoader(Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="backslashreplace")


class _Dumper(StrDumperUnknown):
    def dump(self, obj: str) -> bytes:
        return obj.encode(errors=_ERRORS)


def is_without_encoding(connection: psycopg.Connection[Any]) -> bool:
    """Say whether the session's database is in SQL_ASCII."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


def take_bytes(connection: psycopg.Connection[Any], *, shown: bool = False) -> None:
    r"""Have a session whose database is in SQL_ASCII take and give bytes as they are; others stay
    as they are.

    Args:
        connection: in UTF8; one that takes bytes already may get another *shown*.
        shown: texts are read with ``\xff`` for a byte that is no character, which no statement
            finds again; else with surrogates.

    Raises:
        psycopg.Error: the server refuses.
    """
    if not is_without_encoding(connection):
        return
    connection.execute("SET client_encoding = 'SQL_ASCII'")
    for one in _TEXTS:
        connection.adapters.register_loader(one, _ShownLoader if shown else _Loader)
    connection.adapters.register_dumper(str, _Dumper)
    set_json_loads(_json, connection)


def _json(data: str | bytes) -> Any:
    return json.loads(data if isinstance(data, str) else data.decode(errors=_ERRORS))
