"""Write docs/reference/errors.md from spillway.errors; a test fails when the page is behind.

python scripts/write_error_reference.py
"""

from __future__ import annotations

import inspect
from pathlib import Path

from spillway import errors

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "errors.md"

INTRODUCTION = """\
# Errors

Every error that Spillway raises on purpose has a stable `code`. REST shows it in an RFC 9457 problem document together with a `hint` that
says what to do, gRPC in the error's details, the commands on stderr. The code maps once to an HTTP status, a gRPC status and a
SQLSTATE. Codes keep their meaning; new ones may be added below an existing parent, so handle the parents.

This page is written from `services/spillway/errors.py` by `scripts/write_error_reference.py`.

| code | parent | HTTP | gRPC | SQLSTATE | meaning |
|---|---|---|---|---|---|
"""


def rows() -> list[str]:
    """Return a row for each error, parents before children."""
    found: list[str] = []

    def visit(cls: type[errors.SpillwayError], parent: str) -> None:
        meaning = (
            (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        )
        if cls is errors.SpillwayError:
            meaning = "An error that is Spillway's own fault."
        found.append(
            f"| `{cls.code}` | {parent} | {cls.http_status} | {cls.grpc_status} | {cls.sqlstate} | {meaning} |"
        )
        for subclass in cls.__subclasses__():
            if subclass.__module__ == errors.__name__:
                visit(subclass, f"`{cls.code}`")

    visit(errors.SpillwayError, "")
    return found


def page() -> str:
    """Return the whole page."""
    return INTRODUCTION + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
