"""What delivery must be told of the database that a slot reads: where its log is, and how it came
to begin there.

Whoever decodes (``sessions/session.py``) gives it; delivery knows no more of that, and would serve
a log that another process writes as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spillway.txlog.reader import LogReader


class DecodedDatabase(Protocol):
    """A database whose transactions are in a log. For any thread."""

    #: what slots read
    log: LogReader
    #: its name, and its oid: another database may have its name one day
    database: str
    database_oid: int
    #: Python's name of its encoding
    encoding: str
    #: its server's release, as server_version_num has it
    server_version_num: int
    #: what is before the log's beginning was decoded by another service, in whose directory it is
    began_in_takeover: bool
    #: why slots are invalidated that stand before the log's beginning
    lost_reason: str

    @property
    def decoded_lsn(self) -> int:
        """How far the source's WAL is decoded."""

    @property
    def log_start_lsn(self) -> int:
        """The oldest position that a slot can have."""

    def check_readable(self) -> None:
        """Raise what has stopped decoding, as long as it has not gone on."""
