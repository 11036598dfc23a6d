"""Values of every type, easy and hard, as its input function reads them."""

from __future__ import annotations

import math
import random
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEED = 20261121


def floats(size: int, count: int) -> list[str]:
    rng = random.Random(SEED)
    layout, parse = {4: ("<f", "<I"), 8: ("<d", "<Q")}[size]
    values = []
    for _ in range(count):
        value = struct.unpack(layout, struct.pack(parse, rng.getrandbits(8 * size)))[0]
        if math.isfinite(value):
            values.append(repr(value))
    return values


def hard_floats() -> list[str]:
    powers = [repr(2.0**e) for e in range(-1074, 1024, 7)]
    tens = [f"1e{e}" for e in range(-307, 309)] + [f"{d}e22" for d in range(1, 10)]
    near = [repr(rng_int / 10**k) for rng_int in (1, 12, 123, 999999, 1234567) for k in range(30)]
    return powers + tens + near + [
        "0", "-0", "NaN", "Infinity", "-Infinity", "1e23", "9007199254740993", "5e-324",
        "2.2250738585072014e-308", "1.7976931348623157e308", "123456789012345", "1234567890123456",
        "0.0001", "0.00001", "100000", "1000000", "9.5e-5",
    ]  # fmt: skip


def hard_float4s() -> list[str]:
    return [
        "0", "-0", "NaN", "Infinity", "-Infinity", "1.17549435e-38", "1e-45", "3.4028235e38",
        "16777216", "8388608.5", "0.1", "123456", "1234567", "1e6", "999999", "0.0001", "0.00009",
        "33554432", "9.8e-45",
        *[repr(2.0**e) for e in range(-149, 128)], *[f"1e{e}" for e in range(-45, 39)],
    ]  # fmt: skip


def numerics(count: int) -> list[str]:
    rng = random.Random(SEED)
    values = []
    for _ in range(count):
        whole = "".join(rng.choices("0123456789", k=rng.randrange(1, 40)))
        fraction = "".join(rng.choices("0009", k=rng.randrange(0, 40)))
        values.append(rng.choice(["", "-"]) + whole + ("." + fraction if fraction else ""))
    return values


def intervals(count: int) -> list[str]:
    """Months, days and microseconds of every sign, most of them small, some of them zero."""
    rng = random.Random(SEED)
    values = []
    for _ in range(count):
        months, days = (rng.choice([0, 1, -1, rng.randrange(-40, 40)]) for _ in range(2))
        seconds = rng.choice([0, 1, -1, 59, -60, 3600, rng.randrange(-(10**6), 10**6)])
        micros = rng.choice([0, 0, 1, -1, 500000, rng.randrange(-(10**6), 10**6)])
        values.append(f"{months} months {days} days {seconds} seconds {micros} microseconds")
    return values


def timestamps(count: int) -> list[str]:
    """Timestamps of the years 1800 to 2600, in UTC."""
    rng = random.Random(SEED)
    return [
        f"{rng.randrange(1800, 2600)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02} "
        f"{rng.randrange(24):02}:{rng.randrange(60):02}:"
        f"{rng.choice(['00', '59.5', '07.000001'])}+00"
        for _ in range(count)
    ]


INTS = {
    2: [0, 1, -1, 32767, -32768],
    4: [0, 7, -2147483648, 2147483647],
    8: [0, -(2**63), 2**63 - 1],
}
DATES = ["2000-01-01", "1999-12-31", "2024-02-29", "1900-03-01", "0001-01-01", "0001-12-31 BC",
         "4713-01-01 BC",
         "5874897-12-31", "10000-01-01", "9999-12-31", "infinity", "-infinity", "1582-10-15",
         "0044-03-15 BC"]  # fmt: skip
TIMES = ["00:00", "23:59:59.999999", "24:00:00", "04:05:06.7", "12:34:56.000001", "00:00:00.1"]
TIMESTAMPS = ["2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "4713-11-24 00:00:00 BC",
              "294276-12-31 23:59:59.999999", "0001-01-01 00:00:00", "0001-12-31 23:59:59 BC",
              "infinity", "-infinity", "2024-06-15 12:34:56.5",
              "1883-11-18 12:03:57", "1945-08-15 00:00:00", "2300-07-01 00:00:00",
              "2401-07-01 12:00", "3000-07-01 12:00"]  # fmt: skip
