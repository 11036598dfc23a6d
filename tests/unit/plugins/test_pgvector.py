"""pgvector's types from their stored form; the format and the examples are those of its
documentation and clients.

None of the test servers has the extension.
"""

from __future__ import annotations

import struct

import pytest

from spillway._kernels.values.send.output import datum_send
from spillway._kernels.values.text.output import datum_text
from spillway.catalog.descriptor import ColumnDescriptor, TypeDescriptor
from spillway.errors import DecodingError
from spillway.pg.text_settings import TextSettings

OID = 20000
#: Fewer digits are for float4 and float8; pgvector does not ask.
SETTINGS = TextSettings(180000, extra_float_digits=-3)


def output(name: str, payload: bytes) -> tuple[str, bytes]:
    """Return text and send format of a value of pgvector's type *name*."""
    types = {
        OID: TypeDescriptor(
            OID, "public", name, "b", "U", -1, by_value=False, align="i",
            output=f"{name}_out", send=f"{name}_send",
        )
    }  # fmt: skip
    column = ColumnDescriptor(1, "v", OID, -1, -1, by_value=False, align="i")
    sent = datum_send(column, types, SETTINGS, payload)
    assert sent is not None
    return datum_text(column, types, SETTINGS, payload).decode(), sent


def test_vector() -> None:
    values = [1.0, -2.5, 0.1, 1e-10, 3e20]
    text, sent = output("vector", struct.pack("<Hh5f", 5, 0, *values))
    assert text == "[1,-2.5,0.1,1e-10,3e+20]"
    assert sent == struct.pack(">Hh5f", 5, 0, *values)


def test_halfvec() -> None:
    values = [1.5, -2.0, 0.0999755859375, 6e-8, -0.0, 65504.0, 0.00006]
    text, sent = output("halfvec", struct.pack("<Hh7e", 7, 0, *values))
    # Of the float4 that has the half's value.
    assert text == "[1.5,-2,0.099975586,5.9604645e-08,-0,65504,6.0021877e-05]"
    assert sent == struct.pack(">Hh7e", 7, 0, *values)


def test_sparsevec() -> None:
    text, sent = output("sparsevec", struct.pack("<iii3i3f", 5, 3, 0, 0, 2, 4, 1.0, 2.5, 3.0))
    assert text == "{1:1,3:2.5,5:3}/5"
    assert sent == struct.pack(">iii3i3f", 5, 3, 0, 0, 2, 4, 1.0, 2.5, 3.0)
    assert output("sparsevec", struct.pack("<iii", 7, 0, 0))[0] == "{}/7"


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("vector", b""),
        ("vector", struct.pack("<Hhf", 2, 0, 1.0)),
        ("halfvec", struct.pack("<Hhf", 1, 0, 1.0)),
        ("sparsevec", struct.pack("<iiii", 5, 3, 0, 1)),
        ("sparsevec", struct.pack("<iii", 5, -1, 0)),
    ],
)
def test_damage_is_refused(name: str, payload: bytes) -> None:
    with pytest.raises(DecodingError):
        output(name, payload)
