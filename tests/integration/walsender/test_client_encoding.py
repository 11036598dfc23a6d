"""Text for clients of other encodings, and of databases in other encodings: as a walsender of each
major sends it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from harness.pg_port import PASSWORD, dsn_of, serving
from harness.replication_client import ReplicationClient
from harness.service import service_in_process
from harness.tiers import deep
from spillway.pg.character_checks import CHECKED
from spillway.pg.character_maps import WIDE_ENCODINGS, character_map
from spillway.pg.client_text import characters_of
from spillway.pg.direct_maps import DIRECT, KEEPS_STRAYS, direct_map
from spillway.pg.encoding import server_encoding
from spillway.walsender.client_encoding import ClientEncoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from harness.service import Service
    from spillway._kernels.pg.character_map import CharacterMap

_MAJORS = [deep(14), deep(15), deep(16), deep(17), 18]
#: server encoding → a text that has characters of each kind, in it
_TEXTS = {
    "LATIN1": "é\x80ÿ".encode("latin-1"),
    "WIN1252": "é€ÿ".encode("cp1252"),
    "SQL_ASCII": "é".encode(),
    "EUC_JP": "日本".encode("euc_jp"),
    "EUC_TW": "中乂".encode("spillway_euc_tw"),
    "KOI8R": "привЁт".encode("koi8-r"),
    "LATIN2": "łŠ\x80".encode("iso8859-2"),
    "UTF8": "éÿ".encode(),
}
#: server encoding → what clients ask for; the second one of UTF8's is an alias
_CLIENTS = {
    "LATIN1": ["UTF8", "LATIN1", "SQL_ASCII"],
    "WIN1252": ["UTF8", "WIN1252", "LATIN1"],
    "SQL_ASCII": ["UTF8", "LATIN1", "SQL_ASCII", "GB18030", "SJIS", "MULE_INTERNAL"],
    "EUC_JP": ["UTF8", "EUC_JP", "SQL_ASCII", "SJIS", "MULE_INTERNAL"],
    "EUC_TW": ["UTF8", "EUC_TW", "BIG5"],
    "KOI8R": ["UTF8", "WIN1251", "WIN866", "ISO_8859_5", "LATIN1"],
    "LATIN2": ["WIN1250", "MULE_INTERNAL"],
    "UTF8": ["LATIN1", "windows-1252", "SQL_ASCII", "KOI8R", "nonsense", "MULE_INTERNAL"],
}
#: what a server refuses as well
_REFUSED = {
    ("WIN1252", "LATIN1"),
    ("KOI8R", "LATIN1"),
    ("UTF8", "nonsense"),
    ("UTF8", "MULE_INTERNAL"),
}
#: bytes that a database has all the same, and that are no character of its encoding
_STRAYS = {
    "WIN1252": b"a\x81b",
    "SQL_ASCII": b"a\xe9\x80",
    "UTF8": "a日b".encode(),
    "KOI8R": "a─b".encode("koi8-r"),
}
_WHOLE = "proto_version '2', publication_names 'p', messages 'on'"
#: client's encoding → a text that it has, with what Python's codecs have otherwise
_WIDE_TEXTS = {
    "EUC_JP": "日本¦éⅠ",
    "SJIS": "日本¥№ｱ",
    "EUC_JIS_2004": "日本か\u309a𠀋",
    "SHIFT_JIS_2004": "日本か\u309a—𠀋",
    "BIG5": "中文十碁",
    "GBK": "中文€",
    "EUC_CN": "中文",
    "GB18030": "中文é😀",
    "UHC": "한국똠\u327e\ue000",
    "EUC_KR": "한국\u327e",
    "JOHAB": "한국똠\u327e",
    "EUC_TW": "中乂両",
}
_FIRST_TIER = ("SJIS", "EUC_JIS_2004", "GB18030", "UHC")


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[Cluster]:
    cluster = session_cluster(request.param)
    yield cluster
    for encoding in _TEXTS:
        cluster.execute(f"DROP DATABASE IF EXISTS in_{encoding} WITH (FORCE)")


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_streams_are_a_walsenders(cluster: Cluster, tmp_path: Path) -> None:
    with service_in_process(tmp_path) as service:
        service.create_source(cluster.dsn())
        body = {"name": "alice", "databases": ["main/*"], "manage_slots": True}
        service.call("POST", "/users", json={**body, "password": PASSWORD})
        for encoding in _TEXTS:
            if cluster.major == 18 and encoding == "LATIN2":
                # The older majors have depth.
                continue
            _compare(cluster, service, encoding)


def _compare(cluster: Cluster, service: Service, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    with cluster.connect() as connection:
        statement = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        connection.execute(statement.encode())
    sides = make_conninfo(cluster.dsn(), dbname=name), dsn_of(service, "alice", name)
    slots = [("out", "pgoutput"), ("text", "test_decoding"), ("stray", "pgoutput")]
    for dsn in sides:
        with ReplicationClient(f"{dsn} client_encoding=UTF8") as connection:
            for slot, plugin in slots:
                create = f"CREATE_REPLICATION_SLOT {slot}_{name} LOGICAL {plugin} NOEXPORT_SNAPSHOT"
                assert connection.run(create).status == "TUPLES_OK"
    named = _TEXTS[encoding]
    end = _write(sides[0], encoding, named, named)
    for client in _CLIENTS[encoding]:
        for slot, options in (("out", _WHOLE), ("text", "")):
            theirs, ours = (
                _stream(f"{dsn} client_encoding={client}", f"{slot}_{name}", options, end)
                for dsn in sides
            )
            assert ours == theirs, (encoding, client, slot)
            assert isinstance(theirs, str) == ((encoding, client) in _REFUSED)
    # What has no equivalent ends the stream, behind what was before it.
    if encoding not in _STRAYS:
        return
    end = _write(sides[0], encoding, b"plain", _STRAYS[encoding])
    clients = {"UTF8": ["LATIN1"], "KOI8R": ["WIN866"], "SQL_ASCII": ["UTF8", "EUC_JP", "EUC_TW"]}
    for client in clients.get(encoding, ["UTF8"]):
        theirs, ours = (
            _stream(f"{dsn} client_encoding={client}", f"stray_{name}", _WHOLE, end)
            for dsn in sides
        )
        assert ours == theirs, (encoding, client)
        assert isinstance(theirs, tuple)
    # As raw bytes it is any other.
    theirs, ours = (
        _stream(f"{dsn} client_encoding={client}", f"text_{name}", "", end) for dsn in sides
    )
    assert ours == theirs
    assert isinstance(theirs, list)


def _write(dsn: str, encoding: str, name: bytes, text: bytes) -> str:
    """Write *name* and *text* wherever a walsender sends text; return where WAL ends."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Not psycopg's cursors, which would have to know the encoding.
        def execute(statement: bytes) -> bytes | None:
            result = connection.pgconn.exec_(statement)
            assert result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK), (
                result.error_message
            )
            return result.get_value(0, 0) if result.ntuples else None

        execute(b"SET client_encoding = '%s'" % encoding.encode())
        execute(
            b'CREATE TABLE IF NOT EXISTS "t%s" (a int PRIMARY KEY, "b%s" text, j json, n bytea)'
            % (name, name)
        )
        execute(b"CREATE TYPE \"y%s\" AS ENUM ('x%s')" % (name, name))
        if execute(b"SELECT 1 FROM pg_publication") is None:
            execute(b"CREATE PUBLICATION p FOR ALL TABLES")
        execute(b'ALTER TABLE "t%s" ADD COLUMN c "y%s", REPLICA IDENTITY FULL' % (name, name))
        execute(
            b"INSERT INTO \"t%s\" VALUES (1, '%s', '{\"k\": \"%s\"}', '\\x00ff', 'x%s'),"
            b" (2, '', NULL, NULL, NULL)" % (name, text, text, name)
        )
        execute(b'UPDATE "t%s" SET a = 3, "b%s" = NULL WHERE a = 1' % (name, name))
        execute(b'DELETE FROM "t%s" WHERE a = 2' % name)
        # The content is no text to pgoutput.
        execute(b"SELECT pg_logical_emit_message(true, 'p%s', 'c%s')" % (text, text))
        end = execute(b"SELECT pg_current_wal_flush_lsn()")
    assert end is not None
    return end.decode()


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_clients_of_several_bytes_a_character(cluster: Cluster, tmp_path: Path) -> None:
    """From a database in UTF8: names, values, prefixes, and a character that there is none for."""
    name = "in_utf8"
    database = cluster.create_database(name)
    with service_in_process(tmp_path) as service:
        service.create_source(cluster.dsn())
        body = {"name": "alice", "databases": ["main/*"], "manage_slots": True}
        service.call("POST", "/users", json={**body, "password": PASSWORD})
        sides = database.dsn, dsn_of(service, "alice", name)
        for dsn in sides:
            with ReplicationClient(dsn) as connection:
                connection.run("CREATE_REPLICATION_SLOT wide LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        for client, text in _WIDE_TEXTS.items():
            if cluster.major == 18 and client not in _FIRST_TIER:
                # The older majors have depth.
                continue
            begin = str(database.value("SELECT pg_current_wal_flush_lsn()::text"))
            data = text.encode()
            end = _write(sides[0], "UTF8", data, b"a" + data + b"b")
            theirs, ours = (
                _stream(f"{dsn} client_encoding={client}", "wide", _WHOLE, end, begin)
                for dsn in sides
            )
            assert ours == theirs, client
            assert isinstance(theirs, list)
            assert any(character_map(client).encode(text) in frame.data for frame in theirs)
            if client == "GB18030":
                continue
            end = _write(sides[0], "UTF8", b"plain", "xกy".encode())
            theirs, ours = (
                _stream(f"{dsn} client_encoding={client}", "wide", _WHOLE, end, begin)
                for dsn in sides
            )
            assert ours == theirs, client
            assert isinstance(theirs, tuple)
            database.execute('DROP TABLE "tplain"; DROP TYPE "yplain"')


def _stream(dsn: str, slot: str, options: str, end: str, begin: str = "0/0") -> object:
    """Return the frames up to *end*; or those up to an error, and the error."""
    try:
        connection = ReplicationClient(dsn)
    except ConnectionRefusedError as refused:
        return str(refused).partition("FATAL:")[2].splitlines()[0]
    with connection:
        connection.start(slot, options, begin)
        try:
            connection.read_to(end)
        except EOFError as error:
            said = str(error).splitlines()[0]
            return connection.frames, said
        connection.finish_copy()
        return connection.frames


def test_what_is_not_served(session_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    """Said at once, and with what to do instead, which is done."""
    cluster = session_cluster(18)
    with cluster.connect() as connection:
        connection.execute(
            "CREATE DATABASE in_latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        )
    try:
        with service_in_process(tmp_path) as service:
            service.create_source(cluster.dsn())
            body = {"name": "alice", "databases": ["main/*"], "manage_slots": True}
            service.call("POST", "/users", json={**body, "password": PASSWORD})
            dsn = dsn_of(service, "alice", "in_latin1")
            with pytest.raises(ConnectionRefusedError) as refused:
                ReplicationClient(f"{dsn} client_encoding=SJIS")
            assert "conversion between SJIS and LATIN1 is not supported" in str(refused.value)
            assert "Connect with client_encoding=UTF8." in str(refused.value)
            with ReplicationClient(f"{dsn} client_encoding=UTF8") as utf8:
                utf8.run("CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT")
                utf8.start("s", "proto_version '1', publication_names 'p', binary 'on'")
    finally:
        cluster.execute("DROP DATABASE in_latin1 WITH (FORCE)")


def test_what_a_slot_says_of_a_client(pg18: Database, tmp_path: Path) -> None:
    """A client's encoding is its own, whatever the slot has been given for others."""
    pg18.execute("CREATE TABLE t (v text); CREATE PUBLICATION p FOR ALL TABLES")
    with serving(pg18, tmp_path) as (service, dsn):
        given = {"spillway.send_encoding": "UTF8/LATIN1", "binary": "on"}
        service.create_slot("s", pg18.name, "pgoutput", options=given)
        pg18.execute("INSERT INTO t VALUES ('é')")
        end = str(pg18.value("SELECT pg_current_wal_flush_lsn()::text"))
        for client, text in (("UTF8", "é".encode()), ("LATIN1", b"\xe9"), ("UTF8", "é".encode())):
            frames = _stream(f"{dsn} client_encoding={client}", "s", _WHOLE, end)
            assert isinstance(frames, list)
            (row,) = [frame.data for frame in frames if frame.data[:1] == b"I"]
            assert row.endswith(b"b" + len(text).to_bytes(4) + text)


#: server encoding, client's, a text that both have: each way that text goes
_BINARY = [
    ("UTF8", "LATIN1", "§¶"),
    ("UTF8", "SJIS", "§¶"),
    ("UTF8", "SQL_ASCII", "§¶"),
    ("LATIN1", "LATIN1", "éÿ"),
    ("LATIN1", "UTF8", "éÿ"),
    ("LATIN1", "MULE_INTERNAL", "éÿ"),
    ("SQL_ASCII", "LATIN1", "é"),
    ("SQL_ASCII", "GB18030", "é"),
    ("SQL_ASCII", "MULE_INTERNAL", "é"),
    ("KOI8R", "WIN1251", "привет"),
    ("EUC_JP", "SJIS", "日本"),
    ("EUC_TW", "BIG5", "中乂"),
]
_PYTHON = {"UTF8": "utf-8", "LATIN1": "latin-1", "SQL_ASCII": "utf-8", "KOI8R": "koi8-r"}
_BINARY += [("EUC_TW", "UTF8", "中乂")]
_PYTHON |= {"EUC_JP": "euc_jp", "EUC_TW": "spillway_euc_tw"}
#: every type whose send format has text in it, and those that may hold such
_TYPES = """
CREATE TYPE mood AS ENUM ('x@'); CREATE DOMAIN word AS text;
CREATE TYPE span AS RANGE (subtype = text);
CREATE TYPE both_of AS (w text, n int, m mood);
CREATE TABLE t (a int PRIMARY KEY, v text, c varchar, d char(12), n name, w word, e mood, j json,
    jb jsonb, x xml, tv tsvector, tq tsquery, jp jsonpath, vs text[], cs both_of,
    css both_of[], r span,
    ct citext, h hstore, lt ltree, b bytea, u text);
ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR ALL TABLES;
"""
_ROWS = """
INSERT INTO t VALUES (1, repeat('@a', 2000), '@', '@', '@', '@', 'x@', '{"k": "@"}', '{"@": ["@"]}',
    '<a>@</a>', '@:1 a:2,3', '@ & ! a', '$.a ? (@ == "@@")', '{@,"@ @",NULL}', ROW('@', 1, 'x@'),
    ARRAY[ROW('@', 2, 'x@')::both_of], '[@,@z)', '@', '@=>@, a=>NULL', 'a.b', '\\x00ff', '');
INSERT INTO t (a, x, v) VALUES (2, '<?xml version="1.0" standalone="yes"?><a>@</a>', 'plain');
UPDATE t SET c = '@@' WHERE a = 1; DELETE FROM t WHERE a = 2;
SELECT pg_logical_emit_message(true, 'p@', 'c@');
"""


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_text_within_values_in_their_send_format(cluster: Cluster, tmp_path: Path) -> None:
    options = _WHOLE + ", binary 'on'"
    with service_in_process(tmp_path) as service:
        service.create_source(cluster.dsn())
        body = {"name": "alice", "databases": ["main/*"], "manage_slots": True}
        service.call("POST", "/users", json={**body, "password": PASSWORD})
        for server in dict.fromkeys(server for server, _, _ in _BINARY):
            if cluster.major == 18 and server not in {"UTF8", "KOI8R"}:
                # The older majors have depth.
                continue
            name = f"in_{server.lower()}"
            with cluster.connect() as connection:
                create = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{server}' LOCALE 'C'"
                connection.execute(create.encode())
            sides = make_conninfo(cluster.dsn(), dbname=name), dsn_of(service, "alice", name)
            for dsn in sides:
                with ReplicationClient(f"{dsn} client_encoding=UTF8") as replication:
                    replication.run(
                        f"CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput NOEXPORT_SNAPSHOT"
                    )
            pairs = [(client, text) for one, client, text in _BINARY if one == server]
            data = pairs[0][1].encode(_PYTHON[server])
            end = _run(sides[0], server, _statements(data))
            for client, _ in pairs:
                theirs, ours = (
                    _stream(f"{dsn} client_encoding={client}", name, options, end) for dsn in sides
                )
                assert ours == theirs, (server, client)
                assert isinstance(theirs, list)
                assert any(frame.data[:1] == b"I" for frame in theirs)
            if server != "UTF8":
                continue
            # What has no equivalent ends the stream, behind what was before it.
            end = _run(sides[0], server, [b"INSERT INTO t (a) VALUES (7)"])
            end = _run(sides[0], server, ["INSERT INTO t (a, vs) VALUES (8, '{ab,xกy}')".encode()])
            theirs, ours = (
                _stream(f"{dsn} client_encoding=LATIN1", name, options, end) for dsn in sides
            )
            assert ours == theirs
            assert isinstance(theirs, tuple)
            assert "0xe0 0xb8 0x81" in theirs[1]


def _statements(text: bytes) -> list[bytes]:
    extensions = [f"CREATE EXTENSION {name}".encode() for name in ("citext", "hstore", "ltree")]
    return [*extensions, *_made_of(_TYPES, text), *_made_of(_ROWS, text)]


def _made_of(statements: str, text: bytes) -> list[bytes]:
    # The at sign of jsonpath stays.
    path = b"$.a ? (@ == "
    return [
        one.strip().replace(path, b"\0").replace(b"@", text).replace(b"\0", path)
        for one in statements.encode().split(b";")
        if one.strip()
    ]


def _run(dsn: str, encoding: str, statements: list[bytes]) -> str:
    """Run statements in the database's own encoding; return where WAL ends."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        every = [
            b"SET client_encoding = '%s'" % encoding.encode(),
            b"SET lc_messages = 'C'",
            *statements,
            b"SELECT pg_current_wal_flush_lsn()",
        ]
        for statement in every:
            result = connection.pgconn.exec_(statement)
            assert result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK), (
                statement,
                result.error_message,
            )
        end = result.get_value(0, 0)
    assert end is not None
    return end.decode()


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_tables_are_the_servers(cluster: Cluster) -> None:
    """Each byte's character; with the depth of the long tier, that no other has a byte, too."""
    for encoding in (
        *(f"LATIN{n}" for n in range(1, 11)),
        *(f"ISO_8859_{n}" for n in range(5, 9)),
        *(f"WIN{n}" for n in (866, 874, *range(1250, 1259))),
        "KOI8R",
        "KOI8U",
    ):
        assert ClientEncoding.of(encoding, "UTF8").client == encoding
        ours = _codes(characters_of(encoding))
        assert _forward(cluster, encoding) == {
            byte[0]: code for code, byte in ours.items() if len(byte) == 1
        }
        if cluster.major == 17:
            assert _backward(cluster, encoding, 0x10000) == ours


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_maps_are_the_servers(cluster: Cluster) -> None:
    """What has an equivalent, each with the server's bytes."""
    for encoding in WIDE_ENCODINGS:
        characters = character_map(encoding)
        text = "".join(map(chr, _codes(characters)))
        with cluster.connect() as connection:
            query = "SELECT convert_to(%s, %s)"
            ((found,),) = connection.execute(query, [text, encoding]).fetchall()
        assert found == characters.encode(text)


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_what_is_converted_without_utf8(cluster: Cluster) -> None:
    """Each character of the server's encoding that Unicode has, by PostgreSQL's own conversion."""
    for server, client in sorted(DIRECT):
        codec = server_encoding(server).codec
        own = (
            [bytes((byte,)) for byte in range(0x80, 0x100)]
            if server not in WIDE_ENCODINGS
            else [place for code, place in _codes(character_map(server)).items() if code > 0xFF]
        )
        texts = {place: place.decode(codec, "surrogateescape") for place in own}
        with cluster.connect() as connection:
            connection.execute(_DIRECT)
            found = dict(
                connection.execute(
                    "SELECT b, pg_temp.direct(b, %s, %s) FROM unnest(%s::bytea[]) b",
                    [server, client, own],
                ).fetchall()
            )
        characters = direct_map(server, client)
        for place, text in texts.items():
            is_stray = text != place.decode(codec, "ignore")
            if is_stray and (server, client) not in KEEPS_STRAYS:
                # EUC_TW beyond its second plane, and what the map of bytes leaves out.
                continue
            assert _encoded(characters, text) == found[place], (server, client, place)
        assert sum(data is not None for data in found.values()) >= 66


@pytest.mark.long
@pytest.mark.parametrize("cluster", [14, 15, 16, 17, 18], indirect=True)
@pytest.mark.parametrize("encoding", sorted(WIDE_ENCODINGS))
def test_no_other_character_has_an_equivalent(cluster: Cluster, encoding: str) -> None:
    """Each code point, and those that are a character in pairs."""
    codes = 0x110000 if encoding == "GB18030" else 0x30000
    characters = character_map(encoding)
    found = _backward(cluster, encoding, codes)
    if encoding == "GB18030":
        beyond = range(0x10000, 0x110000)
        assert [found.pop(code) for code in beyond] == [
            characters.encode(chr(code)) for code in beyond
        ]
    assert found == _codes(characters)
    if not encoding.endswith("2004"):
        return
    firsts = "かきくけこカキクケコセツトㇷæɔʌəɚ\u02e9\u02e5"
    for first, second in itertools.product(firsts, "\u309a\u0300\u0301\u02e5\u02e9か"):
        assert _converted(cluster, first + second, encoding) == _encoded(
            characters, first + second
        ), (first, second)


def _converted(cluster: Cluster, text: str, encoding: str) -> bytes | None:
    with (
        cluster.connect() as connection,
        contextlib.suppress(psycopg.errors.UntranslatableCharacter),
    ):
        query = "SELECT convert_to(%s, %s)"
        return bytes(connection.execute(query, [text, encoding]).fetchall()[0][0])
    return None


def _encoded(characters: CharacterMap, text: str) -> bytes | None:
    with contextlib.suppress(UnicodeEncodeError):
        return characters.encode(text)
    return None


def _codes(characters: CharacterMap) -> dict[int, bytes]:
    """Each code point that has an equivalent, beyond ASCII."""
    return {
        code: characters.encode(chr(code))
        for code, place in enumerate(memoryview(characters.codes).cast("I"))
        if place
    }


@pytest.mark.parametrize("cluster", _MAJORS, indirect=True)
def test_what_is_looked_at_is_the_servers(cluster: Cluster) -> None:
    """What a database in SQL_ASCII has: each two bytes, alone and with others behind them."""
    behind = [b"", b"\xa1", b"\xa1\xa1", b"\x81\x39"]
    with cluster.connect() as connection:
        connection.execute(_LOOKED_AT)
        for encoding in sorted(CHECKED):
            if cluster.major == 18 and encoding not in _FIRST_TIER:
                # The older majors have depth.
                continue
            for more in behind if cluster.major == 17 else behind[1:2]:
                query = "SELECT pg_temp.looked_at(%s, %s)"
                ((found,),) = connection.execute(query, [encoding, more]).fetchall()
                ours = [
                    _looked_at(encoding, bytes((first, second)) + more)
                    for first in range(0x80, 0x100)
                    for second in range(1, 0x100)
                ]
                assert ours == found, (encoding, more)


def _looked_at(encoding: str, data: bytes) -> str:
    """Return what PostgreSQL's error shows; nothing where there is none."""
    conversion = ClientEncoding(encoding, "SQL_ASCII").conversion("pgoutput")
    assert conversion is not None
    # A name of an origin.
    message = b"O" + bytes(8) + data + b"\0"
    converted, lengths = conversion.convert(message, len(message).to_bytes(4, sys.byteorder))
    if lengths:
        assert converted == message
        return ""
    return " ".join(f"0x{byte:02x}" for byte in conversion.failure)


_LOOKED_AT = """
CREATE FUNCTION pg_temp.looked_at(e name, more bytea) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE found text[] := '{}'; bytes bytea; n int;
BEGIN
  FOR i IN 128 .. 255 LOOP
    FOR j IN 1 .. 255 LOOP
      bytes := decode(to_hex(i) || lpad(to_hex(j), 2, '0'), 'hex') || more;
      BEGIN
        n := length(bytes, e); found := found || ''::text;
      EXCEPTION WHEN character_not_in_repertoire THEN
        found := found || substring(sqlerrm from ': (0x.*)$');
      END;
    END LOOP;
  END LOOP;
  RETURN found;
END $$
"""
_DIRECT = """
CREATE FUNCTION pg_temp.direct(data bytea, server name, client name) RETURNS bytea LANGUAGE plpgsql
AS $$ BEGIN RETURN convert(data, server, client); EXCEPTION WHEN others THEN RETURN NULL; END $$
"""
_FORWARD = """
CREATE FUNCTION pg_temp.forward(e text) RETURNS TABLE (byte int, code int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 128 .. 255 LOOP
    BEGIN
      byte := i; code := ascii(convert_from(decode(to_hex(i), 'hex'), e)); RETURN NEXT;
    EXCEPTION WHEN untranslatable_character THEN NULL;
    END;
  END LOOP;
END $$
"""
_BACKWARD = """
CREATE FUNCTION pg_temp.backward(e text, n int) RETURNS TABLE (code int, data bytea)
LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 128 .. n - 1 LOOP
    CONTINUE WHEN i BETWEEN 55296 AND 57343;
    BEGIN
      code := i; data := convert_to(chr(i), e); RETURN NEXT;
    EXCEPTION WHEN untranslatable_character THEN NULL;
    END;
  END LOOP;
END $$
"""


def _forward(cluster: Cluster, encoding: str) -> dict[int, int]:
    with cluster.connect() as connection:
        connection.execute(_FORWARD)
        rows = connection.execute("SELECT * FROM pg_temp.forward(%s)", [encoding]).fetchall()
    return dict(rows)


def _backward(cluster: Cluster, encoding: str, codes: int) -> dict[int, bytes]:
    with cluster.connect() as connection:
        connection.execute(_BACKWARD)
        rows = connection.execute(
            "SELECT * FROM pg_temp.backward(%s, %s)", [encoding, codes]
        ).fetchall()
    return dict(rows)
