"""Text of databases in other encodings becomes the UTF-8 that the server makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import heap_rows
from harness.cluster import Database
from spillway._kernels.values.datum import deform_change
from spillway._kernels.values.send.output import datum_send
from spillway.decoding import change_format
from spillway.errors import SourceError
from spillway.pg.encoding import ServerEncoding, server_encoding, server_encoding_number
from spillway.pg.text_settings import TextSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Cluster

HIGH = range(0xA1, 0xFF)
CONVERT = """
CREATE FUNCTION utf8(data bytea, encoding name) RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN RETURN convert(data, encoding, 'UTF8'); EXCEPTION WHEN others THEN RETURN NULL; END $$
"""


def characters(encoding: str) -> list[bytes]:
    """Every character beyond ASCII that the encoding could have."""
    if not encoding.startswith("EUC"):
        return [bytes([i]) for i in range(0x80, 0x100)]
    found = [bytes((row, cell)) for row in (0x8E, *HIGH) for cell in HIGH]
    if "J" in encoding:
        found += [bytes((0x8F, row, cell)) for row in HIGH for cell in HIGH]
    if encoding == "EUC_TW":
        planes = (0xA1, 0xA2, 0xA3)
        found += [bytes((0x8E, one, row, cell)) for one in planes for row in HIGH for cell in HIGH]
    return found


def encodings() -> list[tuple[str, ServerEncoding]]:
    names = [
        "EUC_JP",
        "EUC_CN",
        "EUC_KR",
        "EUC_TW",
        "EUC_JIS_2004",
        "MULE_INTERNAL",
        "KOI8R",
        "KOI8U",
    ]
    names += [f"LATIN{i}" for i in range(1, 11)] + [f"ISO_8859_{i}" for i in range(5, 9)]
    names += [f"WIN{i}" for i in (866, 874, *range(1250, 1259))]
    found = []
    for name in names:
        try:
            found.append((name, server_encoding(name)))
        except SourceError:
            assert name == "MULE_INTERNAL"
    return found


def test_every_character_is_converted_as_the_server_does(pg18: Database) -> None:
    with heap_rows.session(pg18) as session:
        session.execute(CONVERT)
        for name, encoding in [*encodings(), ("SQL_ASCII", server_encoding("SQL_ASCII"))]:
            number = session.value("SELECT pg_char_to_encoding(%s)", [name])
            assert server_encoding_number(encoding) == number
        for name, encoding in encodings():
            every = characters(name)
            rows = session.query("SELECT b, utf8(b, %s) FROM unnest(%s::bytea[]) b", [name, every])
            converted = {data: text for data, text in rows if text is not None}
            assert converted
            for data, text in converted.items():
                assert data.decode(encoding.codec).encode() == text, f"{name} {data.hex()}"
            # All in one string, and back.
            data, text = b"a".join(converted), b"a".join(converted.values()).decode()
            assert data.decode(encoding.codec) == text
            assert text.encode(encoding.codec).decode(encoding.codec) == text
            # What is no character passes unchanged.
            assert (b"x\xffa" + data).decode(encoding.codec, "surrogateescape").endswith(text)


@pytest.mark.parametrize(
    ("encoding", "word"),
    [("LATIN1", "Grüße"), ("EUC_JP", "日本語①\uff5e"), ("SQL_ASCII", "ünï☃")],
)
def test_send_format_is_in_utf8(
    session_cluster: Callable[[int], Cluster], encoding: str, word: str
) -> None:
    cluster = session_cluster(18)
    name = f"send_{encoding.lower()}"
    cluster.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    database = Database(cluster, name)
    types = {
        "text": f"{word}''s", "name": word, "m": word, "jsonb": f'{{"{word}": [1]}}',
        "json": f'"{word}"',
        "xml": f"<a>{word}</a>", "tsvector": f"{word}:1", "tsquery": f"{word}:* & a",
        "text[]": f'{{"{word} x",y}}',
        "hstore": f"{word}=>{word}, b=>NULL", "jsonpath": f'$."{word}"', "varchar(20)": word,
        "bpchar": word,
        "citext": word, "r": f"[{word},{word}z)", "p": f"({word},{word})",
    }  # fmt: skip
    try:
        with heap_rows.session(database) as session:
            session.execute("SET client_encoding = 'UTF8'")
            session.execute(
                "CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE TYPE r AS RANGE (subtype "
                f"= text);CREATE TYPE m AS ENUM ('{word}'); CREATE TYPE p AS (a text, b m);"
            )
            columns = [f"c{i}" for i in range(len(types))]
            definitions = ", ".join(f"{c} {t}" for c, t in zip(columns, types, strict=True))
            values = ", ".join(f"'{v}'" for v in types.values())
            session.execute(f"CREATE TABLE t ({definitions}); INSERT INTO t VALUES ({values})")
            calls = session.query(
                "SELECT typsend::regproc || '(' || attname || ')' FROM pg_attribute JOIN pg_type t "
                "ON t.oid = atttypid WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
            )
            (expected,) = session.query(f"SELECT {', '.join(c for (c,) in calls)} FROM t")
            descriptor = heap_rows.relation_descriptor(session, "t")
            (section,) = heap_rows.sections(session, "t")
        new, _ = deform_change(
            descriptor, heap_rows.build_change(change_format.INSERT, new=section)
        )
        settings = TextSettings(180000, encoding=server_encoding(encoding).codec)
        assert new is not None
        for column, value, sent, type_name in zip(
            descriptor.columns, new, expected, types, strict=True
        ):
            assert isinstance(value, bytes)
            assert datum_send(column, descriptor.types, settings, value) == sent, type_name
    finally:
        cluster.drop_database(name)
