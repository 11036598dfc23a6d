"""Types of packages: the manual's example works, inside other types too; without it values are
raw.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway._kernels.values.send.output import datum_send
from spillway._kernels.values.text.output import datum_text
from spillway.catalog.descriptor import ColumnDescriptor, TypeDescriptor
from spillway.errors import DecodingError
from spillway.pg.text_settings import TextSettings
from spillway.plugins import type_codecs

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-type.md"
SETTINGS = TextSettings(180000)
TYPES = {
    20000: TypeDescriptor(
        20000, "public", "complex", "b", "U", 16, by_value=False, align="d", output="complex_out",
        send="complex_send"
    ),
    20001: TypeDescriptor(
        20001, "public", "_complex", "b", "A", -1, by_value=False, align="d", element_oid=20000,
        is_array=True,
        output="array_out", send="array_send",
    ),
}  # fmt: skip
SCALAR = ColumnDescriptor(1, "v", 20000, -1, 16, by_value=False, align="d")
ARRAY = ColumnDescriptor(1, "v", 20001, -1, -1, by_value=False, align="d")
VALUE = struct.pack("<dd", 1.5, -2)


class Entry:
    def __init__(self, name: str, function: object) -> None:
        self.name = name
        self._function = function

    def load(self) -> object:
        return self._function


@pytest.fixture
def _example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    text = HOW_TO.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(re.sub(r"^   ", "", code, flags=re.MULTILINE), namespace)
    groups = {
        group: [Entry(name, namespace[function]) for name, function in
                re.findall(r'^ *(\w+) = "my_codecs:(\w+)"', body, re.MULTILINE)]
        for group, body in re.findall(
            r'entry-points\."([\w.]+)"\]\n(.*?)\n *\n?(?= *\[|```| *```)', text, re.DOTALL)
    }  # fmt: skip
    assert {group: [entry.name for entry in found] for group, found in groups.items()} == {
        type_codecs.ENTRY_POINT_GROUP: ["complex_out"],
        type_codecs.SEND_ENTRY_POINT_GROUP: ["complex_send"],
    }
    monkeypatch.setattr(type_codecs, "entry_points", lambda group: groups[group])
    _forget()
    yield
    _forget()


def _forget() -> None:
    type_codecs._of_extensions.cache_clear()
    type_codecs._send_codecs.cache_clear()


@pytest.mark.usefixtures("_example")
def test_the_manuals_example() -> None:
    assert datum_text(SCALAR, TYPES, SETTINGS, VALUE) == b"(1.5,-2)"
    assert datum_send(SCALAR, TYPES, SETTINGS, VALUE) == struct.pack(">dd", 1.5, -2)
    # dimensions, flags, element type, length, lower bound
    array = struct.pack("<iiIii", 1, 0, 20000, 1, 1) + VALUE
    assert datum_text(ARRAY, TYPES, SETTINGS, array) == b'{"(1.5,-2)"}'
    sent = struct.pack(">iiIiiidd", 1, 0, 20000, 1, 1, 16, 1.5, -2)
    assert datum_send(ARRAY, TYPES, SETTINGS, array) == sent


def test_a_type_that_nobody_knows_is_raw_and_is_not_sent_in_binary() -> None:
    expected = b"raw:public.complex:\\x" + VALUE.hex().encode()
    assert datum_text(SCALAR, TYPES, SETTINGS, VALUE) == expected
    assert datum_send(SCALAR, TYPES, SETTINGS, VALUE) is None
    assert datum_send(ARRAY, TYPES, SETTINGS, VALUE) is None


def test_what_a_codec_raises_is_a_decoding_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes, settings: TextSettings) -> bytes:
        raise ValueError(data, settings)

    monkeypatch.setattr(
        type_codecs, "entry_points", lambda group: [Entry(f"complex_{group[9:13]}", broken)]
    )
    _forget()
    with pytest.raises(DecodingError, match=r"public\.complex"):
        datum_send(SCALAR, TYPES, SETTINGS, VALUE)
    _forget()
