"""Services by name: which one counts, where its token is, and who may read the file."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from harness.fake_service import FakeService
from spillway.cli import connection, main
from spillway.cli.contexts import Contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

TOKEN = "s3cret"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def prod() -> Iterator[FakeService]:
    """A service with a token, which the environment says nothing of."""
    with FakeService(token=TOKEN) as service:
        service.engine.add_source("shop")
        service.engine.add_slot("in_prod")
        yield service


def _add(service: FakeService, more: str) -> str:
    url = f"http://127.0.0.1:{service.http_port}"
    return f"context add prod --url {url} --grpc 127.0.0.1:{service.grpc_port} {more}"


@pytest.mark.parametrize("how", ["file", "variable", "stored"])
def test_a_context_says_where_the_service_is_and_its_token(
    prod: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("PROD_TOKEN", TOKEN)
    with secret.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        given = {
            "file": f"--token-file {secret}",
            "variable": "--token-env PROD_TOKEN",
            "stored": "--token-stdin",
        }[how]
        added = run(_add(prod, given))
    assert added[0] == 0, added
    assert run("--context prod slot list -o name") == (0, "in_prod\n", "")
    monkeypatch.setenv("SPILLWAY_CONTEXT", "prod")
    assert run("slot list -o name") == (0, "in_prod\n", "")
    monkeypatch.delenv("SPILLWAY_CONTEXT")
    assert run("context use prod") == (0, "", "")
    assert run("slot list -o name") == (0, "in_prod\n", "")
    settings = connection.settings()
    assert (settings.grpc, settings.token) == (f"127.0.0.1:{prod.grpc_port}", TOKEN)
    # No command prints it.
    for line in ("context list", "context show", "context show prod --json", "context list --json"):
        code, out, err = run(line)
        assert code == 0
        assert "prod" in out
        assert TOKEN not in out + err + added[1] + added[2]


def test_a_token_never_goes_to_another_address(
    prod: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROD_TOKEN", TOKEN)
    assert run(_add(prod, "--token-env PROD_TOKEN --use"))[0] == 0
    for variable, value in (
        ("SPILLWAY_URL", "http://127.0.0.1:9"),
        ("SPILLWAY_GRPC", "127.0.0.1:9"),
    ):
        monkeypatch.setenv(variable, value)
        assert connection.settings().token is None
        assert connection.context_name() is None
        # The command line counts more.
        assert run("--context prod slot list -o name") == (0, "in_prod\n", "")
        monkeypatch.delenv(variable)
    # One variable beside it counts more than the context that is merely in use.
    monkeypatch.setenv("SPILLWAY_TOKEN", "other")
    assert "code: unauthenticated" in run("slot list")[2]
    assert run("--context prod slot list -o name")[0] == 0


def test_the_file_is_its_owners_alone(prod: FakeService, run: Run) -> None:
    assert run(_add(prod, "--use"))[0] == 0
    path = Contexts.load().path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    code, out, err = run("slot list")
    assert (code, out) == (1, "")
    assert "may be read or written by others (mode 644)" in err
    # Its remedy, as it is printed.
    remedy = err.split("hint: Take that from them: ")[1].splitlines()[0]
    assert os.system(remedy) == 0
    assert "code: unauthenticated" in run("slot list")[2]
    path.write_text("{}")
    assert "holds no contexts" in run("slot list")[2]


def test_errors_say_which_context_led_there(
    run: Run, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    assert run(f"context add prod --url {url} --token-env PROD_TOKEN --use")[0] == 0
    assert "PROD_TOKEN is not set" in run("slot list")[2]
    monkeypatch.setenv("PROD_TOKEN", TOKEN)
    for line in ("slot list", "status"):
        code, _, err = run(line)
        assert code == 1
        assert "can't be reached" in err
        assert 'that of the context "prod": `spillway context show prod`' in err
        assert TOKEN not in err


def test_one_of_several_is_in_use(run: Run) -> None:
    for name in ("prod", "staging"):
        assert run(f"context add {name} --url https://{name}.example:8080")[0] == 0
    assert "already exists" in run("context add prod --url http://127.0.0.1")[2]
    assert run("context use staging") == (0, "", "")
    found = {row["name"]: row for row in json.loads(run("context list --json")[1])}
    assert [found[name]["in_use"] for name in ("prod", "staging")] == [None, "*"]
    assert found["prod"]["grpc"] == "https://prod.example:50051"
    assert "Did you mean staging?" in run("context use stagin")[2]
    assert run("context remove staging") == (0, "", "")
    assert "no context is in use" in run("context show")[2]
    assert run("context list -o name")[1] == "prod\n"
    assert run("context use prod")[0] == 0
    assert run("context use --none") == (0, "", "")
    assert connection.context_name() is None


def test_a_token_in_the_clear_is_warned_of(run: Run) -> None:
    warned = run("context add a --url http://db.example:8080 --token-env T")[2]
    assert "as clear text" in warned
    assert run("context add b --url https://db.example:8080 --token-env T")[2] == ""
    assert run("context add c --url http://localhost:8080 --token-env T")[2] == ""


def test_every_command_asks_the_context(
    prod: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROD_TOKEN", TOKEN)
    assert run(_add(prod, "--token-env PROD_TOKEN"))[0] == 0
    for line in (
        "alert list",
        "alert messages",
        "alert rule list",
        "alert rule codes",
        "alert channel list",
        "changes --source shop --database shop",
        "ddl",
        "event list --since 2h",
        "slot list",
        "source list",
        "status",
        "subscription list",
        "user list",
    ):
        code, _, err = run(f"--context prod {line}")
        assert code == 0, f"{line}: {err}"
