"""What a stranger's database has: odd names, odd constraints, targets that are made otherwise.
Beside PostgreSQL's own subscription, from the first copy on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.side_by_side import SideBySide

_MAJOR_OF_VIRTUAL = 18

_EVERYWHERE = r"""
CREATE SCHEMA "Ünï ""q"" %s.Schema";
CREATE TYPE "Ünï ""q"" %s.Schema"."Mood's" AS ENUM ('it''s', 'a,b', '"q"', '');
CREATE TABLE "Ünï ""q"" %s.Schema"."T.able 'x' %(n)s $1" ("Id" int, "row" text, "found" int,
    "a""b" text, "c%d" int, "$1" int, "n
l" text, "😀" "Ünï ""q"" %s.Schema"."Mood's", PRIMARY KEY ("Id", "a""b"));
CREATE TABLE "UPPER" ("ID" int PRIMARY KEY, "Val" text);
CREATE TABLE "upper" ("ID" int PRIMARY KEY, "Val" text);
CREATE SCHEMA spillway;
CREATE TABLE spillway.orders (subscription text PRIMARY KEY, n serial);
CREATE TABLE spillway."Tables" (subscription text PRIMARY KEY);
CREATE TABLE progress (subscription text PRIMARY KEY, identity text);
CREATE TABLE tables (subscription text PRIMARY KEY, state text);
CREATE TABLE conflicts (id int PRIMARY KEY, lsn text);
CREATE TABLE late_key (a int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, b int,
    UNIQUE (b) DEFERRABLE INITIALLY IMMEDIATE);
ALTER TABLE late_key REPLICA IDENTITY FULL;
CREATE TABLE late_ref (a int PRIMARY KEY, q int, CONSTRAINT r FOREIGN KEY (q)
    REFERENCES late_ref (a) DEFERRABLE INITIALLY DEFERRED);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN short AS text COLLATE "C" NOT NULL CHECK (length(VALUE) < 9);
CREATE DOMAIN several AS int[] CHECK (array_length(VALUE, 1) < 5);
CREATE TYPE pair AS (x positive, y text);
CREATE DOMAIN good_pair AS pair CHECK ((VALUE).x < 100);
CREATE TABLE domains (a positive PRIMARY KEY, b short, c several, d good_pair, e positive[],
    f good_pair[]);
CREATE TABLE toast_key (k text PRIMARY KEY, n int, v text);
ALTER TABLE toast_key ALTER k SET STORAGE EXTERNAL, ALTER v SET STORAGE EXTERNAL;
CREATE TABLE toast_full (a int, v text, w text);
ALTER TABLE toast_full ALTER v SET STORAGE EXTERNAL, ALTER w SET STORAGE EXTERNAL;
ALTER TABLE toast_full REPLICA IDENTITY FULL;
CREATE TABLE parent (a int PRIMARY KEY, b text);
CREATE TABLE child (c int, PRIMARY KEY (a)) INHERITS (parent);
CREATE TABLE odd_types (a int PRIMARY KEY, b "char", c name, d oid, e regclass, f pg_lsn,
    g jsonpath, h tsquery, i txid_snapshot, j bit(5), k macaddr, l cidr, m timetz, n time,
    o date, p int4multirange, q path, r box, s varbit, t xid8, u int2vector, v pg_snapshot,
    w oidvector, x timestamp[], y interval);
CREATE TABLE no_columns ();
CREATE TABLE several_keys (id int PRIMARY KEY, u int UNIQUE, v int, w text);
CREATE UNIQUE INDEX ON several_keys (lower(w)) WHERE v > 0;
CREATE TABLE excluded (id int PRIMARY KEY, during int4range,
    EXCLUDE USING gist (during WITH &&));
CREATE TABLE parted_moves (id int, place text, v text, PRIMARY KEY (id, place))
    PARTITION BY LIST (place);
CREATE TABLE parted_moves_a PARTITION OF parted_moves FOR VALUES IN ('a');
CREATE TABLE parted_moves_b PARTITION OF parted_moves FOR VALUES IN ('b', 'c');
"""
_SOURCE = r"""
CREATE TABLE other_types (a int PRIMARY KEY, b int, c text, d timestamptz, e real, f text, g json,
    h int, i text, j varchar(10), k "char", l date, m int[], n boolean, o numeric);
CREATE TABLE other_identity (id int PRIMARY KEY, code int NOT NULL, name text);
CREATE UNIQUE INDEX other_code ON other_identity (code);
ALTER TABLE other_identity REPLICA IDENTITY USING INDEX other_code;
CREATE TABLE more_keys (id int PRIMARY KEY, email text, nick text);
CREATE TABLE made (id int PRIMARY KEY, a int, b text);
CREATE TABLE identified (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int, v text);
CREATE TABLE stricter (id int PRIMARY KEY, v text);
CREATE TABLE changed_by_trigger (id int PRIMARY KEY, v text);
CREATE TABLE left_out_by_trigger (id int PRIMARY KEY, v text);
CREATE TABLE ruled (id int PRIMARY KEY, v text);
CREATE TABLE whole_into_key (a int, b int, c text);
ALTER TABLE whole_into_key REPLICA IDENTITY FULL;
CREATE TABLE key_into_two (a int PRIMARY KEY, b int NOT NULL, c text);
CREATE TABLE into_parent (a int PRIMARY KEY, b text);
CREATE TABLE gaps (g1 int, a int PRIMARY KEY, g2 text, b text, g3 int);
ALTER TABLE gaps DROP g1, DROP g2, DROP g3;
CREATE TABLE nulls_apart (id int PRIMARY KEY, u int UNIQUE, v text);
"""
_TARGETS = r"""
CREATE TYPE f_kind AS ENUM ('x', 'y', 'z');
CREATE TABLE other_types (z serial, o text, n text, m text, l timestamp, k text, j text, i int,
    h text, g jsonb, f f_kind, e numeric, d timestamp, c varchar, b bigint, a numeric PRIMARY KEY);
CREATE TABLE other_identity (name text, id int, code int PRIMARY KEY);
CREATE TABLE more_keys (id int PRIMARY KEY, email text UNIQUE, nick text, extra int DEFAULT 5,
    UNIQUE (nick, extra));
CREATE UNIQUE INDEX ON more_keys (lower(nick));
CREATE TABLE identified (v text, id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    n int GENERATED ALWAYS AS IDENTITY);
CREATE TABLE stricter (id int PRIMARY KEY CHECK (id > 0), v text NOT NULL DEFAULT 'none',
    at int NOT NULL DEFAULT 7);
CREATE TABLE heard (who text, what text, id int);
CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.v := upper(NEW.v); RETURN NEW; END $$;
CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF coalesce(NEW.id, OLD.id) % 2 = 0 THEN RETURN NULL; END IF;
    RETURN coalesce(NEW, OLD); END $$;
CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.heard VALUES (TG_NAME, TG_OP, coalesce(NEW.id, OLD.id));
    RETURN NULL; END $$;
CREATE TABLE changed_by_trigger (id int PRIMARY KEY, v text);
CREATE TRIGGER shouts BEFORE INSERT OR UPDATE ON changed_by_trigger FOR EACH ROW
    EXECUTE FUNCTION shout();
ALTER TABLE changed_by_trigger ENABLE REPLICA TRIGGER shouts;
CREATE CONSTRAINT TRIGGER hears AFTER INSERT OR UPDATE OR DELETE ON changed_by_trigger
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hear();
ALTER TABLE changed_by_trigger ENABLE ALWAYS TRIGGER hears;
CREATE TABLE left_out_by_trigger (id int PRIMARY KEY, v text);
CREATE TRIGGER leaves BEFORE INSERT OR UPDATE OR DELETE ON left_out_by_trigger FOR EACH ROW
    EXECUTE FUNCTION leave_out();
ALTER TABLE left_out_by_trigger ENABLE ALWAYS TRIGGER leaves;
CREATE TABLE ruled (id int PRIMARY KEY, v text);
CREATE RULE away AS ON INSERT TO ruled DO INSTEAD NOTHING;
CREATE TABLE whole_into_key (c text, b int, a int PRIMARY KEY);
CREATE TABLE key_into_two (a int, b int, c text, PRIMARY KEY (a));
CREATE TABLE into_parent (a int PRIMARY KEY, b text);
CREATE TABLE into_parent_child () INHERITS (into_parent);
INSERT INTO into_parent_child VALUES (1, 'a local row of a child');
CREATE TABLE gaps (b text, g1 int, g2 int, a int PRIMARY KEY);
ALTER TABLE gaps DROP g1, DROP g2;
CREATE TABLE nulls_apart (id int PRIMARY KEY, u int UNIQUE, v text);
"""
_WIDE = 900
_FILL = r"""
INSERT INTO "Ünï ""q"" %s.Schema"."T.able 'x' %(n)s $1" VALUES (@0, 'r', @0, 'q"', 1, 2, 'l',
    'it''s'), (@1, NULL, NULL, '', NULL, NULL, E'\n', ''), (@2, '', 7, 'x', 1, 1, '', '"q"');;
INSERT INTO "UPPER" VALUES (@0, 'U'); INSERT INTO "upper" VALUES (@0, 'l');;
INSERT INTO progress VALUES ('hostile@0', 'mine'); INSERT INTO tables VALUES ('t@0', 'r');INSERT
    INTO conflicts VALUES (@0, 'x');;
INSERT INTO late_key SELECT n, n FROM generate_series(@0, @0 + 9) n;;
BEGIN; INSERT INTO late_ref VALUES (@0, @0 + 1); INSERT INTO late_ref VALUES (@0 + 1, @0);
    COMMIT;;
INSERT INTO domains VALUES (@0, 'x', '{1,2}', (1, 'y'), '{1}', ARRAY[(9, NULL)::pair]), (@1, '',
    NULL, NULL, NULL, '{}');;
INSERT INTO toast_key SELECT string_agg(md5((n * i)::text), ''), n, string_agg(md5((n *
    i)::text), '') FROM generate_series(@0, @0 + 3) n, generate_series(1, 60) i GROUP BY n;;
INSERT INTO toast_full SELECT n, string_agg(md5((n * i)::text), ''), string_agg(md5((n *
    i)::text), '') FROM generate_series(@0, @0 + 3) n, generate_series(1, 200) i GROUP BY n;;
INSERT INTO parent VALUES (@0, 'parent'); INSERT INTO child VALUES (@0, 'child', 5);;
INSERT INTO odd_types VALUES (@0, E'\\377', 'n', 4000000000, 'pg_class', 'F/1', '$.a[*] ? (@ >
    1)', 'a & !b', '1:3:2', B'10101', '08:00:2b:01:02:03', '10.0.0.0/8', '24:00:00+1559',
    '23:59:60', '4713-01-01 BC', '{[1,3),[5,)}', '((1,2),(3,4))', '(1,1),(0,0)', B'1',
    '18446744073709551615', '1 2 3', '1:9:2,3', '1 2', '{infinity,"2000-01-01 00:00:00",NULL}',
    '178000000 years 11 mons -1 days'), (@1, '', '', 0, '-', '0/0', '$', '', '1:1:', B'00000',
    'ffffffffffff', '::/0', '00:00:00-15:59', '00:00', 'infinity', '{}', '[(0,0)]',
    '(NaN,1),(0,0)', B'', '0', '', '1:1:', '', '{}', '-00:00:00.000001');;
