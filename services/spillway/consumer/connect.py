"""How a consumer reaches a slot: which client answers :class:`spillway.consumer.slot.SlotClient`,
and with what options.

Options are texts, so that they can be handed to other processes as they are: the options of a Spark
data source.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.consumer.slot import SnapshotExporter, SourceIdentifier
from spillway.settings import Settings
from spillway.tls import ClientTls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from spillway.consumer.slot import ExportedSnapshot, SlotClient, SourceIdentity

#: Where `spillway serve` listens for gRPC unless told otherwise.
DEFAULT_ADDRESS: Final = Settings().grpc
_TLS_OPTIONS: Final = ("tls_ca", "tls_client_cert", "tls_client_key", "tls_server_name")
#: before the name of an option that the driver hands on
_HANDED_ON: Final = "driver_"


def connect(options: Mapping[str, str]) -> SlotClient:
    """Open a client to the service that *options* name.

    Args:
        options: ``grpc`` (host:port, https://host:port with TLS), ``token`` (bearer; else
            SPILLWAY_TOKEN), ``tls_ca``, ``tls_client_cert``, ``tls_client_key`` and
            ``tls_server_name`` (else SPILLWAY_TLS_CA, …, else what :func:`handed_on` gives), and
            ``client``:
            ``module:function`` of another implementation, which is called with these options.

    Raises:
        InvalidRequest: a file of TLS can't be used.
    """
    factory = options.get("client")
    if factory:
        module, _, function = factory.partition(":")
        client: SlotClient = getattr(import_module(module), function)(options)
        return client
    from spillway.consumer.grpc_slot import GrpcSlotClient  # noqa: PLC0415 - gRPC only where it is used

    return GrpcSlotClient(
        options.get("grpc") or DEFAULT_ADDRESS,
        options.get("token") or os.environ.get("SPILLWAY_TOKEN", ""),
        ClientTls(
            _path(options, "tls_ca"),
            _path(options, "tls_client_cert"),
            _path(options, "tls_client_key"),
            _tls_option(options, "tls_server_name") or None,
        ),
    )


def exports_of(
    options: Mapping[str, str], slot_name: str
) -> Callable[[], AbstractContextManager[ExportedSnapshot]] | None:
    """Return what has the service hold a snapshot of a slot's source, paired with its LSN; None
    where the client has nothing like it.

    Args:
        options: as :func:`connect` takes them.
        slot_name: the slot.
    """
    client = connect(options)
    if not isinstance(client, SnapshotExporter):
        return None
    return partial(client.exported_snapshot, slot_name)


def identity_of(client: SlotClient, source: str) -> SourceIdentity | None:
    """Return which cluster *source* is; None where the client does not know."""
    return client.source_identity(source) if isinstance(client, SourceIdentifier) else None


def handed_on() -> dict[str, str]:
    """Give what this process's environment says of TLS, as options for workers that have nothing of
    it in theirs.

    A worker has the environment that its executor was started with, which is not the driver's: on
    other machines, and here, too, when the JVM ran before. What is in it comes before what is
    handed on, since files may lie elsewhere there.
    """
    found = {name: os.environ.get(f"SPILLWAY_{name.upper()}", "") for name in _TLS_OPTIONS}
    return {f"{_HANDED_ON}{name}": value for name, value in found.items() if value}


def _path(options: Mapping[str, str], name: str) -> Path | None:
    value = _tls_option(options, name)
    return Path(value) if value else None


def _tls_option(options: Mapping[str, str], name: str) -> str:
    # The environment is that of the process that reads: of Spark's driver, or of a worker.
    given = options.get(name) or os.environ.get(f"SPILLWAY_{name.upper()}", "")
    return given or options.get(f"{_HANDED_ON}{name}", "")
