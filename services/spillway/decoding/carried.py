"""Transactions in progress that a serialised state carries, so that decoding goes on behind what it
read of them.

Without it, a restart reads WAL again from the first record of the oldest transaction in progress.
One that stays open for hours, or prepared for weeks, would hold back all WAL since; and a WAL store
with a bound would be full before the record came that ends it.

What is carried is the reorder buffer's table of transactions (``_kernels/reorder/carry.pyx``), what
was said of the prepared ones, and the descriptors of the tables that their changes name: relation
ids are a process's own. Changes that are many stay in the spill files that they are in. These files
are named, with how much of each is meant; they are only ever appended to, so several states may
name one, each up to another byte.

::

    u32 size | JSON of that size: files, prepared, relations | bytes of the reorder buffer

Who keeps a state keeps the files that it names. They are durable when
:meth:`~spillway.decoding.decoder.Decoder.carry` returns, before anybody can have written the state
down. There is no other copy once the WAL is given up: a file that is missing, cut or damaged ends
in DecodingStateLost, when it is opened or when the changes are read.

Disk: the changes of the transactions in progress, as spilling them takes anyway. Nothing but the
disk bounds that.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from spillway.catalog.descriptor import RelationDescriptor
from spillway.decoding.transaction import Prepared
from spillway.errors import DecodingStateLost, StorageError
from spillway.storage.durable_files import sync_directory
from spillway.storage.file_errors import file_error

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from spillway._kernels.reorder.buffer import ReorderBuffer
    from spillway.catalog.descriptor_registry import DescriptorRegistry

#: A transaction that occupies no more than this goes into the state itself: no file to make, and
#: none to sync.
INLINE_BYTES_MAX: Final = 64 << 10
#: Name pattern of spill files.
SPILL_GLOB: Final = "xid-*.spill"
_SIZE: Final = struct.Struct("<I")


class CarriedFile(NamedTuple):
    """A spill file that a state names."""

    name: str
    #: bytes of it that are meant
    size: int
    #: (end, {relation id in the file: id in ``Carried.relations``}); behind the last one ids are
    #: those
    ranges: tuple[tuple[int, dict[int, int]], ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a state has of its transactions in progress."""

    #: as ``ReorderBuffer.carry`` gives them
    transactions: bytes
    files: tuple[CarriedFile, ...]
    #: by xid
    prepared: dict[int, Prepared]
    #: descriptors by the ids in ``transactions``
    relations: dict[int, RelationDescriptor]

    @classmethod
    def of(
        cls,
        buffer: ReorderBuffer,
        position: int,
        prepared: dict[int, Prepared],
        registry: DescriptorRegistry,
        spill_dir: Path,
    ) -> Self:
        """Take what there is in *buffer* at *position*; its spill files are durable and stay from
        now on.

        Raises:
            DiskFull, StorageError: a spill file can't be written or synced.
        """
        try:
            transactions, files, ids = buffer.carry(INLINE_BYTES_MAX, position)
            if files:
                sync_directory(spill_dir)
        except OSError as error:
            raise StorageError(
                f"spill files in {spill_dir} can't be synced: {error.strerror}",
                hint="Check the disk and the kernel's log. Decoding starts again from WAL.",
                directory=str(spill_dir),
            ) from error
        return cls(
            transactions,
            tuple(CarriedFile(name.decode(), size, tuple(ranges)) for name, size, ranges in files),
            dict(prepared),
            {number: registry[number] for number in ids},
        )

    @property
    def file_names(self) -> frozenset[str]:
        """The spill files that it needs, in the decoder's directory."""
        return frozenset(file.name for file in self.files)

    def check_files(self, spill_dir: Path) -> None:
        """Raise DecodingStateLost when one of the files is not there, or shorter than it was."""
        for file in self.files:
            path = spill_dir / file.name
            try:
                found = path.stat().st_size
            except FileNotFoundError as error:
                raise _lost(path, error.strerror or str(error)) from error
            except OSError as error:
                raise file_error(error, path, "read") from error
            if found < file.size:
                raise _lost(path, f"it has {found} bytes of {file.size}")

    def restore(
        self, buffer: ReorderBuffer, registry: DescriptorRegistry, spill_dir: Path
    ) -> dict[int, RelationDescriptor]:
        """Fill *buffer*, which is empty; files are cut to what is meant of them.

        Returns:
            The descriptors that *buffer* names, by id: the caller holds them, or the ids come to
                mean others.

        Raises:
            DecodingStateLost: a file can't be used.
            StorageError: the state contradicts itself.
        """
        now: dict[int, int] = {}
        held: dict[int, RelationDescriptor] = {}
        for number, descriptor in self.relations.items():
            now[number], interned = registry.intern(descriptor)
            held[now[number]] = interned
            buffer.add_relation(now[number], interned.columns)
        files = [(file.name.encode(), file.size, _ranges_now(file, now)) for file in self.files]
        try:
            buffer.restore_carried(self.transactions, files, now)
        except OSError as error:
            path = error.filename or str(spill_dir)
            if isinstance(error, FileNotFoundError):
                raise _lost(path, error.strerror or str(error)) from error
            raise file_error(error, path, "read") from error
        except (KeyError, ValueError) as error:
            raise _contradicts(error) from error
        return held

    def dump(self) -> bytes:
        """Return it as bytes."""
        head = {
            "files": [
                [file.name, file.size, [[end, list(ids.items())] for end, ids in file.ranges]]
                for file in self.files
            ],
            "prepared": [
                [xid, p.gid, p.prepare_lsn, p.prepare_end_lsn, p.prepare_time, p.empty]
                for xid, p in self.prepared.items()
            ],
            "relations": [[number, d.to_json()] for number, d in self.relations.items()],
        }
        # Of a gid that is not UTF-8 the escapes must survive, hence ASCII.
        text = json.dumps(head, separators=(",", ":")).encode()
        return b"".join((_SIZE.pack(len(text)), text, self.transactions))

    @classmethod
    def load(cls, data: memoryview) -> Self:
        """Reverse :meth:`dump`.

        Raises:
            StorageError: *data* contradicts itself.
        """
        try:
            (size,) = _SIZE.unpack_from(data)
            end = _SIZE.size + size
            head: dict[str, Any] = json.loads(bytes(data[_SIZE.size : end]))
            files = [
                CarriedFile(name, length, tuple((stop, dict(ids)) for stop, ids in ranges))
                for name, length, ranges in head["files"]
            ]
            return cls(
                bytes(data[end:]),
                tuple(files),
                {xid: Prepared(*values) for xid, *values in head["prepared"]},
                {n: RelationDescriptor.from_json(value) for n, value in head["relations"]},
            )
        except (KeyError, ValueError, TypeError, IndexError, struct.error) as error:
            raise _contradicts(error) from error