INSERT INTO no_columns DEFAULT VALUES;;
INSERT INTO spillway.orders VALUES ('hostile'), ('at @0') ON CONFLICT DO NOTHING;;
INSERT INTO spillway."Tables" VALUES ('hostile') ON CONFLICT DO NOTHING;;
INSERT INTO several_keys SELECT n, n, n % 3, 'W' || n FROM generate_series(@0, @0 + 20) n;;
INSERT INTO excluded SELECT n, int4range(n * 10, n * 10 + 5) FROM generate_series(@0, @0 + 9)
    n;;
INSERT INTO parted_moves SELECT n, substr('abc', n % 3 + 1, 1), 'v' FROM generate_series(@0, @0
    + 9) n;;
INSERT INTO other_types VALUES (@0, 5, 'c', '2024-02-03 04:05:06.7+09', 1.1, 'x', '{"b":1,
    "a":2}', 42, '17', 'vv', 'k', '2024-02-29', '{1,NULL}', true, 1.50), (@1, NULL, NULL,
    'infinity', 'NaN', NULL, 'null', NULL, NULL, '', '', 'infinity', '{}', NULL, 'NaN');;
INSERT INTO other_identity SELECT n, n * 10, 'n' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO more_keys SELECT n, n || '@x', 'Nick' || n FROM generate_series(@0, @0 + 9) n;;
INSERT INTO made (id, a, b) SELECT n, n, 'b' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO identified (n, v) SELECT 7, 'v' FROM generate_series(1, 9);;
INSERT INTO stricter SELECT n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO changed_by_trigger SELECT n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO left_out_by_trigger SELECT n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO ruled VALUES (@0, 'v');;
INSERT INTO whole_into_key SELECT n, n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO key_into_two SELECT n, n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO into_parent SELECT n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO gaps SELECT n, 'v' FROM generate_series(@0, @0 + 9) n;;
INSERT INTO nulls_apart VALUES (@0, NULL, 'x'), (@1, NULL, 'y');;
INSERT INTO wide (id, c0, c899) VALUES (@0, 1, 2);;
"""
_CHANGES = r"""
UPDATE "Ünï ""q"" %s.Schema"."T.able 'x' %(n)s $1" SET "row" = 'new', "😀" = 'a,b' WHERE "Id" =
    @0;;
