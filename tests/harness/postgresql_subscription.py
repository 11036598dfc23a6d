"""``CREATE SUBSCRIPTION`` on a real server: a publisher, a subscriber, a workload, and whether they
are equal.

Where the subscription connects is a parameter: the publisher's own walsender, or a service's port.
What differs between majors is chosen here, once: row filters, column lists and ``two_phase`` came
with 15, ``origin`` and parallel streaming with 16; a subscriber of 14 copies without filters.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from harness.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from harness.cluster import Database

#: For whole tests: the machine may have others at work.
LIMIT_S: Final = 300.0
TABLES: Final = 50
_MAJOR_OF_FILTERS: Final = 15
_MAJOR_OF_TWO_PHASE: Final = 15
_MAJOR_OF_ORIGIN: Final = 16
_LARGE_ROWS: Final = 1500
_LOADS_MAX: Final = 4

_KINDS: Final = """CREATE TABLE kinds (
    id int PRIMARY KEY, flag bool, small smallint, large bigint, real4 real, real8 double precision,
    exact numeric, words text, letter char(3), vary varchar(20), bytes bytea, day date,
    moment timestamptz, plain timestamp, span interval, doc jsonb, id_of uuid, many int[],
    names text[], extent int4range, address inet, bits bit varying(20))"""
_KINDS_ROW: Final = """INSERT INTO kinds SELECT
    %(id)s, %(n)s %% 2 = 0, %(n)s, %(n)s::bigint << 20, %(n)s / 3.0, %(n)s / 7.0,
    %(n)s / 11.0, repeat('wörter ', %(n)s %% 700), 'ab', 'v' || %(n)s,
    decode(md5(%(n)s::text), 'hex'), date '2000-01-01' + %(n)s,
    timestamptz '2026-01-01' + %(n)s * interval '1 hour',
    timestamp '2026-01-01' - %(n)s * interval '1 second', %(n)s * interval '1 day 3 minutes',
    jsonb_build_object('n', %(n)s, 'nothing', NULL), md5(%(n)s::text)::uuid, ARRAY[%(n)s, NULL, 7],
    ARRAY['a b', '"', ''], int4range(0, %(n)s), '10.0.0.1'::inet + %(n)s, B'1011'"""

#: Publisher's tables that are named; the fifty are t00 to t49.
_TABLES_ON_BOTH: Final = (
    "CREATE TABLE keyless (a int, b text)",
    "ALTER TABLE keyless REPLICA IDENTITY FULL",
    _KINDS,
    "CREATE TABLE prepared (id bigint PRIMARY KEY, s text)",
    "CREATE TABLE filtered (id bigint PRIMARY KEY, a int, s text)",
    "ALTER TABLE filtered REPLICA IDENTITY FULL",
    "CREATE TABLE narrow (id bigint PRIMARY KEY, a int, secret text)",
    "CREATE TABLE elsewhere (id bigint PRIMARY KEY, is_local bool)",
    "CREATE TABLE marker (n int PRIMARY KEY)",
)
_PARTITIONS_OF_PUBLISHER: Final = (
    "CREATE TABLE parted (id bigint PRIMARY KEY, s text) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (5000)",
    "CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (5000) TO (MAXVALUE)",
)
_PARTITIONS_OF_SUBSCRIBER: Final = (
    "CREATE TABLE parted (id bigint PRIMARY KEY, s text) PARTITION BY HASH (id)",
    *(
        f"CREATE TABLE parted_{i} PARTITION OF parted FOR VALUES WITH (MODULUS 3, REMAINDER {i})"
        for i in range(3)
    ),
)


_WENT_WRONG: Final = re.compile(
    # A worker that begins anew gives its place free a moment before its origin: from 16 on the
    # launcher may have its successor there by then, who ends, and comes again.
    r" (?:ERROR|FATAL|PANIC):  (?!.*(?:is starting up|due to administrator command"
    r"|replication origin with ID \d+ is already active for PID))"
    r"|conflict detected"
)
_FILLED: Final = (
    b"INSERT INTO keyless SELECT n / 3, 'twice' FROM generate_series(1, 300) n",
    b"INSERT INTO filtered SELECT -n, n - 50, 'x' FROM generate_series(1, 100) n",
    b"INSERT INTO narrow SELECT -n, n, 'secret' FROM generate_series(1, 100) n",
    b"INSERT INTO parted SELECT n * -100, 'x' FROM generate_series(1, 100) n",
)


def make_tables(database: Database, numbered: int, partitions: Sequence[str]) -> None:
    """Make the tables that both sides have; each has *partitions* of its own."""
    tables = [
        f"CREATE TABLE t{i:02} (id bigint PRIMARY KEY, v int, s text)" for i in range(numbered)
    ]
    with database.connect() as connection, connection.transaction():
        for statement in (*tables, *_TABLES_ON_BOTH, *partitions):
            connection.execute(statement.encode())


def wait_until(what: str, holds: Callable[[], bool], told: Callable[[], str] = str) -> None:
    """Wait until *holds*; *told* says more when it does not in time."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not in {LIMIT_S:.0f} s: {what}\n{told()}"
        time.sleep(0.1)


