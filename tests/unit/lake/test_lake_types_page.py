"""docs/reference/lake-types.md says what the plugin plans and what the lake makes of it, row by
row.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor, TypeDescriptor
from spillway.lake.shape.columns import columns_of
from spillway.lake.shape.payload import CHANGE_COLUMNS, lake_schema
from spillway.lake.shape.type_changes import type_token, widest
from spillway.lake.tables.iceberg import types as iceberg_types
from spillway.lake.tables.iceberg.types import iceberg_type
from spillway.plugins.arrow_schema import SchemaOptions, plan_table

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "reference" / "lake-types.md"

#: what the page calls a type → its oid (src/include/catalog/pg_type.dat); those below are made here
OIDS: Final = {
    "boolean": 16, "bytea": 17, '"char"': 18, "name": 19, "bigint": 20, "smallint": 21,
    "integer": 23, "text": 25,
    "oid": 26, "json": 114, "xml": 142, "point": 600, "real": 700, "double precision": 701,
    "money": 790,
    "inet": 869, "integer[]": 1007, "text[]": 1009, "character": 1042, "character varying": 1043,
    "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184, "interval": 1186,
    "timetz": 1266, "bit varying": 1562, "numeric": 1700, "uuid": 2950, "pg_lsn": 3220,
    "tsvector": 3614, "jsonb": 3802, "int4range": 3904,
    "int4multirange": 4451, "an enum": 16500, "a composite type": 16501,
    "a domain over integer": 16502,
}  # fmt: skip
KINDS: Final = {16500: "e", 16501: "c", 16502: "d", 3904: "r", 4451: "m"}


LAKE_TYPES: Final = (
    pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.decimal128(12, 2), pa.string(),
    pa.binary(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us"),
)  # fmt: skip


def _spark_name(type_: pa.DataType) -> str:
    spark = from_arrow_schema(pa.schema([("c", type_)]), prefer_timestamp_ntz=True)
    return str(spark["c"].dataType.simpleString())


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table after *heading*."""
    text = PAGE.read_text().partition(heading)[2]
    lines = text[text.index("\n|") :].lstrip("\n").splitlines()
    table = lines[: next((n for n, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def _planned(written: str, **options: Any) -> pa.Schema:
    """Return the schema of a table with one column of a type that the page writes so."""
    name = written.replace("`", "")
    arguments: tuple[int, ...] = ()
    if found := re.fullmatch(r"([\w ]+)\(([-\d,]+)\)", name):
        name, arguments = found[1], tuple(int(n) for n in found[2].split(","))
    typmod = -1
    if name == "numeric" and arguments:
        typmod = ((arguments[0] << 16) | (arguments[1] & 0x7FF)) + 4
    elif arguments:
        typmod = arguments[0] + 4
    oid = OIDS[name]
    type_ = TypeDescriptor(
        oid, "pg_catalog", name, KINDS.get(oid, "b"), "X", -1, False, "i",
        base_oid=23 if KINDS.get(oid) == "d" else 0,
    )  # fmt: skip
    column = ColumnDescriptor(1, "c", oid, typmod, -1, False, "i")
    table = RelationDescriptor(16384, "public", "t", "r", "p", "d", (column,), types={oid: type_})
    return plan_table(table, SchemaOptions(180000, **options)).schema


@pytest.mark.parametrize("row", _rows("# Types in the lake"), ids=lambda row: row[0])
def test_types(row: list[str]) -> None:
    schema = _planned(row[0])
    assert str(schema.field("c").type) == row[1]
    spark = from_arrow_schema(lake_schema(schema), prefer_timestamp_ntz=True)
    assert spark["c"].dataType.simpleString() == row[2]


def test_every_type_with_an_arrow_form_has_a_row() -> None:
    from spillway.plugins.arrow_schema import _DIRECT, _TEMPORAL

    written = {row[0].replace("`", "") for row in _rows("# Types in the lake")}
    names = {re.sub(r"\(.*", "", name) for name in written}
    assert names == set(OIDS)
    assert {*_DIRECT, *_TEMPORAL, 1700} <= {OIDS[name] for name in names}


@pytest.mark.parametrize("row", _rows("## Values at the edges"), ids=lambda row: row[0])
def test_options_make_them_text(row: list[str]) -> None:
    option = row[2].strip("`").replace("=", "_")
    assert _planned(row[0]).field("c").type != pa.string()
    assert _planned(row[0], **{option: True}).field("c").type == pa.string()


#: a change of type that the page has a row of → whether history's column stays one, and whether
#: current follows
CHANGES: Final = {
    ("smallint", "bigint"): (True, True),
    ("bigint", "smallint"): (True, True),
    ("real", "double precision"): (True, True),
    ("integer", "double precision"): (True, True),
    ("numeric(8,2)", "numeric(12,4)"): (True, True),
    ("integer", "numeric(12,2)"): (True, True),
    ("integer", "numeric(8,2)"): (False, True),
    ("bigint", "numeric(22,2)"): (True, True),
    ("bigint", "numeric(21,2)"): (False, True),
    ("date", "timestamp"): (False, True),
    ("integer", "text"): (False, True),
    ("numeric(8,6)", "numeric"): (False, True),
    ("numeric(8,7)", "numeric"): (False, False),
    ("boolean", "text"): (False, True),
    ("an enum", "text"): (True, True),
    ("uuid", "text"): (True, True),
    ("jsonb", "text"): (True, True),
    ("xml", "text"): (True, True),
    ("bit varying", "text"): (True, True),
    ("character varying(20)", "text"): (True, True),
    ("text", "character varying(20)"): (True, True),
    ("text", "integer"): (False, False),
    ("double precision", "real"): (True, False),
    ("numeric(8,2)", "integer"): (False, False),
    ("text", "character(5)"): (True, False),
    ("json", "jsonb"): (True, False),
    ("inet", "text"): (True, False),
    ("timestamp", "timestamptz"): (False, False),
    ("int4range", "text"): (True, False),
}


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=" to ".join)
def test_changes_of_type(before: str, after: str) -> None:
    (was,), (becomes,) = columns_of(_planned(before)), columns_of(_planned(after))
    one_column, followed = CHANGES[before, after]
    assert (widest(was.type, becomes.type) is not None) is one_column
    assert was.becomes(becomes) is followed


@pytest.mark.parametrize("row", _rows("### In Iceberg"), ids=lambda row: row[0])
def test_types_in_iceberg(row: list[str]) -> None:
    (type_,) = (each for each in LAKE_TYPES if _spark_name(each) == row[0])
    assert str(iceberg_type(type_)) == row[1]


def test_every_lake_type_is_one_of_iceberg() -> None:
    planned = [_planned(row[0]) for row in _rows("# Types in the lake")]
    made = {lake_schema(schema).field("c").type for schema in planned}
    assert made <= set(LAKE_TYPES)
    assert {_spark_name(type_) for type_ in LAKE_TYPES} == {
        row[0] for row in _rows("### In Iceberg")
    }


#: as CHANGES, of history in Iceberg
IN_ICEBERG: Final = {
    ("smallint", "integer"): True,
    ("integer", "bigint"): True,
    ("bigint", "smallint"): True,
    ("real", "double precision"): True,
    ("double precision", "real"): True,
    ("integer", "double precision"): False,
    ("numeric(8,2)", "numeric(12,2)"): True,
    ("numeric(8,2)", "numeric(12,4)"): False,
    ("integer", "numeric(12,2)"): False,
    ("uuid", "text"): True,
    ("date", "timestamp"): False,
}


@pytest.mark.parametrize(("before", "after"), IN_ICEBERG, ids=" to ".join)
def test_changes_of_type_in_iceberg(before: str, after: str) -> None:
    (was,), (becomes,) = columns_of(_planned(before)), columns_of(_planned(after))
    one_column = iceberg_types.widest(was.type, becomes.type) is not None
    assert one_column is IN_ICEBERG[before, after]


def test_names_beside_a_column() -> None:
    assert "`<column>__<type>`, `v__int` for one" in PAGE.read_text()
    assert type_token(pa.int32()) == "int"


def test_the_change_columns() -> None:
    paragraph = next(p for p in PAGE.read_text().split("\n\n") if "are bigint" in p)
    named = set(re.findall(r"`(_\w+)`", paragraph))
    bigint = {f.name for f in CHANGE_COLUMNS if f.type == pa.int64()}
    assert named == {*bigint, "_commit_time"}
