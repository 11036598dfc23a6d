"""The provider and a service with a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.certificates import Authority
from harness.service import service_in_process
from harness.terraform_core import Core, Refused
from spillway.tls import TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

SLOT = "spillway_slot"
TOKEN = "a token"


def _told(plugin: Core, **config: Any) -> tuple[str, str]:
    plugin.configure(token=TOKEN, **config)
    with pytest.raises(Refused) as refused:
        plugin.data(SLOT, slot_name="none")
    return refused.value.only.summary, refused.value.only.detail


def test_the_service_is_verified(plugin: Core, tmp_path: Path) -> None:
    ca, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    pair, client = ca.sign("server", ["localhost"]), ca.sign("client")
    files = TlsFiles(pair.certificate, pair.key, client_ca=ca.file)
    with service_in_process(tmp_path / "data", token=TOKEN, tls=files) as service:
        endpoint = f"https://localhost:{service.http_port}"
        shown = {
            "client_certificate_file": str(client.certificate),
            "client_key_file": str(client.key),
        }
        summary, _ = _told(plugin, endpoint=endpoint, ca_file=str(ca.file), **shown)
        assert "unknown_slot" in summary
        # Trusting another CA is told at once, and not tried for a minute.
        summary, detail = _told(plugin, endpoint=endpoint, ca_file=str(other.file), **shown)
        assert "tls_failed" in summary
        assert "ca_file" in detail
        by_address = f"https://127.0.0.1:{service.http_port}"
        summary, detail = _told(plugin, endpoint=by_address, ca_file=str(ca.file), **shown)
        assert "tls_failed" in summary
        assert "server_name" in detail
        summary, _ = _told(
            plugin, endpoint=by_address, ca_file=str(ca.file), server_name="localhost", **shown
        )
        assert "unknown_slot" in summary
        with pytest.raises(Refused) as refused:
            plugin.configure(endpoint=endpoint, ca_file=str(tmp_path / "none.pem"), token=TOKEN)
        assert "Unusable certificate" in refused.value.only.summary
