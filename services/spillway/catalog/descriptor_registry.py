"""Descriptors interned: equal content gives the same object and the same id.

So decoding binds changes to an integer, and the transaction log stores each descriptor once.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from spillway.catalog.descriptor import RelationDescriptor


class _Reference(weakref.ref["RelationDescriptor"]):
    """A reference that knows the id of what it refers to."""

    __slots__ = ("number",)
    number: int


class DescriptorRegistry:
    """Descriptors by id, equal ones once. Ids start at 1.

    An id means its descriptor for as long as anybody holds that object, and then comes to mean
    another: who keeps an id keeps the descriptor with it. Safe for concurrent use.

    Memory: what others hold. A registry that held its descriptors itself would grow by kilobytes
    with each table that is made, changed or dropped, for the life of the process.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._ids: Final[dict[Hashable, int]] = {}
        self._entries: Final[dict[int, tuple[_Reference, Hashable]]] = {}
        self._free: Final[list[int]] = []
        # References to what nobody holds any more. They are put here without the lock, since that
        # can happen at any allocation, also of a thread that has the lock.
        self._gone: Final[deque[_Reference]] = deque()

    def intern(self, descriptor: RelationDescriptor) -> tuple[int, RelationDescriptor]:
        """Return the id of *descriptor* and the one object that stands for its content."""
        key = _content(descriptor)
        with self._lock:
            self._forget_gone()
            number = self._ids.get(key)
            if number is not None:
                reference = self._entries[number][0]
                known = reference()
                if known is not None:
                    return number, known
                self._forget(reference)
            number = self._free.pop() if self._free else len(self._entries) + 1
            reference = _Reference(descriptor, self._gone.append)
            reference.number = number
            self._entries[number] = reference, key
            self._ids[key] = number
            return number, descriptor

    def _forget_gone(self) -> None:
        while self._gone:
            self._forget(self._gone.popleft())

    def _forget(self, reference: _Reference) -> None:
        """Give the id of a descriptor free that nobody holds; safe to repeat."""
        number = reference.number
        entry = self._entries.get(number)
        if entry is not None and entry[0] is reference:
            del self._entries[number]
            del self._ids[entry[1]]
            self._free.append(number)

    def __getitem__(self, relation_id: int) -> RelationDescriptor:
        """Return the descriptor of an id that belongs to a descriptor that the caller, or its part
        of the program, holds.
        """
        entry = self._entries.get(relation_id)
        descriptor = None if entry is None else entry[0]()
        if descriptor is None:
            raise KeyError(relation_id)
        return descriptor

    def __len__(self) -> int:
        """How many descriptors anybody holds."""
        with self._lock:
            self._forget_gone()
            return len(self._entries)


def _content(descriptor: RelationDescriptor) -> Hashable:
    """Everything that tells a descriptor from another, as something that has a hash."""
    return (
        descriptor.oid, descriptor.schema, descriptor.name, descriptor.kind,
        descriptor.persistence, descriptor.replica_identity, descriptor.columns,
        tuple(descriptor.types[oid] for oid in sorted(descriptor.types)),
        descriptor.toast_oid, descriptor.primary_key, descriptor.primary_key_deferrable,
        descriptor.identity_columns,
        # Its publications are what the kind and these two make together.
        descriptor.database_publications, descriptor.memberships,
        tuple(map(_content, descriptor.ancestors)),
    )  # fmt: skip


#: The registry of this process; ids from different databases do not collide in it.
REGISTRY: Final = DescriptorRegistry()
