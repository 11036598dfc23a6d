"""Names and settings mean what they mean on a server: quoting, type names, time zones, missing
values.
"""

from __future__ import annotations

import random
import struct
import zoneinfo
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import heap_rows
from harness.plugin_output import encode
from harness.tiers import deep
from spillway._kernels.values.text.output import datum_text
from spillway.catalog.descriptor import ColumnDescriptor
from spillway.errors import InvalidOption, UnknownPlugin
from spillway.pg import timezone
from spillway.pg.boolean import parse_bool
from spillway.pg.identifier import quote_identifier
from spillway.pg.text_settings import TextSettings
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin, plugin_names, validate_options
from spillway.plugins.type_names import format_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database


ZONES = [
    "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Europe/London", "Europe/Dublin",
    "Europe/Lisbon", "Australia/Lord_Howe", "Africa/Casablanca", "Africa/Monrovia",
    "Asia/Kathmandu", "Asia/Tehran", "Pacific/Apia", "Antarctica/Troll", "UTC",
]  # fmt: skip


def test_identifiers_are_quoted_as_the_server_does(pg: Database) -> None:
    version = int(pg.value("SHOW server_version_num"))
    names = ["", "a", "A", "a b", 'q"q', "ä", "_x", "1a", "a1", "a$", "A_b", "select_", "naïve"]
    for word, quoted in pg.query("SELECT word, quote_ident(word) FROM pg_get_keywords()"):
        assert quote_identifier(word, version) == quoted
    for name in names:
        assert quote_identifier(name, version) == pg.value("SELECT quote_ident(%s)", [name])


def test_type_names_are_the_servers(pg: Database) -> None:
    with heap_rows.session(pg) as session:
        version = int(session.value("SHOW server_version_num"))
        session.execute(
            'CREATE SCHEMA "Odd"; CREATE TYPE "Odd"."T x" AS (a int); CREATE DOMAIN "Odd".json AS '
            "int;"
            "CREATE TYPE public.mine AS ENUM (); CREATE TABLE public.line (a int); CREATE DOMAIN "
            "public.json AS text"
        )
        rows = session.query("SELECT oid::int8, format_type(oid, NULL) FROM pg_type")
        types = heap_rows.type_closure(session, [oid for oid, _ in rows])
        for oid, name in rows:
            assert format_type(oid, types, version) == name
        assert format_type(4_000_000_000, types, version) == "???"


