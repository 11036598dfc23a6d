"""A subscription's table sync by itself: a service's slot, a target, and no worker but what a test
says of one. As a program it makes the first copy, to be killed meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from harness.postgresql_subscription import Subscription
from spillway.apply.commands.app import OPTIONS_VARIABLE, SOURCE_VARIABLE
from spillway.apply.exact import own_tables
from spillway.apply.selection import Selection
from spillway.apply.sync.catching_up import SlotCatchUp
from spillway.apply.sync.settings import SyncSettings
from spillway.apply.sync.states import TABLES_SQL
from spillway.apply.sync.table_sync import TableSync
from spillway.apply.target.connection import connect_target
from spillway.apply.target.own_schema import PROGRESS_SQL, prepare_schema
from spillway.apply.target.session import TargetPlan
from spillway.apply.target.stop import Stop
from spillway.consumer.connect import exports_of
from spillway.pg.lsn import Lsn
from spillway.stream.client import get_slot
from spillway.subscriber.supervisor import STOP_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.cluster import Database
    from harness.service import Service
    from spillway.apply.conflicts.conflict import Conflict
    from spillway.apply.exact.writer import ExactOptions


#: within which a program that is told to has ended: before its supervisor would kill it
_BOUND_S: Final = STOP_GRACE_S


@dataclass
class Told:
    """What was told: conflicts, and sentences."""

    conflicts: list[Conflict] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def record(self, conflicts: Sequence[Conflict]) -> None:
        self.conflicts += conflicts


class ApplyProgram:
    """``spillway apply run`` in a process of its own, and no supervisor who would kill it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._words = [sys.executable, "-m", "spillway.cli", "apply", "run", *words]
        self._environment = {**os.environ, **environment}
        self._directory = tempfile.TemporaryDirectory()
        self._log = (Path(self._directory.name) / "log").open("w+b")
        self._words.append(f"--status-file={self._directory.name}/status.json")
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            self._words, env=self._environment, stdout=self._log, stderr=self._log
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Have a signal end it, as nothing else does, and well."""
        assert self._process is not None
        self._process.send_signal(number)
        assert (code := self._process.wait(_BOUND_S)) == 0, f"it ended with {code}\n{self.told()}"
        self._process = None

    def status(self) -> dict[str, Any]:
        """What its status file says."""
        told: dict[str, Any] = json.loads((Path(self._directory.name) / "status.json").read_text())
        return told

    def told(self) -> str:
        """What it said."""
        self._log.seek(0)
        return self._log.read().decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if self._process is not None and kind is None:
                self.end()
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._log.close()
            self._directory.cleanup()


@dataclass(frozen=True)
class Ends:
    """What a table sync is between."""

    source_dsn: str
    target_dsn: str
    grpc: str
    slot: str
    publications: tuple[str, ...]
    name: str = "synced"

    @classmethod
    def make(
        cls,
        service: Service,
        source: Database,
        target: Database,
        publications: Sequence[str],
        name: str = "synced",
        of: str = "main",
        **slot: Any,
    ) -> Self:
        """Make the slot of a source, and our tables on the target."""
        service.create_slot(name, source.name, "pgoutput", source=of, **slot)
        ends = cls(source.dsn, target.dsn, service.grpc_address, name, tuple(publications), name)
        with connect_target(target.dsn, "test") as connection:
            prepare_schema(
                connection,
                (
                    *TABLES_SQL,
                    PROGRESS_SQL,
                    own_tables.CONFLICTS,
                    own_tables.DEAD_LETTER,
                    own_tables.PREPARED,
                ),
            )
        return ends

    @property
    def plan(self) -> TargetPlan:
        return TargetPlan(self.name, "0" * 32, self.target_dsn)

    def catch_up(
        self, told: Told, wishes: ExactOptions | None = None, stop: Stop | None = None
    ) -> SlotCatchUp:
        """What reads the slot beside whoever has it, and writes exactly."""
        options = Selection(publications=self.publications).plugin_options(
            two_phase=False, only_local=False
        )
        return SlotCatchUp(self.grpc, self.slot, options, self.plan, told, stop or Stop(), wishes)

    def sync(self, told: Told, **settings: Any) -> TableSync:
        """A table sync, as the worker makes it."""
        stop = Stop()
        return TableSync(
            self.name,
            SyncSettings(self.publications, origin=self.plan.origin, **settings),
            self.source_dsn,
            lambda: connect_target(
                self.target_dsn, "test", {"session_replication_role": "replica"}, stop
            ),
            exports_of({"grpc": self.grpc}, self.slot),
            self.catch_up(told, stop=stop),
            stop,
            told.sentences.append,
        )

    def position(self) -> int:
        """Where the slot was confirmed."""
        return int(get_slot(self.grpc, self.slot).confirmed_flush_lsn)

    def decoded(self) -> int:
        """Up to where the slot has everything."""
        return int(get_slot(self.grpc, self.slot).decoded_lsn)

    def killed_at(self, failpoints: str, **settings: Any) -> None:
        """Make the first copy in a process that is killed at a failpoint."""
        ended = subprocess.run(
            [sys.executable, "-m", "harness.table_sync", json.dumps([asdict(self), settings])],
            env={
                **os.environ,
                "SPILLWAY_FAILPOINTS": failpoints,
                "PYTHONPATH": str(Path(__file__).parents[1]),
            },
            check=False,
            capture_output=True,
            timeout=300,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()

    def program(self, *more: str, **wished: Any) -> ApplyProgram:
        """The program that applies, not begun yet; *more* are options of its command line, *wished*
        of the target.
        """
        words = [
            f"--subscription={self.name}", f"--identity={self.plan.identity}",
            f"--slot={self.slot}", f"--grpc={self.grpc}",
            *(f"--publication={name}" for name in self.publications),
            *more,
        ]  # fmt: skip
        options = json.dumps({"dsn": self.target_dsn, **wished})
        return ApplyProgram(words, {OPTIONS_VARIABLE: options, SOURCE_VARIABLE: self.source_dsn})

    def apply_the_rest(self, sync: TableSync, told: Told, upto: int) -> None:
        """Do what the worker would: apply from each table's LSN on, up to *upto*."""
        by_lsn: dict[int, set[tuple[str, str]]] = {}
        for table in sync.states.all().values():
            assert table.is_synchronized, table
            by_lsn.setdefault(table.lsn, set()).add(table.key)
        for lsn, tables in by_lsn.items():
            self.catch_up(told)(frozenset(tables), lsn, upto, lambda _connection, _names: None)


class Copied(Subscription):
    """For its comparison: nothing here is CREATE SUBSCRIPTION's."""

    def _told(self) -> str:
        return self.database.cluster.log_tail(30)


def lsn_now(database: Database) -> int:
    """Where the server's WAL ends."""
    return int(Lsn.parse(str(database.value("SELECT pg_current_wal_insert_lsn()::text"))))


def main() -> None:
    ends, settings = json.loads(sys.argv[1])
    ends["publications"] = tuple(ends["publications"])
    given = Ends(**ends)
    sync = given.sync(Told(), **settings)
    sync.first_copy(given.position())
    sync.stop()


if __name__ == "__main__":
    main()
