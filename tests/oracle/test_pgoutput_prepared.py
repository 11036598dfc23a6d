"""Prepared transactions in pgoutput, on slots made for two phases, made so by an option, and
neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.pgoutput import run

if TYPE_CHECKING:
    from harness.pgoutput import Pair

SCRIPT = """
INSERT INTO t VALUES (1, 'ordinary')
BEGIN
INSERT INTO t VALUES (2, 'prepared')
SAVEPOINT a
INSERT INTO t VALUES (3, 'in a savepoint')
SELECT pg_logical_emit_message(true, 'm', 'inside')
PREPARE TRANSACTION 'it''s one {0}'
INSERT INTO t VALUES (4, 'between')
COMMIT PREPARED 'it''s one {0}'
BEGIN
INSERT INTO t VALUES (5, 'lost')
PREPARE TRANSACTION 'two {0}'
ROLLBACK PREPARED 'two {0}'
BEGIN
CREATE TABLE unpublished (id int)
INSERT INTO unpublished VALUES (1)
PREPARE TRANSACTION 'nothing of it published {0}'
COMMIT PREPARED 'nothing of it published {0}'
BEGIN
ALTER TABLE t ADD COLUMN n int DEFAULT 7
INSERT INTO t VALUES (6, 'altered', 8)
PREPARE TRANSACTION 'alters {0}'
COMMIT PREPARED 'alters {0}'
INSERT INTO t VALUES (7, 'after', 9)
"""

#: What is invalidated again at COMMIT PREPARED and ROLLBACK PREPARED, by statements whose locks let
#: others write. Read afterwards, the server stops where it would look up a table in a transaction
#: that it knows to be rolled back.
INVALIDATING = """
BEGIN
ALTER TABLE t ALTER v SET STATISTICS 10
INSERT INTO t VALUES (20, 'prepared', 9)
PREPARE TRANSACTION 'changes t {0}'
INSERT INTO t VALUES (21, 'announces', 9)
COMMIT PREPARED 'changes t {0}'
INSERT INTO t VALUES (22, 'announces again', 9)
BEGIN
INSERT INTO t VALUES (23, 'lost', 9)
SAVEPOINT a
ALTER TABLE t ALTER v SET STATISTICS 11
RELEASE a
PREPARE TRANSACTION 'rolled back {0}'
INSERT INTO t VALUES (25, 'announces', 9)
ROLLBACK PREPARED 'rolled back {0}'
INSERT INTO t VALUES (26, 'announces again', 9)
BEGIN
INSERT INTO t VALUES (27, 'kept', 9)
SAVEPOINT a
ALTER TABLE t ALTER v SET STATISTICS 12
ROLLBACK TO a
PREPARE TRANSACTION 'undone {0}'
INSERT INTO t VALUES (28, 'announces', 9)
COMMIT PREPARED 'undone {0}'
INSERT INTO t VALUES (29, 'announces again', 9)
BEGIN
ALTER TABLE t ALTER v SET STATISTICS 13
PREPARE TRANSACTION 'no row {0}'
INSERT INTO t VALUES (30, 'announces', 9)
COMMIT PREPARED 'no row {0}'
INSERT INTO t VALUES (31, 'announces again', 9)
BEGIN
INSERT INTO t VALUES (32, 'hears of others', 9)
2> ALTER TABLE t ALTER v SET STATISTICS 14
INSERT INTO t VALUES (33, 'announces', 9)
PREPARE TRANSACTION 'hears {0}'
INSERT INTO t VALUES (34, 'announces', 9)
2> ALTER TABLE t ALTER v SET STATISTICS 15
INSERT INTO t VALUES (35, 'announces', 9)
COMMIT PREPARED 'hears {0}'
INSERT INTO t VALUES (36, 'known', 9)
BEGIN
CREATE TABLE other (id int PRIMARY KEY)
CREATE INDEX ON other (id)
INSERT INTO other VALUES (1)
TRUNCATE other
PREPARE TRANSACTION 'another table {0}'
INSERT INTO t VALUES (37, 'known', 9)
COMMIT PREPARED 'another table {0}'
INSERT INTO t VALUES (38, 'known', 9)
DROP TABLE other
"""

LAST = """
BEGIN
INSERT INTO t VALUES (8, 'committed later', 9)
PREPARE TRANSACTION 'stays {0}'
INSERT INTO t VALUES (9, 'last', 9)
"""


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
def test_prepared_transactions(pair: Pair, two_phase: bool) -> None:
    database = pair.database
    script = f"{SCRIPT}{INVALIDATING}{LAST}".replace("{0}", database.name)
    steps = [line for line in script.splitlines() if line]
    names = {"publication_names": "p", "messages": "on"}
    choices = [{"proto_version": "1", **names}]
    if pair.major >= 15:
        # It makes an ordinary slot two-phase for good: those that come after it get prepared
        # transactions, too.
        choices += [{"proto_version": "3", "two_phase": "on", **names}, *choices]
    try:
        run(
            database,
            ["CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t"],
        )
        with pair.slots(two_phase=two_phase) as slots:
            run(database, steps)
            slots.compare(*choices)
            run(database, [f"COMMIT PREPARED 'stays {database.name}'"])
            slots.compare(*choices)
            assert pair.service.slot(slots.name)["two_phase"] == (two_phase or pair.major >= 15)
    finally:
        database.execute("DROP PUBLICATION p")
        database.execute("DROP TABLE IF EXISTS t, unpublished")
