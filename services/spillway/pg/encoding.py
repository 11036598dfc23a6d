"""Server encodings: PostgreSQL's names and Python's codecs.

Source: src/common/encnames.c
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spillway.errors import SourceError
from spillway.pg import euc_codecs


class ServerEncoding(NamedTuple):
    """How text of a database becomes ``str``."""

    codec: str
    #: the codec's error handler: SQL_ASCII is any bytes, which must survive the way out again
    errors: str


#: Some are not Python's own: importing that module makes them known.
assert euc_codecs

_CODECS: Final = {
    "UTF8": "utf-8", "EUC_CN": "gb2312", "EUC_JP": "spillway_euc_jp",
    "EUC_JIS_2004": "spillway_euc_jis_2004", "EUC_KR": "spillway_euc_kr",
    "EUC_TW": "spillway_euc_tw", "LATIN1": "iso8859-1",
    "LATIN2": "iso8859-2", "LATIN3": "iso8859-3", "LATIN4": "iso8859-4", "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10", "LATIN7": "iso8859-13", "LATIN8": "iso8859-14", "LATIN9": "iso8859-15",
    "LATIN10": "iso8859-16", "ISO_8859_5": "iso8859-5", "ISO_8859_6": "iso8859-6",
    "ISO_8859_7": "iso8859-7", "ISO_8859_8": "iso8859-8", "KOI8R": "koi8-r", "KOI8U": "koi8-u",
    "WIN866": "cp866", "WIN874": "cp874", "WIN1250": "cp1250", "WIN1251": "cp1251",
    "WIN1252": "cp1252", "WIN1253": "cp1253", "WIN1254": "cp1254", "WIN1255": "cp1255",
    "WIN1256": "cp1256", "WIN1257": "cp1257", "WIN1258": "cp1258",
}  # fmt: skip

#: Names of those that text of a database can be read in, but SQL_ASCII.
SERVER_ENCODINGS: Final = frozenset(_CODECS)

_SQL_ASCII: Final = ServerEncoding("utf-8", "surrogateescape")

#: enum pg_enc: pg_database.encoding is a place in it
_NAMES: Final = (
    "SQL_ASCII", "EUC_JP", "EUC_CN", "EUC_KR", "EUC_TW", "EUC_JIS_2004", "UTF8", "MULE_INTERNAL",
    "LATIN1", "LATIN2", "LATIN3", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9",
    "LATIN10",
    "WIN1256", "WIN1258", "WIN866", "WIN874", "KOI8R", "WIN1251", "WIN1252", "ISO_8859_5",
    "ISO_8859_6",
    "ISO_8859_7", "ISO_8859_8", "WIN1250", "WIN1253", "WIN1254", "WIN1255", "WIN1257", "KOI8U",
)  # fmt: skip


def server_encoding_name(number: int) -> str:
    """Return the name of the encoding that pg_database gives the number of
    (pg_encoding_to_char).
    """
    return _NAMES[number] if 0 <= number < len(_NAMES) else f"number {number}"


def server_encoding_number(encoding: ServerEncoding) -> int:
    """Return the number that pg_database and pg_collation have for what :func:`server_encoding`
    gave.
    """
    if encoding == _SQL_ASCII:
        return 0
    return _NAMES.index(next(name for name, codec in _CODECS.items() if codec == encoding.codec))


def readable(text: str) -> str:
    r"""Return *text* with each byte that is no character as ``\xff``: what JSON, protobuf and a
    page can hold.
    """
    try:
        data = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        # Not one of ours: half of a pair, which somebody wrote into JSON.
        data = text.encode(errors="surrogatepass")
    return data.decode(errors="backslashreplace")


def server_encoding(name: str) -> ServerEncoding:
    """Return how to decode text of a database whose encoding is *name*, ``UTF8`` for one.

    Raises:
        SourceError: there is no codec for it: MULE_INTERNAL.
    """
    if name == "SQL_ASCII":
        return _SQL_ASCII
    codec = _CODECS.get(name)
    if codec is None:
        raise SourceError(
            f"the database has the encoding {name}, which Spillway can't read",
            hint="Use a database in UTF8 or another encoding that Python knows.",
            encoding=name,
        )
    return ServerEncoding(codec, "strict")
