"""Random transactions over a few tables whose shape changes: what a lake must follow, by a seed.

Only what the lake says that it follows: see docs/reference/lake-types.md and limits.md. What
rewrites a table, or gives it a column with a value, is followed by a row at once: the lake learns
of it by the table's next change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

#: each type's values, as SQL, and the types that the lake follows it to
_TYPES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "int2": (("0", "-32768", "32767", "7"), ("int4", "int8", "float8", "numeric(12,2)", "text")),
    "int4": (("0", "-2147483648", "42"), ("int8", "float8", "numeric", "numeric(20,2)", "text")),
    "int8": (
        ("9223372036854775807", "-1", "0"),
        ("numeric", "numeric(30,4)", "text"),
    ),
    "float4": (("0.1", "'NaN'", "'-Infinity'", "'-0'", "1e30"), ("float8",)),
    "float8": (("0.1", "'NaN'", "'Infinity'", "'-0'", "5e-324"), ()),
    "numeric(8,2)": (
        ("1.50", "-999999.99", "0"),
        ("numeric(12,4)", "numeric(9,2)", "numeric", "text"),
    ),
    "numeric(12,4)": (("1.2345", "-1", "99999999.9999"), ("numeric(20,6)", "text")),
    "numeric": (("1e-20", "'NaN'", "12345678901234567890.5", "0.10"), ("text",)),
    "date": (("'2024-02-29'", "'1900-01-01'", "'9999-12-31'"), ("timestamp",)),
    "timestamp": (("'2024-02-29 12:34:56.789012'", "'1800-01-01'"), ()),
    "timestamptz": (("'2024-02-29 12:34:56.789012+05'", "'1800-01-01 UTC'"), ()),
    "bool": (("true", "false"), ("text",)),
    "numeric(9,2)": (("1.25",), ()),
    "numeric(12,2)": (("-3.20",), ()),
    "numeric(20,2)": (("1e15",), ()),
    "numeric(20,6)": (("0.000001",), ()),
    "numeric(30,4)": (("1e20",), ()),
    "varchar": (("''", "'abc'"), ()),
    "varchar(20)": (("''", "'abc'", "E'ä\\n\"'"), ("text", "varchar(40)")),
    "varchar(40)": (("''", "'abc'"), ()),
    "text": (("''", "'abc'", "E'\\\\x \\t,{}'", "'TOASTED'"), ("varchar",)),
    "uuid": (("'00000000-0000-0000-0000-00000000000a'",), ("text",)),
    "jsonb": (("""'{"a": [1, null, "x"]}'""", "'null'", "'TOASTEDJSON'"), ("text",)),
    "mood": (("'sad'", "'glad'"), ("text",)),
    "bytea": (("'\\x00ff'", "''", "decode('TOASTED', 'escape')"), ()),
    "int4[]": (("'{1,NULL,3}'", "'{}'", "'{{1,2},{3,4}}'"), ("int8[]",)),
    "int8[]": (("'{9000000000}'",), ()),
    "text[]": (("'{a,NULL,\"b c\"}'", "'{}'"), ()),
    "int4range": (("'[1,5)'", "'empty'"), ()),
    "interval": (("'1 mon 2 days 03:04:05.6'",), ()),
    "pair": (("ROW(1, 'x')", "ROW(NULL, '')"), ()),
}
SETUP: Final = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (a int, b text)"
#: long, and hard to compress: not in the row
_LONG: Final = "(SELECT string_agg(md5({n}::text || g), '') FROM generate_series(1, 200) g)"
_KEYS: Final = 25

# Kinds of statements, as often as they are to come.
_DDL: Final = (
    "add",
    "default",
    "drop",
    "rename",
    "swap",
    "type",
    "again",
    "truncate",
    "rewrite",
    "add",
    "type",
)
_DML: Final = ("insert", "update", "delete", "key", "many", "insert", "update", "insert", "update")


@dataclass
class Table:
    name: str
    #: "id", "pair" (two columns), "index", "full"
    key: str
    #: their types by name
    columns: dict[str, str]
    #: of one that is partitioned by id: which ids, as SQL, by name
    partitions: dict[str, str] = field(default_factory=dict)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return {"id": ("id",), "pair": ("id", "k"), "index": ("id",), "full": ()}[self.key]


class LakeWorkload:
    """Lists of statements, each to be run one by one.

    Args:
        rng: what decides.
        tables: how many there are, ``t0`` and so on.
        roots: how many are partitioned, ``r0`` and so on; partitions of theirs are truncated,
            dropped and made, and rows move between them.
    """

    def __init__(self, rng: random.Random, tables: int = 3, roots: int = 0) -> None:
        self.rng = rng
        self.count = 0
        self.tables: list[Table] = []
        self.created = [s for n in range(tables) for s in self._create(f"t{n}")]
        self.created += [s for n in range(roots) for s in self._create_root(f"r{n}")]

    def transaction(self) -> list[str]:
        """Return the statements of one transaction."""
        rng = self.rng
        saved = [
            replace(t, columns=dict(t.columns), partitions=dict(t.partitions)) for t in self.tables
        ]
        statements = ["BEGIN"]
        for _ in range(rng.randint(1, 5)):
            table = rng.choice(self.tables)
            if rng.random() < 0.12:
                statements += self._ddl(table)
            elif rng.random() < 0.1:
                statements += ["SAVEPOINT s", *self._change(table), "ROLLBACK TO s"]
            else:
                statements += self._change(table)
        if rng.random() < 0.15:
            self.tables = saved
            statements.append("ROLLBACK")
        else:
            statements.append("COMMIT")
        return statements

    def settle(self) -> list[str]:
        """A change of every table: from then on the lake knows its shape."""
        return [self._insert(table) for table in self.tables]

    def late(self) -> tuple[str, list[str]]:
        """Return a table that comes late, and what makes it, with rows in it."""
        name = self._name("late")
        made = self._create(name)
        table = self.tables[-1]
        return name, made + [self._insert(table) for _ in range(2 * _KEYS)]

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def _create(self, name: str) -> list[str]:
        rng = self.rng
        key = rng.choice(("id", "id", "pair", "index", "full"))
        table = Table(name, key, {"id": "int4"})
        if key == "pair":
            table.columns["k"] = "varchar(20)"
        for _ in range(rng.randint(2, 7)):
            table.columns[self._name("c")] = rng.choice(list(_TYPES))
        self.tables = [t for t in self.tables if t.name != name] + [table]
        columns = [
            f"{column} {type_}" + (" NOT NULL" if column in table.key_columns else "")
            for column, type_ in table.columns.items()
        ]
        rng.shuffle(columns)
        if key in ("id", "pair"):
            columns.append(f"PRIMARY KEY ({', '.join(table.key_columns)})")
        statements = [f"CREATE TABLE {name} ({', '.join(columns)})"]
        if key == "index":
            statements.append(f"CREATE UNIQUE INDEX {self._name(name + '_i')} ON {name} (id)")
            index = f"{name}_i{self.count}"
            statements.append(f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}")
        elif key == "full" or rng.random() < 0.2:
            statements.append(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        return statements

    def _create_root(self, name: str) -> list[str]:
        rng = self.rng
        columns = {"id": "int4"}
        for _ in range(rng.randint(2, 5)):
            columns[self._name("c")] = rng.choice(list(_TYPES))
        half = _KEYS // 2
        partitions = {
            self._name(f"{name}_p"): ids
            for ids in (
                f"FOR VALUES FROM (MINVALUE) TO ({half})",
                f"FOR VALUES FROM ({half}) TO ({_KEYS})",
                "DEFAULT",
            )
        }
        table = Table(name, "id", columns, partitions)
        self.tables = [t for t in self.tables if t.name != name] + [table]
        listed = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
        return [
            f"CREATE TABLE {name} ({listed}, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            *(_partition(name, *each) for each in partitions.items()),
        ]

    def _partition_goes(self, table: Table) -> list[str]:
        """Have a partition lose its rows: it stays, or another one comes in its place."""
        name, ids = self.rng.choice(list(table.partitions.items()))
        kind = self.rng.choice(("truncate", "drop", "detach"))
        if kind == "truncate":
            return [f"TRUNCATE {name}"]
        del table.partitions[name]
        new = self._name(f"{table.name}_p")
        table.partitions[new] = ids
        apart = [f"ALTER TABLE {table.name} DETACH PARTITION {name}"] if kind == "detach" else []
        return [*apart, f"DROP TABLE {name}", _partition(table.name, new, ids)]

    def _ddl(self, table: Table) -> list[str]:
        rng = self.rng
        if table.partitions and rng.random() < 0.4:
            return [*self._partition_goes(table), self._insert(table)]
        others = [c for c in table.columns if c not in (*table.key_columns, "id")]
        kind = rng.choice(_DDL)
        if kind == "add":
            column, type_ = self._name("c"), rng.choice(list(_TYPES))
            table.columns[column] = type_
            return [f"ALTER TABLE {table.name} ADD {column} {type_}"]
        if kind == "default":
            column, type_ = self._name("c"), rng.choice(list(_TYPES))
            table.columns[column] = type_
            value = rng.choice([v for v in _TYPES[type_][0] if "TOASTED" not in v] or ["NULL"])
            statement = f"ALTER TABLE {table.name} ADD {column} {type_} DEFAULT {value}"
            return [statement, self._insert(table)]
        if kind == "truncate":
            return [f"TRUNCATE {table.name}"]
        if kind == "again":
            create = self._create_root if table.partitions else self._create
            return [f"DROP TABLE {table.name}", *create(table.name), *self.settle()]
        if kind == "rewrite":
            whole = table.key == "id" and not table.partitions
            return [f"CLUSTER {table.name} USING {table.name}_pkey"] if whole else []
        if len(others) < 2:
            return []
        column = rng.choice(others)
        if kind == "drop" and table.key != "full":
            del table.columns[column]
            return [f"ALTER TABLE {table.name} DROP {column}"]
        if kind == "rename":
            new = self._name("c")
            table.columns = {new if c == column else c: t for c, t in table.columns.items()}
            return [f"ALTER TABLE {table.name} RENAME {column} TO {new}"]
        if kind == "swap":
            other = rng.choice([c for c in others if c != column])
            swap = {column: other, other: column}
            table.columns = {swap.get(c, c): t for c, t in table.columns.items()}
            return [
                f"ALTER TABLE {table.name} RENAME {column} TO passing",
                f"ALTER TABLE {table.name} RENAME {other} TO {column}",
                f"ALTER TABLE {table.name} RENAME passing TO {other}",
            ]
        if kind == "type":
            wider = _TYPES[table.columns[column]][1]
            if not wider:
                return []
            table.columns[column] = rng.choice(wider)
            statement = f"ALTER TABLE {table.name} ALTER {column} TYPE {table.columns[column]}"
            return [statement, self._insert(table)]
        return []

    def _change(self, table: Table) -> list[str]:
        rng = self.rng
        kind = rng.choice(_DML)
        if kind == "insert":
            return [self._insert(table)]
        where = f"WHERE id % {rng.randint(1, 6)} = {rng.randrange(3)}"
        if kind == "many":
            return [self._insert(table) for _ in range(rng.randint(2, 12))]
        if kind == "delete":
            return [f"DELETE FROM {table.name} {where} AND id > {rng.randrange(_KEYS)}"]
        if kind == "key":
            if table.key in ("id", "index"):
                # Over all there is: no two become one.
                return [
                    (
                        f"UPDATE {table.name} SET id = id + 1000 WHERE id = {rng.randrange(_KEYS)}"
                        f" AND NOT EXISTS (SELECT FROM {table.name} o WHERE o.id = {table.name}.id "
                        "+ 1000)"
                    )
                ]
            return [f"UPDATE {table.name} SET id = id + 1 {where}"] if table.key == "full" else []
        columns = [c for c in table.columns if c not in table.key_columns]
        chosen = rng.sample(columns, min(len(columns), rng.randint(1, 2)))
        if not chosen:
            return []
        sets = ", ".join(f"{c} = {self._value(table, c)}" for c in chosen)
        return [f"UPDATE {table.name} SET {sets} {where}"]

    def _insert(self, table: Table) -> str:
        values = {c: self._value(table, c) for c in table.columns}
        values["id"] = str(self.rng.randrange(_KEYS))
        if "k" in values:
            values["k"] = self.rng.choice(("'a'", "'b'", "''"))
        statement = (
            f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        )
        if not table.key_columns:
            return statement
        sets = ", ".join(f"{c} = EXCLUDED.{c}" for c in values)
        return f"{statement} ON CONFLICT ({', '.join(table.key_columns)}) DO UPDATE SET {sets}"

    def _value(self, table: Table, column: str) -> str:
        type_ = table.columns[column]
        if self.rng.random() < 0.15:
            return "NULL"
        value = self.rng.choice(_TYPES[type_][0])
        if value == "'-0'" and table.key == "full":
            return "0"
        self.count += 1
        long = _LONG.format(n=self.count)
        if value == "'TOASTED'":
            return long
        if value == "'TOASTEDJSON'":
            return f"to_jsonb({long})"
        return f"{long}::bytea" if "TOASTED" in value else value


def _partition(root: str, name: str, ids: str) -> str:
    return f"CREATE TABLE {name} PARTITION OF {root} {ids}"
