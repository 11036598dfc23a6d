"""The provider: where the service is, and what can be made there."""

from __future__ import annotations

import os
import ssl
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tf.iface import Provider
from tf.schema import Schema
from tf.types import Number, String, Unknown

from terraform_provider_spillway import checks
from terraform_provider_spillway.alerts import AlertChannel, AlertRule, FindingsData
from terraform_provider_spillway.publications import PublicationsData, TablesData
from terraform_provider_spillway.resource import Connection
from terraform_provider_spillway.schema import Field, as_number, check_config
from terraform_provider_spillway.service_client import ServiceClient
from terraform_provider_spillway.slot import Slot, SlotData
from terraform_provider_spillway.source import Source, SourceData
from terraform_provider_spillway.subscription import Subscription, SubscriptionData

if TYPE_CHECKING:
    from tf.utils import Diagnostics

VERSION: Final = version("terraform-provider-spillway")
#: Where configurations say that the provider comes from; it is in no registry.
ADDRESS: Final = "terraform.local/spillway/spillway"

_DEFAULT_ENDPOINT: Final = "http://127.0.0.1:8080"


def _url(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fits = False
    return None if fits else f"{text!r} is not a URL; {_DEFAULT_ENDPOINT} for one."


def _tls(config: dict[str, Any]) -> ssl.SSLContext:
    """Make what the service is verified with.

    Raises:
        OSError, ValueError: a file can't be read, or is none of that kind.
    """
    certificate = config["client_certificate_file"] or os.environ.get("SPILLWAY_TLS_CLIENT_CERT")
    key = config["client_key_file"] or os.environ.get("SPILLWAY_TLS_CLIENT_KEY")
    context = ssl.create_default_context(
        cafile=config["ca_file"] or os.environ.get("SPILLWAY_TLS_CA") or None
    )
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if bool(certificate) != bool(key):
        raise ValueError("a client's certificate needs its key, and a key its certificate")
    if certificate:
        # Without a password: there is no terminal to ask at.
        context.load_cert_chain(certificate, key, password="")
    return context


FIELDS: Final = (
    Field(
        "endpoint",
        String(),
        f"Where the service's REST is. `SPILLWAY_URL` without it, or `{_DEFAULT_ENDPOINT}`.",
        optional=True,
        checks=[_url],
    ),
    Field(
        "token",
        String(),
        "The service's token. `SPILLWAY_TOKEN` without it; a service on loopback may need none.",
        optional=True,
        sensitive=True,
        checks=[checks.not_empty],
    ),
    Field(
        "ca_file",
        String(),
        "A PEM file with the CAs that the service's certificate is verified with. "
        "`SPILLWAY_TLS_CA` without it, or the system's.",
        optional=True,
        checks=[checks.not_empty],
    ),
    Field(
        "client_certificate_file",
        String(),
        "A PEM file with the certificate to show, of a service that asks for one. "
        "`SPILLWAY_TLS_CLIENT_CERT` without it.",
        optional=True,
        checks=[checks.not_empty],
    ),
    Field(
        "client_key_file",
        String(),
        "A PEM file with that certificate's key. `SPILLWAY_TLS_CLIENT_KEY` without it.",
        optional=True,
        checks=[checks.not_empty],
    ),
    Field(
        "server_name",
        String(),
        "The name that the service's certificate must be for, where it isn't the endpoint's host. "
        "`SPILLWAY_TLS_SERVER_NAME` without it.",
        optional=True,
        checks=[checks.not_empty],
    ),
    Field(
        "timeout",
        Number(),
        "Seconds for one call: 120 without it. Making a slot waits until its database's catalog is "
        "known, as in PostgreSQL.",
        optional=True,
        checks=[checks.positive],
    ),
    Field(
        "retry_for",
        Number(),
        "For how many seconds a call is tried again when the service can't be reached, is "
        "starting, or is overloaded: 60 without it; 0: not at all.",
        optional=True,
        checks=[checks.not_negative],
    ),
)

DESCRIPTION: Final = (
    "Sources, slots, subscriptions and alerts of [Spillway](../../README.md) as code: PostgreSQL's "
    "logical decoding outside the server."
)


class SpillwayProvider(Provider):
    """What ``tf`` asks."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.stopping = threading.Event()

    def get_model_prefix(self) -> str:
        return "spillway_"

    def full_name(self) -> str:
        return ADDRESS

    def get_provider_schema(self, diags: Diagnostics) -> Schema:
        return Schema(attributes=list(FIELDS), description=DESCRIPTION)

    def validate_config(self, diags: Diagnostics, config: dict[str, Any]) -> None:
        check_config(diags, FIELDS, config)

    def configure_provider(self, diags: Diagnostics, config: dict[str, Any]) -> None:
        self.connection.client = None
        if Unknown in config.values():
            # While planning only; whoever needs the service says so.
            return
        endpoint = config["endpoint"] or os.environ.get("SPILLWAY_URL") or _DEFAULT_ENDPOINT
        if problem := _url(endpoint):
            diags.add_error(
                "Invalid endpoint", f"{problem} It comes from SPILLWAY_URL.", path=["endpoint"]
            )
            return
        timeout, retry_for = config["timeout"], config["retry_for"]
        try:
            tls = _tls(config) if endpoint.startswith("https:") else None
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            diags.add_error(
                "Unusable certificate",
                "ca_file, client_certificate_file or client_key_file (or the SPILLWAY_TLS_… "
                f"variable for it): {error}",
            )
            return
        self.connection.client = ServiceClient(
            endpoint,
            config["token"] or os.environ.get("SPILLWAY_TOKEN"),
            timeout_s=120 if timeout is None else as_number(timeout),
            retry_for_s=60 if retry_for is None else as_number(retry_for),
            stopping=self.stopping,
            version=VERSION,
            tls=tls,
            server_name=config["server_name"] or os.environ.get("SPILLWAY_TLS_SERVER_NAME"),
        )

    def get_resources(self) -> list[type[Any]]:
        return [Source, Slot, Subscription, AlertChannel, AlertRule]

    def get_data_sources(self) -> list[type[Any]]:
        return [
            SourceData,
            SlotData,
            SubscriptionData,
            PublicationsData,
            TablesData,
            FindingsData,
        ]
