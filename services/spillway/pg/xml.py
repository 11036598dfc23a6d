"""xml: stored as it came in, printed without its encoding, or with the client's.

Output is in the client's encoding, whatever a declaration says, so the server prints the
declaration anew without one, and leaves it out altogether when it says nothing beyond the default.
In the send format the declaration names the client's encoding, unless that is UTF8.

Source: xml_out_internal, parse_xml_decl, print_xml_decl (src/backend/utils/adt/xml.c)
"""

from __future__ import annotations

import re
from typing import Final

_DECLARATION: Final = re.compile(
    r"""<\?xml[ \t\r\n]+version[ \t\r\n]*=[ \t\r\n]*(?P<q>["'])(?P<version>.*?)(?P=q)
    (?:[ \t\r\n]+encoding[ \t\r\n]*=[ \t\r\n]*(?P<e>["']).*?(?P=e))?
    (?:[ \t\r\n]+standalone[ \t\r\n]*=[ \t\r\n]*(?P<s>["'])(?P<standalone>yes|no)(?P=s))?
    [ \t\r\n]*\?>""",
    re.VERBOSE,
)


def xml_text(data: bytes, encoding: str | None = None) -> str:
    """Return what xml_out prints; with the name of an *encoding*, what xml_send does."""
    text = data.decode(errors="surrogateescape")
    declaration = _DECLARATION.match(text)
    version, standalone, rest = "1.0", None, text
    if declaration is not None:
        version, standalone = declaration["version"], declaration["standalone"]
        rest = text[declaration.end() :]
    if version == "1.0" and standalone is None and encoding is None:
        # No declaration is left: nor is the line end after it.
        return rest.removeprefix("\n")
    suffix = "" if encoding is None else f' encoding="{encoding}"'
    suffix += "" if standalone is None else f' standalone="{standalone}"'
    return f'<?xml version="{version}"{suffix}?>{rest}'
