"""What is wrong, worst first, each with what mends it.

Only what somebody can do something about is a finding. The engine's errors carry their remedy as a
hint; what is reckoned here (a slot that nobody reads, a slot near its limit) says its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.admin.formats import duration, moment, since, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spillway.admin.views import SlotView, SourceView
    from spillway.service.model import Obstacle
    from spillway.subscriber.model import SubscriptionInfo

#: a slot without a consumer is a finding when it holds back this much, for this long
_UNREAD_BYTES: Final = 64 << 20
_UNREAD_S: Final = 300
#: a slot's lag is a finding from this on, whoever has it
_LAG_S: Final = 300
_BEHIND_BYTES: Final = 256 << 20
_PINNED_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to mend."""

    #: bad: something stands still; warn: it soon may
    severity: str
    title: str
    detail: str
    remedy: str
    link: str


def findings_of(
    sources: Sequence[SourceView],
    slots: Sequence[SlotView],
    subscriptions: Sequence[SubscriptionInfo],
    obstacles: Sequence[Obstacle] = (),
    warnings: Sequence[Obstacle] = (),
) -> list[Finding]:
    """Find what is wrong, worst first."""
    found = [finding for one in obstacles for finding in _of_service(one, "bad")]
    found += [finding for one in warnings for finding in _of_service(one, "warn")]
    found += [finding for source in sources for finding in _of_source(source)]
    found += [finding for one in subscriptions for finding in _of_subscription(one)]
    found += [finding for slot in slots for finding in _of_slot(slot)]
    return sorted(found, key=lambda finding: finding.severity != "bad")


def _of_service(obstacle: Obstacle, severity: str) -> Iterator[Finding]:
    # Sources and databases are found by what they are, also where the service is ready all the
    # same.
    if obstacle.title:
        yield Finding(
            severity,
            obstacle.title + _for(obstacle.since),
            obstacle.message,
            obstacle.hint,
            "/",
        )


def _for(begin: datetime | None) -> str:
    """Say for how long, if that is known."""
    return "" if begin is None else f" (for {since(begin)})"


def _of_source(source: SourceView) -> Iterator[Finding]:
    info, link = source.info, f"/ui/sources/{source.info.name}"
    if info.state == "connecting" and not info.error:
        yield Finding(
            "warn",
            f"Nothing is known of source {info.name} yet",
            "Its server was not heard since the service started; WAL came last "
            f"{moment(info.since)}.",
            "The receiver connects by itself. What is shown below is what was stored.",
            link,
        )
    if info.error or info.state not in ("streaming", "connecting"):
        yield Finding(
            "bad",
            f"Source {info.name} receives no WAL" + _for(info.since),
            info.error or f"Its receiver is {info.state}.",
            info.hint or "It is tried again by itself; the service's log says more.",
            link,
        )
    for session in info.sessions:
        if session.error:
            yield Finding(
                "bad",
                f"Decoding of {info.name} / {session.database} has stopped" + _for(session.since),
                session.error,
                session.hint
                or (
                    "Slots still give what was decoded before. The service's log has the whole "
                    "error."
                ),
                link,
            )
        elif session.snapshot_state not in ("consistent", "failed") and not info.error:
            yield Finding(
                "warn",
                f"{info.name} / {session.database} is not consistent yet",
                f"The catalog snapshot is at {session.snapshot_state}.",
                "It waits for transactions that were running when it began: end those that stay "
                "open on the primary.",
                link,
            )
        elif session.state == "starting" and not info.error:
            yield Finding(
                "warn",
                f"{info.name} / {session.database} is not decoded up to what is stored yet",
                "Decoding goes again over what came last before the service was started.",
                "Wait: how far slots lag is not known until it is done.",
                link,
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
            )
    if source.behind_bytes is not None and source.behind_bytes > _BEHIND_BYTES:
        yield Finding(
            "warn",
            f"Decoding of {info.name} is behind",
            f"{size(source.behind_bytes)} of WAL are received and not yet decoded.",
            "It catches up by itself when the primary writes less; one core decodes one database.",
            link,
        )
    if source.cost is not None and source.cost.wal_bytes > _PINNED_BYTES:
        yield Finding(
            "warn",
            f"The primary of {info.name} keeps {size(source.cost.wal_bytes)} of WAL",
            "So much was written there and is not received yet.",
            "See whether the WAL store is full or the network slow.",
            link,
        )


def _of_subscription(subscription: SubscriptionInfo) -> Iterator[Finding]:
    link = f"/ui/subscriptions/{subscription.name}"
    error = subscription.error
    if subscription.state == "failed":
        yield Finding(
            "bad",
            f"Subscription {subscription.name} has failed",
            error.message if error else "Its program ended; the log says why.",
            (error.hint if error else "") or "It is started again by itself after a while.",
            link,
        )
    for table in subscription.table_states:
        if table.state == "quarantined":
            yield Finding(
                "warn",
                f"{table.table} of subscription {subscription.name} is in quarantine",
                table.reason or "It was set aside.",
                "Its changes are kept aside while the other tables go on. When what is said is "
                "mended, `spillway lake resume` or a load brings it back.",
                link,
            )


def _of_slot(slot: SlotView) -> Iterator[Finding]:
    info, link = slot.info, f"/ui/slots/{slot.info.slot_name}"
    if info.invalidation_reason:
        yield Finding(
            "bad",
            f"Slot {info.slot_name} was invalidated",
            f"Its history was given up: {info.invalidation_reason}.",
            "Drop it and create it again; what lies between must be copied from the source.",
            link,
        )
        return
    retained = info.retained_bytes or 0
    if info.safe_wal_size is not None:
        limit = info.safe_wal_size + retained
        if limit and info.safe_wal_size < limit / 5:
            yield Finding(
                "bad",
                f"Slot {info.slot_name} is about to be invalidated",
                f"It retains {size(retained)}; {size(info.safe_wal_size)} more and it is given up.",
                "Start its consumer, advance it, or raise SPILLWAY_MAX_SLOT_RETAINED_BYTES.",
                link,
            )
            return
    idle_s = (
        (datetime.now(UTC) - info.inactive_since).total_seconds()
        if info.inactive_since is not None and info.inactive_since.tzinfo
        else 0.0
    )
    lag_s = slot.lag_seconds or 0.0
    if not info.active and idle_s > _UNREAD_S and (retained > _UNREAD_BYTES or lag_s > _LAG_S):
        yield Finding(
            "warn",
            f"Nobody reads slot {info.slot_name}",
            f"For {duration(idle_s)} it had no consumer, and it retains {size(retained)} here "
            f"(nothing on the primary). The first commit that waits is {duration(lag_s)} old.",
            "Start its consumer, or drop it if it is not needed any more.",
            link,
        )
    elif lag_s > _LAG_S:
        who = (
            "It has no consumer." if info.consumer is None else f"Its consumer is {info.consumer}."
        )
        moved = (
            "Nothing was ever confirmed."
            if info.confirmed_at is None
            else f"A confirmation moved it last {since(info.confirmed_at)} ago."
        )
        yield Finding(
            "warn",
            f"Slot {info.slot_name} lags {duration(lag_s)}",
            f"{who} {moved}",
            "See whether the consumer works and confirms. A session that hangs can be ended on the "
            "slot's page.",
            link,
        )
