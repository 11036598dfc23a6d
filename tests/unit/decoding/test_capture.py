"""What a capture filter lets through, and what it refuses to be."""

from __future__ import annotations

import pytest

from spillway.catalog.descriptor import PublicationDescriptor, RelationDescriptor
from spillway.decoding.capture import EVERYTHING, CaptureFilter, check_capture
from spillway.errors import InvalidCapture


def table(schema, name, *, publications=(), ancestors=()):
    return RelationDescriptor(
        20000, schema, name, "r", "p", "d", (),
        publications=tuple(map(PublicationDescriptor, publications)), ancestors=tuple(ancestors),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "captured", "left_out"),
    [
        ("public.t", [("public", "t")], [("public", "u"), ("other", "t"), ("public", "T")]),
        ("Public.T", [("public", "t")], [("Public", "T")]),
        ('"Public"."T"', [("Public", "T")], [("public", "t")]),
        ("shop.*", [("shop", "t"), ("shop", "*")], [("shops", "t")]),
        ('shop."*"', [("shop", "*")], [("shop", "t")]),
        ('"a.b"."c""d"', [("a.b", 'c"d')], [("a", "b")]),
    ],
)
def test_tables_by_name(pattern, captured, left_out):
    capture = CaptureFilter.parse({"tables": [pattern]})
    assert all(capture.captures(table(*name)) for name in captured)
    assert not any(capture.captures(table(*name)) for name in left_out)


def test_a_partition_counts_by_its_ancestors_too():
    partition = table("parts", "p1", ancestors=[table("parts", "sub"), table("shop", "root")])
    for pattern in ("parts.p1", "parts.sub", "shop.root", "shop.*"):
        assert CaptureFilter.parse({"tables": [pattern]}).captures(partition)
    assert not CaptureFilter.parse({"tables": ["shop.p1"]}).captures(partition)


def test_publications():
    capture = CaptureFilter.parse({"publications": ["p", "Q"]})
    assert capture.captures(table("public", "t", publications=["a", "Q"]))
    assert not capture.captures(table("public", "t", publications=["a", "q"]))
    assert not capture.captures(table("public", "t"))


def test_everything_is_the_default():
    assert CaptureFilter.parse({}) == EVERYTHING == CaptureFilter.parse(check_capture({}))
    assert EVERYTHING.captures(table("public", "t"))
    assert not EVERYTHING.selects_tables
    assert CaptureFilter.parse({"origin": "none"}) == CaptureFilter(only_local=True)


@pytest.mark.parametrize(
    "capture",
    [
        {"tables": ["public.t"], "publications": ["p"]},
        {"tables": ["t"]},
        {"tables": ["*.t"]},
        {"tables": ["a.b.c"]},
        {"tables": ['a."b']},
        {"tables": [""]},
        {"tables": "public.t"},
        {"publications": [1]},
        {"origin": "local"},
        {"databases": ["d"]},
    ],
)
def test_what_is_refused(capture):
    with pytest.raises(InvalidCapture) as raised:
        check_capture(capture)
    assert raised.value.hint
