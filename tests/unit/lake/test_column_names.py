"""Under which names a lake has the source's columns: said once, an option of the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.errors import LakeTableConflict
from spillway.lake.state import column_names

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_said_stays(tmp_path: Path) -> None:
    assert column_names.plugin_options(tmp_path) == {}
    column_names.settle(tmp_path, None)
    assert column_names.plugin_options(tmp_path) == {}
    column_names.settle(tmp_path, "safe")
    column_names.settle(tmp_path, None)
    assert column_names.plugin_options(tmp_path) == {"column_names": "safe"}
    column_names.settle(tmp_path, "source")
    assert column_names.plugin_options(tmp_path) == {"column_names": "source"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"column_names": "odd"}', '{"column_names"'])
def test_a_file_that_says_nothing_is_told_of(tmp_path: Path, text: str) -> None:
    (tmp_path / "_spillway").mkdir()
    file = tmp_path / "_spillway" / "column_names.json"
    file.write_text(text)
    with pytest.raises(LakeTableConflict, match=r"column_names\.json can't be read") as told:
        column_names.settle(tmp_path, "safe")
    # The way back that it says.
    assert "Removed" in str(told.value.hint)
    file.unlink()
    column_names.settle(tmp_path, "safe")
    assert column_names.plugin_options(tmp_path) == {"column_names": "safe"}
