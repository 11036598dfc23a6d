"""pgoutput's options on every version: what they change, and what is refused, with PostgreSQL's own
words.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from harness.type_values import CASES, SETUP

if TYPE_CHECKING:
    from harness.pgoutput import Pair

SEED = 20261121
ROWS = 25
P = {"publication_names": "p"}
ONE = {"proto_version": "1", **P}

NOT_SENT = """
SELECT FROM pg_type t JOIN pg_type e ON e.oid = t.typelem
WHERE t.oid = %s::regtype AND t.typsend = 'array_send'::regproc AND e.typsend = 0
"""

REFUSED = [
    {},
    {"proto_version": "1"},
    P,
    {"proto_version": "0", **P},
    {"proto_version": "2", **P},
    {"proto_version": "3", **P},
    {"proto_version": "4", **P},
    {"proto_version": "5", **P},
    {"proto_version": "4294967295", **P},
    {"proto_version": "4294967296", **P},
    {"proto_version": "18446744073709551616", **P},
    {"proto_version": "-1", **P},
    {"proto_version": " +1", **P},
    {"proto_version": "1 ", **P},
    {"proto_version": "", **P},
    {"proto_version": " ", **P},
    {"proto_version": "one", **P},
    {"proto_version": "0x1", **P},
    {"proto_version": "1", "publication_names": ""},
    {"proto_version": "1", "publication_names": "a b"},
    {"proto_version": "1", "publication_names": "p,"},
    {"proto_version": "x", "publication_names": "p,"},
    {"publication_names": "p,", "proto_version": "x"},
    ONE | {"binary": "1"},
    ONE | {"binary": "TRUE"},
    ONE | {"messages": "yes"},
    ONE | {"messages": "Off"},
    ONE | {"streaming": "off"},
    ONE | {"streaming": "on"},
    ONE | {"streaming": "parallel"},
    ONE | {"streaming": "maybe"},
    {"proto_version": "2", "streaming": "on", **P},
    {"proto_version": "2", "streaming": "Parallel", **P},
    ONE | {"two_phase": "on"},
    ONE | {"two_phase": "off"},
    ONE | {"origin": "any"},
    ONE | {"origin": "NONE"},
    ONE | {"origin": "other"},
    ONE | {"include-xids": "on"},
]


def test_refused_in_the_same_words(pair: Pair) -> None:
    database = pair.database
    try:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        database.execute("CREATE PUBLICATION p FOR TABLE t")
        with pair.slots() as slots:
            database.execute("INSERT INTO t VALUES (1)")
            results = slots.compare(*REFUSED)
        assert any(result.error for result in results)
        assert any(result.messages for result in results)
    finally:
        database.execute("DROP TABLE t")
        database.execute("DROP PUBLICATION p")


@pytest.mark.parametrize("options", [{"binary": "on"}, {}], ids=["binary", "text"])
def test_every_type(pair: Pair, options: dict[str, str]) -> None:
    database, rng = pair.database, random.Random(SEED)
    # 14 has no negative scales.
    types = [name for name in CASES if CASES[name] and (pair.major > 14 or ",-" not in name)]
    database.execute("CREATE SCHEMA types")
    try:
        with database.connect() as session:
            session.execute("SET search_path = types, public")
            session.execute(SETUP)
            # PostgreSQL refuses to send an array in binary whose elements it can't; we send its
            # text.
            types = [name for name in types if not session.execute(NOT_SENT, [name]).fetchall()]
            columns = {f"c{i}": name for i, name in enumerate(types)}
            definitions = ", ".join(f"{column} {name}" for column, name in columns.items())
            session.execute(f"CREATE TABLE e (id int PRIMARY KEY, {definitions})")
            session.execute("CREATE PUBLICATION p FOR TABLE e")
            places = ", ".join(["%s"] * (len(columns) + 1))
            with pair.slots() as slots:
                for number in range(ROWS):
                    values = [
                        str(rng.choice(CASES[name])) if rng.random() < 0.8 else None
                        for name in columns.values()
                    ]
                    session.execute(f"INSERT INTO e VALUES ({places})", [number, *values])
                session.execute("ALTER TABLE e REPLICA IDENTITY FULL")
                session.execute("UPDATE e SET id = id + 1000 WHERE id % 3 = 1")
                session.execute("DELETE FROM e WHERE id % 3 = 2")
                assert slots.compare(ONE | options)[0].messages
    finally:
        database.execute("DROP SCHEMA types CASCADE")
        database.execute("DROP PUBLICATION IF EXISTS p")


def test_origins(pair: Pair) -> None:
    database = pair.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    name = f"far {database.name}"
    try:
        with pair.slots() as slots, database.connect() as session:
            session.execute("INSERT INTO t VALUES (1)")
            session.execute("SELECT pg_replication_origin_create(%s)", [name])
            session.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
            session.execute("INSERT INTO t VALUES (2)")
            session.execute("BEGIN")
            session.execute(
                "SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2026-11-21 12:00+00')"
            )
            session.execute("INSERT INTO t VALUES (3)")
            session.execute("SELECT pg_logical_emit_message(true, 'm', 'from afar')")
            session.execute("COMMIT")
            session.execute("BEGIN")
            session.execute("INSERT INTO t VALUES (4)")
            session.execute("SELECT pg_replication_origin_session_reset()")
            # Changes from afar, and one of here, in a transaction of here.
            session.execute("INSERT INTO t VALUES (5)")
            session.execute("COMMIT")
            session.execute("SELECT pg_logical_emit_message(false, 'm', 'of here')")
            choices = [ONE | {"messages": "on"}]
            if pair.major >= 16:
                choices += [choices[0] | {"origin": "none"}, choices[0] | {"origin": "any"}]
            slots.compare(*choices)
            session.execute("SELECT pg_replication_origin_drop(%s)", [name])
            slots.compare(*choices)
    finally:
        database.execute("DROP TABLE t")
        database.execute("DROP PUBLICATION p")
