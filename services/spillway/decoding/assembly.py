"""Putting transactions together whose pieces were decoded by several decoders.

A decoder of a stretch of WAL hands over what the stretch has of a transaction as *pieces*
(:class:`~spillway.decoding.transaction.Piece`): changes in LSN order, as they were queued. What
needs all of a transaction has not been done to them: TOAST chunks are not with their rows,
speculative insertions not confirmed, and what subtransactions wrote that aborted later is still
there. Queued again, one stretch behind the other, in a reorder buffer here, they become what one
decoder of the whole would have delivered.

Relation ids are each decoder's own. Here a relation gets a number for each descriptor *object*: who
parses descriptors does so once for each text.

Memory: ``work_mem_bytes`` of changes, the rest spilled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway._kernels.reorder import buffer as reorder
from spillway.decoding.decoder import WORK_MEM_BYTES_DEFAULT
from spillway.decoding.dispatch import action_table
from spillway.decoding.transaction_ends import DecodedTransaction
from spillway.errors import DecodingError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import Transaction, TransactionHeader
    from spillway.pg.versions import WalVersion


class Assembler:
    """One transaction at a time: :meth:`add` its pieces, then :meth:`finish`."""

    def __init__(
        self,
        version: WalVersion,
        database_oid: int,
        spill_dir: Path,
        work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
    ) -> None:
        self._buffer = reorder.ReorderBuffer(
            action_table(version), database_oid, work_mem_bytes, bytes(spill_dir)
        )
        self._numbers: dict[int, int] = {}
        self._descriptors: dict[int, RelationDescriptor] = {}

    def add(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        survivors: Container[int],
    ) -> None:
        """Queue a chunk of a piece.

        Args:
            header: of the transaction.
            chunk: as the piece gave it; pieces come in the order of their stretches.
            relations: descriptors by the piece's ids.
            survivors: as the last piece names them; others' changes are left out.

        Raises:
            DecodingError: the chunk is damaged.
            DiskFull, StorageError: a spill file can't be written.
        """
        numbers = {number: self._number(relations[number]) for number in relations}
        try:
            self._buffer.add_changes(header.xid, chunk, numbers, survivors)
        except (KeyError, ValueError) as error:
            raise DecodingError(
                f"a piece of transaction {header.xid}, which commits at {Lsn(header.final_lsn)}, "
                f"is damaged: {error}",
                hint="Run the replay again; report this if it repeats.",
                lsn=str(Lsn(header.final_lsn)),
                xid=header.xid,
            ) from error

    def _number(self, descriptor: RelationDescriptor) -> int:
        number = self._numbers.get(id(descriptor))
        if number is None:
            number = self._numbers[id(descriptor)] = len(self._numbers) + 1
            self._descriptors[number] = descriptor
            self._buffer.add_relation(number, descriptor.columns)
        return number

    def finish(self, header: TransactionHeader) -> Transaction:
        """Return the transaction with what was added, which is forgotten here; the caller closes
        it.
        """
        if self._buffer.end(header.xid, ()) is None:
            return DecodedTransaction(header, None, {})
        stream = self._buffer.take(header.xid)
        relations = {number: self._descriptors[number] for number in stream.relation_ids()}
        return DecodedTransaction(header, stream, relations)

    def close(self) -> None:
        """Free memory and remove spill files; safe to repeat."""
        self._buffer.close()
