"""regrole and aclitem: roles by their names as of every change, however the catalog was read,
whoever changes it.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession
from harness.tiers import majors_by_tier
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from spillway.catalog.bootstrap import Bootstrap

MAJORS = [14, 15, 16, 17, 18]

#: Plain, and what either rule of quoting, or only one of them, asks quotes for.
ROLES = ['we"ird', "ünïcode", "UPPER", "with space", "select", "plain_1", "1st", "a$b", "é" * 31]

SETUP = """
CREATE DOMAIN owner AS regrole; CREATE TYPE pair AS (a aclitem, r regrole); CREATE SEQUENCE s;
CREATE SCHEMA sch;
CREATE TABLE t (a int, b int); CREATE TYPE mood AS ENUM ();
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FOREIGN DATA WRAPPER w; CREATE SERVER srv FOREIGN DATA WRAPPER w;
CREATE TABLE roles (id serial PRIMARY KEY, r regrole, rs regrole[], o owner);
ALTER TABLE roles REPLICA IDENTITY FULL;
CREATE TABLE acls (id serial PRIMARY KEY, a aclitem, acl aclitem[], p pair, ps pair[]);
CREATE TABLE one (a aclitem, d owner);
CREATE TABLE bystander (id serial, v text)
"""

GRANTS = """
GRANT ALL ON t TO {0} WITH GRANT OPTION; GRANT SELECT (a), UPDATE (b) ON t TO PUBLIC;
GRANT INSERT, DELETE ON t TO {1};
GRANT ALL ON SEQUENCE s TO {1}; GRANT ALL ON SCHEMA sch TO {2};
GRANT ALL ON FUNCTION f TO {3} WITH GRANT OPTION;
GRANT ALL ON TYPE mood TO {4}; GRANT ALL ON FOREIGN DATA WRAPPER w TO {5} WITH GRANT OPTION;
GRANT ALL ON FOREIGN SERVER srv TO {6};
GRANT ALL ON DATABASE {database} TO {7} WITH GRANT OPTION;
GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {8};
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {0}
"""

#: Every list that is in the catalogs, and every role there is; and what no role has the oid of.
SNAPSHOT = """
INSERT INTO acls (acl) SELECT relacl FROM pg_class WHERE relacl IS NOT NULL;
INSERT INTO acls (acl) SELECT acl FROM (
SELECT attacl AS acl FROM pg_attribute UNION ALL SELECT nspacl FROM pg_namespace UNION ALL
    SELECT proacl FROM pg_proc
UNION ALL SELECT typacl FROM pg_type UNION ALL SELECT fdwacl FROM pg_foreign_data_wrapper
UNION ALL SELECT srvacl FROM pg_foreign_server UNION ALL SELECT datacl FROM pg_database UNION ALL
    SELECT lanacl FROM pg_language
UNION ALL SELECT defaclacl FROM pg_default_acl) AS all_lists WHERE acl IS NOT NULL;
INSERT INTO acls (a, p) SELECT a, ROW(a, grantor)::pair FROM (SELECT makeaclitem(oid, 10, 'SELECT',
    true) AS a, oid::regrole AS grantor FROM pg_roles) AS made;
INSERT INTO acls (a) VALUES (makeaclitem(4294967295, 0, 'UPDATE', false)),
    (makeaclitem(0, 4294967294, 'DELETE', true));
