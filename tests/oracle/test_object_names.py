"""regclass, regproc and their kin: every object of a database by its name, as of every change."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Cluster

#: Objects that hide others, that others hide, that need quotes, that are overloaded.
SETUP = """
CREATE SCHEMA "Odd";
CREATE TABLE "Odd"."T x" (a int); CREATE TABLE public.pg_class (a int);
CREATE TABLE "Odd".plain (a int);
CREATE TABLE plain (a int); CREATE INDEX ON plain (a); CREATE TABLE public.line (a text);
CREATE SEQUENCE "Odd".s;
CREATE TYPE "Odd".mood AS ENUM (); CREATE TYPE mood AS ENUM (); CREATE DOMAIN "Odd".json AS int;
CREATE DOMAIN public.json AS int;
CREATE TYPE "Odd".r AS RANGE (subtype = mood);
CREATE FUNCTION abs(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION once("Odd".mood, VARIADIC mood[]) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION twice("Odd"."T x", OUT int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION "Odd".elsewhere() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION "Odd".once() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION "Up per"("char", "Odd".mood[], timestamptz) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE proc(INOUT int) LANGUAGE sql AS 'SELECT 1';
CREATE AGGREGATE agg(int) (SFUNC = int4pl, STYPE = int);
CREATE OPERATOR = (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq);
CREATE OPERATOR ===> (RIGHTARG = int, FUNCTION = int4um);
CREATE OPERATOR "Odd".<<>> (LEFTARG = int, RIGHTARG = mood, FUNCTION = opf);
CREATE COLLATION public."C" FROM "POSIX"; CREATE COLLATION "Odd"."My coll" FROM "C";
CREATE COLLATION mine FROM "C";
CREATE TEXT SEARCH CONFIGURATION public.english (COPY = german);
CREATE TEXT SEARCH CONFIGURATION "Odd".c (COPY = german);
CREATE TEXT SEARCH DICTIONARY public.simple (TEMPLATE = simple);
CREATE TEXT SEARCH DICTIONARY "Odd".d (TEMPLATE = simple);
""".replace(
    "CREATE OPERATOR =", "CREATE FUNCTION opf(int, mood) RETURNS bool LANGUAGE sql AS 'SELECT "
        "true';\n"
        "CREATE OPERATOR =", 1
)  # fmt: skip

#: type → where its values are
SOURCES = {
    "regclass": "pg_class WHERE relpersistence <> 't'", "regtype": "pg_type", "regproc": "pg_proc",
    "regprocedure": "pg_proc", "regoper": "pg_operator", "regoperator": "pg_operator",
    "regcollation": "pg_collation", "regnamespace": "pg_namespace", "regconfig": "pg_ts_config",
    "regdictionary": "pg_ts_dict", "regrole": "pg_authid",
}  # fmt: skip

CHANGES = """
BEGIN;
INSERT INTO few VALUES ('plain', 'mood', 'once', 'twice(int)', 'english', 'mine', '"Odd"',
    '===>(NONE,int)');
ALTER TABLE plain RENAME TO renamed; ALTER FUNCTION once RENAME TO "On ce";
ALTER SCHEMA "Odd" RENAME TO even;
INSERT INTO few SELECT 'renamed', 'mood', '"On ce"', 'twice(int)', 'pg_catalog.english', 'mine',
    'even', '-(NONE,int)';
INSERT INTO few TABLE few;
SAVEPOINT a;
ALTER TYPE even.mood SET SCHEMA pg_catalog;
CREATE FUNCTION twice() RETURNS int LANGUAGE sql AS 'SELECT 1';
INSERT INTO few TABLE few;
ROLLBACK TO a;
INSERT INTO few TABLE few;
COMMIT;
INSERT INTO few SELECT DISTINCT * FROM few;
DROP TABLE renamed; DROP FUNCTION twice(int);
INSERT INTO few SELECT DISTINCT * FROM few;
INSERT INTO few VALUES (0, 0, 0, 0, 0, 0, 0, 0), (4294967295, 4294967295, 4294967295, 4294967295,
    4294967295, 4294967295, 4294967295, 4294967295);
UPDATE few SET c = c;
"""


@pytest.mark.parametrize(
    "major", majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}"
)
def test_names_equal_postgresql(
    major: int, tmp_path: Path, session_cluster: Callable[[int], Cluster]
) -> None:
    cluster = session_cluster(major)
    database = cluster.create_database(f"names_{secrets.token_hex(4)}")
    try:
        with database.connect() as connection:
            connection.execute(SETUP)
            decoding = DecodingSession(database, tmp_path)
            for name, source in SOURCES.items():
                connection.execute(f"CREATE TABLE all_{name} (v {name})")
                connection.execute(f"INSERT INTO all_{name} SELECT oid FROM {source}")
                connection.execute(f"CREATE TABLE array_{name} (v {name}[])")
                connection.execute(f"INSERT INTO array_{name} SELECT array_agg(v) FROM all_{name}")
            connection.execute(
                "CREATE TABLE few (c regclass, t regtype, f regproc, p regprocedure, x regconfig,"
                " k regcollation, n regnamespace, o regoperator);"
                " ALTER TABLE few REPLICA IDENTITY FULL"
            )
            # A type is moved into pg_catalog.
            connection.execute("SET allow_system_table_mods = on")
            for statement in CHANGES.split(";\n"):
                connection.execute(statement)
        lines = [line.data for line in decoding.assert_equal_to_server()]
        assert "table public.few: INSERT: c[regclass]:'renamed'" in "\n".join(lines)
        assert len(lines) > 5000
        decoding.close()
        decoding.slot.drop()
    finally:
        cluster.drop_database(database.name)