def clear_spill_dir(spill_dir: Path, keep: Collection[str]) -> None:
    """Make *spill_dir*, or remove what earlier runs left in it but the files in *keep*.

    Raises:
        StorageError: it can't be used.
    """
    try:
        spill_dir.mkdir(parents=True, exist_ok=True)
        for leftover in spill_dir.iterdir():
            if leftover.match(SPILL_GLOB) and leftover.name not in keep:
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise file_error(error, spill_dir) from error


def _ranges_now(file: CarriedFile, now: dict[int, int]) -> list[tuple[int, dict[int, int]]]:
    """Return what the ids in *file* are called in this process, stretch by stretch."""
    ranges = [
        (end, {before: now[number] for before, number in ids.items()}) for end, ids in file.ranges
    ]
    end = ranges[-1][0] if ranges else 0
    if file.size > end:
        if ranges and ranges[-1][1] == now:
            ranges.pop()
        ranges.append((file.size, now))
    return ranges


def _lost(path: Path | str, why: str) -> DecodingStateLost:
    return DecodingStateLost(
        f"the spill file {path}, which holds changes of a transaction in progress, can't be used: "
        f"{why}",
        hint="Restore the file from a backup, or begin anew behind that transaction: spillway "
        "source restart SOURCE DATABASE.",
        path=str(path),
    )


def _contradicts(error: Exception) -> StorageError:
    return StorageError(
        f"a serialised decoder state contradicts itself: {error}",
        hint="Remove the file; decoding starts from an older one, or from a new bootstrap.",
    )
