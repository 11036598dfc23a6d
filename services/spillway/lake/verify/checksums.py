"""The same checksums of the same rows, reckoned by PostgreSQL and by Spark.

Each value has one text here that both sides can make without the other's code, by the type that the
lake holds it in::

    string                 PostgreSQL's output           the string
    boolean                t, f                          t, f
    whole numbers          digits                        digits
    decimal                PostgreSQL's output           all digits of its scale
    float, double          the bits, as a number         the bits, as a number
    binary                 hex                           hex
    date                   days since 1970               days since 1970
    timestamp (both)       microseconds since 1970       microseconds since 1970

:mod:`spillway.consumer.row_checksums` says what is made of these texts, and makes it on
PostgreSQL's side. Buckets are compared; only where they differ are rows looked at
(:mod:`spillway.lake.verify.run`). Nothing passes through Python per row.

So the path that rows took to the lake (WAL, decoder, Arrow, Spark, table format) is checked by one
that shares nothing with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spillway.consumer.row_checksums import (
    BUCKET_DIGITS,
    SUMMED_DIGITS,
    Bucket,
    RowTexts,
    TextForm,
    printed,
)
from spillway.lake.shape.net_effect import numbered, quoted
from spillway.pg.byte_session import Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_FLOATS: Final = (FloatType, DoubleType)
_NAN: Final = "NaN"

KEY: Final = "_key"
ROW: Final = "_row"
BUCKET: Final = "_bucket"
TEXTS: Final = "_texts"


def unsupported(schema: StructType) -> list[str]:
    """Return the columns whose type has no text here."""
    return [f.name for f in schema if _spark_text(F.lit(None), f.dataType) is None]


# ---- Spark's side


def lake_texts(rows: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return, per row, the text of its key (the whole row without one), its hash, and each column's
    text.
    """
    rows = _with_float_bits(rows.select(*(quoted(c) for c in columns)))
    types = {f.name: f.dataType for f in rows.schema}
    texts: dict[str, Column] = {}
    for name in columns:
        text = _spark_text(F.col(quoted(name)), types[name])
        assert text is not None  # unsupported() columns are not asked for
        texts[name] = text
    row = _spark_row([texts[c] for c in columns])
    key_text = _spark_row([texts[c] for c in key]) if key else F.sha2(row, 256)
    return rows.select(
        key_text.alias(KEY),
        F.sha2(row, 256).alias(ROW),
        F.array(*texts.values()).alias(TEXTS),
    ).withColumn(BUCKET, F.substring(F.sha2(F.col(KEY), 256), 1, BUCKET_DIGITS))


def lake_buckets(texts: DataFrame) -> dict[str, Bucket]:
    """Return the buckets of :func:`lake_texts`'s rows."""
    digits = F.conv(F.substring(ROW, 1, SUMMED_DIGITS), 16, 10).cast("decimal(38,0)")
    found = texts.groupBy(BUCKET).agg(F.count("*").alias("rows"), F.sum(digits).alias("total"))
    return {r[BUCKET]: Bucket(r["rows"], int(r["total"])) for r in found.collect()}


def _with_float_bits(rows: DataFrame) -> DataFrame:
    """Replace floats by their bits, which Spark's SQL has no function for."""
    floats = [f.name for f in rows.schema if isinstance(f.dataType, _FLOATS)]
    if not floats:
        return rows
    fields = [
        StructField(f.name, StringType()) if f.name in floats else f for f in rows.schema.fields
    ]
    return numbered(rows).mapInArrow(_float_texts, StructType(fields))


def _float_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [_bits(c) if pa.types.is_floating(c.type) else c for c in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _bits(column: pa.Array) -> pa.Array:
    integers = pa.int64() if column.type == pa.float64() else pa.int32()
    bits = column.view(integers).cast(pa.string())
    return pc.if_else(pc.is_nan(column), _NAN, bits)


def _spark_text(value: Column, type_: DataType) -> Column | None:
    if isinstance(type_, StringType):
        return value
    if isinstance(type_, BooleanType):
        return F.when(value, "t").when(~value, "f")
    if isinstance(type_, (*_WHOLE, *_FLOATS, DecimalType)):
        # Spark writes decimals plainly in ANSI mode, which is its default and this package's
        # sessions'.
        return value.cast("string")
    if isinstance(type_, BinaryType):
        return F.lower(F.hex(value))
    if isinstance(type_, DateType):
        return F.unix_date(value).cast("string")
    if isinstance(type_, TimestampType):
        return F.unix_micros(value).cast("string")
    if isinstance(type_, TimestampNTZType):
        # Sessions are in UTC: the same digits.
        return F.unix_micros(value.cast("timestamp")).cast("string")
    return None


def _spark_row(texts: Sequence[Column]) -> Column:
    parts = (F.when(t.isNull(), "-").otherwise(F.concat(F.length(t), F.lit(":"), t)) for t in texts)
    return F.concat(F.lit(""), *parts)


# ---- PostgreSQL's side


class SourceTexts(RowTexts):
    """A table's rows at the source, as :func:`lake_texts` has them.

    Args:
        schema: as the source has its name, as of *table*.
        table: its name.
        columns: what the source calls each column, by the name that it has beside the lake's.
        types: the lake's types of *columns*.
        key: among *columns*.
        is_partitioned: the table's rows are its partitions'.
        form: what PostgreSQL's texts are.
    """

    def __init__(
        self,
        schema: str,
        table: str,
        columns: Mapping[str, str],
        types: Sequence[DataType],
        key: Sequence[str],
        *,
        is_partitioned: bool = False,
        form: TextForm = TextForm.CHARACTERS,
    ) -> None:
        super().__init__(
            sql.SQL("{}" if is_partitioned else "ONLY {}").format(Name(schema, table)),
            {c: _postgres_text(at, t) for (c, at), t in zip(columns.items(), types, strict=True)},
            key,
            form,
        )


def _postgres_text(name: str, type_: DataType) -> sql.Composable:
    value = Name(name)
    if isinstance(type_, DoubleType):
        return _float_sql(value, "float8send", 64, "int8")
    if isinstance(type_, FloatType):
        return _float_sql(value, "float4send", 32, "int4")
    if isinstance(type_, BinaryType):
        return sql.SQL("encode({}, 'hex')").format(value)
    if isinstance(type_, DateType):
        return _finite(value, sql.SQL("({} - date '1970-01-01')::text"))
    if isinstance(type_, TimestampType | TimestampNTZType):
        return _finite(value, sql.SQL("(extract(epoch FROM {}) * 1000000)::int8::text"))
    return printed(value)


def _finite(value: sql.Identifier, number: sql.SQL) -> sql.Composable:
    # The lake's types have no infinity, and whatever a row has in its place is not equal to this.
    return sql.SQL("CASE WHEN isfinite({0}) THEN {1} ELSE {0}::text END").format(
        value, number.format(value)
    )


def _float_sql(value: sql.Identifier, send: str, bits: int, integer: str) -> sql.Composable:
    return sql.SQL(
        "CASE WHEN {0} = 'NaN' THEN 'NaN' ELSE ('x' || encode({1}({0}), "
        "'hex'))::bit({2})::{3}::text END"
    ).format(value, sql.SQL(send), sql.Literal(bits), sql.SQL(integer))
