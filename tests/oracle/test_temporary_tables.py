"""What comes and goes in catalogs: temporary tables above all, by a seed, on every major.

Held against three things: PostgreSQL's lines; the mirror's own rules in Python
(``catalog/redo.py``), which a second decoder follows for every record and must come to the same
bytes by; and how often Python was asked.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.decoding_session import DecodingSession, RenderingSink
from harness.tiers import majors_by_tier
from spillway.catalog import redo
from spillway.catalog.serialization import serialize
from spillway.decoding.decoder import Decoder
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.catalog.mirror import CatalogMirror

SEEDS = (1, 2)
STEPS = 400
CLIENTS = 3
COLUMNS = ("v text", "n numeric DEFAULT 3", "s serial", "a int[]", "id int PRIMARY KEY", "b bytea")


class Client:
    """One connection and what it has open; nothing that it does waits for another's locks."""

    def __init__(self, connection: psycopg.Connection, name: str, rng: random.Random) -> None:
        self.connection = connection
        self.name = name
        self.random = rng
        self.made = 0
        self.tables: list[str] = []
        self.savepoints = 0

    def step(self) -> None:
        """Do something; what fails ends the transaction."""
        try:
            self.connection.execute(self._statement())  # type: ignore[call-overload]
        except psycopg.Error:
            if self.savepoints:
                self.connection.execute(f"ROLLBACK TO s{self.savepoints - 1}")  # type: ignore[call-overload]
            elif self._in_transaction:
                self.connection.execute("ROLLBACK")

    @property
    def _in_transaction(self) -> bool:
        return self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def _statement(self) -> str:
        if not self._in_transaction and self.random.random() < 0.7:
            return "BEGIN"
        kinds = [
            self._create,
            self._create,
            self._drop,
            self._alter,
            self._insert,
            self._insert,
            self._insert,
        ]
        if self._in_transaction:
            kinds += [self._nest, self._nest, self._end, self._end]
        return self.random.choice(kinds)()

    def _create(self) -> str:
        self.made += 1
        table = f"{self.name}_{self.made}"
        self.tables.append(table)
        columns = ", ".join(self.random.sample(COLUMNS, self.random.randint(1, 4)))
        kind, end = self.random.choice(
            [
                ("TEMP", " ON COMMIT DROP"),
                ("TEMP", " ON COMMIT DROP"),
                ("TEMP", ""),
                ("", ""),
                ("UNLOGGED", ""),
            ]
        )
        return f"CREATE {kind} TABLE {table} ({columns}){end}"

    def _some(self) -> str:
        return self.random.choice(self.tables[-4:] or ["nothing"])

    def _drop(self) -> str:
        return f"DROP TABLE IF EXISTS {self._some()}"

    def _alter(self) -> str:
        self.made += 1
        return self.random.choice(
            (
                "ALTER TABLE IF EXISTS {0} ADD COLUMN c{1} text",
                "ALTER TABLE IF EXISTS {0} DROP COLUMN IF EXISTS v",
                "ALTER TABLE IF EXISTS {0} RENAME TO {0}_r",
                "CREATE INDEX ON {0} ((1))",
                "ALTER TABLE IF EXISTS {0} REPLICA IDENTITY FULL",
                (
                    "CREATE TYPE t{2}{1} AS ENUM ('a', 'b'); ALTER TABLE IF EXISTS {0} ADD COLUMN "
                    "e{1} t{2}{1} DEFAULT 'b'"
                ),
                "TRUNCATE {0}",
                "ANALYZE {0}",
                "CREATE TEMP VIEW w{1} AS SELECT * FROM {0}",
                "ALTER TABLE own_{2} ADD COLUMN c{1} int",
            )
        ).format(self._some(), self.made, self.name)

    def _insert(self) -> str:
        table = self.random.choice(["base", f"own_{self.name}", f"own_{self.name}", self._some()])
        return f"INSERT INTO {table} DEFAULT VALUES"

    def _nest(self) -> str:
        if self.savepoints and self.random.random() < 0.5:
            self.savepoints -= 1
            return self.random.choice(
                [
                    f"ROLLBACK TO s{self.savepoints}; RELEASE s{self.savepoints}",
                    f"RELEASE s{self.savepoints}",
                ]
            )
        self.savepoints += 1
        return f"SAVEPOINT s{self.savepoints - 1}"

    def _end(self) -> str:
        self.savepoints = 0
        return self.random.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])


