"""What becomes of a database's text for a client: as PostgreSQL converts from the server's encoding
to the client's.

The service's text is in UTF-8, bytes that are no characters of the database's encoding within it as
they are. So what is chosen here is a map from characters, and what becomes of such bytes.

Source: PrepareClientEncoding, pg_server_to_any (src/backend/utils/mb/mbutils.c); pg_conversion
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.pg.character_checks import CHECKED, check_of
from spillway.pg.character_maps import WIDE_ENCODINGS, character_map, of_single_bytes
from spillway.pg.direct_maps import DIRECT, KEEPS_STRAYS, direct_map
from spillway.pg.encoding import server_encoding

if TYPE_CHECKING:
    from spillway._kernels.pg.character_map import CharacterMap

UTF8: Final = "UTF8"
SQL_ASCII: Final = "SQL_ASCII"
MULE_INTERNAL: Final = "MULE_INTERNAL"
#: The option by which the port tells pgoutput of both encodings, "EUC_JP/SJIS" for one.
SEND_ENCODING: Final = "spillway.send_encoding"


class TextRules(NamedTuple):
    """How text of a database reaches a client."""

    #: from UTF-8; None: it stays that
    characters: CharacterMap | None
    #: bytes that are no characters pass; else the client is told 22021 or 22P05
    keeps_strays: bool
    #: the client gets the database's bytes
    as_is: bool = False


def is_converted(server: str, client: str) -> bool:
    """Whether text of a database in *server* can be sent to a client of *client*, both by
    PostgreSQL's names.
    """
    if server == MULE_INTERNAL or (server, client) == (UTF8, MULE_INTERNAL):
        # No database is served in it, and PostgreSQL converts UTF8 neither from nor to it.
        return False
    if client in (UTF8, SQL_ASCII, server) or server == UTF8 or (server, client) in DIRECT:
        return True
    return server == SQL_ASCII


def text_rules(server: str, client: str) -> TextRules:
    """Return the rules for a pair that :func:`is_converted`; the first time makes its map, in
    some tens of milliseconds.
    """
    if server == SQL_ASCII and client in CHECKED:
        return TextRules(check_of(client), keeps_strays=False)
    if client in (SQL_ASCII, server) or (server == SQL_ASCII and client != UTF8):
        # A client in a single-byte encoding takes any byte of a database that has none.
        own = None if server in (UTF8, SQL_ASCII) else characters_of(server)
        return TextRules(own, keeps_strays=True, as_is=True)
    if client == UTF8:
        return TextRules(None, keeps_strays=False)
    if server == UTF8:
        return TextRules(characters_of(client), keeps_strays=False)
    pair = server, client
    return TextRules(direct_map(*pair), keeps_strays=pair in KEEPS_STRAYS)


@functools.cache
def characters_of(encoding: str) -> CharacterMap:
    """Return the map from UTF8 into an encoding."""
    if encoding in WIDE_ENCODINGS:
        return character_map(encoding)
    return of_single_bytes(server_encoding(encoding).codec)
