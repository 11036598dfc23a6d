"""Clients of the change stream that read one message and no more, in a process of their own, so
that what they hold is not the service's.

:class:`StalledClients` starts ``python -m harness.stalled_client ADDRESS`` and tells it by lines on
its standard input what to open.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator


class StalledClients:
    """The process."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.stalled_client", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def open(self, slot: str, batch_bytes: int) -> int:
        """Open a peeking stream; return the bytes of the message that its client has read."""
        return int(self._ask(f"{slot} {batch_bytes}"))

    def end(self) -> None:
        """End all streams."""
        assert self._ask("end") == "ended"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()


def _requests(slot: str, batch_bytes: int, over: threading.Event) -> Iterator[Any]:
    start = change_stream_pb2.Start(slot_name=slot, batch_bytes=batch_bytes, peek=True)
    yield change_stream_pb2.StreamRequest(start=start)
    # Whoever ends its requests has closed its side.
    over.wait()


def _main(address: str) -> None:
    channels: list[grpc.Channel] = []
    # A call that nobody refers to is cancelled.
    calls: list[Any] = []
    over = threading.Event()
    for line in sys.stdin:
        if line == "end\n":
            for channel in channels:
                channel.close()
            channels.clear()
            calls.clear()
            over.set()
            over = threading.Event()
            print("ended", flush=True)
            continue
        slot, batch_bytes = line.split()
        channel = grpc.insecure_channel(
            address,
            [
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", -1),
                # On a machine that is busy it finds that a hundred MB are under way at a time, and
                # takes as much, though nobody reads.
                ("grpc.http2.bdp_probe", 0),
            ],
        )
        channels.append(channel)
        call = channel.stream_stream(
            "/spillway.v1.ChangeStream/Stream",
            change_stream_pb2.StreamRequest.SerializeToString,
            len,
        )
        calls.append(call(_requests(slot, int(batch_bytes), over)))
        print(next(calls[-1]), flush=True)
    over.set()


if __name__ == "__main__":
    _main(sys.argv[1])
