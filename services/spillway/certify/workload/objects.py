"""Objects other than tables: types, schemas, publications, sequences, comments, grants, functions,
triggers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.certify.workload.scene import Kinds, Scene

_TYPES_MAX = 14


def create_type(scene: Scene) -> list[str]:
    """CREATE TYPE or DOMAIN, and a column of it."""
    name = f"{scene.schema()}.{scene.new_name('y')}"
    if len(scene.view.types) > _TYPES_MAX:
        return [
            f"DROP {'DOMAIN' if kind == 'd' else 'TYPE'} {old} CASCADE"
            for old, kind in sorted(scene.view.types.items())[:1]
        ]
    return [
        scene.random.choice(
            [
                f"CREATE TYPE {name} AS ENUM ('sad', 'ok', 'it''s great')",
                f"CREATE TYPE {name} AS ENUM ('a')",
                f"CREATE TYPE {name} AS (a int, b text)",
                f"CREATE TYPE {name} AS (a numeric, b text, c date)",
                f"CREATE DOMAIN {name} AS int CHECK (VALUE > 0)",
                f"CREATE DOMAIN {name} AS text",
                f"CREATE TYPE {name} AS RANGE (subtype = text)",
            ]
        )
    ]


def alter_type(scene: Scene) -> list[str] | None:
    """Labels are added and renamed, attributes come and go, types are renamed and move."""
    if not scene.view.types:
        return None
    name = scene.random.choice(sorted(scene.view.types))
    kind = scene.view.types[name]
    new = f"n{scene.shared.next_number()}"
    choices = []
    if renaming := scene.nobody_remembers_names():
        choices += [f"RENAME TO {scene.new_name('y')}", f"SET SCHEMA {scene.schema()}"]
    if kind == "e":
        place = scene.random.choice(["", " BEFORE 'ok'", " AFTER 'a'", ""])
        choices += [f"ADD VALUE '{new}'{place}"] * 3
        if renaming:
            choices += [f"RENAME VALUE 'ok' TO '{new}'", f"RENAME VALUE 'a' TO '{new}'"]
    elif kind == "c" and renaming:
        choices += [
            f"ADD ATTRIBUTE {new} text CASCADE",
            "DROP ATTRIBUTE b CASCADE",
            f"RENAME ATTRIBUTE b TO {new} CASCADE",
        ]
    if not choices:
        return None
    word = "DOMAIN" if kind == "d" else "TYPE"
    return [f"ALTER {word} {name} {scene.random.choice(choices)}"]


def schemas(scene: Scene) -> list[str]:
    """Schemas come, are renamed and dropped with what is in them."""
    known = [schema for schema in scene.view.schemas if schema != "w_0"]
    new = f"w_{scene.shared.next_number()}"
    if len(known) < 2:
        return [f"CREATE SCHEMA {new}"]
    if len(known) > 5:
        return [f"DROP SCHEMA {scene.random.choice(known)} CASCADE"]
    schema = scene.random.choice(known)
    if any(table.schema == schema and scene.locked_by_others(table) for table in scene.view.tables):
        return [f"CREATE SCHEMA {new}"]
    if scene.nobody_remembers_names():
        return [f"ALTER SCHEMA {schema} RENAME TO {new}"]
    return [f"DROP SCHEMA {schema} CASCADE" if scene.chance(0.3) else f"CREATE SCHEMA {new}"]


def publications(scene: Scene) -> list[str] | None:
    """Publications of every kind."""
    table = scene.table("rp", where=lambda t: t.persistence == "p")
    if table is None:
        return None
    if len(scene.view.publications) > 5:
        return [f"DROP PUBLICATION {scene.random.choice(scene.view.publications)}"]
    name = f"w_{scene.shared.next_number()}"
    choices = [
        f"CREATE PUBLICATION {name} FOR TABLE {table.name} WITH (publish = 'insert')",
        (
            f"CREATE PUBLICATION {name} FOR TABLE ONLY {table.name} WITH (publish = 'insert, "
            "truncate')"
        ),
        f"CREATE PUBLICATION {name} WITH (publish_via_partition_root = true)",
    ]
    if scene.shared.superuser:
        choices.append(f"CREATE PUBLICATION {name} FOR ALL TABLES WITH (publish = 'insert')")
    if scene.shared.major >= 15:
        if table.has_id:
            choices.append(
                f"CREATE PUBLICATION {name} FOR TABLE {table.name} WHERE (id > 100) WITH (publish "
                "= 'insert')"
            )
            choices.append(
                f"CREATE PUBLICATION {name} FOR TABLE {table.name} (id) WITH (publish = 'insert')"
            )
        if scene.shared.superuser:
            choices.append(
                f"CREATE PUBLICATION {name} FOR TABLES IN SCHEMA {table.schema} WITH (publish = "
                "'insert')"
            )
    if table.has_key and scene.chance(0.3):
        choices.append(f"CREATE PUBLICATION {name} FOR TABLE {table.name}")
    if scene.view.publications:
        old = scene.random.choice(scene.view.publications)
        choices += [
            f"ALTER PUBLICATION {old} ADD TABLE {table.name}",
            f"ALTER PUBLICATION {old} DROP TABLE {table.name}",
            f"ALTER PUBLICATION {old} SET (publish = 'insert, truncate')",
            f"ALTER PUBLICATION {old} RENAME TO {name}",
        ]
    return [scene.random.choice(choices)]


def sequences(scene: Scene) -> list[str]:
    """Sequences: WAL that is not decoded."""
    if not scene.view.sequences or scene.chance(0.2):
        return [f"CREATE SEQUENCE {scene.schema()}.{scene.new_name('s')}"]
    name = scene.random.choice(scene.view.sequences)
    return [
        scene.random.choice(
            [
                f"SELECT nextval($${name}$$)",
                f"SELECT count(nextval($${name}$$)) FROM generate_series(1, 70)",
                f"SELECT setval($${name}$$, 1000)",
                f"ALTER SEQUENCE {name} RESTART",
                f"ALTER SEQUENCE {name} INCREMENT BY 3",
            ]
        )
    ]


def remarks(scene: Scene) -> list[str] | None:
    """Comments, grants, owners, options: catalog changes that change no column."""
    table = scene.table("rp", exclusive=True)
    if table is None:
        return None
    choices = [
        f"COMMENT ON TABLE {table.name} IS 'a comment {scene.shared.next_number()}'",
        f"COMMENT ON TABLE {table.name} IS NULL",
        f"GRANT SELECT ON {table.name} TO PUBLIC",
        f"REVOKE ALL ON {table.name} FROM PUBLIC",
        f"GRANT UPDATE (id) ON {table.name} TO PUBLIC",
    ]
    if table.kind == "r":
        choices += [
            f"ALTER TABLE {table.name} SET (autovacuum_enabled = false)",
            f"ALTER TABLE {table.name} RESET (fillfactor)",
            f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY",
        ]
    return [scene.random.choice(choices)]


def functions(scene: Scene) -> list[str] | None:
    """Functions, triggers that change rows, rules, views."""
    table = scene.table("r", exclusive=True, where=lambda t: t.has_id)
    if table is None:
        return None
    number = scene.shared.next_number()
    return scene.random.choice(
        [
            [
                (
                    f"CREATE FUNCTION {table.schema}.f{number}(a int) RETURNS int LANGUAGE sql AS "
                    "'SELECT a + 1'"
                )
            ],
            [f"CREATE OR REPLACE VIEW {table.schema}.v{number} AS SELECT id FROM {table.name}"],
            [
                (
                    f"CREATE TRIGGER tr{number} AFTER INSERT ON {table.name} FOR EACH ROW EXECUTE "
                    "FUNCTION w_0.note()"
                )
            ],
            [
                (
                    f"CREATE STATISTICS {table.schema}.st{number} (ndistinct) ON id, "
                    f"{table.columns[-1].name} FROM {table.name}"
                )
            ],
            [f"ALTER TABLE {table.name} DISABLE TRIGGER USER"],
        ]
    )


def large_object(scene: Scene) -> list[str]:
    """Large objects: catalog rows that no user table has."""
    return scene.random.choice(
        [
            ["SELECT lo_from_bytea(0, decode(repeat('ab', 5000), 'hex'))"],
            ["SELECT lo_unlink(oid) FROM pg_largeobject_metadata LIMIT 1"],
        ]
    )


KINDS: Kinds = (
    (8, create_type),
    (9, alter_type),
    (4, schemas),
    (6, publications),
    (6, sequences),
    (6, remarks),
    (3, functions),
    (1, large_object),
)
