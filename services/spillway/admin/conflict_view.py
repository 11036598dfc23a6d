"""A conflict as its page shows it: its rows side by side, column by column, and what has the next
one resolved otherwise.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.subscriber.model import SubscriptionInfo

#: What may be wished of each kind in place of what PostgreSQL does; see
#: :mod:`spillway.apply.conflicts.kinds`, which a test holds this against.
OTHERWISE: Final[Mapping[str, Sequence[str]]] = {
    "insert_exists": ("apply_remote", "keep_local", "error"),
    "update_exists": ("apply_remote", "keep_local", "error"),
    "multiple_unique_conflicts": ("apply_remote", "keep_local", "error"),
    "update_origin_differs": ("keep_local", "apply_remote"),
    "delete_origin_differs": ("keep_local", "apply_remote"),
    "update_deleted": ("apply_remote", "skip"),
    "update_missing": ("apply_remote", "skip"),
    "delete_missing": ("error", "skip"),
}

#: What each resolution did, in words.
DONE: Final[Mapping[str, str]] = {
    "error": "The transaction was rolled back, and the subscription stopped there.",
    "apply_remote": "The source's row was written.",
    "keep_local": "The target's row stayed as it was.",
    "last_update_wins": "The row that was committed last stayed.",
    "merge": "The columns that the source changed were set; the others stayed.",
    "skip": "The change was passed over.",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a row: its text, None for NULL; there may be none at all."""

    is_there: bool
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A column of the table, over the rows that are compared."""

    column: str
    cells: tuple[Cell, ...]
    #: whether the source's value and one of the target's are not the same
    differs: bool


@dataclass(frozen=True, slots=True)
class ConflictView:
    """What the page shows."""

    document: Mapping[str, Any]
    #: of the rows that are compared
    heads: tuple[str, ...]
    lines: tuple[Line, ...]
    done: str


def conflict_view(document: Mapping[str, Any]) -> ConflictView:
    """Lay a conflict's rows side by side."""
    local = [one.get("row") or {} for one in document.get("local") or ()]
    remote, identity = document.get("remote"), document.get("identity")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    if identity is not None:
        rows.append(("looked for", identity))
    for number, row in enumerate(local, 1):
        where = "deleted" if document.get("kind") == "update_deleted" else "on the target"
        rows.append((where + (f", {number}" if len(local) > 1 else ""), row))
    if remote is not None:
        rows.append(("from the source", remote))
    columns = list(dict.fromkeys(name for _, row in rows for name in row))
    lines = []
    for column in columns:
        cells = tuple(Cell(column in row, row.get(column)) for _, row in rows)
        differs = remote is not None and any(
            column in row and column in remote and row[column] != remote[column] for row in local
        )
        lines.append(Line(column, cells, differs))
    done = DONE.get(str(document.get("resolution")), "")
    return ConflictView(document, tuple(head for head, _ in rows), tuple(lines), done)


def remedy_of(one: SubscriptionInfo, document: Mapping[str, Any]) -> str:
    """Return the command that has the next one of this kind and table resolved otherwise; "" if
    there is none.

    What a subscription is given replaces what it had, so the rules that it has are in it.
    """
    kind, table = str(document["kind"]), f"{document['schema']}.{document['table']}"
    others = [name for name in OTHERWISE.get(kind, ()) if name != document.get("resolution")]
    if not others:
        return ""
    rules = one.target.get("conflicts")
    rules = dict(rules) if isinstance(rules, dict) else {}
    tables = dict(rules.get("tables") or {})
    tables[table] = {**tables.get(table, {}), kind: others[0]}
    value = json.dumps({**rules, "tables": tables}, ensure_ascii=False)
    return f"spillway subscription alter {one.name} -t {shlex.quote('conflicts=' + value)}"
