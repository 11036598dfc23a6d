"""What minor releases of pgoutput take as options: seen on servers that the other tests do not
install.
"""

from __future__ import annotations

import pytest

from spillway.errors import InvalidOption
from spillway.plugins.pgoutput_options import parse_options


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (150019, "client sent proto_version=0 but we only support protocol 1 or higher"),
        (150020, "invalid proto_version"),
    ],
)
def test_a_proto_version_without_a_character(version, message):
    with pytest.raises(InvalidOption) as refused:
        parse_options({"proto_version": "", "publication_names": "p"}, version)
    assert refused.value.message == message


@pytest.mark.parametrize("version", [140_000, 150_000, 160_000, 180_000])
def test_every_table_stands_for_publications(version: int) -> None:
    options = {"proto_version": "1", "spillway.all_tables": "on"}
    parsed = parse_options(options, version)
    assert (parsed.all_tables, parsed.publication_names) == (True, ())
    with pytest.raises(InvalidOption, match="does not go with publication_names"):
        parse_options(options | {"publication_names": "p"}, version)
    # A consumer's own options come over its slot's.
    off = {"proto_version": "1", "publication_names": "p", "spillway.all_tables": "off"}
    assert parse_options(off, version).publication_names == ("p",)
    with pytest.raises(InvalidOption, match="publication_names"):
        parse_options({"proto_version": "1", "spillway.all_tables": "off"}, version)


@pytest.mark.parametrize("version", [140_000, 150_000, 160_000, 180_000])
def test_origins_are_left_out_of_any_version(version: int) -> None:
    options = {"proto_version": "1", "publication_names": "p"}
    assert parse_options(options | {"spillway.origin": "none"}, version).only_local
    assert not parse_options(options | {"spillway.origin": "any"}, version).only_local
    with pytest.raises(InvalidOption, match="unrecognized origin value"):
        parse_options(options | {"spillway.origin": "some"}, version)
    if version < 160_000:
        with pytest.raises(InvalidOption, match="unrecognized pgoutput option: origin"):
            parse_options(options | {"origin": "none"}, version)
