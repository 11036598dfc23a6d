"""Keywords of PostgreSQL's grammar that can't stand as an identifier without quotes.

quote_identifier quotes every keyword that is not *unreserved*; the categories are those of
pg_get_keywords(), taken from servers of each major. A word, once reserved in some way, has stayed
so from 14 to 18; the table says which came with which version.

Source: src/include/parser/kwlist.h of the release branches
"""

from __future__ import annotations

from functools import cache
from typing import Final

from spillway.pg.versions import Since

#: Reserved (R), reserved but for function or type names (T), or for column names only (C), in 14.
_SINCE_14: Final = """
all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
boolean both case cast char character check coalesce collate collation column concurrently
constraint create cross current_catalog current_date current_role current_schema current_time
current_timestamp current_user dec decimal default deferrable desc distinct do else end except
exists extract false fetch float for foreign freeze from full grant greatest group grouping
having ilike in initially inner inout int integer intersect interval into is isnull join lateral
leading least left like limit localtime localtimestamp national natural nchar none normalize not
notnull null nullif numeric offset on only or order out outer overlaps overlay placing position
precision primary real references returning right row select session_user setof similar smallint
some substring symmetric table tablesample then time timestamp to trailing treat trim true union
unique user using values varchar variadic verbose when where window with xmlattributes xmlconcat
xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
"""

#: server_version_num → what that major added
_ADDED: Final = {
    Since.SQL_JSON_CONSTRUCTORS: "json_array json_arrayagg json_object json_objectagg system_user",
    Since.SQL_JSON_QUERIES: (
        "json json_exists json_query json_scalar json_serialize json_table json_value merge_action"
    ),
}


@cache
def quoted_keywords(server_version_num: int) -> frozenset[str]:
    """Return the keywords that a server of that version puts in double quotes as identifiers."""
    words = set(_SINCE_14.split())
    for since, added in _ADDED.items():
        if server_version_num >= since:
            words.update(added.split())
    return frozenset(words)
