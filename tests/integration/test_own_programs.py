"""How programs that the service starts reach it when it has a certificate."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.certificates import Authority
from spillway.consumer.grpc_slot import GrpcSlotClient
from spillway.errors import Unauthenticated, UnknownSlot
from spillway.serve import ServeSettings, running
from spillway.subscriber.subscriptions import Subscriptions
from spillway.tls import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("depth", ["data", "d" * 90])
async def test_they_need_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: str
) -> None:
    given: list[Any] = []
    start = Subscriptions.start

    async def started(self: Subscriptions, *arguments: Any) -> None:
        given.extend(arguments)
        await start(self, *arguments)

    monkeypatch.setattr(Subscriptions, "start", started)
    ca = Authority(tmp_path, "ca")
    # Expired, and clients must show one of their own: neither is theirs to care about.
    pair = ca.sign("server", days=-1)
    settings = ServeSettings(
        tmp_path / depth,
        http_port=0,
        grpc_port=0,
        token="t",
        tls=TlsFiles(pair.certificate, pair.key, client_ca=ca.file),
    )
    async with running(settings):
        address, token = given[:2]
        path = Path(address.removeprefix("unix:"))
        assert stat.S_ISSOCK(path.stat().st_mode)  # noqa: ASYNC240 - nothing else runs
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(UnknownSlot):
            await _in_thread(lambda: GrpcSlotClient(address, token).position("none"))
        with pytest.raises(Unauthenticated):
            await _in_thread(lambda: GrpcSlotClient(address, "wrong").position("none"))
    assert not path.parent.exists()


async def _in_thread(call: Callable[[], object]) -> object:
    return await asyncio.to_thread(call)
