"""What answers of peeks take together: a budget, for clients that read and for those that never
do.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from harness.remedies import remedy
from harness.service import service_in_process
from spillway.delivery import answers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

MB = 1 << 20
ROWS, ROW_BYTES = 24, MB
BUDGET = 40 * MB


@pytest.fixture
def service(tmp_path: Path, pg15: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(answers, "ANSWERS_BYTES_MAX", BUDGET)
    monkeypatch.setattr(answers, "_WAIT_MAX_S", 0.2)
    pg15.execute(
        "CREATE TABLE large (id int, v text); ALTER TABLE large ALTER v SET STORAGE EXTERNAL"
    )
    with service_in_process(tmp_path / "data") as running:
        running.create_source(pg15.dsn)
        for slot in ("read", "stalled"):
            running.create_slot(slot, pg15.name)
        pg15.execute("INSERT INTO large VALUES (0, 'small')")
        pg15.execute(
            f"INSERT INTO large SELECT n, repeat('x', {ROW_BYTES}) FROM generate_series(1, {ROWS}) "
            "n"
        )
        running.wait_decoded("read", pg15)
        yield running
        for slot in ("read", "stalled"):
            running.drop_slot(slot)
        running.call("DELETE", "/sources/main")


@pytest.mark.follows_hint("answers_full")
def test_a_client_that_never_reads_leaves_room_for_others_or_an_error(service: Service) -> None:
    assert len(service.call("GET", "/slots/read/peek")["changes"]) == ROWS + 5
    url = service.http.base_url
    with closing(socket.create_connection((url.host, url.port))) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(f"GET /v1/slots/stalled/peek HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode())
        # The answer has begun: all of it is gathered.
        assert stalled.recv(12) == b"HTTP/1.1 200"
        problem = service.problem("GET", "/slots/read/peek")
        assert (problem["code"], problem["status"]) == ("answers_full", 503)
        assert f"{BUDGET // MB} MB" in problem["detail"]
        # What the hint says helps.
        assert "upto_nchanges" in remedy(problem, "answers_full")
        assert len(service.call("GET", "/slots/read/peek?upto_nchanges=1")["changes"]) == 3
    deadline = time.monotonic() + 30
    while service.http.get("/v1/slots/read/peek").is_error:
        assert time.monotonic() < deadline, "the share of a client that is gone is not given back"
    assert len(service.call("GET", "/slots/read/peek")["changes"]) == ROWS + 5
