"""``spillway recv`` as a process, against gRPC over the engine in memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.fake_engine import FIRST_LSN
from spillway.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.fake_service import FakeService


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "spillway.cli", "recv", "--slot", "s1", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_until_a_position(service: FakeService, tmp_path: Path) -> None:
    first = service.engine.commit("shop", "BEGIN", "ü", "COMMIT")
    second = service.engine.commit("shop", "more")
    file = tmp_path / "out"
    assert main(["recv", "-S", "s1", "-f", str(file), "--endpos", str(second.final_lsn)]) == 0
    assert file.read_text() == "BEGIN\nü\nCOMMIT\n"
    confirmed = service.engine.slots["s1"].confirmed_flush_lsn
    assert confirmed is not None
    assert confirmed >= first.end_lsn
    assert main(["recv", "-S", "s1", "-f", str(file), "--endpos", str(second.end_lsn)]) == 0
    assert file.read_text() == "BEGIN\nü\nCOMMIT\nmore\n", "appended, and nothing twice"
    until(lambda: not service.engine.slots["s1"].active)


def test_to_standard_output(
    service: FakeService, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    end = service.engine.commit("shop", "a", "b").end_lsn
    process = start("--end-lsn", str(end), "-o", "include-xids=0")
    assert process.communicate(timeout=30) == (b"a\nb\n", b"")
    assert process.returncode == 0
    assert service.engine.options_seen[-1] == {"include-xids": "0"}
    assert service.engine.slots["s1"].confirmed_flush_lsn == end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(
    service: FakeService,
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    file = tmp_path / "out"
    process = start("-f", str(file), "--status-interval", "3600", "--fsync-interval", "3600")
    until(lambda: service.engine.slots["s1"].active)
    end = service.engine.commit("shop", "a").end_lsn
    until(lambda: file.exists() and file.read_bytes() == b"a\n")
    assert service.engine.slots["s1"].confirmed_flush_lsn == FIRST_LSN
    process.send_signal(number)
    assert process.wait(10) == 0
    assert service.engine.slots["s1"].confirmed_flush_lsn == end, "confirmed at the end"
    until(lambda: not service.engine.slots["s1"].active)


def test_intervals(
    service: FakeService, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    file = tmp_path / "out"
    start("-f", str(file), "--status-interval", "0", "--fsync-interval", "0")
    until(lambda: service.engine.slots["s1"].active)
    end = service.engine.commit("shop", "a").end_lsn
    until(lambda: service.engine.slots["s1"].confirmed_flush_lsn == end)
    assert file.read_bytes() == b"a\n"


def test_a_lost_connection(
    service: FakeService, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    file = tmp_path / "out"
    process = start("-f", str(file))
    until(lambda: service.engine.slots["s1"].active)
    service.engine.commit("shop", "a")
    until(lambda: file.read_bytes() == b"a\n")
    service.stop_grpc()
    service.engine.commit("shop", "b")
    time.sleep(0.3)
    service.start_grpc()
    until(lambda: file.read_bytes() == b"a\nb\n")
    process.terminate()
    assert process.wait(10) == 0
    assert b"trying again in" in process.communicate()[1]


def test_killed_and_run_again(
    service: FakeService, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    file = tmp_path / "out"
    process = start("-f", str(file), "--status-interval", "3600")
    until(lambda: service.engine.slots["s1"].active)
    end = service.engine.commit("shop", "a").end_lsn
    until(lambda: file.exists() and file.read_bytes() == b"a\n")
    process.kill()
    until(lambda: not service.engine.slots["s1"].active)
    assert main(["recv", "-S", "s1", "-f", str(file), "--endpos", str(end)]) == 0
    assert file.read_bytes() == b"a\na\n", "what was not confirmed comes again"


def test_refusals(
    service: FakeService, capsys: pytest.CaptureFixture[str], unused_tcp_port: int, tmp_path: Path
) -> None:
    def error(*arguments: str) -> str:
        assert main(["recv", *arguments]) == 1
        return capsys.readouterr().err

    assert "code: unknown_slot" in error("-S", "none")
    assert "code: invalid_option" in error("-S", "s1", "-o", "nonsense=1")
    assert "code: invalid_lsn" in error("-S", "s1", "-E", "nonsense")
    assert "code: storage_error" in error("-S", "s1", "-f", str(tmp_path / "absent" / "out"))
    assert "code: not_ready" in error("-S", "s1", "-n", "--grpc", f"127.0.0.1:{unused_tcp_port}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.engine.commit("shop", "a")
    assert main(["recv", "-S", "s1", "-f", "/dev/full"]) == 1
    assert "code: storage_error" in capsys.readouterr().err
    assert service.engine.slots["s1"].confirmed_flush_lsn == FIRST_LSN


def test_a_reader_that_goes_away(
    service: FakeService, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = start()
    until(lambda: service.engine.slots["s1"].active)
    assert process.stdout is not None
    process.stdout.close()
    service.engine.commit("shop", "a")
    assert process.wait(10) != 0
    until(lambda: not service.engine.slots["s1"].active)