UPDATE "Ünï ""q"" %s.Schema"."T.able 'x' %(n)s $1" SET "a""b" = 'moved', "c%d" = NULL WHERE "Id"
    = @1;;
DELETE FROM "Ünï ""q"" %s.Schema"."T.able 'x' %(n)s $1" WHERE "Id" = @2;;
UPDATE "UPPER" SET "Val" = 'u' WHERE "ID" = @0; DELETE FROM "upper" WHERE "ID" = @0;;
UPDATE progress SET identity = 'x' WHERE subscription = 'hostile@0'; DELETE FROM tables;;
UPDATE spillway.orders SET n = n + 10;;
UPDATE conflicts SET id = -id WHERE id = @0;;
UPDATE late_key SET a = @0 + @0 + 9 - a, b = @0 + @0 + 9 - b WHERE a BETWEEN @0 AND @9;;
DELETE FROM late_key WHERE a = @3;;
UPDATE late_ref SET q = NULL WHERE a = @0; UPDATE late_ref SET a = a + 500 WHERE a = @1;;
UPDATE domains SET b = 'long', d = (2, 'z'), f = NULL WHERE a = @0; DELETE FROM domains WHERE a
    = @1;;
UPDATE toast_key SET n = n + 5000 WHERE n = @0;;
UPDATE toast_key SET k = 'short' || n WHERE n = @1;;
UPDATE toast_key SET k = k || '!' WHERE n = @2; DELETE FROM toast_key WHERE n = @3;;
UPDATE toast_full SET a = -a WHERE a = @0; UPDATE toast_full SET w = 'w' WHERE a = @1;;
DELETE FROM toast_full WHERE a = @2;;
UPDATE parent SET b = 'both' WHERE a = @0; DELETE FROM ONLY parent WHERE a = @0;;
UPDATE odd_types SET b = 'z', e = 'pg_type', p = '{}', q = NULL WHERE a = @0;;
DELETE FROM odd_types WHERE a = @1;;
UPDATE several_keys SET u = u + 100 WHERE id BETWEEN @0 AND @3;;
DELETE FROM several_keys WHERE id = @4; UPDATE several_keys SET u = @4, w = 'W@4', v = 1 WHERE
    id = @5;;
