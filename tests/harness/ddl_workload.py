"""Random DDL and DML, by a seed: what changes catalogs in every way that clients can."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Self

import psycopg

if TYPE_CHECKING:
    from types import TracebackType

    from harness.cluster import Database

_TYPES = [
    "int", "bigint", "text", "numeric(10,2)", "timestamptz", "uuid", "jsonb", "boolean", "text[]",
    "float8", "date", "varchar(20)", "int[]", "int4range", "bytea",
]  # fmt: skip
_DEFAULTS = {
    "int": "7", "bigint": "-1", "text": "'some text'", "numeric(10,2)": "12.50", "boolean": "true",
    "text[]": "'{a,b}'", "jsonb": """'{"a": 1}'""", "date": "'2020-02-29'", "float8": "1.5",
    "int[]": "'{1,2}'", "uuid": "'00000000-0000-0000-0000-000000000001'",
}  # fmt: skip
_REWRITTEN = [
    "pg_class",
    "pg_attribute",
    "pg_type",
    "pg_index",
    "pg_proc",
    "pg_enum",
    "pg_namespace",
]
_CLUSTERED = {
    "pg_class": "pg_class_oid_index",
    "pg_attribute": "pg_attribute_relid_attnum_index",
    "pg_index": "pg_index_indexrelid_index",
    "pg_type": "pg_type_oid_index",
}


class DdlClient:
    """One connection's random statements; its objects have names of its own."""

    def __init__(self, name: str, seed: int, *, rewrites: bool = True) -> None:
        self.name = name
        self.random = random.Random(f"{name}-{seed}")
        self.rewrites = rewrites
        self.tables: list[str] = []
        self.counter = 0

    def transaction(self) -> list[str]:
        """The statements of one transaction; the last commits or rolls back."""
        r = self.random
        roll = r.random()
        if roll < 0.06 and self.rewrites:
            return [f"VACUUM FULL {r.choice(_REWRITTEN)}"]
        if roll < 0.16:
            return [
                r.choice(["VACUUM pg_class", "VACUUM FREEZE pg_attribute", "ANALYZE", "VACUUM"])
            ]
        if roll < 0.19:
            return ["CHECKPOINT"]
        tables = list(self.tables)
        statements = ["BEGIN"]
        for _ in range(r.randint(1, 6)):
            statements.extend(self._statement())
        if r.random() < 0.07 and self.rewrites:
            catalog = r.choice(list(_CLUSTERED))
            statements.append(f"CLUSTER {catalog} USING {_CLUSTERED[catalog]}")
            statements.extend(self._statement())
        if r.random() < 0.25:
            self.tables = tables
            statements.append("ROLLBACK")
        else:
            statements.append("COMMIT")
        return statements

    def _new_name(self, stem: str) -> str:
        self.counter += 1
        return f"{self.name}_{stem}{self.counter}"

    def _statement(self) -> list[str]:
        r = self.random
        if not self.tables or r.random() < 0.2:
            table = self._new_name("t")
            self.tables.append(table)
            columns = ", ".join(f"c{i} {r.choice(_TYPES)}" for i in range(r.randint(1, 5)))
            return [f"CREATE TABLE {table} (id serial PRIMARY KEY, {columns})"]
        table = r.choice(self.tables)
        kind = r.randrange(13)
        if kind == 0:
            self.tables.remove(table)
            return [f"DROP TABLE {table} CASCADE"]
        if kind == 1:
            type_ = r.choice(list(_DEFAULTS))
            column = self._new_name("c")
            return [f"ALTER TABLE {table} ADD COLUMN {column} {type_} DEFAULT {_DEFAULTS[type_]}"]
        if kind == 2:
            return [f"ALTER TABLE {table} DROP COLUMN IF EXISTS c{r.randrange(5)} CASCADE"]
        if kind == 3:
            return [
                f"ALTER TABLE {table} REPLICA IDENTITY {r.choice(['FULL', 'DEFAULT', 'NOTHING'])}"
            ]
        if kind == 4:
            enum = self._new_name("e")
            return [
                f"CREATE TYPE {enum} AS ENUM ('x', 'y')",
                f"ALTER TABLE {table} ADD COLUMN {self._new_name('c')} {enum} DEFAULT 'y'",
            ]
        if kind == 5:
            return [f"TRUNCATE {table}", f"INSERT INTO {table} DEFAULT VALUES"]
        if kind == 6:
            inner = self._statement()
            return ["SAVEPOINT s", *inner, "ROLLBACK TO s"] if self._undone(inner) else inner
        if kind == 7:
            temporary = self._new_name("tmp")
            return [f"CREATE TEMP TABLE {temporary} (i int PRIMARY KEY, t text) ON COMMIT DROP"]
        if kind == 8:
            return [f"CREATE INDEX ON {table} (id)"]
        if kind == 9:
            type_ = self._new_name("comp")
            return [
                f"CREATE TYPE {type_} AS (a int, b text)",
                f"ALTER TYPE {type_} ADD ATTRIBUTE c date",
            ]
        if kind == 10:
            new = self._new_name("t")
            self.tables[self.tables.index(table)] = new
            return [f"ALTER TABLE {table} RENAME TO {new}"]
        if kind == 11:
            return [f"CREATE PUBLICATION {self._new_name('p')} FOR TABLE {table}"]
        return [
            f"INSERT INTO {table} DEFAULT VALUES",
            "SAVEPOINT s2",
            f"UPDATE {table} SET id = id + 100000",
            "RELEASE s2",
        ]

    def _undone(self, statements: list[str]) -> bool:
        """Whether a savepoint may undo *statements*: none that changed what we know of tables."""
        return not any(
            s.startswith(("CREATE TABLE", "DROP TABLE", "ALTER TABLE"))
            and ("RENAME" in s or "TABLE " in s[:13])
            and ("RENAME" in s or s.startswith(("CREATE TABLE", "DROP TABLE")))
            for s in statements
        )


class DdlLoad:
    """Several clients at work on one database until the ``with`` block ends."""

    def __init__(
        self, database: Database, seed: int, *, clients: int = 3, rewrites: bool = True
    ) -> None:
        self.database = database
        self.clients = [DdlClient(f"w{i}", seed, rewrites=rewrites) for i in range(clients)]
        self.transactions = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(c,)) for c in self.clients]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, transactions: int) -> None:
        """Wait until the clients have ended more than that many from now on, however long each
        takes.
        """
        began_at = self.transactions
        # Clients that wait for each other's locks do so for three seconds.
        deadline = time.monotonic() + 240
        while (ended := self.transactions - began_at) <= transactions:
            assert time.monotonic() < deadline, f"{ended} transactions: {self.errors[-3:]}"
            time.sleep(0.05)

    def _run(self, client: DdlClient) -> None:
        with self.database.connect() as connection:
            connection.execute("SET deadlock_timeout = '50ms'; SET lock_timeout = '3s'")
            connection.execute("SET client_min_messages = error")
            while not self._stop.is_set():
                run_transaction(connection, client, self.errors)
                self.transactions += 1


def run_transaction(
    connection: psycopg.Connection[object], client: DdlClient, errors: list[str] | None = None
) -> None:
    """Run one random transaction; what fails (deadlocks, lost races) is rolled back."""
    tables = list(client.tables)
    statements = client.transaction()
    try:
        for statement in statements:
            connection.execute(statement)
    except psycopg.Error as error:
        if errors is not None:
            errors.append(f"{statement}: {error}")
        with contextlib.suppress(psycopg.Error):
            connection.execute("ROLLBACK")
        client.tables = tables
