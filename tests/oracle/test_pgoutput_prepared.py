"""Prepared transactions in pgoutput, on slots made for two phases, made so by an option, and neither."""

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
BEGIN
INSERT INTO t VALUES (8, 'committed later', 9)
PREPARE TRANSACTION 'stays {0}'
INSERT INTO t VALUES (9, 'last', 9)
"""


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
def test_prepared_transactions(pair: Pair, two_phase: bool) -> None:
    database = pair.database
    steps = SCRIPT.replace("{0}", database.name).strip().splitlines()
    names = {"publication_names": "p", "messages": "on"}
    choices = [{"proto_version": "1", **names}]
    if pair.major >= 15:
        # It makes an ordinary slot two-phase for good: those that come after it get prepared transactions, too.
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