def work(session: DecodingSession, seed: int) -> None:
    """Let several clients work, with what frees rows' places now and then."""
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(CLIENTS):
            connection = stack.enter_context(session.database.connect())
            name = f"c{seed}{number}"
            connection.execute(f"CREATE TABLE own_{name} (id serial, v text)")
            clients.append(Client(connection, name, rng))
        for _ in range(STEPS):
            roll = rng.random()
            if roll < 0.03:
                session.database.execute("VACUUM pg_class")
                session.database.execute("VACUUM pg_attribute")
            elif roll < 0.04:
                session.database.execute("CHECKPOINT")
            else:
                rng.choice(clients).step()


def in_python(session: DecodingSession) -> Decoder:
    """Make a second decoder of the session's state, in which every record goes through the rules in
    Python.
    """
    decoder = Decoder.restore(
        session.decoder.serialize(),
        session.version,
        RenderingSink("test_decoding", session.options, session.context),
        spill_dir=session.directory / "python",
        start_decoding_at=session.decoder.position,
    )
    decoder.mirror.plain_redo.set_storages([])
    vars(decoder.mirror)["number_storages"] = lambda _: None
    return decoder


def come_level(session: DecodingSession, *decoders: Decoder) -> None:
    """Have all decode to the end of WAL."""
    session.decode()
    for _ in range(20):
        for decoder in (session.decoder, *decoders):
            for batch in WalDirectory(session.database.cluster.wal_directory).batches(
                decoder.position
            ):
                decoder.process(batch)
        if len({d.position for d in (session.decoder, *decoders)}) == 1:
            return
    raise AssertionError("the server does not come to rest")


def what_is_found(mirror: CatalogMirror) -> list[list[dict[Any, dict[int, Any]]]]:
    """Every catalog's indexes, with the rows that are found by them, all pages unpacked."""
    for storage in mirror.heaps.locations.current.values():
        list(storage.tuples())
    return [
        [
            {key: {tup.tid: tup.row for tup in storage.indexed(number, key)} for key in index}
            for number, index in enumerate(storage.indexes)
        ]
        for _, storage in sorted(mirror.heaps.locations.current.items())
    ]


@pytest.fixture(params=majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}")
def session(request, session_cluster, tmp_path) -> Iterator[DecodingSession]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"passing_{secrets.token_hex(4)}")
    database.execute("CREATE TABLE base (id serial, v text)")
    session = DecodingSession(database, tmp_path, options={"skip-empty-xacts": "1"})
    session.decode()
    yield session
    session.close()
    session.slot.drop()
    cluster.drop_database(database.name)


def test_what_comes_and_goes_is_followed(session):
    other = in_python(session)
    sink = other._sink
    assert isinstance(sink, RenderingSink)
    known = len(session.sink.lines)
    try:
        for seed in SEEDS:
            work(session, seed)
            come_level(session, other)
            mirror = session.decoder.mirror
            assert what_is_found(mirror) == what_is_found(other.mirror)
            assert serialize(mirror) == serialize(other.mirror)
        assert session.sink.lines[known:] == sink.lines
        assert len(session.assert_equal_to_server()) > 100
    finally:
        other.close()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_temporary_table_asks_python_for_nothing(session, monkeypatch, end):
    """But for page images after a checkpoint, and what prunes pages."""
    applied = []
    apply = redo.apply
    monkeypatch.setattr(
        redo, "apply", lambda mirror, record: (applied.append(record), apply(mirror, record))
    )
    built = []
    resolve = session.decoder.mirror.registry.intern
    monkeypatch.setattr(
        session.decoder.mirror.registry, "intern", lambda d: (built.append(d), resolve(d))[1]
    )
    with session.database.connect() as connection:
        for number in range(60):
            connection.execute("BEGIN")
            connection.execute("CREATE TEMP TABLE passing (id int, v text) ON COMMIT DROP")
            connection.execute("INSERT INTO passing VALUES (1)")
            connection.execute(f"INSERT INTO base VALUES ({number})")
            connection.execute(end)
    session.assert_equal_to_server()
    # 30 or more changes of catalogs in each transaction.
    assert len(applied) < 6 * 60
    assert len(built) < 20
