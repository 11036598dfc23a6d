"""The service's own options of slots are those that the reference lists."""

from __future__ import annotations

import re
from pathlib import Path

from spillway.service.slot_options import PLUGINS_OWN, PREFIX, SlotOptions, split

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "output-plugins.md"


def test_the_reference_lists_them() -> None:
    listed = re.findall(r"^\| `(spillway\.\w+)`", REFERENCE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted([*PLUGINS_OWN, *(PREFIX + n for n in SlotOptions._fields)])


def test_they_are_told_from_the_plugins() -> None:
    own, others = split({"include-xids": "off", "spillway.takeover": "1"})
    assert own == SlotOptions(takeover=True)
    assert others == {"include-xids": "off"}
    assert split({"spillway.all_tables": "on"})[1] == {"spillway.all_tables": "on"}
