"""The exact writer beside PostgreSQL's own apply worker: one source, and two targets that begin
alike and are written to alike.

The source's changes come by PostgreSQL's pgoutput (a logical slot that SQL reads), so that nothing
of Spillway but the writer is between. The worker's conflicts are read from its server's log.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from harness.postgresql_subscription import wait_until
from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.conflicts.rules import ConflictRules
from spillway.apply.exact.own_tables import OWN_TABLES
from spillway.apply.exact.writer import ExactOptions, ExactWriter
from spillway.apply.skipped import Skipped
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.session import TargetPlan, TargetSession
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from harness.cluster import Cluster, Database
    from spillway.apply.conflicts.conflict import Conflict
    from spillway.apply.exact.dead_rows import DeadRows

_CONFLICT: Final = re.compile(
    r"^\S+ \S+ \S+ \[\d+\] (?:LOG|ERROR):  (conflict detected on relation .*)\n"
    r"(?:^\S+ \S+ \S+ \[\d+\] DETAIL:  (.*(?:\n\t.*)*))",
    re.MULTILINE,
)
_XID: Final = re.compile(r"in transaction \d+")
_TIME: Final = re.compile(r" at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\S*( UTC)?(?=[:.])")
_ORIGIN: Final = re.compile(r'origin "(pg_\d+|spillway_[^"]*)"')


def masked(text: str) -> str:
    """A conflict's text without what differs from run to run."""
    return _ORIGIN.sub("ours", _TIME.sub(" at T", _XID.sub("in transaction N", text)))


def settings() -> dict[str, Any]:
    """What a server needs that both run on."""
    return {
        "track_commit_timestamp": True,
        "max_prepared_transactions": 20,
        "max_logical_replication_workers": 8,
        "wal_retrieve_retry_interval": "100ms",
        # "log" leaves errors out.
        "log_min_messages": "warning",
        "log_line_prefix": "%m [%p] ",
        "log_timezone": "UTC",
        "max_replication_slots": 20,
    }


class Heard:
    """A log that keeps what it hears."""

    def __init__(self) -> None:
        self.conflicts: list[Conflict] = []

    def record(self, conflicts: Sequence[Conflict]) -> None:
        self.conflicts += conflicts

    @property
    def kinds(self) -> list[str]:
        return [one.kind.value for one in self.conflicts]

    @property
    def resolved(self) -> list[tuple[str, str]]:
        return [(one.kind.value, one.resolution.value) for one in self.conflicts]

    def texts(self) -> list[str]:
        return [masked(f"{one.message()}\n{one.detail()}") for one in self.conflicts]


@dataclass
class Source:
    """A database with a publication of all its tables."""

    database: Database

    @classmethod
    def make(cls, cluster: Cluster) -> Self:
        database = cluster.create_database(f"source_{secrets.token_hex(4)}")
        database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        return cls(database)

    def slot(self, *, two_phase: bool = False) -> str:
        name = f"slot_{secrets.token_hex(4)}"
        more = ", false, true" if two_phase else ""
        self.database.execute(
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput'{more})"
        )
        return name


@dataclass
class Ours:
    """A target that the exact writer fills."""

    source: Source
    database: Database
    slot: str
    two_phase: bool = False
    options: ExactOptions = field(default_factory=ExactOptions)
    heard: Heard = field(default_factory=Heard)
    user: str = ""
    #: of one group
    bytes_max: int = 1 << 24
    #: sees rows that are gone
    dead_rows: DeadRows | None = None
    plan: TargetPlan = field(init=False)

    @classmethod
    def make(cls, source: Source, *, two_phase: bool = False, **more: Any) -> Self:
        database = source.database.cluster.create_database(f"ours_{secrets.token_hex(4)}")
        return cls(source, database, source.slot(two_phase=two_phase), two_phase, **more)

    def __post_init__(self) -> None:
        dsn = self.database.cluster.dsn(self.database.name, *([self.user] if self.user else []))
        self.plan = TargetPlan(
            self.database.name,
            secrets.token_hex(8),
            dsn,
            own_tables=OWN_TABLES,
        )

    def messages(
        self, *, peek: bool = False, upto: Lsn | None = None, **options: str
    ) -> list[bytes]:
        """What the slot has, up to what ends at *upto*."""
        call = "peek" if peek else "get"
        given = {
            "proto_version": "3" if self.two_phase else "1",
            "publication_names": "everything",
            **options,
        }
        listed = ", ".join(f"'{name}', '{value}'" for name, value in given.items())
        return [
            bytes(data)
            for (data,) in self.source.database.query(
                f"SELECT data FROM pg_logical_slot_{call}_binary_changes('{self.slot}', %s, NULL,"
                f" {listed})",
                [None if upto is None else str(upto)],
            )
        ]

    def take(self, *, session: TargetSession | None = None, peek: bool = False) -> ExactWriter:
        """Write what the slot has from the session's position on, as a service sends it."""
        if session is None:
            with TargetSession(self.plan) as own:
                return self.take(session=own, peek=peek)
        self._begin_at(session.position)
        return self.write(session, self.messages(peek=peek))

    def skip(self, lsn: Lsn) -> None:
        """Do what the program does that begins at a slot which was moved to *lsn*."""
        with TargetSession(self.plan) as session:
            self._begin_at(session.position)
            skipped = Skipped(session, None)
            for group in self._groups(self.messages(peek=True, upto=lsn)):
                skipped.take(group)
            skipped.end(lsn)

    def _begin_at(self, position: Lsn) -> None:
        self.source.database.execute(
            "SELECT pg_replication_slot_advance(slot_name, %s) FROM pg_replication_slots"
            " WHERE slot_name = %s AND confirmed_flush_lsn < %s",
            [str(position), self.slot, str(position)],
        )

    def _groups(self, messages: Sequence[bytes]) -> Iterator[ChangeGroup]:
        group = ChangeGroup(self.bytes_max)
        payload = b"".join(messages)
        lengths = b"".join(struct.pack("=I", len(one)) for one in messages)
        first = 0
        while first < len(messages):
            first = group.feed(payload, lengths, first)
            yield group
            group.clear()

    def write(self, session: TargetSession, messages: Sequence[bytes]) -> ExactWriter:
        """Write messages."""
        tables = TargetTables(merging=self.options.rules.merging)
        writer = ExactWriter(session, tables, self.options, self.heard, dead_rows=self.dead_rows)
        for group in self._groups(messages):
            writer.write(group)
        return writer

    def follow(self, hint: str, remedy: str) -> None:
        """Do what an error's hint says: ``skip``, or ``alter`` with an option."""
        commands = re.findall(r"spillway subscription (\w+) (\w+) (.*?)(?=$|\. |; | \(or )", hint)
        ((told,),) = [
            [said]
            for command, name, said in commands
            if name == self.plan.subscription and remedy in f"{command} {said}".replace("'", "")
        ]
        if remedy == "skip":
            self.skip(Lsn.parse(told))
            return
        name, _, value = told.removeprefix("--target-option ").strip("'").partition("=")
        given = json.loads(value)
        self.options = (
            ExactOptions(rules=ConflictRules.parse(given))
            if name == "conflicts"
            else ExactOptions(**{name: given})
        )

    def rows(self, table: str, order: str = "1") -> list[tuple[Any, ...]]:
        return self.database.query(f"SELECT * FROM {table} ORDER BY {order}")


