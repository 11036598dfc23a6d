"""The demo's workload: a small shop, written with what tends to break change capture.

It comes in two acts. :func:`first_customers` is a handful of transactions whose every decoded line
is known beforehand and written beside the SQL; the demo compares them with what the service says.
Then :func:`busy_season` is volume: a stream of orders, cancellations, price changes, a DDL in
mid-stream, a large transaction. It keeps a tally of committed row changes to hold against what was
streamed.

What is in it on purpose: rollbacks, savepoints rolled back and released, DDL and DML in one
transaction, values in TOAST, updates that leave such a value alone, a changed primary key, COPY,
deletes of many rows, foreign keys (their row locks are noise in WAL) and an index that makes some
updates not HOT.

All randomness comes from one seed, so that two runs write the same rows.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg
    from psycopg import Cursor

SEED = 20_001
SCHEMA = "shop"
#: Tables and their primary keys, in the order in which their rows may be written.
TABLES: dict[str, tuple[str, ...]] = {
    "customers": ("customer_id",),
    "products": ("sku",),
    "orders": ("order_id",),
    "items": ("order_id", "line_no"),
}

DDL = """
CREATE SCHEMA shop;
CREATE TYPE shop.tier AS ENUM ('basic', 'silver', 'gold');
CREATE TABLE shop.customers (
    customer_id bigint PRIMARY KEY,
    email text NOT NULL,
    name text,
    tier shop.tier NOT NULL DEFAULT 'basic',
    active boolean NOT NULL DEFAULT true,
    balance numeric(12,2),
    preferences jsonb,
    joined date
);
CREATE TABLE shop.products (
    sku text PRIMARY KEY,
    title text NOT NULL,
    price numeric(10,2) NOT NULL,
    weight double precision,
    description text
);
CREATE TABLE shop.orders (
    order_id bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES shop.customers,
    status text NOT NULL,
    placed_at timestamptz NOT NULL,
    total numeric(12,2)
);
CREATE INDEX ON shop.orders (status);
CREATE TABLE shop.items (
    order_id bigint NOT NULL,
    line_no integer NOT NULL,
    sku text NOT NULL,
    quantity integer NOT NULL,
    price numeric(10,2) NOT NULL,
    gift boolean,
    PRIMARY KEY (order_id, line_no)
);
"""

_COUNTED = ("INSERT", "UPDATE", "DELETE")


@dataclass
class Tally:
    """Row changes of committed transactions, by (table, INSERT | UPDATE | DELETE)."""

    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    transactions: int = 0

    @property
    def rows(self) -> int:
        """All row changes."""
        return self.changes.total()


class _Transaction:
    """Runs statements of one transaction and counts the rows that they change."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._cursor: Cursor = connection.cursor()
        self._counted: Counter[tuple[str, str]] = Counter()

    def run(self, sql: str, *parameters: object) -> None:
        self._cursor.execute(sql.encode(), parameters or None)
        verb, *rest = sql.split()
        if verb in _COUNTED:
            table = rest[0] if verb == "UPDATE" else rest[1]
            self._counted[table.removeprefix("shop."), verb] += self._cursor.rowcount

    def copy(self, table: str, rows: Iterator[tuple[object, ...]]) -> None:
        with self._cursor.copy(f"COPY shop.{table} FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)
        self._counted[table, "INSERT"] += self._cursor.rowcount

    def counted(self) -> Counter[tuple[str, str]]:
        return self._counted


class Shop:
    """Writes the workload over a connection with autocommit off."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._random = random.Random(SEED)  # noqa: S311  a workload needs repetition, not secrecy
        self.tally = Tally()

    def create(self) -> None:
        """Create the empty tables."""
        self._connection.execute(DDL.encode())
        self._connection.commit()

    def first_customers(self) -> list[str]:
        """Write the first act and return the lines that test_decoding prints for it (without
        xids).
        """
        manual = self._long_text(12_000)
        expected: list[str] = []

        def commit(transaction: _Transaction, *lines: str) -> None:
            self._commit(transaction)
            expected.extend(["BEGIN", *lines, "COMMIT"])

        # Two rows, one statement.
        t = self._begin()
        t.run(
            "INSERT INTO shop.customers VALUES"
            " (1, 'ada@example.com', 'Ada', 'gold', true, 120.50, '{\"news\": true}', "
            "'2024-02-29'), (2, 'bob@example.com', NULL, 'basic', false, NULL, NULL, NULL)"
        )
        commit(
            t,
            "table shop.customers: INSERT: customer_id[bigint]:1 email[text]:'ada@example.com'"
            " name[text]:'Ada' tier[shop.tier]:'gold' active[boolean]:true balance[numeric]:120.50"
            " preferences[jsonb]:'{\"news\": true}' joined[date]:'2024-02-29'",
            "table shop.customers: INSERT: customer_id[bigint]:2 email[text]:'bob@example.com'"
            " name[text]:null tier[shop.tier]:'basic' active[boolean]:false balance[numeric]:null"
            " preferences[jsonb]:null joined[date]:null",
        )

        # Nothing of this may ever be seen.
        t = self._begin()
        t.run("INSERT INTO shop.customers VALUES (3, 'eve@example.com')")
        self._connection.rollback()

        # A value that goes to TOAST, whole in the insert and absent from an update that leaves it
        # alone.
        t = self._begin()
        t.run(
            "INSERT INTO shop.products VALUES ('tea-01', 'Tea, it''s green', 4.20, 0.1, %s)", manual
        )
        commit(
            t,
            "table shop.products: INSERT: sku[text]:'tea-01' title[text]:'Tea, it''s green'"
            f" price[numeric]:4.20 weight[double precision]:0.1 description[text]:'{manual}'",
        )
        t = self._begin()
        t.run("UPDATE shop.products SET price = 3.90 WHERE sku = 'tea-01'")
        commit(
            t,
            "table shop.products: UPDATE: sku[text]:'tea-01' title[text]:'Tea, it''s green'"
            " price[numeric]:3.90 weight[double precision]:0.1 "
            "description[text]:unchanged-toast-datum",
        )

        # A savepoint rolled back, another kept.
        t = self._begin()
        t.run("INSERT INTO shop.orders VALUES (1, 1, 'open', '2026-01-02 03:04:05.678+00', 7.80)")
        t.run("SAVEPOINT gift_wrap")
        t.run("INSERT INTO shop.items VALUES (1, 1, 'wrap', 1, 1.00, true)")
        t.run("ROLLBACK TO SAVEPOINT gift_wrap")
        t.run("SAVEPOINT tea")
        t.run("INSERT INTO shop.items VALUES (1, 1, 'tea-01', 2, 3.90, false)")
        t.run("RELEASE SAVEPOINT tea")
        t.counted()["items", "INSERT"] -= 1
        commit(
            t,
            "table shop.orders: INSERT: order_id[bigint]:1 customer_id[bigint]:1 "
            "status[text]:'open' placed_at[timestamp with time zone]:'2026-01-02 03:04:05.678+00' "
            "total[numeric]:7.80",
            "table shop.items: INSERT: order_id[bigint]:1 line_no[integer]:1 sku[text]:'tea-01'"
            " quantity[integer]:2 price[numeric]:3.90 gift[boolean]:false",
        )

        # DDL and DML in one transaction.
        t = self._begin()
        t.run("ALTER TABLE shop.orders ADD COLUMN coupon text")
        t.run("UPDATE shop.orders SET coupon = 'WELCOME' WHERE order_id = 1")
        commit(
            t,
            "table shop.orders: UPDATE: order_id[bigint]:1 customer_id[bigint]:1 "
            "status[text]:'open' placed_at[timestamp with time zone]:'2026-01-02 03:04:05.678+00' "
            "total[numeric]:7.80 coupon[text]:'WELCOME'",
        )

        # A primary key changes, a row goes.
        t = self._begin()
        t.run("UPDATE shop.customers SET customer_id = 20, name = 'Bob' WHERE customer_id = 2")
        t.run("DELETE FROM shop.items WHERE order_id = 1")
        commit(
            t,
            "table shop.customers: UPDATE: old-key: customer_id[bigint]:2 new-tuple:"
            " customer_id[bigint]:20 email[text]:'bob@example.com' name[text]:'Bob'"
            " tier[shop.tier]:'basic' active[boolean]:false balance[numeric]:null"
            " preferences[jsonb]:null joined[date]:null",
            "table shop.items: DELETE: order_id[bigint]:1 line_no[integer]:1",
        )
        return expected

    def busy_season(self, progress: Callable[[str, int], None], bulk_rows: int = 200_000) -> None:
        """Write the second act; *progress* is told each step's name and the row changes so far."""
        steps: list[tuple[str, Callable[[], None]]] = [
            ("customers sign up (COPY)", self._sign_up),
            ("a catalogue with long texts", self._catalogue),
            ("orders, one transaction each", lambda: self._orders(range(1_000, 2_500))),
            ("prices change, texts stay", self._reprice),
            ("a column is added under way", self._add_column),
            ("more orders", lambda: self._orders(range(2_500, 4_000))),
            (f"one transaction of {bulk_rows:,} rows", lambda: self._import(bulk_rows)),
            ("cancelled orders are deleted", self._purge),
        ]
        for name, step in steps:
            progress(name, self.tally.rows)
            step()
        progress("done", self.tally.rows)

    def _begin(self) -> _Transaction:
        return _Transaction(self._connection)

    def _commit(self, transaction: _Transaction) -> None:
        self._connection.commit()
        self.tally.changes.update(transaction.counted())
        self.tally.transactions += 1

    def _long_text(self, length: int) -> str:
        """Text that does not compress, so that PostgreSQL stores it out of line."""
        return self._random.randbytes(length // 2).hex()

    def _sign_up(self) -> None:
        t = self._begin()
        tiers = ("basic", "basic", "silver", "gold")
        t.copy(
            "customers",
            (
                (n, f"c{n}@example.com", f"Customer {n} 客户", tiers[n % 4], n % 7 != 0,
                 Decimal(self._random.randrange(1_000_000)) / 100,
                 f'{{"n": {n}, "tags": ["a", "b"]}}',
                 f"20{n % 20:02}-0{n % 9 + 1}-1{n % 10}")
                for n in range(100, 5_100)
            ),
        )  # fmt: skip
        self._commit(t)

    def _catalogue(self) -> None:
        t = self._begin()
        for n in range(200):
            t.run(
                "INSERT INTO shop.products VALUES (%s, %s, %s, %s, %s)",
                f"sku-{n:04}",
                f"Product {n}",
                Decimal(self._random.randrange(100, 10_000)) / 100,
                self._random.random() * 10,
                self._long_text(self._random.randrange(100, 20_000)),
            )
        self._commit(t)

    def _orders(self, order_ids: range) -> None:
        for order_id in order_ids:
            t = self._begin()
            lines = self._random.randrange(1, 5)
            t.run(
                "INSERT INTO shop.orders (order_id, customer_id, status, placed_at, total)"
                " VALUES (%s, %s, 'open', timestamptz '2026-06-01' + %s * interval '1 minute', 0)",
                order_id,
                self._random.randrange(100, 5_100),
                order_id,
            )
            for line in range(1, lines + 1):
                t.run(
                    "INSERT INTO shop.items VALUES (%s, %s, %s, %s, %s, %s)",
                    order_id,
                    line,
                    f"sku-{self._random.randrange(200):04}",
                    self._random.randrange(1, 10),
                    Decimal(self._random.randrange(100, 10_000)) / 100,
                    self._random.choice((True, False, None)),
                )
            outcome = self._random.random()
            if outcome < 0.05:
                self._connection.rollback()
                continue
            t.run(
                "UPDATE shop.orders SET total = (SELECT sum(quantity * price) FROM shop.items i"
                " WHERE i.order_id = orders.order_id), status = %s WHERE order_id = %s",
                "cancelled" if outcome < 0.15 else "paid",
                order_id,
            )
            self._commit(t)

    def _reprice(self) -> None:
        for n in range(0, 200, 3):
            t = self._begin()
            t.run("UPDATE shop.products SET price = price * 1.1 WHERE sku = %s", f"sku-{n:04}")
            if n % 2:
                t.run(
                    "UPDATE shop.products SET description = %s WHERE sku = %s",
                    self._long_text(9_000),
                    f"sku-{n:04}",
                )
            self._commit(t)
        t = self._begin()
        t.run("UPDATE shop.products SET sku = 'old-' || sku WHERE sku LIKE 'sku-019%'")
        self._commit(t)

    def _add_column(self) -> None:
        t = self._begin()
        t.run("ALTER TABLE shop.customers ADD COLUMN points integer")
        t.run("UPDATE shop.customers SET points = customer_id % 100 WHERE tier = 'gold'")
        self._commit(t)

    def _import(self, rows: int) -> None:
        t = self._begin()
        t.run(
            "INSERT INTO shop.items SELECT 1000000 + n / 10, mod(n, 10), 'sku-' || lpad(mod(n, "
            "200)::text, 4, '0'), mod(n, 9) + 1, mod(n, 10000) / 100.0, CASE mod(n, 3) WHEN 0 THEN "
            "true WHEN 1 THEN false END FROM generate_series(0, %s) AS n",
            rows - 1,
        )
        self._commit(t)

    def _purge(self) -> None:
        t = self._begin()
        t.run(
            "DELETE FROM shop.items WHERE order_id IN"
            " (SELECT order_id FROM shop.orders WHERE status = 'cancelled')"
        )
        t.run("DELETE FROM shop.orders WHERE status = 'cancelled'")
        t.run("DELETE FROM shop.items WHERE order_id >= 1000000 AND quantity = 9")
        t.run("UPDATE shop.items SET gift = true WHERE order_id >= 1000000 AND quantity = 8")
        self._commit(t)
