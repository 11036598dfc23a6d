"""The command that hints of the lake name, as a shell takes it."""

from __future__ import annotations

import shlex

import pytest

from spillway.lake.load_anew import load_anew


@pytest.mark.parametrize("table", ["public.orders", "public.two words", "it's.a$b", 'x."quoted"'])
def test_it_names_the_table_in_any_shell(table: str) -> None:
    command, _, more = load_anew(table, "--partition-by", "'x=y'").rpartition(", ")
    assert shlex.split(command) == [
        "spillway", "lake", "load", "--resync", "--table", table, "--partition-by", "x=y",
    ]  # fmt: skip
    assert more == "with the job's --slot and --lake"
