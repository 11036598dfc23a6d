"""Names and values that are not UTF-8, in databases of other encodings: byte for byte what
PostgreSQL sends.

PostgreSQL is asked with the client encoding that can hold what there is: UTF8, into which it
converts, and SQL_ASCII for a database in SQL_ASCII, whose bytes mean nothing to it.
"""

from __future__ import annotations

import html
import json
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import grpc
import psycopg
import pyarrow as pa
import pytest

from harness.backup import copy
from harness.cluster import Database
from harness.service import service_in_process
from harness.tiers import deep
from spillway.cli import main
from spillway.errors import ValueNotRepresentable
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.stream.client import open_stream
from spillway.v1 import slots_pb2, slots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import LiteralString

    from harness.cluster import Cluster
    from harness.service import Service

#: encoding → a word of it that is not UTF-8
WORDS = {
    "SQL_ASCII": b"\xe9\xff\x80\xc3",
    "LATIN1": "é\xff\xdf".encode("latin-1"),
    "EUC_JP": "日本".encode("euc_jp"),
}
CODECS = {"SQL_ASCII": "utf-8", "LATIN1": "latin-1", "EUC_JP": "euc_jp"}

SETUP = """
CREATE SCHEMA "s@";
CREATE TYPE "s@"."m@" AS ENUM ('l@', '@'); CREATE TYPE "s@"."c@" AS ("f@" text, "g@" "s@"."m@");
CREATE DOMAIN "s@"."d@" AS text; CREATE TYPE "s@"."r@" AS RANGE (subtype = text);
CREATE TABLE "s@"."t@" ("k@" int PRIMARY KEY, "v@" text, "e@" "s@"."m@", "c@" "s@"."c@",
    "d@" "s@"."d@", "r@" "s@"."r@",
    "a@" "s@"."m@"[], "j@" jsonb, "q@" tsvector, "n@" name, "b@" bytea, o regrole, z regclass,
        x xml);
CREATE PUBLICATION "p@" FOR TABLE "s@"."t@" {row_filter};
CREATE PUBLICATION plain FOR TABLE "s@"."t@";
CREATE ROLE "role@{unique}";
SELECT pg_replication_origin_create('o@{unique}');
"""
CHANGES = """
INSERT INTO "s@"."t@" VALUES (1, '@''s', 'l@', ROW('@ x', '@'), '@', '[@,@z)', '{l@,@}',
    '{"@": ["@"]}', '@:1', '@', '@',
    '"role@{unique}"', '"s@"."t@"', '<a/>');
ALTER TABLE "s@"."t@" REPLICA IDENTITY FULL;
UPDATE "s@"."t@" SET "v@" = '@ again';
ALTER TABLE "s@"."t@" ADD "late@" text DEFAULT 'default @';
DELETE FROM "s@"."t@";
BEGIN; SAVEPOINT a; INSERT INTO "s@"."t@" ("k@") VALUES (2); ROLLBACK TO a;
    SELECT pg_logical_emit_message(true, 'prefix @', 'content @'); TRUNCATE "s@"."t@"; COMMIT;
SELECT pg_logical_emit_message(false, 'prefix @', '@');
ALTER TYPE "s@"."m@" RENAME VALUE 'l@' TO 'L@'; ALTER TABLE "s@"."t@" RENAME "v@" TO "w@";
ALTER TABLE "s@"."t@" RENAME TO "u@";
SELECT pg_replication_origin_session_setup('o@{unique}');
INSERT INTO "s@"."u@" ("k@", "e@", "w@") VALUES (3, 'L@', '@');
SELECT pg_replication_origin_session_reset();
BEGIN; UPDATE "s@"."u@" SET "w@" = NULL; PREPARE TRANSACTION 'gid @{unique}';
COMMIT PREPARED 'gid @{unique}';
CREATE ROLE "seen by all databases @{unique}";
DROP ROLE "seen by all databases @{unique}";
"""