def subscriber_cluster(major: int) -> Cluster:
    """A server to subscribe with, not started yet: its workers come back soon."""
    settings: dict[str, Any] = {
        "max_logical_replication_workers": 20,
        "max_sync_workers_per_subscription": 4,
        "max_worker_processes": 40,
        "wal_retrieve_retry_interval": "200ms",
        # "log" leaves errors out.
        "log_min_messages": "warning",
    }
    return Cluster(major, **settings)


def publisher_cluster(major: int) -> Cluster:
    """A server to publish from, not started yet: its own walsender streams what is large."""
    return Cluster(major, logical_decoding_work_mem="64kB")


class Publication:
    """The publisher's tables and what is published of them, for subscribers of a major.

    Of *numbered* tables, t00 and so on, the first one is large.
    """

    def __init__(self, database: Database, subscriber_major: int, numbered: int) -> None:
        self.database = database
        self.numbered = numbered
        self.has_filters = min(database.cluster.major, subscriber_major) >= _MAJOR_OF_FILTERS
        make_tables(database, numbered, _PARTITIONS_OF_PUBLISHER)
        whole = [f"t{i:02}" for i in range(numbered)]
        whole += ["keyless", "kinds", "prepared", "elsewhere", "marker"]
        chosen = [self.chosen(table) for table in ("filtered", "narrow")]
        database.execute(f"CREATE PUBLICATION whole FOR TABLE {', '.join(whole)}")
        database.execute(f'CREATE PUBLICATION "Chosen, ones" FOR TABLE {", ".join(chosen)}')
        database.execute(
            "CREATE PUBLICATION by_root FOR TABLE parted WITH (publish_via_partition_root)"
        )
        self.names = ["whole", "Chosen, ones", "by_root"]
        #: what equals on both sides: a table, its columns, and which rows
        self.compared = dict.fromkeys((*whole, "parted"), ("*", "true"))
        self.compared["filtered"] = ("*", "a > 0" if self.has_filters else "true")
        self.compared["narrow"] = ("id, a", "true")

    def chosen(self, table: str) -> str:
        """What ``ADD TABLE`` is given: with the rows and columns that are published of it."""
        what = {"filtered": " WHERE (a > 0)", "narrow": " (id, a)"} if self.has_filters else {}
        return table + what.get(table, "")

    def fill(self) -> None:
        """Write what is there before anyone subscribes."""
        with self.database.connect() as connection, connection.transaction():
            for i in range(self.numbered):
                rows = 20_000 if i == 0 else 100
                connection.execute(
                    f"INSERT INTO t{i:02} SELECT -n, n, repeat('x', n % 50)"
                    f" FROM generate_series(1, {rows}) n"
                )
            for n in range(20):
                connection.execute(_KINDS_ROW, {"id": -n - 1, "n": n})
            for statement in _FILLED:
                connection.execute(statement)

    def add(self, table: str, subscriber: Database) -> None:
        """Publish one more table, with some rows, which the subscriber has too."""
        for database in (self.database, subscriber):
            database.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, s text)")
        self.database.execute(
            f"INSERT INTO {table} SELECT -n, 'before' FROM generate_series(1, 500) n"
        )
        self.database.execute(f"ALTER PUBLICATION whole ADD TABLE {table}")
        self.compared[table] = ("*", "true")

    def remove(self, table: str) -> None:
        """Don't publish a table any longer."""
        self.database.execute(f"ALTER PUBLICATION whole DROP TABLE {table}")
        del self.compared[table]