INTERVALS = ["0", "1 year", "-1 year 2 mons -3 days", "1 mon -1 day", "1 day -00:00:01",
             "-1 day +00:00:01", "1000000 hours", "-04:05:06.789",
             "1 year 1 mon 1 day 1 hour 1 min 1.000001 sec", "-178000000 years", "2 years -1 mon",
             "00:00:00.000001",
             "-1 mon 00:00:00", "1 mon -2 days 03:00"]  # fmt: skip
STRINGS = [
    "",
    "a",
    "it's",
    'say "hi"',
    "back\\slash",
    "tab\there",
    "línea ünï ☃ 🎉",
    " spaces ",
    "NULL",
    "null",
    "{a,b}",
    "(x)",
    "x" * 300,
]
INETS = ["192.168.1.5", "192.168.1.0/24", "0.0.0.0/0", "255.255.255.255", "::", "::1", "::1/64",
         "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "::ffff:0:0", "::1.2.3.4", "fe80::/10",
         "1:0:0:2::3", "1:0:0:2:0:0:0:3", "1:2:3:4:5:6:7:8", "::2:3:4:5:6:7:8",
         "1:2:3:4:5:6:7::", "0:0:1::", "::7:0:1", "::13.1.68.3", "::8000:1"]  # fmt: skip
CIDRS = [
    "192.168.100.128/25",
    "10.0.0.0/8",
    "2001:4f8:3:ba::/64",
    "2001:4f8:3:ba:2e0:81ff:fe22:d1f1/128",
    "::ffff:1.2.3.0/120",
    "0.0.0.0/0",
]

