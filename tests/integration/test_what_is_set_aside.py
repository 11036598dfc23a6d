"""What a service that serves sets aside of its heap."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from harness.reception import wait_until
from harness.service import service_in_process
from spillway import serve
from spillway.collector import GATHER_S, Collector
from spillway.service import engine as engine_module
from spillway.sessions import session as session_module

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from harness.cluster import Database


class Counting(Collector):
    """It counts, and time passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(lambda: self.now_s)
        self.set_asides = self.asks = 0

    def set_aside(self) -> None:
        self.set_asides += 1
        super().set_aside()

    def ask(self) -> None:
        self.asks += 1
        super().ask()


def test_a_session_is_set_aside_and_looked_through_when_it_ended(
    tmp_path: Path, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = Counting()
    for module in (serve, engine_module, session_module):
        monkeypatch.setattr(module, "collector", collector)
    with service_in_process(tmp_path / "data") as service:
        assert gc.get_freeze_count() > 0
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name)
        wait_until(lambda: collector.set_asides, what="the session has caught up")
        service.drop_slot("s")
        assert collector.asks == 0
        service.call("DELETE", "/sources/main")
        assert (collector.set_asides, collector.asks) == (1, 1)
        collector.now_s += GATHER_S
        wait_until(lambda: collector.collections, what="all is looked through")
    assert gc.get_freeze_count() == 0
