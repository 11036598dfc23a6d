"""How descriptors are shared out between connections and the work."""

from __future__ import annotations

import pytest

from spillway.open_files import connection_limits


@pytest.mark.parametrize("files_max", [64, 256, 1024, 4096, 65_536])
def test_the_work_keeps_its_share(files_max: int) -> None:
    limits = connection_limits(files_max)
    assert files_max - limits.http - limits.grpc >= min(files_max // 2, 4096)
    assert limits.http >= 16
    assert limits.grpc >= 16


def test_memory_bounds_them_where_descriptors_do_not() -> None:
    limits = connection_limits(65_536)
    assert (limits.http, limits.grpc) == (1_000, 4_000)
