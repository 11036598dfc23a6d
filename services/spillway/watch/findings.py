"""What is wrong, worst first, each with what mends it.

Only what somebody can do something about is a finding. The engine's errors carry their remedy as a
hint; what is reckoned here (a slot that nobody reads, a slot near its limit) says its own, as hints
do: it names calls of REST, and whoever shows it words them (:mod:`spillway.wording`). The overview
shows findings, REST and ``spillway status`` do, and alerts (:mod:`spillway.alerts`) are made of the
same ones: a rule there may set other :class:`Limits`, and what a finding is stays here.

A finding has a *code*, which says what kind of thing is wrong, and a *subject*, which it is wrong
with: two looks that find the same code of the same subject found the same thing.

Of a slot, and of a subscription's program, the worst is told: one thing to mend, not three. What is
not told for that reason is *superseded*. It holds all the same, so nobody may take its absence for
its end: :func:`everything` finds all that holds, :func:`told` says what of it is told to somebody
who asks for a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.amounts import duration, moment, since, size
from spillway.errors import HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from spillway.service.model import Obstacle
    from spillway.subscriber.model import SubscriptionInfo, TableState, Verification
    from spillway.watch.views import SlotView, SourceView

#: Every code that a finding may have, and what it means.
CODES: Final[Mapping[str, str]] = {
    "disk": "the disk is full or nearly so, or does not take what is written",
    "metadata": "the metadata store does not answer or can't be written",
    "certificate": "the certificate expires soon, has expired or can't be used",
    "service": "something else keeps the service from its work, or soon will",
    "source_unheard": "nothing is known of a source since the service started",
    "source_down": "a source receives no WAL",
    "decoding_stopped": "a database is not decoded any more",
    "not_consistent": "a database's decoding waits for transactions on the primary",
    "catching_up": "a database is decoded again after a start",
    "log_damaged": "a part of a transaction log can't be read",
    "decoding_behind": "much WAL is received and not decoded",
    "primary_keeps_wal": "a primary keeps much WAL that is not received",
    "subscription_failed": "a subscription's program ended with an error",
    "schema_change_paused": "a subscription or a table of it waits at a change of the schema",
    "publication_missing": "a publication that a subscription reads by does not exist",
    "subscription_stale": "a subscription's target is behind, or its program says nothing",
    "table_quarantined": "a table of a subscription was set aside",
    "table_not_copied": "a table of a subscription could not be copied, and is tried again",
    "lake_differs": "a comparison found that a lake differs from its source",
    "comparison_failed": "a comparison of a lake with its source came to no result",
    "resync_failed": "a table of a lake that somebody wanted anew could not be loaded",
    "conflicts": "a subscription met conflicts a short while ago",
    "slot_invalidated": "a slot's history was given up",
    "slot_elsewhere": "a slot needs what only another service's directory has",
    "slot_near_limit": "a slot is about to be invalidated",
    "slot_unread": "nobody reads a slot",
    "slot_lagging": "a slot lags, by time or by bytes",
}
#: What a subscription's error is when it waits at DDL.
SCHEMA_CHANGES: Final = frozenset(
    {"target_schema_change", "lake_schema_change", "lake_schema_conflict"}
)
#: What may be wrong with a subscription's program.
_OF_PROGRAMS: Final = frozenset(
    {"subscription_failed", "schema_change_paused", "publication_missing", "subscription_stale"}
)
_BEHIND_BYTES: Final = 256 << 20
_PINNED_BYTES: Final = 1 << 30
#: a program that runs tells of itself every few seconds
_SILENT_S: Final = 120.0
#: What is reckoned: titles and details have amounts, which are others at each look.
_RECKONED: Final = frozenset(
    {
        "decoding_behind",
        "primary_keeps_wal",
        "subscription_stale",
        "conflicts",
        "slot_near_limit",
        "slot_unread",
        "slot_lagging",
    }
)
#: states of a table whose first copy is not done
_UNCOPIED: Final = frozenset({"waiting", "copying"})
#: tables that a finding names
_TABLES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on an amount is a finding."""

    #: a slot's lag is, whoever has it, in seconds …
    lag_s: float = 300.0
    #: … or in bytes of WAL; None: by time alone
    lag_bytes: int | None = None
    #: a slot without a consumer is when it had none for so long, and holds back so much or lags
    unread_s: float = 300.0
    unread_bytes: int = 64 << 20
    #: a slot is near its limit when less than this part of it is left
    near_limit: float = 0.2
    #: a subscription's lag is, in seconds
    stale_s: float = 300.0
    #: conflicts are for so long after the last one came
    conflicts_s: float = 900.0


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to mend."""

    #: bad: something stands still; warn: it soon may
    severity: str
    title: str
    detail: str
    #: as hints are written
    remedy: str
    #: the page about it
    link: str
    #: one of :data:`CODES`
    code: str = "service"
    #: what it is wrong with: a name, of a database ``source/database``, of a table
    #: ``subscription/schema.table``
    subject: str = ""
    #: whose process finds it; empty: every process finds its own
    source: str = ""
    #: since when it is so; None: not known
    since: datetime | None = None
    #: of a subscription's lag: the slot whose lag it is
    lagging_slot: str = ""

    @property
    def slot(self) -> str | None:
        """The slot that it is about; None: it is about something else."""
        return self._named("/ui/slots/")

    @property
    def subscription(self) -> str | None:
        """The subscription that it is about; None: it is about something else."""
        return self._named("/ui/subscriptions/")

    @property
    def cause(self) -> tuple[str, ...]:
        """What is to be mended: the same thing may be wrong for another cause than before, as a
        source that is down since its server was, and then since its WAL is gone.
        """
        return (self.remedy,) if self.code in _RECKONED else (self.title, self.detail, self.remedy)

    def _named(self, pages: str) -> str | None:
        return self.link.removeprefix(pages) if self.link.startswith(pages) else None


class Told(NamedTuple):
    """What is told to somebody, and what holds and is not."""

    #: the worst first
    findings: list[Finding]
    #: (code, subject) of what another one takes the place of
    superseded: frozenset[tuple[str, str]]


def everything(
    sources: Sequence[SourceView],
    slots: Sequence[SlotView],
    subscriptions: Sequence[SubscriptionInfo],
    obstacles: Sequence[Obstacle] = (),
    warnings: Sequence[Obstacle] = (),
    *,
    limits: Limits | None = None,
    conflicts_at: Mapping[str, datetime] | None = None,
) -> list[Finding]:
    """Find all that holds, of one thing the worst first.

    Args:
        sources: all of them.
        slots: all of them.
        subscriptions: all of them.
        obstacles: what keeps the service from its work.
        warnings: what soon will.
        limits: from where on amounts are findings; :data:`DEFAULT_LIMITS` unless given.
        conflicts_at: when subscriptions were last seen to have met a conflict.
    """
    limits = limits or DEFAULT_LIMITS
    found = [finding for one in obstacles for finding in _of_service(one, "bad")]
    found += [finding for one in warnings for finding in _of_service(one, "warn")]
    found += [finding for source in sources for finding in _of_source(source)]
    met = conflicts_at or {}
    for one in subscriptions:
        found += _of_subscription(one, limits, met.get(one.name))
    for slot in slots:
        found += _of_slot(slot, limits)
    return found


def told(found: Iterable[Finding], asks: Callable[[Finding], bool] = lambda _: True) -> Told:
    """Say what of *found*, which is :func:`everything`, is told to somebody who asks for a part of
    it: a finding takes the place only of those that are asked for, too.
    """
    shown: list[Finding] = []
    superseded: set[tuple[str, str]] = set()
    taken: set[tuple[str, str]] = set()
    # A slot that lags since its subscription does is one thing to mend, not two.
    lagging: set[str] = set()
    for finding in found:
        if not asks(finding):
            continue
        place = _place(finding)
        if place in taken or (finding.code == "slot_lagging" and finding.subject in lagging):
            superseded.add((finding.code, finding.subject))
            continue
        if place is not None:
            taken.add(place)
        if finding.lagging_slot:
            lagging.add(finding.lagging_slot)
        shown.append(finding)
    worst_first = sorted(shown, key=lambda finding: finding.severity != "bad")
    return Told(worst_first, frozenset(superseded))


def _place(finding: Finding) -> tuple[str, str] | None:
    """Return what a finding is the worst of; None: it stands for itself."""
    if finding.code.startswith("slot_"):
        return "slot", finding.subject
    if finding.code in _OF_PROGRAMS:
        return "subscription", finding.subject
    return None


def _of_service(obstacle: Obstacle, severity: str) -> Iterator[Finding]:
    # Sources and databases are found by what they are, also where the service is ready all the
    # same.
    if obstacle.title:
        yield Finding(
            severity,
            obstacle.title,
            obstacle.message,
            obstacle.hint,
            "/",
            code=obstacle.kind if obstacle.kind in CODES else "service",
            subject=f"{obstacle.name}: {obstacle.code}",
            since=obstacle.since,
        )


def _of_source(source: SourceView) -> Iterator[Finding]:
    info, link = source.info, f"/ui/sources/{source.info.name}"
    if info.state == "connecting" and not info.error:
        yield Finding(
            "warn",
            f"Nothing is known of source {info.name} yet",
            "Its server was not heard since the service started; WAL came last "
            f"{moment(info.since)}.",
            "The receiver connects by itself. What is known of its slots is what was stored.",
            link,
            code="source_unheard",
            subject=info.name,
            source=info.name,
        )
    if info.error or info.state not in ("streaming", "connecting"):
        yield Finding(
            "bad",
            f"Source {info.name} receives no WAL",
            info.error or f"Its receiver is {info.state}.",
            info.hint or "It is tried again by itself; the service's log says more.",
            link,
            code="source_down",
            subject=info.name,
            source=info.name,
            since=info.since,
        )
    for session in info.sessions:
        if session.error:
            yield Finding(
                "bad",
                f"Decoding of {info.name} / {session.database} has stopped",
                session.error,
                session.hint
                or (
                    "Slots still give what was decoded before. The service's log has the whole "
                    "error."
                ),
                link,
                code="decoding_stopped",
                subject=f"{info.name}/{session.database}",
                source=info.name,
                since=session.since,
            )
        elif session.snapshot_state not in ("consistent", "failed") and not info.error:
            yield Finding(
                "warn",
                f"{info.name} / {session.database} is not consistent yet",
                f"The catalog snapshot is at {session.snapshot_state}.",
                "It waits for transactions that were running when it began: end those that stay "
                "open on the primary.",
                link,
                code="not_consistent",
                subject=f"{info.name}/{session.database}",
                source=info.name,
            )
        elif session.state == "starting" and not info.error:
            yield Finding(
                "warn",
                f"{info.name} / {session.database} is not decoded up to what is stored yet",
                "Decoding goes again over what came last before the service was started.",
                "Wait: how far slots lag is not known until it is done.",
                link,
                code="catching_up",
                subject=f"{info.name}/{session.database}",
                source=info.name,
            )
        if session.log_damaged:
            yield Finding(
                "warn",
                f"The transaction log of {info.name} / {session.database} is damaged",
                "Slots that stand behind the damage go on, those that come to it wait. The "
                "service's log says from where to where.",
                "What WAL still covers is decoded again by itself; slots that need more than that "
                "are invalidated. Check the disk, which returned other bytes than were written.",
                link,
                code="log_damaged",
                subject=f"{info.name}/{session.database}",
                source=info.name,
            )
    if source.behind_bytes is not None and source.behind_bytes > _BEHIND_BYTES:
        yield Finding(
            "warn",
            f"Decoding of {info.name} is behind",
            f"{size(source.behind_bytes)} of WAL are received and not yet decoded.",
            "It catches up by itself when the primary writes less; one core decodes one database.",
            link,
            code="decoding_behind",
            subject=info.name,
            source=info.name,
        )
    if source.cost is not None and source.cost.wal_bytes > _PINNED_BYTES:
        yield Finding(
            "warn",
            f"The primary of {info.name} keeps {size(source.cost.wal_bytes)} of WAL",
            "So much was written there and is not received yet.",
            "See whether the WAL store is full or the network slow.",
            link,
            code="primary_keeps_wal",
            subject=info.name,
            source=info.name,
        )


def _is_stale(subscription: SubscriptionInfo, limits: Limits) -> bool:
    return (
        subscription.enabled
        and subscription.state != "paused"
        and (subscription.lag_seconds or 0.0) > limits.stale_s
    )


def _of_subscription(
    subscription: SubscriptionInfo, limits: Limits, met_at: datetime | None
) -> Iterator[Finding]:
    name, link = subscription.name, f"/ui/subscriptions/{subscription.name}"
    error = subscription.error
    if subscription.state == "failed":
        paused = error is not None and error.code in SCHEMA_CHANGES
        yield Finding(
            "bad",
            f"Subscription {name} waits at a change of the schema"
            if paused
            else f"Subscription {name} has failed",
            error.message if error else "Its program ended.",
            (error.hint if error else "")
            or (
                "It is started again by itself after a while. "
                f"GET /v1/subscriptions/{name}/log says why it ended."
            ),
            link,
            code="schema_change_paused" if paused else "subscription_failed",
            subject=name,
            source=subscription.source,
        )
    if subscription.missing_publications:
        names = ", ".join(subscription.missing_publications)
        yield Finding(
            "bad",
            f"Subscription {name} reads by what does not exist: publication {names}",
            "From where it was dropped or renamed on, nothing is sent by it, and nothing of that "
            "is sent later.",
            "Create it again on the source under its name, or rename it back. Then have what was "
            "missed meanwhile mended, as no stream brings it: spillway subscription verify "
            f"{name}, spillway subscription repair {name}. Or have the subscription name others: "
            f"PATCH /v1/subscriptions/{name}",
            link,
            code="publication_missing",
            subject=name,
            source=subscription.source,
        )
    if _is_stale(subscription, limits):
        yield Finding(
            "warn",
            f"Subscription {name} is {duration(subscription.lag_seconds)} behind",
            "What was committed since then is not in its target.",
            f"GET /v1/subscriptions/{name}/log and the states of its tables say why: it may copy a "
            "large table, wait for its target, or get more than it can write.",
            link,
            code="subscription_stale",
            subject=name,
            source=subscription.source,
            lagging_slot=subscription.slot,
        )
    elif subscription.state == "streaming" and _silent_s(subscription) > _SILENT_S:
        yield Finding(
            "warn",
            f"The program of subscription {name} says nothing",
            f"It told of itself last {since(subscription.told_at)} ago.",
            f"GET /v1/subscriptions/{name}/log shows its last lines; disable and enable the "
            "subscription to start it again.",
            link,
            code="subscription_stale",
            subject=name,
            source=subscription.source,
        )
    if met_at is not None and (datetime.now(UTC) - met_at).total_seconds() < limits.conflicts_s:
        yield Finding(
            "warn",
            f"Subscription {name} met conflicts",
            f"There were {subscription.conflicts.total} so far; the last came {since(met_at)} ago.",
            f"GET /v1/subscriptions/{name}/conflicts says what became of each, with the rows of "
            "both sides.",
            link,
            code="conflicts",
            subject=name,
            source=subscription.source,
        )
    if subscription.verification is not None:
        yield from _of_verification(subscription, subscription.verification, link)
    for table in subscription.table_states:
        yield from _of_table(subscription, table, link)


def _of_verification(
    subscription: SubscriptionInfo, found: Verification, link: str
) -> Iterator[Finding]:
    """Give what is wrong with the last comparison; while another one runs that is not known."""
    name = subscription.name
    if found.state == "different":
        differing = found.differing
        some = ", ".join(
            f"{table.table} ({'at least ' if table.more else ''}{table.differences} "
            f"{'key' if table.differences == 1 else 'keys'})"
            for table in differing[:_TABLES_NAMED]
        )
        more = len(differing) - _TABLES_NAMED
        # Of one table the remedy has the name.
        table = differing[0].table if len(differing) == 1 else "TABLE"
        yield Finding(
            "bad",
            f"The lake of subscription {name} differs from its source",
            f"As of {found.lsn}: {some}" + (f" and {more} more tables." if more > 0 else "."),
            f"POST /v1/subscriptions/{name}/tables/{table}/resync loads a table that differs anew; "
            f"when that is done, POST /v1/subscriptions/{name}/verify compares again.",
            link,
            code="lake_differs",
            subject=name,
            source=subscription.source,
            since=found.ended_at,
        )
    elif found.state == "failed":
        error = found.error
        yield Finding(
            "warn",
            f"The lake of subscription {name} could not be compared with its source",
            error.message if error else "Its program ended.",
            f"{error.hint if error else ''} POST /v1/subscriptions/{name}/verify compares "
            "again.".lstrip(),
            link,
            code="comparison_failed",
            subject=name,
            source=subscription.source,
            since=found.ended_at,
        )


def _of_table(subscription: SubscriptionInfo, table: TableState, link: str) -> Iterator[Finding]:
    name = subscription.name
    if table.state == "quarantined":
        yield Finding(
            "warn",
            f"{table.table} of subscription {name} is in quarantine",
            table.reason or "It was set aside.",
            "Its changes are kept aside while the other tables go on. When what is said is "
            "mended, `spillway lake resume` or a load brings it back."
            if subscription.target.get("kind") == "lake"
            else "The other tables go on. When what is said is mended and the table is emptied on "
            "the target, it is copied anew by itself.",
            link,
            code="table_quarantined",
            subject=f"{name}/{table.table}",
            source=subscription.source,
        )
    elif table.state in _UNCOPIED and table.reason:
        told, _, hint = table.reason.partition(HINT)
        yield Finding(
            "warn",
            f"{table.table} of subscription {name} is not copied",
            told,
            hint or "It is tried again by itself.",
            link,
            code="table_not_copied",
            subject=f"{name}/{table.table}",
            source=subscription.source,
        )
    if table.resync is not None and table.resync.state == "failed":
        yield Finding(
            "warn",
            f"{table.table} of subscription {name} could not be loaded anew",
            table.resync.reason or "The load failed.",
            "When what is said is mended, "
            f"POST /v1/subscriptions/{name}/tables/{table.table}/resync asks for it again at once; "
            f"POST /v1/subscriptions/{name}/tables/{table.table}/cancel-resync takes it back, "
            "unless its load has begun.",
            link,
            code="resync_failed",
            subject=f"{name}/{table.table}",
            source=subscription.source,
            since=table.resync.ended_at,
        )


def _silent_s(subscription: SubscriptionInfo) -> float:
    told = subscription.told_at
    if told is None or subscription.pid is None:
        return 0.0
    # One that lies ahead is of a clock that was set back since: the program tells again within a
    # second, so it is no word of a program that lives either.
    return abs((datetime.now(UTC) - told).total_seconds())


def _of_slot(slot: SlotView, limits: Limits) -> Iterator[Finding]:
    for severity, code, title, detail, remedy in _wrong_with_slot(slot, limits):
        yield Finding(
            severity,
            title,
            detail,
            remedy,
            f"/ui/slots/{slot.info.slot_name}",
            code=code,
            subject=slot.info.slot_name,
            source=slot.info.source,
        )


def _wrong_with_slot(slot: SlotView, limits: Limits) -> Iterator[tuple[str, str, str, str, str]]:
    """Give severity, code, title, detail and remedy of what is wrong with a slot, worst first."""
    info = slot.info
    if info.invalidation_reason:
        yield (
            "bad",
            "slot_invalidated",
            f"Slot {info.slot_name} was invalidated",
            f"Its history was given up: {info.invalidation_reason}.",
            "Drop it and create it again; what lies between must be copied from the source.",
        )
        return
    if info.wal_status == "unreserved":
        yield (
            "bad",
            "slot_elsewhere",
            f"Slot {info.slot_name} can't be read here",
            (
                "This service took its source over from another one, whose directory has what was "
                f"committed behind {info.confirmed_flush_lsn}."
            ),
            (
                "Start that service again and stop this one: it takes the source back, and the "
                "slot goes on. If it is gone for good: DELETE "
                f"/v1/slots/{info.slot_name}, create it again, and load its consumer anew."
            ),
        )
        return
    retained = info.retained_bytes or 0
    if info.safe_wal_size is not None:
        limit = info.safe_wal_size + retained
        if limit and info.safe_wal_size < limit * limits.near_limit:
            yield (
                "bad",
                "slot_near_limit",
                f"Slot {info.slot_name} is about to be invalidated",
                f"It retains {size(retained)}; {size(info.safe_wal_size)} more and it is given up.",
                (
                    f"Start its consumer, use POST /v1/slots/{info.slot_name}/advance, or raise "
                    "SPILLWAY_MAX_SLOT_RETAINED_BYTES."
                ),
            )
    idle_s = (
        (datetime.now(UTC) - info.inactive_since).total_seconds()
        if info.inactive_since is not None and info.inactive_since.tzinfo
        else 0.0
    )
    lag_s, lag_bytes = slot.lag_seconds or 0.0, slot.lag_bytes or 0
    lags_bytes = limits.lag_bytes is not None and lag_bytes > limits.lag_bytes
    if (
        not info.active
        and idle_s > limits.unread_s
        and (retained > limits.unread_bytes or lag_s > limits.lag_s)
    ):
        yield (
            "warn",
            "slot_unread",
            f"Nobody reads slot {info.slot_name}",
            (
                f"For {duration(idle_s)} it had no consumer, and it retains {size(retained)} here "
                f"(nothing on the primary). The first commit that waits is {duration(lag_s)} old."
            ),
            (
                f"Start its consumer, or use DELETE /v1/slots/{info.slot_name} if it is not needed "
                "any more."
            ),
        )
    if lag_s > limits.lag_s or lags_bytes:
        lag = duration(lag_s) if lag_s > limits.lag_s else size(lag_bytes)
        who = (
            "It has no consumer." if info.consumer is None else f"Its consumer is {info.consumer}."
        )
        moved = (
            "Nothing was ever confirmed."
            if info.confirmed_at is None
            else f"A confirmation moved it last {since(info.confirmed_at)} ago."
        )
        yield (
            "warn",
            "slot_lagging",
            f"Slot {info.slot_name} lags {lag}",
            f"{who} {moved}",
            (
                "See whether the consumer works and confirms. "
                f"POST /v1/slots/{info.slot_name}/end-session ends a session that hangs."
            ),
        )


def unknown_subjects(
    sources: Sequence[SourceView],
    slots: Sequence[SlotView],
    subscriptions: Sequence[SubscriptionInfo] = (),
) -> frozenset[tuple[str, str]]:
    """Give (code, subject) of what is not known just now: that it is not found says nothing."""
    unknown: set[tuple[str, str]] = set()
    for source in sources:
        info = source.info
        if info.state == "connecting" and not info.error:
            unknown.add(("source_down", info.name))
        for session in info.sessions:
            if session.state == "starting":
                database = f"{info.name}/{session.database}"
                unknown |= {("decoding_stopped", database), ("not_consistent", database)}
        if source.behind_bytes is None:
            unknown.add(("decoding_behind", info.name))
        if source.cost is None:
            unknown.add(("primary_keeps_wal", info.name))
    for slot in slots:
        name = slot.info.slot_name
        if slot.lag_seconds is None:
            unknown |= {("slot_lagging", name), ("slot_unread", name)}
        if slot.info.retained_bytes is None:
            unknown |= {("slot_near_limit", name), ("slot_unread", name)}
    for one in subscriptions:
        unknown.update(_unknown_of(one))
    return frozenset(unknown)


def _unknown_of(one: SubscriptionInfo) -> Iterator[tuple[str, str]]:
    if one.lag_seconds is None:
        yield "subscription_stale", one.name
    if one.missing_publications is None and one.publications and one.enabled:
        yield "publication_missing", one.name
    found = one.verification
    if found is not None and found.state in ("running", "failed"):
        # What the one before found is found no more, and may be so all the same.
        yield "lake_differs", one.name
    if found is not None and found.state == "running":
        yield "comparison_failed", one.name
    for table in one.table_states:
        if table.resync is not None and table.resync.state in ("waiting", "loading"):
            yield "resync_failed", f"{one.name}/{table.table}"
        if one.state == "initializing" and table.state in _UNCOPIED and not table.reason:
            # Its program has begun anew, and has not tried yet.
            yield "table_not_copied", f"{one.name}/{table.table}"
    if one.state == "initializing":
        # It was started again: whether that helps is not known.
        yield "subscription_failed", one.name
        yield "schema_change_paused", one.name
