"""xml: stored as it came in, printed without its encoding.

Output is in the client's encoding, whatever a declaration says, so the server prints the
declaration anew without one, and leaves it out altogether when it says nothing beyond the default.

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


def xml_text(data: bytes) -> str:
    """Return what xml_out prints."""
    text = data.decode(errors="surrogateescape")
    declaration = _DECLARATION.match(text)
    if declaration is None:
        return text.removeprefix("\n")
    rest = text[declaration.end() :]
    version, standalone = declaration["version"], declaration["standalone"]
    if version == "1.0" and standalone is None:
        # No declaration is left: nor is the line end after it.
        return rest.removeprefix("\n")
    suffix = "" if standalone is None else f' standalone="{standalone}"'
    return f'<?xml version="{version}"{suffix}?>{rest}'