INSERT INTO acls (ps) SELECT array_agg(p) FROM acls;
INSERT INTO roles (r, o) SELECT oid, oid FROM pg_roles;
INSERT INTO roles (rs) SELECT array_agg(r) FROM roles;
INSERT INTO roles (r) VALUES (0), (4294967295);
UPDATE roles SET o = 10 WHERE r IN (0, 10);
INSERT INTO one SELECT a, (p).r FROM acls WHERE a IS NOT NULL;
INSERT INTO bystander (v) VALUES ('neither')
"""


def _ordinary(database: Database, suffix: str, dsn: str) -> Bootstrap:
    """Bootstrap as a role that may log in and replicate, and nothing else."""
    database.execute(f"CREATE ROLE watcher_{suffix} LOGIN REPLICATION")
    with database.connect() as connection:
        query = "SELECT has_table_privilege(%s, 'pg_authid', 'SELECT')"
        assert connection.execute(query, [f"watcher_{suffix}"]).fetchone() == (False,)
    return bootstrap_sql(f"{dsn} user=watcher_{suffix}")


class _Roles:
    """A database with roles of its own, and another database of its cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.suffix = secrets.token_hex(3)
        self.cluster = cluster
        self.here = cluster.create_database(f"roles_{self.suffix}")
        self.elsewhere = cluster.create_database(f"elsewhere_{self.suffix}")
        self.names = [f"{name}{self.suffix}"[:60] for name in ROLES]
        self.names[4] = "select"

    def run(self, script: str, where: Database | None = None) -> None:
        roles = ['"' + name.replace('"', '""') + '"' for name in self.names]
        with (where or self.here).connect() as connection:
            for statement in script.strip().split(";\n"):
                connection.execute(
                    statement.format(*roles, suffix=self.suffix, database=self.here.name)
                )

    def drop(self) -> None:
        self.cluster.drop_database(self.here.name)
        self.cluster.drop_database(self.elsewhere.name)
        for (name,) in self.cluster.query(
            r"SELECT quote_ident(rolname) FROM pg_roles WHERE rolname NOT LIKE 'pg\_%' AND oid >= "
            r"16384"
        ):
            self.cluster.execute(f"DROP ROLE {name}")


