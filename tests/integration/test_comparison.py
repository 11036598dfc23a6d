"""The demo's comparison must see every kind of difference, or its green light means nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spillway.demo.comparison import compare_table, same_value

if TYPE_CHECKING:
    from harness.cluster import Database
    from spillway.demo.comparison import TableComparison

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "v": "one", "n": Decimal("1.50"), "at": WHEN, "j": '{"a": 1}', "_commit_lsn": 7},
    {"id": 2, "v": None, "n": None, "at": None, "j": None, "_commit_lsn": 8},
]


def _compare(pg: Database, rows: list[dict[str, Any]]) -> TableComparison:
    pg.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, at timestamptz, j jsonb);"
        "INSERT INTO t VALUES (1, 'one', 1.5, '2026-01-02 04:04:05.678+01', '{\"a\":1}');"
        "INSERT INTO t VALUES (2);"
    )
    with pg.connect(autocommit=False) as source:
        return compare_table(source, "public", "t", ["id"], pa.Table.from_pylist(rows))


def test_equal(pg18: Database) -> None:
    outcome = _compare(pg18, ROWS)
    assert outcome.equal, outcome.examples
    assert (outcome.source_rows, outcome.lake_rows, outcome.values) == (2, 2, 10)


@pytest.mark.parametrize(
    ("rows", "field", "example"),
    [
        (ROWS[:1], "only_source", "('2',) is in the source only"),
        ([*ROWS, {**ROWS[0], "id": 3}], "only_lake", "('3',) is in the lake only"),
        ([*ROWS, ROWS[1]], "duplicates", "('2',) is in the lake twice"),
        ([{**ROWS[0], "v": "ONE"}, ROWS[1]], "different", "('1',).v: source 'one', lake 'ONE'"),
        ([ROWS[0], {**ROWS[1], "v": ""}], "different", "('2',).v: source None, lake ''"),
    ],
    ids=["missing", "extra", "twice", "value", "null"],
)
def test_differences(pg18: Database, rows: list[dict[str, Any]], field: str, example: str) -> None:
    outcome = _compare(pg18, rows)
    assert not outcome.equal
    assert getattr(outcome, field) == 1
    assert outcome.examples == [example]


def test_a_missing_column_is_a_difference(pg18: Database) -> None:
    outcome = _compare(pg18, [{k: v for k, v in row.items() if k != "j"} for row in ROWS])
    assert not outcome.equal


def test_text_of_the_lake_is_compared_with_postgresqls_text() -> None:
    assert same_value(Decimal("1.50"), "1.50", "1.50")
    assert not same_value(Decimal("1.50"), "1.50", "1.5")
    assert same_value(Decimal("1.50"), "1.50", Decimal("1.5000"))
    assert not same_value(WHEN, "…", datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC))
