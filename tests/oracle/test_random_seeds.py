"""Random workloads, a few seeds on each major: ``make certify`` runs as many as one likes.

A seed that once showed a difference becomes a test of its own here, named by what went wrong.
"""

from __future__ import annotations

import pytest

from harness.certify import SeedRunner

STEPS = 700
#: With a crash (5), everything spilled (3, 6), restarts (2, 4, 6), decoders that begin under load
#: (1, 2, 4, 5).
SEEDS = (1, 2, 3, 4, 5, 6)


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_seeds_equal_the_server(major, tmp_path):
    runner = SeedRunner(major, tmp_path, steps=STEPS)
    try:
        for seed in SEEDS:
            result = runner.run(seed)
            assert not result.difference, f"seed {seed}:\n{result.difference}"
            assert result.steps >= STEPS
            assert result.lines > 100
    finally:
        runner.close()


def test_a_type_that_another_transaction_dropped(tmp_path):
    """Its table's rows were written before, by a transaction that the drop did not wait for."""
    runner = SeedRunner(15, tmp_path, steps=2000)
    try:
        assert not (result := runner.run(138)).difference, result.difference
    finally:
        runner.close()
