"""What a comparison is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from spillway.apply.options import Rename
from spillway.apply.selection import Selection
from spillway.consumer.connect import DEFAULT_ADDRESS


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What both commands are told."""

    slot: str
    source_dsn: str = field(repr=False)
    target_dsn: str = field(repr=False)
    #: whose progress and table states the target has
    subscription: str = ""
    #: ``schema.table`` on the source, of those that are selected; empty: all of them
    tables: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    rename: Rename = field(default_factory=Rename)
    #: differences to name, per table
    limit: int = 20
    #: how long the subscription may take until it reaches a snapshot
    timeout_s: float = 600.0
    grpc: str = DEFAULT_ADDRESS
    token: str = field(default="", repr=False)
    #: further options of :func:`spillway.consumer.connect.connect`
    client_options: dict[str, str] = field(default_factory=dict)
