"""A real S3 server in this process, on loopback: moto's. It answers conditional PUTs as AWS
does.
"""

from __future__ import annotations

import logging
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "lakes"


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Run a store with the bucket :data:`BUCKET`; yield the environment that leads to it."""
    # One line a request otherwise, and an advice not to use it in production.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    try:
        request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request):
            pass
        yield {
            "AWS_ENDPOINT_URL_S3": endpoint,
            "AWS_ACCESS_KEY_ID": "lake",
            "AWS_SECRET_ACCESS_KEY": "not a secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        # What it keeps is the process's: another one would have it, too.
        with urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b""):
            pass
        server.stop()
