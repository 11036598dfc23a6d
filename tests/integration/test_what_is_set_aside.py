"""What a service that serves sets aside of its heap."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from harness.reception import wait_until
from harness.service import service_in_process
from spillway import serve
from spillway.catalog.mirror import CatalogMirror
from spillway.collector import CALM_S, GATHER_S, Collector
from spillway.decoding.decoder import Decoder
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

        def looked() -> int:
            # That the session is gone is a change, too.
            collector.now_s += CALM_S
            return collector.collections

        wait_until(looked, what="all is looked through")
    assert gc.get_freeze_count() == 0


def test_a_session_that_ended_has_no_catalog_in_memory_before_that(
    tmp_path: Path, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set aside, and part of a cycle, would stay until a calm moment comes."""
    # One that sets nothing aside: what is set aside could not be found here.
    monkeypatch.setattr(session_module, "collector", Collector())
    kinds = (Decoder, CatalogMirror)
    with service_in_process(tmp_path / "data") as service:
        gc.collect()
        before = {id(each) for each in gc.get_objects() if isinstance(each, kinds)}
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name)
        gc.disable()
        try:
            found = [
                weakref.ref(each)
                for each in gc.get_objects()
                if isinstance(each, kinds) and id(each) not in before
            ]
            assert {type(each()) for each in found} == set(kinds)
            service.drop_slot("s")
            service.call("DELETE", "/sources/main")
            wait_until(
                lambda: not any(each() for each in found), what="its decoder and catalog are gone"
            )
        finally:
            gc.enable()