class Odd(NamedTuple):
    """A database with a table of odd names."""

    database: Database
    encoding: str
    unique: str

    @property
    def word(self) -> bytes:
        return WORDS[self.encoding]

    @property
    def text(self) -> str:
        return self.word.decode(CODECS[self.encoding], "surrogateescape")

    def sql(self, text: str) -> bytes:
        filled = text.replace("{unique}", self.unique)
        return filled.encode().replace(b"@", self.word)

    def run(self, text: str) -> None:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            connection.execute(f"SET client_encoding = {self.encoding}")
            for statement in text.split(";\n"):
                connection.execute(self.sql(statement))

    def options(self, plugin: str) -> dict[str, bytes]:
        if plugin != "pgoutput":
            return {}
        # An identifier's quotes, a list's.
        name = b"plain" if self.encoding == "SQL_ASCII" else b'"p' + self.word + b'"'
        return {
            "proto_version": b"3",
            "two_phase": b"on",
            "publication_names": name,
            "messages": b"on",
        }

    def theirs(self, plugin: str) -> list[bytes]:
        """What PostgreSQL's slot gives, as a consumer receives it."""
        binary = plugin == "pgoutput"
        function = f"pg_logical_slot_peek_{'binary_' if binary else ''}changes"
        options = b", ".join(
            b"'%s', '%s'" % (name.encode(), value) for name, value in self.options(plugin).items()
        )
        query = f"SELECT data FROM {function}('{plugin}_{self.unique}', NULL, NULL".encode()
        query += b", " + options + b")" if options else b")"
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            # Names among the options are in the database's encoding as soon as the server has read
            # them.
            connection.execute(f"SET client_encoding = {self.client_encoding}")
            text = (
                query
                if self.encoding == "SQL_ASCII"
                else query.decode(CODECS[self.encoding]).encode()
            )
            rows = connection.execute(cast("LiteralString", text)).fetchall()
        return [data.encode() if isinstance(data, str) else bytes(data) for (data,) in rows]

    @property
    def client_encoding(self) -> str:
        return "SQL_ASCII" if self.encoding == "SQL_ASCII" else "UTF8"


@pytest.fixture(
    scope="module",
    params=[deep((15, "SQL_ASCII")), deep((15, "LATIN1")), (18, "SQL_ASCII"), (18, "EUC_JP")],
    ids=lambda param: f"pg{param[0]}-{param[1]}",
)
def odd(request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]) -> Iterator[Odd]:
    major, encoding = request.param
    cluster = session_cluster(major)
    unique = secrets.token_hex(4)
    name = f"odd_{unique}"
    cluster.execute(
        f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE "
        "template0"
    )
    made = Odd(Database(cluster, name), encoding, unique)
    made.run(SETUP.replace("{row_filter}", """WHERE ("v@" <> 'none @')"""))
    yield made
    for slot in ("test_decoding", "pgoutput"):
        cluster.execute(f"SELECT pg_drop_replication_slot('{slot}_{unique}')")
    made.run("SELECT pg_replication_origin_drop('o@{unique}');\nDROP ROLE \"role@{unique}\"")
    cluster.drop_database(name)


def received(service: Service, odd: Odd, plugin: str, **options: str) -> list[bytes]:
    """What a gRPC stream gives of all that is there."""
    slot = f"{plugin}_{odd.unique}"
    given = {
        name: value.decode(CODECS[odd.encoding]) for name, value in odd.options(plugin).items()
    }
    # Text is bytes to a client that is told SQL_ASCII; the question is asked elsewhere.
    end = odd.database.cluster.value("SELECT pg_current_wal_flush_lsn()::text")
    service.wait_for(slot, end)
    found: list[bytes] = []
    with open_stream(
        service.grpc_address, slot, upto_lsn=Lsn.parse(end), options=given | options, peek=True
    ) as stream:
        for batch in stream:
            found += [bytes(data) for _, _, data in batch.messages()]
    return found


def assert_same_over_rest(service: Service, odd: Odd, theirs: list[bytes]) -> None:
    answer = service.call("GET", f"/slots/test_decoding_{odd.unique}/peek")
    changes = answer["changes"]
    assert [read(change) for change in changes] == theirs
    for change in changes:
        # What is UTF-8 stays as it was; what isn't can be read all the same.
        assert ("data_hex" in change) == ("\N{REPLACEMENT CHARACTER}" in change["data"])


def assert_same_over_grpc(service: Service, odd: Odd, theirs: list[bytes]) -> None:
    """PeekChanges: a string, and the bytes where they are none."""
    request = slots_pb2.ReadChangesRequest(slot_name=f"test_decoding_{odd.unique}")
    with grpc.insecure_channel(service.grpc_address) as channel:
        stub: Any = slots_pb2_grpc.SlotServiceStub(channel)  # type: ignore[no-untyped-call]
        changes = [change for part in stub.PeekChanges(request) for change in part.changes]
    assert [change.data_bytes or change.data.encode() for change in changes] == theirs


def read(change: dict[str, Any]) -> bytes:
    """Give a change's bytes, as rest.md says that they are got."""
    if "data_hex" in change:
        return bytes.fromhex(change["data_hex"].removeprefix("\\x"))
    return cast("str", change["data"]).encode()


