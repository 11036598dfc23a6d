"""The durable transaction log and its cursors: decoded once, read by every slot."""

from spillway.txlog.cursor import LoggedTransaction, TransactionCursor
from spillway.txlog.log import TransactionLog

__all__ = ["LoggedTransaction", "TransactionCursor", "TransactionLog"]
