"""What a stream holds whose client does not read: one batch, and nothing once it has ended. Counted
in Python's bytes, of a real service.

gRPC holds a copy of the batch that waits to be sent, outside of Python. Steps that are kept for
others are bounded for all streams together (KEPT_BYTES) and are left out here by batches that are
larger than what is kept.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from harness.service import Service, service_in_process
from harness.stalled_client import StalledClients
from spillway.delivery.large_batches import LARGE_BYTES_MAX, ORDINARY_BYTES
from spillway.stream import change_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Database

MIB = 1 << 20
BATCH = 16 * MIB
#: A window of the log, and what a stream's own objects take.
BESIDE_MAX = 3 * MIB
HUGE = 16 * MIB
CLIENTS = 2

PUBLISHED = {"proto_version": "2", "publication_names": "everything"}
SLOTS: dict[str, tuple[str, dict[str, str]]] = {
    "test_decoding": ("test_decoding", {}),
    "pgoutput": ("pgoutput", PUBLISHED),
    "wal2json": ("wal2json", {}),
    "wal2json_2": ("wal2json", {"format-version": "2"}),
    "arrow": ("arrow", {}),
}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, session_cluster: Callable[[int], Any]
) -> Iterator[Service]:
    """A service with 100 MB in transactions of 20 MB behind slots of each plugin, and a slot behind
    a transaction of five rows of 16 MB.
    """
    database: Database = session_cluster(15).create_database("stalled_streams")
    database.execute(
        "CREATE TABLE t (id int, note text); CREATE TABLE huge (id int, note text);"
        "ALTER TABLE huge ALTER note SET STORAGE EXTERNAL; CREATE PUBLICATION everything FOR TABLE "
        "t"
    )
    with service_in_process(tmp_path_factory.mktemp("service")) as running:
        running.create_source(database.dsn)
        for name, (plugin, options) in SLOTS.items():
            running.create_slot(name, database.name, plugin=plugin, options=options)
        for _ in range(5):
            database.execute(
                "INSERT INTO t SELECT n, repeat('x', 20000) FROM generate_series(1, 1000) n"
            )
        running.wait_decoded("arrow", database)
        running.create_slot("huge", database.name)
        database.execute(
            f"INSERT INTO huge SELECT n, repeat('x', {HUGE}) FROM generate_series(1, 5) n"
        )
        running.wait_decoded("huge", database)
        yield running
        for name in (*SLOTS, "huge"):
            running.drop_slot(name)
        running.call("DELETE", "/sources/main")
    session_cluster(15).drop_database(database.name)


@pytest.fixture(scope="module")
def clients(service: Service) -> Iterator[StalledClients]:
    clients = StalledClients(service.grpc_address)
    yield clients
    clients.close()


@pytest.fixture(autouse=True)
def ended(clients: StalledClients) -> Iterator[None]:
    """Leave no stream to the next test, if this one fails."""
    yield
    clients.end()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> dict[object, int]:
    """Tell the bytes of the messages that wait to be sent."""
    waiting: dict[object, int] = {}
    write = change_stream.Session._write

    async def noted(session: Any, message: bytes) -> None:
        waiting[session] = len(message)
        held = [message]
        del message
        # A traceback keeps this frame.
        await write(session, held.pop())
        del waiting[session]

    monkeypatch.setattr(change_stream.Session, "_write", noted)
    return waiting


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """Tell how much memory Python has since the test began; nothing is found by looking for
    garbage.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.enable()


def _wait_until(reached: Callable[[], bool], what: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@pytest.mark.parametrize("slot", [*SLOTS, "huge"])
def test_who_does_not_read_holds_one_batch(
    clients: StalledClients, waiting: dict[object, int], traced: Callable[[], int], slot: str
) -> None:
    batch_bytes = MIB if slot == "huge" else BATCH
    for i in range(CLIENTS):
        # Others than its neighbours', so that no reader is shared.
        assert clients.open(slot, batch_bytes - 8 * i) > batch_bytes // 2
    least = HUGE if slot == "huge" else BATCH // 2

    def is_little() -> bool:
        # A client's gRPC takes some that nobody reads; then each waits with one message, and holds
        # little else.
        expected = sum(waiting.values())
        return (
            len(waiting) == CLIENTS
            and min(waiting.values()) > least
            and expected <= traced() < expected + CLIENTS * BESIDE_MAX
        )

    _wait_until(is_little, lambda: (traced(), sorted(waiting.values())))
    time.sleep(0.5)
    _wait_until(is_little, lambda: (traced(), sorted(waiting.values())))
    clients.end()
    waiting.clear()
    _wait_until(lambda: traced() < CLIENTS * MIB)


def test_few_streams_have_large_batches(clients: StalledClients) -> None:
    large = LARGE_BYTES_MAX // BATCH
    read = [clients.open("pgoutput", BATCH - 8 * i) for i in range(large + 2)]
    assert min(read[:large]) > BATCH - MIB
    assert max(read[large:]) < 2 * ORDINARY_BYTES
    clients.end()
