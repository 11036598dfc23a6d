"""pgoutput on both sides: one workload, PostgreSQL's slot and ours, every message compared."""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import errors

from harness.oracle import OracleChange, create_slot
from harness.scenario_run import run_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.cluster import Database
    from harness.oracle import LogicalSlot
    from harness.service import Service


class Messages(NamedTuple):
    """What came of a peek: messages, or an error in PostgreSQL's words."""

    messages: list[OracleChange]
    error: str | None


class Pair(NamedTuple):
    """A server and the service that follows it."""

    major: int
    database: Database
    service: Service

    @contextmanager
    def slots(self, **more: object) -> Iterator[Slots]:
        """Make a slot on both sides, and drop them afterwards."""
        name = f"s_{secrets.token_hex(4)}"
        oracle = create_slot(self.database, name, "pgoutput", two_phase=bool(more.get("two_phase")))
        try:
            self.service.create_slot(name, self.database.name, "pgoutput", **more)
            yield Slots(self, name, oracle)
        finally:
            oracle.drop()
            self.service.http.delete(f"/v1/slots/{name}")


class Slots(NamedTuple):
    """Slots of one name, on the server and here."""

    pair: Pair
    name: str
    oracle: LogicalSlot

    def compare(self, *choices: Mapping[str, str]) -> list[Messages]:
        """Peek with each of *choices* of options; insist that both sides send the same, errors
        too.
        """
        end = self.pair.service.wait_decoded(self.name, self.pair.database)
        results = []
        for options in choices:
            theirs, ours = self._theirs(options, end), self._ours(options, end)
            pairs = zip(ours.messages, theirs.messages, strict=False)
            for i, (mine, expected) in enumerate(pairs):
                assert mine == expected, f"message {i} of {len(theirs.messages)}, {options}"
            assert len(ours.messages) == len(theirs.messages), f"{options}"
            assert ours.error == theirs.error, f"{options}"
            results.append(theirs)
        return results

    def compare_unlike(self, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Messages:
        """Peek with other options here than on the server; insist that both send the same."""
        end = self.pair.service.wait_decoded(self.name, self.pair.database)
        expected = self._theirs(theirs, end)
        assert self._ours(ours, end) == expected, f"{ours}, {theirs}"
        return expected

    def _theirs(self, options: Mapping[str, str], end: str) -> Messages:
        try:
            return Messages(self.oracle.peek_binary(options, upto_lsn=end), None)
        except psycopg.Error as error:
            return Messages([], error.diag.message_primary)

    def _ours(self, options: Mapping[str, str], end: str) -> Messages:
        params = {f"options.{k}": v for k, v in options.items()} | {"upto_lsn": end}
        response = self.pair.service.http.get(f"/v1/slots/{self.name}/peek", params=params)
        answer = response.json()
        if response.is_error:
            assert answer["code"] != "internal_error", answer
            return Messages([], answer["detail"])
        return Messages(
            [OracleChange(c["lsn"], c["xid"], c["data"]) for c in answer["changes"]], None
        )


def run(database: Database, steps: Sequence[str]) -> None:
    """Run SQL statement by statement; ``2> …`` in a second session.

    What publications forbid (UPDATE and DELETE without a replica identity that they can publish) is
    passed over.
    """
    with database.connect() as first, database.connect() as second:
        for step in steps:
            with suppress(errors.ObjectNotInPrerequisiteState, errors.InvalidColumnReference):
                run_step(second if step.startswith("2> ") else first, step)
