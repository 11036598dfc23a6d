"""The seam between decoding and the transaction log: who takes the transactions.

Decoding imports nothing above itself; the log (or a test, or ``spillway decode``) implements
:class:`TransactionSink`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction


class TransactionSink(Protocol):
    """Takes transactions in the order of their ``final_lsn``."""

    def consistent(self, lsn: int) -> None:
        """Hear that the snapshot builder reached CONSISTENT: every transaction whose commit record
        starts at *lsn* or later comes, whole. Called before the first of them, and again after
        every restart.
        """
        ...

    def transaction(self, transaction: Transaction) -> None:
        """Take one transaction; *transaction* is closed by the caller of this method afterwards.

        After a restart, transactions already taken come again (same ``final_lsn``): the sink drops
        those at or before the last one that it has durably.
        """
        ...

    def transactions(self, run: TransactionRun) -> None:
        """Take many small ones at once, which committed one after the other: the common case, so
        made to be quick.

        A sink that derives from this class may leave it at this, and get them one by one. *run* is
        the sink's.
        """
        for transaction in run:
            self.transaction(transaction)

    def progress(self, decoded_lsn: int) -> None:
        """Say that WAL is decoded up to *decoded_lsn*: no transaction that commits before it is to
        come.
        """
        ...
