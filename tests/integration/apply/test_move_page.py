"""docs/how-to/move-to-another-major.md, followed from 14 to 18 and back under pgbench.

A ledger that only grows, and balances that it must add up to. Each of pgbench's clients numbers its
transactions, and pgbench says how many of them it heard were committed: those must be there, each
once, on whichever server is the one by then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.servers import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database
    from harness.serve_process import ServeProcess

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "move-to-another-major.md"
_CLIENTS = 3
_TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts (id) SELECT generate_series(1, 100);
CREATE TABLE ledger (
    id bigserial PRIMARY KEY, run int, client int, n int, account int REFERENCES accounts,
    amount int NOT NULL, at timestamptz DEFAULT now(), UNIQUE (run, client, n)
);
CREATE INDEX ON ledger (account);
CREATE ROLE {role} LOGIN;
GRANT SELECT, INSERT, UPDATE ON accounts, ledger TO {role};
GRANT USAGE ON SEQUENCE ledger_id_seq TO {role};
"""
_SCRIPT = """
\\set n :n + 1
\\set account random(1, 100)
\\set amount random(-50, 50)
BEGIN;
INSERT INTO ledger (run, client, n, account, amount)
VALUES (:run, :client_id, :n, :account, :amount);
UPDATE accounts SET balance = balance + :amount WHERE id = :account;
COMMIT;
"""


