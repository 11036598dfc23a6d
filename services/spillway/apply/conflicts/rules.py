"""What a subscription wishes to be done about conflicts: a resolution a kind, and others a table.

The form, in a subscription's target::

    "conflicts": {
        "insert_exists": "apply_remote",
        "tables": {"public.accounts": {"update_origin_differs": "merge"}}
    }

A table is named as on the target, ``schema.table``. What is not named is as PostgreSQL has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from spillway.apply.conflicts.kinds import (
    ALLOWED,
    DEFAULTS,
    ORIGIN_DIFFERS,
    ConflictKind,
    Resolution,
)
from spillway.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

_TABLES: Final = "tables"
_NAMES: Final = ", ".join(kind.value for kind in ALLOWED)

Resolutions = dict[ConflictKind, Resolution]


@dataclass(frozen=True, slots=True)
class ConflictRules:
    """Resolutions by kind, and by table and kind."""

    everywhere: Mapping[ConflictKind, Resolution] = field(default_factory=dict)
    by_table: Mapping[str, Mapping[ConflictKind, Resolution]] = field(default_factory=dict)

    @classmethod
    def parse(cls, wished: object) -> Self:
        """Read the form above; None and an empty object are PostgreSQL's defaults.

        Raises:
            InvalidOption: a kind, a resolution or a table's name that can't be; which one.
        """
        if wished is None:
            return cls()
        if not isinstance(wished, dict):
            raise _invalid("conflicts is not an object of kinds and their resolutions")
        tables = wished.get(_TABLES, {})
        if not isinstance(tables, dict):
            raise _invalid("conflicts.tables is not an object of tables")
        for name in tables:
            if "." not in str(name).strip("."):
                raise _invalid(
                    f'conflicts.tables names "{name}", which is no table with its schema'
                )
        return cls(
            _resolutions({k: v for k, v in wished.items() if k != _TABLES}, "conflicts"),
            {
                str(name): _resolutions(of, f'conflicts.tables."{name}"')
                for name, of in tables.items()
            },
        )

    def as_json(self) -> dict[str, object]:
        """The form that :meth:`parse` reads."""
        form: dict[str, object] = {k.value: v.value for k, v in self.everywhere.items()}
        if self.by_table:
            form[_TABLES] = {
                table: {k.value: v.value for k, v in of.items()}
                for table, of in self.by_table.items()
            }
        return form

    def of(self, table: str, kind: ConflictKind) -> Resolution:
        """What is done about *kind* in *table*, which is ``schema.table`` on the target."""
        found = self.by_table.get(table, {}).get(kind) or self.everywhere.get(kind)
        return found or DEFAULTS[kind]

    def needing_commit_times(self) -> list[str]:
        """What of the rules needs track_commit_timestamp on the target, in words; [] if nothing.

        Where it is off, no row's origin and time are known: last_update_wins can't decide, and
        origins that differ are never seen.
        """
        return [
            f"{where}{kind.value}: {resolution.value}"
            for where, of in self._all()
            for kind, resolution in of.items()
            if resolution == Resolution.LAST_UPDATE_WINS
            or (kind in ORIGIN_DIFFERS and resolution != DEFAULTS[kind])
        ]

    def merging(self, table: str) -> bool:
        """Whether *table*, ``schema.table`` on the target, is merged column by column; that needs
        REPLICA IDENTITY FULL.
        """
        return self.of(table, ConflictKind.UPDATE_ORIGIN_DIFFERS) == Resolution.MERGE

    def _all(self) -> list[tuple[str, Mapping[ConflictKind, Resolution]]]:
        tables = [(f"{table} ", of) for table, of in self.by_table.items()]
        return [("", self.everywhere), *tables]


def _resolutions(wished: object, where: str) -> Resolutions:
    if not isinstance(wished, dict):
        raise _invalid(f"{where} is not an object of kinds and their resolutions")
    found: Resolutions = {}
    for name, value in wished.items():
        try:
            kind = ConflictKind(name)
        except ValueError:
            raise _invalid(
                f'{where} names "{name}", which is no kind of conflict',
                f"Kinds are {_NAMES}; tables are named in conflicts.tables.",
            ) from None
        allowed = ALLOWED[kind]
        if value not in [one.value for one in allowed]:
            raise _invalid(
                f'{where} wishes "{value}" for {kind.value}, which it can\'t be',
                f"It can be {', '.join(one.value for one in allowed)}.",
            )
        found[kind] = Resolution(value)
    return found


def _invalid(message: str, hint: str = "") -> InvalidOption:
    return InvalidOption(
        message, hint=hint or "docs/how-to/handle-conflicts.md shows the form.", option="conflicts"
    )
