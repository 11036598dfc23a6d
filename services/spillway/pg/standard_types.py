"""Built-in types that PostgreSQL shows under the name that the SQL standard gives them.

Source: format_type_extended (src/backend/utils/adt/format_type.c)
"""

from __future__ import annotations

from typing import Final

#: Types that have a name in the SQL standard, by oid.
SQL_NAMES: Final = {
    16: "boolean",
    20: "bigint",
    21: "smallint",
    23: "integer",
    114: "json",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1082: "date",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1186: "interval",
    1266: "time with time zone",
    1560: "bit",
    1562: "bit varying",
    1700: "numeric",
}
