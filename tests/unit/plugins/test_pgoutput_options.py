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
