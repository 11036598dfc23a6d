"""Pages of documentation that are notebooks: their Python is run, and prints what they say."""

from __future__ import annotations

import contextlib
import io
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from harness.arrow_slot import Table, delete, insert, update

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lake import Lake

_HOW_TO: Final = Path(__file__).parents[2] / "docs" / "how-to"
_BLOCK: Final = re.compile(
    r"```python\n(.*?)```\n\n```text\n(.*?)```|```python\n(.*?)```", re.DOTALL
)
_LSN: Final = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b")

CUSTOMERS: Final = Table(
    "customers", {"id": pa.int64(), "name": pa.string()}, schema="shop", oid=16390
)
ORDERS: Final = Table(
    "orders",
    {"id": pa.int64(), "customer": pa.int64(), "status": pa.string(), "total": pa.decimal128(8, 2)},
    schema="shop",
)


def fill(lake: Lake) -> None:
    """Give *lake* the shop that the pages show, in two batches."""
    slot = lake.slot
    orders = ((1, 1, "20.00"), (2, 2, "7.50"), (3, 1, "300.00"))
    slot.commit(
        *(insert(CUSTOMERS, id=i, name=name) for i, name in ((1, "Ada"), (2, "Bob"))),
        *(insert(ORDERS, id=i, customer=c, status="new", total=Decimal(t)) for i, c, t in orders),
    )
    lake.run()
    slot.commit(
        delete(ORDERS, id=3), insert(ORDERS, id=4, customer=2, status="new", total=Decimal("5.00"))
    )
    sent = {"id": 1, "customer": 1, "status": "sent", "total": Decimal("20.00")}
    slot.commit(update(ORDERS, sent))
    lake.run()


def check_page(
    name: str, paths: Mapping[str, Path], names: dict[str, object], *, until: str = ""
) -> int:
    """Run the page *name*, up to the heading *until*, with *names*, its paths replaced by those of
    *paths*; return how many blocks printed what the page says.

    Raises:
        AssertionError: one printed something else.
    """
    page = _HOW_TO / name
    text = page.read_text(encoding="utf-8")
    if until:
        text, heading, _ = text.partition(f"\n{until}\n")
        assert heading
    for said, path in paths.items():
        text = text.replace(said, str(path))
    shown = 0
    for block in _BLOCK.finditer(text):
        code, expected = (block[1], block[2]) if block[1] else (block[3], None)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        if expected is not None:
            shown += 1
            assert _LSN.sub("LSN", printed.getvalue()).strip() == _LSN.sub("LSN", expected).strip()
    return shown
