"""What a worker is put together from, as its settings say: who copies tables, who follows the
source's DDL, and who sees rows that are gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spillway.apply.exact.dead_rows import DeadRows
from spillway.apply.schema.changes import SchemaChanges
from spillway.apply.schema.following import Following
from spillway.apply.sync.catching_up import SlotCatchUp
from spillway.apply.sync.copiers import connect_source, source_lsn
from spillway.apply.sync.retries import MOST_S
from spillway.apply.sync.settings import SyncSettings
from spillway.apply.sync.table_sync import TableSync
from spillway.apply.target.session import connect_beside
from spillway.apply.target.stop import Stop
from spillway.consumer.connect import exports_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import psycopg

    from spillway.apply.conflicts.log import ConflictLog
    from spillway.apply.exact.writer import ExactOptions
    from spillway.apply.settings import ApplySettings
    from spillway.apply.status import ApplyStatusFile
    from spillway.apply.target.session import TargetSession

    Connection = psycopg.Connection[tuple[Any, ...]]

_log = logging.getLogger(__name__)


def table_sync_of(
    settings: ApplySettings,
    session: TargetSession,
    exact: ExactOptions,
    conflicts: ConflictLog,
    stopping: Stop,
) -> TableSync | None:
    """Return who copies the tables, or keeps account of them; None without the source's DSN: tables
    are as they are then, which is for whoever runs the program by hand.
    """
    if not settings.source_dsn:
        return None
    options, plan = settings.options, session.plan
    quiet = {"session_replication_role": "replica"} if session.may_replicate_role else {}
    name = f"spillway subscription {settings.subscription} table sync"
    reach = {"grpc": settings.grpc, "token": settings.token or ""}
    # It ends with the program, and before it goes on after an error.
    its_end = Stop(stopping)
    following = following_of(settings, its_end)
    return TableSync(
        settings.subscription,
        SyncSettings(
            publications=settings.selection.publications or (),
            copy_data=settings.copy_data,
            connections=options.copy_connections,
            defer_indexes=options.defer_indexes,
            create_tables=options.create_tables,
            sequences_every_s=options.sync_sequences or None,
            origin=plan.origin if session.uses_origin else "",
            rename=options.rename.target_of,
            selected=settings.selection.has,
            prepared=f"{plan.origin}_" if settings.two_phase else "",
            sets_aside=settings.copy_data and options.table_errors == "set_aside",
            refreshes=settings.refreshes,
            forgets=settings.forgets,
        ),
        settings.source_dsn,
        lambda: connect_beside(plan, name, quiet, its_end),
        exports_of(reach, settings.slot),
        SlotCatchUp(
            settings.grpc,
            settings.slot,
            settings.selection.plugin_options(
                two_phase=False,
                only_local=settings.only_local,
                ddl=following is not None,
                whole_prepared=True,
            ),
            plan,
            conflicts,
            its_end,
            exact,
            options.rename.target_of,
            always_exact=options.exact == "always",
            following=following,
            token=settings.token,
            tls=settings.tls,
        ),
        its_end,
        tell=_log.info,
        following=following,
    )


def following_of(settings: ApplySettings, stop: Stop) -> Callable[[Connection], Following] | None:
    """Return what makes who does DDL of a table that is being copied; None if the subscription
    passes over it. *stop* ends its sessions.
    """
    options = settings.options
    if options.on_schema_change == "ignore":
        return None
    return lambda connection: Following(
        connection,
        options.dsn,
        options.rename.target_of,
        settings.source_dsn,
        applies=options.on_schema_change == "apply",
        how_to_go_on=f"the table goes on by itself, within {MOST_S / 60:.0f} minutes",
        stop=stop,
    )


def schema_changes_of(
    settings: ApplySettings,
    session: TargetSession,
    sync: TableSync | None,
    status: ApplyStatusFile,
) -> SchemaChanges | None:
    """Return who acts on the source's DDL; None if the subscription passes over it."""
    options = settings.options
    if options.on_schema_change == "ignore":
        return None
    return SchemaChanges(
        session,
        settings.selection,
        options.rename.target_of,
        settings.source_dsn,
        applies=options.on_schema_change == "apply",
        sync=sync,
        tell=status.schema_change,
    )


def dead_rows_of(settings: ApplySettings, session: TargetSession) -> DeadRows | None:
    """Return who sees rows that somebody else deleted; None if that is not wished, or the target
    does not say whose a row is.
    """
    held_s = settings.options.retain_dead_tuples
    tells_origins = session.facts.has_commit_times and session.uses_origin
    if not held_s or not settings.source_dsn or not tells_origins:
        return None
    name = f"spillway subscription {settings.subscription} dead rows"

    def ask_source() -> int:
        with connect_source(settings.source_dsn) as source:
            return source_lsn(source)

    return DeadRows(
        lambda: connect_beside(session.plan, name, stop=session.stop),
        ask_source,
        lambda: session.position,
        held_s,
    )