CASES: dict[str, list[object]] = {
    "bool": [True, False],
    "int2": [*INTS[2]], "int4": [*INTS[4]], "int8": [*INTS[8]],
    "oid": [0, 1, 4294967295], "xid": ["0", "4294967295"], "cid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "tid": ["(0,1)", "(4294967295,65535)", "(70000,3)"],
    "text": [*STRINGS], "varchar(400)": [*STRINGS], "char(10)": ["a", "", "ten chars!"],
    "json": ['{"a" :  [1,2]}', '"x"'],
    '"char"': ["a", "", "\\", "'", "\\310"], "name": ["a", "with space", "x" * 63],
    "bytea": ["\\x", "\\x00ff5c27", "\\xdeadbeef"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "date": [*DATES], "time": [*TIMES], "time(2)": ["01:02:03.456"],
    "timetz": ["00:00+00", "23:59:59.999999-15:59:59", "12:00+05:30", "12:00-08", "24:00:00+14"],
    "timestamp": [*TIMESTAMPS],
    "timestamptz": [f"{t[:-3]} UTC BC" if t.endswith(" BC") else t if "inf" in t else f"{t} UTC"
                    for t in TIMESTAMPS],
    "timestamp(3)": ["2024-01-01 01:02:03.456789"],
    "interval": [*INTERVALS],
    "bit(5)": ["10110", "00000"], "varbit": ["", "1", "10101010101", "11111111"],
    "bit(64)": ["1" * 64],
    "numeric": ["0", "0.0", "-0.00", "1", "-1.5", "10000", "9999", "12345678901234567890.123456789",
                "0.0001", "0.00001", "1e-20",
                "1e100", "NaN", "Infinity", "-Infinity", "0.10", "1e131071", "-9.99e-16381",
                "1000000000000", "1e1000", "1e-1000", "99999999.99990000", *numerics(300)],
    "numeric(12,4)": ["1.5", "12345678.1234", "NaN", "-0.0001"], "numeric(3,-2)": ["12345"],
    "float8": [*hard_floats(), *floats(8, 4000)], "float4": [*hard_float4s(), *floats(4, 4000)],
    "money": ["0", "1234567.89", "-0.05", "92233720368547758.07", "-92233720368547758.08",
              "-1234.5"],
    "inet": [*INETS], "cidr": [*CIDRS],
    "macaddr": ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"], "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "pg_lsn": ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "0/10"],
    "int4[]": ["{}", "{1,2,3}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:2]={1,2,3}",
               "[-1:0][2:3]={{1,2},{3,NULL}}", "{{{1},{2}},{{3},{4}}}"],
    "text[]": ["{}", '{a,"b c",NULL,"null","","x,y","\\"q\\"","back\\\\slash","{}"}',
               '{"línea","☃","tab\there"}'],
    "int2[]": ["{1,2,3}"], "bool[]": ["{t,f,NULL}"], "numeric[]": ["{1.5,NULL,-2,1e10}"],
    "timestamptz[]": ["{2024-01-01 00:00:00+00,infinity}"],
    "float8[]": ["{1.5,NaN,1e300}"], "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"],
    "name[]": ["{a,bc}"], "bytea[]": ['{"\\\\x00ff",NULL}'],
    "interval[]": ['{1 day,"1 year 2 mons"}'], '"char"[]': ["{a,b}"], "tid[]": ['{"(0,1)"}'],
    "timetz[]": ["{12:00+01,13:00+02}"], "inet[]": ["{1.2.3.4/24,::1}"],
    "oidvector": ["", "1 2 3", "4294967295"], "int2vector": ["", "1 -2 3"],
    "int4range": ["empty", "[1,5)", "(,)", "[,5)", "(1,)"], "int8range": ["[1,5)", "[,5)", "empty"],
    "numrange": ["[1.5,2.5]", "(1,2)", "[,3)", "empty", "(-1e10,1e-10]"],
    "daterange": ["[2020-01-01,2021-01-01)", "(,infinity)"],
    "tsrange": ["[2020-01-01 00:00,2021-01-01 12:30:00.5)", "[,)"],
    "tstzrange": ["[2020-01-01 00:00+00,2021-01-01 12:30:00.5+00]"],
    "int4multirange": ["{}", "{[1,3),[5,7)}", "{(,3),[10,)}"],
    "nummultirange": ["{[1.1,2.2),(3.14159,4],[5,6]}", "{}"],
    "int8multirange": ["{" + ",".join(f"[{i},{i + 1})" for i in range(1, 60, 2)) + "}"],
    "tsmultirange": ["{[2020-01-01,2020-01-02),[2021-01-01,2021-01-02)}"],
    "datemultirange": ["{[2020-01-01,2020-01-02)}"],
    "nummultirange[]": ['{"{[1,2],(3,4)}",NULL}'], "int4range[]": ['{"[1,2)",empty}'],
    "jsonb": [
        "null", "true", '"str"', "1.50", "[]", "{}",
        '{"a": 1, "bb": [1, 2.5, {"c": null}], "": "x\\ny\\"z\\\\ \\u0001\\t\\b\\f\\r ☃"}',
        "[" + ",".join(str(i) for i in range(100)) + "]",
        "{" + ",".join(f'"k{i}": {{"v": [{i}, "t"]}}' for i in range(100)) + "}",
        "[[[[[[1]]]]], -1e-10, 12345678901234567890]", '{"b": false, "a": true, "c": "\x7f"}',
        "[" * 500 + "]" * 500,
    ],
    "jsonb[]": ['{"{\\"a\\": 1}",NULL}'],
    "point": ["(1,2)", "(-0,1e300)", "(NaN,Infinity)"], "lseg": ["[(0,1),(2,3.5)]"],
    "box": ["(1,2),(3,4)"], "line": ["{1,-2,3}"],
    "path": ["((0,0),(1,1),(2,0))", "[(0,0),(1,1)]"], "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(1,2),3>"],
    "point[]": ['{"(1,2)",NULL}'], "box[]": ["{(1,2),(3,4);(5,6),(7,8)}"],
    "xml": ["<a/>", "x<b/>", "<?xml version='1.0'?><a/>", (
        "<?xml version='1.0' encoding='UTF-8' standalone='yes'?>\n"
        "<a/>"
    ), "\n<a/>"],
    "tsvector": ["a fat cat", "'it''s':1A,2B 'b\\\\x':3C,4 'q':5", "", "'sp ace':16383"],
    "tsquery": ["a & b | !c", "(a | b) & c", "a <-> (b <-> c)", "(a <-> b) <3> c", "!(a & b)",
                "'it''s':*AB", "a:*", "a & !!b", "!(a <-> b)", "(a & b) <-> c"],
    "regclass": ["-", "4294967295"], "regproc": ["-"], "regtype": ["-", "4294967295"],
    "regoper": ["0"], "regoperator": ["0"], "regrole": ["-", "4294967295"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"], "txid_snapshot": ["10:20:10,14,15"],
    "aclitem": ["=arwdDxtXUCTc/pg_monitor", "pg_monitor=r*w*X/pg_read_all_data",
                "pg_monitor=/pg_monitor"],
    "aclitem[]": ["{}", "{=r/pg_monitor,NULL,pg_monitor=a*rw/pg_monitor}"],
    "jsonpath": [
        "$", "strict $.a.b[*]", "$.*", '$."k e\\"y"[1, 3 to last]', "$.**", "$.**{2}", "$.**{last}",
        "$.**{1 to 3}", "$.**{1 to last}",
        '$ ? (@.a > 1 && @.b == "x" || !(@.c < 2.5))', "$.a + 1 * 2 - -$.b / 3 % 4",
        "($.a + 1) * 2", "-(1 + 2)", "+$.a", "(1).type()", "1.5",
        "$v.size()", '$."var"', "null", "true", "false", '"str\\n☃"',
        "$.a.abs().floor().ceiling().double().keyvalue()", "$.datetime()",
        '$.datetime("YYYY-MM-DD")', "exists ($.a)", "$ ? (exists (@.a ? (@ > 1)))",
        "($.a > 1) is unknown", '$.a starts with "x"',
        '$.a like_regex "^a.*" flag "ismq"', '$.a like_regex "b"', "$[$.a to last - 1]",
        "$.a == $.b", "$.a != 2", "$.a >= 2", "$.a <= $x", "($.a == 1 || $.b == 2) && $.c == 3",
        "$.a ? (@ == 1) ? (@ != 2).b", "1e10", "-1", "(-1).abs()", "($.a[*] > 1).type()",
    ],
    "citext": ["", "MiXed 'q'"],
    "citext[]": ['{A,"b c"}'],
    "hstore": ["", 'a=>1, "b c"=>NULL, "q\\"q"=>"back\\\\slash", ""=>""', "x=>" + "y" * 300],
    "ltree": ["", "Top", "Top.Science.Astronomy", "a.bc.def.ghij.klmno.pqrstu.vwxyzab"],
    "lquery": [
        "*", "*.Top.*", "Top.*{2}.*{,3}.*{1,}.*{1,5}.a", "!a|b*.c@|d%*@.e", "foo{2}.bar{,}.x{0,1}",
        "a.*{0}", "b_c.*", "!pict*|b*{,4}",
    ],
    "lquery[]": ['{"*.a{1,2}",NULL}'],
    "ltxtquery": ["a", "Europe & Russia*@ & !Transportation", "a & (b | c)", "(a | b) & !(c | d%)",
                  "!(a & b) | c", "!!a", "a | b | c", "a & b | c & d"],
    "cube": ["(1)", "(1,2),(3,4)", "(1,2),(1,2)", "()", "(-0,1e300)", "(0.1,0.2,0.3),(0.4,0.5,0.6)",
             "(NaN)", "(Infinity),(-Infinity)"],
    "cube[]": ['{"(1,2)",NULL}'], "earth": [],
    "seg": [
        "1", "1.0", "1.00 .. 2.00", "~5", "<3.5 .. >4.5", "..5", "5..", "0.0012", "12345", "120000",
        "1e10", "-1.50e-3", "-100", "-123.40 .. 1e-20", "100.0 .. 1000", "0", "0.00", "9.99999e4",
        "1 .. ~1", "1 .. ~2", "~1 .. 2", "~1 .. ~2", "~1 .. <2",
        "<2 .. ~3", "1e-7", "-0.5", "12.5(+-)0.5",
    ],
    "seg[]": ["{1..2,NULL}"], "lo": ["0", "12345"],
    "query_int": ["1", "1&2", "1|(2&3)", "!(1|2)&3", "(1|2)&(3|!4)", "!1", "1|2|3",
                  "2147483647&!(-5)"],
    "query_int[]": ['{"1 & 2"}'],
    "mood": ["sad", "ok", "it's great", "äh"], "mood[]": ['{sad,"it\'s great",NULL}'],
    "posint": ["5"], "posint[]": ["{1,2}"], "poslabel": ["(1,x)"],
    "pair": ["(1,x)", '(,"a b")', '(2,"q""q")', "(3,)", '(4,"")', '(5,"back\\\\slash")',
             '(6,"(,)")'], "pair[]": ['{"(1,x)","(2,\\"a b\\")",NULL}'],
    "nested": ['("(1,x)","{1,2}","[1,3)",sad,2024-01-01)', "(,,,,)"],
    "deep": [
        "(,,,)",
        '("(,""{1,2}"",empty,sad,0044-03-15 BC)","{""(,,,,)"",NULL}","{\\"[a,b)\\"}","[0:1]={1,2}")'
    ],
    "deep[]": ['{"(,,,)",NULL}'],
    "intlist": ["{}", "{1,NULL,3}", "[-2:-1]={5,6}"], "intlist[]": ['{"{1,2}",NULL,"[0:0]={7}"}'],
    "refcursor": ["a cursor", ""],
    "textmultirange": ["{}", "{[a,b),[c,d]}", '{[" ","é"),["z""",)}'],
    "textmultirange[]": ['{"{[a,b)}",NULL,"{}"}'],
    "textrange": ["[a,b)", '["a b","c""d")', "[a\\\\b,c]", '["",z)'],
}  # fmt: skip

