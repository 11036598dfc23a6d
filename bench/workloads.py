"""What the benchmark makes WAL of; the same three ranges that docs/explanation/performance.md speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Database

SCHEMA = """
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
INSERT INTO branches SELECT n, 0, '' FROM generate_series(1, 10) n;
INSERT INTO tellers SELECT n, 1, 0, '' FROM generate_series(1, 100) n;
INSERT INTO accounts SELECT n, 1, 0, '' FROM generate_series(1, 100000) n;
CREATE TABLE measurements (id int, note text, at timestamptz, amount numeric, reading float8);
CREATE PUBLICATION bench FOR ALL TABLES;
"""

# pgbench's transaction, in a loop inside the server: its client would be the slower part.
_PGBENCH = """
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
END $$
"""


@dataclass(frozen=True)
class Workload:
    """A name, and how to write it."""

    name: str
    rows: int
    transactions: int
    run: Callable[[Database], None]


def prepare(database: Database) -> None:
    """Create the tables."""
    database.execute(SCHEMA)
    database.execute(_PGBENCH)


def workloads(scale: float) -> list[Workload]:
    """Return the workloads, their sizes times *scale*."""
    pgbench = max(1, int(50_000 * scale))
    copies = max(1, int(100 * scale))
    rows_each = 10_000
    return [
        Workload("a: pgbench transactions", 4 * pgbench, pgbench, lambda db: _pgbench(db, pgbench)),
        Workload(
            f"b: COPY, {rows_each:,} rows a transaction",
            copies * rows_each,
            copies,
            lambda db: _copy(db, copies, rows_each),
        ),
        Workload(
            "c: the same rows in one transaction",
            copies * rows_each,
            1,
            lambda db: _copy(db, 1, copies * rows_each),
        ),
    ]


def _pgbench(database: Database, transactions: int) -> None:
    with database.connect() as connection:
        connection.execute("CALL pgbench(%s::int)" % transactions)  # type: ignore[arg-type]  # noqa: UP031


def _copy(database: Database, transactions: int, rows: int) -> None:
    block = "".join(
        f"{n}\tnote number {n} of a text that is about sixty characters lo\t"
        f"2026-01-01 00:{n // 60 % 60:02}:{n % 60:02}.{n % 1000:03}+00\t{n * 7919 % 100000}.{n % 100:02}\t{n * 0.37}\n"
        for n in range(10_000)
    ).encode()
    with database.connect(autocommit=False) as connection:
        for _ in range(transactions):
            with connection.cursor() as cursor, cursor.copy("COPY measurements FROM STDIN") as copy:
                for _ in range(rows // 10_000):
                    copy.write(block)
            connection.commit()
