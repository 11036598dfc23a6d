"""terraform/docs says what the schemas say, and the lock names nobody's own registry."""

from __future__ import annotations

import re
import subprocess

from harness.terraform_core import PYTHON, TERRAFORM


def test_pages_are_current() -> None:
    answer = subprocess.run(
        [PYTHON, "-m", "terraform_provider_spillway.reference", "--check"],
        cwd=TERRAFORM,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr


def test_links_of_the_pages_resolve() -> None:
    pages = [TERRAFORM / "README.md", *(TERRAFORM / "docs").rglob("*.md")]
    assert len(pages) > 5
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            assert (page.parent / target).resolve().exists(), f"{page} links to {target}"


def test_the_lock_is_of_the_public_registry() -> None:
    hosts = set(re.findall(r"https?://([^/\"]+)", (TERRAFORM / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
