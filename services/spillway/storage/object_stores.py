"""The object stores that there are: how each is named, and how it is reached.

========  ==========================  =========================================================
scheme    store                       Spark's address, by Hadoop's file system
========  ==========================  =========================================================
``s3``    AWS, and what speaks its    ``s3a://bucket/key``
          protocol (MinIO, Ceph, …)
``az``    Azure Blob Storage          ``abfss://container@account.dfs.core.windows.net/key``
========  ==========================  =========================================================

obstore and delta-rs call both ``scheme://bucket/key``; a bucket is a *container* in Azure.

How a store is reached is the environment's to say, under the names that these two read, AWS's own
tools' among them. So one setting does for all clients, Spark's included
(:mod:`spillway.lake.session`), and none is handed a secret: keys are in no option, no configuration
of Spark's, no checkpoint::

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN     unset: the machine's role
    AWS_REGION or AWS_DEFAULT_REGION                                unset: us-east-1
    AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL                         of another store than AWS;
                                                                    http:// is allowed if it says so

    AZURE_STORAGE_ACCOUNT_NAME                                      of the containers
    AZURE_STORAGE_ACCOUNT_KEY                                       or the next three
    AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET           of a service principal; unset:
                                                                    the machine's identity
    AZURE_STORAGE_ENDPOINT                                          of an emulator, with the account
                                                                    as path

With an endpoint for S3, buckets are part of the path, not of the host's name. The library is
``obstore``, of the same Rust crate as delta-rs' own access; it is imported when an object is first
asked for, as local lakes do without it.

What a lake asks of a store is a PUT that only creates, or only replaces what was read: by ETags.
Google's store counts generations instead, and speaks a protocol to obstore that no emulator which
could be had has (docs/explanation/decisions.md), so it is not among these.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from spillway.errors import InvalidRequest, LakeError
from spillway.installation import how_to_install

if TYPE_CHECKING:
    from obstore.store import AzureStore, S3Store

#: Requests that fail for a passing reason are repeated so long.
_RETRY_S: Final = 60
_REQUEST_S: Final = 30


class ObjectStoreKind(ABC):
    """One kind of store. Instances are in :data:`KINDS`; all methods look at the environment."""

    scheme: ClassVar[str]
    #: for people
    name: ClassVar[str]
    #: what to look at when it refuses
    hint: ClassVar[str]
    #: what it says of a bucket that is not there
    no_bucket: ClassVar[str]

    @abstractmethod
    def endpoint(self) -> str | None:
        """Return the store's address, None for the provider's own."""

    @abstractmethod
    def storage_options(self) -> dict[str, str]:
        """Return delta-rs' options, beside what it takes from the environment by itself."""

    @abstractmethod
    def spark_address(self, bucket: str, key: str) -> str:
        """Return what Spark calls an object."""

    def open(self, bucket: str) -> S3Store | AzureStore:
        """Return the client of a bucket; the same one while the environment stays.

        Raises:
            InvalidRequest: the environment does not say where that is.
            LakeError: obstore is not installed.
        """
        return _opened(self.scheme, bucket, *self._where())

    def _where(self) -> tuple[str | None, ...]:
        """Return what tells one store of this kind from others."""
        return (self.endpoint(),)

    @abstractmethod
    def _connect(self, bucket: str, **client: Any) -> S3Store | AzureStore: ...

    def _allows_http(self) -> bool:
        return (self.endpoint() or "").startswith("http://")


