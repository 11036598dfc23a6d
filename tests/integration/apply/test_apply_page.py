"""docs/how-to/apply-into-postgresql.md, followed: its commands and statements, on two servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.page_shell import PageShell
from harness.postgresql_subscription import wait_until
from spillway.apply.target.session import LOCK_CLASS

if TYPE_CHECKING:
    from harness.cluster import Database
    from harness.serve_process import ServeProcess

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "apply-into-postgresql.md"


def test_the_page_is_followed(
    pg18: Database, pg15: Database, apply_service: ServeProcess, tmp_path: Path
) -> None:
    service = apply_service.service()
    shell = PageShell(tmp_path, service.http_port)
    service.create_source(pg15.dsn, "page")
    page = PAGE.read_text().replace("--source shop", "--source page")
    page = page.replace("--database shop", f"--database {pg15.name}")
    page = page.replace("port=5433 dbname=copy", f"port={pg18.cluster.port} dbname={pg18.name}")
    publish, prepare, subscribe, show, drop, alter = re.findall(
        r"```(?:sh|sql)\n(.*?)```", page, re.DOTALL
    )
    assert str(LOCK_CLASS) in page

    pg15.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
    pg15.execute("INSERT INTO orders VALUES (1, 'tea')")
    pg15.execute(publish)
    for statement in prepare.strip().split(";")[:-1]:
        pg18.execute(statement)
    try:
        shell(subscribe)
        pg15.execute("INSERT INTO orders VALUES (2, 'more')")
        wait_until(
            "both rows are there",
            lambda: pg18.query("SELECT * FROM orders ORDER BY 1") == [(1, "tea"), (2, "more")],
            lambda: shell(show),
        )
        # Where it is, it tells a moment after it has begun.
        wait_until(
            "it streams",
            lambda: bool(re.search(r"streaming.*applied_lsn", shell(show), re.DOTALL)),
        )
        shell(alter)
        assert service.call("GET", "/subscriptions/sales")["target"]["connections"] == 4
        pg15.execute("INSERT INTO orders VALUES (3, 'most')")
        wait_until("it goes on", lambda: pg18.value("SELECT count(*) FROM orders") == 3)
        shown = shell(show)
        assert "secret" not in shown
        shell(drop)
        assert pg18.query("SELECT FROM pg_namespace WHERE nspname = 'spillway'") == []
        assert pg18.value("SELECT count(*) FROM orders") == 3
    finally:
        pg18.execute("DROP OWNED BY filler")
        pg18.execute("DROP ROLE filler")
        service.call("DELETE", "/sources/page")
