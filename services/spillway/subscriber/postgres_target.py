"""The target kind ``postgres``: tables of another PostgreSQL, filled by ``spillway apply run``.

The program takes pgoutput, so publications may do all that PostgreSQL lets them: row filters,
column lists, operations that are left out. By table names, or for all tables, the service publishes
every captured table, and the program leaves out what was not asked for.

The DSN's password is stored, as a source's is; it is handed to programs in their environment, and
masked wherever a target is shown. A target that comes back as it was shown keeps it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spillway.declarations.postgres_options import POSTGRES_OPTIONS, PostgresOption
from spillway.errors import (
    InvalidRequest,
    SpillwayError,
    TargetColumnsMissing,
    TargetRefused,
    TargetSchemaChange,
    TargetTableMissing,
    TargetTableUnusable,
)
from spillway.pg.conninfo import check_dsn, redact_dsn
from spillway.settings import Settings
from spillway.subscriber.targets import Program, RunPlan, TargetKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.service.model import PublicationInfo
    from spillway.subscriber.model import SubscriptionSpec

#: What a program reads of its environment; see :mod:`spillway.apply.commands`.
OPTIONS_VARIABLE: Final = "SPILLWAY_APPLY_OPTIONS"
SOURCE_VARIABLE: Final = "SPILLWAY_APPLY_SOURCE_DSN"
_TEXT_MAX: Final = 4096
_ABOUT_CHANGES: Final = (
    TargetRefused,
    TargetTableMissing,
    TargetColumnsMissing,
    TargetTableUnusable,
)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(text, str) and 0 < len(text) <= _TEXT_MAX
        for item in value.items()
        for text in item
    )


#: Says of a value what it must be; "" if it is that.
_CHECKS: Final[Mapping[str, Callable[[Any, PostgresOption], str]]] = {
    "choice": lambda value, option: (
        "" if value in option.choices else f"one of {', '.join(option.choices)}"
    ),
    "flag": lambda value, _: "" if isinstance(value, bool) else "true or false",
    "whole number": lambda value, option: (
        ""
        if isinstance(value, int)
        and not isinstance(value, bool)
        and option.least <= value <= option.most
        else f"a whole number, {option.least} to {option.most}"
    ),
    "texts": lambda value, _: "" if _is_texts(value) else "an object of texts",
    "object": lambda value, _: "" if isinstance(value, dict) else "an object",
}


class PostgresTarget(TargetKind):
    """See the module."""

    plugin: ClassVar[str] = "pgoutput"
    turns_two_phase_on: ClassVar[bool] = True
    #: sequences
    refreshes_more: ClassVar[bool] = True
    reads_by_publications: ClassVar[bool] = True
    forgets: ClassVar[bool] = True
    shares_places: ClassVar[bool] = True

    def check(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target without what is null."""
        given = {name: value for name, value in target.items() if value is not None}
        options = {option.name: option for option in POSTGRES_OPTIONS}
        for name, value in given.items():
            if name in ("kind", "dsn"):
                continue
            option = options.get(name)
            if option is None:
                raise InvalidRequest(
                    f'a target of kind postgres has no field "{name}"',
                    hint=f"It has dsn, {', '.join(options)}.",
                    field=f"target.{name}",
                )
            if wanted := _CHECKS[option.kind](value, option):
                raise InvalidRequest(
                    f"the target's {name} is {value!r}, and must be {wanted}",
                    hint="See the how-to on applying into PostgreSQL.",
                    field=f"target.{name}",
                )
        dsn = given.get("dsn")
        if not isinstance(dsn, str) or not dsn:
            raise InvalidRequest(
                "the target has no dsn",
                hint="Give it the connection string of the database that is to be filled.",
                field="target.dsn",
            )
        check_dsn(dsn, Settings.from_environment().dsn_files)
        _check_rename(given.get("rename", {}))
        return given

    def check_subscription(self, spec: SubscriptionSpec, *, only_local: bool) -> None:
        """Take whatever may be declared. What ``streaming: on`` asks for, that a large transaction
        is kept beside the source until it is committed, the service does for every subscription.
        """

    def check_without_copy(self, target: Mapping[str, Any]) -> None:
        """Refuse to set tables aside: only a copy brings one back."""
        if target.get("table_errors") == "set_aside":
            raise InvalidRequest(
                "table_errors=set_aside is for subscriptions with copy_data: a table that was set "
                "aside comes back by a copy",
                hint="Leave it out, and have rows that the target refuses set aside with "
                "dead_letter=true. Or create the subscription with a first copy.",
                field="target.table_errors",
            )

    def check_publication(self, publication: PublicationInfo) -> None:
        """Take whatever is published."""

    def place(self, target: Mapping[str, Any]) -> object:
        """Return the same for all: several may fill one database, and one that is reached in
        another way is the same. Whether it is, the program sees by what the subscription left
        there.
        """
        del target
        return "postgres"

    def fixed(self, target: Mapping[str, Any]) -> Mapping[str, object]:
        """Return the names of tables: rows are under the old ones."""
        return {"rename": target.get("rename")}

    def shown(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target with its password masked."""
        return {**target, "dsn": redact_dsn(str(target["dsn"]))}

    def with_secrets(
        self, target: Mapping[str, Any], before: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return *target* with the DSN that it had, if that comes as it was shown."""
        if target.get("dsn") in (None, redact_dsn(str(before["dsn"]))):
            return {**target, "dsn": before["dsn"]}
        return target

    def disables(self, target: Mapping[str, Any], error: SpillwayError) -> bool:
        """Say yes where it was asked for and waiting mends nothing: what is about a change, or a
        table. And for a change of a table's definition, which is a pause.
        """
        if isinstance(error, TargetSchemaChange):
            return True
        return bool(target.get("disable_on_error")) and isinstance(error, _ABOUT_CHANGES)

    def program(self, plan: RunPlan) -> Program:
        """Return the program that applies."""
        return _program("run", plan, f"--status-file={plan.status_file}")

    def check_program(self, plan: RunPlan) -> Program:
        """Return what looks whether the target can be filled."""
        return _program("check", plan)

    def drop_program(self, plan: RunPlan) -> Program:
        """Return what removes what the subscription keeps on the target."""
        return _program("forget", plan)

    def left_program(self, plan: RunPlan) -> Program:
        """Return what prints the SQL of the same."""
        return _program("forget", plan, "--show")


def identity(plan: RunPlan) -> str:
    """Return what tells a subscription from any other that has, or had, its name."""
    text = f"{plan.source}/{plan.database}/{plan.subscription}/{plan.created_us}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _program(command: str, plan: RunPlan, *more: str) -> Program:
    words = [
        sys.executable, "-m", "spillway.cli", "apply", command,
        f"--subscription={plan.subscription}", f"--identity={identity(plan)}",
        f"--slot={plan.slot}", f"--grpc={plan.grpc}", *more,
    ]  # fmt: skip
    if plan.publications is not None:
        words += [f"--publication={name}" for name in plan.publications]
    else:
        words += [f"--table={name}" for name in plan.tables or ()]
    if plan.two_phase:
        words.append("--two-phase")
    if plan.streaming == "parallel":
        words.append("--streaming")
    if plan.origin == "none":
        words.append("--only-local")
    if plan.skip_lsn is not None:
        words.append(f"--skip-to={plan.skip_lsn}")
    if not plan.copies:
        words.append("--no-copy-data")
    if plan.has_begun:
        words.append("--has-begun")
    if plan.refreshes:
        words.append("--refresh")
    words += [f"--forget={name}" for name in sorted(plan.forgets)]
    options = {name: value for name, value in plan.target.items() if name != "kind"}
    return Program(tuple(words), {OPTIONS_VARIABLE: json.dumps(options), SOURCE_VARIABLE: plan.dsn})


def _check_rename(rename: Mapping[str, str]) -> None:
    for name, to in rename.items():
        if ("." in name) != ("." in to) or name.startswith(".") or to.startswith("."):
            raise InvalidRequest(
                f"the target's rename has {name!r}: {to!r}",
                hint='Write "schema": "schema", or "schema.table": "schema.table".',
                field="target.rename",
            )
