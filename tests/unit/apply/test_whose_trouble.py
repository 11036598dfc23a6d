"""Whose trouble an error is."""

from __future__ import annotations

import pytest

from spillway.apply.options import Rename
from spillway.apply.sync.setting_aside import table_of, why_aside
from spillway.errors import (
    ApplyConflict,
    SpillwayError,
    TargetColumnsMissing,
    TargetDiskFull,
    TargetNotPermitted,
    TargetRowRefused,
    TargetSchemaChange,
    TargetSerialization,
    TargetUnavailable,
)

_TABLES = [("public", "orders"), ("public", "items"), ("a", "b.c"), ("a.b", "c")]
_RENAME = Rename({"public.orders": "sales.items", "public.items": "public.orders"}).target_of


@pytest.mark.parametrize(
    ("error", "table"),
    [
        (TargetColumnsMissing("it lacks one", relation="sales.items"), ("public", "orders")),
        (TargetRowRefused("a row", table="public.orders"), ("public", "items")),
        (ApplyConflict("a conflict", table="sales.items"), ("public", "orders")),
        (TargetNotPermitted("no right", relation="public.orders"), ("public", "items")),
        # The source's DDL has the source's names.
        (TargetSchemaChange("DDL", relation="public.orders"), ("public", "orders")),
        # Of the target's own, which nobody sends to.
        (TargetRowRefused("at the end", table="public.audit"), None),
        (TargetRowRefused("at the end", table=""), None),
        # Two are called so.
        (TargetColumnsMissing("it lacks one", relation="a.b.c"), None),
        # What passes, or is everybody's.
        (TargetSerialization("a deadlock", table="sales.items"), None),
        (TargetUnavailable("it is down", table="sales.items"), None),
        (TargetDiskFull("no room", relation="sales.items"), None),
        (TargetNotPermitted("the schema"), None),
    ],
)
def test_whose(error: SpillwayError, table: tuple[str, str] | None) -> None:
    assert table_of(error, _TABLES, _RENAME) == table


def test_what_is_said() -> None:
    said = why_aside(TargetRowRefused("a row of it", hint="Mend that."), ("Sales", "my items"))
    assert said == (
        "a row of it Hint: the table is set aside, and the others go on. Mend that. Then have it "
        'copied anew, on the target: TRUNCATE "Sales"."my items";'
    )
