"""A service in a process of its own with a short lease, to be stopped as if its machine were
paused, and woken again.

It knows the kind of targets of :mod:`harness.fake_target`.

Run as a program it serves until it gets SIGTERM: ``lease_holder.py DATA_DIR METADATA_URL LEASE_S``.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator


class LeaseHolder:
    """The process and a client of it."""

    def __init__(self, data_dir: Path, metadata_url: str, lease_s: float) -> None:
        arguments = [str(data_dir), metadata_url, str(lease_s)]
        self._command = [sys.executable, "-m", "harness.lease_holder", *arguments]
        self.log_file = data_dir.with_suffix(".log")
        self._process, self.service = self._start()

    def _start(self) -> tuple[subprocess.Popen[str], Service]:
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                cwd=Path(__file__).parents[1],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        ports = process.stdout.readline().split()[:2]
        assert ports, self.log_file.read_text()
        return process, Service(int(ports[0]), int(ports[1]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> Service:
        """Kill it, and start it again."""
        self.service.http.close()
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process, self.service = self._start()
        return self.service

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.wake()
        self.service.http.close()
        self._process.terminate()
        assert self._process.wait(60) == 0, self.log_file.read_text()[-4000:]
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def lease_holder(data_dir: Path, metadata_url: str, lease_s: float) -> Iterator[LeaseHolder]:
    """Run one."""
    holder = LeaseHolder(data_dir, metadata_url, lease_s)
    try:
        yield holder
    finally:
        holder.stop()


def _main(data_dir: str, metadata_url: str, lease_s: str) -> None:
    import asyncio

    from spillway.serve import ServeSettings, running
    from spillway.service.settings import EngineSettings
    from spillway.subscriber import targets

    targets._BUILT_IN["fake"] = ("harness.fake_target", "FakeTarget")
    settings = ServeSettings(
        data_dir=Path(data_dir),
        http_port=0,
        grpc_port=0,
        metadata_url=metadata_url,
        engine=EngineSettings(lease_ttl_s=float(lease_s)),
    )

    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with running(settings) as ports:
            print(*ports, flush=True)
            await stop.wait()

    asyncio.run(serve())


if __name__ == "__main__":
    _main(*sys.argv[1:])
