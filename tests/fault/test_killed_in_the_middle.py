"""kill -9 of ``spillway serve`` while a transaction is prepared and another one is streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.oracle import LogicalSlot, create_slot
from harness.serve_process import ServeProcess

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from harness.service import Service

KILLS = 2
STREAMING = {"stream-changes": "on"}
IMMEDIATELY = {"debug_logical_replication_streaming": "immediate"}


def wait(service: Service, database: Database, name: str) -> str:
    # Flushes what an open transaction wrote.
    database.execute("CHECKPOINT")
    return service.wait_decoded(name, database)


def texts(changes: list[tuple[str, int, str]]) -> list[str]:
    return [text for _, _, text in changes]


@pytest.mark.long
def test_prepared_and_streamed_over_kills(
    tmp_path: Path, fresh_cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_STREAM_BYTES", "0")
    cluster: Cluster = fresh_cluster(18, max_prepared_transactions=2)
    database = cluster.create_database("killed")
    database.execute("CREATE TABLE t (i int)")
    serve = ServeProcess(tmp_path / "data")
    try:
        service = serve.service()
        service.create_source(database.dsn)
        slots: dict[str, LogicalSlot] = {}
        for two_phase in (False, True):
            name = "two_phase" if two_phase else "ordinary"
            slots[name] = create_slot(database, f"o_{name}", two_phase=two_phase)
            service.create_slot(name, database.name, two_phase=two_phase)
        # Held by a consumer that gets parts before the first kill, and comes back afterwards.
        service.create_slot("held", database.name, two_phase=True, options=STREAMING)
        # Until they end both are to be begun after streaming was.
        streamed = database.connect(autocommit=False)
        streamed.execute("INSERT INTO t VALUES (1)")
        database.execute("BEGIN; INSERT INTO t VALUES (100); PREPARE TRANSACTION 'one'")
        for number in range(KILLS):
            streamed.execute("SAVEPOINT a")
            streamed.execute("INSERT INTO t SELECT generate_series(1, 3)")
            wait(service, database, "held")
            held = texts(service.get("held"))
            if number == 0:
                assert sum(text.startswith("opening a streamed") for text in held) == 5
            serve.kill()
            serve.start()
        streamed.commit()
        database.execute("COMMIT PREPARED 'one'")
        end = wait(service, database, "held")
        for name, slot in slots.items():
            for options in ({}, STREAMING):
                oracle = LogicalSlot(database, slot.name, IMMEDIATELY)
                theirs = [tuple(row) for row in oracle.peek(options, upto_lsn=end)]
                assert service.peek(name, options=options, upto_lsn=end) == theirs
        # What it got in parts before, it gets whole.
        inserts = [text for text in texts(service.get("held")) if "INSERT" in text]
        assert len(inserts) == 1 + 3 * KILLS
        streamed.close()
    finally:
        serve.stop()
