"""DDL of what is skipped: rows of a transaction are given up by whoever skips it, the shape of its
tables is not. What comes behind has that shape, and a row that fits the target's table by accident
(a column dropped and made again, a rename) would be written wrong, unseen.

So before the stream begins where it was told to skip to, what lies between the target's position
and there is read once more, beside the slot; its events of DDL are met in their order, and nothing
else is. One transaction of the target has all of them and the new position. An event that is not
done is the pause that it always is: the next start meets it again, as the position stays until all
are passed.

What the service does not keep any more can't be read. The tables are as they are then: a column
that is missing is told with the next row that has it, and a table that has another name gets it in
front of its next row (:meth:`~spillway.apply.schema.changes.SchemaChanges.find_renamed`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.schema.changes import PREFIX
from spillway.apply.stream import ArrivingChanges
from spillway.apply.target.session import Idle
from spillway.errors import LsnNotRetained

if TYPE_CHECKING:
    import threading

    from spillway.apply.schema.changes import SchemaChanges
    from spillway.apply.settings import ApplySettings
    from spillway.apply.target.session import TargetSession
    from spillway.pg.lsn import Lsn

_log = logging.getLogger(__name__)

_GROUP_BYTES: Final = 4 << 20


def meet_skipped(
    settings: ApplySettings,
    session: TargetSession,
    changes: SchemaChanges,
    upto_lsn: Lsn,
    stopping: threading.Event,
) -> bool:
    """Meet the DDL that commits from the session's position up to *upto_lsn*, and have the target
    be there; return False if it was stopped before, and is not.

    Raises:
        TargetSchemaChange: one is not done; nothing of any is.
        HeirsBehind: one has to wait.
        SpillwayError: the service can't be reached; or as
            :meth:`~spillway.apply.schema.changes.SchemaChanges.meet`.
        psycopg.Error: the target did not answer.
    """
    try:
        session.begin()
        try:
            if not _read(settings, session, changes, upto_lsn, stopping):
                session.rollback()
                changes.rolled_back()
                return False
        except LsnNotRetained as error:
            session.rollback()
            changes.rolled_back()
            _log.warning("what was skipped is gone, and its DDL is not known: %s", error.message)
            session.begin()
        session.commit(Idle.now(upto_lsn))
    except BaseException:
        if not session.connection.broken:
            session.rollback()
            changes.rolled_back()
        raise
    return True


def _read(
    settings: ApplySettings,
    session: TargetSession,
    changes: SchemaChanges,
    upto_lsn: Lsn,
    stopping: threading.Event,
) -> bool:
    group = ChangeGroup(_GROUP_BYTES)

    def meet() -> None:
        if group.has_schema_change:
            for unit, head in enumerate(group.heads()):
                for change in group.changes(unit):
                    if change.message is not None and change.message[0] == PREFIX:
                        changes.meet(head, change.message[1])
        group.clear()

    with ArrivingChanges(
        settings.grpc,
        settings.slot,
        session.position,
        settings.selection.plugin_options(
            two_phase=False, only_local=settings.only_local, ddl=True
        ),
        upto_lsn=upto_lsn,
        peek=True,
        token=settings.token,
        tls=settings.tls,
    ) as stream:
        return stream.read_into(group, meet, stopping)
