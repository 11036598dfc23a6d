"""Changes of rows: inserts of every shape, COPY, updates, deletes, truncates, row locks, merges,
messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.certify.workload.session import Statement
from spillway.certify.workload.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.certify.workload.scene import Kinds, Scene
    from spillway.certify.workload.view import Column, Table


def _columns(scene: Scene, table: Table) -> list[Column]:
    """Choose columns to give values to: the key, what must not be null, some of the others."""
    return [
        column
        for column in table.columns
        if column.insertable
        and (
            column.name == "id"
            or (column.not_null and not column.has_default and not column.identity)
            or scene.chance(0.75)
        )
    ]


def _values(scene: Scene, columns: Sequence[Column], key: str, *, large: bool) -> str:
    return ", ".join(
        key if column.name == "id" else value(scene.random, column, key, large=large)
        for column in columns
    )


def insert_rows(scene: Scene) -> list[str] | None:
    """INSERT … SELECT, of one row or several."""
    table = scene.table()
    if table is None:
        return None
    columns = _columns(scene, table)
    if not columns:
        return [f"INSERT INTO {table.name} DEFAULT VALUES"]
    count = scene.random.choice([1, 1, 1, 2, 3, 5, 8, 20])
    if scene.chance(0.02):
        count = 200
    first, last = scene.ids(count)
    names = ", ".join(column.name for column in columns)
    row = _values(scene, columns, "g", large=count < 20 and scene.chance(0.35))
    overriding = " OVERRIDING SYSTEM VALUE" if scene.chance(0.05) else ""
    return [
        (
            f"INSERT INTO {table.name} ({names}){overriding} SELECT {row} FROM "
            f"generate_series({first}, {last}, 4) g"
        )
    ]


def insert_default(scene: Scene) -> list[str] | None:
    """INSERT … DEFAULT VALUES."""
    table = scene.table()
    return None if table is None else [f"INSERT INTO {table.name} DEFAULT VALUES"]


def upsert(scene: Scene) -> list[str] | None:
    """INSERT … ON CONFLICT, with rows that are there and rows that are not: speculative inserts."""
    table = scene.table(where=lambda t: t.has_id and t.has_key)
    if table is None:
        return None
    columns = _columns(scene, table)
    if not any(column.name == "id" for column in columns):
        return None
    first, last = scene.ids(scene.random.randint(1, 4))
    first -= 4 * scene.random.randint(0, 12)
    names = ", ".join(column.name for column in columns)
    row = _values(scene, columns, "g", large=scene.chance(0.2))
    action = "NOTHING"
    changed = [column for column in columns if column.name != "id"]
    if changed and scene.chance(0.6):
        column = scene.random.choice(changed)
        action = f"UPDATE SET {column.name} = excluded.{column.name}"
    target = "(id)" if table.kind == "r" and not table.is_partition and action != "NOTHING" else ""
    if action != "NOTHING" and not target:
        action = "NOTHING"
    return [
        f"INSERT INTO {table.name} ({names}) SELECT {row} FROM generate_series({first}, {last}, 4) "
        f"g ON CONFLICT {target} DO {action}"
    ]


def withdrawn_insert(scene: Scene) -> list[str] | None:
    """An insert that finds a conflict after it has written its row, and withdraws it.

    A second session would be needed for that, were it not for w_0.spec's index: the function in its
    expression inserts the conflicting row itself when the index entry of the outer row is about to
    be made.
    """
    first, _ = scene.ids(1)
    return [
        f"SET w_.conflict = '{first}'",
        (
            f"INSERT INTO w_0.spec VALUES ({first}, 'outer', repeat('s', "
            f"{scene.random.choice([10, 9000])})) ON CONFLICT DO NOTHING"
        ),
        "RESET w_.conflict",
    ]


def copy_in(scene: Scene) -> list[Statement] | None:
    """COPY … FROM STDIN: multi-inserts."""
    table = scene.table(where=lambda t: t.has_id)
    if table is None:
        return None
    required = [
        c
        for c in table.columns
        if c.not_null
        and not c.has_default
        and not c.identity
        and not c.generated
        and c.name != "id"
    ]
    if required:
        return None
    count = scene.random.choice([1, 5, 40, 150])
    first, last = scene.ids(count)
    texts = [c.name for c in table.columns if c.type == "text" and c.insertable][:2]
    rows = "".join(
        "\t".join([str(key), *(_copied(scene, key) for _ in texts)]) + "\n"
        for key in range(first, last + 1, 4)
    )
    return [Statement(f"COPY {table.name} ({', '.join(['id', *texts])}) FROM STDIN", rows)]


def _copied(scene: Scene, key: int) -> str:
    return scene.random.choice(
        [r"\N", f"copied {key}", "tab\\there", "x" * 100, "", str(key) * 600]
    )


def copy_freeze(scene: Scene) -> list[Statement | str] | None:
    """COPY … FREEZE into a table that the same transaction made."""
    name = scene.new_table_name()
    rows = "".join(f"{key}\tfrozen {key}\n" for key in range(scene.random.choice([3, 300])))
    statements: list[Statement | str] = [
        f"CREATE TABLE {name} (id int, v text)",
        Statement(f"COPY {name} FROM STDIN (FREEZE)", rows),
        f"UPDATE {name} SET v = 'thawed' WHERE id % 7 = 0",
    ]
    return ["BEGIN", *statements, "COMMIT"] if scene.session.idle else statements


def update_rows(scene: Scene) -> list[str] | None:
    """UPDATE of some columns."""
    table = scene.table()
    if table is None:
        return None
    choices = [c for c in table.columns if c.insertable and c.name not in ("id", "region")]
    if not choices:
        return None
    chosen = scene.random.sample(choices, min(len(choices), scene.random.choice([1, 1, 2, 3])))
    key = "id" if table.has_id else str(scene.random.randrange(1000))
    large = scene.chance(0.3)
    settings = ", ".join(f"{c.name} = {_updated(scene, c, key, large=large)}" for c in chosen)
    only = "ONLY " if scene.chance(0.05) else ""
    return [f"UPDATE {only}{table.name} SET {settings} WHERE {scene.mine(table)}"]


def _updated(scene: Scene, column: Column, key: str, *, large: bool) -> str:
    if scene.chance(0.1):
        return column.name
    if column.type == "text" and scene.chance(0.2):
        return f"{column.name} || 'x'"
    return value(scene.random, column, key, large=large)


def update_key(scene: Scene) -> list[str] | None:
    """UPDATE of the key: old keys are logged; rows of partitions may move."""
    table = scene.table(where=lambda t: t.has_id)
    if table is None:
        return None
    step = scene.random.choice([4, 4000000, 8000000])
    return [f"UPDATE {table.name} SET id = id + {step} WHERE {scene.mine(table)}"]


def move_between_partitions(scene: Scene) -> list[str] | None:
    """UPDATE of the partition key: a delete and an insert."""
    table = scene.table("p", where=lambda t: t.column("region") is not None)
    if table is None:
        return None
    region = scene.random.choice(["eu", "us", "asia"])
    return [f"UPDATE {table.name} SET region = '{region}' WHERE {scene.mine(table)}"]


def delete_rows(scene: Scene) -> list[str] | None:
    """DELETE."""
    table = scene.table()
    if table is None:
        return None
    return [f"DELETE FROM {table.name} WHERE {scene.mine(table)}"]


def delete_by_cascade(scene: Scene) -> list[str] | None:
    """DELETE of rows that foreign keys refer to."""
    table = scene.table(where=lambda t: t.referenced)
    if table is None:
        return None
    return [
        (
            f"DELETE FROM {table.name} WHERE id IN (SELECT id FROM {table.name} WHERE id % 4 = "
            f"{scene.session.number % 4} LIMIT 3)"
        )
    ]


def truncate(scene: Scene) -> list[str] | None:
    """TRUNCATE of one table or two."""
    table = scene.table("rp", exclusive=True)
    if table is None:
        return None
    names = [table.name]
    if (
        scene.chance(0.3)
        and (second := scene.table("r", exclusive=True))
        and second.name not in names
    ):
        names.append(second.name)
    restart = scene.random.choice(["", " RESTART IDENTITY", " CONTINUE IDENTITY"])
    cascade = " CASCADE" if table.referenced or scene.chance(0.4) else ""
    return [f"TRUNCATE {', '.join(names)}{restart}{cascade}"]


def merge(scene: Scene) -> list[str] | None:
    """MERGE, from 15 on."""
    if scene.shared.major < 15:
        return None
    table = scene.table("rp", where=lambda t: t.has_id and any(c.type == "text" for c in t.columns))
    if table is None:
        return None
    first, last = scene.ids(3)
    first -= 4 * scene.random.randint(0, 8)
    column = next(c.name for c in table.columns if c.type == "text")
    return [
        f"MERGE INTO {table.name} t USING generate_series({first}, {last}, 4) g ON t.id = g"
        f" WHEN MATCHED AND g % 8 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET {column} = 'merged "
        f"' || g WHEN NOT MATCHED THEN INSERT (id, {column}) VALUES (g, 'merged')"
    ]


def lock_rows(scene: Scene) -> list[str] | None:
    """SELECT … FOR …: xmax of rows that nobody deletes; of several sessions, multixacts."""
    table = scene.table("r", where=lambda t: t.has_id)
    if table is None:
        return None
    strength = scene.random.choice(["KEY SHARE", "KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"])
    where = "true" if "SHARE" in strength else scene.mine(table)
    return [
        (
            f"SELECT count(*) FROM (SELECT FROM {table.name} WHERE {where} LIMIT 4 FOR {strength} "
            "SKIP LOCKED) s"
        )
    ]


def shared_row(scene: Scene) -> list[str]:
    """Lock and update rows that every session locks and updates, without touching the key."""
    key = scene.random.randrange(1, 4)
    if scene.chance(0.6):
        return [f"SELECT FROM w_0.shared WHERE id = {key} FOR KEY SHARE"]
    return [
        (
            "UPDATE w_0.shared SET n = n + 1 WHERE id IN (SELECT id FROM w_0.shared WHERE id = "
            f"{key} FOR NO KEY UPDATE SKIP LOCKED)"
        )
    ]


def storm(scene: Scene) -> list[str] | None:
    """Many subtransactions at once, a part of them rolled back."""
    table = scene.table("r", where=lambda t: t.has_id)
    if table is None:
        return None
    count = scene.random.choice([3, 20, 80])
    first, _ = scene.ids(count)
    failing = scene.random.choice(["i % 3 = 0", "false", "i % 2 = 1", "true"])
    catalog = (
        "EXECUTE 'CREATE TEMP TABLE st' || i || ' (a int)';"
        if scene.chance(0.1) and count <= 20
        else ""
    )
    return [
        f"DO $$ BEGIN FOR i IN 0..{count - 1} LOOP BEGIN INSERT INTO {table.name} (id) VALUES "
        f"({first} + 4 * i); {catalog} IF {failing} THEN RAISE EXCEPTION 'x'; END IF; EXCEPTION "
        "WHEN raise_exception THEN NULL; END; END LOOP; END $$"
    ]


def message(scene: Scene) -> list[str]:
    """A logical message, of either kind."""
    transactional = scene.random.choice(["true", "false"])
    prefix = scene.random.choice(["app", "", "préfixe", "a b"])
    content = scene.random.choice(["'plain'", "''", "'it''s ☃'", "repeat('m', 20000)"])
    return [f"SELECT pg_logical_emit_message({transactional}, '{prefix}', {content})"]


def cursor_update(scene: Scene) -> list[str] | None:
    """UPDATE and DELETE … WHERE CURRENT OF a cursor."""
    if scene.session.idle:
        return None
    table = scene.table("r", where=lambda t: t.has_id and t.has_key)
    if table is None:
        return None
    name = f"c{scene.shared.next_number()}"
    return [
        (
            f"DECLARE {name} CURSOR FOR SELECT id FROM {table.name} WHERE id % 4 = "
            f"{scene.session.number % 4} FOR UPDATE"
        ),
        f"FETCH 2 FROM {name}",
        f"DELETE FROM {table.name} WHERE CURRENT OF {name}",
        f"CLOSE {name}",
    ]


def moving_rows(scene: Scene) -> list[str] | None:
    """WITH … DELETE … RETURNING into another table."""
    table = scene.table("r", where=lambda t: t.has_id)
    if table is None:
        return None
    return [
        f"WITH gone AS (DELETE FROM {table.name} WHERE id % 4 = {scene.session.number % 4} AND id "
        "/ 4 % 5 = 1 RETURNING id) INSERT INTO w_0.moved SELECT id, 'moved', clock_timestamp() > "
        "now() FROM gone"
    ]


KINDS: Kinds = (
    (26, insert_rows),
    (3, insert_default),
    (7, upsert),
    (2, withdrawn_insert),
    (4, copy_in),
    (1, copy_freeze),
    (20, update_rows),
    (4, update_key),
    (3, move_between_partitions),
    (10, delete_rows),
    (2, delete_by_cascade),
    (2, truncate),
    (2, merge),
    (2, lock_rows),
    (5, shared_row),
    (2, storm),
    (3, message),
    (1, cursor_update),
    (1, moving_rows),
)
#: Those that leave tables as they are: COPY … FREEZE makes the one that it copies into.
KINDS_OF_ROWS: Kinds = tuple(one for one in KINDS if one[1] is not copy_freeze)
