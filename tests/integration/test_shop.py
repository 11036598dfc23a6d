"""The demo's workload against PostgreSQL's own decoding: its expectations and its tally are
right.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from harness.oracle import create_slot
from spillway.demo.shop import Shop

if TYPE_CHECKING:
    from harness.cluster import Database


def test_expected_lines_are_postgresqls(pg18: Database) -> None:
    with pg18.connect(autocommit=False) as connection:
        shop = Shop(connection)
        shop.create()
        slot = create_slot(pg18, "shop_lines")

        expected = shop.first_customers()

    options = {"include-xids": "0", "skip-empty-xacts": "1"}
    assert [change.data for change in slot.peek(options)] == expected


def test_tally_counts_what_postgresql_decodes(pg18: Database) -> None:
    with pg18.connect(autocommit=False) as connection:
        shop = Shop(connection)
        shop.create()
        slot = create_slot(pg18, "shop_tally")
        steps: list[str] = []

        shop.first_customers()
        shop.busy_season(lambda name, _rows: steps.append(name), bulk_rows=2_000)

    lines = [change.data for change in slot.peek({"include-xids": "0", "skip-empty-xacts": "1"})]
    decoded: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if match := re.match(r"table shop\.(\w+): (\w+):", line):
            decoded[match[1], match[2]] += 1
    assert decoded == +shop.tally.changes
    assert lines.count("BEGIN") == shop.tally.transactions
    assert steps[-1] == "done"