class Application:
    """pgbench, until the page ends its sessions."""

    def __init__(self, database: Database, role: str, script: Path, run: int) -> None:
        self._database = database
        self.run = run
        self._process = subprocess.Popen(
            [
                client("pgbench"), "--no-vacuum", f"--file={script}", f"--client={_CLIENTS}",
                f"--define=run={run}", "--define=n=0", "--time=600", "--rate=300",
                "--host=127.0.0.1", f"--port={database.cluster.port}", f"--username={role}",
                database.name,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def goes_on(self, transactions: int = 100) -> None:
        """Wait until so many more are committed."""
        count = "SELECT count(*) FROM ledger WHERE run = %s"
        upto = int(self._database.query(count, [self.run])[0][0]) + transactions
        wait_until(
            f"pgbench has committed {upto} transactions",
            lambda: (
                self._process.poll() is not None
                or self._database.query(count, [self.run])[0][0] >= upto
            ),
        )
        assert self._process.poll() is None, self._process.communicate()[0]

    def committed(self) -> int:
        """Wait until its sessions are ended; return how many transactions it knows of."""
        said, _ = self._process.communicate(timeout=120)
        (number,) = re.findall(r"actually processed: ([0-9]+)", said)
        return int(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _check(database: Database, run: int, committed: int) -> None:
    """Insist that a run's transactions are there, each once, and that balances are their sums."""
    counts = dict(
        database.query("SELECT client, count(*) FROM ledger WHERE run = %s GROUP BY 1", [run])
    )
    assert sorted(counts) == list(range(_CLIENTS))
    # Of each client the last one may have been committed before it could hear of it.
    assert committed <= sum(counts.values()) <= committed + _CLIENTS
    assert database.query("SELECT client, n FROM ledger WHERE run = %s ORDER BY 1, 2", [run]) == [
        (number, n) for number in range(_CLIENTS) for n in range(1, counts[number] + 1)
    ]
    assert (
        database.query(
            "SELECT a.id, balance, coalesce(sum(amount), 0) FROM accounts a"
            " LEFT JOIN ledger ON account = a.id GROUP BY 1"
            " HAVING balance <> coalesce(sum(amount), 0)"
        )
        == []
    )


@pytest.fixture
def move(
    session_cluster: Callable[[int], Cluster], apply_service: ServeProcess, majors: tuple[int, int]
) -> Iterator[tuple[Database, Database]]:
    """The old and the new database, and a service that knows neither."""
    old, new = (
        session_cluster(major).create_database(f"shop_{which}_{os.getpid()}")
        for major, which in zip(majors, ("old", "new"), strict=True)
    )
    service = apply_service.service()
    yield old, new
    for one in service.call("GET", "/subscriptions")["subscriptions"]:
        if one["name"] in ("to_new", "to_old"):
            service.call("DELETE", f"/subscriptions/{one['name']}")
    for one in service.call("GET", "/sources")["sources"]:
        if one["name"] in ("old", "new"):
            service.call("DELETE", f"/sources/{one['name']}")
    for database in (old, new):
        role = f"{old.name}_app"
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        database.cluster.drop_database(database.name)


@pytest.mark.long
@pytest.mark.parametrize("majors", [(14, 18), (15, 17), (18, 16)])
def test_there_and_back_under_load(
    move: tuple[Database, Database], apply_service: ServeProcess, tmp_path: Path
) -> None:
    old, new = move
    service = apply_service.service()
    role = f"{old.name}_app"
    for name in ("psql", "spillway"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        of = client("psql") if name == "psql" else f"{sys.executable} -m spillway.cli"
        program.write_text(f'#!/bin/sh\nexec {of} "$@"\n')
        program.chmod(0o755)
    script = tmp_path / "script.sql"
    script.write_text(_SCRIPT)
    page = PAGE.read_text().replace("shop_app", role)
    for word, database in (("OLD", old), ("NEW", new)):
        page = re.sub(rf"export {word}='[^']*'", f"export {word}='{database.dsn}'", page)
    # Here the two databases have names of their own.
    page = page.replace("--source old --database shop", f"--source old --database {old.name}")
    page = page.replace("--source new --database shop", f"--source new --database {new.name}")
    found = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    blocks = [re.sub(r"^   ", "", block, flags=re.MULTILINE) for block in found]
    variables, sources, keys, role_there, fill, back, rights, compare, *rest = blocks
    stop, come, switch, again, end = rest
    # What is exported before holds for what comes after.
    exported = [line for b in (variables, fill) for line in b.splitlines() if "export " in line]

    def shell(block: str, *, may_fail: bool = False) -> str:
        done = subprocess.run(
            ["bash", "-ec", "\n".join([*exported, block])],
            env={
                **os.environ,
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
                "SPILLWAY_GRPC": service.grpc_address,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert may_fail or done.returncode == 0, (
            block,
            done.stdout,
            done.stderr,
            _log(apply_service),
        )
        return done.stdout

    old.execute(_TABLES.format(role=role))
    application = Application(old, role, script, 1)
    try:
        application.goes_on()
        shell(sources)
        assert shell(keys) == ""
        shell(role_there)
        shell(fill)
        shell(back)
        shell(rights)
        # What is written all the time may be undecided.
        compared = shell(compare, may_fail=True)
        assert "2 tables" in compared
        assert "DIFFERENT" not in compared, compared
        application.goes_on()
        before_s = time.monotonic()
        shell(stop + come)
        print(f"until all was there: {time.monotonic() - before_s:.1f} s")
        assert "no difference" in shell(compare)
        shell(switch)
        first = application.committed()
        _check(old, 1, first)
        _check(new, 1, first)
        # Numbers go on where they were, or keys would be taken.
        application = Application(new, role, script, 2)
        application.goes_on()
        shell(again)
        second = application.committed()
        for database in (old, new):
            _check(database, 1, first)
            _check(database, 2, second)
        application = Application(old, role, script, 3)
        application.goes_on()
        # And once more there.
        shell(stop + come + switch)
        third = application.committed()
        _check(new, 3, third)
        rows = "SELECT * FROM ledger ORDER BY id"
        assert new.query(rows) == old.query(rows)
        assert service.call("GET", "/subscriptions/to_new/conflicts")["conflicts"] == []
        assert service.call("GET", "/subscriptions/to_old/conflicts")["conflicts"] == []
        shell(end)
    finally:
        application.kill()
    names = {one["name"] for one in service.call("GET", "/sources")["sources"]}
    assert not names & {"old", "new"}


def _log(serve: ServeProcess) -> str:
    return "\n".join(serve.log().splitlines()[-40:])
