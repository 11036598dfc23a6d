"""What a shell is offered: each command, its options, and names that the service knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.fake_service import FakeService
from spillway.cli import main
from spillway.subscriber.model import SubscriptionSpec, TableState

if TYPE_CHECKING:
    from pathlib import Path

#: With patience: a test's machine may be busier than a person's.
PROGRAM = (
    "import sys; from spillway.cli import completion, main; completion._TIMEOUT_S = 30; "
    "sys.exit(main())"
)


def complete(line: str, *, shell: str = "bash", **environment: str) -> list[str]:
    """What *line* is completed to, the cursor at its end."""
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            **asked,
            "_SPILLWAY_COMPLETE": f"complete_{shell}",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def three(service: FakeService) -> FakeService:
    service.engine.add_source("books")
    service.engine.add_slot("s2")
    service.engine.add_slot("other")
    return service


def test_every_command_is_offered() -> None:
    offered = complete("spillway ")
    for command in ("slot", "source", "subscription", "recv", "decode", "certify", "serve", "lake"):
        assert command in offered
    assert {"create", "list", "show", "peek", "drop"} <= set(complete("spillway slot "))
    assert {"tables", "publications"} <= set(complete("spillway source "))
    assert "--upto-nchanges" in complete("spillway slot peek s1 --")
    assert complete("spillway subscription create a --format ") == ["delta", "iceberg", "parquet"]


def test_the_lakes_commands_are_offered() -> None:
    assert {"run", "load", "verify", "points"} <= set(complete("spillway lake "))
    assert "--partition-by" in complete("spillway lake run --part")


def test_names_are_the_services(three: FakeService) -> None:
    assert complete("spillway slot show s") == ["s1", "s2"]
    assert complete("spillway recv --slot o") == ["other"]
    assert complete("spillway slot create x --source b") == ["books"]
    assert complete("spillway slot create x --database ") == ["shop"]
    assert "test_decoding" in complete("spillway slot create x --plugin ")
    assert complete("spillway source drop sh") == ["shop"]
    assert complete("spillway subscription show ") == []
    target = {"kind": "lake", "path": "/"}
    three.run(three.subscriptions.create(SubscriptionSpec("lake", "shop", "shop", target)))
    tables = (TableState("public.orders", "ready"), TableState("crm.leads", "ready"))
    three.subscriptions.change("lake", table_states=tables)
    assert complete("spillway subscription resync-table lake p") == ["public.orders"]
    assert complete("spillway alert rule set x --code source_d") == ["source_down"]
    assert complete("spillway event list --slot s") == ["s1", "s2"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(three: FakeService, shell: str) -> None:
    said = " ".join(complete("spillway slot show s", shell=shell))
    assert "s1" in said
    assert "s2" in said


def test_without_a_service_nothing_is_said(unused_tcp_port: int) -> None:
    for url in (f"http://127.0.0.1:{unused_tcp_port}", "nonsense", "http://["):
        assert complete("spillway slot show ", SPILLWAY_URL=url) == []
    assert complete("spillway slot show ", SPILLWAY_HTTP_PORT="x") == []
    with FakeService(token="secret") as service:
        url = f"http://127.0.0.1:{service.http_port}"
        assert complete("spillway slot show ", SPILLWAY_URL=url, SPILLWAY_TOKEN="wrong") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_script_works_in_bash(three: FakeService, tmp_path: Path) -> None:
    """What --show-completion prints, sourced by a shell that then completes a line."""
    program = tmp_path / "spillway"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{PROGRAM}' \"$@\"\n")
    program.chmod(0o755)
    script = """
        eval "$(_SPILLWAY_COMPLETE=source_bash spillway)"
        COMP_WORDS=(spillway slot show s) COMP_CWORD=3
        _spillway_completion spillway
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["s1", "s2"]


def test_names_are_those_of_the_context_on_the_line(tmp_path: Path) -> None:
    with FakeService(token="secret") as service:
        service.engine.add_source("shop")
        service.engine.add_slot("in_prod")
        (tmp_path / "token").write_text("secret")
        url = f"http://127.0.0.1:{service.http_port}"
        words = ["context", "add", "prod", "--url", url, "--token-file", str(tmp_path / "token")]
        assert main(words) == 0
        assert complete("spillway --context prod slot show ") == ["in_prod"]
        assert complete("spillway --context p") == ["prod"]
        assert complete("spillway context use ") == ["prod"]
        assert complete("spillway --context prod slot create x --source ") == ["shop"]