class Writer(threading.Thread):
    """Runs random transactions on the publisher until it is told to stop, whoever is killed."""

    def __init__(self, publication: Publication, seed: int, number: int, of: int) -> None:
        super().__init__(name=f"writer {number}")
        self._database = publication.database
        self._tables = publication.numbered
        self._random = random.Random(f"{seed}/{number}")
        self._number, self._of = number, of
        self._last_id = 0
        self.stop = threading.Event()
        self.commits = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    with self._database.connect() as connection:
                        self._write(connection)
                except psycopg.OperationalError:
                    # The server was killed, or this was the victim of a deadlock.
                    time.sleep(0.1)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def _write(self, connection: psycopg.Connection[Any]) -> None:
        kinds = [
            (self._small, 10),
            (self._keyless, 4),
            (self._large, 1),
            (self._prepared, 2),
            (self._parted, 3),
            (self._chosen, 4),
            (self._kinds, 2),
            (self._truncate, 0.3),
        ]
        while not self.stop.is_set():
            (kind,) = self._random.choices(
                [one for one, _ in kinds], [weight for _, weight in kinds]
            )
            kind(connection)
            self.commits += 1
            time.sleep(self._random.uniform(0, 0.03))

    def _new_id(self) -> int:
        """An id that no other writer uses."""
        self._last_id += 1
        return self._last_id * self._of + self._number

    def _some_id(self) -> int:
        return self._random.randint(-100, max(1, self._last_id * self._of))

    def _table(self) -> str:
        return f"t{self._random.randrange(self._tables):02}"

    def _small(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(self._random.randint(1, 5)):
                self._one(connection, self._table())
            if self._random.random() < 0.2:
                connection.execute("SAVEPOINT s")
                self._one(connection, self._table())
                connection.execute("ROLLBACK TO s")

    def _one(self, connection: psycopg.Connection[Any], table: str) -> None:
        what = self._random.random()
        if what < 0.6:
            connection.execute(
                f"INSERT INTO {table} VALUES (%s, %s, repeat('y', %s))",
                [self._new_id(), self._random.randrange(1000), self._random.choice((1, 9, 3000))],
            )
        elif what < 0.8:
            connection.execute(f"UPDATE {table} SET v = v + 1 WHERE id = %s", [self._some_id()])
        elif what < 0.9:
            # The key too.
            connection.execute(
                f"UPDATE {table} SET id = %s WHERE id = %s", [self._new_id(), self._some_id()]
            )
        else:
            connection.execute(f"DELETE FROM {table} WHERE id = %s", [self._some_id()])

    def _keyless(self, connection: psycopg.Connection[Any]) -> None:
        one = "(SELECT ctid FROM keyless LIMIT 1 FOR UPDATE SKIP LOCKED)"
        connection.execute(
            self._random.choice(
                (
                    b"INSERT INTO keyless VALUES (1, 'same'), (1, 'same'), (NULL, NULL)",
                    f"DELETE FROM keyless WHERE ctid = {one}".encode(),
                    f"UPDATE keyless SET a = 7 WHERE ctid = {one}".encode(),
                )
            )
        )

    def _large(self, connection: psycopg.Connection[Any]) -> None:
        """A transaction that is streamed, parts of which may be undone, or all."""
        table = self._table()
        first = self._new_id()
        self._last_id += 2 * _LARGE_ROWS
        insert = (
            f"INSERT INTO {table} SELECT %s + n * {self._of}, n, repeat('z', 60)"
            f" FROM generate_series({{}}) n"
        )
        connection.execute("BEGIN")
        connection.execute(insert.format(f"1, {_LARGE_ROWS}").encode(), [first])
        connection.execute("SAVEPOINT s")
        connection.execute(insert.format(f"{_LARGE_ROWS + 1}, {2 * _LARGE_ROWS}").encode(), [first])
        if self._random.random() < 0.5:
            connection.execute("ROLLBACK TO s")
        connection.execute(
            f"DELETE FROM {table} WHERE id BETWEEN %s AND %s AND v %% 10 <> 0",
            [first, first + 2 * _LARGE_ROWS * self._of],
        )
        connection.execute(self._random.choice((b"COMMIT", b"COMMIT", b"ROLLBACK")))

    def _prepared(self, connection: psycopg.Connection[Any]) -> None:
        gid = f"w{self._number}_{self._new_id()}"
        rows = self._random.choice((1, 1, _LARGE_ROWS))
        first = self._last_id + 1
        self._last_id += rows
        connection.execute("BEGIN")
        connection.execute(
            f"INSERT INTO prepared SELECT (%s + n)::bigint * {self._of} + %s, repeat('p', 60)"
            " FROM generate_series(1, %s) n",
            [first, self._number, rows],
        )
        connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        if self._random.random() < 0.5:
            self._small(connection)
            time.sleep(self._random.uniform(0, 0.2))
        how = self._random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        connection.execute(f"{how} PREPARED '{gid}'".encode())

    def _parted(self, connection: psycopg.Connection[Any]) -> None:
        if self._random.random() < 0.6:
            # Ids of one writer are its own, in both partitions.
            number = self._new_id() + self._random.choice((0, 1_000_000 * self._of))
            connection.execute("INSERT INTO parted VALUES (%s, 'y')", [number])
        else:
            # To the other partition.
            connection.execute(
                f"UPDATE parted SET id = id + {10_000_000 * self._of} WHERE id = %s",
                [self._some_id()],
            )

    def _chosen(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(3):
                number = self._random.randint(-20, 20)
                if self._random.random() < 0.5:
                    key = self._new_id()
                    connection.execute("INSERT INTO filtered VALUES (%s, %s, 'y')", [key, number])
                    connection.execute("INSERT INTO narrow VALUES (%s, %s, 's')", [key, number])
                else:
                    key = self._some_id()
                    connection.execute("UPDATE filtered SET a = %s WHERE id = %s", [number, key])
                    connection.execute(
                        "UPDATE narrow SET a = %s, secret = 't' WHERE id = %s", [number, key]
                    )

    def _kinds(self, connection: psycopg.Connection[Any]) -> None:
        number = self._random.randrange(1000)
        connection.execute(_KINDS_ROW, {"id": self._new_id(), "n": number})
        connection.execute("UPDATE kinds SET flag = NOT flag WHERE small = %s", [number])

    def _truncate(self, connection: psycopg.Connection[Any]) -> None:
        one, other = sorted(self._random.sample(range(1, self._tables), 2))
        connection.execute(f"TRUNCATE t{one:02}, t{other:02}")


class Load:
    """Two writers at once, ``with Load(publication, seed): …``; all is committed or gone after it.

    A publication has a few of them, one after the other, each with its *number*.
    """

    def __init__(self, publication: Publication, seed: int, number: int = 0) -> None:
        assert number < _LOADS_MAX
        self._database = publication.database
        numbers = range(2 * number, 2 * number + 2)
        self._writers = [Writer(publication, seed, one, 2 * _LOADS_MAX) for one in numbers]

    def __enter__(self) -> Self:
        for writer in self._writers:
            writer.start()
        return self

    @property
    def commits(self) -> int:
        return sum(writer.commits for writer in self._writers)

    def goes_on(self, commits: int = 20) -> None:
        """Wait until so many more transactions are committed."""
        until = self.commits + commits
        wait_until("transactions are committed", lambda: self._is_past(until))

    def _is_past(self, commits: int) -> bool:
        self._raise()
        return self.commits >= commits

    def _raise(self) -> None:
        for writer in self._writers:
            if writer.error is not None:
                raise writer.error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers:
            writer.stop.set()
        for writer in self._writers:
            writer.join()
        if kind is None:
            self._raise()
            for (gid,) in self._database.query(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            ):
                self._database.execute(f"ROLLBACK PREPARED '{gid}'")


@dataclass
class Subscription:
    """A subscription on *database* to a publication; *conninfo* says where it connects."""

    name: str
    database: Database
    publication: Publication
    conninfo: str
    #: WITH (…), as it is wished; what a major does not know is left out
    wished: Mapping[str, str] = field(default_factory=dict)
    markers: int = 0

    @property
    def options(self) -> dict[str, str]:
        """What both majors know."""
        major = self.database.cluster.major
        options = dict(self.wished)
        if major < _MAJOR_OF_TWO_PHASE:
            options.pop("two_phase", None)
        if major < _MAJOR_OF_ORIGIN:
            options.pop("origin", None)
            if options.get("streaming") == "parallel":
                options["streaming"] = "on"
        return options

    def make_tables(self) -> None:
        """Make the subscriber's tables, which are empty, and partitioned in their own way."""
        make_tables(self.database, self.publication.numbered, _PARTITIONS_OF_SUBSCRIBER)

    def create(self, **more: str) -> None:
        """CREATE SUBSCRIPTION."""
        options = {**self.options, **more}
        statement = sql.SQL("CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {}").format(
            sql.Identifier(self.name),
            sql.Literal(self.conninfo),
            sql.SQL(", ").join(map(sql.Identifier, self.publication.names)),
        )
        if options:
            settings = ", ".join(f"{name} = {value}" for name, value in options.items())
            statement += sql.SQL(f" WITH ({settings})")
        with self.database.connect() as connection:
            connection.execute(statement)

    def alter(self, what: str) -> None:
        """ALTER SUBSCRIPTION."""
        self.database.execute(f'ALTER SUBSCRIPTION "{self.name}" {what}')

    def stop(self) -> None:
        """Disable it, and wait until its workers have ended."""
        self.alter("DISABLE")
        wait_until("the workers have ended", lambda: not self._workers(), self._told)

    def _workers(self) -> list[tuple[Any, ...]]:
        return self.database.query(
            "SELECT pid FROM pg_stat_subscription WHERE subname = %s AND pid IS NOT NULL",
            [self.name],
        )

    def connect_to(self, conninfo: str) -> None:
        """Have it connect elsewhere from now on."""
        self.conninfo = conninfo
        statement = sql.SQL("ALTER SUBSCRIPTION {} CONNECTION {}").format(
            sql.Identifier(self.name), sql.Literal(conninfo)
        )
        with self.database.connect() as connection:
            connection.execute(statement)

    def drop(self) -> None:
        """DROP SUBSCRIPTION, which drops its slot."""
        self.database.execute(f'DROP SUBSCRIPTION "{self.name}"')

    def states(self) -> dict[str, int]:
        """How many tables are in each state of pg_subscription_rel."""
        return dict(
            self.database.query(
                "SELECT srsubstate::text, count(*) FROM pg_subscription_rel r"
                " JOIN pg_subscription s ON s.oid = r.srsubid WHERE subname = %s GROUP BY 1",
                [self.name],
            )
        )

    def wait_ready(self, at_least: int | None = None) -> None:
        """Wait until every table that is published is copied, and caught up; or *at_least* so
        many.
        """
        if at_least is not None:
            wait_until(
                f"{at_least} tables are ready",
                lambda: self.states().get("r", 0) >= at_least,
                self._told,
            )
            return
        tables = len(self.publication.compared)
        wait_until(f"{tables} tables are ready", lambda: self.states() == {"r": tables}, self._told)

    def wait_caught_up(self) -> None:
        """Wait until what is committed by now is here."""
        self.markers += 1
        mark = [self.markers]
        self.publication.database.execute("INSERT INTO marker VALUES (%s)", mark)
        wait_until(
            f"marker {self.markers} is here",
            lambda: bool(self.database.query("SELECT FROM marker WHERE n = %s", mark)),
            self._told,
        )

    def _told(self) -> str:
        return f"{self.states()}\nsubscriber's log:\n{self.database.cluster.log_tail(60)}"

    def check_equal(self, **differing: str) -> None:
        """Insist that each table has the same rows on both sides, each as often; of *differing*
        tables the publisher's rows that are named.
        """
        digest = "SELECT count(*), md5(string_agg(r::text, ';' ORDER BY r::text)) FROM ({}) r"
        found: list[str] = []
        with self.publication.database.connect() as theirs, self.database.connect() as ours:
            for table, (columns, condition) in self.publication.compared.items():
                here = f"SELECT {columns} FROM {table}"
                there = f"{here} WHERE {differing.get(table, condition)}"
                if _fetch(theirs, digest.format(there)) == _fetch(ours, digest.format(here)):
                    continue
                expected = Counter(_fetch(theirs, f"SELECT r::text FROM ({there}) r"))
                got = Counter(_fetch(ours, f"SELECT r::text FROM ({here}) r"))
                missing, more = expected - got, got - expected
                found.append(
                    f"{table}: {missing.total()} of {expected.total()} rows are missing, such as "
                    f"{list(missing)[:3]}; {more.total()} are there without a reason, such as "
                    f"{list(more)[:3]}"
                )
        assert not found, "\n".join([*found, self._told()])

    def errors(self, since: int = 0) -> list[str]:
        """What went wrong by the subscriber's log from its byte *since* on."""
        text = self.database.cluster.log_file.read_bytes()[since:].decode(errors="replace")
        return [line for line in text.splitlines() if _WENT_WRONG.search(line)]


def _fetch(connection: psycopg.Connection[Any], query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode()).fetchall()


def write_with_an_origin(database: Database, first_id: int, rows: int = 10) -> None:
    """Commit rows to ``elsewhere`` that came from another server, and as many that did not."""
    with database.connect() as connection:
        for number in range(first_id, first_id + rows):
            connection.execute("INSERT INTO elsewhere VALUES (%s, true)", [number])
        connection.execute("SELECT pg_replication_origin_create('another')")
        connection.execute("SELECT pg_replication_origin_session_setup('another')")
        for number in range(first_id + rows, first_id + 2 * rows):
            connection.execute("INSERT INTO elsewhere VALUES (%s, false)", [number])
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("SELECT pg_replication_origin_drop('another')")
