"""Where the tests' browser comes from, and axe-core, which looks for what people with disabilities
would stumble over.

Any Chromium does: ``SPILLWAY_CHROMIUM`` names one, or one is found on the path. Otherwise the npm
package ``@sparticuz/chromium`` is downloaded once, at exactly the version below, checked against
its sha512 sum, and unpacked to ``<cache>/chromium``: a headless Chromium with the few libraries
that a bare system lacks, so that nobody needs to be root for it. Playwright's own browsers are not
used.

    python -m harness.browser      # installs them now
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.npm import Pin, brotli_decompressed, unpack
from harness.servers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserType, Page

CHROMIUM = Pin(
    "@sparticuz/chromium",
    "153.0.0",
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
AXE = Pin(
    "axe-core",
    "4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def chromium() -> Path:
    """Where the browser is; installs it when there is none."""
    if named := os.environ.get("SPILLWAY_CHROMIUM"):
        return Path(named)
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found)
    home = cache_directory() / "chromium" / CHROMIUM.version
    if not (home / "chromium").exists():
        _install(home)
    return home / "chromium"


def axe_script() -> str:
    """The text of axe-core."""
    home = cache_directory() / "axe-core" / AXE.version
    if not home.exists():
        _put(home, lambda scratch: unpack(AXE, scratch))
    return (home / "axe.min.js").read_text()


@contextmanager
def browser() -> Iterator[Browser]:
    """Run the browser within this context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, launched(playwright.chromium) as running:
        yield running


@contextmanager
def launched(chromium_type: BrowserType, **environment: str) -> Iterator[Browser]:
    """Run a browser with *environment* over the tests' own; another one's type does, for Playwright
    is started once only.
    """
    executable = chromium()
    running = chromium_type.launch(
        executable_path=executable,
        args=list(_ARGUMENTS),
        env={**_environment(executable), **environment},
    )
    try:
        yield running
    finally:
        running.close()


def _environment(executable: Path) -> dict[str, str | float | bool]:
    environment: dict[str, str | float | bool] = dict(os.environ)
    libraries = executable.parent / "lib"
    if libraries.is_dir():
        # Only for what the system lacks: the system's own come first.
        paths = [*_library_paths(executable), str(libraries)]
        environment["LD_LIBRARY_PATH"] = ":".join(paths)
        if not shutil.which("fc-list"):
            environment["FONTCONFIG_PATH"] = str(executable.parent / "fonts")
    return environment


def _library_paths(executable: Path) -> list[str]:
    """Say where the system keeps the libraries that it has of those the browser needs."""
    listed = subprocess.run(
        ["ldd", executable], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = [line.split("=> ", 1)[1].split(" ")[0] for line in listed if "=> /" in line]
    return list(dict.fromkeys(str(Path(path).parent) for path in found))


def _install(home: Path) -> None:
    print(f"installing Chromium {CHROMIUM.version} into {home}", file=sys.stderr)

    def fill(scratch: Path) -> Path:
        package = unpack(CHROMIUM, scratch)
        made = scratch / "made"
        made.mkdir()
        archives = package / "bin"
        (made / "chromium").write_bytes(brotli_decompressed(archives / "chromium.br"))
        (made / "chromium").chmod(0o755)
        for name in ("al2023.tar.br", "fonts.tar.br"):
            with tarfile.open(fileobj=io.BytesIO(brotli_decompressed(archives / name))) as archive:
                # Exactly what was pinned; Python before 3.11.4 has no filters.
                options: dict[str, Any] = (
                    {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                )
                archive.extractall(made, **options)
        shutil.copy(package / "LICENSE", made / "LICENSE")
        return made

    _put(home, fill)


def _put(home: Path, fill: object) -> None:
    """Make *home* of what *fill* makes in a scratch directory; another run may be faster."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as directory:
        made = fill(Path(directory))  # type: ignore[operator]
        try:
            made.rename(home)
        except OSError:
            if not home.exists():
                raise


if __name__ == "__main__":
    print(chromium())
    axe_script()


def check_axe(page: Page, where: str) -> None:
    """Assert that axe finds nothing on a page as it is."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(axe_script())
    result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    found = [
        (
            f"{violation['id']}: {violation['help']}: {node['html'][:200]} "
            f"{node['any'][0]['message'] if node['any'] else ''}"
        )
        for violation in result["violations"]
        for node in violation["nodes"]
    ]
    assert not found, f"{where}: " + "\n".join(found)
