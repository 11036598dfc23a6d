"""What is copied of one table: its ranges, and a statement each for the source and the target.

The data goes from one to the other as it is, so both must read it alike. BINARY is taken where that
is certain: each column has the same type on both sides, one whose binary form is a value by itself
and the same in every major. Left out are types that are sent as an OID of their own database
(``regclass`` and its like: their text is a name) or whose form could change. Everything else is
text, which the target's types read as they read what a stream sends.

Both sessions speak the target's encoding, so that one of the two servers converts, and only if they
differ, as with a subscription of PostgreSQL. Into SQL_ASCII text goes in UTF-8. Settings that text
depends on are the same on both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

if TYPE_CHECKING:
    from spillway.apply.sync.published import PublishedTable
    from spillway.apply.sync.states import CopyRange
    from spillway.apply.tables.matched import MatchedTable

#: Types of pg_catalog (and their arrays below) whose send format is the value: pg_type.dat.
_BINARY: Final = frozenset(
    {
        16, 17, 18, 19, 20, 21, 23, 25, 26,  # bool bytea char name int8 int2 int4 text oid
        114, 3802,  # json jsonb
        600, 601, 602, 603, 604, 628, 718,  # point lseg path box polygon line circle
        700, 701, 1700,  # float4 float8 numeric
        650, 829, 869, 774,  # cidr macaddr inet macaddr8
        1042, 1043,  # bpchar varchar
        1082, 1083, 1114, 1184, 1186, 1266,  # date time timestamp timestamptz interval timetz
        1560, 1562,  # bit varbit
        2950, 3220,  # uuid pg_lsn
        3904, 3906, 3908, 3910, 3912, 3926,  # ranges: int4 num ts tstz date int8
        # arrays of these
        1000, 1001, 1002, 1003, 1016, 1005, 1007, 1009, 1028, 199, 3807, 1017, 1018, 1019, 1020,
        1027, 629, 719, 1021, 1022, 1231, 651, 1040, 1041, 775, 1014, 1015, 1182, 1183, 1115,
        1185, 1187, 1270, 1561, 1563, 2951, 3221, 3905, 3907, 3909, 3911, 3913, 3927,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One table's copy."""

    published: PublishedTable
    target: MatchedTable
    ranges: tuple[CopyRange, ...]
    is_binary: bool

    def from_source(self, part: CopyRange) -> sql.Composed:
        """Return the statement that reads a range on the source."""
        where: list[sql.Composable] = []
        if part.first:
            where.append(sql.SQL("ctid >= {}::pg_catalog.tid").format(f"({part.first},0)"))
        if part.end is not None:
            where.append(sql.SQL("ctid < {}::pg_catalog.tid").format(f"({part.end},0)"))
        if self.published.filters:
            # Expressions as pg_get_expr writes them.
            either = " OR ".join(f"({one})" for one in self.published.filters)
            where.append(sql.SQL(f"({either})"))
        whole = part.first is None
        return sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT{}").format(
            sql.SQL(", ").join(
                sql.Identifier(column.name) for column in self.published.relation.columns
            ),
            # A table that inherits from this one is copied by itself, a partition with its root.
            sql.SQL("" if whole and self.published.kind == "p" else "ONLY "),
            sql.Identifier(part.schema, part.table),
            sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(where)) if where else sql.SQL(""),
            self._format,
        )

    @property
    def into_target(self) -> sql.Composed:
        """The statement that takes any of the ranges on the target."""
        columns: sql.Composable = sql.SQL("")
        if self.target.columns:
            columns = sql.SQL(" ({})").format(
                sql.SQL(", ").join(sql.Identifier(column.name) for column in self.target.columns)
            )
        return sql.SQL("COPY {}{} FROM STDIN{}").format(
            sql.Identifier(self.target.schema, self.target.name), columns, self._format
        )

    @property
    def _format(self) -> sql.SQL:
        return sql.SQL(" (FORMAT binary)" if self.is_binary else "")


def plan(
    published: PublishedTable, target: MatchedTable, range_bytes: int, block_bytes: int
) -> CopyPlan:
    """Plan a table's copy.

    Args:
        published: of the source.
        target: what takes it.
        range_bytes: about how much of a heap one COPY reads; 0: all of the table.
        block_bytes: a block of the source.
    """
    ranges = published.ranges(range_bytes, block_bytes)
    return CopyPlan(published, target, ranges, is_binary(published, target))


def is_binary(published: PublishedTable, target: MatchedTable) -> bool:
    """Say whether the binary form means the same on both sides."""
    return bool(target.columns) and all(
        ours.type_oid == theirs.type_oid and ours.type_oid in _BINARY
        for ours, theirs in zip(target.columns, published.relation.columns, strict=True)
    )
