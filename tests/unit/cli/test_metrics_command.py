"""How things were, as commands and REST tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from spillway.cli import main

if TYPE_CHECKING:
    from harness.fake_service import FakeService


def metrics(service: FakeService, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{service.http_port}/v1/{path}", timeout=60)


@pytest.mark.parametrize(
    ("kind", "name", "columns"),
    [
        ("source", "shop", {"lag_bytes", "bytes_per_second", "retained_bytes"}),
        ("slot", "s1", {"lag_bytes", "lag_seconds", "bytes_per_second", "retained_bytes"}),
        ("subscription", "filled", {"lag_bytes", "lag_seconds", "changes_per_second"}),
    ],
)
def test_the_command(
    service: FakeService,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    name: str,
    columns: set[str],
) -> None:
    command = "subscription create filled --source shop --database shop --lake /l"
    assert main(command.split()) == 0
    service.look()
    capsys.readouterr()
    assert main([kind, "metrics", name, "--range", "1h", "--step", "2m"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert set(heading.split("\t")) == {"at", *columns}
    assert len(lines) == 30
    at = heading.split("\t").index("lag_bytes")
    # What was seen just now, and before that nothing.
    assert [line.split("\t")[at] for line in lines] == ["-"] * 29 + ["0.0"]


def test_the_answer_of_rest(service: FakeService) -> None:
    service.look()
    found = metrics(service, "slots/s1/metrics?range=7d&step=1h").json()
    assert (found["kind"], found["name"], found["step_s"]) == ("slot", "s1", 3600)
    assert {len(values) for values in found["metrics"].values()} == {168}
    assert found["metrics"]["lag_bytes"][-1] == 0
    assert metrics(service, "slots/no/metrics").status_code == 404
    for wrong in ("range=7y", "rnage=7d", "range=31d", "step=0s"):
        assert metrics(service, f"slots/s1/metrics?{wrong}").json()["code"] == "invalid_request"
