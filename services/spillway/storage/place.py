"""A place for files: a directory of this machine, or a prefix of a bucket of S3 or of what speaks
its protocol (MinIO, Ceph, …).

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
Spark's address           the path                                     ``s3a://bucket/key``
                                                                       (:func:`spark_address`)
delta-rs' address         the path                                     ``s3://bucket/key`` and
                                                                       :func:`storage_options`
Iceberg's address         the path                                     ``s3://bucket/key``
                                                                       (:func:`stored_path`)
========================  ===========================================  =============================

How the store is reached is the environment's to say, under the names that AWS's own tools read, so
that one setting does for all three clients and none is handed a secret: keys are in no option, no
configuration of Spark's, no checkpoint::

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN     unset: the machine's role
    AWS_REGION or AWS_DEFAULT_REGION                                unset: us-east-1
    AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL                         of another store than AWS;
                                                                    http:// is allowed if it says so

With an endpoint, buckets are part of the path, not of the host's name. The library is ``obstore``,
of the same Rust crate as delta-rs' own access; it is imported when an object is first asked for, as
local lakes do without it.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from io import BytesIO, RawIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, TypeAlias, cast

from spillway.errors import InvalidRequest, LakeError
from spillway.installation import how_to_install
from spillway.storage.durable_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from types import TracebackType

    from obstore.store import S3Store

_SCHEMES: Final = ("s3://", "s3a://")
#: Requests that fail for a passing reason are repeated so long.
_RETRY_S: Final = 60
_REQUEST_S: Final = 30
#: An object that is written piece by piece goes in parts of it, two at a time: five megabytes at
#: least, ten thousand parts at most.
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 2
#: What the error of a store says for people, in its XML.
_STORE_SAYS: Final = re.compile(
    r"<Code>(?P<code>[^<]*)</Code>(?:.*?<Message>(?P<message>[^<]*)<)?", re.DOTALL
)
#: What obstore says of a request that no answer came to: where it went, how often, and why not.
_NO_ANSWER: Final = re.compile(
    r"Error performing \w+ (?P<address>\w+://[^/\s]+)\S* in .*? - (?P<why>.*)"
)
STORE_HINT: Final = (
    "Is AWS_ENDPOINT_URL_S3 its address, does the bucket exist, and may the keys "
    "(AWS_ACCESS_KEY_ID, …) read and write it?"
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

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

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
        for prefix in found["common_prefixes"]:
            yield ObjectPath(self.bucket, prefix.rstrip("/"))
        for entry in found["objects"]:
            yield ObjectPath(self.bucket, entry["path"])

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield what of :meth:`iterdir` has a name like *pattern*."""
        return (each for each in self.iterdir() if PurePosixPath(each.name).match(pattern))

    def after(self, name: str) -> Iterator[ObjectPath]:
        """Yield the objects below whose names sort behind *name*, in order."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            for batch in obstore.list(self._store, f"{self.key}/", offset=f"{self.key}/{name}"):
                for entry in batch:
                    yield ObjectPath(self.bucket, entry["path"])

    def objects(self) -> Iterator[tuple[ObjectPath, datetime]]:
        """Yield all objects below, and when each was written by the store's clock."""
        import obstore  # noqa: PLC0415 - an extra

        with _typed(self):
            for batch in obstore.list(self._store, f"{self.key}/"):
                for entry in batch:
                    yield ObjectPath(self.bucket, entry["path"]), entry["last_modified"]

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
                if "NoSuchBucket" in str(error):
                    raise
                raise StorageChanged(str(self)) from error
        return str(done["e_tag"])

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the object."""
        import obstore  # noqa: PLC0415 - an extra

        if not missing_ok and self.size() is None:
            raise FileNotFoundError(str(self))
        with _typed(self):
            obstore.delete(self._store, self.key)

    @property
    def _store(self) -> S3Store:
        return _store(self.bucket, endpoint(), region())


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
    """Return the path that *address* means: a directory, or ``s3://bucket/prefix``.

    Raises:
        InvalidRequest: it is an address of something else.
    """
    if isinstance(address, ObjectPath):
        return address
    text = str(address)
    scheme = next((scheme for scheme in _SCHEMES if text.startswith(scheme)), None)
    if scheme is not None:
        bucket, _, key = text.removeprefix(scheme).partition("/")
        key = key.strip("/")
        if not bucket or not key or "//" in key:
            raise InvalidRequest(
                f"{text} is not a prefix of a bucket", hint="Name both: s3://bucket/lake."
            )
        return ObjectPath(bucket, key)
    if ":/" in text:
        raise InvalidRequest(
            f"{text} is neither a directory of this machine nor a prefix of a bucket",
            hint="Lakes are on local file systems and on S3 or what speaks its protocol: s3://bucket/lake.",
        )
    return Path(address)


def stored_path(location: str) -> LakePath:
    """Return the path of a file or table as its format's metadata have it: a directory's, or an
    object's.
    """
    for scheme in _SCHEMES:
        if location.startswith(scheme):
            bucket, _, key = location.removeprefix(scheme).partition("/")
            return ObjectPath(bucket, key.strip("/"))
    if location.startswith("file:"):
        # Other engines' way to say it.
        location = "/" + location.removeprefix("file:").lstrip("/")
    return Path(location)


def replace_text(path: LakePath, text: str) -> None:
    """Put *text* at *path* in one step, durably: readers see the old text or the new one."""
    if isinstance(path, ObjectPath):
        path.replace_text(text)
    else:
        replace_file(path, text)


def replace_json(path: LakePath, value: Any) -> None:
    """Put *value* at *path* in one step, as :func:`replace_text` does."""
    replace_text(path, json.dumps(value))


def spark_address(path: LakePath) -> str:
    """Return what Spark calls *path*."""
    if isinstance(path, ObjectPath):
        return f"s3a://{path.bucket}/{path.key}"
    return str(path.absolute())


def endpoint() -> str | None:
    """Return the store's address, None for AWS's own."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def region() -> str:
    """Return the store's region; most that aren't AWS's have none, and signatures want one."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def storage_options() -> dict[str, str]:
    """Return delta-rs' options for objects, beside what it takes from the environment by itself."""
    # A commit is a PUT that only creates: the same for which a lock table was needed once.
    options = {"aws_region": region(), "aws_conditional_put": "etag"}
    at = endpoint()
    if at is not None:
        options["aws_endpoint"] = at
        if at.startswith("http://"):
            options["aws_allow_http"] = "true"
    return options


@lru_cache(maxsize=16)
def _store(bucket: str, at: str | None, in_region: str) -> S3Store:
    try:
        from obstore.store import S3Store  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise LakeError(
            "obstore is not installed, and the lake is on object storage",
            hint=how_to_install("spark"),
        ) from error
    plain = at is not None and at.startswith("http://")
    return S3Store(
        bucket,
        config={"region": in_region} if at is None else {"region": in_region, "endpoint": at},
        client_options={"allow_http": plain, "timeout": timedelta(seconds=_REQUEST_S)},
        retry_config={"retry_timeout": timedelta(seconds=_RETRY_S)},
    )


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
        if isinstance(error, NotFoundError | FileNotFoundError) and "NoSuchBucket" not in text:
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
            hint=STORE_HINT,
        ) from error
