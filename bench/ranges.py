"""The WAL ranges: what is written, and how many changes a slot makes of it.

Tables are made once. Each range is written by its own statements inside the server where that is
possible: a client that sends 100,000 transactions is slower than what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Cluster, Database

PUBLICATION: Final = "bench"
#: of the range of subtransactions and that of catalog changes: how many at a scale of a half and
#: more
SUBTRANSACTIONS: Final = 100_000
CATALOG_COMMITS: Final = 10_000
_ROWS_A_COPY: Final = 10_000
_BACKLOG_BYTES: Final = 2_000_000_000
_BACKLOG_ROUNDS: Final = 20
#: WAL of one row of the backlog: 1,000 characters, tuple header, record header
_BACKLOG_ROW_BYTES: Final = 1_090

_WIDE_TYPES: Final = ("int", "bigint", "text", "numeric", "float8", "timestamptz", "bool")
_WIDE_VALUES: Final = {
    "int": "n * {i}",
    "bigint": "n::bigint * {i} * 1000003",
    "text": "'column {i} of row ' || n",
    "numeric": "(n * {i})::numeric / 100",
    "float8": "n / {i}.0::float8",
    "timestamptz": "'2026-01-01 00:00:00+00'::timestamptz + n * interval '{i} seconds'",
    "bool": "(n + {i}) % 2 = 0",
}
_WIDE: Final = [
    (f"c{i}", kind, _WIDE_VALUES[kind].format(i=i))
    for i in range(1, 100)
    for kind in [_WIDE_TYPES[i % len(_WIDE_TYPES)]]
]

_SCHEMA: Final = f"""
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
INSERT INTO branches SELECT n, 0, '' FROM generate_series(1, 10) n;
INSERT INTO tellers SELECT n, 1, 0, '' FROM generate_series(1, 100) n;
INSERT INTO accounts SELECT n, 1, 0, '' FROM generate_series(1, 100000) n;
CREATE TABLE measurements (id int, note text, at timestamptz, amount numeric, reading float8);
CREATE TABLE wide (id int PRIMARY KEY, {", ".join(f"{name} {kind}" for name, kind, _ in _WIDE)});
CREATE TABLE documents (id int PRIMARY KEY, revision int, body text);
ALTER TABLE documents ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE nested (id int, v text);
CREATE TABLE churned (id int, v int);
CREATE TABLE long_running (id int, v text);
CREATE TABLE relevant (id int, v text);
CREATE TABLE latency (note text);
CREATE TABLE unpublished (id int, v text);
CREATE PUBLICATION {PUBLICATION} FOR TABLE branches, tellers, accounts, history, measurements, wide,
    documents, nested,
    churned, long_running, relevant, latency;
"""

_PROCEDURES: Final = (
    # pgbench's transaction.
    """
CREATE PROCEDURE pgbench(transactions int) LANGUAGE plpgsql AS $$
DECLARE
    account int; teller int; branch int; delta int;
BEGIN
    PERFORM setseed(0.5);
    FOR n IN 1..transactions LOOP
        account := 1 + floor(random() * 100000); teller := 1 + floor(random() * 100);
        branch := 1 + floor(random() * 10); delta := floor(random() * 10000) - 5000;
        UPDATE accounts SET abalance = abalance + delta WHERE aid = account;
        UPDATE tellers SET tbalance = tbalance + delta WHERE tid = teller;
        UPDATE branches SET bbalance = bbalance + delta WHERE bid = branch;
        INSERT INTO history VALUES (teller, branch, account, delta, now());
        COMMIT;
    END LOOP;
END $$""",
    # A block with an exception clause is a subtransaction. All of them are more than
    # logical_decoding_work_mem.
    """
CREATE PROCEDURE nest(subtransactions int) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 1..subtransactions LOOP
        BEGIN
            INSERT INTO nested VALUES (n, repeat(md5(n::text), 56));
        EXCEPTION WHEN unique_violation THEN RAISE;
        END;
    END LOOP;
END $$""",
    """
CREATE PROCEDURE churn(commits int) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 1..commits LOOP
        IF n % 2 = 0 THEN
            EXECUTE format('CREATE TABLE churned_%s (id int, v text)', txid_current());
        ELSE
            EXECUTE format('ALTER TABLE churned ALTER COLUMN v SET DEFAULT %s', n);
        END IF;
        INSERT INTO churned (id) VALUES (n);
        COMMIT;
    END LOOP;
END $$""",
    """
CREATE PROCEDURE temporaries(transactions int) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 1..transactions LOOP
        CREATE TEMP TABLE passing (id int, v text) ON COMMIT DROP;
        INSERT INTO passing VALUES (n, 'x');
        INSERT INTO churned (id) VALUES (n);
        COMMIT;
    END LOOP;
