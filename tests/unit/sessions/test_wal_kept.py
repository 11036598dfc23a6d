"""What of a source's WAL is kept, for sessions that are there and for those that may come."""

from __future__ import annotations

import pytest

from spillway.sessions.wal_horizon import wal_kept_from


@pytest.mark.parametrize(
    ("required", "redo_lsn", "spare_bytes", "kept"),
    [
        pytest.param([900, 800], 500, None, 500, id="from the last checkpoint on"),
        pytest.param([900, 300], 500, None, 300, id="what a session needs, if that is more"),
        pytest.param([900, 0], 500, None, 0, id="all, while a session's need is not known"),
        pytest.param([900], 0, None, 0, id="all, while the last checkpoint is not known"),
        pytest.param([900], 500, 200, 800, id="what is only spare is bounded"),
        pytest.param([900], 850, 200, 850, id="within the bound"),
        pytest.param([900], 0, 200, 800, id="bounded though the checkpoint is not known"),
        pytest.param([300], 500, 200, 300, id="the bound is not for what a session needs"),
        pytest.param([900], 500, 0, 900, id="nothing to spare"),
    ],
)
def test_where_kept_wal_begins(
    required: list[int], redo_lsn: int, spare_bytes: int | None, kept: int
) -> None:
    assert wal_kept_from(required, redo_lsn, received_lsn=1000, spare_bytes=spare_bytes) == kept