DELETE FROM excluded WHERE id = @0; UPDATE excluded SET during = int4range((@0 * 10 + 0), (@0 *
    10 + 7)) WHERE id = @1;;
UPDATE parted_moves SET place = 'a' WHERE id BETWEEN @0 AND @3 AND place <> 'a';;
UPDATE parted_moves SET place = 'c', v = 'w', id = id + 100 WHERE id = @5; DELETE FROM
    parted_moves WHERE id = @6;;
UPDATE other_types SET b = 6, f = 'z', g = '[1, 2]', i = '-5', n = false, m = '{{1}}' WHERE a =
    @0; UPDATE other_types SET a = a + 500 WHERE a = @1;;
UPDATE other_identity SET name = 'new' WHERE id = @0; UPDATE other_identity SET id = id + 500
    WHERE id = @1;;
UPDATE other_identity SET code = code + 5 WHERE id = @2; DELETE FROM other_identity WHERE id =
    @3;;
UPDATE more_keys SET email = 'tmp' WHERE id = @0; UPDATE more_keys SET email = '@0@x' WHERE id =
    @1; UPDATE more_keys SET email = '@1@x' WHERE id = @0;;
DELETE FROM more_keys WHERE id = @2; UPDATE more_keys SET nick = 'Nick@2' WHERE id = @3;;
UPDATE made SET a = a * 2 WHERE id = @0; DELETE FROM made WHERE id = @1;;
UPDATE identified SET v = 'w' WHERE id % 3 = 0; UPDATE identified SET n = n + 1 WHERE id % 4 =
    0; DELETE FROM identified WHERE id % 5 = 0;;
UPDATE stricter SET v = '' WHERE id = @0; DELETE FROM stricter WHERE id = @1;;
UPDATE changed_by_trigger SET v = 'w' WHERE id < @3; DELETE FROM changed_by_trigger WHERE id =
    @4;;