END $$""",
)


@dataclass(frozen=True)
class Databases:
    """The database that is decoded, and one that is not."""

    cluster: Cluster
    bench: Database
    elsewhere: Database


@dataclass(frozen=True)
class WalRange:
    """A letter of the issue, and how to write it."""

    key: str
    title: str
    #: changes of published tables, and the transactions that they come in
    rows: int
    transactions: int
    write: Callable[[Databases], None]
    #: most of it is for nobody: ours is told what to capture, and test_decoding, which knows no
    #: publication, stays away
    filtered: bool = False
    #: PostgreSQL may take minutes: once, to a limit, inside the server; ours to compare how it
    #: grows
    steep: bool = False


def prepare(cluster: Cluster) -> Databases:
    """Make the databases and everything in them."""
    databases = Databases(
        cluster, cluster.create_database("bench"), cluster.create_database("elsewhere")
    )
    databases.bench.execute(_SCHEMA)
    for procedure in _PROCEDURES:
        databases.bench.execute(procedure)
    databases.elsewhere.execute("CREATE TABLE unpublished (id int, v text)")
    return databases


def wal_ranges(scale: float) -> list[WalRange]:
    """Return the ranges; at a scale of 1 the sizes of performance.md, and 2 GB of backlog.

    Those that are about growth come twice: with half of the size and with all of it.
    """

    def scaled(number: int, least: int = 1) -> int:
        return max(least, int(number * scale))

    # Full size at the default scale: how they grow is the matter.
    nested_most, commits_most = (
        int(number * min(1.0, 2 * scale)) for number in (SUBTRANSACTIONS, CATALOG_COMMITS)
    )
    pgbench, copies = scaled(100_000, 20), scaled(200)
    wide, documents = scaled(50_000, 100), scaled(5_000, 20)
    relevant = scaled(_BACKLOG_BYTES // 100 // _BACKLOG_ROW_BYTES, 100)
    rows = copies * _ROWS_A_COPY
    ranges = [
        WalRange(
            "a", "pgbench", 4 * pgbench, pgbench, lambda on: call(on.bench, "pgbench", pgbench)
        ),
        WalRange(
            "b", f"COPY of {_ROWS_A_COPY:,} rows", rows, copies, lambda on: _copy(on, copies, 1)
        ),
        WalRange("c", "the same in one transaction", rows, 1, lambda on: _copy(on, 1, copies)),
        WalRange("d", "100 columns", wide, -(-wide // 1000), lambda on: _wide(on, wide)),
        WalRange(
            "e", "TOAST, 20 kB a value", 2 * documents, 2, lambda on: _documents(on, documents)
        ),
        WalRange(
            "h",
            "backlog, 1 % relevant",
            relevant // _BACKLOG_ROUNDS * _BACKLOG_ROUNDS,
            _BACKLOG_ROUNDS,
            lambda on: _backlog(on, relevant // _BACKLOG_ROUNDS),
            filtered=True,
        ),
    ]
    # Last: what they leave in the catalogs is no other range's matter.
    temporaries = scaled(10_000, 20)
    ranges.append(
        WalRange(
            "i",
            "a temporary table in each transaction",
            temporaries,
            temporaries,
            lambda on: call(on.bench, "temporaries", temporaries),
        )
    )
    for part in (2, 1):
        nested = max(100, nested_most // part)
        ranges.append(
            WalRange(
                "f" if part == 1 else "f/2",
                f"{nested:,} subtransactions",
                nested,
                1,
                partial(_nest, subtransactions=nested),
                steep=True,
            )
        )
    for part in (2, 1):
        commits = max(50, commits_most // part)
        ranges.append(
            WalRange(
                "g" if part == 1 else "g/2",
                f"{commits:,} catalog changes beside a transaction",
                commits + 2,
                commits + 1,
                partial(_churn, commits=commits),
                steep=True,
            )
        )
    return ranges


def call(database: Database, procedure: str, number: int) -> None:
    """Call one of the procedures."""
    database.execute(f"CALL {procedure}({number})")


def copy_rows(database: Database, transactions: int, copies: int) -> None:
    """Commit *transactions*, each of *copies* times ten thousand rows."""
    block = "".join(
        f"{n}\tnote number {n} of a text that is about sixty characters lo\t"
        "2026-01-01 "
        f"00:{n // 60 % 60:02}:{n % 60:02}.{n % 1000:03}+00\t"
        f"{n * 7919 % 100000}.{n % 100:02}\t{n * 0.37}\n"
        for n in range(_ROWS_A_COPY)
    ).encode()
    with database.connect(autocommit=False) as connection:
        for _ in range(transactions):
            with connection.cursor() as cursor, cursor.copy("COPY measurements FROM STDIN") as copy:
                for _ in range(copies):
                    copy.write(block)
            connection.commit()


def _copy(on: Databases, transactions: int, copies: int) -> None:
    copy_rows(on.bench, transactions, copies)


def _wide(on: Databases, rows: int) -> None:
    values = ", ".join(value for _, _, value in _WIDE)
    for first in range(1, rows + 1, 1000):
        last = min(first + 999, rows)
        on.bench.execute(
            f"INSERT INTO wide SELECT n, {values} FROM generate_series({first}, {last}) n"
        )


def _documents(on: Databases, rows: int) -> None:
    on.bench.execute(
        "INSERT INTO documents SELECT n, 0, (SELECT string_agg(md5((n * 1000 + m)::text), '')"
        f" FROM generate_series(1, 625) m) FROM generate_series(1, {rows}) n"
    )
    # Their values stay where they are: the old tuple's pointers are all that WAL has.
    on.bench.execute("UPDATE documents SET revision = revision + 1")


def _backlog(on: Databases, relevant: int) -> None:
    """In each round 50 parts for another database, 49 for a table that nobody publishes, and one
    that counts.
    """
    statement = "INSERT INTO {} SELECT n, repeat('x', 1000) FROM generate_series(1, {}) n"
    for _ in range(_BACKLOG_ROUNDS):
        on.elsewhere.execute(statement.format("unpublished", 50 * relevant))
        on.bench.execute(statement.format("unpublished", 49 * relevant))
        on.bench.execute(statement.format("relevant", relevant))


def _nest(on: Databases, subtransactions: int) -> None:
    call(on.bench, "nest", subtransactions)


def _churn(on: Databases, commits: int) -> None:
    with on.bench.connect(autocommit=False) as long_running:
        long_running.execute("INSERT INTO long_running VALUES (1, 'before')")
        call(on.bench, "churn", commits)
        long_running.execute("INSERT INTO long_running VALUES (2, 'after')")
        long_running.commit()
