"""What is wrong, worst first, each with what mends it.

Only what somebody can do something about is a finding. The engine's errors carry their remedy as a hint; what is
reckoned here (a slot that nobody reads, a slot near its limit) says its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.admin.formats import duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spillway.admin.sampler import SlotView, SourceView
    from spillway.subscriber.model import SubscriptionInfo

#: a slot without a consumer is a finding when it holds back this much, for this long
_UNREAD_BYTES: Final = 64 << 20
_UNREAD_S: Final = 300
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
) -> list[Finding]:
    """Find what is wrong, worst first."""
    found = [finding for source in sources for finding in _of_source(source)]
    found += [finding for one in subscriptions for finding in _of_subscription(one)]
    found += [finding for slot in slots for finding in _of_slot(slot)]
    return sorted(found, key=lambda finding: finding.severity != "bad")


def _of_source(source: SourceView) -> Iterator[Finding]:
    info, link = source.info, f"/ui/sources/{source.info.name}"
    if info.error or info.state not in ("streaming", "connecting"):
        yield Finding(
            "bad",
            f"Source {info.name} receives no WAL",
            info.error or f"Its receiver is {info.state}.",
            info.hint or "It is tried again by itself; the service's log says more.",
            link,
        )
    for session in info.sessions:
        if session.error:
            yield Finding(
                "bad",
                f"Decoding of {info.name} / {session.database} has stopped",
                session.error,
                "Slots still give what was decoded before. The service's log has the whole error.",
                link,
            )
        elif session.snapshot_state not in ("consistent", "failed") and not info.error:
            yield Finding(
                "warn",
                f"{info.name} / {session.database} is not consistent yet",
                f"The catalog snapshot is at {session.snapshot_state}.",
                "It waits for transactions that were running when it began: end those that stay open on the primary.",
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
                "Its changes are kept aside while the other tables go on; the lake's documentation says how to bring it back.",
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
    if info.safe_wal_size is not None:
        limit = info.safe_wal_size + info.retained_bytes
        if limit and info.safe_wal_size < limit / 5:
            yield Finding(
                "bad",
                f"Slot {info.slot_name} is about to be invalidated",
                f"It retains {size(info.retained_bytes)}; {size(info.safe_wal_size)} more and it is given up.",
                "Start its consumer, advance it, or raise SPILLWAY_MAX_SLOT_RETAINED_BYTES.",
                link,
            )
            return
    idle_s = (
        (datetime.now(UTC) - info.inactive_since).total_seconds()
        if info.inactive_since is not None and info.inactive_since.tzinfo
        else 0.0
    )
    if not info.active and info.retained_bytes > _UNREAD_BYTES and idle_s > _UNREAD_S:
        yield Finding(
            "warn",
            f"Nobody reads slot {info.slot_name}",
            f"For {duration(idle_s)} it had no consumer, and it retains {size(info.retained_bytes)} here "
            "(nothing on the primary).",
            "Start its consumer, or drop it if it is not needed any more.",
            link,
        )
