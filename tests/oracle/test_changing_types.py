"""Types that change between and within transactions: each value is printed by its type as of the
change.
"""

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

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE outer_pair AS (p pair, ps pair[]);
CREATE DOMAIN small AS int CHECK (VALUE < 10);
CREATE TYPE texts AS RANGE (subtype = text, multirange_type_name = textmultirange);
CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[], p pair, o outer_pair, s small[], r texts,
    rs textmultirange);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (0, 'ok', '{sad,ok}', '(1,x)', '("(2,y)","{""(3,z)"",NULL}")', '{1,2}',
    '[a,b)', '{[a,b),[c,d)}');
"""

#: One statement a line.
STEPS = """
INSERT INTO t SELECT 1, m, ms, p, o, s, r, rs FROM t WHERE id = 0
ALTER TYPE mood ADD VALUE 'glad' BEFORE 'ok'
INSERT INTO t (id, m, ms) VALUES (2, 'glad', '{glad,sad}')
ALTER TYPE mood RENAME VALUE 'sad' TO 'very sad'
UPDATE t SET id = id + 100 WHERE id < 3
BEGIN
ALTER TYPE mood RENAME VALUE 'glad' TO 'happy'
UPDATE t SET id = id + 100
SAVEPOINT a
ALTER TYPE mood RENAME VALUE 'happy' TO 'never'
INSERT INTO t (id, m) VALUES (3, 'never')
ROLLBACK TO a
INSERT INTO t (id, m) VALUES (4, 'happy')
CREATE TYPE fresh AS ENUM ('one', 'second')
ALTER TYPE fresh RENAME VALUE 'second' TO 'two'
CREATE TABLE f (v fresh, vs fresh[])
INSERT INTO f VALUES ('two', '{one,two}')
COMMIT
BEGIN
ALTER TYPE mood RENAME TO feeling
INSERT INTO t (id, m) VALUES (5, 'happy')
ROLLBACK
INSERT INTO t (id, m) VALUES (6, 'happy')
CREATE TABLE plain (p pair)
INSERT INTO plain VALUES ('(1,"a b")')
DROP TABLE plain
ALTER TABLE t ALTER p TYPE pair
CREATE TYPE wide AS (a int, gone numeric, b text)
CREATE TABLE w (v wide, vs wide[])
INSERT INTO w VALUES ('(1,2.5,x)', '{"(1,2.5,x)"}')
ALTER TYPE wide DROP ATTRIBUTE gone CASCADE
INSERT INTO w VALUES ('(3,y)', '{"(3,y)"}')
ALTER TYPE wide ADD ATTRIBUTE c timestamptz CASCADE
INSERT INTO w VALUES ('(4,z,2024-01-01)', '{"(4,z,)",NULL}')
UPDATE w SET vs = vs || v
ALTER TYPE wide RENAME ATTRIBUTE b TO "B b"
ALTER TABLE w REPLICA IDENTITY FULL
DELETE FROM w
ALTER TABLE t ADD n numeric DEFAULT 1.50, ADD e mood DEFAULT 'happy', \
ADD k pair DEFAULT '(7,default)', ADD x texts DEFAULT '(,z]'
UPDATE t SET id = -id
ALTER TABLE t ALTER s TYPE text USING s::text
DELETE FROM t WHERE id % 2 = 0
DROP TYPE fresh CASCADE
DROP DOMAIN small CASCADE
INSERT INTO t SELECT 1000, m FROM t LIMIT 1
CREATE TYPE fresh AS (again int)
CREATE TABLE g (v fresh)
INSERT INTO g VALUES ('(5)')
""".strip().splitlines()


@pytest.mark.parametrize(
    "major", majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}"
)
def test_changing_types_equal_postgresql(
    major: int, tmp_path: Path, session_cluster: Callable[[int], Cluster]
) -> None:
    cluster = session_cluster(major)
    database = cluster.create_database(f"changing_{secrets.token_hex(4)}")
    try:
        with database.connect() as connection:
            connection.execute(SETUP)
            decoding = DecodingSession(database, tmp_path)
            for step in STEPS:
                connection.execute(step)
        lines = "\n".join(line.data for line in decoding.assert_equal_to_server())
        assert '"very sad"' in lines
        assert "vs[fresh[]]:'{one,two}'" in lines
        assert "never" not in lines
        decoding.close()
        decoding.slot.drop()
    finally:
        cluster.drop_database(database.name)
