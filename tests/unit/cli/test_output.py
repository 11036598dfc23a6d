"""The forms that a command prints in, what lists leave out and how they are sorted, and looking
again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.terminal import Terminal, at_a_terminal
from spillway.cli import main
from spillway.cli.subscription_log import news

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.fake_service import FakeService

    Run = Callable[..., tuple[int, str, str]]

SCREEN_BEGINS, SCREEN_ENDS = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def three(service: FakeService) -> FakeService:
    service.engine.add_source("books")
    service.engine.add_slot("s2")
    service.engine.add_slot("s10", source="books")
    service.engine.move_wal(1 << 20)
    service.engine.change_slot("s2", invalidation_reason="wal_removed")
    return service


def test_each_form_of_a_list(three: FakeService, run: Run) -> None:
    assert run("slot list -o name")[1] == "s1\ns2\ns10\n"
    assert json.loads(run("slot list -o json")[1]) == json.loads(run("slot list --json")[1])
    assert run("slot list -o wide")[1] == run("slot list")[1]
    assert run("slot list -o table")[1] == run("slot list")[1]


def test_each_form_of_one_thing(three: FakeService, run: Run) -> None:
    assert run("slot show s1 -o name")[1] == "s1\n"
    assert json.loads(run("slot show s1 -o json")[1])["slot_name"] == "s1"
    # -o is an option of the plugin's here, as pg_recvlogical's.
    made = run("slot create s3 --source shop --database shop -o include-xids=0 --output name")
    assert made == (0, "s3\n", "")
    assert three.engine.slots["s3"].options == {"include-xids": "0"}


def test_a_list_of_some(three: FakeService, run: Run) -> None:
    assert run("slot list --state invalidated -o name")[1] == "s2\n"
    assert run("slot list --state idle --state active -o name")[1] == "s1\ns10\n"
    assert run("slot list --source books -o name")[1] == "s10\n"
    assert run("slot list --database nowhere -o name")[1] == ""
    assert run("slot list --plugin arrow -o name")[1] == ""
    assert json.loads(run("slot list --state active --json")[1]) == []
    assert run("source list --state failed -o name")[1] == ""
    assert run("source list --state streaming -o name")[1] == "shop\nbooks\n"


def test_a_list_in_order(three: FakeService, run: Run) -> None:
    three.engine.change_slot("s1", confirmed_flush_lsn=three.engine.decoded_lsn)
    assert run("slot list --sort slot_name -o name")[1] == "s1\ns10\ns2\n"
    assert run("slot list --sort -slot_name -o name")[1] == "s2\ns10\ns1\n"
    assert run("slot list --sort confirmed_flush_lsn -o name")[1].endswith("s1\n")
    assert run("slot list --sort -confirmed_flush_lsn -o name")[1].startswith("s1\n")


@pytest.mark.parametrize("columns", [60, 200])
def test_lists_and_status_fit_the_terminal(three: FakeService, columns: int) -> None:
    for words in (("slot", "list"), ("status",)):
        text = at_a_terminal("-m", "spillway.cli", *words, columns=columns)
        lines = [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in text.splitlines()]
        assert all(len(line) <= columns for line in lines), lines
        assert "s10" in text
    wide = at_a_terminal("-m", "spillway.cli", "slot", "list", "-o", "wide", columns=60)
    assert "decoded_lsn" in wide.splitlines()[0]
    assert "wider terminal" not in wide


def test_plain_where_colours_are_not_wanted(
    three: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in at_a_terminal("-m", "spillway.cli", "status", columns=80)


def test_watching_at_a_terminal_leaves_it_as_it_was(three: FakeService) -> None:
    words = ("slot", "list", "-w", "--interval", "0.1")
    terminal = Terminal("-m", "spillway.cli", *words, columns=80)
    terminal.read_until("s10")
    three.engine.add_slot("s_new")
    shown = terminal.read_until("s_new")
    assert shown.startswith(SCREEN_BEGINS) or SCREEN_BEGINS in shown
    assert "Ctrl-C ends it" in shown
    terminal.interrupt()
    assert terminal.close() == 130
    assert terminal.output.rstrip().endswith(SCREEN_ENDS)
    assert "Traceback" not in terminal.output


def test_watching_ends_by_sigterm_as_by_ctrl_c(three: FakeService) -> None:
    terminal = Terminal("-m", "spillway.cli", "status", "--watch", columns=80)
    terminal.read_until("s10")
    # The shell's place was taken by the program.
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.close() == 128 + signal.SIGTERM
    assert terminal.output.rstrip().endswith(SCREEN_ENDS)


def test_what_was_seen_last_is_marked_when_the_service_is_away(three: FakeService) -> None:
    words = ("slot", "list", "-w", "--interval", "0.1")
    terminal = Terminal("-m", "spillway.cli", *words, columns=100)
    terminal.read_until("s10")
    three.engine.next_error = RuntimeError("away")
    assert "STALE, seen" in terminal.read_until("STALE")
    # It looks again.
    three.engine.add_slot("s_new")
    terminal.read_until("s_new")
    terminal.interrupt()
    terminal.close()


def test_watching_behind_a_pipe_prints_each_look(three: FakeService) -> None:
    for form, count in ((("-o", "name"), 3), (("--json",), 1)):
        words = ("slot", "list", "-w", "--interval", "0.1", *form)
        with subprocess.Popen(
            [sys.executable, "-m", "spillway.cli", *words],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        ) as program:
            assert program.stdout is not None
            looks = [program.stdout.readline() for _ in range(2 * count + 1)]
            program.send_signal(signal.SIGINT)
            assert program.wait(30) == 130
        if form == ("--json",):
            assert [len(json.loads(line)) for line in looks] == [3] * 3
        else:
            assert looks[:4] == ["s1\n", "s2\n", "s10\n", "\n"]
        assert "\x1b" not in "".join(looks)


def test_a_first_look_that_fails_is_the_commands_error(service: FakeService, run: Run) -> None:
    code, out, err = run("slot show nothing -w")
    assert (code, out) == (1, "")
    assert "code: unknown_slot" in err


def test_whoever_sits_at_a_terminal_is_asked(service: FakeService) -> None:
    for answer, code in ((b"n\n", 1), (b"\n", 1), (b"y\n", 0)):
        assert "s1" in service.engine.slots
        terminal = Terminal("-m", "spillway.cli", "slot", "drop", "s1", columns=80)
        terminal.read_until("[y/N]")
        terminal.type(answer)
        assert terminal.close() == code, terminal.output
        assert ("Nothing was done." in terminal.output) == bool(code)
    assert service.engine.slots == {}


def test_nobody_is_asked_with_yes_or_without_a_terminal(service: FakeService, run: Run) -> None:
    assert at_a_terminal("-m", "spillway.cli", "slot", "drop", "s1", "--yes", columns=80) == ""
    service.engine.add_slot("s2")
    assert run("slot drop s2")[0] == 0
    assert service.engine.slots == {}


def test_a_log_goes_on_where_it_ended() -> None:
    assert news(["a", "b"], ["a", "b", "c"]) == ["c"]
    assert news(["a", "b", "c"], ["b", "c", "d"]) == ["d"]
    assert news(["a", "a"], ["a", "a"]) == []
    assert news([], ["a"]) == ["a"]
    assert news(["a", "b"], ["x", "y"]) == ["x", "y"]


def test_a_log_is_followed(service: FakeService, run: Run) -> None:
    run("subscription create a --source shop --database shop --lake /srv/l --disabled")
    service.subscriptions.logs["a"] = ["one", "two", "three"]
    assert run("subscription log a -n 2")[1] == "two\nthree\n"
    with subprocess.Popen(
        [sys.executable, "-m", "spillway.cli", "subscription", "log", "a", "-n", "1", "-f"],
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "three\n"
        service.subscriptions.logs["a"] += ["four"]
        assert program.stdout.readline() == "four\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