#: Types that not every version has, and since which.
SINCE = {"numeric(3,-2)": 150000}


def cases(server_version_num: int) -> dict[str, list[object]]:
    """Return what of :data:`CASES` a server of that version has."""
    return {name: v for name, v in CASES.items() if SINCE.get(name, 0) <= server_version_num}


#: Types whose text depends on DateStyle, IntervalStyle and TimeZone, alone and inside others.
TEMPORAL: Mapping[str, Sequence[object]] = {
    **{name: CASES[name] for name in (
        "date", "time", "timetz", "timestamp", "timestamptz", "interval", "interval[]", "timetz[]",
        "timestamptz[]", "daterange", "tsrange", "tstzrange", "tsmultirange", "datemultirange",
    )},
    "date[]": ["{2024-02-29,0044-03-15 BC,infinity,NULL}"],
    "timestamp[]": ["{2024-06-15 12:34:56.5,-infinity}"],
    "interval(2)": intervals(300), "timestamptz(6)": timestamps(400),
    "timestamp(6)": timestamps(50),
    "moment": ['(2024-06-15,"2024-06-15 12:34:56.5+00","1 mon -1 day")', "(,,)"],
    "moment[]": ['{"(2024-06-15,\\"2024-12-15 12:34:56.5+00\\",\\"1 mon\\")"}'],
    "jsonb": ['{"t": "2024-06-15T12:34:56"}'],
}  # fmt: skip

SETUP = """
CREATE EXTENSION citext;
CREATE EXTENSION hstore;
CREATE EXTENSION ltree;
CREATE EXTENSION earthdistance CASCADE;
CREATE EXTENSION seg;
CREATE EXTENSION lo;
CREATE EXTENSION intarray;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s great');
ALTER TYPE mood ADD VALUE 'äh' BEFORE 'ok';
CREATE DOMAIN posint AS int4 CHECK (VALUE > 0);
CREATE TYPE pair AS (n int2, t text);
CREATE DOMAIN poslabel AS pair CHECK ((VALUE).n > 0);
CREATE TYPE nested AS (p pair, a int4[], r int4range, m mood, d date);
CREATE DOMAIN intlist AS int[] CHECK (array_length(VALUE, 1) < 10);
CREATE TYPE moment AS (d date, t timestamptz, i interval);
CREATE TYPE textrange AS RANGE (subtype = text);
CREATE TYPE deep AS (n nested, ns nested[], r textrange[], l intlist);
"""
