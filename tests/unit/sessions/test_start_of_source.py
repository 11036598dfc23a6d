"""What the start of a source reads and writes of its databases, and what readiness says until all
of them are opened.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spillway import instants
from spillway.errors import CorruptTransactionLog
from spillway.instants import Instant
from spillway.receiver.primary import SourceDatabase
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import ReceiverState
from spillway.service.readiness import NOT_STREAMING_S, obstacles_of
from spillway.service.settings import EngineSettings
from spillway.sessions import layout as layout_module
from spillway.sessions import source as source_module
from spillway.sessions.layout import DatabaseLayout, SourceLayout
from spillway.sessions.source import Source
from spillway.storage.disk_reserve import DiskReserve
from spillway.store.rows import SourceRow

if TYPE_CHECKING:
    from pathlib import Path

ROW = SourceRow(
    name="main",
    dsn="host=127.0.0.1 port=1",
    system_id="7000000000000000001",
    server_version_num=180000,
    timeline=1,
    wal_segment_size=1 << 20,
    slot_name="spillway_main",
    capture={},
)
BOTH = ["database.json", "database.copy.json"]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    replace_file = layout_module.replace_file

    def noted(path: Path, *arguments: Any, **named: Any) -> None:
        names.append(path.name)
        replace_file(path, *arguments, **named)

    monkeypatch.setattr(layout_module, "replace_file", noted)
    return names


def test_what_is_described_already_is_not_written_again(tmp_path: Path, written: list[str]) -> None:
    layout = SourceLayout(tmp_path, DiskReserve(tmp_path / "reserve"))
    database = SourceDatabase("postgres", 5, "UTF8")
    layout.remember_database(database)
    # In this order: that the copy says it shows that the other one is durable.
    assert written == BOTH
    layout.remember_database(database)
    assert written == BOTH
    layout.database(5).describe(streaming=[1, 2])
    assert written == BOTH * 2
    layout.remember_database(database)
    assert written == BOTH * 2
    assert layout.database(5).streaming() == (1, 2)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("damage", ["gone", "damaged", "older"])
def test_a_description_of_which_one_file_is_not_right_is_written_again(
    tmp_path: Path, written: list[str], name: str, damage: str
) -> None:
    layout = SourceLayout(tmp_path, DiskReserve(tmp_path / "reserve"))
    database = SourceDatabase("postgres", 5, "UTF8")
    layout.remember_database(database)
    path = layout.database(5).root / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_text("" if damage == "damaged" else path.read_text().replace("UTF8", "LATIN1"))
    written.clear()
    layout.remember_database(database)
    assert written == BOTH
    assert layout.database(5).database() == database


class Opened:
    """A session that only notes that it began."""

    def __init__(self, began: list[str], database: str, refused: str) -> None:
        if database == refused:
            raise CorruptTransactionLog("its log is another cluster's", hint="Remove it.")
        self._began, self._database = began, database
        self.signs = SimpleNamespace(continues=False)

    def start(self) -> None:
        self._began.append(self._database)

    def info(self) -> Any:
        return SimpleNamespace(state="current", error_code=None, database=self._database)


class Stage:
    """A source whose databases were decoded before; :meth:`start` gives what readiness said as each
    was opened.
    """

    def __init__(self, root: Path, databases: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = SourceLayout(root, DiskReserve(root / "reserve"))
        WalWriter(
            self.layout.wal, system_id=ROW.system_id, segment_size=ROW.wal_segment_size, timeline=1,
            start_lsn=ROW.wal_segment_size,
        ).close()  # fmt: skip
        for oid in range(databases):
            self.layout.remember_database(SourceDatabase(f"d{oid}", oid + 5, "UTF8"))
        self.refused = ""
        self.said: list[list[str]] = []
        self.source = Source(ROW, self.layout, EngineSettings())
        now = Instant.now()
        receiver = self.receiver = SimpleNamespace(
            state=ReceiverState.STREAMING, error=None, since=now, heard=now, start=lambda: None
        )
        monkeypatch.setattr(source_module, "WalReceiver", lambda *_, **__: receiver)
        monkeypatch.setattr(source_module, "Session", self._open)

    def _open(self, _row: SourceRow, database: SourceDatabase, *_: object) -> Opened:
        self.said.append(self.obstacles())
        return Opened([], database.name, self.refused)

    def obstacles(self) -> list[str]:
        watch: Any = SimpleNamespace(obstacle=lambda: None)
        reserve: Any = SimpleNamespace(full_since=None)
        return [o.code for o in obstacles_of([self.source], watch, reserve, None)]


def test_readiness_waits_for_every_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, 3, monkeypatch)
    stage.source.start(())
    assert stage.said == [["not_ready"]] * 3
    assert stage.obstacles() == []


def test_a_database_that_is_not_opened_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, 3, monkeypatch)
    stage.refused = "d1"
    with pytest.raises(CorruptTransactionLog):
        stage.source.start(())
    assert stage.obstacles() == [CorruptTransactionLog.code]
    stage.refused = ""
    stage.source.start(())
    assert stage.obstacles() == []


@pytest.mark.parametrize("set_by", [timedelta(hours=-1), timedelta(hours=1)])
def test_signs_are_the_same_whatever_the_clock_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by: timedelta
) -> None:
    ahead = timedelta()
    wall = SimpleNamespace(now=lambda tz: datetime.now(tz) + ahead)
    monkeypatch.setattr(instants, "datetime", wall)
    stage = Stage(tmp_path, 1, monkeypatch)
    stage.source.start(())
    receiver = stage.receiver
    # One that is heard is heard …
    ahead = set_by
    assert stage.source.info().state == "streaming"
    assert stage.obstacles() == []
    # … one that has been silent for long is not …
    with monkeypatch.context() as impatient:
        impatient.setattr(source_module, "_SILENT_S", 0.0)
        assert stage.source.info().state == "waiting"
    # … and what has been so for long keeps the service from its work, and what has not does not.
    receiver.state = ReceiverState.CONNECTING
    assert stage.obstacles() == []
    receiver.since = Instant(receiver.since.at, receiver.since.monotonic_s - NOT_STREAMING_S)
    assert stage.obstacles() == ["not_ready"]


def test_a_file_of_tomorrow_is_taken_for_one_of_now() -> None:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    assert Instant.known_as(ahead).at == ahead
    assert Instant.known_as(ahead).ago_s < 3600 > Instant.known_as(ahead).ago_s >= 0
    assert Instant.known_as(datetime.now(UTC) - timedelta(hours=1)).ago_s >= 3600


def test_each_description_is_read_as_often_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    reads: dict[int, Counter[str]] = {}
    for number in (2, 12):
        stage = Stage(tmp_path / str(number), number, monkeypatch)
        written.clear()
        reads[number] = Counter()
        describe = DatabaseLayout.database

        def noted(
            layout: DatabaseLayout, counter: Counter[str] = reads[number], of: Any = describe
        ) -> Any:
            counter[layout.root.name] += 1
            return of(layout)

        with monkeypatch.context() as patched:
            patched.setattr(DatabaseLayout, "database", noted)
            stage.source.start(())
        assert len(reads[number]) == number
        assert not written
    assert {*reads[2].values()} == {*reads[12].values()}
