"""Arguments that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from spillway.errors import InvalidRequest


def grpc_address(given: str) -> str:
    """Return an address of gRPC's that can be one: host:port, or https://host:port of a service
    with a certificate.

    Raises:
        InvalidRequest: it is an http:// URL, has a path, or has no port.
    """
    host_and_port = given.removeprefix("https://")
    if "/" in host_and_port or ":" not in host_and_port:
        raise InvalidRequest(
            f"{given!r} is no address of gRPC's",
            hint="Give host:port, 127.0.0.1:50051 for one, as --grpc or in SPILLWAY_GRPC, or "
            "https://host:port of a service with a certificate; http:// is REST's (SPILLWAY_URL).",
        )
    return given


class Origin(StrEnum):
    """Which changes count, by where they first came from."""

    ANY = "any"
    NONE = "none"


PluginOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="A plugin option; may be repeated."),
]
