"""What a form sent, and the answer when it was done."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from spillway.errors import InvalidRequest
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from starlette.requests import Request

    from spillway.watch.sampler import View


class Form:
    """The fields of a request's form, which the door has read."""

    def __init__(self, request: Request) -> None:
        self._fields: dict[str, list[str]] = request.state.form

    def text(self, name: str) -> str:
        """Give a field without the space around it; empty when it was not sent."""
        return self.secret(name).strip()

    def secret(self, name: str) -> str:
        """Give a field as it is."""
        return self._fields.get(name, [""])[0]

    def texts(self, name: str) -> list[str]:
        """Give a field that may come several times."""
        return self._fields.get(name, [])

    def lines(self, name: str) -> list[str]:
        """Give the lines of a field that have something on them."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]

    def flag(self, name: str) -> bool:
        """Say whether a box was ticked."""
        return name in self._fields

    def lsn(self, name: str) -> Lsn | None:
        """Give a position; None when none was written.

        Raises:
            InvalidLsn: it can't be read.
        """
        text = self.text(name)
        return Lsn.parse(text) if text else None

    def needed_lsn(self, name: str) -> Lsn:
        """Give a position that must be there."""
        lsn = self.lsn(name)
        if lsn is None:
            raise InvalidRequest(
                "A position is missing.", hint="An LSN such as 0/16B3748; the page shows some."
            )
        return lsn

    def options(self, name: str) -> dict[str, str]:
        """Read lines of ``option = value``.

        Raises:
            InvalidRequest: a line is none.
        """
        return self._lines(name, "the options", "Write one option a line: name = value.")

    def job_options(self, name: str) -> dict[str, str | float]:
        """Read lines of ``option = value``; what is a number is one.

        Raises:
            InvalidRequest: a line is none.
        """
        lines = self._lines(name, "the job's options", "Write one option a line: name = value.")
        return {option: _number(value) for option, value in lines.items()}

    def json_options(self, name: str) -> dict[str, Any]:
        """Read lines of ``option = value``; a value is JSON, or a text.

        Raises:
            InvalidRequest: a line is none.
        """
        lines = self._lines(name, "the options", "Write one option a line: name = value.")
        found: dict[str, Any] = {}
        for option, value in lines.items():
            try:
                found[option] = json.loads(value)
            except ValueError:
                found[option] = value
        return found

    def columns_by_table(self, name: str, what: str) -> dict[str, list[str]]:
        """Read lines of ``schema.table = column, column``.

        Raises:
            InvalidRequest: a line is none.
        """
        lines = self._lines(name, what, "Write one table a line: schema.table = column, column.")
        return {
            table: [column.strip() for column in columns.split(",") if column.strip()]
            for table, columns in lines.items()
        }

    def tables(self, name: str) -> list[str]:
        """Read lines of a table each."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]

    def settings(self, name: str, what: str) -> dict[str, str]:
        """Read lines of ``name = value``.

        Raises:
            InvalidRequest: a line is none.
        """
        return self._lines(name, what, "Write one setting a line: name = value.")

    def _lines(self, name: str, what: str, hint: str) -> dict[str, str]:
        found = {}
        for number, line in enumerate(self.text(name).splitlines(), 1):
            if not line.strip():
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise InvalidRequest(
                    f"Line {number} of {what} can't be read: {line.strip()!r}", hint=hint
                )
            found[key.strip()] = value.strip()
        return found


def _number(text: str) -> str | float:
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"[0-9]+\.[0-9]+", text) else text


def confirm_name(form: Form, name: str) -> None:
    """Insist that whoever destroys something has typed its name.

    Raises:
        InvalidRequest: it is another name.
    """
    if form.text("confirm") != name:
        raise InvalidRequest(
            "The name does not match; nothing was done.", hint=f"Type {name} to go on."
        )


def databases_of(view: View, source: str) -> dict[str, Any]:
    """Give what a form offers for the database of *source*: those that are decoded, and the first
    of them as chosen.
    """
    found = view.source(source)
    sessions = found.info.sessions if found else ()
    return {"sessions": sessions, "database": sessions[0].database if sessions else ""}


def moment_of(text: str) -> datetime | None:
    """Read a time; without a zone it is in UTC. None when none was written.

    Raises:
        InvalidRequest: it is none.
    """
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no time.", hint="Write 2026-11-22 10:00, in UTC."
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def typed_time(text: str) -> str:
    """Write a time as a field of type datetime-local has it, in UTC; empty where it is none.

    The browser shows it in the reader's zone, and tells what was typed in UTC.
    """
    try:
        found = moment_of(text)
    except InvalidRequest:
        return ""
    return f"{found.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" if found is not None else ""


def done(request: Request, target: str) -> Response:
    """Lead on to *target*, however the form was sent."""
    if request.headers.get("hx-request"):
        return Response(status_code=204, headers={"HX-Redirect": target})
    return RedirectResponse(target, status_code=303)
