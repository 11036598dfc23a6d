"""States that text of an encoding goes through; servers of each major hold them in
integration/walsender/test_client_encoding.
"""

from __future__ import annotations

import pytest

from spillway._kernels.pg.character_map import CharacterMap
from spillway.pg.character_checks import CHECKED, check_of


@pytest.mark.parametrize("encoding", sorted(CHECKED))
def test_every_state_is_there(encoding: str) -> None:
    assert len(check_of(encoding).checks) % 256 == 0


@pytest.mark.parametrize(
    "checks", [bytes(256), bytes(300), bytes(256) + b"\1" * 256], ids=["none", "torn", "beyond"]
)
def test_a_state_that_is_not_there(checks: bytes) -> None:
    """It would be read behind the table."""
    with pytest.raises(ValueError, match="checks are of 256 lengths"):
        CharacterMap(b"", checks=checks)