@pytest.fixture
def servers_zones(
    pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The server's release of the IANA database in place of ours, which may be another."""
    share = Path(pg18.value("SELECT setting FROM pg_config WHERE name = 'SHAREDIR'")) / "timezone"
    # A server may be built to use its machine's.
    (tmp_path / "zoneinfo").symlink_to(share if share.is_dir() else zoneinfo.TZPATH[0])
    (tmp_path / "zones").write_text("\n".join(ZONES))
    monkeypatch.setattr(timezone, "_DATA", tmp_path)
    timezone.transitions.cache_clear()
    timezone._names.cache_clear()
    yield
    timezone.transitions.cache_clear()
    timezone._names.cache_clear()


@pytest.mark.usefixtures("servers_zones")
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("style", [deep("ISO"), "SQL"], ids=["offsets", "abbreviations"])
def test_time_zones_are_the_servers(pg18: Database, zone: str, style: str) -> None:
    settings, _ = TextSettings.from_options({"TimeZone": zone, "DateStyle": style}, 180000)
    rng = random.Random(7)
    day = 86_400_000_000
    # From 1850 to 2600, most of them in living memory.
    moments = [rng.randrange(-150 * 365 * day, 600 * 365 * day) for _ in range(1000)]
    moments += [rng.randrange(-60 * 365 * day, 60 * 365 * day) for _ in range(3000)]
    column = ColumnDescriptor(1, "t", 1184, -1, 8, True, "d")
    with heap_rows.session(pg18) as session:
        session.execute(f"SET TimeZone = '{zone}'; SET DateStyle = '{style}'")
        # In two steps: an interval of microseconds is exact only within a double's 53 bits.
        rows = session.query(
            "SELECT us, ('2000-01-01 00:00+00'::timestamptz + make_interval(secs => us / 1000000)"
            " + (us %% 1000000) * interval '1 microsecond')::text FROM unnest(%s::int8[]) us",
            [moments],
        )
        for moment, text in rows:
            assert datum_text(column, {}, settings, struct.pack("<q", moment)).decode() == text


def test_rows_older_than_a_column_have_its_missing_value(pg: Database) -> None:
    with heap_rows.session(pg) as session:
        session.execute(
            "CREATE TABLE t (a int); INSERT INTO t VALUES (1);"
            "ALTER TABLE t ADD b int8 DEFAULT 42, ADD c text DEFAULT 'it''s', ADD gone int DEFAULT "
            "1, ADD d timestamptz DEFAULT '2024-01-01 00:00+00', ADD e numeric DEFAULT 1.5, ADD f "
            "bool DEFAULT true, ADD g int;ALTER TABLE t DROP gone; INSERT INTO t VALUES (2)"
        )
        old, new = heap_rows.sections(session, "t")
        # A row that was written later holds the same datums.
        (datums,) = session.query(
            "SELECT t_attrs FROM heap_page_item_attrs(get_raw_page('t', 0), 't'::regclass) WHERE "
            "lp = 2"
        )[0]
        descriptor = heap_rows.relation_descriptor(session, "t")
        columns = tuple(
            replace(column, missing=datums[i] if 0 < i < 7 and not column.dropped else None)
            for i, column in enumerate(descriptor.columns)
        )
        descriptor = replace(descriptor, columns=columns)
    lines = [
        line[2]
        for line in encode(
            [heap_rows.build_change(1, new=old), heap_rows.build_change(1, new=new)],
            {1: descriptor},
            150000,
        )
    ]
    values = (
        " b[bigint]:42 c[text]:'it''s' d[timestamp with time zone]:'2024-01-01 00:00:00+00'"
        " e[numeric]:1.5 f[boolean]:true g[integer]:null"
    )
    assert lines[1] == "table public.t: INSERT: a[integer]:1" + values
    assert lines[2] == "table public.t: INSERT: a[integer]:2" + values


def test_a_type_without_a_codec_is_printed_raw(
    pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with heap_rows.session(pg18) as session:
        session.execute(
            "CREATE EXTENSION isn; CREATE TABLE t (a int, s isbn, ss isbn[]);"
            "INSERT INTO t VALUES (1, '0-306-40615-2', '{0-306-40615-2,NULL}')"
        )
        descriptor = heap_rows.relation_descriptor(session, "t")
        (section,) = heap_rows.sections(session, "t")
    lines = encode([heap_rows.build_change(1, new=section)] * 2, {1: descriptor}, 180000)
    raw = f"raw:public.isbn:\\x{struct.pack('<Q', 9780306406157 << 1).hex()}"
    assert lines[1][2].startswith(f"table public.t: INSERT: a[integer]:1 s[isbn]:'{raw}'")
    assert "ss[isbn[]]:'{\"raw:public.isbn:" in lines[1][2]
    assert sum("no text codec for type public.isbn" in r.message for r in caplog.records) <= 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"foo": "bar"}, 'option "foo" = "bar" is unknown'),
        ({"include-xids": "xx"}, 'could not parse value "xx" for parameter "include-xids"'),
        ({"include-rewrites": "o"}, 'could not parse value "o" for parameter "include-rewrites"'),
        ({"include-sequences": "1"}, 'option "include-sequences" = "1" is unknown'),
        ({"TimeZone": "Mars/Base"}, 'invalid value for parameter "TimeZone": "Mars/Base"'),
        ({"extra_float_digits": "4"}, 'invalid value for parameter "extra_float_digits": "4"'),
        ({"bytea_output": "x"}, 'invalid value for parameter "bytea_output": "x"'),
        ({"DateStyle": "ISO, SQL"}, 'invalid value for parameter "DateStyle": "ISO, SQL"'),
        ({"DateStyle": "MDY, euro"}, 'invalid value for parameter "DateStyle": "MDY, euro"'),
        ({"datestyle": "isodate"}, 'invalid value for parameter "DateStyle": "isodate"'),
        ({"IntervalStyle": "iso"}, 'invalid value for parameter "IntervalStyle": "iso"'),
    ],
)
def test_options_are_refused_in_postgresqls_words(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        validate_options("test_decoding", options, PluginContext("s", "d", 180000))
    assert raised.value.message == text
    assert raised.value.hint


def test_an_unknown_plugin_names_those_that_are_known() -> None:
    with pytest.raises(UnknownPlugin) as raised:
        create_plugin("nonsense", {}, PluginContext("s", "d", 180000))
    assert "test_decoding" in raised.value.hint
    assert "test_decoding" in plugin_names()


def test_force_binary_makes_the_output_binary() -> None:
    context = PluginContext("s", "d", 180000)
    assert create_plugin("test_decoding", {"force-binary": "on"}, context).binary
    assert not create_plugin("test_decoding", {"force-binary": "0"}, context).binary


def test_booleans_are_the_servers(pg18: Database) -> None:
    texts = [
        "t",
        "tr",
        "TRUE",
        "truex",
        "f",
        "fal",
        "y",
        "yes",
        "n",
        "no",
        "o",
        "on",
        "of",
        "off",
        "offx",
        "1",
        "0",
        "2",
        "10",
        "",
        "onn",
    ]
    for text in texts:
        try:
            expected = pg18.value("SELECT %s::bool", [text])
        except Exception:  # noqa: BLE001
            expected = None
        assert parse_bool(text) is expected, text