class _S3(ObjectStoreKind):
    scheme = "s3"
    name = "AWS"
    no_bucket = "NoSuchBucket"
    hint = (
        "Is AWS_ENDPOINT_URL_S3 its address, does the bucket exist, and may the keys "
        "(AWS_ACCESS_KEY_ID, …) read and write it?"
    )

    def endpoint(self) -> str | None:
        return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None

    def storage_options(self) -> dict[str, str]:
        # A commit is a PUT that only creates: the same for which a lock table was needed once.
        options = {"aws_region": s3_region(), "aws_conditional_put": "etag"}
        at = self.endpoint()
        if at is not None:
            options["aws_endpoint"] = at
            if self._allows_http():
                options["aws_allow_http"] = "true"
        return options

    def spark_address(self, bucket: str, key: str) -> str:
        return f"s3a://{bucket}/{key}"

    def _where(self) -> tuple[str | None, ...]:
        return self.endpoint(), s3_region()

    def _connect(self, bucket: str, **client: Any) -> S3Store:
        from obstore.store import S3Store  # noqa: PLC0415 - an extra

        at = self.endpoint()
        config: Any = {"region": s3_region()} | ({} if at is None else {"endpoint": at})
        return S3Store(bucket, config=config, **client)


class _Azure(ObjectStoreKind):
    scheme = "az"
    name = "Azure"
    no_bucket = "ContainerNotFound"
    hint = (
        "Is AZURE_STORAGE_ACCOUNT_NAME the account, does the container exist, and may the key "
        "(AZURE_STORAGE_ACCOUNT_KEY) or the identity read and write it?"
    )

    def endpoint(self) -> str | None:
        return os.environ.get("AZURE_STORAGE_ENDPOINT") or None

    def storage_options(self) -> dict[str, str]:
        options = {"azure_storage_account_name": azure_account()}
        at = self.endpoint()
        if at is not None:
            azure_emulator()
            options["azure_storage_endpoint"] = at
            if self._allows_http():
                options["azure_allow_http"] = "true"
        return options

    def spark_address(self, bucket: str, key: str) -> str:
        scheme = "abfss" if azure_emulator() is None else "abfs"
        return f"{scheme}://{bucket}@{azure_account()}.dfs.core.windows.net/{key}"

    def _where(self) -> tuple[str | None, ...]:
        azure_emulator()
        return self.endpoint(), azure_account()

    def _connect(self, bucket: str, **client: Any) -> AzureStore:
        from obstore.store import AzureStore  # noqa: PLC0415 - an extra

        at = self.endpoint()
        config: Any = {"account_name": azure_account()} | ({} if at is None else {"endpoint": at})
        return AzureStore(bucket, config=config, **client)


_S3_KIND: Final = _S3()
#: by scheme, aliases among them
KINDS: Final[dict[str, ObjectStoreKind]] = {"s3": _S3_KIND, "s3a": _S3_KIND, "az": _Azure()}


def s3_region() -> str:
    """Return the region of S3; most stores that aren't AWS's have none, and signatures want one."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def azure_account() -> str:
    """Return the account that containers are of.

    Raises:
        InvalidRequest: none is named.
    """
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise InvalidRequest(
            "a container of Azure is named, and the account that it is of is not",
            hint="Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or an identity.",
        )
    return account


def azure_emulator() -> str | None:
    """Return ``host:port`` of an emulator of Azure, None for Azure itself.

    Raises:
        InvalidRequest: its address is of another form.
    """
    at = KINDS["az"].endpoint()
    if at is None:
        return None
    parts = urlsplit(at)
    if parts.scheme != "http" or parts.port is None or parts.path.strip("/") != azure_account():
        raise InvalidRequest(
            f"AZURE_STORAGE_ENDPOINT is no emulator's address: {at}",
            hint=f"It is as http://host:port/{azure_account()}; leave it out for Azure itself.",
        )
    return f"{parts.hostname}:{parts.port}"


@lru_cache(maxsize=16)
def _opened(scheme: str, bucket: str, *_where: str | None) -> S3Store | AzureStore:
    kind = KINDS[scheme]
    try:
        return kind._connect(  # noqa: SLF001 - this module's
            bucket,
            client_options={
                "allow_http": kind._allows_http(),  # noqa: SLF001 - as above
                "timeout": timedelta(seconds=_REQUEST_S),
            },
            retry_config={"retry_timeout": timedelta(seconds=_RETRY_S)},
        )
    except ImportError as error:
        raise LakeError(
            "obstore is not installed, and the lake is on object storage",
            hint=how_to_install("spark"),
        ) from error
