"""Which type the columns of a source's table have, and which equality tells their values apart."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spillway.apply.changes import SourceRelation
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.verify.pairs import Connection

#: The name of an operator; ``OPERATOR("My schema".=)``
_OPERATOR: Final = re.compile(r"\.([^.]+)\)$")
_OF_THE_SYSTEM: Final = "OPERATOR(pg_catalog."
_EQUAL: Final = "OPERATOR(pg_catalog.=)"
#: Of columns of a table: their types, and the equality of such a name between two of its values,
#: of what the type is a domain over.
_TYPES: Final = """
WITH RECURSIVE named AS (
    SELECT * FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))
        n(name, operator)
), base AS (
    SELECT attname::text AS name, atttypid, atttypid AS oid
      FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT b.name, b.atttypid, t.typbasetype
      FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
)
SELECT b.name, pg_catalog.format_type(b.atttypid, -1),
       pg_catalog.max(CASE WHEN o.oid IS NOT NULL THEN
           pg_catalog.format('OPERATOR(%%I.%%s)', s.nspname, o.oprname) END)
  FROM base b LEFT JOIN named n USING (name)
  LEFT JOIN pg_catalog.pg_operator o
    ON o.oprname OPERATOR(pg_catalog.=) n.operator AND o.oprleft = b.oid AND o.oprright = b.oid
  LEFT JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace
 GROUP BY b.name, b.atttypid
"""


def column_types(
    source: Connection, relation: SourceRelation, matched: MatchedTable
) -> dict[str, tuple[str, str]]:
    """Return type and equality of the columns of the source's table, as SQL has them there.

    The target's key says which equality a column has. Of the system's it is that; of an extension's
    type, such as citext, the source's operator of that name, wherever it lies there. A type that
    has none is another than the target's: the system's equality tells its values apart.
    """
    equalities = {relation.columns[key.position].name: key.equals for key in matched.key}
    names = {
        name: found[1]
        for name, equals in equalities.items()
        if not equals.startswith(_OF_THE_SYSTEM) and (found := _OPERATOR.search(equals))
    }
    asked = [list(names), list(names.values()), relation.relation_id]
    return {
        name: (
            type_name,
            operator or (_EQUAL if name in names else equalities.get(name, _EQUAL)),
        )
        for name, type_name, operator in source.execute(_TYPES, asked).fetchall()
    }
