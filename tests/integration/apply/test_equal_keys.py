"""Values that are equal and are written otherwise (1.0 and 1.00) as keys and in whole rows, by what
PostgreSQL's own subscription makes of the same: rows that are found by an equal value, keys that
become an equal one, and rows with an equal key that come and go.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import pytest

from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.side_by_side import SideBySide

_TYPES: Final = """
CREATE EXTENSION citext;
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE pair AS (n numeric, t text);
CREATE DOMAIN folded AS text COLLATE ci;
CREATE DOMAIN amount AS numeric;
"""
#: By name: type, a value, one that is equal, and one that is not.
_VALUES: Final = {
    "numeric": ("numeric", "1.0", "1.00", "NaN"),
    "scaled": ("numeric(8, 2)", "1.5", "1.50", "2"),
    "double": ("float8", "0", "-0", "NaN"),
    "single": ("float4", "-0", "0", "Infinity"),
    "citext": ("citext", "abc", "aBC", "b"),
    "collated": ("text COLLATE ci", "abc", "aBC", "b"),
    "folded": ("folded", "abc", "aBC", "b"),
    "folded_not": ('folded COLLATE "C"', "abc", "aBC", "b"),
    "amount": ("amount", "1.0", "1.00", "-1"),
    "jsonb": ("jsonb", '{"n": 1.0}', '{"n": 1.00}', '{"n": null}'),
    "interval": ("interval", "1 day", "24:00:00", "1 month"),
    "timetz": ("timetz", "12:00+00", "13:00+01", "00:00+00"),
    "numerics": ("numeric[]", "{1.0,NULL}", "{1.00,NULL}", "{1.0}"),
    "citexts": ("citext[]", "{a,B}", "{A,b}", "{a}"),
    "folds": ("text[] COLLATE ci", "{a,B}", "{A,b}", "{a}"),
    "pair": ("pair", "(1.0,x)", "(1.00,x)", "(1.0,)"),
    "pairs": ("pair[]", '{"(1.0,x)"}', '{"(1.00,x)"}', "{}"),
    "bpchar": ("bpchar", "a", "a  ", "b"),
    "padded": ("char(4)", "a", "a  ", "b"),
    "range": ("numrange", "[1.0,2)", "[1.00,2.0)", "empty"),
}
#: … of which a and b are not equal all the same: by the column's collation, by the zone.
_UNEQUAL: Final = ("folded_not", "timetz")
#: How its rows are found: statements for a table and its column k.
_FOUND: Final = {
    "by_key": "ALTER TABLE {0} ADD PRIMARY KEY (k)",
    "by_index": "ALTER TABLE {0} ALTER k SET NOT NULL; CREATE UNIQUE INDEX {0}_i ON {0} (k);"
    " ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_i",
    "whole": "ALTER TABLE {0} REPLICA IDENTITY FULL",
    "indexed": "ALTER TABLE {0} REPLICA IDENTITY FULL; CREATE INDEX ON {0} (k)",
}
#: of a table, what becomes of its keys: a value, an equal one, another one
_WORK: Final = (
    # The targets' row has the equal one.
    "UPDATE {0} SET v = 'found' WHERE v = 'first'",
    "UPDATE {0} SET k = $b$ WHERE v = 'found'",
    "UPDATE {0} SET k = $a$ WHERE v = 'found'",
    "DELETE FROM {0} WHERE v = 'found'",
    "INSERT INTO {0} VALUES ($b$, 'came')",
    "UPDATE {0} SET v = 'changed' WHERE v = 'came'",
    "DELETE FROM {0}",
    "INSERT INTO {0} VALUES ($a$, 'one'), ($c$, 'two')",
    "UPDATE {0} SET k = $b$, v = 'three' WHERE v = 'one'",
    "DELETE FROM {0} WHERE v = 'three'",
    "UPDATE {0} SET k = $b$ WHERE v = 'two'",
    "INSERT INTO {0} VALUES ($c$, NULL)",
    "UPDATE {0} SET k = $a$ WHERE v = 'two'",
    "UPDATE {0} SET v = 'last' WHERE v IS NULL",
)


@pytest.fixture(scope="module")
def equal(sides: SideBySide) -> Iterator[SideBySide]:
    sides.everywhere(_TYPES)
    yield sides
    for name in list(sides.names):
        sides.unsubscribe(name)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _filled(statement: str, name: str, table: str) -> str:
    text = statement.format(table)
    for place, value in zip(("$a$", "$b$", "$c$"), _VALUES[name][1:], strict=True):
        text = text.replace(place, _literal(value))
    return text


#: … and of the first tier: what was wrong, and one more of each.
_FEW: Final = [
    ("by_key", "folded_not"),
    ("by_key", "numeric"),
    ("whole", "pair"),
    ("whole", "citext"),
]


@pytest.mark.parametrize("together", [False, deep(True)], ids=["many", "one"])
@pytest.mark.parametrize("found", ["few", *map(deep, _FOUND)])
def test_rows_are_found_by_what_their_types_take_for_equal(
    equal: SideBySide, found: str, together: bool
) -> None:
    """Each statement is a transaction, or all of a table are one. A key whose columns have another
    collation than their domain was an error; a composite value with a NULL in it was not found.
    """
    made = _FEW if found == "few" else [(found, name) for name in _VALUES]
    tables = {f"{how}_{name}": (how, name) for how, name in made}

    def of_each(statement: str) -> str:
        return ";".join(_filled(statement, name, table) for table, (_, name) in tables.items())

    equal.everywhere(
        ";".join(
            f"CREATE TABLE {table} (k {_VALUES[name][0]}, v text);" + _FOUND[how].format(table)
            for table, (how, name) in tables.items()
        )
    )
    equal.source.execute(of_each("INSERT INTO {0} VALUES ($a$, 'first')"))
    equal.both(of_each("INSERT INTO {0} VALUES ($b$, 'first')"))
    equal.source.execute(f"CREATE PUBLICATION {found} FOR TABLE marker, {', '.join(tables)}")
    with equal.subscribed(found, found):
        with equal.source.connect() as session:
            for table, (_, name) in tables.items():
                with session.transaction() if together else nullcontext():
                    for statement in _WORK:
                        session.execute(_filled(statement, name, table).encode())
        equal.caught_up()
        for table, (how, name) in tables.items():
            rows = equal.rows(f"SELECT * FROM {table}")
            if how in ("whole", "indexed") and name in _UNEQUAL:
                # What the targets had at first is another row.
                rows = [row for row in rows if not row.endswith(",first)")]
            theirs = equal.source.query(f"SELECT r::text FROM {table} r")
            assert rows == sorted(row for (row,) in theirs), table
    equal.everywhere(f"DROP TABLE {', '.join(tables)}")
    equal.source.execute(f"DROP PUBLICATION {found}")
