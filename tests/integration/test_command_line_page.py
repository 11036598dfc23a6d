"""The how-to of the command line, run in bash against a service on a real server as it stands
there; only addresses and the database's name are others, and the lake is a PostgreSQL.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.page_shell import PageShell
from harness.service import service_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.service import Service

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "how-to" / "use-the-command-line.md").read_text()
TOKEN = "the page's token"


def _blocks(heading: str) -> list[str]:
    """The blocks below a heading."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found


@pytest.fixture
def running(pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".spillway-token").write_text(TOKEN + "\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SPILLWAY_TOKEN", TOKEN)
    for variable in ("XDG_CONFIG_HOME", "SPILLWAY_CONTEXT", "SPILLWAY_GRPC", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    pg18.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pg18.execute("INSERT INTO orders VALUES (1)")
    with service_in_process(tmp_path / "data", token=TOKEN) as service:
        monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
        yield service
        for one in service.call("GET", "/subscriptions")["subscriptions"]:
            service.call("DELETE", f"/subscriptions/{one['name']}")
        for slot in service.call("GET", "/slots")["slots"]:
            service.drop_slot(slot["slot_name"])
        service.call("DELETE", "/sources/shop")


def test_the_page(running: Service, pg18: Database, pg15: Database, tmp_path: Path) -> None:
    pg15.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    shell = PageShell(tmp_path, running.http_port)
    added = shell(f"spillway source add shop '{pg18.dsn}' --wait -o name")
    assert added == "shop\n"
    shell(f"spillway slot create orders --source shop --database {pg18.name} --wait")

    # Is all well?
    well, probe = _blocks("Is all well?")
    assert "shop\tstreaming\t18" in shell(well)
    assert shell(probe) == ""
    # Look at what there is
    listed, behind = _blocks("Look at what there is")
    *lists, shown = listed.splitlines()
    assert "orders\treserved" in shell(lists[0])
    assert "orders\treserved" in shell(lists[1])
    assert shell(lists[-1]) == "orders\n"
    assert json.loads(shell(shown))["slot_name"] == "orders"
    assert shell(behind) == ""
    # Wait until it is done
    wait, log = _blocks("Wait until it is done")
    wait = wait.replace("--database shop", f"--database {pg18.name}")
    wait = wait.replace("--lake /srv/lake", f"--target-dsn '{pg15.dsn}'")
    created, subscribed, disabled, enabled, refreshed = wait.splitlines()
    assert "audit" in shell(created)
    assert "state\tstreaming" in shell(subscribed)
    # All of it is there when the command returns.
    assert pg15.value("SELECT count(*) FROM orders") == 1
    assert "pid\t-" in shell(disabled)
    shell(enabled)
    assert "public.orders\tready" in shell(refreshed)
    followed = shell(f"timeout -s INT 6 {log.strip()} || [ $? -eq 124 ]")
    assert followed
    # Before something is lost
    (dropped,) = _blocks("Before something is lost")
    shell(dropped)
    assert "audit" not in shell("spillway slot list -o name")
    # Several services
    contexts, named = _blocks("Several services")
    contexts = contexts.replace(
        "https://spillway.example:8080", f"http://127.0.0.1:{running.http_port}"
    )
    said = shell(contexts)
    assert ".spillway-token" in said
    assert TOKEN not in said
    os.environ["SPILLWAY_TOKEN"] = "another service's"
    assert "orders" in shell(named)
    os.environ["SPILLWAY_TOKEN"] = TOKEN
    # Completion
    (install,) = _blocks("Completion")
    # It asks which shell it is in: bash must stay, and not become the command.
    shell(f"{install}true\n")
    completed = shell(
        """
        source ~/.bash_completions/spillway.sh
        COMP_WORDS=(spillway slot show o) COMP_CWORD=3
        _spillway_completion spillway
        echo "${COMPREPLY[@]}"
        """
    )
    assert completed.split() in (["orders"], []), "half a second may be too short here"
