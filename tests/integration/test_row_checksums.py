"""What PostgreSQL reckons of texts without an encoding is what a lake has of them."""

from __future__ import annotations

import hashlib
import random
from contextlib import closing
from typing import TYPE_CHECKING

from psycopg import sql

from harness.sql_ascii import in_sql_ascii, write_bytes
from spillway.consumer.row_checksums import RowTexts, form_beside_escaped
from spillway.consumer.snapshots import connect_sql
from spillway.pg.byte_session import Name

if TYPE_CHECKING:
    from harness.cluster import Database

#: Bytes that are near each other in UTF-8: beginnings, continuations, too long forms, surrogates.
NEAR = (
    *(b"\xc3\xbc", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"a", b"\\", b"'", b"\n", b"\x7f"),
    *(b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xf5", b"\xff"),
)


def test_bytes_that_are_no_characters(pg: Database) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)

    def some() -> bytes:
        whole = b"".join(rng.choices(NEAR, k=rng.randrange(6)))
        cut = bytearray(whole[: rng.randrange(len(whole) + 1)])
        cut += bytes(rng.randrange(1, 256) for _ in range(rng.randrange(3)))
        return bytes(cut)

    values = [*NEAR, *(some() for _ in range(300))]
    with in_sql_ascii(pg, b'CREATE TABLE "t\xfc" (id int PRIMARY KEY, "v\xfc" text)') as bare:
        rows = b",".join(
            b"(%d, convert_from('\\x%s', 'SQL_ASCII'))" % (n, value.hex().encode())
            for n, value in enumerate(values)
        )
        write_bytes(bare, b'INSERT INTO "t\xfc" VALUES ' + rows)
        with closing(connect_sql(bare.dsn)) as connection:
            texts = RowTexts(
                Name("t\udcfc"),
                {"id": sql.SQL("id::text"), "v": Name("v\udcfc")},
                ["v"],
                form_beside_escaped(connection),
            )
            found = {
                texts[0]: (key, row, texts[1]) for key, row, texts in texts.all_rows(connection)
            }
            counted = sum(bucket.rows for bucket in texts.buckets(connection).values())
    assert counted == len(values)
    for n, value in enumerate(values):
        shown = value.decode(errors="backslashreplace")
        key = f"{len(shown)}:{shown}"
        row = f"{len(str(n))}:{n}{key}"
        assert found[str(n)] == (key, hashlib.sha256(row.encode()).hexdigest(), shown), value
