"""``spillway status``: everything on one screen, worst first.

All of it is what the service tells by REST. What needs attention is ``GET /v1/findings``, the same
as on the overview in the admin UI, with remedies in the words of the commands.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.amounts import duration
from spillway.cli.answer import Answer, Columns, Rows, Text
from spillway.cli.connection import connect, explain
from spillway.cli.output import shows
from spillway.cli.slot import SlotState, state_of
from spillway.errors import NotReady, TlsFailed, Unauthenticated
from spillway.pg.lsn import Lsn
from spillway.pg.versions import release_text
from spillway.wording import for_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Exit codes of --exit-code. 1 is an error of the command's own, 2 wrong usage.
SOON: Final = 3
STANDS_STILL: Final = 4

_SOURCES: Final = Columns(
    names=("source", "state", "version", "received_lsn", "behind_bytes", "slots", "databases"),
    ranked=("source", "state", "behind_bytes", "received_lsn", "slots", "version", "databases"),
)
_SLOTS: Final = Columns(
    names=(
        "slot",
        "state",
        "lag_bytes",
        "lag_seconds",
        "consumer",
        "retained_bytes",
        "plugin",
        "source",
        "database",
    ),
    ranked=(
        "slot",
        "state",
        "lag_bytes",
        "lag_seconds",
        "consumer",
        "retained_bytes",
        "database",
        "source",
        "plugin",
    ),
)
_SUBSCRIPTIONS: Final = Columns(
    names=("subscription", "state", "tables", "lag_bytes", "lag_seconds", "rows", "fills"),
    ranked=("subscription", "state", "tables", "lag_seconds", "lag_bytes", "fills", "rows"),
)


@shows(watch=True)
def status(
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help=f"End with {STANDS_STILL} if something stands still, with {SOON} if something "
            "soon may, with 0 if all is well.",
        ),
    ] = False,
) -> Answer:
    """Show whether all is well: what needs attention, with cause and remedy, and every source, slot
    and subscription.
    """
    with connect() as client:
        try:
            found = client.call("GET", "findings")
            sources = client.call("GET", "sources")["sources"]
            slots = client.call("GET", "slots")["slots"]
            subscriptions = client.call("GET", "subscriptions")["subscriptions"]
        except (NotReady, TlsFailed, Unauthenticated) as error:
            explain(error)
            raise
        address = client.url
    findings = found["findings"]
    raw = {
        "service": address,
        **found,
        "sources": sources,
        "slots": slots,
        "subscriptions": subscriptions,
    }
    parts: list[Rows | Text] = [Text(list(_lines(findings)), _summary(findings, address))]
    if sources:
        rows = [_source_row(source, slots) for source in sources]
        parts.append(Rows(rows, _SOURCES, "Sources"))
    if slots:
        parts.append(Rows([_slot_row(slot) for slot in slots], _SLOTS, "Slots"))
    if subscriptions:
        rows = [_subscription_row(one) for one in subscriptions]
        parts.append(Rows(rows, _SUBSCRIPTIONS, "Subscriptions"))
    code = 0
    if exit_code and findings:
        code = STANDS_STILL if findings[0]["severity"] == "bad" else SOON
    names = list(dict.fromkeys(map(_name, findings)))
    return Answer(raw, names, parts, code)


def _summary(findings: Sequence[Mapping[str, Any]], address: str) -> str:
    bad = sum(one["severity"] == "bad" for one in findings)
    soon = len(findings) - bad
    said = [f"{bad} {'stands' if bad == 1 else 'stand'} still"] if bad else []
    said += [f"{soon} {'needs' if soon == 1 else 'need'} attention"] if soon else []
    return f"{address}: {', '.join(said) or 'all is well'}"


def _lines(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in findings:
        mark = "!!" if one["severity"] == "bad" else "! "
        since = f" (for {_age(one['since'])})" if one["since"] else ""
        yield f"{mark} {one['title']}{since}"
        if one["detail"]:
            yield f"   {one['detail']}"
        if one["remedy"]:
            yield f"   hint: {for_commands(one['remedy'])}"


def _name(finding: Mapping[str, Any]) -> str:
    """Name what a finding is about; of the service itself, what is wrong with it."""
    for kind in ("slot", "subscription", "source"):
        if finding[kind]:
            return f"{kind}/{finding[kind]}"
    return f"service/{finding['code']}"


def _source_row(source: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    name = source["name"]
    return {
        "source": name,
        "state": source["state"],
        "version": release_text(source["server_version_num"]),
        "received_lsn": source["received_lsn"],
        "behind_bytes": _behind(source),
        "slots": sum(slot["source"] == name for slot in slots),
        "databases": ", ".join(session["database"] for session in source["sessions"]) or None,
    }


def _slot_row(slot: Mapping[str, Any]) -> dict[str, Any]:
    state = state_of(dict(slot))
    idle = (
        _age(slot["inactive_since"]) if state is SlotState.IDLE and slot["inactive_since"] else ""
    )
    return {
        **{column: slot.get(column) for column in _SLOTS.names},
        "slot": slot["slot_name"],
        "state": f"{state} {idle}".strip(),
        "consumer": _consumer(slot),
    }


def _subscription_row(subscription: Mapping[str, Any]) -> dict[str, Any]:
    tables = subscription["table_states"]
    ready = sum(table["state"] == "ready" for table in tables)
    target = subscription["target"]
    return {
        **{column: subscription.get(column) for column in _SUBSCRIPTIONS.names},
        "subscription": subscription["name"],
        "tables": f"{ready}/{len(tables)} ready" if tables else None,
        "fills": target.get("path") or target.get("kind"),
    }


def _consumer(slot: Mapping[str, Any]) -> str | None:
    """Name who has a slot: how its program names itself, and where it came from."""
    found = slot.get("consumer")
    if not found:
        return None
    if found.get("subscription"):
        return f"subscription {found['subscription']}"
    said = [str(found[key]) for key in ("client", "address") if found.get(key)]
    return " ".join(said) or "somebody"


def _behind(source: Mapping[str, Any]) -> int | None:
    """Return how much is received and not decoded by the session that is furthest behind."""
    decoded = [session["decoded_lsn"] for session in source["sessions"]]
    if source["received_lsn"] is None or not decoded or None in decoded:
        return None
    return max(0, Lsn.parse(source["received_lsn"]) - min(map(Lsn.parse, decoded)))


def _seconds_since(moment: str | None) -> float | None:
    if moment is None:
        return None
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return max(0.0, (datetime.now(UTC) - aware).total_seconds())


def _age(moment: str) -> str:
    return duration(_seconds_since(moment))
