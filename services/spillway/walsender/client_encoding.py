"""``client_encoding``: its names, and what becomes of text for a client of a database.

A walsender converts what pgoutput calls text from the server's encoding to the client's; what
test_decoding and its like write goes out as the server has it, whatever the client speaks. The
service's own messages are in UTF-8 (:mod:`spillway._kernels.walsender.text_conversion` does it).

What is converted into what, and how: :mod:`spillway.pg.client_text`. All that PostgreSQL converts
is, but that no database in MULE_INTERNAL is served. Text of a database in SQL_ASCII is sent as it
is; for a client in an encoding of several bytes a character it is looked through.

With ``binary`` text stands within values in their send format, which only the plugin can tell: it
converts that, by an option of the service's own (``spillway.send_encoding``).

Source: pg_encname_tbl (src/common/encnames.c); report_untranslatable_char,
report_invalid_encoding (src/backend/utils/mb/mbutils.c)
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway._kernels.walsender.text_conversion import TextConversion
from spillway.pg.boolean import parse_bool
from spillway.pg.client_text import (
    MULE_INTERNAL,
    SEND_ENCODING,
    SQL_ASCII,
    UTF8,
    characters_of,
    is_converted,
    text_rules,
)
from spillway.pg.encoding import server_encoding
from spillway.walsender.failures import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        if not is_converted(server, client):
            what = f"conversion between {client} and {server} is not supported"
            if client in (server, SQL_ASCII):
                what = f"text in {server} is not supported by this server"
            raise WireError(
                "0A000",
                what,
                hint="Connect with client_encoding=UTF8.",
                fatal=True,
            )
        return encoding

    @property
    def codec(self) -> str:
        """Python's codec of what the client sends."""
        if SQL_ASCII in (self.client, self.server):
            # The database has no other encoding to convert it into.
            return "utf-8"
        if self.client == MULE_INTERNAL:
            return "ascii"
        return _CLIENT_CODECS.get(self.client) or server_encoding(self.client).codec

    @classmethod
    def codec_of(cls, client: str | None, server: str) -> str:
        """Return Python's codec of what a client reads that speaks *client*, which its session may
        have set whatever is served here; UTF-8 for what is not.
        """
        try:
            return cls.of(client, server).codec
        except WireError:
            return "utf-8"

    def conversion(self, plugin: str) -> TextConversion | None:
        """Return what converts a stream's messages of *plugin*; None: nothing has to be."""
        if plugin == "pgoutput":
            if self.server == self.client == UTF8:
                return None
            rules = text_rules(self.server, self.client)
            if rules.as_is and rules.characters is None:
                return None
            return TextConversion(rules.characters, keeps_strays=rules.keeps_strays, fields=True)
        if plugin not in _TEXT_PLUGINS or self.server in (UTF8, SQL_ASCII):
            return None
        return TextConversion(characters_of(self.server), keeps_strays=True, fields=False)

    def plugin_options(self, plugin: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return what tells a plugin with *options* of the client's encoding, where that matters to
        what it writes; *options* are the slot's with the client's over them.
        """
        is_binary = plugin == "pgoutput" and parse_bool(options.get("binary", "off"))
        is_told = SEND_ENCODING in options or not self.server == self.client == UTF8
        # What a slot has of it is another client's.
        if not is_binary or not is_told:
            return {}
        return {SEND_ENCODING: f"{self.server}/{self.client}"}

    def failure(self, character: bytes) -> WireError:
        """Make the error of a character that can't be converted, given in UTF-8, or of a byte that
        is none.
        """
        data = character
        if self.server not in (UTF8, SQL_ASCII):
            data = character[:1]
            with contextlib.suppress(UnicodeError):
                data = character.decode().encode(server_encoding(self.server).codec)
        shown = " ".join(f"0x{byte:02x}" for byte in data)
        if self.server == SQL_ASCII:
            return WireError(
                "22021", f'invalid byte sequence for encoding "{self.client}": {shown}'
            )
        return WireError(
            "22P05",
            f'character with byte sequence {shown} in encoding "{self.server}" has no equivalent '
            f'in encoding "{self.client}"',
        )
