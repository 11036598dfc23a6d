"""docs/how-to/use-tls.md, followed: its commands make certificates that the service and its
commands take.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

from harness.serve_process import ServeProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "use-tls.md"


def test_the_page_is_followed(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exported: dict[str, str] = {}
    for block in blocks:
        if "openssl" in block:
            subprocess.run(["bash", "-ec", block], cwd=tmp_path, check=True, capture_output=True)
        for name, value in re.findall(r"(SPILLWAY_\w+)=(\S+)", block):
            exported[name] = value.replace("$PWD", str(tmp_path))
    asking = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    asking.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    server = {name: exported[name] for name in ("SPILLWAY_TLS_CERT", "SPILLWAY_TLS_KEY")}
    serve = ServeProcess(
        tmp_path / "data",
        environment={**server, "SPILLWAY_TLS_CLIENT_CA": str(tmp_path / "ca.pem")},
        tls=asking,
    )
    try:
        client = {
            "SPILLWAY_TLS_CA": exported["SPILLWAY_TLS_CA"],
            "SPILLWAY_URL": exported["SPILLWAY_URL"].replace("8080", str(serve.http_port)),
            "SPILLWAY_GRPC": exported["SPILLWAY_GRPC"].replace("50051", str(serve.grpc_port)),
            "SPILLWAY_TLS_CLIENT_CERT": str(tmp_path / "client.pem"),
            "SPILLWAY_TLS_CLIENT_KEY": str(tmp_path / "client.key"),
        }
        listed = _command("slot", "list", **client)
        assert listed.returncode == 0, listed.stderr
        received = _command("recv", "--slot", "none", "--no-loop", **client)
        assert "unknown_slot" in received.stderr
    finally:
        serve.stop()


def _command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spillway.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
