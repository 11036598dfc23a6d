"""The durable transaction log, its writer and its readers: decoded once, read by every slot."""

from spillway.txlog.cursor import LoggedTransaction, TransactionCursor
from spillway.txlog.reader import FollowedLog, LogReader
from spillway.txlog.writer import LogWriter

__all__ = ["FollowedLog", "LogReader", "LogWriter", "LoggedTransaction", "TransactionCursor"]
