"""What a program that applies is to do: one value, of its command line and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spillway.apply.exact.own_tables import CONFLICTS, DEAD_LETTER, PREPARED
from spillway.apply.sync.states import TABLES_SQL
from spillway.apply.target.own_schema import COMMITTED_SQL
from spillway.apply.target.session import TargetPlan
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.apply.options import ApplyOptions
    from spillway.apply.selection import Selection
    from spillway.tls import ClientTls


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """What a program is to do."""

    subscription: str
    identity: str
    slot: str
    grpc: str
    options: ApplyOptions
    selection: Selection
    token: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    #: by which the service's own programs have the stream; '': gRPC's
    own_socket: str = ""
    #: how long the service may say nothing by that; 0: for ever
    client_timeout_s: float = 60.0
    two_phase: bool = False
    #: transactions in progress are applied as they come
    streaming: bool = False
    #: what came to the source through an origin is left out there
    only_local: bool = False
    copy_data: bool = True
    #: the subscription has followed its slot before
    has_begun: bool = False
    #: somebody wished that its tables become what is published, and no program has done that yet
    refreshes: bool = False
    #: … and tables, schema.table, that were not published when it was wished, whether they are now
    forgets: frozenset[str] = frozenset()
    #: the slot may have been moved up to here past what the target has
    skip_to: Lsn = Lsn(0)  # noqa: RUF009 - immutable
    source_dsn: str = field(default="", repr=False)
    conflicts_file: Path | None = None


def target_plan(settings: ApplySettings) -> TargetPlan:
    """Return what the settings say of the session on the target."""
    options = settings.options
    own_tables: tuple[str, ...] = (*TABLES_SQL, CONFLICTS, DEAD_LETTER, PREPARED)
    if options.connections > 1 and options.commit_order == "relaxed":
        own_tables += (COMMITTED_SQL,)
    return TargetPlan(
        settings.subscription,
        settings.identity,
        options.dsn,
        options.synchronous_commit,
        own_tables,
    )
