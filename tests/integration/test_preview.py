"""Changes on a slot's page: whatever the transactions are, somebody who goes on and on sees every
one of them, once.
"""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

import pytest

from harness.service import Service, service_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database

_BUTTON = re.compile(r'<button[^>]*hx-vals="([^"]*)"[^>]*>([^<]*)</button>')


@pytest.fixture
def service(tmp_path: Path, pg15: Database) -> Iterator[Service]:
    with service_in_process(tmp_path / "data") as running:
        running.create_source(pg15.dsn)
        pg15.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        running.create_slot("s", pg15.name)
        yield running
        running.drop_slot("s")
        running.call("DELETE", "/sources/main")


def page(service: Service, **query: str) -> tuple[list[int], dict[str, dict[str, str]], str]:
    """Give a page's ids, its buttons with what they send, and its text."""
    answer = service.http.get("/ui/slots/s/changes", params=query)
    assert answer.status_code == 200, answer.text
    ids = [int(found) for found in re.findall(r">id</dt><dd>(\d+)<", answer.text)]
    buttons = {
        title.strip(): json.loads(html.unescape(values))
        for values, title in _BUTTON.findall(answer.text)
    }
    return ids, buttons, " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


def test_every_change_is_come_to(service: Service, pg15: Database) -> None:
    pg15.execute("INSERT INTO t VALUES (1, 'a')")
    pg15.execute("INSERT INTO t SELECT g, 'b' FROM generate_series(2, 1000) g")
    for number in range(1001, 1100):
        pg15.execute(f"INSERT INTO t VALUES ({number}, 'c')")
    service.wait_decoded("s", pg15)
    ids, buttons, text = page(service)
    seen, pages = list(ids), 1
    # Sentences have blanks between them.
    assert re.search(r"changes\. The last transaction has more\.", text), text
    while buttons:
        title = next((t for t in buttons if t.startswith("More")), next(iter(buttons)))
        ids, buttons, text = page(service, **buttons[title])
        seen += ids
        pages += 1
        assert pages < 20
    assert seen == list(range(1, 1100))
    assert "after the first" not in text


@pytest.mark.long
def test_a_transaction_is_passed_over(service: Service, pg15: Database) -> None:
    # Wide rows that don't compress, so that the transaction is more than what a page reads and
    # throws away.
    wide = "(SELECT string_agg(md5((i * g)::text), '') FROM generate_series(1, 12000) i)"
    pg15.execute(f"INSERT INTO t SELECT g, {wide} FROM generate_series(1, 220) g")
    pg15.execute("INSERT INTO t VALUES (1000, 'next')")
    service.wait_decoded("s", pg15)
    ids, buttons, text = page(service)
    seen = list(ids)
    while more := buttons.get("More of this transaction"):
        over = next(values for title, values in buttons.items() if title.startswith("Pass it over"))
        ids, buttons, text = page(service, **more)
        seen += ids
    assert seen == list(range(1, len(seen) + 1))
    assert 150 < len(seen) < 220, "64 MiB of it are read again, no more"
    assert "spillway recv" in text
    assert page(service, **over)[0] == [1000]
    assert page(service, **over, skip="0")[0] == [1000]


def test_numbers_that_are_none(service: Service) -> None:
    for skip in ("x", "-1", "9" * 40):
        answer = service.http.get("/ui/slots/s/changes", params={"skip": skip})
        assert answer.status_code == 400
