"""What pages show of a slot and of a source: what the engine says, and what the sampler reckoned of
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.service.model import PrimaryCost, SlotInfo, SourceInfo


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot, and what was reckoned of it."""

    info: SlotInfo
    lag_bytes: int | None
    lag_seconds: float | None
    rate: float
    state: str


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source, and what was reckoned of it."""

    info: SourceInfo
    received_rate: float
    #: received and not yet decoded, of the session that is furthest behind
    behind_bytes: int | None
    #: what its primary keeps for it; None: not known (yet)
    cost: PrimaryCost | None
    #: why that is not known
    cost_error: str | None
    #: how fast each database is decoded, in bytes of WAL a second; NaN: not known yet
    decoded_rates: Mapping[str, float] = field(default_factory=dict)
