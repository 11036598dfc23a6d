"""What an event that is not done tells, and what a person does about it: the errors that pause a
subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.apply.schema.plan import quoted
from spillway.apply.sync.deferred_ddl import ancestors
from spillway.errors import TargetSchemaChange
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.apply.schema.plan import Plan

    TableName = tuple[str, str]

_STATEMENTS_SHOWN: Final = 20
#: NAMEDATALEN - 1
_NAME_BYTES: Final = 63
_BEFORE: Final = "_before"


class EventPlace(Protocol):
    """The transaction of an event."""

    @property
    def commit_lsn(self) -> int: ...

    @property
    def xid(self) -> int: ...


def refusal(
    event: Mapping[str, Any], plan: Plan, at: EventPlace, how_to_go_on: str
) -> TargetSchemaChange:
    """Return that what is planned is not done: it is not safe, or changes are to be a pause.

    Args:
        event: see docs/reference/ddl-events.md.
        plan: what is left to do.
        at: where the event is.
        how_to_go_on: what a person does once the target's table is like the source's, in words
            that may stand behind a semicolon.
    """
    table = f"{event['schema']}.{event['table']}"
    shown = "; ".join(plan.statements[:_STATEMENTS_SHOWN])
    if plan.leaves_no_trace and not plan.refused:
        hint = (
            "Have it done: give the target on_schema_change apply, and enable the "
            "subscription. Done by hand, it could not be told from what was before."
        )
    elif shown:
        hint = (
            f"On the target: {shown}; then: {how_to_go_on}. Where the "
            "transaction wrote to a column before that is dropped or renamed, the target needs "
            "it until then: give the target on_schema_change apply, and enable the "
            "subscription."
        )
    else:
        hint = f"Make the target's table like the source's. Then: {how_to_go_on}."
    if event.get("was_skipped"):
        before = event["before"]
        what = (
            f"writes to table {table}, which was {before['schema']}.{before['table']}: it was "
            "renamed in a transaction that was skipped"
        )
    else:
        changes = ", ".join(
            f"{one['change']} {one['column']}" if "column" in one else one["change"]
            for one in event["changes"]
        )
        what = f"changes table {table} ({changes or event['kind']})"
    why = "".join(f"; {reason}" for reason in plan.refused)
    return _pause(
        event,
        at,
        what + why,
        f"{hint} Or, to leave the target's table as it is: give the target on_schema_change "
        "ignore, and enable the subscription.",
        plan.statements,
    )


def lost_its_name(
    event: Mapping[str, Any], name: TableName, at: EventPlace, how_to_go_on: str
) -> TargetSchemaChange:
    """Return that the event's table is to have the name of one that the target has, and the source
    has no more.

    Args:
        event: an alter_table event.
        name: the other table's on the target.
        at: where the event is.
        how_to_go_on: as of :func:`refusal`.
    """
    before = event["before"]
    return _former(
        event,
        at,
        f"gives table {before['schema']}.{before['table']} the name "
        f"{event['schema']}.{event['table']}, and the target has another table "
        f"{'.'.join(name)}, which the source has dropped or never had",
        f"ALTER TABLE {quoted(*name)} RENAME TO {quoted(_before(name[1]))}",
        f"{how_to_go_on}. It may be dropped there as well.",
    )


def made_again(
    event: Mapping[str, Any], name: TableName, at: EventPlace, how_to_go_on: str
) -> TargetSchemaChange:
    """Return that the target's table has rows of one that the source has dropped, and made again by
    its name.

    Args:
        event: a create_table event.
        name: the table's on the target.
        at: where the event is.
        how_to_go_on: as of :func:`refusal`.
    """
    return _former(
        event,
        at,
        f"makes table {event['schema']}.{event['table']}, and the target's table "
        f"{'.'.join(name)} has rows of the one of that name which the source has dropped",
        # Under another name its indexes would have theirs, which the new one's are to get.
        f"DROP TABLE {quoted(*name)}",
        f"{how_to_go_on}. The new one is copied, once it is made as it is on the source, which "
        "create_tables does. Or TRUNCATE it, where its definition is that of the new one.",
    )


def _former(
    event: Mapping[str, Any], at: EventPlace, what: str, statement: str, then: str
) -> TargetSchemaChange:
    """Return that the target's table is another than the event's, which *statement* mends."""
    return _pause(
        event,
        at,
        what,
        f"On the target: {statement}; then: {then} Or, to leave the target's tables as they are: "
        "give the target on_schema_change ignore, and enable the subscription.",
        [statement],
    )


def _pause(
    event: Mapping[str, Any], at: EventPlace, what: str, hint: str, statements: list[str]
) -> TargetSchemaChange:
    lsn = Lsn(at.commit_lsn)
    return TargetSchemaChange(
        f"transaction {at.xid}, which commits at {lsn}, {what}; everything before it is applied",
        hint=hint,
        relation=f"{event['schema']}.{event['table']}",
        partition_of=[".".join(name) for name in ancestors(event).values()],
        lsn=str(lsn),
        xid=at.xid,
        statements=statements,
    )


def _before(name: str) -> str:
    """Return a name for the table that was called *name*, of at most 63 bytes."""
    return name.encode()[: _NAME_BYTES - len(_BEFORE)].decode(errors="ignore") + _BEFORE