@pytest.fixture(params=majors_by_tier(MAJORS), ids=lambda major: f"pg{major}")
def roles(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[_Roles]:
    made = _Roles(session_cluster(request.param))
    try:
        yield made
    finally:
        made.drop()


@pytest.mark.parametrize("how", ["superuser", "ordinary", "raw"])
def test_names_equal_postgresql(roles: _Roles, how: str, tmp_path: Path) -> None:
    roles.run(";\n".join(f"CREATE ROLE {{{i}}}" for i in range(len(ROLES))))
    roles.run(SETUP)
    roles.run(GRANTS)
    ways: dict[str, Callable[[str], Bootstrap]] = {
        "superuser": bootstrap_sql,
        "ordinary": partial(_ordinary, roles.here, roles.suffix),
        "raw": bootstrap_raw,
    }
    decoding = DecodingSession(roles.here, tmp_path, bootstrap=ways[how])
    audit = decoding.decoder.audit()
    roles.run(SNAPSHOT)
    # Renamed, made and dropped: between transactions, in them, in subtransactions, from another
    # database.
    roles.run("ALTER ROLE {5} RENAME TO later_{suffix}")
    roles.run(SNAPSHOT)
    roles.run("ALTER ROLE {6} RENAME TO {5};\nCREATE ROLE other_{suffix}", roles.elsewhere)
    roles.run(SNAPSHOT)
    roles.run(
        """BEGIN;
        CREATE ROLE new_{suffix} PASSWORD 'secret'; INSERT INTO roles (r) SELECT oid FROM pg_roles;
        SAVEPOINT a;
        ALTER ROLE new_{suffix} RENAME TO newer_{suffix}; ALTER ROLE {2} RENAME TO "Lower {suffix}";
        SAVEPOINT b;
        INSERT INTO roles (r) SELECT oid FROM pg_roles; DROP ROLE newer_{suffix};
        INSERT INTO roles (r) SELECT DISTINCT r FROM roles; ROLLBACK TO b;
        INSERT INTO roles (r) SELECT DISTINCT r FROM roles; ROLLBACK TO a;
        INSERT INTO roles (r) SELECT DISTINCT r FROM roles;
        ALTER ROLE {2} RENAME TO "Third {suffix}"; SAVEPOINT c;
        ALTER ROLE "Third {suffix}" RENAME TO "Fourth {suffix}";
        INSERT INTO roles (r) SELECT oid FROM pg_roles;
        RELEASE c; INSERT INTO roles (r) SELECT oid FROM pg_roles;
        ALTER ROLE "Fourth {suffix}" RENAME TO {2};
        INSERT INTO roles (r) SELECT oid FROM pg_roles; COMMIT"""
    )
    roles.run(SNAPSHOT)
    roles.run(
        'BEGIN; ALTER ROLE {1} RENAME TO "gone {suffix}"; DROP ROLE other_{suffix};'
        " INSERT INTO roles (r) SELECT DISTINCT r FROM roles; ROLLBACK"
    )
    roles.run("ALTER ROLE {1} VALID UNTIL '2030-01-01';\nALTER ROLE {2} PASSWORD 'x'")
    roles.run(SNAPSHOT)
    roles.run("DROP ROLE other_{suffix};\nDROP ROLE new_{suffix}")
    roles.run("INSERT INTO roles (r) SELECT DISTINCT r FROM roles")
    decoding.decode()
    assert audit.checked > 10
    decoding.restart(decoding.decoder.serialize(), decoding.decoder.position)
    decoding.decoder.audit()
    # Its catalog moves, from here and from where our pg_class does not tell.
    for number, where in enumerate((roles.here, roles.elsewhere, roles.elsewhere)):
        where.execute("VACUUM FULL pg_authid")
        roles.run("ALTER ROLE {0} RENAME TO moving_{suffix}")
        roles.run(SNAPSHOT)
        roles.run("ALTER ROLE moving_{suffix} RENAME TO {0};\nALTER ROLE {3} PASSWORD 'y'", where)
        roles.run(f"CREATE ROLE made{number}_{{suffix}};\nALTER ROLE {{8}} CONNECTION LIMIT 3")
        roles.run(SNAPSHOT)
        decoding.decode()
        decoding.restart(decoding.decoder.serialize(), decoding.decoder.position)
        decoding.decoder.audit()
    roles.run("DROP ROLE made1_{suffix}", roles.elsewhere)
    roles.run("INSERT INTO roles (r) SELECT DISTINCT r FROM roles")
    roles.run(SNAPSHOT)
    lines = "\n".join(line.data for line in decoding.assert_equal_to_server())
    assert f'r[regrole]:\'"we""ird{roles.suffix}"\'' in lines
    assert f"r[regrole]:'\"Fourth {roles.suffix}\"'" in lines
    decoding.close()
    decoding.slot.drop()


@pytest.mark.parametrize("binary", ["off", "on"], ids=["text", "binary"])
def test_pgoutput_equals_postgresql(roles: _Roles, binary: str, tmp_path: Path) -> None:
    """No table is announced again because a role changes. In binary, PostgreSQL fails on arrays of
    aclitem.
    """
    roles.run(";\n".join(f"CREATE ROLE {{{i}}}" for i in range(len(ROLES))))
    roles.run(SETUP)
    roles.run(GRANTS)
    roles.run(
        "CREATE PUBLICATION p FOR TABLE roles, bystander"
        + (", acls" if binary == "off" else ", one")
    )
    options = {"proto_version": "1", "publication_names": "p", "binary": binary}
    decoding = DecodingSession(roles.here, tmp_path, plugin="pgoutput", options=options)
    roles.run(SNAPSHOT)
    roles.run("ALTER ROLE {5} RENAME TO later_{suffix}", roles.elsewhere)
    roles.run(SNAPSHOT)
    roles.run(
        "BEGIN; INSERT INTO roles (r) SELECT oid FROM pg_roles; ALTER ROLE {6} RENAME TO {5};"
        " CREATE ROLE new_{suffix}; INSERT INTO roles (r) SELECT oid FROM pg_roles; COMMIT"
    )
    roles.elsewhere.execute("VACUUM FULL pg_authid")
    roles.run("DROP ROLE new_{suffix}")
    roles.run(SNAPSHOT)
    ours = decoding.decode()
    theirs = decoding.slot.peek_binary(options)
    assert ours[:1] == theirs[:1]
    assert len(ours) > 300
    # What we flush WAL with publishes nothing: 14 sends its BEGIN and COMMIT.
    assert len(theirs) - len(ours) in range(0, 5, 2)
    for mine, expected in zip(ours, theirs, strict=False):
        assert mine == expected
    decoding.close()
    decoding.slot.drop()
