"""Replay the arrow plugin's messages from the whole service: the result is the table, value by
value.

The rows' operations, xids and positions are compared with PostgreSQL's own test_decoding besides.
"""

from __future__ import annotations

import json
import random
import secrets
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.oracle import create_slot
from harness.service import Service, service_in_process
from harness.tiers import deep

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

SETUP = """
CREATE TABLE kept (
    id int PRIMARY KEY, n numeric(12, 3), t text, big text, at timestamptz, d date, j jsonb,
        a int[], b bytea, f float8
);
ALTER TABLE kept ALTER big SET STORAGE EXTERNAL;
CREATE TABLE whole (id int, t text, big text);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
"""


def workload(database: Database, rng: random.Random) -> None:
    """Random writes with savepoints, rollbacks, key changes and TOAST, over two connections."""

    def statement() -> str:
        key, other = rng.randrange(40), rng.randrange(40)
        big = f"repeat(md5({rng.random()}::text), {rng.choice((1, 200, 400))})"
        return rng.choice(
            (
                (
                    f"INSERT INTO kept VALUES ({key}, {rng.random() * 1e8:.3f}, 'ü{rng.random()}', "
                    f"{big}, now(), '2024-02-29', '{{\"k\": [{key}]}}', '{{1,NULL}}', '\\x00ff', "
                    "random()) ON CONFLICT (id) DO UPDATE SET n = -kept.n, at = NULL"
                ),
                f"UPDATE kept SET t = t || '.' WHERE id BETWEEN {key} AND {key + 5}",
                f"UPDATE kept SET big = {big} WHERE id = {key}",
                (
                    f"UPDATE kept SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT FROM "
                    f"kept WHERE id = {other})"
                ),
                f"DELETE FROM kept WHERE id BETWEEN {key} AND {key + 2}",
                f"INSERT INTO whole SELECT g, 'w', {big} FROM generate_series({key}, {key + 3}) g",
                f"UPDATE whole SET t = t || '{key}' WHERE id = {key}",
                f"DELETE FROM whole WHERE id = {key}",
                "TRUNCATE whole" if rng.random() < 0.2 else "SELECT 1",
            )
        )

    with database.connect(autocommit=False) as connection:
        for _ in range(60):
            for _ in range(rng.randint(1, 6)):
                if rng.random() < 0.3:
                    connection.execute("SAVEPOINT s")
                    connection.execute(statement())
                    connection.execute(rng.choice(("ROLLBACK TO s", "RELEASE s")))
                else:
                    connection.execute(statement())
            if rng.random() < 0.15:
                connection.rollback()
            else:
                connection.commit()
            if rng.random() < 0.05:
                connection.execute(
                    f"ALTER TABLE kept ADD COLUMN extra_{secrets.token_hex(3)} int DEFAULT 7"
                )
                connection.commit()


def batches(service: Service, slot: str, options: dict[str, str]) -> list[pa.RecordBatch]:
    found = []
    for _, _, data in service.peek(slot, options):
        with pa.ipc.open_stream(bytes.fromhex(data.removeprefix("\\x"))) as stream:
            found += list(stream)
    for batch in found:
        batch.validate(full=True)
    return found


def replay(changes: list[tuple[str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Apply changes in commit order, as a consumer would."""
    tables: dict[str, list[dict[str, Any]]] = {"kept": [], "whole": []}
    for table, change in changes:
        rows = tables[table]
        row = {k: v for k, v in change.items() if not k.startswith("_")}
        old = change["_old_key"]
        if change["_op"] == "T":
            rows.clear()
            continue
        if change["_op"] == "I":
            rows.append(row)
            continue
        key = old if old is not None else {"id": row["id"]}
        (at, before), *_ = [
            (i, r) for i, r in enumerate(rows) if all(r.get(k) == v for k, v in key.items())
        ]
        if change["_op"] == "D":
            del rows[at]
            continue
        for name in change["_unchanged_toast"] or ():
            assert row[name] is None
            row[name] = before[name]
        rows[at] = row
    return tables


@pytest.mark.parametrize(
    "options",
    [deep({}), {"batch_rows": "7"}, deep({"batch_bytes": "3000"})],
    ids=["large", "rows", "bytes"],
)
def test_replayed_changes_give_the_table(
    pg: Database, tmp_path: Path, options: dict[str, str]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    pg.execute(SETUP)
    name = f"s_{pg.name[-8:]}"
    oracle = create_slot(pg, name)
    with service_in_process(tmp_path) as service:
        service.create_source(pg.dsn)
        service.create_slot(name, pg.name, plugin="arrow")
        workload(pg, rng)
        service.wait_decoded(name, pg)
        found = batches(service, name, options)
        theirs = oracle.peek()
        service.drop_slot(name)
        service.call("DELETE", "/sources/main")
    oracle.drop()
    changes: list[tuple[str, dict[str, Any]]] = []
    for batch in found:
        relation = json.loads(batch.schema.metadata[b"spillway.relation"])
        changes += [(relation["table"], row) for row in batch.to_pylist()]
        order = list(zip(batch["_commit_lsn"].to_pylist(), batch["_seq"].to_pylist(), strict=True))
        assert order == sorted(order)
    # Of one table, messages come in the order of its changes.
    for table in ("kept", "whole"):
        order = [(c["_commit_lsn"], c["_seq"]) for t, c in changes if t == table]
        assert order == sorted(order)
    changes.sort(key=lambda c: (c[1]["_commit_lsn"], c[1]["_seq"]))

    kinds = {"INSERT:": "I", "UPDATE:": "U", "DELETE:": "D", "TRUNCATE:": "T"}
    expected = []
    for lsn, xid, data in theirs:
        if data.startswith("table "):
            _, table, kind = data.split(" ")[:3]
            expected.append(
                (lsn, xid, table.removeprefix("public.").removesuffix(":"), kinds[kind])
            )
    ours = [
        (f"{c['_lsn'] >> 32:X}/{c['_lsn'] & 0xFFFFFFFF:X}", c["_xid"], table, c["_op"])
        for table, c in changes
    ]
    assert ours == expected

    final = replay(changes)
    for table, rows in final.items():
        stored = json.loads(pg.value(f"SELECT coalesce(json_agg(x), '[]')::text FROM {table} x"))
        assert len(stored) == len(rows), table
        types = ("id", "t", "big", "f")
        comparable = sorted(
            ({k: r.get(k) for k in types if k in s} for s, r in zip(stored, rows, strict=True)),
            key=json.dumps,
        )
        assert comparable == sorted(
            ({k: s[k] for k in types if k in s} for s in stored), key=json.dumps
        )
    # Values of the other types, as the server has them.
    by_id = {row["id"]: row for row in final["kept"]}
    extra = [row[0] for row in pg.query(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'kept'::regclass AND attname LIKE "
        "'extra%%'", []
    )]  # fmt: skip
    for key, n, at, day, j, a, b, *more in pg.query(
        f"SELECT id, n, at, d, j::text, a::text, b {''.join(f', {e}' for e in extra)} FROM kept"
    ):
        row = by_id[key]
        assert (row["n"], row["at"], row["d"], row["j"], row["a"], row["b"]) == (
            n,
            at,
            day,
            j,
            a,
            b,
        )
        # Rows from before a column came have no value of it in any message.
        assert all(row.get(e) in {value, None} for e, value in zip(extra, more, strict=True))
