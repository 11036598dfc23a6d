"""A real server of Azure's blobs on loopback: Azurite, in a process of its own, in memory.

Its packages of npm's registry, whose versions and hashes ``azurite/package-lock.json`` pins, are
brought once into ``.cache/azurite``; nothing of them is run for that. What Node does not read there
(types, maps, forms of modules for others) is two thirds of them, and removed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.npm import node, npm
from harness.servers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTAINER: Final = "lakes"
ACCOUNT: Final = "company"
KEY: Final = base64.b64encode(b"not a secret, but long enough for a key").decode()

_PINS: Final = Path(__file__).parent / "azurite"
_UNREAD_FILES: Final = (".map", ".ts", ".mts", ".cts")
_UNREAD_FOLDERS: Final = (
    "build/esm", "build/esnext", "dist/esm", "dist/browser", "dist/react-native",
)  # fmt: skip
_API_VERSION: Final = "2021-08-06"


@contextmanager
def azure_store() -> Iterator[dict[str, str]]:
    """Run a store with the container :data:`CONTAINER`; yield the environment that leads to it."""
    program = _packages() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [
                *node(), str(program), "--blobHost", "127.0.0.1", "--blobPort", "0",
                "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry",
            ],
            cwd=folder,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            told = (re.search(r"listens on (http://\S+)", line) for line in process.stdout)
            address = next((found[1] for found in told if found), None)
            assert address is not None, "Azurite ended"
            endpoint = f"{address}/{ACCOUNT}"
            _create_container(endpoint)
            yield {
                "AZURE_STORAGE_ENDPOINT": endpoint,
                "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            }
        finally:
            process.kill()


def _create_container(endpoint: str) -> None:
    now = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} GMT"
    headers = {"x-ms-date": now, "x-ms-version": _API_VERSION}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = "PUT" + "\n" * 12 + named + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(
        f"{endpoint}/{CONTAINER}?restype=container", method="PUT", headers=headers
    )
    with urllib.request.urlopen(request):
        pass


def _packages() -> Path:
    """Return the folder of the packages; brings them when they are not there yet."""
    pins = (_PINS / "package-lock.json").read_bytes()
    home = cache_directory() / "azurite" / hashlib.sha256(pins).hexdigest()[:16]
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        folder = Path(scratch) / "packages"
        shutil.copytree(_PINS, folder)
        subprocess.run(
            [*npm(), "ci", "--ignore-scripts", "--no-fund", "--no-audit", "--silent",
             "--cache", str(Path(scratch) / "npm")],
            check=True, cwd=folder, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        for path in [*folder.rglob("*")]:
            if path.is_dir() and path.as_posix().endswith(_UNREAD_FOLDERS):
                shutil.rmtree(path)
            elif path.suffix in _UNREAD_FILES:
                path.unlink(missing_ok=True)
        try:
            folder.rename(home)
        except OSError:  # another run was faster
            if not home.exists():
                raise
    return home
