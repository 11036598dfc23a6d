"""A PostgreSQL target's options: what a subscription's target of kind ``postgres`` may say.

Made from this table are REST's ``PostgresTarget``, what the service checks before a program is
started, ``spillway subscription create --target-option`` and the table in docs/reference/rest.md.
What an option does is the program's business: :class:`spillway.apply.options.ApplyOptions` has a
field of each one's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

#: What a value is: one of ``choices``; true or false; a whole number; texts by text; or an object.
Kind = Literal["choice", "flag", "whole number", "texts", "object"]


@dataclass(frozen=True, slots=True)
class PostgresOption:
    """An option."""

    name: str
    kind: Kind
    meaning: str
    #: what the program does without it
    default: Any = None
    choices: tuple[str, ...] = ()
    #: bounds of a number
    least: int = 0
    most: int = 0
    #: a good value, for those who need one to look at
    example: Any = None

    @property
    def description(self) -> str:
        """What it is, with all that is to be known of a value."""
        parts = [self.meaning]
        if self.kind == "whole number":
            parts.append(f"{self.least} to {self.most}.")
        if self.default is not None:
            shown = str(self.default).lower() if self.kind == "flag" else self.default
            parts.append(f"{shown} by default.")
        return " ".join(parts)


POSTGRES_OPTIONS: Final[tuple[PostgresOption, ...]] = (
    PostgresOption(
        "rename",
        "texts",
        "Names on the target: a schema for a schema of the source, or schema.table for one table.",
        example={"public": "shop", "public.orders": "archive.all_orders"},
    ),
    PostgresOption(
        "create_tables",
        "flag",
        "Make tables that the target lacks, from the source's definitions.",
        default=False,
    ),
    PostgresOption(
        "conflicts",
        "object",
        "What becomes of conflicts: a resolution by kind, and by table under `tables`.",
        example={
            "insert_exists": "apply_remote",
            "tables": {"public.t": {"update_missing": "skip"}},
        },
    ),
    PostgresOption(
        "conflicts_table",
        "flag",
        "Write conflicts into spillway.conflicts of the target, too.",
        default=False,
    ),
    PostgresOption(
        "dead_letter",
        "flag",
        "Set changes that the target refuses aside in spillway.dead_letter, and go on.",
        default=False,
    ),
    PostgresOption(
        "disable_on_error",
        "flag",
        "Disable the subscription when a change can't be applied, in place of trying again.",
        default=False,
    ),
    PostgresOption(
        "table_errors",
        "choice",
        "What a table does that can't be written to (it is missing on the target, or lacks a "
        "column, or refuses a row): stop: the subscription waits in front of the transaction, as "
        "PostgreSQL's own; set_aside: the others go on, and that table is copied anew once "
        "somebody has emptied it on the target. Without copy_data it is refused.",
        default="stop",
        choices=("stop", "set_aside"),
        example="set_aside",
    ),
    PostgresOption(
        "synchronous_commit",
        "choice",
        "Of the target's transactions. The slot is confirmed only behind what is flushed there, "
        "whatever it is.",
        default="off",
        choices=("off", "local", "remote_write", "on", "remote_apply"),
        example="off",
    ),
    PostgresOption(
        "connections",
        "whole number",
        "Connections that write transactions at the same time which do not touch the same keys, "
        "when there is a backlog; with more than 1 there is one more, for what has to be written "
        "alone.",
        default=2,
        least=1,
        most=16,
        example=4,
    ),
    PostgresOption(
        "commit_order",
        "choice",
        "source: transactions are committed in the source's order; relaxed: those that touch "
        "neither the same keys nor tables that foreign keys join, when they are ready.",
        default="source",
        choices=("source", "relaxed"),
        example="source",
    ),
    PostgresOption(
        "copy_connections",
        "whole number",
        "Connections to each side that the first copy uses.",
        default=2,
        least=1,
        most=32,
        example=4,
    ),
    PostgresOption(
        "group_bytes",
        "whole number",
        "Changes that one transaction of the target takes at most, in bytes; a larger transaction "
        "is written in pieces.",
        default=16 << 20,
        least=64 << 10,
        most=1 << 30,
        example=8 << 20,
    ),
    PostgresOption(
        "defer_indexes",
        "flag",
        "Drop indexes that are no constraints for a table's first copy, and make them after it. "
        "Without it: those of tables whose heap has 8 MiB and more at the source.",
    ),
    PostgresOption(
        "sync_sequences",
        "whole number",
        "Seconds after which sequences are set to the source's values again; 0: at the first copy "
        "and a refresh only.",
        default=0,
        least=0,
        most=86_400,
        example=60,
    ),
    PostgresOption(
        "retain_dead_tuples",
        "whole number",
        "Seconds for which rows that somebody else deletes on the target are kept from VACUUM, so "
        "that an update of one is told as update_deleted; 0: not at all, and it is told as "
        "update_missing. They are let go once no transaction of the source can be about them.",
        default=0,
        least=0,
        most=86_400,
        example=600,
    ),
    PostgresOption(
        "exact",
        "choice",
        "auto: transactions are grouped and written by few statements where nothing speaks against "
        "it; always: one for one and change by change, as PostgreSQL's worker.",
        default="auto",
        choices=("auto", "always"),
        example="auto",
    ),
    PostgresOption(
        "on_schema_change",
        "choice",
        "What becomes of DDL on the source's tables: apply: what loses nothing is done on the "
        "target, in the same transaction, and anything else pauses; pause: the subscription is "
        "disabled in front of the transaction, and says what to run; ignore: nothing, as with "
        "PostgreSQL's own.",
        default="ignore",
        choices=("ignore", "pause", "apply"),
        example="apply",
    ),
)


def postgres_option(name: str) -> PostgresOption | None:
    """Return the option *name*, if there is one."""
    return next((option for option in POSTGRES_OPTIONS if option.name == name), None)
