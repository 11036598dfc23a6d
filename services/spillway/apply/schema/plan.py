"""What one event comes to on the target."""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import sql


@dataclass(slots=True)
class Plan:
    """What an event comes to on the target."""

    #: in their order, without semicolons
    statements: list[str] = field(default_factory=list)
    #: what is not done by itself, and why
    refused: list[str] = field(default_factory=list)
    #: whether the target's tables would not tell afterwards that the statements were run
    leaves_no_trace: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the target is as it has to be."""
        return not self.statements and not self.refused

    def refuse(self, why: str) -> None:
        """Add what is not done by itself."""
        self.refused.append(why)


def quoted(*names: str) -> str:
    """Return a name, qualified by those in front of it, as SQL has it."""
    return sql.Identifier(*names).as_string()
