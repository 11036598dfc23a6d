"""Slots with two_phase on a running service: what they show, and prepared transactions over
restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database


@pytest.fixture
def database(pg15: Database) -> Iterator[Database]:
    yield pg15
    for (gid,) in pg15.query("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [pg15.name]):
        pg15.execute(f"ROLLBACK PREPARED '{gid}'")


def test_a_prepared_transaction_survives_restarts(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (i int)")
    gid = database.name
    prepared_row = "table public.t: INSERT: i[integer]:1"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(database.dsn)
        slot = service.create_slot("two", database.name, two_phase=True)
        assert slot["two_phase"]
        assert slot["two_phase_at"] == slot["confirmed_flush_lsn"]
        plain = service.create_slot("plain", database.name)
        assert (plain["two_phase"], plain["two_phase_at"]) == (False, None)
        database.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{gid}'")
        database.execute("INSERT INTO t VALUES (2)")
        service.wait_decoded("two", database)
        got = [text for _, _, text in service.get("two", options={"include-xids": "off"})]
        assert got[:3] == ["BEGIN", prepared_row, f"PREPARE TRANSACTION '{gid}'"]
        assert len(got) == 6
        # A slot that begins between the two gets all of it at the end.
        late = service.create_slot("late", database.name, two_phase=True)
        assert late["two_phase_at"] == late["confirmed_flush_lsn"]
        copied = service.call("POST", "/slots/two/copy", json={"slot_name": "copied"})
        assert copied["two_phase_at"] == slot["two_phase_at"]
        assert copied["two_phase"]
    database.cluster.stop()
    database.cluster.start()
    options = {"include-xids": "off"}
    with service_in_process(tmp_path / "data") as service:
        assert service.slot("two")["two_phase_at"] == slot["two_phase_at"]
        database.execute("CHECKPOINT")
        service.wait_decoded("two", database)
        assert service.get("two") == []
    database.execute(f"COMMIT PREPARED '{gid}'")
    committed = f"COMMIT PREPARED '{gid}'"
    with service_in_process(tmp_path / "data") as service:
        service.wait_decoded("two", database)
        for name in ("two", "copied"):
            assert [text for _, _, text in service.get(name, options=options)] == [committed]
        got = [text for _, _, text in service.get("late", options=options)]
        assert got == ["BEGIN", prepared_row, f"PREPARE TRANSACTION '{gid}'", committed]
        got = [text for _, _, text in service.get("plain", options=options)]
        assert got[-3:] == ["BEGIN", prepared_row, "COMMIT"]
        assert len(got) == 6
