"""A place for files: a directory of this machine, or a prefix of a bucket of an object store
(:mod:`spillway.storage.object_stores`).

The address of a lake, the first that may be in either, is a :data:`LakePath`:
:class:`pathlib.Path`, or :class:`ObjectPath`, which has as much of a path's interface as lakes use.
Modules join, list and read either without knowing which it is; what differs is said where it
matters:

========================  ===========================================  =============================
                          a directory                                  a bucket
========================  ===========================================  =============================
a small file is replaced  by a rename, synced (:mod:`.durable_files`)  by one PUT, which is there
                                                                       whole and durable, or not
directories               made, and synced                             are not there: a prefix that
                                                                       something begins with
one process at work       ``flock``                                    a lease by conditional PUT
                                                                       (:mod:`.lease`)
Spark's address           the path                                     :func:`spark_address`
delta-rs' address         the path                                     ``scheme://bucket/key`` and
                                                                       :func:`storage_options`
Iceberg's address         the path                                     ``scheme://bucket/key``
                                                                       (:func:`stored_path`)
========================  ===========================================  =============================
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO, RawIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, TypeAlias, cast

from spillway.errors import InvalidRequest, LakeError
from spillway.storage.durable_files import put_new, replace_file
from spillway.storage.object_stores import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from types import TracebackType

    from obstore.store import AzureStore, S3Store

    from spillway.storage.object_stores import ObjectStoreKind

#: An object that is written piece by piece goes in parts of it, two at a time: five megabytes at
#: least, ten thousand parts at most.
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 2
#: What the error of a store says for people, in its XML.
_STORE_SAYS: Final = re.compile(
    r"<Code>(?P<code>[^<]*)</Code>(?:.*?<Message>(?P<message>[^<\n]*))?", re.DOTALL
)
#: What obstore says of a request that no answer came to: where it went, how often, and why not.
_NO_ANSWER: Final = re.compile(
    r"Error performing \w+ (?P<address>\w+://[^/\s]+)\S* in .*? - (?P<why>.*)"
)


class StorageChanged(Exception):
    """An object is not, or no more, what a conditional PUT expects."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """An object, or all that are below it: what of :class:`pathlib.Path` lakes use, with the same
    meaning.

    Every method asks the store anew. Raises LakeError with what the store said, where a path would
    raise OSError; FileNotFoundError is itself.
    """

    bucket: str
    #: without slashes at its ends
    key: str
    #: of its store
    scheme: str = "s3"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        return self._at(f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> ObjectPath:
        return self._at(self.key.rpartition("/")[0])

    @property
    def store(self) -> ObjectStoreKind:
        """The kind of store that it is in."""
        return KINDS[self.scheme]

    def absolute(self) -> ObjectPath:
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: prefixes need no making."""

    def is_dir(self) -> bool:
        """Say whether there are objects below this."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            batches = obstore.list(self._store, f"{self.key}/", chunk_size=1)
            return any(batch for batch in batches)

    def is_file(self) -> bool:
        """Say whether this is an object."""
        return self.size() is not None

    def exists(self) -> bool:
        """Say whether this is an object, or there are objects below it."""
        return self.is_file() or self.is_dir()

    def size(self) -> int | None:
        """Return the object's bytes; None: there is no such object."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            with _typed(self):
                return int(obstore.head(self._store, self.key)["size"])
        except FileNotFoundError:
            return None

    def tag(self) -> str | None:
        """Return the object's ETag, which tells it from others of its name; None: there is no such
        object.
        """
        import obstore  # noqa: PLC0415 - an extra

        try:
            with _typed(self):
                return str(obstore.head(self._store, self.key)["e_tag"])
        except FileNotFoundError:
            return None

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield what is directly below: objects, and prefixes of objects."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            found = obstore.list_with_delimiter(self._store, f"{self.key}/")
        prefixes = {f"{prefix.rstrip('/')}/" for prefix in found["common_prefixes"]}
        for prefix in found["common_prefixes"]:
            yield self._at(prefix.rstrip("/"))
        for entry in found["objects"]:
            # Hadoop marks what it takes for a directory in Azure.
            if f"{entry['path']}/" not in prefixes:
                yield self._at(entry["path"])

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield what of :meth:`iterdir` has a name like *pattern*."""
        return (each for each in self.iterdir() if PurePosixPath(each.name).match(pattern))

    def after(self, name: str) -> Iterator[ObjectPath]:
        """Yield the objects below whose names sort behind *name*, in order."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            for batch in obstore.list(self._store, f"{self.key}/", offset=f"{self.key}/{name}"):
                for entry in batch:
                    yield self._at(entry["path"])

    def objects(self) -> Iterator[tuple[ObjectPath, datetime]]:
        """Yield all objects below, and when each was written by the store's clock."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            for batch in obstore.list(self._store, f"{self.key}/"):
                for entry in batch:
                    yield self._at(entry["path"]), entry["last_modified"]

    def tags(self) -> dict[ObjectPath, str]:
        """Return all objects below, and their ETags, as of one look where they are few."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            return {
                self._at(entry["path"]): str(entry["e_tag"])
                for batch in obstore.list(self._store, f"{self.key}/")
                for entry in batch
            }

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def read_bytes(self) -> bytes:
        return self.read_with_tag()[0]

    def read_with_tag(self) -> tuple[bytes, str]:
        """Return the object, and its ETag for :meth:`replace_if`."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            found = obstore.get(self._store, self.key)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def read_range(self, start: int, length: int) -> bytes:
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            return bytes(obstore.get_range(self._store, self.key, start=start, length=length))

    def open_reader(self, whole_bytes: int = 0) -> BinaryIO:
        """Return a binary file each of whose reads is a request: for the ends of large objects.

        One of up to *whole_bytes* is read at once, by one request.
        """
        import obstore  # noqa: PLC0415 - an extra

        size = None
        if whole_bytes:
            with _typed(self):
                found = obstore.get(self._store, self.key)
                size = int(found.meta["size"])
                if size <= whole_bytes:
                    return BytesIO(bytes(found.bytes()))
        return cast("BinaryIO", _Reader(self, size))

    def open_writer(self) -> ObjectWriter:
        """Return a binary file that becomes the object when it is closed."""
        return ObjectWriter(self)

    def replace_text(self, text: str) -> None:
        """Make *text* the object, whatever it was."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            obstore.put(self._store, self.key, text.encode(), use_multipart=False)

    def replace_if(self, tag: str | None, text: str) -> str:
        """Make *text* the object if it still is the one of *tag*, None: if there is none; return
        the new ETag.

        Raises:
            StorageChanged: it is another one; nothing is done. A request that was repeated because
                its answer got lost ends so, too, after it was done: who must know reads the object.
        """
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import (  # noqa: PLC0415 - as above
            AlreadyExistsError,
            NotFoundError,
            PreconditionError,
        )

        with _typed(self):
            try:
                done = obstore.put(
                    self._store,
                    self.key,
                    text.encode(),
                    use_multipart=False,
                    mode="create" if tag is None else {"e_tag": tag},
                )
            except (AlreadyExistsError, PreconditionError) as error:
                raise StorageChanged(str(self)) from error
            except (NotFoundError, FileNotFoundError) as error:
                if self.store.no_bucket in str(error):
                    raise
                raise StorageChanged(str(self)) from error
        return str(done["e_tag"])

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the object."""
        import obstore  # noqa: PLC0415 - an extra

        if not missing_ok and self.size() is None:
            raise FileNotFoundError(str(self))
        # Some stores say that there was none.
        with suppress(FileNotFoundError), _typed(self):
            obstore.delete(self._store, self.key)

    @property
    def _store(self) -> S3Store | AzureStore:
        return self.store.open(self.bucket)

    def _at(self, key: str) -> ObjectPath:
        return ObjectPath(self.bucket, key, self.scheme)


class _Reader(RawIOBase):
    """An object as a file."""

    def __init__(self, path: ObjectPath, size: int | None) -> None:
        if size is None:
            size = path.size()
        if size is None:
            raise FileNotFoundError(str(path))
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        if length:
            buffer[:length] = self._path.read_range(self._at, length)
            self._at += length
        return length

    def readall(self) -> bytes:
        rest = bytearray(max(0, self._size - self._at))
        self.readinto(rest)
        return bytes(rest)


class ObjectWriter:
    """An object as a file to write. It is there, whole and durable, when this is closed, and never
    if it isn't.

    Memory: :data:`_PARTS_AT_ONCE` parts on their way, and the next. One that is not closed, after
    an error or a kill, leaves parts of an upload at the most, which nothing lists as an object.
    """

    def __init__(self, path: ObjectPath) -> None:
        import obstore  # noqa: PLC0415 - an extra

        self._path = path
        self._at = 0
        self.closed = False
        with _typed(path):
            self._file = obstore.open_writer(
                path._store,  # noqa: SLF001 - this module's
                path.key,
                buffer_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview) -> int:
        with _typed(self._path):
            self._file.write(data)
        length = memoryview(data).nbytes
        self._at += length
        return length

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Do nothing: there is no half of an object."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _typed(self._path):
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()


LakePath: TypeAlias = Path | ObjectPath


def lake_path(address: str | LakePath) -> LakePath:
    """Return the path that *address* means: a directory, or ``s3://bucket/prefix``,
    ``az://container/prefix``.

    Raises:
        InvalidRequest: it is an address of something else.
    """
    if isinstance(address, ObjectPath):
        return address
    text = str(address)
    found = _object_path(text)
    if found is not None:
        if not found.bucket or not found.key or "//" in found.key:
            raise InvalidRequest(
                f"{text} is not a prefix of a bucket",
                hint=f"Name both: {found.scheme}://bucket/lake.",
            )
        return found
    if ":/" in text:
        raise InvalidRequest(
            f"{text} is neither a directory of this machine nor a prefix of a bucket",
            hint="Lakes are on local file systems, on S3 or what speaks its protocol: "
            "s3://bucket/lake, and in Azure's containers: az://container/lake.",
        )
    return Path(address)


def stored_path(location: str) -> LakePath:
    """Return the path of a file or table as its format's metadata have it: a directory's, or an
    object's.
    """
    found = _object_path(location)
    if found is not None:
        return found
    if location.startswith("file:"):
        # Other engines' way to say it.
        location = "/" + location.removeprefix("file:").lstrip("/")
    return Path(location)


def _object_path(location: str) -> ObjectPath | None:
    scheme, separator, rest = location.partition("://")
    if not separator or scheme not in KINDS:
        return None
    bucket, _, key = rest.partition("/")
    return ObjectPath(bucket, key.strip("/"), KINDS[scheme].scheme)


def replace_text(path: LakePath, text: str) -> None:
    """Put *text* at *path* in one step, durably: readers see the old text or the new one."""
    if isinstance(path, ObjectPath):
        path.replace_text(text)
    else:
        replace_file(path, text)


def put_new_text(path: LakePath, text: str) -> None:
    """Put *text* at *path* in one step, durably, where nothing is: of several who do, one succeeds.
    In a bucket nobody else's text may be the same: a request that was repeated is known by it.

    Raises:
        FileExistsError: there is something else; it stays what it is.
    """
    if not isinstance(path, ObjectPath):
        put_new(path, text)
        return
    try:
        path.replace_if(None, text)
    except StorageChanged:
        # What was there may be gone by now, which is no reason to say that nothing was.
        with suppress(FileNotFoundError):
            if path.read_text() == text:
                return
        raise FileExistsError(str(path)) from None


def replace_json(path: LakePath, value: Any) -> None:
    """Put *value* at *path* in one step, as :func:`replace_text` does."""
    replace_text(path, json.dumps(value))


def spark_address(path: LakePath) -> str:
    """Return what Spark calls *path*."""
    if isinstance(path, ObjectPath):
        return path.store.spark_address(path.bucket, path.key)
    return str(path.absolute())


def storage_options(path: LakePath) -> dict[str, str] | None:
    """Return delta-rs' options for a table, None for one in a directory."""
    return path.store.storage_options() if isinstance(path, ObjectPath) else None


@contextmanager
def _typed(path: ObjectPath) -> Iterator[None]:
    """Raise what the store refuses as an error of ours: the library's own is pages of its
    insides.
    """
    from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415 - an extra

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        text = str(error)
        is_missing = isinstance(error, NotFoundError | FileNotFoundError)
        if is_missing and path.store.no_bucket not in text:
            raise FileNotFoundError(str(path)) from error
        first = text.partition("\n")[0]
        if said := _STORE_SAYS.search(text):
            told = ": ".join(filter(None, said.group("code", "message")))
        elif said := _NO_ANSWER.search(first):
            told = f"{said['why']} to {said['address']}"
        else:
            told = first
        raise LakeError(
            f"the object store failed at {path}: {told}",
            hint=path.store.hint,
        ) from error
