"""What DDL did to tables, as events of the same form that slots are told of."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spillway.decoding.transaction import TransactionHeader
from spillway.errors import SpillwayError
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import moment
from spillway.plugins.ddl_event import DdlEvents
from spillway.service.model import DdlChange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.decoding.schema_changes import CommittedDdl
    from spillway.sessions.session import Session

log = logging.getLogger(__name__)


def ddl_changes(taken: Iterable[tuple[str, Session, CommittedDdl]]) -> list[DdlChange]:
    """Return the changes of each source's sessions; takes as long as there are many."""
    found: list[DdlChange] = []
    for source, session, ddl in taken:
        events = DdlEvents(session.server_version_num, session.encoding)
        header = TransactionHeader(
            ddl.xid, ddl.commit_lsn, ddl.commit_lsn, ddl.commit_lsn, ddl.commit_time
        )
        last = len(ddl.contents) - 1
        for number, content in enumerate(ddl.contents):
            try:
                event = events.event(content, header)
            except SpillwayError as error:
                # Of a default that can't be printed, say: rows of the table tell of it, too.
                log.warning("DDL at %s is not noted: %s", Lsn(ddl.commit_lsn), error)
                continue
            found.append(
                DdlChange(
                    source,
                    session.database,
                    ddl.xid,
                    Lsn(ddl.commit_lsn),
                    moment(ddl.commit_time),
                    number,
                    event,
                    ddl.more if number == last else 0,
                )
            )
    return found
