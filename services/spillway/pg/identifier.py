"""How PostgreSQL writes names, in double quotes where its grammar asks for them, and literals; how
it reads lists of names.

Source: quote_identifier, quote_qualified_identifier (src/backend/utils/adt/ruleutils.c);
quote_literal_cstr (src/backend/utils/adt/quote.c)
"""

from __future__ import annotations

import re
from typing import Final

from spillway.pg.keywords import quoted_keywords

_SAFE: Final = re.compile(r"[a-z_][a-z0-9_]*")
#: NAMEDATALEN - 1
_NAME_BYTES_MAX: Final = 63
#: What PostgreSQL's own scanner takes for a blank.
_BLANKS: Final = " \t\n\r\v\f"
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_UNQUOTED: Final = re.compile(rf"[^,{_BLANKS}]+")
#: Letters of ASCII only: what else is upper case depends on the server's locale.
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def quote_identifier(name: str, server_version_num: int) -> str:
    """Return *name* as it has to stand in SQL: in double quotes unless it is plain and no
    keyword.
    """
    if _SAFE.fullmatch(name) and name not in quoted_keywords(server_version_num):
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Return *text* as a string literal, in the escape syntax when it has backslashes."""
    escape = "E" if "\\" in text else ""
    return escape + "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def quote_qualified_identifier(schema: str, name: str, server_version_num: int) -> str:
    """Return ``schema.name``, each part quoted by itself."""
    return ".".join(quote_identifier(part, server_version_num) for part in (schema, name))


def split_identifiers(text: str) -> tuple[str, ...] | None:
    """Split a list of names with commas between as PostgreSQL splits its settings; None when *text*
    is no such list.

    Names without quotes are folded to lower case, blanks around names do not count, and each is cut
    to the 63 bytes that a name can have. A blank text is a list of no names.

    Source: SplitIdentifierString (src/backend/utils/adt/varlena.c)
    """
    names = []
    position, end = _skip_blanks(text, 0), len(text)
    if position == end:
        return ()
    while True:
        match = _QUOTED.match(text, position)
        if match is not None:
            names.append(truncate(match[1].replace('""', '"')))
        else:
            match = (
                _UNQUOTED.match(text, position) if text[position : position + 1] != '"' else None
            )
            if match is None:
                return None
            names.append(truncate(match[0].translate(_FOLD)))
        position = _skip_blanks(text, match.end())
        if position == end:
            return tuple(names)
        if text[position] != ",":
            return None
        position = _skip_blanks(text, position + 1)


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANKS:
        position += 1
    return position


def truncate(name: str) -> str:
    """Cut a name to the bytes that a ``name`` has, as a cast to it does."""
    data = name.encode(errors="surrogateescape")
    return name if len(data) <= _NAME_BYTES_MAX else data[:_NAME_BYTES_MAX].decode(errors="ignore")
