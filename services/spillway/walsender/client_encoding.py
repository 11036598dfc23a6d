"""``client_encoding``: its names, and what becomes of text for a client of a database.

A walsender converts what pgoutput calls text from the server's encoding to the client's; what
test_decoding and its like write goes out as the server has it, whatever the client speaks. The
service's own messages are in UTF-8 (:mod:`spillway._kernels.walsender.text_conversion` does it).

Text of a database in UTF8 is converted into every encoding that PostgreSQL knows of, but EUC_TW and
MULE_INTERNAL: into those of single bytes by Python's codecs, which have PostgreSQL's maps character
by character, into those of several bytes by :mod:`spillway.walsender.character_maps`. A database in
another encoding is served to clients in UTF8, in its own encoding and in SQL_ASCII; what PostgreSQL
converts directly (KOI8R into WIN1251, EUC_JP into SJIS) is refused, as is what it refuses itself.

``binary`` is refused where text is converted: PostgreSQL converts what text types send as well, and
a message does not say which values these are.

Source: pg_encname_tbl (src/common/encnames.c); PrepareClientEncoding, pg_server_to_any
(src/backend/utils/mb/mbutils.c)
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway._kernels.walsender.text_conversion import CharacterMap, TextConversion
from spillway.errors import SourceError
from spillway.pg.boolean import parse_bool
from spillway.pg.encoding import server_encoding
from spillway.walsender.character_maps import WIDE_ENCODINGS, character_map, of_single_bytes
from spillway.walsender.failures import WireError, not_supported

if TYPE_CHECKING:
    from collections.abc import Mapping

_UTF8: Final = "UTF8"
_SQL_ASCII: Final = "SQL_ASCII"
_TEXT_PLUGINS: Final = frozenset({"test_decoding", "wal2json"})

_CANONICAL: Final = (
    "SQL_ASCII", "EUC_JP", "EUC_CN", "EUC_KR", "EUC_TW", "EUC_JIS_2004", "UTF8", "MULE_INTERNAL",
    "LATIN1", "LATIN2", "LATIN3", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9",
    "LATIN10", "WIN1256", "WIN1258", "WIN866", "WIN874", "KOI8R", "WIN1251", "WIN1252",
    "ISO_8859_5", "ISO_8859_6", "ISO_8859_7", "ISO_8859_8", "WIN1250", "WIN1253", "WIN1254",
    "WIN1255", "WIN1257", "KOI8U", "SJIS", "BIG5", "GBK", "UHC", "GB18030", "JOHAB",
    "SHIFT_JIS_2004",
)  # fmt: skip
_ALIASES: Final = {
    "abc": "WIN1258", "alt": "WIN866", "iso88591": "LATIN1", "iso885910": "LATIN6",
    "iso885913": "LATIN7", "iso885914": "LATIN8", "iso885915": "LATIN9", "iso885916": "LATIN10",
    "iso88592": "LATIN2", "iso88593": "LATIN3", "iso88594": "LATIN4", "iso88599": "LATIN5",
    "koi8": "KOI8R", "mskanji": "SJIS", "shiftjis": "SJIS", "tcvn": "WIN1258",
    "tcvn5712": "WIN1258", "unicode": "UTF8", "vscii": "WIN1258", "win": "WIN1251",
    "win932": "SJIS", "win936": "GBK", "win949": "UHC", "win950": "BIG5", "windows932": "SJIS",
    "windows936": "GBK", "windows949": "UHC", "windows950": "BIG5",
}  # fmt: skip
#: What there is no conversion of.
_NOT_CONVERTED: Final = frozenset({"EUC_TW", "MULE_INTERNAL"})
#: Python's codecs of what clients send, where no server has the encoding.
_CLIENT_CODECS: Final = {
    "SJIS": "cp932", "BIG5": "big5", "GBK": "gbk", "UHC": "cp949", "GB18030": "gb18030",
    "JOHAB": "johab", "SHIFT_JIS_2004": "shift_jis_2004",
}  # fmt: skip


def _plain(name: str) -> str:
    """Return a name as PostgreSQL looks it up: letters and digits, in lower case."""
    return re.sub("[^a-z0-9]", "", name.lower())


_NAMES: Final = {
    **{_plain(name): name for name in _CANONICAL},
    **{
        _plain(name.replace("WIN", "WINDOWS")): name
        for name in _CANONICAL
        if name.startswith("WIN")
    },
    **_ALIASES,
}


@dataclass(frozen=True, slots=True)
class ClientEncoding:
    """What a client of a database speaks, both by PostgreSQL's names."""

    client: str
    server: str

    @classmethod
    def of(cls, given: str | None, server: str) -> ClientEncoding:
        """Return what a client has asked for; nothing is the database's own.

        Raises:
            WireError: there is no such encoding, or no conversion into it.
        """
        client = server if given is None else _NAMES.get(_plain(given))
        if client is None:
            raise WireError(
                "22023", f'invalid value for parameter "client_encoding": "{given}"', fatal=True
            )
        encoding = cls(client, server)
        if not encoding._is_served():
            what = f"conversion between {client} and {server} is not supported"
            if client in (server, _SQL_ASCII):
                what = f"text in {server} is not supported by this server"
            raise WireError(
                "0A000",
                what,
                hint="Connect with client_encoding=UTF8.",
                fatal=True,
            )
        return encoding

    def _is_served(self) -> bool:
        if self.server in _NOT_CONVERTED or self.client in _NOT_CONVERTED:
            return False
        if self.client in (_UTF8, _SQL_ASCII, self.server) or self.server == _UTF8:
            return True
        # What a database in SQL_ASCII has would have to be looked through for other bytes.
        return self.server == _SQL_ASCII and self.client not in WIDE_ENCODINGS

    @property
    def codec(self) -> str:
        """Python's codec of what the client sends."""
        if self.client == _SQL_ASCII:
            return "utf-8"
        return _CLIENT_CODECS.get(self.client) or server_encoding(self.client).codec

    def conversion(self, plugin: str, options: Mapping[str, str]) -> TextConversion | None:
        """Return what converts a stream's messages; None: nothing has to be.

        Args:
            plugin: which writes them.
            options: the slot's and the stream's.

        Raises:
            WireError: it can't be done.
        """
        if plugin == "pgoutput":
            return self._of_fields(binary=bool(parse_bool(options.get("binary", "off"))))
        if plugin not in _TEXT_PLUGINS or self.server in (_UTF8, _SQL_ASCII):
            return None
        return TextConversion(_characters(self.server), keeps_strays=True, fields=False)

    def _of_fields(self, *, binary: bool) -> TextConversion | None:
        as_is = self.client == _SQL_ASCII
        if self.client == _UTF8:
            if self.server == _UTF8:
                return None
            return TextConversion(None, keeps_strays=False, fields=True)
        target = self.server if as_is else self.client
        if target in (_UTF8, _SQL_ASCII) or self.server == _SQL_ASCII:
            # A client in a single-byte encoding takes any byte of a database that has none.
            return None
        if binary:
            raise not_supported(
                f"option binary is not supported by this server with client_encoding {self.client}",
                "Connect with client_encoding=UTF8, or leave binary out.",
            )
        return TextConversion(_characters(target), keeps_strays=self.server == target, fields=True)

    def failure(self, character: bytes) -> WireError:
        """Make the error of a character that can't be converted."""
        if self.server not in (_UTF8, _SQL_ASCII):
            character = character[:1]
        shown = " ".join(f"0x{byte:02x}" for byte in character)
        if self.server == _SQL_ASCII:
            return WireError(
                "22021", f'invalid byte sequence for encoding "{self.client}": {shown}'
            )
        return WireError(
            "22P05",
            f'character with byte sequence {shown} in encoding "{self.server}" has no equivalent '
            f'in encoding "{self.client}"',
        )


@functools.cache
def _characters(encoding: str) -> CharacterMap:
    """Return the map from UTF8 into an encoding."""
    if encoding in WIDE_ENCODINGS:
        return character_map(encoding)
    try:
        return of_single_bytes(server_encoding(encoding).codec)
    except SourceError as error:
        raise not_supported(error.message) from None
