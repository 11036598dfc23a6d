"""docs/how-to/query-with-trino-snowflake-databricks.md, without the engines: its statements by a
parser of their dialects, its catalogs' properties by those of Trino's classes, its names by what a
lake writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import sqlglot
from sqlglot import exp

from harness import trino_properties
from spillway.lake.catalogs.contract import place_of
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import CHANGE_COLUMNS, OLD_KEY

PAGE: Final = (
    Path(__file__).parents[3] / "docs" / "how-to" / "query-with-trino-snowflake-databricks.md"
)
_TEXT: Final = PAGE.read_text(encoding="utf-8")
_SQL: Final = re.findall(r"```sql (\w+)\n(.*?)```", _TEXT, re.DOTALL)
#: What the parser passes on unread, by how it begins; it must be no more than this.
_UNREAD: Final = {
    "CALL lake.system.register_table(",
    "CREATE CATALOG INTEGRATION",
    "ALTER ICEBERG TABLE orders REFRESH",
}
_COLUMNS: Final = {"id", "status", "total", "name"}


def _statements(dialect: str) -> list[exp.Expr]:
    return [
        statement
        for its, text in _SQL
        if its == dialect
        for statement in sqlglot.parse(text, read=dialect)
        if statement is not None
    ]


@pytest.mark.parametrize("dialect", ["trino", "snowflake", "databricks"])
def test_statements_are_of_their_dialects(dialect: str) -> None:
    statements = _statements(dialect)
    assert len(statements) > 3
    for statement in statements:
        if isinstance(statement, exp.Command):
            text = statement.sql(dialect)
            assert any(text.startswith(known) for known in _UNREAD), text
            continue
        for column in statement.find_all(exp.Column):
            # Whatever is neither a column of the source's nor one of history's is misspelt.
            known = {*_COLUMNS, *CHANGE_COLUMNS.names, OLD_KEY, "snapshot_id", "summary"}
            assert (column.table or column.name) in known, column


def test_a_statement_that_is_none_is_seen() -> None:
    with pytest.raises(sqlglot.errors.ParseError):
        sqlglot.parse("SELECT count(* FROM lake.shop.orders", read="trino")


def test_tables_are_where_a_lake_has_them() -> None:
    said = re.findall(r"\b(?:s3://company/lake/)?(current|history)/([\w.]+?)(?=[/'`])", _TEXT)
    assert set(said) == {(CURRENT, "shop.orders"), (HISTORY, "shop.orders")}
    names = {
        f"{table.db}.{table.name}"
        for statement in _statements("trino")
        for table in statement.find_all(exp.Table)
        if table.catalog == "lake"
    }
    registered = {".".join(place_of(kind, "shop.orders", "")) for kind in (CURRENT, HISTORY)}
    assert names == registered | {"current_shop.orders", "current_shop.orders$snapshots"}


def test_properties_are_trinos() -> None:
    known = trino_properties.properties()
    blocks = re.findall(r"```properties\n(.*?)```", _TEXT, re.DOTALL)
    used = {line.partition("=")[0] for block in blocks for line in block.split()}
    used |= set(re.findall(r"`((?:delta|iceberg|hive)\.[\w.-]+?)(?:=\w+)?`", _TEXT))
    assert len(used) > 8
    assert used - known == {"connector.name"}