UPDATE left_out_by_trigger SET v = 'w' WHERE id % 3 = 1; DELETE FROM left_out_by_trigger WHERE
    id IN (@6, @8);;
UPDATE whole_into_key SET c = 'w' WHERE a = @0; UPDATE whole_into_key SET a = a + 500 WHERE a =
    @1; DELETE FROM whole_into_key WHERE a = @2;;
UPDATE key_into_two SET b = -b WHERE a = @0; UPDATE key_into_two SET a = -a WHERE a = @1; DELETE
    FROM key_into_two WHERE a = @2;;
UPDATE into_parent SET b = 'w' WHERE a < @2; DELETE FROM into_parent WHERE a = @2;;
UPDATE gaps SET b = 'w' WHERE a = @0; DELETE FROM gaps WHERE a = @1;;
UPDATE wide SET c450 = 5 WHERE id = @0;;
"""
_S = '"Ünï ""q"" %s.Schema"'
_T = f"""{_S}."T.able 'x' %(n)s $1\""""


@pytest.fixture(scope="module")
def hostile(sides: SideBySide) -> Iterator[SideBySide]:
    """All tables, with rows before the first copy."""
    sides.everywhere(_EVERYWHERE)
    sides.source.execute(_SOURCE)
    sides.both(_TARGETS)
    wide = ", ".join(f'"c{n}" int' for n in range(_WIDE))
    sides.everywhere(f"CREATE TABLE wide (id int PRIMARY KEY, {wide})")
    if sides.major >= _MAJOR_OF_VIRTUAL:
        sides.source.execute("ALTER TABLE made ADD c int GENERATED ALWAYS AS (a + 1) VIRTUAL")
        sides.both("CREATE TABLE made (c int GENERATED ALWAYS AS (a * 2) VIRTUAL, b text, a int,"
                   " d int GENERATED ALWAYS AS (a * 3) STORED, id int PRIMARY KEY)")  # fmt: skip
    else:
        sides.both("CREATE TABLE made (b text, a int,"
                   " d int GENERATED ALWAYS AS (a * 3) STORED, id int PRIMARY KEY)")  # fmt: skip
    _fill(sides, 1)
    sides.source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    sides.subscribe("hostile", "everything", copy_data=True)
    sides.caught_up()
    yield sides
    sides.unsubscribe("hostile")
    # What is not the subscription's stays, wherever it lies.
    for table in ("spillway.orders", 'spillway."Tables"'):
        assert sides.rows(f"SELECT * FROM {table}")


def _fill(sides: SideBySide, n: int) -> None:
    """Rows that begin at *n*, a hundred or fewer of each table."""
    for statement in _statements(_FILL, n):
        sides.source.execute(statement)


def _statements(text: str, n: int) -> list[str]:
    """The statements between ``;;``, with *n* and what is added to it for ``@0``, ``@1`` …"""
    said = re.sub(r"@(\d+)", lambda m: str(n + int(m[1])), text)
    return [one for one in said.split(";;") if one.strip()]


_AS_SOURCE = (
    _T, '"UPPER"', '"upper"', "progress", "tables", "conflicts", "spillway.orders",
    'spillway."Tables"', "late_key", "late_ref", "domains",
    "toast_key", "toast_full", "ONLY parent", "child", "odd_types", "several_keys", "excluded",
    "parted_moves_a", "parted_moves_b", "wide", "nulls_apart",
)  # fmt: skip
_AS_STOCK = (
    "other_types", "other_identity", "more_keys", "made", "identified", "stricter",
    "changed_by_trigger", "left_out_by_trigger", "ruled", "whole_into_key", "key_into_two",
    "ONLY into_parent", "into_parent_child", "gaps", "heard",
)  # fmt: skip


def _compare(sides: SideBySide) -> None:
    sides.caught_up()
    sides.as_source(*_AS_SOURCE)
    sides.same(*_AS_STOCK)
    sides.rows("SELECT count(*) FROM no_columns")


def test_copied(hostile: SideBySide) -> None:
    _compare(hostile)


def test_changed_in_many_transactions(hostile: SideBySide) -> None:
    _fill(hostile, 1001)
    for statement in _statements(_CHANGES, 1001):
        hostile.source.execute(statement)
    _compare(hostile)


def test_changed_in_one_transaction(hostile: SideBySide) -> None:
    _fill(hostile, 2001)
    with hostile.source.connect() as session, session.transaction():
        for statement in _statements(_CHANGES, 2001):
            session.execute(statement.encode())
    _compare(hostile)
