"""``spillway status``: everything on one screen, worst first.

All of it is what the service has told by REST: states and errors with their remedies as it says
them. What is reckoned here is only what no error tells of: a slot that nobody reads, one that lags,
one near its limit. The bounds are those of the overview in the admin UI.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

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

#: a slot without a consumer needs attention when it holds back this much, for this long
_UNREAD_BYTES: Final = 64 << 20
_UNREAD_S: Final = 300
#: a slot's lag does from this on, whoever has it
_LAG_S: Final = 300
_BEHIND_BYTES: Final = 256 << 20
#: the part of its limit that a slot may have left
_NEAR_LIMIT: Final = 5

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


@dataclass(frozen=True, slots=True)
class Attention:
    """Something to mend."""

    #: bad: something stands still; warn: it soon may
    severity: str
    #: source, database, slot, subscription, or what of the service
    kind: str
    name: str
    what: str
    #: since when, ISO; None: not known
    since: str | None
    cause: str
    #: in the words of the commands
    remedy: str


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
            not_ready, warnings = client.readiness()
            sources = client.call("GET", "sources")["sources"]
            slots = client.call("GET", "slots")["slots"]
            subscriptions = client.call("GET", "subscriptions")["subscriptions"]
        except (NotReady, TlsFailed, Unauthenticated) as error:
            explain(error)
            raise
        address = client.url
    found = [
        *_of_service(not_ready, "bad"),
        *_of_service(warnings, "warn"),
        *(one for source in sources for one in _of_source(source)),
        *(one for subscription in subscriptions for one in _of_subscription(subscription)),
        *(one for slot in slots for one in _of_slot(slot)),
    ]
    found.sort(key=lambda one: one.severity != "bad")
    raw = {
        "service": address,
        "attention": [asdict(one) for one in found],
        "sources": sources,
        "slots": slots,
        "subscriptions": subscriptions,
    }
    parts: list[Rows | Text] = [Text(list(_lines(found)), _summary(found, address))]
    if sources:
        rows = [_source_row(source, slots) for source in sources]
        parts.append(Rows(rows, _SOURCES, "Sources"))
    if slots:
        parts.append(Rows([_slot_row(slot) for slot in slots], _SLOTS, "Slots"))
    if subscriptions:
        rows = [_subscription_row(one) for one in subscriptions]
        parts.append(Rows(rows, _SUBSCRIPTIONS, "Subscriptions"))
    code = 0
    if exit_code and found:
        code = STANDS_STILL if found[0].severity == "bad" else SOON
    names = list(dict.fromkeys(f"{one.kind}/{one.name}" for one in found))
    return Answer(raw, names, parts, code)


def _summary(found: Sequence[Attention], address: str) -> str:
    bad = sum(one.severity == "bad" for one in found)
    soon = len(found) - bad
    said = [f"{bad} {'stands' if bad == 1 else 'stand'} still"] if bad else []
    said += [f"{soon} {'needs' if soon == 1 else 'need'} attention"] if soon else []
    return f"{address}: {', '.join(said) or 'all is well'}"


def _lines(found: Sequence[Attention]) -> Iterator[str]:
    for one in found:
        mark = "!!" if one.severity == "bad" else "! "
        since = f" (for {_age(one.since)})" if one.since else ""
        yield f"{mark} {one.what}{since}"
        if one.cause:
            yield f"   {one.cause}"
        if one.remedy:
            yield f"   hint: {one.remedy}"


def _of_service(obstacles: Sequence[Mapping[str, Any]], severity: str) -> Iterator[Attention]:
    for one in obstacles:
        # Sources and databases are found by what they are.
        if one["kind"] not in {"source", "database"}:
            yield Attention(
                severity,
                one["kind"],
                one["name"],
                f"The service: {one['kind']} {one['name']}",
                one["since"],
                one.get("message") or one["code"],
                for_commands(one.get("hint") or ""),
            )


def _of_source(source: Mapping[str, Any]) -> Iterator[Attention]:
    name, state = source["name"], source["state"]
    if source["error"] or state not in {"streaming", "connecting"}:
        yield Attention(
            "bad",
            "source",
            name,
            f"Source {name} receives no WAL",
            source["since"],
            source["error"] or f"Its receiver is {state}.",
            for_commands(source["hint"] or "")
            or "It is tried again by itself; the service's log says more.",
        )
    elif state == "connecting":
        yield Attention(
            "warn",
            "source",
            name,
            f"Nothing is known of source {name} yet",
            source["since"],
            "Its server was not heard since the service started.",
            "The receiver connects by itself.",
        )
    for session in source["sessions"]:
        where = f"{name}/{session['database']}"
        if session["error"]:
            yield Attention(
                "bad",
                "database",
                where,
                f"Decoding of {where} has stopped",
                session["since"],
                session["error"],
                for_commands(session["hint"] or "")
                or "Slots still give what was decoded before. The service's log has the whole "
                "error.",
            )
        elif session["snapshot_state"] not in {"consistent", "failed"} and not source["error"]:
            yield Attention(
                "warn",
                "database",
                where,
                f"{where} is not consistent yet",
                session["since"],
                f"The catalog snapshot is at {session['snapshot_state']}.",
                "It waits for transactions that were running when it began: end those that stay "
                "open on the primary.",
            )
        elif session["state"] == "starting" and not source["error"]:
            yield Attention(
                "warn",
                "database",
                where,
                f"{where} is not decoded up to what is stored yet",
                session["since"],
                "Decoding goes again over what came last before the service was started.",
                "Wait: how far slots lag is not known until it is done.",
            )
        if session["log_damaged"]:
            yield Attention(
                "warn",
                "database",
                where,
                f"The transaction log of {where} is damaged",
                None,
                "Slots that stand behind the damage go on, those that come to it wait.",
                "What WAL still covers is decoded again by itself; slots that need more are "
                "invalidated. Check the disk.",
            )
    behind = _behind(source)
    if behind is not None and behind > _BEHIND_BYTES:
        yield Attention(
            "warn",
            "source",
            name,
            f"Decoding of {name} is behind",
            None,
            f"{behind >> 20} MB of WAL are received and not yet decoded.",
            "It catches up by itself when the primary writes less; one core decodes one database.",
        )


def _of_subscription(subscription: Mapping[str, Any]) -> Iterator[Attention]:
    name, error = subscription["name"], subscription["error"]
    if subscription["state"] == "failed":
        yield Attention(
            "bad",
            "subscription",
            name,
            f"Subscription {name} has failed",
            None,
            error["message"] if error else "Its program ended.",
            for_commands(error["hint"] if error else "")
            or f"It is started again by itself; `spillway subscription log {name}` says why.",
        )
    for table in subscription["table_states"]:
        if table["state"] == "quarantined":
            yield Attention(
                "warn",
                "subscription",
                name,
                f"{table['table']} of subscription {name} is in quarantine",
                None,
                table["reason"] or "It was set aside.",
                "Its changes are kept aside while the other tables go on. When what is said is "
                "mended, `spillway lake resume` or a load brings it back.",
            )


def _of_slot(slot: Mapping[str, Any]) -> Iterator[Attention]:
    name = slot["slot_name"]
    if slot["invalidation_reason"]:
        yield Attention(
            "bad",
            "slot",
            name,
            f"Slot {name} was invalidated",
            None,
            f"Its history was given up: {slot['invalidation_reason']}.",
            "Drop it and create it again; what lies between must be copied from the source.",
        )
        return
    retained, safe = slot["retained_bytes"] or 0, slot["safe_wal_size"]
    if safe is not None and safe + retained and safe < (safe + retained) / _NEAR_LIMIT:
        yield Attention(
            "bad",
            "slot",
            name,
            f"Slot {name} is about to be invalidated",
            None,
            f"It retains {retained >> 20} MB; {safe >> 20} MB more and it is given up.",
            f"Start its consumer, `spillway slot advance {name}`, or raise "
            "SPILLWAY_MAX_SLOT_RETAINED_BYTES.",
        )
        return
    lag_s = slot["lag_seconds"] or 0.0
    idle_s = _seconds_since(slot["inactive_since"]) or 0.0
    if not slot["active"] and idle_s > _UNREAD_S and (retained > _UNREAD_BYTES or lag_s > _LAG_S):
        yield Attention(
            "warn",
            "slot",
            name,
            f"Nobody reads slot {name}",
            slot["inactive_since"],
            f"It retains {retained >> 20} MB here, nothing on the primary; the first commit that "
            f"waits is {_duration(lag_s)} old.",
            f"Start its consumer, or `spillway slot drop {name}` if it is not needed any more.",
        )
    elif lag_s > _LAG_S:
        consumer = _consumer(slot)
        yield Attention(
            "warn",
            "slot",
            name,
            f"Slot {name} lags {_duration(lag_s)}",
            None,
            f"Its consumer is {consumer}." if consumer else "It has no consumer.",
            "See whether the consumer works and confirms; `spillway slot end-session "
            f"{name}` ends a session that hangs.",
        )


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
    seconds = _seconds_since(moment)
    return "-" if seconds is None else _duration(seconds)


def _duration(seconds: float) -> str:
    """Write seconds as the admin UI does: 42 s, 5 min, 3 h, 2 d."""
    whole = int(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min"
    return f"{whole // 3600} h" if whole < 172_800 else f"{whole // 86_400} d"
