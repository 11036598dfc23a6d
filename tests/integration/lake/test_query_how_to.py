"""docs/how-to/query-a-lake.md prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, update

if TYPE_CHECKING:
    from harness.lake import Lake

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "query-a-lake.md"
BLOCK = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```|```python\n(.*?)```", re.DOTALL)
LSN = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b")

CUSTOMERS = Table("customers", {"id": pa.int64(), "name": pa.string()}, schema="shop", oid=16390)
ORDERS = Table(
    "orders",
    {"id": pa.int64(), "customer": pa.int64(), "status": pa.string(), "total": pa.decimal128(8, 2)},
    schema="shop",
)


@pytest.mark.long
def test_what_the_page_shows(delta_lake: Lake) -> None:
    slot = delta_lake.slot
    orders = ((1, 1, "20.00"), (2, 2, "7.50"), (3, 1, "300.00"))
    slot.commit(
        *(insert(CUSTOMERS, id=i, name=name) for i, name in ((1, "Ada"), (2, "Bob"))),
        *(insert(ORDERS, id=i, customer=c, status="new", total=Decimal(t)) for i, c, t in orders),
    )
    delta_lake.run()
    slot.commit(
        delete(ORDERS, id=3), insert(ORDERS, id=4, customer=2, status="new", total=Decimal("5.00"))
    )
    sent = {"id": 1, "customer": 1, "status": "sent", "total": Decimal("20.00")}
    slot.commit(update(ORDERS, sent))
    delta_lake.run()

    page = PAGE.read_text().replace("/data/lake", str(delta_lake.path))
    names: dict[str, object] = {"spark": delta_lake.spark}
    shown = 0
    for block in BLOCK.finditer(page):
        code, expected = (block[1], block[2]) if block[1] else (block[3], None)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        if expected is not None:
            shown += 1
            assert LSN.sub("LSN", printed.getvalue()).strip() == LSN.sub("LSN", expected).strip()
    assert shown == 6