@dataclass
class Stock:
    """A target that PostgreSQL's own subscription fills."""

    source: Source
    database: Database
    name: str
    marks: int = 0

    @classmethod
    def make(cls, source: Source) -> Self:
        cluster = source.database.cluster
        name = f"stock_{secrets.token_hex(4)}"
        return cls(source, cluster.create_database(name), name)

    def subscribe(self, **options: str) -> None:
        """On the same server, so the slot is made by hand."""
        two_phase = options.get("two_phase") == "true"
        self.source.database.execute("CREATE TABLE IF NOT EXISTS mark (n int PRIMARY KEY)")
        self.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
        slot = self.source.slot(two_phase=two_phase)
        given = {"create_slot": "false", "slot_name": slot, "copy_data": "false", **options}
        listed = ", ".join(f"{name} = {value}" for name, value in given.items())
        self.database.execute(
            f"CREATE SUBSCRIPTION {self.name} CONNECTION '{self.source.database.dsn}'"
            f" PUBLICATION everything WITH ({listed})"
        )

    def catch_up(self) -> None:
        self.marks += 1
        self.source.database.execute("INSERT INTO mark VALUES (%s)", [self.marks])
        wait_until(
            "the worker has caught up",
            lambda: bool(self.database.query("SELECT FROM mark WHERE n = %s", [self.marks])),
            lambda: self.database.cluster.log_tail(30),
        )

    def wait_disabled(self) -> None:
        """Wait until an error has disabled it."""
        wait_until(
            "the worker has given up",
            lambda: (
                not self.database.value(
                    "SELECT subenabled FROM pg_subscription WHERE subname = %s", [self.name]
                )
            ),
            lambda: self.database.cluster.log_tail(30),
        )

    def finished_at(self, since: int) -> str:
        """Where the transaction ends that failed last, by the server's log from *since* on."""
        text = self.database.cluster.log_file.read_bytes()[since:].decode()
        return str(re.findall(r"finished at ([0-9A-F]+/[0-9A-F]+)", text)[-1])

    def skip(self, lsn: str) -> None:
        """Pass over the transaction that commits there."""
        self.database.execute(f"ALTER SUBSCRIPTION {self.name} SKIP (lsn = '{lsn}')")
        self.database.execute(f"ALTER SUBSCRIPTION {self.name} ENABLE")

    def conflicts(self, since: int) -> list[str]:
        """Conflicts in the server's log from its byte *since* on, of this database's tables."""
        text = self.database.cluster.log_file.read_bytes()[since:].decode()
        return [
            masked(f"{match[1]}\n{match[2]}".replace("\n\t", "\n"))
            for match in _CONFLICT.finditer(text)
        ]

    def log_size(self) -> int:
        return self.database.cluster.log_file.stat().st_size

    def drop(self) -> None:
        with suppress(Exception):
            self.database.execute(f"ALTER SUBSCRIPTION {self.name} DISABLE")
            self.database.execute(f"ALTER SUBSCRIPTION {self.name} SET (slot_name = NONE)")
            self.database.execute(f"DROP SUBSCRIPTION {self.name}")


def drop_target(database: Database) -> None:
    """Drop a target, and what it has in the whole server: an origin, prepared transactions."""
    for (gid,) in database.query(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    ):
        database.execute(f"ROLLBACK PREPARED '{gid}'")
    for (name,) in database.query(
        "SELECT roname FROM pg_replication_origin WHERE roname LIKE %s",
        [f"spillway_{database.name}_%"],
    ):
        database.execute("SELECT pg_replication_origin_drop(%s)", [name])
    database.cluster.drop_database(database.name)
