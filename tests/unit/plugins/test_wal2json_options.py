"""Options of wal2json: read as the original reads them. What it says itself is compared in
tests/oracle.
"""

from __future__ import annotations

import pytest

from spillway.errors import InvalidOption
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin, plugin_names
from spillway.plugins.wal2json_options import (
    TableName,
    Wal2JsonOptions,
    parse_int,
    split_list,
    split_numbers,
    split_tables,
)


def test_defaults_are_the_originals() -> None:
    options = Wal2JsonOptions.from_options({})
    assert options == Wal2JsonOptions()
    assert (options.format_version, options.include_types, options.include_xids) == (1, True, False)
    assert options.selects("any", "table")
    assert "wal2json" in plugin_names()


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []), ("  ", []), ("a", ["a"]), (" a , b,c ", ["a", "b", "c"]), ("a b", None),
        ("a,", None), (",a", None), ("a,,b", None),
        (r"a\,b,c\ d", [r"a\,b", r"c\ d"]), ("a\t,\nb", ["a", "b"]), ("a\\", ["a\\"]),
        ("ü, ☃", ["ü", "☃"]),
    ],
)  # fmt: skip
def test_lists(text: str, items: list[str] | None) -> None:
    assert split_list(text) == items


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()), ("s.t", (TableName("s", "t"),)),
        ("*.t, s.*,*.*", (TableName(None, "t"), TableName("s", None), TableName(None, None))),
        ("t", None), ("s.t, u", None), (r"a\.b.c", (TableName("a.b", "c"),)),
        ("s.a.b", (TableName("s", "a.b"),)),
        (r"\*.\*", (TableName("*", "*"),)), (r"s.a\ b\,c", (TableName("s", "a b,c"),)),
        (".t", (TableName("", "t"),)), ("s.", (TableName("s", ""),)),
        ("s.t\\", (TableName("s", "t"),)),
    ],
)  # fmt: skip
def test_tables(text: str, names: tuple[TableName, ...] | None) -> None:
    assert split_tables(text) == names


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("1, 2,3", {1, 2, 3}), ("1 2", None), ("x", {0}), ("12x,+4", {12, 4}),
     ("5,", {5}), ("5,,6", {5, 0, 6})],
)  # fmt: skip
def test_origins(text: str, numbers: set[int] | None) -> None:
    assert split_numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1), (" 2 ", 2), ("0x2", 2), ("02", 2), ("2.4", 2), ("1e0", 1), (".5", 0), ("1.5", 2),
        ("-1", -1), ("08", None), ("x", None),
        ("", None), ("2x", None), ("1 kB", None), ("99999999999", None), ("1e300", None),
        ("inf", None), ("nan", None), ("-1e99999", None),
    ],
)  # fmt: skip
def test_numbers(text: str, number: int | None) -> None:
    assert parse_int(text) == number


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"foo": "bar"}, 'option "foo" = "bar" is unknown'),
        ({"include-xids": "x"}, 'could not parse value "x" for parameter "include-xids"'),
        ({"include-unchanged-toast": "1"}, 'parameter "include-unchanged-toast" was deprecated'),
        ({"format-version": "3"},
         "client sent format_version=3 but we only support format 2 or lower"),
        ({"format-version": "0"},
         "client sent format_version=0 but we only support format 1 or higher"),
        ({"format-version": "two"}, 'could not parse value "two" for parameter "format-version"'),
        ({"actions": "insert,upsert"}, 'could not parse value "upsert" for parameter "actions"'),
        ({"actions": "insert,"}, 'could not parse value "insert," for parameter "actions"'),
        ({"filter-origins": "1 2"}, 'could not parse value "1 2" for parameter "filter-origins"'),
        ({"filter-tables": "t"}, 'could not parse value "t" for parameter "filter-tables"'),
        ({"add-tables": "a b"}, 'could not parse value "a b" for parameter "add-tables"'),
        ({"add-msg-prefixes": ","}, 'could not parse value "," for parameter "add-msg-prefixes"'),
        ({"include-default": "1"}, 'parameter "include-default" is not supported'),
        ({"include-default": "x"}, 'could not parse value "x" for parameter "include-default"'),
        ({"wal2json-version": "1.0"},
         'could not parse value "1.0" for parameter "wal2json-version"'),
        ({"TimeZone": "Mars/Base"}, 'invalid value for parameter "TimeZone": "Mars/Base"'),
    ],
)  # fmt: skip
def test_refusals(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        create_plugin("wal2json", options, PluginContext("s", "d", 150000))
    assert raised.value.message == text
    assert raised.value.hint


def test_selection() -> None:
    options = Wal2JsonOptions.from_options(
        {"add-tables": "a.*, *.t", "filter-tables": "a.secret", "include-default": "off"}
    )
    chosen = [("a", "x"), ("b", "t"), ("a", "secret"), ("b", "x")]
    assert [options.selects(*name) for name in chosen] == [True, True, False, False]
    assert not Wal2JsonOptions.from_options({"add-tables": ""}).selects("a", "t")