def assert_columns(service: Service, odd: Odd) -> None:
    """Arrow's names and text are UTF-8; what has no such form is an error until the slot's option
    says otherwise.
    """
    slot = f"arrow_{odd.unique}"
    shown = readable(odd.text)
    if odd.encoding == "SQL_ASCII":
        with pytest.raises(ValueNotRepresentable) as caught:
            received(service, odd, "arrow")
        option, _, value = (
            caught.value.hint.partition("option ")[2].partition(":")[0].partition("=")
        )
        service.call("PATCH", f"/slots/{slot}", json={"options": {option: value}})
    batches = [pa.ipc.open_stream(message) for message in received(service, odd, "arrow")]
    first = batches[0].read_all()
    relation = json.loads(first.schema.metadata[b"spillway.relation"])
    assert (relation["schema"], relation["table"]) == (f"s{shown}", f"t{shown}")
    (row,) = first.select(
        [f"v{shown}", f"e{shown}", f"c{shown}", f"a{shown}", f"n{shown}"]
    ).to_pylist()
    assert list(row.values()) == [
        f"{shown}'s",
        f"l{shown}",
        f'("{shown} x",{shown})',
        f"{{l{shown},{shown}}}",
        shown,
    ]
    late = [batch.schema for batch in batches if f"late{shown}" in batch.schema.names]
    column = json.loads(late[0].field(f"late{shown}").metadata[b"spillway.column"])
    assert column["missing"] == f"default {shown}"


def assert_shown(service: Service, odd: Odd) -> None:
    """Whatever shows names can show these."""
    shown = readable(odd.text)
    database = odd.database.name
    listed = service.call("GET", "/publications", params={"source": "main", "database": database})
    publication = next(p for p in listed["publications"] if p["name"] == f"p{shown}")
    (table,) = publication["tables"]
    assert (table["schema"], table["name"]) == (f"s{shown}", f"u{shown}")
    assert f"none {shown}" in table["row_filter"]
    tables = service.call("GET", "/sources/main/tables", params={"database": database})["tables"]
    assert [(t["schema"], t["name"]) for t in tables] == [(f"s{shown}", f"u{shown}")]
    page = service.http.get(f"/ui/slots/test_decoding_{odd.unique}/changes")
    assert page.status_code == 200
    assert f"prefix {shown}" in html.unescape(page.text)


def assert_decoded(odd: Odd, directory: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    words = [
        "decode", "--wal-dir", str(odd.database.cluster.wal_directory), "--data-directory",
        str(directory), "--database", odd.database.name,
    ]  # fmt: skip
    # Without two-phase: a prepared transaction is an ordinary one.
    theirs = [
        line for line in odd.theirs("test_decoding")
        if not line.startswith((b"BEGIN", b"PREPARE", b"COMMIT"))
    ]  # fmt: skip
    for more in ([], ["--format", "json"]):
        assert main([*words, *more]) == 0
        out, err = capfdbinary.readouterr()
        assert not err
        lines = out.splitlines()
        ours = [read(json.loads(line)) for line in lines] if more else lines
        assert [x for x in ours if not x.startswith((b"BEGIN", b"COMMIT"))] == theirs


def test_names_and_values(
    odd: Odd, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cluster = odd.database.cluster
    slots = {"test_decoding", "pgoutput"}
    with service_in_process(tmp_path / "data") as service:
        service.create_source(odd.database.dsn)
        for plugin in slots | {"arrow", "wal2json"}:
            service.create_slot(
                f"{plugin}_{odd.unique}", odd.database.name, plugin, two_phase=plugin in slots
            )
        # In UTF8, and of the same roles.
        service.create_slot(f"beside_{odd.unique}", "postgres")
        for plugin in slots:
            cluster.execute(
                f"SELECT pg_create_logical_replication_slot('{plugin}_{odd.unique}', '{plugin}', "
                "false, true)",
                dbname=odd.database.name,
            )
        cluster.execute("CHECKPOINT")
        copy(cluster, tmp_path / "copy")
        odd.run(CHANGES)
        theirs = {plugin: odd.theirs(plugin) for plugin in slots}
        assert len(theirs["test_decoding"]) > 20
        for plugin in slots:
            assert received(service, odd, plugin) == theirs[plugin]
        assert_decoded(odd, tmp_path / "copy", capfdbinary)
        service.wait_for(f"beside_{odd.unique}", cluster.wal_lsn(), 60)
        assert_same_over_rest(service, odd, theirs["test_decoding"])
        assert_same_over_grpc(service, odd, theirs["test_decoding"])
        assert_columns(service, odd)
        assert_shown(service, odd)
        assert odd.sql('"schema":"s@"').decode(CODECS[odd.encoding], "surrogateescape").encode(
            errors="surrogateescape"
        ) in b"".join(received(service, odd, "wal2json"))
    # The log is read by another process's life: descriptors come from the disk.
    with service_in_process(tmp_path / "data") as service:
        for plugin in slots:
            assert received(service, odd, plugin) == theirs[plugin]
        odd.run('INSERT INTO "s@"."u@" ("k@", "w@") VALUES (4, \'@\')')
        theirs = {plugin: odd.theirs(plugin) for plugin in slots}
        for plugin in slots:
            assert received(service, odd, plugin) == theirs[plugin]
